"""The GPU: what it is and what state it is in (NVML), and PyTorch's CUDA graphs as a device of measure.py."""
import contextlib
import ctypes
import os
import platform
import re
import uuid

from peers.rows import utc_now
from tokline import revision
from tokline.kernels import ROOT

CLOCK_SM, CLOCK_MEMORY = 1, 2
PROCESS_TABLE = 64
# NVML's bits: the name of each, and whether it makes kernels slower than they could be.
THROTTLE_REASONS = {0x1: ("idle", False), 0x2: ("application clocks", False), 0x4: ("power cap", True),
                    0x8: ("hardware slowdown", True), 0x10: ("sync boost", True), 0x20: ("thermal", True),
                    0x40: ("hardware thermal", True), 0x80: ("power brake", True), 0x100: ("display clocks", False)}
LEAD_CYCLES = 400_000  # the device waits this long while the host queues events and replays


def without_folders(words):
    """A command line whose absolute paths are cut as WithoutFolders of harness/measure/fingerprint.h cuts them."""
    def cut(word):
        return re.sub(r"^(--[^=]*=)?/(?:(?:.*?/)?(?=build/)|(?:.*/)?(?=[^/]+/*$))", r"\1", word)
    return [cut(word) for word in words]


def uuid_hash(raw):
    """FNV-1a of a GPU's UUID (16 bytes), as in the suite's fingerprint."""
    value = 0xcbf29ce484222325
    for byte in raw:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def throttle_text(reasons):
    """The set bits in words, or "none"."""
    names = [name for bit, (name, _) in THROTTLE_REASONS.items() if reasons & bit]
    if reasons & ~sum(THROTTLE_REASONS):
        names.append("unknown reason")
    return ", ".join(names) or "none"


def is_throttled(reasons):
    return any(reasons & bit and disturbs for bit, (_, disturbs) in THROTTLE_REASONS.items())


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used_bytes", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint)]


class Nvml:
    """The driver's management library; a value that it cannot give is None."""
    def __init__(self, gpu_uuid):
        self._library = self._device = None
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        device = ctypes.c_void_p()
        if self._call("nvmlInit_v2") and self._call("nvmlDeviceGetHandleByUUID", f"GPU-{gpu_uuid}".encode(),
                                                    ctypes.byref(device)):
            self._device = device

    def _call(self, name, *arguments):
        function = getattr(self._library, name, None) if self._library else None
        return function is not None and function(*arguments) == 0

    def _read(self, name, *arguments, form=ctypes.c_uint):
        value = form()
        known = self._device is not None and self._call(name, self._device, *arguments, ctypes.byref(value))
        return value.value if known else None

    def driver(self):
        text = ctypes.create_string_buffer(96)
        return text.value.decode() if self._call("nvmlSystemGetDriverVersion", text, 96) else None

    def cuda_driver(self):
        number = ctypes.c_int()
        if not self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number)):
            return None
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def max_sm_clock_mhz(self):
        return self._read("nvmlDeviceGetMaxClockInfo", CLOCK_SM)

    def mig(self):
        """Whether the GPU is partitioned; None if it cannot be."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        known = self._device is not None and self._call("nvmlDeviceGetMigMode", self._device, ctypes.byref(current),
                                                        ctypes.byref(pending))
        return bool(current.value) if known else None

    def throttle_reasons(self):
        return self._read("nvmlDeviceGetCurrentClocksThrottleReasons", form=ctypes.c_ulonglong)

    def other_processes(self):
        if self._device is None:
            return None
        count, found = ctypes.c_uint(PROCESS_TABLE), (_Process * PROCESS_TABLE)()
        if not self._call("nvmlDeviceGetComputeRunningProcesses_v3", self._device, ctypes.byref(count), found):
            return None
        return sum(process.pid != os.getpid() for process in found[:count.value])

    def state(self):
        """The state of the GPU as records have it."""
        watts = [self._read(name) for name in ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerUsage")]
        cap, used = (None if value is None else value / 1e3 for value in watts)
        reasons = self.throttle_reasons()
        return {"sm_clock_mhz": self._read("nvmlDeviceGetClockInfo", CLOCK_SM),
                "memory_clock_mhz": self._read("nvmlDeviceGetClockInfo", CLOCK_MEMORY),
                "power_cap_w": cap, "power_w": used, "temperature_c": self._read("nvmlDeviceGetTemperature", 0),
                "throttle_reasons": None if reasons is None else throttle_text(reasons),
                "throttled": None if reasons is None else is_throttled(reasons),
                "other_processes": self.other_processes()}


class TorchGraph:
    """Captured launches of a subject."""
    def __init__(self, torch, subject, launches):
        self.launches, self.outputs = launches, {}
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # torch.cuda.graph() may collect Python's garbage first, which takes longer than a row.
        self._graph.capture_begin(capture_error_mode="thread_local")
        try:
            for launch in range(launches):
                index = launch % subject.sets
                self.outputs[index] = subject.launch(index)
        except BaseException:
            with contextlib.suppress(RuntimeError):
                self._graph.capture_end()
            raise
        self._graph.capture_end()

    def replay(self):
        self._graph.replay()

    def poison(self):
        for outputs in self.outputs.values():
            for output in outputs:
                output.fill_(float("nan") if output.is_floating_point() else -1)


class CudaDevice:
    """A device of measure.py."""
    def __init__(self, torch):
        self._torch = torch
        # One stream for all work: libraries keep a workspace for each, and kernels that were launched on two slow down
        # every later graph (docs/measuring.md). The default stream cannot be captured.
        torch.cuda.set_stream(torch.cuda.Stream())
        self._seen = ""
        properties = torch.cuda.get_device_properties(0)
        self.name, self.l2_bytes = properties.name, properties.L2_cache_size
        gpu_uuid = str(properties.uuid).removeprefix("GPU-")
        self.nvml = Nvml(gpu_uuid)
        self.identity = {
            "name": properties.name, "uuid_hash": uuid_hash(uuid.UUID(gpu_uuid).bytes),
            "compute_capability": f"{properties.major}.{properties.minor}",
            "sm_count": properties.multi_processor_count, "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory, "driver": self.nvml.driver(),
            "cuda_driver": self.nvml.cuda_driver(), "cuda_runtime": torch.version.cuda, "cublaslt": None,
            "max_sm_clock_mhz": self.nvml.max_sm_clock_mhz(), "mig": self.nvml.mig(), "mps": None}

    def warm_up(self, subject):
        self._seen = ""  # of the row before
        for index in range(min(subject.sets, 2)):
            subject.launch(index)
        self._torch.cuda.synchronize()

    def capture(self, subject, launches):
        return TorchGraph(self._torch, subject, launches)

    def replay(self, graph, count):
        def watch():
            self._seen = self._seen or self._slowed_by()  # while they run: soon after, the power cap no longer shows
        return self._timed(graph.replay, count, watch)

    def _timed(self, launch, count, meanwhile=lambda: None):
        """The microseconds of each launch, queued back to back."""
        cuda = self._torch.cuda
        events = [cuda.Event(enable_timing=True) for _ in range(count + 1)]
        cuda._sleep(LEAD_CYCLES)
        events[0].record()
        for event in events[1:]:
            launch()
            event.record()
        meanwhile()
        cuda.synchronize()
        return [1e3 * begin.elapsed_time(end) for begin, end in zip(events, events[1:])]

    def disturbance(self):
        seen, self._seen = self._seen, ""
        return seen or self._slowed_by()

    def _slowed_by(self):
        reasons, others = self.nvml.throttle_reasons(), self.nvml.other_processes()
        words = []
        if reasons is not None and is_throttled(reasons):
            slow = sum(bit for bit, (_, disturbs) in THROTTLE_REASONS.items() if disturbs)
            words.append(f"throttled: {throttle_text(reasons & slow)}")
        if others:
            words.append(f"{others} other process{'es' if others > 1 else ''} on the GPU")
        return "; ".join(words)

    def peaks_again(self, peaks):
        """Of each peak the better one: as it is given, or as PyTorch's own kernels reach it now."""
        torch = self._torch
        bytes_, side = 1 << 29, 8192
        a, b, c = (torch.randn(bytes_ // 2, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        x, y, z = (part[:side * side].view(side, side) for part in (a, b, c))
        work = {"read_gbps": (lambda: torch.sum(a), bytes_ / 1e3),
                "two_to_one_gbps": (lambda: torch.add(a, b, out=c), 3 * bytes_ / 1e3),
                "copy_gbps": (lambda: c.copy_(a), 2 * bytes_ / 1e3),
                "matmul_tflops": (lambda: torch.matmul(x, y, out=z), 2 * side**3 / 1e6)}
        for launch, _ in work.values():
            launch()  # loads its kernel
        return peaks | {name: max(peaks.get(name) or 0.0, amount / min(self._timed(launch, 9)))
                        for name, (launch, amount) in work.items()}

    def fingerprint(self, command_line, libraries):
        """The fingerprint of a run, as records have it; `libraries` has the versions of what is measured."""
        commit, dirty = revision.of_tree(ROOT)
        return {"time_utc": utc_now(), "command_line": without_folders(command_line), "commit": commit or "unknown",
                "dirty": {True: "true", False: "false", None: "unknown"}[dirty],
                "compiler": "unknown", "cuda_compiler": "unknown", "flags": "unknown", "build_type": "unknown",
                "cpu": _cpu_model(), "cpu_threads": os.cpu_count(), "cpu_governor": _first_line(GOVERNOR),
                "os": f"{platform.system()} {platform.release()} {platform.machine()}",
                "python": platform.python_version(), "libraries": libraries,
                "gpu": self.identity | {"before": self.nvml.state()}}


GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


def _first_line(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _cpu_model():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(": ", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"
