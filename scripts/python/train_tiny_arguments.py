"""The arguments of scripts/maintain/train_tiny, checked before anything is installed: standard library only."""

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
    parser = argparse.ArgumentParser(
        prog="scripts/maintain/train_tiny",
        description="Trains a Qwen3 of two layers to look up facts in its context ('The code of amber is 4821.'), writes "
        "it as a Hugging Face checkpoint, and says how often it is right by length and depth, in fp32 and in bf16, by "
        "transformers. docs/embedded_model.md has more. The first run installs torch and transformers into .venv-golden.",
        epilog="Exit codes: 0 at least 99 %% right at every length, 1 less, 2 misuse or no environment.")
    parser.add_argument("--out", type=pathlib.Path, default=MODEL_DIR, metavar="DIR",
                        help="the checkpoint (default: models/qwen3-lookup)")
    parser.add_argument("--seed", type=at_least(0, int), default=1, metavar="N",
                        help="of weights, texts and questions (default: %(default)s)")
    parser.add_argument("--effort", type=at_least(0.001, float), default=1.0, metavar="X",
                        help="X times as many steps (default: %(default)s)")
    parser.add_argument("--questions", type=at_least(1, int), default=320, metavar="N",
                        help="of the evaluation, at each length (default: %(default)s)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--evaluate", action="store_true", help="train nothing, evaluate the checkpoint")
    what.add_argument("--rounding", action="store_true",
                      help="train nothing, say what another rounding of the norms would do to the checkpoint")
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
