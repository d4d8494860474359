"""load_time.py TOKLINE MODEL [ARGUMENT...]: how long one token takes from the start of the process to its end, and its
memory. The arguments are passed to tokline generate."""

import json
import pathlib
import resource
import subprocess
import sys
import time

MIB = 1 << 20


def resident_mib(pid):
    """What the process has resident now, by kind; empty when it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in status.splitlines())
    kinds = {"total": "VmHWM", "anonymous": "RssAnon", "of_files": "RssFile", "shared": "RssShmem"}
    return {kind: int(fields[field].split()[0]) / 1024 for kind, field in kinds.items() if field in fields}


def main(tokline, model, *arguments):
    command = [tokline, "generate", "--model", model, "--device", "cuda", "--prompt-ids", "1,2,3", "--max-new-tokens", "1",
               *arguments]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = {}
    while process.poll() is None:
        for kind, size in resident_mib(process.pid).items():
            peak[kind] = max(peak.get(kind, 0), size)
        time.sleep(0.01)
    wall = time.monotonic() - started
    if process.returncode != 0:
        raise SystemExit(f"load_time: {' '.join(command)} exits with {process.returncode}")
    # Of a process that ended before it was looked at the kernel knows the total alone.
    total = peak.get("total", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
    anonymous, shared = (round(peak[kind], 1) if kind in peak else None for kind in ("anonymous", "shared"))
    checkpoint = sum(file.stat().st_size for file in pathlib.Path(model).glob("*.safetensors")) / MIB
    print(json.dumps({
        "what": "tokline generate, one token, checkpoint in the page cache: from start of the process to its end",
        "arguments": list(arguments),
        "model": pathlib.Path(model).name,
        "wall_s": round(wall, 3),
        "peak_resident_mib": round(total, 1),
        "peak_anonymous_mib": anonymous,
        "peak_shared_mib": shared,
        "checkpoint_mib": round(checkpoint, 1),
        "beyond_mapped_file_mib": round(total - checkpoint, 1),
    }, indent=1))


main(*sys.argv[1:])
