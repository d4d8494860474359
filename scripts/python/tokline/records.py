"""Reads the records that `--record` writes (docs/measuring.md, "Records"): schema 2, and 1 lifted to it."""

import json
import math
import os
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from tokline.files import jsonl_below
from tokline.samples import interval, middle
from tokline.stop import Stop

SCHEMA = 2
OLDEST_SCHEMA = 1
KINDS = ("run", "row", "end", "ablation")
DECODER = "decoder"
WORKLOAD = "workload"
# Rows of the decoder as a whole; all others are of one kernel.
WHOLE = (DECODER, WORKLOAD)

# Dimensions that tell rows of one shape name apart, and the word before them in a label.
_LABEL_KEYS = {"page_size": "page", "tokens": "tokens", "rows": "rows", "max_batch": "batch", "sharing": "sharing"}
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

PERCENTILES = ("median", "p90", "p99")


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

    def anywhere(self):
        """The same work on whatever device."""
        return self._replace(device="cpu" if self.device == "cpu" else "gpu")

    @property
    def label(self):
        """`str()` without kernel: what tells the rows of one kernel apart."""
        if self.kernel == DECODER:
            parts = [self.model, f"batch {self.batch}", f"{self.prompt_tokens}+{self.new_tokens} tokens"]
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


def shape_parts(shape):
    """A shape's name in its file, and the words that tell rows of one name apart."""
    parts = [str(shape["name"])]
    parts += [f"{word} {shape[name]}" for name, word in _LABEL_KEYS.items() if name in shape]
    if shape.get("kv_limit"):
        parts += [f"kv {name} {value}" for name, value in shape["kv_limit"].items()]
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
                  row["prompt_tokens"] if decoder else 0, row["new_tokens"] if decoder else 0)


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


def own_memory_bytes(row):
    """The memory of a row that says how good the program is, or None: of a workload without its KV cache, which takes
    what is free."""
    if row["kernel"] == WORKLOAD:
        return row["memory_bytes"] - row["memory"]["kv_cache"]
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
    follow from its samples. A last line that a killed writer left unfinished is left out, and `warn` is
    told; so it is of a run that is there twice.
    """
    runs = {}
    for path in find([paths] if isinstance(paths, (str, os.PathLike)) else paths, warn):
        path = os.fspath(path)
        known_before = set(runs)
        repeated = set()
        for where, record in _lines(path, warn):
            record = _lift(record, where)
            run_id, kind = record["run_id"], record["kind"]
            if run_id in known_before:
                if run_id not in repeated:
                    warn(f"{where}: run {run_id} was read from {runs[run_id].path} before; used once")
                repeated.add(run_id)
            elif kind == "run":
                _check_header(record, where)
                if run_id in runs:
                    raise BadRecords(f"{where}: run {run_id} has a second header")
                runs[run_id] = Run(record, path=path)
            elif run_id not in runs:
                raise BadRecords(f"{where}: {kind} of run {run_id}, whose header is not before it")
            elif kind == "end":
                _need(record, where, interrupted=bool, rows=int, refused=int)
                runs[run_id].end = record
            elif kind == "ablation":
                _check_ablation(record, where)
                runs[run_id].ablations.append(record)
            else:
                _check_row(record, where)
                runs[run_id].rows.append(record)
    return list(runs.values())


def _no_constant(name):
    raise ValueError(f"{name} is not a number that can be used")


def _lines(path, warn):
    """Yields (where, object) for each line of a JSON-lines file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise BadRecords(f"cannot read {path}: {error.strerror}") from None
    lines = data.split(b"\n")
    if not data.strip():
        raise BadRecords(f"{path}: is empty; a record starts with a line of kind 'run'")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        if number == len(lines) > 1:  # no newline after it: it was never acknowledged
            warn(f"{where}: the last line is unfinished, its writer was killed; left out")
            return
        try:
            record = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            text = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"not JSON: {error}"
            raise BadRecords(f"{where}: {text}") from None
        if not isinstance(record, dict):
            raise BadRecords(f"{where}: not a JSON object")
        yield where, record


def _lift(record, where):
    """The record in schema 2: what schema 1 did not know is null."""
    if not {"schema", "kind", "run_id"} <= record.keys():
        raise BadRecords(f"{where}: not a record of Tokline: it needs 'schema', 'kind' and 'run_id'")
    schema = record["schema"]
    if type(schema) is not int or not OLDEST_SCHEMA <= schema <= SCHEMA:
        raise BadRecords(f"{where}: schema is {_text(schema)}; this reads {OLDEST_SCHEMA} to {SCHEMA}")
    if record["kind"] not in KINDS:
        raise BadRecords(f"{where}: kind is {_text(record['kind'])}; allowed: {', '.join(KINDS)}")
    if record["kind"] == "row" and record.get("kernel") in _MERGED and isinstance(record.get("shape"), dict):
        record["kernel"], kind = _MERGED[record["kernel"]]
        record["shape"] = {**record["shape"], "name": f"{kind}_{record['shape'].get('name')}", "kind": kind}
    if schema == SCHEMA:
        return record
    if record["kind"] == "run":
        record.setdefault("injected", None)
        if isinstance(record.get("peaks"), dict):
            record["peaks"].setdefault("from_run", None)
        gpu = (record.get("fingerprint") or {}).get("gpu")
        if gpu:
            for name in ("mig", "mps", "max_sm_clock_mhz"):
                gpu.setdefault(name, None)
    elif record["kind"] == "row":
        names = ["disturbed", "memory_bytes", "library"]
        names += ["ci95_ms", "profile"] if record.get("kernel") == DECODER else ["ci95_us", "stopped", "fresh_us"]
        for name in names:
            record.setdefault(name, None)
        if isinstance(record.get("verified"), dict) and record.get("kernel") != DECODER:
            record["verified"].setdefault("audits", None)
    return record


_WHAT = {str: "text", bool: "true or false", int: "a whole number", dict: "an object", list: "a list"}


def _need(record, where, **forms):
    """Raises BadRecords unless each named field is there and of its form."""
    for name, form in forms.items():
        if name not in record:
            raise BadRecords(f"{where}: {record['kind']} has no field '{name}'")
        # The exact type: a bool is an int to isinstance.
        if type(record[name]) is not form:
            raise BadRecords(f"{where}: {name} is {_text(record[name])[:60]}; it must be {_WHAT[form]}")


def _number(record, where, name, least=0.0):
    value = record.get(name)
    if type(value) not in (int, float) or not math.isfinite(value) or value < least:
        raise BadRecords(f"{where}: {name} is {_text(value)[:60]}; it must be a number of at least {least:g}")
    return value


def _samples(record, where, name):
    """A list of at least one finite number above 0, sorted."""
    values = record.get(name)
    if not isinstance(values, list) or not values:
        raise BadRecords(f"{where}: {name} is {_text(values)[:60]}; it must be a list of samples")
    for value in values:
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise BadRecords(f"{where}: {name} holds {_text(value)[:60]}; each must be a finite number above 0")
    return sorted(values)


def _follows(record, where, name, value):
    stated = _number(record, where, name)
    if abs(stated - value) > 1e-6 * abs(value) + 1e-12:
        raise BadRecords(f"{where}: {name} is {stated:.9g}, but from the samples and the cost follows {value:.9g}")


def _interval_follows(row, where, name, ordered):
    """Of schema 1 it is null."""
    stated = row.get(name)
    if stated is None:
        return
    follows = interval(ordered)
    if not isinstance(stated, list) or len(stated) != 2 or any(type(end) not in (int, float) for end in stated):
        raise BadRecords(f"{where}: {name} is {_text(stated)[:60]}; it must be [low, high]")
    if any(abs(end - value) > 1e-6 * value for end, value in zip(stated, follows)):
        raise BadRecords(
            f"{where}: {name} is {_text(stated)[:60]}, but from the samples follows {_text(list(follows))}")


def _check_header(record, where):
    _need(record, where, program=str, fingerprint=dict)
    print_ = record["fingerprint"]
    _need(print_ | {"kind": "fingerprint"}, where, time_utc=str, commit=str)
    for name in ("injected", "peaks", "datasheet"):
        if name not in record:
            raise BadRecords(f"{where}: run has no field '{name}'")
    if not re.match(r"\d{4}-\d\d-\d\dT", print_["time_utc"]):
        raise BadRecords(f"{where}: time_utc is '{print_['time_utc']}'; it must be as 2026-01-31T12:00:00Z")


def _check_row(row, where):
    _need(row, where, kernel=str, implementation=str, dtype=str, device=str, status=str, verified=dict)
    for name in ("disturbed", "memory_bytes", "library"):
        if name not in row:
            raise BadRecords(f"{where}: row has no field '{name}'")
    if row["kernel"] not in WHOLE:
        _need(row, where, chain=str)
    if row["kernel"] == WORKLOAD:
        _need(row, where, model=str, memory=dict, memory_bytes=int)
        shape = dict(name=str, hash=str, requests=int, prompt_tokens=int, new_tokens=int, max_batch=int)
        _need(row.get("shape", {}) | {"kind": "shape"}, where, **shape, token_budget=int, page_size=int, reuse=bool)
        if sum(row["memory"].values()) != row["memory_bytes"]:
            raise BadRecords(
                f"{where}: memory_bytes is {row['memory_bytes']}, but its uses add up to {sum(row['memory'].values())}")
    else:
        _need(row, where, cache=str, cost=dict)
    decoder = row["kernel"] == DECODER
    if decoder:
        _need(row, where, model=str, batch=int, prompt_tokens=int, new_tokens=int)
    else:
        _need(row, where, shape=dict)
        if "name" not in row["shape"]:
            raise BadRecords(f"{where}: shape has no field 'name'")
    if row["status"] not in ("ok", "refused"):
        raise BadRecords(f"{where}: status is '{row['status']}'; allowed: ok, refused")
    if row["status"] == "refused":
        _need(row, where, reason=str)
        for name in ("samples_us", "median_us", "samples_ms", "ms_per_token", "samples_s", "output_tok_s"):
            if name in row:
                raise BadRecords(f"{where}: the row is refused, but has {name}")
    elif decoder:
        _check_decoder_figures(row, where)
    elif row["kernel"] == WORKLOAD:
        _check_workload_figures(row, where)
    else:
        _check_kernel_figures(row, where)


def _times_follow(row, where, ordered, median_name="median_us", unit="us"):
    """Checks what follows from the sorted samples alone. Returns their median."""
    median = middle(ordered)
    _follows(row, where, median_name, median)
    _follows(row, where, f"mad_{unit}", middle(sorted(abs(sample - median) for sample in ordered)))
    _interval_follows(row, where, f"ci95_{unit}", ordered)
    return median


def _check_kernel_figures(row, where):
    median = _times_follow(row, where, _samples(row, where, "samples_us"))
    cost = row["cost"]
    bytes_ = _number(cost, where, "read_bytes") + _number(cost, where, "write_bytes")
    _follows(row, where, "gbps", bytes_ / median / 1e3)
    _follows(row, where, "tflops", _number(cost, where, "flops") / median / 1e6)
    verified = row["verified"]
    if not (verified.get("before") is True and verified.get("after") is True
            and _number(verified, where, "max_error_over_bound") <= 1):
        raise BadRecords(f"{where}: a row with figures must be verified; verified is {json.dumps(verified)}")


def _check_decoder_figures(row, where):
    median = _times_follow(row, where, _samples(row, where, "samples_ms"), "ms_per_token", "ms")
    _follows(row, where, "decode_tok_s", 1e3 * row["batch"] / median)
    prefill_s = middle(_samples(row, where, "samples_prefill_s"))
    _follows(row, where, "prefill_tok_s", row["batch"] * row["prompt_tokens"] / prefill_s)
    _number(row["verified"], where, "mean_regret")
    profile = row.get("profile")
    if profile is not None:
        _check_profile(profile, f"{where}: profile")


def _check_workload_figures(row, where):
    for name in ("samples_s", "samples_new_tokens"):
        _samples(row, where, name)
    if len(row["samples_s"]) != len(row["samples_new_tokens"]):
        raise BadRecords(f"{where}: samples_s and samples_new_tokens are not as many; a repeat gives one of both")
    median = _times_follow(row, where, sorted(samples_us(row)))
    _follows(row, where, "output_tok_s", 1e6 / median)
    _follows(row, where, "total_s", middle(sorted(row["samples_s"])))
    prompt = row["shape"]["prompt_tokens"]
    rates = [(prompt + new) / seconds for seconds, new in zip(row["samples_s"], row["samples_new_tokens"])]
    _follows(row, where, "total_tok_s", middle(sorted(rates)))
    _number(row["verified"], where, "mean_regret")
    for name in ("host_share", "step_host_us", "warm_up_s", "steps", "graph_steps", "preemptions", "recomputed_tokens",
                 "reused_tokens", "decode_read_bytes", "decode_unshared_bytes", "mean_kv_pages", "max_kv_pages"):
        _number(row, where, name)
    _number(row, where, "kv_pages", 1)
    _need(row, where, first_token_ms=dict, between_tokens_ms=dict, memory_points=list)
    for name in ("first_token_ms", "between_tokens_ms"):
        latencies = [_number(row[name], f"{where}: {name}", percentile) for percentile in PERCENTILES]
        if latencies != sorted(latencies):
            raise BadRecords(f"{where}: {name} does not ascend from the median to p99")


def _check_profile(profile, where):
    if not isinstance(profile, dict) or not isinstance(profile.get("ops"), list):
        raise BadRecords(f"{where}: it must be null or an object with a list 'ops'")
    total = _number(profile, where, "device_gap_us") + _number(profile, where, "host_gap_us")
    for op in profile["ops"]:
        if not isinstance(op, dict) or not isinstance(op.get("op"), str):
            raise BadRecords(f"{where}: ops holds {_text(op)[:60]}; each must be an object with 'op' and 'us'")
        total += _number(op, where, "us")
    _number(profile, where, "steps", 1)
    step_us = _number(profile, where, "step_us")
    if abs(step_us - total) > 1e-3 * step_us + 1e-6:
        raise BadRecords(f"{where}: step_us is {step_us:.9g}, but ops and gaps add up to {total:.9g}")


def _check_ablation(record, where):
    _need(record, where, model=str, dtype=str, device=str, batch=int, prompt_tokens=int, new_tokens=int, name=str,
          instead=str, status=str)
    if record["status"] != "ok":
        _need(record, where, reason=str)
        return
    _need(record, where, end_to_end=dict)
    pairs = [("end_to_end", record["end_to_end"], "with_ms", "without_ms")]
    if record.get("isolated") is not None:
        _need(record, where, isolated=dict)
        pairs.append(("isolated", record["isolated"], "with_us", "without_us"))
    for name, pair, with_, without in pairs:
        lengths = [len(_samples(pair, f"{where}: {name}", side)) for side in (with_, without)]
        if lengths[0] != lengths[1]:
            raise BadRecords(
                f"{where}: {name} has {lengths[0]} samples with and {lengths[1]} without; they must be as many")
