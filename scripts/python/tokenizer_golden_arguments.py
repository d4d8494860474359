"""The arguments of scripts/tokenizer_golden. Standard library only: they are checked before anything is installed."""

import argparse
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "harness" / "tests" / "text" / "golden"
SEED = 20260131
STRINGS = 2100


def parse() -> argparse.Namespace:
    """The arguments of this process; ends it with 2 for those that cannot be used."""
    parser = argparse.ArgumentParser(prog="scripts/tokenizer_golden")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true")
    what.add_argument("--out", type=Path, default=GOLDEN)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--strings", type=int, default=STRINGS)
    arguments = parser.parse_args()
    if arguments.check and (arguments.seed, arguments.strings) != (SEED, STRINGS):
        parser.error("--check makes the committed files: it takes no --seed and no --strings")
    if arguments.strings < 1:
        parser.error(f"--strings is {arguments.strings}; it must be at least 1")
    if arguments.out.exists() and not arguments.out.is_dir():
        parser.error(f"--out {arguments.out} is no folder")
    return arguments


if __name__ == "__main__":
    parse()
