"""scripts/records gate: fails if something became slower or otherwise worse."""

import contextlib
import filecmp
import json
import os
import shlex
import tempfile
from pathlib import Path

from tokline import command, compare, records, rounds, statistics, terminal, verdicts
from tokline.files import check_outputs, write_whole
from tokline.kernels import DEFAULT_MODEL
from tokline.records import BadRecords
from tokline.stop import Stop
from tokline.terminal import count

KEPT = ("a.jsonl", "b.jsonl", "output.log")  # in the folder of --keep
PASSED, REGRESSED, MISUSE, NOT_COMPARABLE, NOTHING_TO_MEASURE = 0, 1, 2, 3, 77

EPILOG = """\
examples:
  scripts/records gate --baseline main.jsonl --candidate pr.jsonl
  scripts/records gate --ab build/main/bin build/pr/bin
  scripts/records gate --ab main/bench_linear pr/bench_linear --rounds 10 --keep out -- --benchmark_filter=b1_
  scripts/records gate --aa build/bench-cuda/bin --out noise.jsonl
  scripts/records gate --baseline main.jsonl --candidate pr.jsonl --noise noise.jsonl

exit codes: 0 same or faster; 1 slower, or worse in another way that is gated; 2 misuse, a file that
cannot be used or written, or an error of the gate itself; 3 not comparable, or too few samples to tell;
77 nothing to measure here (no CUDA device); 130 interrupted. docs/gating.md defines the verdicts.
"""


def parse_arguments(arguments):
    arguments, bench_arguments = command.split_arguments(arguments)
    parser = command.parser(
        "Says whether something became slower: from records, or by running two builds in turn.\n"
        "It also fails if memory or errors grew, or if rows are missing or no longer verified.", EPILOG,
        usage="scripts/records gate --baseline A --candidate B [options]\n"
        "       scripts/records gate --ab BIN_A BIN_B [options] [-- arguments of the bench programs]\n"
        "       scripts/records gate --aa BIN --out FILE [options] [-- arguments of the bench programs]")
    parser.add_argument("--baseline", metavar="A", help="records (.jsonl), or a folder of them")
    parser.add_argument("--candidate", metavar="B", help="the same for what is judged")
    parser.add_argument("--ab", nargs=2, metavar=("BIN_A", "BIN_B"),
                        help="baseline and candidate: two bench programs, or the bin folders of two builds")
    parser.add_argument("--aa", metavar="BIN", help="run the same program on both sides, which measures the noise")
    measuring = parser.add_argument_group("with --ab and --aa")
    measuring.add_argument("--rounds", type=command.positive, default=5, metavar="N",
                           help="how often each program runs on each side. Default: 5")
    measuring.add_argument("--keep", metavar="DIR", help="leave the records in DIR/a.jsonl and DIR/b.jsonl")
    measuring.add_argument("--out", metavar="FILE", help="with --aa: the records of both sides, for --noise")
    measuring.add_argument("--programs", metavar="NAMES", help="only these programs of the bin folders: "
                           "comma-separated, without bench_, and decoder")
    measuring.add_argument("--model", metavar="DIR", help="decode this checkpoint with `tokline bench` too: a folder, "
                           "the name of a model made by scripts/model, or a name in the Hugging Face cache. With "
                           "--programs decoder the default is the embedded one, models/qwen3-lookup of this checkout")
    measuring.add_argument("--decode", metavar="ARGUMENTS", default="",
                           help="arguments of `tokline bench` in one word: --decode '--batch 1,8 --repeats 7'")
    measuring.add_argument("--device", choices=["cuda", "cpu"], default=None,
                           help="cuda (default), or cpu, which times the references, to try out the gate")
    measuring.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the order. Default: 1")
    compare.add_common_arguments(parser)
    parser.add_argument("--markdown", metavar="FILE", help="also write the result as Markdown to FILE")
    parser.add_argument("--json", metavar="FILE", help="also write the result as JSON to FILE")
    options = parser.parse_args(arguments)
    check_mode(parser, options, bench_arguments)
    return options, bench_arguments


def check_mode(parser, options, bench_arguments):
    records_given = options.baseline is not None or options.candidate is not None
    modes = records_given + (options.ab is not None) + (options.aa is not None)
    if modes != 1:
        parser.error("needs one of --baseline with --candidate, --ab, and --aa")
    if records_given and (options.baseline is None or options.candidate is None):
        parser.error("--baseline and --candidate belong together")
    if options.out and options.aa is None:
        parser.error("--out belongs to --aa; --ab leaves its records where --keep DIR says")
    if records_given:
        for name in ("keep", "programs", "model", "decode", "device"):
            if getattr(options, name):
                parser.error(f"--{name} belongs to --ab and --aa")
        if bench_arguments:
            parser.error("arguments after -- belong to --ab and --aa")


def check_files(options):
    kept = [Path(options.keep, name) for name in KEPT] if options.keep else []
    check_outputs(
        [("--out", options.out), ("--markdown", options.markdown), ("--json", options.json)],
        [("--baseline", options.baseline), ("--candidate", options.candidate), ("--noise", options.noise),
         *(("--ab", path) for path in options.ab or ()), ("--aa", options.aa), *(("--keep's", path) for path in kept)],
        records=("--out",))


def main(arguments):
    options, bench_arguments = parse_arguments(list(arguments))
    check_files(options)
    if options.ab is None and options.aa is None:
        if os.path.realpath(options.baseline) == os.path.realpath(options.candidate):
            terminal.say("--baseline and --candidate are the same: every row is compared with itself")
        return conclude(compare.compare_files(options.baseline, options.candidate, options), (), options)
    return measure(options, bench_arguments)


def measure(options, bench_arguments):
    """Runs both sides in rounds and judges what they recorded."""
    plan = plan_of(options, bench_arguments)
    if plan.device == "cuda" and not rounds.gpu_present():
        raise Stop("no CUDA device: nothing to measure here; --device cpu times the references", NOTHING_TO_MEASURE)
    with results_folder(options.keep) as folder:
        return conclude(*run_rounds(plan, folder, options), options)


def plan_of(options, bench_arguments):
    wanted = options.programs.split(",") if options.programs else None
    model = options.model
    if model is None and wanted and "decoder" in wanted:
        model = str(DEFAULT_MODEL)
    sides = options.ab or [options.aa, options.aa]
    programs = {side: rounds.find_programs(path, model, wanted) for side, path in zip(rounds.SIDES, sides)}
    if all(Path(path).is_file() for path in sides) and programs["a"]:  # two programs, whatever their names
        programs["b"] = dict(zip(programs["a"], programs["b"].values()))
    if model is not None:
        check_model(model, programs)
    device = device_of(options, bench_arguments)
    plan = rounds.Plan(
        programs, model, bench_arguments, shlex.split(options.decode), device, options.rounds, options.seed)
    for program in map(rounds.program_name, wanted or ()):
        if program not in programs["a"] | programs["b"]:
            raise Stop(f"--programs: there is no {program} in {' or '.join(sides)}", MISUSE)
    if not plan.names:
        raise Stop(f"no program is in both {sides[0]} and {sides[1]}", NOT_COMPARABLE)
    return plan


def check_model(model, programs):
    """Raises Stop for what is no checkpoint. Only the programs know what a name stands for."""
    if os.path.exists(model) or model.startswith((".", "/", "~")):
        if not os.path.isfile(os.path.join(model, "config.json")):
            raise Stop(f"--model {model} has no config.json", MISUSE)
        return
    for found in programs.values():
        program = found.get(rounds.DECODER_PROGRAM)
        if program and (words := rounds.refusal_of_model(program, model)):
            raise Stop(f"--model: {words}", MISUSE)


def device_of(options, bench_arguments):
    """cuda or cpu; a --device among the arguments of the bench programs is taken out of them."""
    names = [argument.partition("=")[0] for argument in bench_arguments]
    for name in ("--record", "--peaks"):
        if name in names:
            raise Stop(f"{name} is set by scripts/records gate itself; --keep DIR leaves the records in DIR", MISUSE)
    if "--device" not in names:
        return options.device or "cuda"
    at = names.index("--device")
    value, length = bench_arguments[at].partition("=")[2], 1
    if not value:
        value, length = "".join(bench_arguments[at + 1 : at + 2]), 2
    if value not in ("cuda", "cpu"):
        raise Stop(f"--device is '{value}'; allowed: cuda, cpu", MISUSE)
    del bench_arguments[at : at + length]
    return value


def results_folder(keep):
    """The folder of the records, to be used in `with`."""
    if keep is None:
        return rounds.scratch("tokline-gate.")
    folder = Path(keep)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Stop(f"--keep {keep}: the folder cannot be written: {error.strerror}", MISUSE) from None
    for side in rounds.SIDES:
        if (folder / f"{side}.jsonl").exists():
            raise Stop(f"--keep {keep}: has {side}.jsonl of another experiment; name a new folder", MISUSE)
    return contextlib.nullcontext(folder)


def run_rounds(plan, folder, options):
    """The Comparison of all rounds, and sentences on how it was made."""
    terminal.say(f"{count(len(plan.names), 'program')}, {count(plan.rounds, 'round')}, order by --seed {plan.seed}")
    same = [name for name in plan.names if options.ab
            and filecmp.cmp(*(plan.programs[side][name] for side in rounds.SIDES), shallow=False)]
    if same:
        terminal.say(f"the same file on both sides: {', '.join(same)}")
    experiment = rounds.Experiment(plan, folder, terminal.Progress(), terminal.say)
    experiment.run()
    missing = [side.upper() for side, path in experiment.files.items() if not path.exists()]
    if missing:
        words = experiment.failures[-1].words if experiment.failures else "no program recorded a row"
        raise Stop(f"nothing was measured on side {' and '.join(missing)}: {words}",
                   REGRESSED if missing == ["B"] else NOT_COMPARABLE)
    options.across_builds = True
    comparison = compare.compare_files(*experiment.files.values(), options)
    if plan.rounds < 3:
        comparison.notes.append(f"{count(plan.rounds, 'round')}: the intervals lack the noise between runs, which takes 3")
    comparison.faults += crashes(experiment, plan)
    comparison.faults += [f"{name} is missing in B" for name in plan.only_on("a")]
    comparison.notes += [f"{name} is new in B: not compared" for name in plan.only_on("b")]
    closing = [noise_sentence(comparison, records.read(experiment.files.values()))] if options.aa else []
    if options.out:
        write_whole(options.out, "".join(path.read_text(encoding="utf-8") for path in experiment.files.values()))
        terminal.say(f"the noise of this machine: {options.out}, for --noise")
    if options.keep:
        terminal.say(f"records: {' and '.join(str(path) for path in experiment.files.values())}")
    return comparison, closing


def crashes(experiment, plan):
    """Programs that are killed in B, or record nothing there and never in A. Refused rows speak for themselves."""
    in_a, in_b = {}, {}
    for failure in experiment.failures:
        if failure.killed or failure.empty:
            (in_a if failure.side == "a" else in_b).setdefault(failure.name, []).append(failure)
    return [f"{name} {failures[0].words} in {len(failures)} of {count(plan.rounds, 'round')} of B"
            for name, failures in in_b.items() if name not in in_a or any(failure.killed for failure in failures)]


def noise_sentence(comparison, runs):
    """What an A/A experiment says about this machine."""
    called = [row for row in comparison.rows if row.verdict in (verdicts.SLOWER, verdicts.FASTER) or row.regressions]
    judged = [row for row in comparison.rows if row.ratio is not None]
    sentence = f"A/A: {count(len(called), 'false alarm')} in {count(len(judged), 'comparison')}"
    try:
        spreads = verdicts.Noise(runs).spreads
    except BadRecords:
        return sentence + "; too few rounds to state the noise (3 or more)"
    worst = max(spreads, key=spreads.get)
    return (f"{sentence}; noise of a row from run to run: {100 * statistics.median(list(spreads.values())):.2f} % in "
            f"the median row, {100 * spreads[worst]:.2f} % in {worst}.")


def conclude(comparison, closing, options):
    """Prints the result. Returns the exit code."""
    code, words = judgement(comparison)
    texts = {form: compare.render(comparison, form, options.all, [*closing, words] if form != "json" else ())
             for form in {options.format} | ({"markdown"} if options.markdown else set())}
    as_json = comparison.to_json() | {"exit_code": code, "judgement": words}
    if options.format == "json":
        texts["json"] = json.dumps(as_json, indent=1)
    terminal.write_out(texts[options.format])
    if options.markdown:
        write_whole(options.markdown, texts["markdown"] + "\n")
    if options.json:
        write_whole(options.json, json.dumps(as_json, indent=1) + "\n")
    return code


def judgement(comparison):
    """The exit code and a sentence."""
    if comparison.refused and not comparison.faults:
        return NOT_COMPARABLE, f"gate: not comparable: {compare.refusal(comparison)}."
    regressed = [] if comparison.refused else comparison.regressions
    if regressed or comparison.faults:
        reasons = [f"{row.key}: {words}" for row in regressed for words in row.regressions]
        reasons = comparison.faults + reasons
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        return REGRESSED, f"gate: worse: {'; '.join(reasons[:3])}{more}."
    if comparison.undecided:
        rows = count(len(comparison.undecided), "row differs", "rows differ")
        in_rounds = all(row.rounds > 1 for row in comparison.undecided)
        advice = ("--rounds 10, on a quieter machine" if in_rounds else
                  "measure in rounds: scripts/records gate --ab BIN_A BIN_B, or give --noise FILE")
        return NOT_COMPARABLE, (f"gate: undecided: {rows}, but by no more than equal programs may, or on samples that are "
                                f"too few or overlap (see the table); {advice}.")
    decided = sum(row.verdict in (verdicts.SAME, verdicts.FASTER) for row in comparison.rows)
    if not decided:
        return NOT_COMPARABLE, (f"gate: not comparable: none of {count(len(comparison.rows), 'row')} has a verdict: they "
                                "were refused or disturbed (see the table).")
    words = "gate: same or faster."
    if decided < len(comparison.rows):
        words = f"gate: same or faster in {count(decided, 'row')} of {len(comparison.rows)}; the others have no verdict."
    if comparison.blind:
        worst = max(comparison.blind, key=lambda row: row.needed)
        words += (f" {count(len(comparison.blind), 'row varies', 'rows vary')} too much to show a change of "
                  f"{comparison.rules.noisy_percent:g} %, at worst {worst.key} (counts from {100 * worst.needed:.0f} %).")
    return PASSED, words
