"""What each custom or fused op is worth alone and in the decoder, one line per op."""
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokline import command, records, rounds, statistics, terminal
from tokline.kernels import DEFAULT_MODEL, ROOT
from tokline.samples import interval
from tokline.schema import RULES
from tokline.stop import Stop

# A gain or loss smaller than this counts as none, however certain it is.
LEAST_EFFECT = RULES["least_effect"]
# An interval that contains 1 and reaches further than this from 1 says nothing.
MOST_UNCERTAINTY = RULES["most_uncertainty"]
# The interval of fewer rounds is only their range.
LEAST_ROUNDS = RULES["min_interval_samples"]
# The name of the lines that swap nothing: decoders with the same ops, in other memory.
CONTROL = "control"


@dataclass
class SpeedUp:
    """The time without the op divided by the time with it, and its 95 % interval: above 1 the op is worth having."""
    ratio: float
    low: float
    high: float
    rounds: int = LEAST_ROUNDS

    @property
    def has_interval(self):
        """Whether there are enough rounds for one that holds at 95 %."""
        return self.rounds >= LEAST_ROUNDS

    def direction(self, equal=0):
        """1 if the op wins, -1 if it loses, 0 for neither: the effect must be beyond the interval, LEAST_EFFECT and
        `equal`, by which equal things differ. 0 for too few rounds, too."""
        effect = abs(self.ratio - 1)
        if not self.has_interval or effect < LEAST_EFFECT or effect <= equal:
            return 0
        return 1 if self.low > 1 else -1 if self.high < 1 else 0

    def unsure(self, equal=0):
        """Whether it is neither, and the interval contains 1 and is too wide to call it nothing."""
        return (self.direction(equal) == 0 and self.low <= 1 <= self.high
                and max(self.high - 1, 1 - self.low) > MOST_UNCERTAINTY)

    def __str__(self):
        return f"{self.ratio:.3f}x" + (f" [{self.low:.3f}, {self.high:.3f}]" if self.has_interval else "")


def paired_speed_up(with_op, without_op):
    """The SpeedUp of interleaved rounds: the median of their ratios. Drift moves both sides of a round alike."""
    ratios = np.divide(without_op, with_op)
    low, high = interval(sorted(ratios))
    return SpeedUp(statistics.median(ratios), low, high, len(ratios))


@dataclass
class Ablation:
    """An ablation line, digested."""
    label: str
    name: str
    instead: str
    end_to_end: SpeedUp | None = None
    isolated: SpeedUp | None = None
    with_tok_s: float | None = None
    without_tok_s: float | None = None
    refused: str | None = None
    # By how much decoders with the same ops differed in this run: in the decoder, and in their launches alone.
    equal: float = 0.0
    equal_alone: float = 0.0

    @property
    def is_control(self):
        return self.name == CONTROL

    @property
    def in_the_decoder(self):
        """1 if the op wins, -1 if it loses, 0 for neither."""
        return self.end_to_end.direction(self.equal)

    @property
    def alone(self):
        """The same for the op alone; None if it has no figure."""
        return self.isolated and self.isolated.direction(self.equal_alone)

    @property
    def unsure_in_the_decoder(self):
        return self.end_to_end.unsure(self.equal)

    @property
    def unsure_alone(self):
        return self.isolated is not None and self.isolated.unsure(self.equal_alone)


def digests(run):
    """(line, Ablation) of each ablation of a run, in order."""
    found = [(line, digest(line)) for line in run.ablations]
    for _, one in found:
        controls = [other for _, other in found if other.is_control and other.label == one.label]
        one.equal, one.equal_alone = (
            max((abs(effect.ratio - 1) for effect in effects if effect), default=0.0)
            for effects in ([control.end_to_end for control in controls], [control.isolated for control in controls]))
    return found


def digest(record):
    """The Ablation that a record of kind `ablation` describes."""
    label = (f"{record['model']} batch {record['batch']}, {record['prompt_tokens']}+{record['new_tokens']} tokens, "
             f"{record['dtype']} on {record['device']}")
    result = Ablation(label, record["name"], record["instead"])
    if record["status"] != "ok":
        result.refused = record["reason"]
        return result
    pair = record["end_to_end"]
    result.end_to_end = paired_speed_up(pair["with_ms"], pair["without_ms"])
    result.with_tok_s = 1e3 * record["batch"] / statistics.median(pair["with_ms"])
    result.without_tok_s = 1e3 * record["batch"] / statistics.median(pair["without_ms"])
    if record.get("isolated"):
        result.isolated = paired_speed_up(record["isolated"]["with_us"], record["isolated"]["without_us"])
    return result


ALONE = {1: "wins alone", 0: "no faster alone", -1: "loses alone"}
IN_THE_DECODER = {1: "wins in the decoder", 0: "gains nothing in the decoder", -1: "LOSES in the decoder"}


def verdict(result):
    """Says whether what holds alone also holds in the decoder."""
    if result.refused:
        return f"not measured: {result.refused}"
    if result.is_control:
        return "the same ops: what decoders differ by"
    if not result.end_to_end.has_interval:
        return "too few rounds to say"
    decoder = result.in_the_decoder
    if result.unsure_in_the_decoder:
        return "too noisy to say in the decoder" + (
            f"; {ALONE[result.alone]}" if result.isolated and not result.unsure_alone else "")
    if result.unsure_alone:
        return f"too noisy to say alone; {IN_THE_DECODER[decoder]}"
    if result.isolated is None:
        return IN_THE_DECODER[decoder]
    words = {
        (1, 1): "wins alone and in the decoder", (1, 0): "WINS ALONE, BUT GAINS NOTHING in the decoder",
        (1, -1): "WINS ALONE, BUT LOSES in the decoder", (0, 1): "no faster alone, yet wins in the decoder",
        (0, 0): "makes no difference, alone or in the decoder", (0, -1): "no faster alone, and LOSES in the decoder",
        (-1, 1): "loses alone, yet wins in the decoder", (-1, 0): "loses alone, and gains nothing in the decoder",
        (-1, -1): "loses alone and in the decoder: its plain counterpart is better",}
    return words[result.alone, decoder]


def as_json(result):
    def speed_up(value):
        return value and {"ratio": value.ratio, "ci95": [value.low, value.high] if value.has_interval else None}

    return {"row": result.label, "name": result.name, "instead": result.instead, "isolated": speed_up(result.isolated),
            "end_to_end": speed_up(result.end_to_end), "equal_decoders_differ_by": result.equal,
            "with_tok_s": result.with_tok_s, "without_tok_s": result.without_tok_s, "verdict": verdict(result)}


HEADER = ["op", "alone", "in the decoder", "tok/s with", "without", "verdict", "instead of it"]


def table_of(results):
    return [[result.name, str(result.isolated or ""), str(result.end_to_end or ""), terminal.figure(result.with_tok_s),
             terminal.figure(result.without_tok_s), verdict(result), result.instead] for result in results]


def render(results, markdown, colour=False):
    """One table per decoder; a ratio is the time without the op divided by the time with it."""
    by_label = {}
    for result in results:
        by_label.setdefault(result.label, []).append(result)
    blocks = []
    for label, group in by_label.items():
        lines = table_of(group)
        if markdown:
            table = terminal.markdown_table(HEADER, lines, right=range(1, 5))
            title = f"**{label}**\n"
        else:
            colours = [[None] * 5 + [colour_of(result)] + [None] for result in group]
            table = ("  " + line for line in terminal.text_table(HEADER, lines, range(1, 5), colours, colour))
            title = label
        blocks.append("\n".join([title, *table]))
    controlled = ("\nA control swaps nothing: an effect that is no larger than that of the controls is called none."
                  if any(result.is_control and result.end_to_end for result in results) else "")
    blocks.append("Speed-up of the op over what runs instead of it, with 95 % intervals; above 1 the op is worth "
                  f"having.{controlled}")
    return "\n\n".join(blocks)


def colour_of(result):
    if result.refused:
        return "red"
    if result.is_control:
        return None
    if result.in_the_decoder == 0:
        return "yellow" if result.isolated and result.alone > 0 else None
    return "green" if result.in_the_decoder > 0 else "red"


def find_program(root=ROOT):
    """The newest tokline that scripts/bench or scripts/test built; None if there is none."""
    found = (str(path) for path in Path(root, "build").glob("*/bin/tokline") if is_program(path))
    return max(found, key=os.path.getmtime, default=None)


def is_program(path):
    return os.access(path, os.X_OK) and os.path.isfile(path)


def run_program(program, arguments, record):
    """Runs `tokline ablate`; its table goes to standard error, since standard output has the result."""
    words = [program, "ablate", "--model", arguments.model, "--record", record]
    for flag in ("batch", "device"):
        if getattr(arguments, flag) is not None:
            words += [f"--{flag}", getattr(arguments, flag)]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.PIPE
    with subprocess.Popen(words + arguments.more, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown) as process:
        try:
            said = process.communicate()[1]
        except KeyboardInterrupt:
            rounds.end(process)
            raise
    if process.returncode and said:
        sys.stderr.write(said.decode(errors="replace"))
    return process.returncode


def parse_arguments(argv):
    parser = command.parser(
        "Runs the decoder with each custom or fused op swapped for its plain counterpart in turn, interleaved, and\n"
        "prints the op's speed-up alone beside its speed-up in the decoder. Controls, which swap nothing, show how\n"
        "much equal decoders differ.",
        """examples:
  scripts/records ablate
  scripts/records ablate --model ~/qwen3-0.6b --batch 8 --record ablation.jsonl
  scripts/records ablate --model ~/qwen3-0.6b -- --only rmsnorm_qkv,fused_mlp   what follows -- goes to tokline ablate
  scripts/records ablate --records results/h200/ablation.jsonl --format markdown

exit codes: 0 done, 1 the program failed or a file cannot be used, 2 misuse, 3 no ablation in the records,
130 interrupted.""")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", metavar="DIR", default=str(DEFAULT_MODEL),
                        help="checkpoint that the decoder runs (default: models/qwen3-lookup of this checkout)")
    source.add_argument("--records", nargs="+", metavar="FILE", help="print what these records say and run nothing")
    parser.add_argument("--batch", metavar="N", help="sequences at a time (default: that of `tokline ablate`)")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if there is a device")
    parser.add_argument("--bin", metavar="PATH", help="the tokline program (default: the newest build/*/bin/tokline)")
    parser.add_argument("--record", metavar="FILE",
                        help="append the record to this file (default: kept only if something fails)")
    parser.add_argument("--format", choices=["text", "markdown", "json"], default="text")
    argv, more = command.split_arguments(argv)
    arguments = parser.parse_args(argv)
    arguments.more = more
    if arguments.records:
        for flag in ("batch", "device", "bin", "record"):
            if getattr(arguments, flag) is not None:
                parser.error(f"--{flag} is for a run; --records runs nothing")
    return arguments


def measure(arguments, folder):
    """Runs the program, whose record is in the folder unless it has a file. Returns its exit code, and the Runs that it
    recorded."""
    program = arguments.bin or find_program()
    if program is None:
        raise Stop("no build/*/bin/tokline; scripts/bench builds it, or name it with --bin PATH", 2)
    if not is_program(program):
        raise Stop(f"--bin {program} is no program; scripts/bench builds build/*/bin/tokline", 2)
    record = arguments.record or os.path.join(folder, "ablation.jsonl")
    before = {run.run_id for run in read_if_there(record)}
    try:
        code = run_program(program, arguments, record)
    except OSError as error:
        raise Stop(f"cannot run {program}: {error.strerror}") from None
    runs = [run for run in read_if_there(record) if run.run_id not in before]
    if not runs and not code:
        terminal.say(f"{program} wrote no record")
    return code if runs else code or 1, runs


def read_if_there(path):
    """The runs of a record file; none if it is empty or not there."""
    return records.read([path], terminal.say) if os.path.exists(path) and os.path.getsize(path) else []


def main(argv):
    arguments = parse_arguments(argv)
    if arguments.records:
        return show(0, records.read(arguments.records, terminal.say), arguments.format)
    with rounds.scratch("tokline-ablate.") as folder:
        return show(*measure(arguments, folder), arguments.format)


def show(code, runs, form):
    """Prints what the runs say. Returns the exit code."""
    results = [result for run in runs for _, result in digests(run)]
    if not results:
        if not code:
            terminal.say("no ablation in the records; `tokline ablate --record FILE` writes them")
        return code or 3
    for run in runs:
        if run.injected:
            terminal.say(f"injected on purpose: {json.dumps(run.injected)}")
    if form == "json":
        terminal.write_out(json.dumps({"schema": 1, "ablations": [as_json(result) for result in results]}, indent=1))
    else:
        terminal.write_out(render(results, form == "markdown", terminal.colour_wanted()))
    return code
