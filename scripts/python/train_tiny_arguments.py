"""The arguments of scripts/train_tiny. Standard library only: they are checked before anything is installed."""

import argparse
import math
import pathlib

MODEL_DIR = pathlib.Path(__file__).resolve().parents[2] / "models" / "qwen3-lookup"
FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def at_least(least, kind):
    """An argument that is a number not below `least`."""
    def read(text):
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text}: at least {least} is allowed")
        return value
    read.__name__ = "number"
    return read


def parse():
    """The arguments of this process; ends it with 2 for those that cannot be used."""
    parser = argparse.ArgumentParser(prog="scripts/train_tiny")
    parser.add_argument("--out", type=pathlib.Path, default=MODEL_DIR)
    parser.add_argument("--seed", type=at_least(0, int), default=1)
    parser.add_argument("--effort", type=at_least(0.001, float), default=1.0)
    parser.add_argument("--questions", type=at_least(1, int), default=320)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--evaluate", action="store_true")
    what.add_argument("--rounding", action="store_true")
    arguments = parser.parse_args()
    training = not (arguments.evaluate or arguments.rounding)
    found = {path.name for path in arguments.out.iterdir()} if arguments.out.is_dir() else set()
    if not training and not found >= FILES:
        parser.error(f"--out {arguments.out} is no checkpoint: {', '.join(sorted(FILES - found))} are missing")
    if training and (arguments.out.is_file() or not found <= FILES):
        other = min(found - FILES, default="no folder")
        parser.error(f"--out {arguments.out} would be replaced, but it is no checkpoint: {other}")
    return arguments


if __name__ == "__main__":
    parse()
