"""The arguments of scripts/maintain/golden, tokenizer_golden, trained_golden and train_tiny. They are checked before
anything is installed, so this needs the standard library only."""

import math
import sys
from pathlib import Path

from tokline import command, terminal
from tokline.kernels import DEFAULT_MODEL, ROOT

TEXT_GOLDEN = ROOT / "harness" / "tests" / "text" / "golden"
TEXT_SEED, TEXT_STRINGS = 20260131, 2100
MODEL_FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def new_parser(name, description, epilog):
    terminal.program = f"scripts/maintain/{name}"
    return command.parser(description, epilog)


def golden(argv=None):
    parser = new_parser("golden", """\
Makes the tiny checkpoints of every family and their golden outputs. The weights come from a seed and are
exact in bf16; tokens and logits are those of transformers in fp32 on the CPU. The first run installs torch
and transformers into .venv-golden. harness/tests/golden/README.md describes the formats.""", """\
Exit codes: 0 written or equal, 1 --check found a difference or there is no such seed, 2 misuse or no
environment.""")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="make them elsewhere and compare with the committed files")
    what.add_argument("--find-seed", nargs=2, metavar=("NAME", "COUNT"),
                      help="try the seeds 0 to COUNT - 1 for checkpoint NAME and write nothing")
    return parser.parse_args(argv)


def tokenizer_golden(argv=None):
    parser = new_parser("tokenizer_golden", """\
Trains small tokenizers with the pipelines of the model families and writes, for seeded strings, the ids and
texts of Hugging Face tokenizers to harness/tests/text/golden. The first run installs tokenizers, transformers
and jinja2 into .venv-tokenizers. harness/tests/text/golden/README.md describes the formats.""", """\
example, other strings and more of them:
  scripts/maintain/tokenizer_golden --out /tmp/golden --seed 7 --strings 100000
  TOKLINE_TEXT_GOLDEN=/tmp/golden build/ci/bin/tokenizer_golden_test

Exit codes: 0 written or equal, 1 --check found a difference, 2 misuse or no environment.""")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="make them elsewhere and compare with the committed files")
    what.add_argument("--out", type=Path, default=TEXT_GOLDEN, metavar="DIR", help="write there")
    parser.add_argument("--seed", type=int, default=TEXT_SEED, metavar="N")
    parser.add_argument("--strings", type=int, default=TEXT_STRINGS, metavar="N")
    arguments = parser.parse_args(argv)
    if arguments.check and (arguments.seed, arguments.strings) != (TEXT_SEED, TEXT_STRINGS):
        parser.error("--check makes the committed files: it takes no --seed and no --strings")
    if arguments.strings < 1:
        parser.error(f"--strings is {arguments.strings}; it must be at least 1")
    if arguments.out.exists() and not arguments.out.is_dir():
        parser.error(f"--out {arguments.out} is no folder")
    return arguments


def trained_golden(argv=None):
    parser = new_parser("trained_golden", """\
Writes what transformers generates with the trained weights of `scripts/model smollm2-135m`, greedily, in fp32
on the CPU, to harness/tests/golden/smollm2-135m.json. The weights are not committed. The first run installs
torch and transformers into .venv-golden.""", """\
Exit codes: 0 written or equal, 1 --check found a difference, 2 misuse or no environment.""")
    parser.add_argument("--check", action="store_true", help="make it again and compare with the committed file")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR",
                        help="the folder that scripts/model smollm2-135m prints")
    arguments = parser.parse_args(argv)
    if not (arguments.model / "origin.json").is_file():
        parser.error(f"--model {arguments.model} was not made by scripts/model")
    return arguments


def train_tiny(argv=None):
    parser = new_parser("train_tiny", """\
Trains a Qwen3 of two layers to look up facts in its context ('The code of amber is 4821.'), writes it as a
Hugging Face checkpoint, and prints how often transformers answers right with it, by length and depth, in
fp32 and in bf16. docs/embedded_model.md describes it. The first run installs torch and transformers into
.venv-golden.""", "Exit codes: 0 at least 99 % right at every length, 1 less, 2 misuse or no environment.")
    parser.add_argument("--out", type=Path, default=DEFAULT_MODEL, metavar="DIR",
                        help="the checkpoint (default: models/qwen3-lookup)")
    parser.add_argument("--seed", type=int, default=1, metavar="N",
                        help="of weights, texts and questions (default: %(default)s)")
    parser.add_argument("--effort", type=float, default=1.0, metavar="X",
                        help="X times as many steps (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=320, metavar="N",
                        help="of the evaluation, at each length (default: %(default)s)")
    parser.add_argument("--evaluate", action="store_true", help="train nothing, evaluate the checkpoint")
    arguments = parser.parse_args(argv)
    for name, least in (("seed", 0), ("effort", 0.001), ("questions", 1)):
        value = getattr(arguments, name)
        if not least <= value < math.inf:
            parser.error(f"--{name} is {value}; it must be a number of at least {least}")
    found = {path.name for path in arguments.out.iterdir()} if arguments.out.is_dir() else set()
    if arguments.evaluate and not found >= MODEL_FILES:
        parser.error(f"--out {arguments.out} is no checkpoint: {', '.join(sorted(MODEL_FILES - found))} are missing")
    if not arguments.evaluate and (arguments.out.is_file() or not found <= MODEL_FILES):
        other = min(found - MODEL_FILES, default="no folder")
        parser.error(f"--out {arguments.out} would be replaced, but it is no checkpoint: {other}")
    return arguments


if __name__ == "__main__":
    {"golden": golden, "tokenizer_golden": tokenizer_golden, "trained_golden": trained_golden,
     "train_tiny": train_tiny}[sys.argv[1]](sys.argv[2:])
