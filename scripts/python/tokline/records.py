"""Reads the records that `--record` writes (harness/record/record.schema.json): schema 2, and 1 lifted to it."""

import contextlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tokline.files import jsonl_below
from tokline.samples import interval, middle
from tokline.schema import SCHEMA, VERSION, brief, compiled
from tokline.stop import Stop

OLDEST_SCHEMA = 1
_MOST_BYTES_OF_A_LINE = 64 << 20
_MOST_BYTES = 1 << 30
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
DECODER = "decoder"
WORKLOAD = "workload"
# Rows of the decoder as a whole; all others are of one kernel.
WHOLE = (DECODER, WORKLOAD)

# Dimensions that tell rows of one shape name apart, and the word before them in a label.
_LABEL_KEYS = {"page_size": "page", "tokens": "tokens", "hidden": "hidden", "rows": "rows", "max_batch": "batch",
               "sharing": "sharing", "rate": "rate"}
_LABEL_FLAGS = ("append", "reuse")
# What a run may differ in and still be compared: when and of what it was, not on what.
_NOT_IDENTITY = {"time_utc", "command_line", "commit", "dirty", "gpu", "gpu_before"}
_GPU_STATE = {"before", "after"}
_WORDS = {"uuid_hash": "GPU (hash of its UUID)", "name": "GPU", "before.power_cap_w": "power cap (W)",
          "max_sm_clock_mhz": "largest SM clock (MHz)", "driver": "driver", "cublaslt": "cuBLASLt",
          "cuda_driver": "CUDA driver", "cuda_runtime": "CUDA runtime", "mig": "MIG", "mps": "MPS", "cpu": "CPU",
          "cpu_threads": "CPU threads", "cpu_governor": "CPU governor", "os": "OS", "compiler": "compiler",
          "cuda_compiler": "CUDA compiler", "flags": "compiler flags", "build_type": "build type"}

# Kernels of older records, and the kernel and the kind of it that do their work now.
_MERGED = {"rmsnorm": ("norm", "rmsnorm"), "layernorm": ("norm", "layernorm"),
           "silu_mul": ("activation", "gated_silu"), "gelu": ("activation", "gelu_tanh")}

# How the reason begins for which a row is refused that is faster than its limit.
ABOVE_LIMIT = "above the roofline"

PERCENTILES = ("median", "p90", "p99")
# How many latencies a percentile is stated of at least.
_LEAST_OF = {"p90": 10, "p99": 100}
DEFAULT_PAGE_SIZE = 256  # of a decoder, also where a record does not say
LATENCIES = ("first_token_ms", "between_tokens_ms", "end_to_end_ms")


class BadRecords(Stop):
    """A file that cannot be used; the message says where and why."""


class RowKey(NamedTuple):
    """What a row measured. Two rows with the same key may be compared; `str()` is what people read."""
    kernel: str
    implementation: str
    dtype: str
    device: str
    shape: str  # JSON, keys sorted; "" for the decoder
    cache: str  # "" for the decoder and its workloads
    chain: str
    model: str
    batch: int
    prompt_tokens: int
    new_tokens: int
    depth: int = 0
    page_size: int = 0

    def anywhere(self):
        """The same work on whatever device."""
        return self._replace(device="cpu" if self.device == "cpu" else "gpu")

    @property
    def label(self):
        """`str()` without kernel: what tells the rows of one kernel apart."""
        if self.kernel == DECODER:
            parts = [self.model, f"batch {self.batch}", f"{lengths(self._asdict())} tokens"]
        else:
            parts = [self.model] if self.model else []
            parts += shape_parts(json.loads(self.shape))
        parts.append(self.implementation)
        parts += [self.chain] if self.chain not in ("", "none") else []
        parts.append(self.dtype)
        parts += [self.cache] if self.cache not in ("", "cpu") else []
        return " ".join(parts)

    def __str__(self):
        return f"{self.kernel} {self.label}"


@dataclass
class Run:
    """One run of a program: its header, what it measured, and its end, which a killed run lacks."""
    header: dict
    rows: list = field(default_factory=list)
    ablations: list = field(default_factory=list)
    end: dict | None = None
    path: str = ""

    @property
    def run_id(self):
        return self.header["run_id"]

    @property
    def program(self):
        return self.header["program"]

    @property
    def fingerprint(self):
        return self.header["fingerprint"]

    @property
    def gpu(self):
        """The fingerprint's GPU, or {}."""
        return self.fingerprint.get("gpu") or {}

    @property
    def time(self):
        """UTC, as text that sorts."""
        return self.fingerprint["time_utc"]

    @property
    def commit(self):
        return self.fingerprint["commit"]

    @property
    def injected(self):
        """What was done to the run on purpose, to test the tools; None for all others."""
        return self.header["injected"]

    @property
    def killed(self):
        return self.end is None

    @property
    def interrupted(self):
        return bool(self.end and self.end["interrupted"])


def lengths(row):
    """The tokens in and out of a decoder's row: "128+64", or "128+64 at depth 4096, page 64"."""
    page_size = row.get("page_size", DEFAULT_PAGE_SIZE)
    return (f"{row['prompt_tokens']}+{row['new_tokens']}" + (f" at depth {row['depth']}" if row.get("depth") else "")
            + (f", page {page_size}" if page_size != DEFAULT_PAGE_SIZE else ""))


def is_swept(row):
    """Whether a row's shape was drawn by --sweep."""
    return row["kernel"] not in WHOLE and row["shape"]["name"].startswith("sweep:")


def dimensions(shape):
    """What a shape is, in brief: a list of lengths by its number and its extremes."""
    words = []
    for name, value in shape.items():
        if isinstance(value, list):
            value = f"{min(value)} to {max(value)}"
        if name != "name" and value is not False:
            words.append(name if value is True else f"{name} {value}")
    return " ".join(words)


def parted(runs):
    """(runs with the rows of shapes that somebody chose, runs with those that were drawn)"""
    chosen = [replace(run, rows=[row for row in run.rows if not is_swept(row)]) for run in runs]
    swept = [replace(run, rows=[row for row in run.rows if is_swept(row)], ablations=[]) for run in runs]
    return chosen, [run for run in swept if run.rows]


def shape_parts(shape):
    """A shape's name in its file, and the words that tell rows of one name apart."""
    name = str(shape["name"])
    parts = [name]
    parts += [f"{word} {shape[key]}" for key, word in _LABEL_KEYS.items() if key in shape
              # most names tell the hidden size: rmsnorm_d4096
              and not (key == "hidden" and re.search(rf"(?<!\d){re.escape(str(shape[key]))}(?!\d)", name))]
    if shape.get("kv_limit"):
        parts += [f"kv {key} {value}" for key, value in shape["kv_limit"].items()]
    return parts + [flag for flag in _LABEL_FLAGS if shape.get(flag)]


def shape_label(shape):
    """The parts in one: "b1_s1024_h16-8, page 64"."""
    return ", ".join(shape_parts(shape))


def key(row):
    """The RowKey of a row."""
    decoder, whole = row["kernel"] == DECODER, row["kernel"] in WHOLE
    return RowKey(row["kernel"], row["implementation"], row["dtype"], row["device"],
                  "" if decoder else json.dumps(row["shape"], sort_keys=True), "" if whole else row["cache"],
                  "" if whole else row["chain"], row["model"] if whole else "", row["batch"] if decoder else 0,
                  row["prompt_tokens"] if decoder else 0, row["new_tokens"] if decoder else 0,
                  row.get("depth", 0) if decoder else 0, row.get("page_size", DEFAULT_PAGE_SIZE) if decoder else 0)


def samples_us(row):
    """The samples of a row with status ok, in microseconds: of a launch, of a decode step, of a token that a
    workload wrote."""
    if row["kernel"] == DECODER:
        return [1e3 * sample for sample in row["samples_ms"]]
    if row["kernel"] == WORKLOAD:
        return [1e6 * seconds / tokens for seconds, tokens in zip(row["samples_s"], row["samples_new_tokens"])]
    return row["samples_us"]


def median_us(row):
    """The median of samples_us(row)."""
    return 1e3 * row["ms_per_token"] if row["kernel"] == DECODER else row["median_us"]


def mad_us(row):
    """The median absolute deviation of samples_us(row)."""
    return 1e3 * row["mad_ms"] if row["kernel"] == DECODER else row["mad_us"]


# What `disturbed` says where nothing else happened.
_POWER_CAP = "throttled: power cap"


def is_spoilt(row):
    """Whether what disturbed a row may be in its figure. Of rows that rested between their samples and whose median is
    precise, those that met the power cap all the same and those that did not agree (docs/gating.md)."""
    precise = row.get("rested") and row.get("stopped") == "precise"
    return bool(row.get("disturbed")) and not (precise and row["disturbed"] == _POWER_CAP)


def may_be_faster(row):
    """Whether a row was refused since it is faster than its limit. No ratio may be stated past it: the limit may have
    been the wrong one."""
    return row["status"] == "refused" and (row["reason"] or "").startswith(ABOVE_LIMIT)


def is_chosen(row):
    """Whether the kernel takes the variant of a row by itself. Older records and peers do not say; their rows count."""
    return row.get("chosen", True)


def is_unmeasured(row):
    """Whether a peer's row was refused before anything was compared: it says nothing of how fast the peer is, and a row
    that does stands, however old."""
    verified = row["verified"]
    return (row["library"] is not None and row["status"] == "refused" and not verified.get("before")
            and verified.get("max_error_over_bound") == 0)


def own_memory_bytes(row):
    """The memory of a row that says how good the program is, or None: of a workload without its KV cache, which takes
    what is free."""
    if row["kernel"] == WORKLOAD:
        return None if row["library"] else row["memory_bytes"] - row["memory"]["kv_cache"]
    return row["memory_bytes"]


def _identity(fingerprint):
    """(name, value) of everything that must be equal where figures are compared."""
    for name, value in fingerprint.items():
        if name not in _NOT_IDENTITY:
            yield name, value
    gpu = fingerprint.get("gpu") or {}
    for name, value in gpu.items():
        if name not in _GPU_STATE:
            yield name, value
    yield "before.power_cap_w", (gpu.get("before") or {}).get("power_cap_w")


def comparable(run_a, run_b):
    """The fingerprint fields in which two runs differ, in words; [] for runs that may be compared.

    Time, commit, whether the tree was dirty and the command line may differ. A value that one side could not
    read (null, "", "unknown") does not count as a difference.
    """
    a, b = dict(_identity(run_a.fingerprint)), dict(_identity(run_b.fingerprint))
    differences = []
    for name in a | b:
        values = a.get(name), b.get(name)
        unknown = any(value in (None, "", "unknown") for value in values)
        if not unknown and values[0] != values[1]:
            differences.append(f"{_WORDS.get(name, name)}: {_text(values[0])} and {_text(values[1])}")
    if (run_a.gpu == {}) != (run_b.gpu == {}):
        differences.append(f"GPU: {run_a.gpu.get('name', 'none')} and {run_b.gpu.get('name', 'none')}")
    return differences


def _text(value):
    return value if isinstance(value, str) else json.dumps(value)


def find(paths, warn=lambda words: None):
    """The record files of `paths`: files as they are, of folders every *.jsonl below, sorted.

    What else lies in a folder as *.jsonl is left out, and `warn` is told.
    """
    files = []
    for path in paths:
        if os.path.isdir(path):
            below = jsonl_below(path)
            if not below:
                raise BadRecords(f"{path}: no *.jsonl in this folder")
            foreign = [file for file in below if _is_foreign(file)]
            if len(foreign) == len(below):
                raise BadRecords(f"{path}: no *.jsonl in this folder holds records of Tokline")
            if foreign:
                warn(f"{path}: left out, since they are no records: " + ", ".join(foreign))
            files += [file for file in below if file not in foreign]
        else:
            files.append(path)
    return files


def _is_foreign(path):
    """Whether a file starts with a JSON object that is no record. A broken file is not foreign: reading it says why."""
    try:
        with open(path, encoding="utf-8") as file:
            first = json.loads(next((line for line in file if line.strip()), "null"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and not {"schema", "kind", "run_id"} & first.keys()


def read(paths, warn=lambda words: None):
    """Every run of the files and folders, in the order of their headers.

    Raises BadRecords with file and line for what is not a record, is of another schema or does not
    follow from its samples, and for a run that has other rows than its end counts. A last line that a killed writer left unfinished is left out, and `warn` is
    told; so it is of a run that is there twice.
    """
    runs = {}
    for path in find([paths] if isinstance(paths, (str, os.PathLike)) else paths, warn):
        path = os.fspath(path)
        known_before = set(runs)
        repeated = set()
        ends = {}
        for where, record in _lines(path, warn):
            _check(_lift(record, where), where)
            run_id, kind = record["run_id"], record["kind"]
            if run_id in known_before:
                if run_id not in repeated:
                    warn(f"{where}: run {run_id} was read from {runs[run_id].path} before; used once")
                repeated.add(run_id)
            elif kind == "run":
                if run_id in runs:
                    raise BadRecords(f"{where}: run {run_id} has a second header")
                runs[run_id] = Run(record, path=path)
            elif run_id not in runs:
                raise BadRecords(f"{where}: {kind} of run {run_id}, whose header is not before it")
            elif kind == "end":
                runs[run_id].end = record
                ends[run_id] = where
            elif kind == "ablation":
                runs[run_id].ablations.append(record)
            else:
                runs[run_id].rows.append(record)
        for run_id, where in ends.items():
            _check_counts(runs[run_id], where)
    return list(runs.values())


def _check_counts(run, where):
    """Raises BadRecords where the rows of a run are not those that its end counts."""
    measured = run.rows + run.ablations
    present = {"rows": len(measured), "refused": sum(row["status"] == "refused" for row in measured)}
    for name, words in (("rows", "rows"), ("refused", "refused rows")):
        if present[name] != run.end[name]:
            raise BadRecords(f"{where}: the end of run {run.run_id} counts {run.end[name]} {words}, but the file has "
                             f"{present[name]}; a run is kept with all its rows")


def _no_constant(name):
    raise ValueError(f"{name} is not a number that can be used")


def _printable(value):
    """The value with control characters spelled out in its texts, so that no name reaches a terminal as a command."""
    if isinstance(value, str):
        return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(name): _printable(item) for name, item in value.items()}
    return value


def _raw_lines(path, file):
    """The lines of a file, which may be endless or no text at all."""
    size = 0
    while line := file.readline(_MOST_BYTES_OF_A_LINE + 1):
        size += len(line)
        if len(line) > _MOST_BYTES_OF_A_LINE or size > _MOST_BYTES:
            raise BadRecords(f"{path}: holds no records: at most {_MOST_BYTES_OF_A_LINE >> 20} MiB are allowed in a line "
                             f"and {_MOST_BYTES >> 20} MiB in a file")
        yield line


def _lines(path, warn):
    """Yields (where, object) for each line of a JSON-lines file."""
    try:
        with open(path, "rb") as file:
            lines = list(_raw_lines(path, file))
    except OSError as error:
        raise BadRecords(f"cannot read {path}: {error.strerror}") from None
    if not any(line.strip() for line in lines):
        raise BadRecords(f"{path}: is empty; a record starts with a line of kind 'run'")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        if number == len(lines) > 1 and not line.endswith(b"\n"):  # it was never acknowledged
            warn(f"{where}: the last line is unfinished, its writer was killed; left out")
            return
        try:
            record = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            text = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"not JSON: {error}"
            cut = "" if line.endswith(b"\n") else "; the line is unfinished"
            raise BadRecords(f"{where}: {text}{cut}") from None
        if not isinstance(record, dict):
            raise BadRecords(f"{where}: not a JSON object")
        yield where, _printable(record) if b"\\" in line or b"\x7f" in line else record


def _lift(record, where):
    """The record in the newest schema: what schema 1 did not know is null, or follows from what it knew."""
    if not {"schema", "kind", "run_id"} <= record.keys():
        raise BadRecords(f"{where}: not a record of Tokline: it needs 'schema', 'kind' and 'run_id'")
    schema = record["schema"]
    if type(schema) is not int or not OLDEST_SCHEMA <= schema <= VERSION:
        raise BadRecords(f"{where}: schema is {brief(schema)}; this reads {OLDEST_SCHEMA} to {VERSION}")
    kernel, shape = record.get("kernel"), record.get("shape")
    if isinstance(kernel, str) and kernel in _MERGED and isinstance(shape, dict):
        record["kernel"], kind = _MERGED[kernel]
        record["shape"] = {**shape, "name": f"{kind}_{shape.get('name')}", "kind": kind}
    if schema == VERSION:
        return record
    record["schema"] = VERSION
    if record["kind"] == "run":
        record.setdefault("injected", None)
        if isinstance(record.get("peaks"), dict):
            record["peaks"].setdefault("from_run", None)
        gpu = (record.get("fingerprint") or {}).get("gpu")
        if gpu:
            for name in ("mig", "mps", "max_sm_clock_mhz"):
                gpu.setdefault(name, None)
    elif record["kind"] == "row":
        unit = "ms" if record.get("kernel") == DECODER else "us"
        names = ("disturbed", "memory_bytes", "library")
        if record.get("status") == "ok":
            names += ("profile",) if unit == "ms" else ("stopped", "fresh_us")
            with contextlib.suppress(TypeError, IndexError):  # the samples are none, which is found later
                record.setdefault(f"ci95_{unit}", list(interval(sorted(record.get(f"samples_{unit}")))))
        for name in names:
            record.setdefault(name, None)
        if isinstance(record.get("verified"), dict) and unit == "us":
            record["verified"].setdefault("audits", 0)
    return record


_problem = compiled(SCHEMA)


def _check(record, where):
    """Raises BadRecords for what the schema does not allow, and for figures and sums that do not follow."""
    problem = _problem(record)
    if problem:
        raise BadRecords(f"{where}: {record['kind']}{problem[0]} {problem[1]}")
    if record["kind"] == "row":
        if record["kernel"] == WORKLOAD and record["library"] is None:
            _check_sum(where, "memory_bytes", record["memory_bytes"], sum(record["memory"].values()), 0)
        if record["status"] == "ok":
            _check_figures(record, where)
    elif record["kind"] == "ablation" and record["status"] == "ok":
        _check_pairs(record["end_to_end"], where)
        _check_pairs(record["isolated"] or {}, where)


def _check_figures(row, where):
    unit = "ms" if row["kernel"] == DECODER else "us"
    if row["kernel"] == WORKLOAD:
        _check_pairs({name: row[name] for name in ("samples_s", "samples_new_tokens")}, where)
    ordered = sorted(row["samples_ms"] if row["kernel"] == DECODER else samples_us(row))
    median = middle(ordered)
    figures = {f"mad_{unit}": middle(sorted(abs(sample - median) for sample in ordered))}
    if row["kernel"] == DECODER:
        prefill_s = middle(sorted(row["samples_prefill_s"]))
        figures |= {"ms_per_token": median, "decode_tok_s": 1e3 * row["batch"] / median,
                    "prefill_tok_s": row["batch"] * row["prompt_tokens"] / prefill_s}
        if row["profile"]:
            profile = row["profile"]
            rest = sum(profile.get(name, 0) for name in ("device_gap_us", "host_gap_us", "tracing_us", "unexplained_us"))
            _check_sum(where, "profile.step_us", profile["step_us"], rest + sum(op["us"] for op in profile["ops"]), 1e-6)
            for op in profile["ops"]:
                if "phases" in op:
                    total = sum(phase["us"] for phase in op["phases"])
                    _check_sum(where, f"profile.{op['op']}.us", op["us"], total, 1e-6)
    elif row["kernel"] == WORKLOAD:
        rates = [(row["shape"]["prompt_tokens"] + new) / seconds
                 for seconds, new in zip(row["samples_s"], row["samples_new_tokens"])]
        figures |= {"median_us": median, "output_tok_s": 1e6 / median, "total_s": middle(sorted(row["samples_s"])),
                    "total_tok_s": middle(sorted(rates))}
        if row["library"] is None:  # of another program only the throughput is known
            for names in ("decode_read_bytes", "decode_unshared_bytes"), ("mean_kv_pages", "max_kv_pages", "kv_pages"):
                _check_ascending(where, ", ".join(names), [row[name] for name in names])
    else:
        cost = row["cost"]
        figures |= {"median_us": median, "gbps": (cost["read_bytes"] + cost["write_bytes"]) / median / 1e3,
                    "tflops": cost["flops"] / median / 1e6}
    if "slo" in row:
        figures["goodput_req_s"] = row["good_requests"] / row["total_s"]
        _check_ascending(where, "good_requests, shape.requests", [row["good_requests"], row["shape"]["requests"]])
    for name in LATENCIES:
        _check_latencies(where, name, row.get(name))
    if row.get("limit") and median_us(row):  # 0 differs from that of the samples
        figures["percent_of_measured_peak"] = 100 * row["floor_us"] / median_us(row)
    for name, value in figures.items():
        if not _near(row[name], value):
            raise BadRecords(f"{where}: row.{name} is {row[name]:.9g}, but from the samples and the cost follows "
                             f"{value:.9g}")
    stated, follows = row[f"ci95_{unit}"], list(interval(ordered))
    if not all(map(_near, stated, follows)):
        raise BadRecords(f"{where}: row.ci95_{unit} is {brief(stated)}, but from the samples follows {brief(follows)}")


def _near(stated, value, part=1e-6):
    return abs(stated - value) <= part * abs(value) + (1e-12 if part else 0)


def _check_sum(where, name, stated, total, part):
    if not _near(stated, total, part):
        raise BadRecords(f"{where}: row.{name} is {stated:.9g}, but its parts add up to {total:.9g}")


def _check_ascending(where, name, values):
    if values != sorted(values):
        raise BadRecords(f"{where}: row.{name} does not ascend: {brief(values)}")


def _check_latencies(where, name, latencies):
    if latencies is None:
        return
    _check_ascending(where, name, [latencies[each] for each in PERCENTILES if latencies[each] is not None])
    for percentile, least in _LEAST_OF.items():
        number = latencies.get("count")
        if number is not None and (latencies[percentile] is not None) != (number >= least):
            raise BadRecords(f"{where}: row.{name}.{percentile} is {brief(latencies[percentile])} of {number} latencies; "
                             f"it is stated of {least} and more")


def _check_pairs(lists, where):
    """Samples of the same rounds or repeats."""
    counts = {name: len(samples) for name, samples in lists.items()}
    if len(set(counts.values())) > 1:
        words = " and ".join(f"{count} samples of {name}" for name, count in counts.items())
        raise BadRecords(f"{where}: there are {words}; a round or a repeat gives one of each")
