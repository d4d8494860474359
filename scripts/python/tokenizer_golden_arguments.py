"""The arguments of scripts/maintain/tokenizer_golden, checked before anything is installed: standard library only."""

import argparse
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "harness" / "tests" / "text" / "golden"
SEED = 20260131
STRINGS = 2100


def parse() -> argparse.Namespace:
    """The arguments of this process; ends it with 2 for those that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="scripts/maintain/tokenizer_golden", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="""Trains small tokenizers with the pipelines of the model families and writes, for seeded strings,
the ids and texts of Hugging Face tokenizers to harness/tests/text/golden. The first run installs tokenizers,
transformers and jinja2 into .venv-tokenizers. harness/tests/text/golden/README.md gives the formats.""",
        epilog="""example, other strings and more of them:
  scripts/maintain/tokenizer_golden --out /tmp/golden --seed 7 --strings 100000
  TOKLINE_TEXT_GOLDEN=/tmp/golden build/ci/bin/tokenizer_golden_test

Exit codes: 0 written or equal, 1 --check found a difference, 2 misuse or no environment.""")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="make them elsewhere and compare with the committed files")
    what.add_argument("--out", type=Path, default=GOLDEN, metavar="DIR", help="write there")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N")
    parser.add_argument("--strings", type=int, default=STRINGS, metavar="N")
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
