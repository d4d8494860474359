"""Measures how believable the tools are: collects runs with known differences and reports what the tools say."""
import argparse
import math
import shlex
from pathlib import Path

from tokline import believe_collect, terminal
from tokline.believe_collect import DEFAULT_PARTS, PARTS, OutOfTime
from tokline.command import parser as command_parser, positive
from tokline.files import check_outputs, write_whole
from tokline.terminal import say


def words(text):
    return [word for word in text.split(",") if word]


def parse_arguments(argv):
    parser = command_parser(
        "Measures how often the tools are right, on equal programs and on programs slowed on purpose.\n"
        "`collect` runs where the programs run and needs only Python; `report` judges.", """examples:
  scripts/maintain/believe collect --bin build/bench-cuda/bin --model ~/qwen3-0.6b --out believe --dry-run
  scripts/maintain/believe collect --bin build/bench-cuda/bin --model ~/qwen3-0.6b --out believe
  scripts/maintain/believe report believe -o docs/believability.md --json results/h200/believability.json
Each command has its own --help.

Exit codes: 0 done, 1 something failed or a file cannot be used, 2 misuse, 3 stopped by --time-limit, or
nothing to report, 130 interrupted.""")
    commands = parser.add_subparsers(dest="command", required=True, metavar="collect|report")

    collect = commands.add_parser(
        "collect", formatter_class=argparse.RawDescriptionHelpFormatter,
        help="run the programs, slowed and not", description=believe_collect.__doc__,
        epilog=f"""parts:
  aa         every bench program against itself, in interleaved rounds
  slowdowns  the same against itself made 3, 5 and 10 % slower
  host       `tokline bench` with delays on the host between decode steps
  ops        `tokline bench` with a delay after each launch of one op, for all ops in turn
  tests      cheats, the killed store and independent timing, if their tests are built in --bin
  overhead   a full default run, to know how long it takes
default: {','.join(DEFAULT_PARTS)}

A folder that was begun is continued: what it has is not run again. Exit codes: 0 everything is there,
1 a program failed (what it recorded is kept), 2 misuse, 3 stopped by --time-limit (run it again to continue),
130 interrupted.""")
    collect.add_argument("--bin", required=True, type=Path, dest="bin_dir", metavar="DIR",
                         help="folder of the built programs")
    collect.add_argument("--model", type=Path, metavar="DIR", help="checkpoint of the decoder parts")
    collect.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder to create or continue")
    collect.add_argument("--only", type=words, dest="parts", default=DEFAULT_PARTS, metavar="PARTS",
                         help="comma-separated parts")
    collect.add_argument("--kernels", type=words, default=[], metavar="NAMES", help="bench programs (default: all)")
    collect.add_argument("--rounds", type=positive, default=3, metavar="N",
                         help="rounds of each bench program on every side; with fewer than 3 the gate does not know "
                              "the noise between runs and leaves rows undecided (default: %(default)s)")
    collect.add_argument("--comparisons", type=positive, default=36, metavar="N",
                         help="rows of each bench program, at least (default: %(default)s)")
    collect.add_argument("--decoder-rounds", type=positive, default=7, metavar="N",
                         help="rounds of the decoder: a run as it is and one for each delay (default: %(default)s)")
    collect.add_argument("--batch", default="1", metavar="N[,N]", help="batches of the decoder (default: %(default)s)")
    collect.add_argument("--ops", type=words, default=[], metavar="NAMES",
                         help="ops to slow down (default: all in turn)")
    collect.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    collect.add_argument("--bench-args", type=shlex.split, default=[], metavar="'FLAGS'",
                         help="flags of the bench programs, such as '--max-seconds 0.2'")
    collect.add_argument("--decoder-args", type=shlex.split, default=[], metavar="'FLAGS'",
                         help="flags of `tokline bench`, such as '--repeats 3'")
    collect.add_argument("--store-kills", type=positive, default=10000, metavar="N",
                         help="writers to kill (default: %(default)s)")
    collect.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the order (default: %(default)s)")
    collect.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS",
                         help="start no run that would end later")
    collect.add_argument("--dry-run", action="store_true", help="print the estimate and run nothing")

    report = commands.add_parser(
        "report", formatter_class=argparse.RawDescriptionHelpFormatter, help="judge what was collected",
        description="Lets scripts/records gate and blame judge the collected runs, and compares what they say with "
                    "what was done.",
        epilog="""\
Rows of several folders are judged separately and counted together.
The file of a program that was cut short is named and left out, together with the other side of its round; a file
that is no record ends the report.
Exit codes: 0 written, 1 a file that cannot be used or written, 2 misuse, 3 nothing was collected,
130 interrupted.""")
    judged = report.add_mutually_exclusive_group(required=True)
    judged.add_argument("folders", nargs="*", default=[], type=Path, metavar="DIR", help="folders of `collect`")
    judged.add_argument("--again", type=Path, metavar="FILE.json",
                        help="instead of folders: figures that --json wrote, held against what is asked for now")
    report.add_argument("-o", "--output", type=Path, metavar="FILE.md", help="default: standard output")
    report.add_argument("--json", type=Path, metavar="FILE.json", help="the same figures for programs")
    report.add_argument("--because", metavar="TEXT",
                        help="why programs were collected again; needed where --json holds another collection that "
                             "missed a check, and shown on the page with what it missed")
    report.add_argument("--without-tool-times", action="store_true",
                        help="do not time scripts/records gate and scripts/records report on this machine")
    arguments = parser.parse_args(argv)
    unknown = [part for part in getattr(arguments, "parts", PARTS) if part not in PARTS]
    if unknown or not getattr(arguments, "parts", PARTS):
        collect.error(f"--only names '{','.join(unknown)}'; allowed: {', '.join(PARTS)}")
    return arguments


def run_collect(arguments):
    arguments.bin_dir = arguments.bin_dir.absolute()
    try:
        failed = believe_collect.collect(arguments, say, arguments.dry_run)
    except OutOfTime:
        say(f"stopped by --time-limit {arguments.time_limit:g}; run again with the same --out to continue")
        return 3
    except OSError as error:
        say(f"--out {arguments.out}: {error.strerror}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run again with the same --out to continue")
        return 130
    for failure in failed:
        say(failure)
    return 1 if failed else 0


def run_report(arguments):
    # Only this half needs NumPy and SciPy.
    from tokline import believe_page, believe_report
    check_outputs([("-o", arguments.output), ("--json", arguments.json)],
                  [*(("DIR", path) for path in arguments.folders),
                   *(("DIR", path) for path in believe_report.found_in(arguments.folders, "*"))])
    if arguments.again:
        checks, context = believe_report.judged_again(arguments.again)
    else:
        checks, context = believe_report.judge(arguments.folders, not arguments.without_tool_times, say)
    if all(check.met is None for check in checks):
        say(f"nothing was collected in {', '.join(str(folder) for folder in arguments.folders)}")
        return 3
    if arguments.json and not arguments.again:
        context["replaced"] = believe_report.replaced_by(context["machine"], arguments.json, arguments.because)
    write(arguments.output, believe_page.page(checks, context))
    if arguments.json:
        write(arguments.json, believe_report.as_json(checks, context))
    return 0


def write(path, text):
    """Writes a whole file or none; without a path, standard output."""
    if path is None:
        terminal.write_out(text)
    else:
        write_whole(path, text)


def main(argv):
    arguments = parse_arguments(argv)
    return run_collect(arguments) if arguments.command == "collect" else run_report(arguments)
