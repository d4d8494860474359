"""Compares Tokline's decoder with transformers on one checkpoint, full-size or tiny.

  make-model  writes a random-weight checkpoint of a published shape
  compare     compares logits, greedy tokens and what each half of a layer does, of Tokline and of transformers in
              bf16, with fp32; states the smallest seeded error that this catches
  tokps       measures the decode tok/s of transformers: eagerly, and compiled with a static cache

All shapes on a GPU, one to three minutes each on an H200 where six ran at once:
  scripts/maintain/record results/h200 --only parity
Checkpoints that were made before their logits were peaked must be made anew: remove build/models first.
"""

import argparse
import importlib
import json
import os
import pathlib
import sys

from tokline import terminal
from tokline.command import MISUSE, ended, parser as command_parser, positive
from tokline.files import CannotWrite, require_writable, write_whole
from tokline.stop import Stop

RECORD_FORMAT = 1


def model_directory(text):
    path = pathlib.Path(text)
    if not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} has no config.json")
    return path.resolve()


def executable(text):
    path = pathlib.Path(text).resolve()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"{text} is not an executable file")
    return path


def parse_arguments():
    parser = command_parser(__doc__, None)
    commands = parser.add_subparsers(dest="command", required=True)

    make = commands.add_parser("make-model", help="write a random-weight checkpoint")
    make.add_argument("--shape", required=True,
                      help="qwen3-0.6b, qwen3-4b, qwen3-32b, llama-3.2-1b, qwen2.5-0.5b, ernie-4.5-0.3b, gpt2")
    make.add_argument("--out", required=True, type=pathlib.Path, help="new folder")
    make.add_argument("--seed", type=int, default=7)
    make.add_argument("--config-only", action="store_true", help="write config.json and no weights")

    compare = commands.add_parser("compare", help="compare logits and tokens with transformers")
    compare.add_argument("--model", required=True, type=model_directory)
    compare.add_argument("--tokline", required=True, type=executable, help="the tokline program")
    compare.add_argument("--out", required=True, type=pathlib.Path, help="record to write (JSON)")
    compare.add_argument("--new-tokens", type=positive, default=64)
    compare.add_argument("--prompt-tokens", default="1,37,300", help="lengths of the prompts (default %(default)s)")
    compare.add_argument("--seed", type=int, default=11, help="seed of the prompts")

    speed = commands.add_parser("tokps", help="measure the decode tok/s of transformers at batch 1")
    speed.add_argument("--model", required=True, type=model_directory)
    speed.add_argument("--out", type=pathlib.Path, help="record to write (JSON)")
    speed.add_argument("--prompt-tokens", type=positive, default=128)
    speed.add_argument("--new-tokens", type=positive, default=128)

    for command in (make, compare, speed):
        command.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


def print_table(header, rows):
    print("\n".join(terminal.text_table(header, [[str(cell) for cell in row] for row in rows])))


def make_model(arguments):
    checkpoint = importlib.import_module("parity_checkpoint")
    if arguments.shape not in checkpoint.SHAPES:
        raise Stop(f"--shape is '{arguments.shape}'; allowed: {', '.join(checkpoint.SHAPES)}", MISUSE)
    if arguments.out.exists():
        raise Stop(f"--out {arguments.out} exists; it must be a new folder", MISUSE)
    if arguments.config_only:
        checkpoint.make_config(arguments.shape, arguments.out)
        print(f"parity: {arguments.shape}: config.json in {arguments.out}")
        return 0
    seconds, size = checkpoint.make(arguments.shape, arguments.seed, arguments.device, arguments.out)
    print(f"parity: {arguments.shape}, seed {arguments.seed}: {size / 1e9:.2f} GB in {arguments.out}, {seconds:.1f} s")
    return 0


def compare(arguments):
    logits = importlib.import_module("parity_logits")
    lengths = arguments.prompt_tokens.split(",")
    if not all(length.isdigit() and int(length) for length in lengths):
        raise Stop(f"--prompt-tokens is '{arguments.prompt_tokens}'; it must be comma-separated whole numbers of at "
                   "least 1", MISUSE)
    record = {"format": RECORD_FORMAT, "kind": "parity", **logits.compare(arguments, list(map(int, lengths)))}
    write_whole(arguments.out, json.dumps(record, indent=2) + "\n")
    print(f"{record['model']['name']} on {record['environment']['device']}, "
          f"{len(record['cases'])} prompts x {record['new_tokens']} steps, against fp32")
    if record["prompts_left_out"]:
        print(f"left out, over {record['model']['positions']} positions: prompts of "
              f"{', '.join(map(str, record['prompts_left_out']))} tokens")
    print_table(("prompt", "implementation", "relative L2", "step 0", "top-1", "equal greedy"), [
        (case["prompt_tokens"], name, f"{row['relative_l2']:.2e}", f"{row['relative_l2_step0']:.2e}",
         f"{row['top1_agreement']:.3f}", row["greedy_prefix"])
        for case in [*record["cases"], record["total"]]
        for name, row in case["implementations"].items()])
    layers = record["layers"]
    places = layers["places"]
    print_table(("after", "tokens", "error of what it adds", "transformers bf16", "ratio"), [
        (row["after"], row["tokens"], f"{row['tokline']:.2e}", f"{row['transformers_bf16']:.2e}", f"{row['ratio']:.3f}")
        for row in sorted(places, key=lambda row: -row["ratio"])[:5]])
    print(f"each half of a layer from its own input; above, the 5 largest ratios of {len(places)}; "
          f"limit: {layers['limit']}")
    print_table(("wrong projection", "smallest error caught", "smallest tried", "its least ratio", "after", "tokens"), [
        (name, f"{100 * row['smallest']:g} %" if row["smallest"] else "none", f"{100 * row['least']['error']:g} %",
         f"{row['least']['ratio']:.3f}", row["least"]["after"], row["least"]["tokens"])
        for name, row in layers["caught"].items()])
    if not record["peaked"]:
        print(f"top-1 of transformers bf16 is below {logits.LEAST_TOP1}: such weights hide small errors")
    print(f"error ratio tokline / transformers bf16: {record['ratio']:.3f}, of a layer at most {layers['ratio']:.3f}; "
          f"limits: {record['limit']}, {layers['limit']}: {'pass' if record['pass'] else 'FAIL'}")
    return 0 if record["pass"] else 1


def tokps(arguments):
    speed = importlib.import_module("parity_speed")
    record = {"format": RECORD_FORMAT, "kind": "transformers_tokps", **speed.measure(arguments)}
    if arguments.out:
        write_whole(arguments.out, json.dumps(record, indent=2) + "\n")
    print(f"{record['model']['name']} on {record['environment']['device']}, batch 1, "
          f"{record['prompt_tokens']} in / {record['new_tokens']} out")
    print_table(("implementation", "prefill ms", "decode tok/s", "ms/token", "warm-up s", "note"), [
        (row["implementation"], "-", "-", "-", "-", row["error"]) if "error" in row else
        (row["implementation"], f"{row['prefill_ms']:.2f}", f"{row['decode_tokps']:.1f}",
         f"{row['ms_per_token']:.3f}", f"{row['warm_up_s']:.1f}", f"the first {row['equal_tokens']} tokens are eager's")
        for row in record["rows"]])
    return 1 if all("error" in row for row in record["rows"]) else 0


def main():
    arguments = parse_arguments()
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("transformers")
    except ImportError as error:
        raise Stop(f"python3 is {sys.executable} and lacks a package: {error}", MISUSE)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise Stop("--device is cuda, but torch finds no CUDA device; --device cpu runs anywhere", MISUSE)
    if arguments.command != "make-model" and arguments.out:
        try:  # before minutes of work, not after them
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            require_writable(arguments.out)
        except (OSError, CannotWrite) as error:
            raise Stop(f"--out: {error}", MISUSE)
    commands = {"make-model": make_model, "compare": compare, "tokps": tokps}
    return commands[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(ended("scripts/maintain/parity", main))
