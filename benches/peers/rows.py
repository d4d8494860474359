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


def peaks_for(run, uuid_hash):
    """(peaks, datasheet) of a run of the suite for rows measured on the GPU of this hash: what was measured on
    another GPU is no peak of this one."""
    if run.gpu.get("uuid_hash") != uuid_hash:
        return None, None
    header = run.header
    peaks = header["peaks"] and {**header["peaks"], "from_run": run.run_id}
    return peaks, header["datasheet"]


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


def floor_of(cost, peaks):
    """(us, limit): the least time that the cost can take at these peaks, and which of them it is: of the memory rates
    that of the traffic which the cost resembles, as the suite has it."""
    total = cost["read_bytes"] + cost["write_bytes"]
    gbps, limit = peaks["read_gbps"], "read"
    if cost["write_bytes"] >= RULES["copy_write_share"] * total:
        gbps, limit = peaks["copy_gbps"], "copy"
    elif cost["write_bytes"] >= RULES["two_to_one_write_share"] * total and peaks.get("two_to_one_gbps"):
        gbps, limit = peaks["two_to_one_gbps"], "2:1"
    memory_us = total / gbps / 1e3
    matmul_us = cost["flops"] / peaks["matmul_tflops"] / 1e6 if peaks["matmul_tflops"] else 0.0
    return (matmul_us, "matmul") if matmul_us > memory_us else (memory_us, limit)


def figures_of(measurement, cost, cache, peaks, datasheet):
    """What follows from samples, cost and peaks."""
    samples = measurement.samples_us
    middle = median(samples)
    figures = {"samples_us": samples, "median_us": middle,
               "mad_us": median([abs(us - middle) for us in samples]),
               "ci95_us": list(median_interval(samples)), "stopped": measurement.stopped or None,
               "fresh_us": measurement.fresh_us, "rested": measurement.rested,
               "gbps": (cost["read_bytes"] + cost["write_bytes"]) / middle / 1e3,
               "tflops": cost["flops"] / middle / 1e6,
               "limit": None, "floor_us": None, "percent_of_measured_peak": None,
               "percent_of_datasheet_peak": None, "limit_is_wrong": False}
    if peaks:
        floor, limit = floor_of(cost, peaks)
        percent = 100 * floor / middle
        figures.update(limit=limit, floor_us=floor, percent_of_measured_peak=percent,
                       limit_is_wrong=cache == "cold" and percent > MAX_PERCENT_OF_PEAK)
    if datasheet:
        floor, _ = floor_of(cost, {"read_gbps": datasheet["memory_gbps"], "copy_gbps": datasheet["memory_gbps"],
                                   "matmul_tflops": datasheet["bf16_tflops"]})
        figures["percent_of_datasheet_peak"] = 100 * floor / middle
    return figures


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


def shows_a_wrong_limit(suite_row, measurement, peaks, datasheet):
    """Whether a measurement stands, but above the measured peak: the peak is then to be measured again."""
    if not measurement.samples_us:
        return False
    figures = figures_of(measurement, suite_row["cost"], suite_row["cache"], peaks, datasheet)
    return figures["limit_is_wrong"] and not reason_to_refuse(measurement, suite_row["cache"], figures)


def peer_row(run_id, suite_row, implementation, chain, library, device, measurement, peaks, datasheet):
    """The row of a peer beside `suite_row`, whose kernel, shape, cost, cache and dtype it takes over."""
    cost, cache = suite_row["cost"], suite_row["cache"]
    figures = figures_of(measurement, cost, cache, peaks, datasheet) if measurement.samples_us else None
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
