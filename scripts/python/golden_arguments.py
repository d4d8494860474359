"""The arguments of scripts/maintain/golden, checked before anything is installed: standard library only."""

import argparse


def parse():
    """The arguments of this process; ends it with 2 for those that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="scripts/maintain/golden",
        description="Makes the tiny checkpoints of every family and their golden outputs. Weights come from a seed and "
        "are exact in bf16; tokens and logits are transformers in fp32 on the CPU. The first run installs torch and "
        "transformers into .venv-golden. harness/tests/golden/README.md gives the formats.",
        epilog="Exit codes: 0 written or equal, 1 --check found a difference, or there is no such seed, 2 misuse or no "
        "environment.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="make them elsewhere and compare with the committed files")
    what.add_argument("--find-seed", nargs=2, metavar=("NAME", "COUNT"),
                      help="try seeds 0 to COUNT - 1 for checkpoint NAME, write nothing")
    return parser.parse_args()


if __name__ == "__main__":
    parse()
