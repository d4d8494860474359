"""Which of the suite's rows peers are measured beside, and the records that come of it. Needs no PyTorch."""
import datetime
import errno
import fcntl
import json
import os
import secrets

from peers.measure import median, median_interval
from tokline import records
from tokline.schema import MAX_PERCENT_OF_PEAK, MIN_SAMPLES, RULES, VERSION

PROGRAM = "peers"


def label(row):
    """What people read: kernel, shape and what tells shapes of one name apart."""
    return " ".join([row["kernel"], *records.shape_parts(row["shape"])])


def work_of(runs):
    """[(run, [row, ...])]: of each run, the rows of the suite that peers can stand beside: one a kernel, shape
    and dtype, measured on a GPU, from the newest run that has it."""
    newest = {}
    for run in sorted(runs, key=lambda run: run.time):
        if run.injected is not None:
            continue
        for row in run.rows:
            if (row["status"] == "ok" and row["library"] is None and "shape" in row
                    and row["cache"] in ("cold", "warm")):
                key = (row["kernel"], json.dumps(row["shape"], sort_keys=True), row["dtype"])
                held = newest.get(key)
                if held is None or held[0] is not run:
                    newest[key] = (run, row)
    work = {}
    for run, row in newest.values():
        work.setdefault(run.run_id, (run, []))[1].append(row)
    return list(work.values())


# Which peak a limit is the time at.
PEAK_OF = {"read": "read_gbps", "2:1": "two_to_one_gbps", "copy": "copy_gbps", "matmul": "matmul_tflops"}


class Limits:
    """What a run of the suite says about the GPU of this hash. What was measured on another GPU is no peak of this
    one: peaks and datasheet are then None. `peaks` may be replaced by what was measured again."""
    def __init__(self, run, uuid_hash):
        same = run.gpu.get("uuid_hash") == uuid_hash
        self.of_suite = run.header["peaks"] if same else None
        self.peaks = self.of_suite and {**self.of_suite, "from_run": run.run_id}
        self.datasheet = run.header["datasheet"] if same else None

    def figures(self, suite_row, median_us):
        """What follows from the floor of the suite's row, whose cost the peer's has: with peaks measured again it
        changes as its peak did."""
        figures = {"limit": None, "floor_us": None, "percent_of_measured_peak": None,
                   "percent_of_datasheet_peak": None, "limit_is_wrong": False}
        limit, floor = suite_row["limit"], suite_row["floor_us"]
        if self.peaks and limit:
            floor *= self.of_suite[PEAK_OF[limit]] / self.peaks[PEAK_OF[limit]]
            percent = 100 * floor / median_us
            figures |= {"limit": limit, "floor_us": floor, "percent_of_measured_peak": percent,
                        "limit_is_wrong": suite_row["cache"] == "cold" and percent > MAX_PERCENT_OF_PEAK}
        if self.datasheet and suite_row["percent_of_datasheet_peak"]:
            figures["percent_of_datasheet_peak"] = suite_row["percent_of_datasheet_peak"] * suite_row["median_us"] / median_us
        return figures


def header_line(run_id, fingerprint, peaks, datasheet):
    return {"schema": VERSION, "kind": "run", "run_id": run_id, "program": PROGRAM, "injected": None,
            "fingerprint": fingerprint, "peaks": peaks, "datasheet": datasheet}


def end_line(run_id, rows, interrupted, gpu_after):
    return {"schema": VERSION, "kind": "end", "run_id": run_id, "interrupted": interrupted, "rows": len(rows),
            "refused": sum(row["status"] == "refused" for row in rows), "gpu_after": gpu_after}


def new_run_id():
    return secrets.token_hex(8)


def utc_now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def figures_of(measurement, suite_row, limits):
    """What follows from samples, cost and peaks."""
    cost, samples = suite_row["cost"], measurement.samples_us
    middle = median(samples)
    return {"samples_us": samples, "median_us": middle,
            "mad_us": median([abs(us - middle) for us in samples]),
            "ci95_us": list(median_interval(samples)), "stopped": measurement.stopped or None,
            "fresh_us": measurement.fresh_us, "rested": measurement.rested,
            "gbps": (cost["read_bytes"] + cost["write_bytes"]) / middle / 1e3,
            "tflops": cost["flops"] / middle / 1e6} | limits.figures(suite_row, middle)


def most_fresh_us(median_us, launches, cache):
    """What a launch on fresh inputs may take, as the suite has it. Warm launches find their inputs in the cache."""
    return median_us * RULES[f"{cache}_fresh_ratio"] + RULES[f"{cache}_start_us"] / launches


def reason_to_refuse(measurement, cache, figures):
    """Why a measurement may not stand as a figure, or ""."""
    if measurement.failure:
        return measurement.failure
    if not (measurement.before and measurement.after and measurement.error <= 1):
        before, after = ("yes" if right else "no" for right in (measurement.before, measurement.after))
        return (f"unverified: before timing {before}, after timing {after}, largest error is "
                f"{measurement.error:.4g} of its bound")
    if len(measurement.samples_us) < MIN_SAMPLES:
        return f"{len(measurement.samples_us)} samples; at least {MIN_SAMPLES} are needed"
    fresh, most = figures["fresh_us"], most_fresh_us(figures["median_us"], measurement.launches, cache)
    if fresh is not None and fresh > most:
        return (f"launches on fresh inputs take {fresh:.4g} us, repeated ones {figures['median_us']:.4g} us; fresh "
                f"ones may take at most {most:.4g} us: work is left out when inputs repeat")
    percent = figures["percent_of_datasheet_peak"]
    if cache == "cold" and percent is not None and percent > MAX_PERCENT_OF_PEAK:
        return (f"{records.ABOVE_LIMIT}: {figures['median_us']:.4g} us is {percent:.4g} % of what the datasheet allows, "
                f"and at most {MAX_PERCENT_OF_PEAK} % can be true")
    return ""


def shows_a_wrong_limit(suite_row, measurement, limits):
    """Whether a measurement stands, but above the measured peak: the peak is then to be measured again."""
    if not measurement.samples_us:
        return False
    figures = figures_of(measurement, suite_row, limits)
    return figures["limit_is_wrong"] and not reason_to_refuse(measurement, suite_row["cache"], figures)


def peer_row(run_id, suite_row, implementation, chain, library, device, measurement, limits):
    """The row of a peer beside `suite_row`, whose kernel, shape, cost, cache and dtype it takes over."""
    cost, cache = suite_row["cost"], suite_row["cache"]
    figures = figures_of(measurement, suite_row, limits) if measurement.samples_us else None
    reason = reason_to_refuse(measurement, cache, figures)
    row = {"schema": VERSION, "kind": "row", "run_id": run_id, "kernel": suite_row["kernel"],
           "implementation": implementation, "shape": suite_row["shape"], "dtype": suite_row["dtype"],
           "device": device, "cache": cache, "chain": chain,
           "status": "refused" if reason else "ok", "reason": reason or None, "interrupted": False,
           "disturbed": measurement.disturbed or None, "library": library,
           "verified": {"before": measurement.before, "after": measurement.after,
                        "max_error_over_bound": measurement.error, "audits": measurement.audits},
           "cost": cost, "memory_bytes": measurement.memory_bytes,
           "launches_per_sample": measurement.launches, "buffer_sets": suite_row["buffer_sets"]}
    return row if reason else row | figures


class RecordFile:
    """Appends whole lines to a file that others may be appending to, each on disk before the next. A line that a
    killed writer left unfinished is cut off first."""
    def __init__(self, path):
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def append(self, record):
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            end = self._whole_lines_end()
            os.ftruncate(self._file, end)
            if os.pwrite(self._file, line, end) != len(line):
                os.ftruncate(self._file, end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _whole_lines_end(self):
        end = os.fstat(self._file).st_size
        while end > 0:
            begin = max(0, end - 65536)
            newline = os.pread(self._file, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
        return 0

    def close(self):
        os.close(self._file)
