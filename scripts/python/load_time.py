"""load_time.py TOKLINE MODEL: how long one token takes from the start of the process to its end, and its memory."""

import json
import pathlib
import resource
import subprocess
import sys
import time

MIB = 1 << 20


def main(tokline, model):
    command = [tokline, "generate", "--model", model, "--device", "cuda", "--prompt-ids", "1,2,3", "--max-new-tokens", "1"]
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    checkpoint = sum(file.stat().st_size for file in pathlib.Path(model).glob("*.safetensors")) / MIB
    print(json.dumps({
        "what": "tokline generate, one token, checkpoint in the page cache: from start of the process to its end",
        "model": pathlib.Path(model).name,
        "wall_s": round(wall, 3),
        "peak_resident_mib": round(peak, 1),
        "checkpoint_mib": round(checkpoint, 1),
        "beyond_mapped_file_mib": round(peak - checkpoint, 1),
    }, indent=1))


main(*sys.argv[1:])
