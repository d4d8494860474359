"""Records of a machine that does not exist: schema 2, on a simulated clock, with noise and effects that
the test chooses. What a tool says of them can be held against what was put in.

    machine = Machine(seed=1, run_noise=0.005)
    records = machine.run("bench_linear", kernel_cases(20), effects=[Effect(3, kernel="linear")])
    records += machine.decoder_run(decoder_cases(), effects=[Effect(10, op="down")])
    write(path, records)
"""

import datetime
import json
import re
import zlib
from dataclasses import dataclass

import numpy as np

# The kernels of this machine, whatever the suite has: the counts in the tests follow from them.
KERNELS = ("chunk_decode", "paged_prefill", "rmsnorm_qkv", "kv_append", "paged_gather", "embedding", "norm",
           "linear", "activation", "sampling")
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
READ_GBPS, TWO_TO_ONE_GBPS, COPY_GBPS, MATMUL_TFLOPS = 4400.0, 4200.0, 4000.0, 780.0
L2_BYTES = 62914560

# A decode step of a small model: op, kernel, launches, microseconds of all launches at batch 1.
OPS = (("embedding", "embedding", 1, 2.0), ("qkv", "rmsnorm_qkv", 28, 140.0),
       ("chunk_decode", "chunk_decode", 28, 160.0), ("attention_output", "linear", 28, 84.0),
       ("gate_up", "linear", 28, 170.0), ("down", "linear", 28, 112.0), ("final_norm", "norm", 1, 3.0),
       ("lm_head", "linear", 1, 90.0), ("sampling", "sampling", 1, 12.0))
DEVICE_GAP_US, HOST_GAP_US = 18.0, 9.0


@dataclass(frozen=True)
class KernelCase:
    """A row of a bench program, and the time that the machine takes for it without noise."""
    kernel: str
    shape: tuple  # of (name, value)
    us: float
    implementation: str = "cuda"
    chain: str = "plain"
    cache: str = "cold"
    dtype: str = "bf16"
    library: tuple | None = None  # (name, version) of a peer
    chosen: bool | None = None    # None: the row does not say


@dataclass(frozen=True)
class DecoderCase:
    model: str = "qwen3-0.6b"
    batch: int = 1
    prompt_tokens: int = 128
    new_tokens: int = 128
    implementation: str = "cuda"
    dtype: str = "bf16"


@dataclass(frozen=True)
class Effect:
    """Makes what it matches `percent` slower, or `us` longer (of a row, or of all launches of an op). A
    condition that is None holds always."""
    percent: float = 0.0
    us: float = 0.0
    kernel: str | None = None  # of a row; in a decode step all ops of this kernel
    shape: str | None = None  # a regular expression for the shape's name
    op: str | None = None  # of a decode step; "host_gap" and "device_gap" too
    commits: frozenset | None = None
    after: datetime.datetime | None = None
    before: datetime.datetime | None = None

    def holds(self, machine):
        return ((self.commits is None or machine.commit in self.commits)
                and (self.after is None or machine.now >= self.after)
                and (self.before is None or machine.now < self.before))

    def on_row(self, case):
        return (self.op is None
                and (self.kernel is None or self.kernel == case.kernel)
                and (self.shape is None or re.search(self.shape, dict(case.shape)["name"]) is not None))

    def on_op(self, op, kernel):
        if self.shape is not None:
            return False
        if self.op is not None:
            return self.op == op
        return self.kernel is None and not op.endswith("_gap") or self.kernel == kernel

    def applied(self, us):
        return us * (1 + self.percent / 100) + self.us


def kernel_cases(count=230, kernels=KERNELS):
    """`count` rows over the kernels, from 3 us to 3 ms, plain and dependent, cold and warm."""
    cases = []
    for i in range(count):
        kernel = kernels[i % len(kernels)]
        step = i // len(kernels)
        batch = 1 << step % 8
        shape = (("name", f"b{batch}_s{1024 * (1 + step // 8)}"), ("batch", batch), ("len", 1024 * (1 + step // 8)))
        if kernel in ("chunk_decode", "paged_prefill", "kv_append", "paged_gather"):
            shape += (("page_size", 64 if step % 2 else 256),)
        cases.append(
            KernelCase(kernel, shape, 3.0 * 1000 ** ((i * 0.6180339887) % 1.0),
                       chain="dependent" if step % 3 == 1 else "plain", cache="warm" if i % 7 == 6 else "cold"))
    return cases


def decoder_cases(batches=(1, 8, 32), model="qwen3-0.6b"):
    return [DecoderCase(model=model, batch=batch) for batch in batches]


class Machine:
    """A simulated GPU. Its clock advances by what it runs; all of it follows from the seed.

    sample_noise: of the samples within a run, relative; run_noise: of a row's median from run to run;
    outlier_share and outlier_percent: how many rows of a run are disturbed without a mark, and by how much;
    drift_percent_per_hour: what warms up.
    """
    def __init__(self, seed=1, sample_noise=0.002, run_noise=0.005, outlier_share=0.0, outlier_percent=5.0,
                 drift_percent_per_hour=0.0, commit="a" * 40, samples=15, start=START, gpu=None, build=None):
        self.random = np.random.default_rng(seed)
        self.sample_noise, self.run_noise = sample_noise, run_noise
        self.outlier_share, self.outlier_percent = outlier_share, outlier_percent
        self.drift = drift_percent_per_hour
        self.commit, self.samples = commit, samples
        self.started, self.now = start, start
        self.gpu, self.build = gpu or {}, build or {}

    def wait(self, **time):
        """Lets the clock run on: wait(days=1)."""
        self.now += datetime.timedelta(**time)

    def _samples(self, us, count):
        hours = (self.now - self.started).total_seconds() / 3600
        us *= (1 + self.drift / 100 * hours) * np.exp(self.run_noise * self.random.standard_normal())
        if self.random.random() < self.outlier_share:
            us *= 1 + self.outlier_percent / 100
        return us * np.exp(self.sample_noise * self.random.standard_normal(count))

    def header(self, program, injected=None, from_run=None):
        gpu_state = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_cap_w": 700.0, "power_w": 130.0,
                     "temperature_c": 43, "throttle_reasons": "none", "throttled": False, "other_processes": 0}
        gpu = {"name": "NVIDIA H200", "uuid_hash": "00d1ce5eed5eed00", "compute_capability": "9.0", "sm_count": 132,
               "l2_bytes": L2_BYTES, "memory_bytes": 150109880320, "driver": "580.1", "cuda_driver": "13.0",
               "cuda_runtime": "13.0", "cublaslt": "130100", "mig": False, "mps": False, "max_sm_clock_mhz": 1980,
               "before": gpu_state} | self.gpu
        fingerprint = {"time_utc": self.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                       "command_line": [program, "--record", "out.jsonl"], "commit": self.commit, "dirty": "false",
                       "compiler": "gcc 12.2.0", "cuda_compiler": "nvcc 13.0.88", "flags": "-O3 -DNDEBUG",
                       "build_type": "Release", "cpu": "Simulated", "cpu_threads": 16, "cpu_governor": "performance",
                       "os": "Linux 6.1 x86_64", "gpu": gpu} | self.build
        return {
            "schema": 2,
            "kind": "run",
            "run_id": self.random.bytes(8).hex(),
            "program": program,
            "injected": injected,
            "fingerprint": fingerprint,
            "peaks": {"read_gbps": READ_GBPS, "two_to_one_gbps": TWO_TO_ONE_GBPS, "copy_gbps": COPY_GBPS, "matmul_tflops": MATMUL_TFLOPS, "launch_us": 4.8,
                      "graph_node_us": 0.7, "from_run": from_run},
            "datasheet": {"memory_gbps": 4800.0, "bf16_tflops": 989.0}}

    def run(self, program, cases, effects=(), refused=None, disturbed=None, memory=None, errors=None, killed=False,
            injected=None):
        """The records of one run of a bench program. By case: `refused` and `disturbed` hold a reason,
        `memory` bytes, `errors` max_error_over_bound."""
        records = [self.header(program, injected)]
        for case in cases:
            row = self._kernel_row(records[0], case, effects)
            row["disturbed"] = (disturbed or {}).get(case)
            row["memory_bytes"] = (memory or {}).get(case, row["memory_bytes"])
            if case in (errors or {}):
                row["verified"]["max_error_over_bound"] = errors[case]
            if case in (refused or {}):
                _refuse(row, refused[case])
            records.append(row)
            self.wait(seconds=1)
        return records if killed else records + [_end(records)]

    def decoder_run(self, cases=(DecoderCase(),), effects=(), repeats=5, profile="cupti", killed=False, injected=None):
        """The records of one `tokline bench`: rows with profiles that add up."""
        records = [self.header("tokline bench", injected)]
        records[0]["peaks"]["matmul_tflops"] = 0.0
        for case in cases:
            records.append(self._decoder_row(records[0], case, effects, repeats, profile))
            self.wait(seconds=5)
        return records if killed else records + [_end(records)]

    def ablation(self, header, case, name, instead, gain_percent, isolated=None, rounds=7):
        """An `ablation` line: without the op a decode step takes `gain_percent` longer; `isolated` are
        the op's own microseconds (with, without)."""
        step_ms = sum(us for _, us in _step(case)) / 1e3
        without = step_ms * (1 + gain_percent / 100)
        return {"schema": 2,
                "kind": "ablation",
                "run_id": header["run_id"],
                "model": case.model,
                "dtype": case.dtype,
                "device": header["fingerprint"]["gpu"]["name"],
                "batch": case.batch,
                "prompt_tokens": case.prompt_tokens,
                "new_tokens": case.new_tokens,
                "name": name,
                "instead": instead,
                "status": "ok",
                "reason": None,
                "interrupted": False,
                "end_to_end": {"with_ms": [float(self._samples(step_ms, 1)[0]) for _ in range(rounds)],
                               "without_ms": [float(self._samples(without, 1)[0]) for _ in range(rounds)]},
                "isolated": isolated
                and {"with_us": self._samples(isolated[0], rounds).tolist(),
                     "without_us": self._samples(isolated[1], rounds).tolist()}}

    def _kernel_row(self, header, case, effects):
        us = case.us
        for effect in effects:
            if effect.holds(self) and effect.on_row(case):
                us = effect.applied(us)
        # A fixed share of the peak for each case, from its name: cold rows stay below the roofline.
        share = 0.3 + 0.45 * (zlib.crc32(repr((case.kernel, case.shape)).encode()) % 1000) / 1000
        bytes_ = share * READ_GBPS * 1e3 * case.us
        write_bytes = bytes_ / 2 if case.kernel in ("kv_append", "paged_gather", "embedding") else bytes_ / 64
        cost = {"read_bytes": float(round(bytes_ - write_bytes)), "write_bytes": float(round(write_bytes)),
                "flops": float(round(2 * bytes_))}
        samples = self._samples(us, self.samples)
        median, deviation = _median_and_mad(samples)
        limit, floor_us, datasheet_us = _floor(cost)
        row = {"schema": 2,
               "kind": "row",
               "run_id": header["run_id"],
               "kernel": case.kernel,
               "implementation": case.implementation,
               "shape": dict(case.shape),
               "dtype": case.dtype,
               "device": header["fingerprint"]["gpu"]["name"],
               "cache": case.cache,
               "chain": case.chain,
               "status": "ok",
               "reason": None,
               "interrupted": False,
               "disturbed": None,
               "verified": {"before": True, "after": True, "audits": 3,
                            "max_error_over_bound": float(self.random.uniform(0.2, 0.4))},
               "library": case.library and {"name": case.library[0], "version": case.library[1]},
               "cost": cost,
               "memory_bytes": int(64e6 + 2 * bytes_),
               "launches_per_sample": max(1, round(1e3 / case.us)),
               "buffer_sets": 8,
               "samples_us": samples.tolist(),
               "median_us": median,
               "mad_us": deviation,
               "ci95_us": _interval(samples),
               "stopped": "precise",
               "fresh_us": median,
               "gbps": (cost["read_bytes"] + cost["write_bytes"]) / median / 1e3,
               "tflops": cost["flops"] / median / 1e6,
               "limit": limit,
               "floor_us": floor_us,
               "percent_of_measured_peak": 100 * floor_us / median,
               "percent_of_datasheet_peak": 100 * datasheet_us / median}
        return row if case.chosen is None else row | {"chosen": case.chosen}

    def _decoder_row(self, header, case, effects, repeats, method):
        active = [effect for effect in effects if effect.holds(self)]
        step = []
        for (op, kernel), us in _step(case):
            for effect in active:
                if effect.on_op(op, kernel):
                    us = effect.applied(us)
            step.append((op, kernel, us))
        clean_us = sum(us for _, _, us in step)
        samples = self._samples(clean_us, repeats) / 1e3
        median, deviation = _median_and_mad(samples)
        prefill = self._samples(5e-6 * case.batch * case.prompt_tokens, repeats)
        bytes_ = 1.2e9 + 14680064.0 * case.batch
        cost = {"read_bytes": bytes_, "write_bytes": 114688.0 * case.batch, "flops": 1.2e9 * case.batch}
        limit, floor_us, datasheet_us = _floor(cost)
        profile = None
        if method is not None:
            scale = 1e3 * median / clean_us
            launches = {op: count for op, _, count, _ in OPS}
            times = {op: us * scale for op, _, us in step}
            profile = {"method": method,
                       "steps": 16,
                       "step_us": 1e3 * median,
                       "ops": [{"op": op, "kernel": kernel, "launches": launches[op], "us": times[op]}
                               for op, kernel, _ in step
                               if op in launches],
                       "device_gap_us": times["device_gap"],
                       "host_gap_us": times["host_gap"],
                       "unexplained_us": 0.0}
        return {
            "schema": 2, "kind": "row", "run_id": header["run_id"], "kernel": "decoder",
            "implementation": case.implementation, "model": case.model, "dtype": case.dtype,
            "device": header["fingerprint"]["gpu"]["name"], "cache": "cold", "status": "ok", "reason": None,
            "interrupted": False, "disturbed": None, "batch": case.batch, "prompt_tokens": case.prompt_tokens,
            "new_tokens": case.new_tokens,
            "verified": {"tokens": 64 * min(case.batch, 2), "mean_regret": float(self.random.uniform(0.004, 0.006))},
            "library": None, "cost": cost, "memory_bytes": int(2.5e9 + 3e7 * case.batch),
            "samples_prefill_s": prefill.tolist(), "samples_ms": samples.tolist(),
            "prefill_tok_s": case.batch * case.prompt_tokens / float(np.median(prefill)),
            "decode_tok_s": 1e3 * case.batch / median, "ms_per_token": median, "mad_ms": deviation,
            "first_token_ms": _latencies(repeats * case.batch, 5.0 * case.batch), "between_tokens_ms":
            _latencies(repeats * case.batch * (case.new_tokens - 1), median),
            "end_to_end_ms": _latencies(repeats * case.batch, median * case.new_tokens),
            "ci95_ms": _interval(samples), "host_share": 0.01, "profile": profile, "limit": limit, "floor_us": floor_us,
            "percent_of_measured_peak": 100 * floor_us / (1e3 * median),
            "percent_of_datasheet_peak": 100 * datasheet_us / (1e3 * median)}


def write(path, records):
    """Writes records as `--record` does: a line each."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return str(path)


def _step(case):
    """((op, kernel), us) of a decode step, and its gaps."""
    growth = 1 + 0.02 * (case.batch - 1)
    return [((op, kernel), us * growth) for op, kernel, _, us in OPS] + [(("device_gap", ""), DEVICE_GAP_US),
                                                                         (("host_gap", ""), HOST_GAP_US)]


def _latencies(count, ms):
    return {"count": count, "median": ms, "p90": 1.1 * ms if count >= 10 else None,
            "p99": 1.4 * ms if count >= 100 else None}


def _median_and_mad(samples):
    median = float(np.median(samples))
    return median, float(np.median(np.abs(samples - median)))


def _interval(samples):
    """95 % by order statistics for the counts in use here: ranks 4 of 15; else the extremes."""
    ordered = np.sort(samples)
    rank = 3 if len(samples) == 15 else 0
    return [float(ordered[rank]), float(ordered[-1 - rank])]


def _floor(cost):
    copies = cost["write_bytes"] >= 0.45 * (cost["read_bytes"] + cost["write_bytes"])
    bytes_ = cost["read_bytes"] + cost["write_bytes"]
    return ("copy" if copies else "read", bytes_ / (COPY_GBPS if copies else READ_GBPS) / 1e3, bytes_ / 4800.0 / 1e3)


def _refuse(row, reason):
    for name in ("samples_us", "median_us", "mad_us", "ci95_us", "stopped", "fresh_us", "gbps", "tflops", "limit",
                 "floor_us", "percent_of_measured_peak", "percent_of_datasheet_peak"):
        del row[name]
    row["status"], row["reason"] = "refused", reason
    row["verified"] |= {"after": False, "max_error_over_bound": 7.5}


def _end(records):
    rows = [record for record in records if record["kind"] == "row"]
    return {"schema": 2, "kind": "end", "run_id": records[0]["run_id"], "interrupted": False, "rows": len(rows),
            "refused": sum(row["status"] == "refused" for row in rows),
            "gpu_after": records[0]["fingerprint"]["gpu"] and records[0]["fingerprint"]["gpu"]["before"]}
