"""The checks of overhead: how long a full run, the gate and the report take."""
import itertools
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from tokline.believe_check import Check, journal_of
from tokline.kernels import ROOT, names as kernel_names
from tokline.schema import VERSION

# What the checks must show.
MOST_SECONDS = {"full run": 600, "gate": 5, "report": 20}
GATE_ROWS = 2000


def check_full_run(folders):
    check = Check("full_run", "overhead: a full default run, all benches and the decoder",
                  f"<= {MOST_SECONDS['full run'] // 60} minutes", "`scripts/maintain/believe collect --only overhead`")
    for folder in folders:
        entries = {entry["program"]: entry for entry in journal_of(folder) if entry["kind"] == "overhead"}
        if entries:
            seconds = {program: entry["seconds"] for program, entry in entries.items()}
            missing = sorted({"tokline", *(f"bench_{kernel}" for kernel in kernel_names())} - seconds.keys())
            failed = sorted(program for program, entry in entries.items() if entry["exit"])
            check.measured = f"{sum(seconds.values()):.0f} s, {len(seconds)} programs"
            check.measured += "".join(f"; {program} did not run" for program in missing)
            check.measured += "".join(f"; {program} failed" for program in failed)
            check.met = sum(seconds.values()) <= MOST_SECONDS["full run"] and not missing and not failed
            check.details = {"seconds": seconds, "misses": missing + failed}
    return check


def timed(argv):
    """(seconds, exit code, stderr) of a script of the project."""
    begun = time.monotonic()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return time.monotonic() - begun, done.returncode, done.stderr


def check_tools(folders, wanted, jobs):
    """The gate and the report on GATE_ROWS rows, timed here: rows of a collected run, repeated under other names."""
    gate = Check("gate_time", f"overhead: the gate on {GATE_ROWS:,} rows", f"<= {MOST_SECONDS['gate']} s",
                 "`scripts/maintain/believe report`")
    report = Check("report_time", f"overhead: the report of {GATE_ROWS:,} rows", f"<= {MOST_SECONDS['report']} s",
                   "`scripts/maintain/believe report`")
    paths = (path for folder, part in itertools.product(folders, ("benches/a", "overhead"))
             for path in sorted((folder / part).glob("*.jsonl")) if path.name != "decoder.jsonl")
    source = next((path for path in paths for run in jobs.runs(path)[:1]
                   if any(row["status"] == "ok" for row in run.rows)), None)
    if not wanted or source is None:
        return [gate, report]
    with tempfile.TemporaryDirectory() as temporary:
        many = Path(temporary) / "many.jsonl"
        many.write_text("".join(json.dumps(line) + "\n" for line in repeated(source, GATE_ROWS)), encoding="utf-8")
        for check, *argv in ((gate, "gate", "--baseline", many, "--candidate", many),
                             (report, "report", many, "-o", os.path.join(temporary, "report.html"))):
            seconds, code, stderr = timed([ROOT / "scripts" / "records", *argv])
            if code:
                check.measured, check.met = f"failed with exit {code}: {stderr.strip()[-200:]}", False
                continue
            check.measured = f"{seconds:.1f} s on this machine"
            check.met = seconds <= MOST_SECONDS[argv[0]]
            check.details = {"seconds": seconds, "rows": GATE_ROWS}
    return [gate, report]


def repeated(source, count):
    """A record of `count` rows: those of a run that have figures, again and again under other names."""
    lines = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    header = next(line for line in lines if line["kind"] == "run")
    rows = [line for line in lines
            if line["kind"] == "row" and line["status"] == "ok" and line["run_id"] == header["run_id"]]
    yield header
    for index in range(count):
        row = rows[index % len(rows)]
        yield row | {"shape": row["shape"] | {"name": f"{row['shape']['name']}.{index // len(rows)}"}}
    yield {"schema": VERSION, "kind": "end", "run_id": header["run_id"], "interrupted": False, "rows": count,
           "refused": 0, "gpu_after": None}
