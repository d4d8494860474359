"""scripts/records compare: a table of what differs between two sets of records."""

import json

from tokline import command, records, terminal, verdicts
from tokline.stop import Stop
from tokline.terminal import count, figure, percent

COLOURS = {verdicts.SLOWER: "red", verdicts.UNVERIFIED: "red", verdicts.MISSING: "red", verdicts.FASTER: "green",
           verdicts.DISTURBED: "yellow", verdicts.UNDECIDED: "yellow", verdicts.NOT_COMPARABLE: "yellow",
           verdicts.NEW: "blue", verdicts.SAME: None}
HEADER = ["row", "A µs", "B µs", "B / A", "95 % interval", "change", "counts from", "verdict"]
_RIGHT = (1, 2, 3, 4, 5, 6)


def add_common_arguments(parser):
    """What scripts/records compare and scripts/records gate have in common."""
    parser.add_argument(
        "--format", choices=["text", "markdown", "json"], default="text", help="of the result. Default: text")
    parser.add_argument("--only", metavar="REGEX", type=command.regular_expression,
                        help="only rows whose words match, as 'linear' or 'b32.*dependent'")
    parser.add_argument("--all", action="store_true", help="also list the rows that are the same")
    parser.add_argument("--across", action="store_true", help="compare even if fingerprints differ, and say so")
    parser.add_argument("--across-builds", action="store_true",
                        help="the same for compilers and flags only, for two builds that were run in turn")
    parser.add_argument("--noise", metavar="FILE",
                        help="records of an A/A experiment, for the noise between runs (scripts/records gate --aa)")


def table(comparison, with_same):
    """The cells of each row, and their colours."""
    lines, colours = [], []
    for row in comparison.rows:
        worse = row.regressions if row.verdict in _MAY_BE_WORSE else []
        if row.verdict == verdicts.SAME and not with_same and not worse:
            continue
        why = ": " + "; ".join(row.notes) if row.verdict in _EXPLAINED else ""
        words = "; ".join([row.verdict + why, *worse])
        if row.verdict == verdicts.UNVERIFIED or row.verdict == verdicts.MISSING and row.rounds:
            words = f"{row.verdict}: {row.regressions[0]}"
        ratio = interval = change = needed = ""
        if row.ratio is not None:
            ratio, change = f"{row.ratio:.3f}", percent(row.ratio)
            interval = f"{row.interval[0]:.3f} to {row.interval[1]:.3f}"
            needed = f"{100 * row.needed:.1f} %"
        lines.append([str(row.key), figure(row.a_us), figure(row.b_us), ratio, interval, change, needed, words])
        colours.append([None] * 7 + ["red" if worse else COLOURS[row.verdict]])
    return lines, colours


_EXPLAINED = (verdicts.DISTURBED, verdicts.UNDECIDED, verdicts.NOT_COMPARABLE)
# The verdicts on time beside which it is said that something else became worse.
_MAY_BE_WORSE = (verdicts.SAME, verdicts.FASTER, verdicts.DISTURBED, verdicts.UNDECIDED)


def remarks(comparison):
    """What must be known besides the table, one sentence each."""
    if comparison.differences:
        lead = "compared across different fingerprints" if comparison.across else "the fingerprints differ"
        yield from (f"{lead}: {words}" for words in comparison.differences)
    yield from comparison.notes
    yield from comparison.faults
    yield from (f"nothing of {kernel} is left in B" for kernel in comparison.vanished)
    left_out = [row for row in comparison.rows if row.verdict not in _EXPLAINED and row.notes]
    yield from (f"{row.key}: {note}" for row in left_out[:10] for note in row.notes)
    if len(left_out) > 10:
        yield f"and such notes on {len(left_out) - 10} more rows; --format json has them all"


def render(comparison, form, with_same, closing=()):
    """The whole result in one of the forms; `closing` are sentences below the summary."""
    if form == "json":
        return json.dumps(comparison.to_json(), indent=1)
    lines, colours = ([], []) if comparison.refused else table(comparison, with_same)
    output = []
    if lines and form == "markdown":
        output += [*terminal.markdown_table(HEADER, lines, _RIGHT), ""]
    elif lines:
        output += [*terminal.text_table(HEADER, lines, _RIGHT, colours, terminal.colour_wanted()), ""]
    bullet = "- " if form == "markdown" else ""
    said = list(remarks(comparison))
    output += [bullet + words for words in said]
    if said and form == "markdown":
        output.append("")
    if not comparison.refused:
        output.append(comparison.summary())
        hidden = len(comparison.rows) - len(lines)
        if hidden:
            verb = "is" if hidden == 1 else "are"
            output.append(f"{count(hidden, 'row')} that {verb} the same {verb} not listed (--all).")
    return "\n".join([*output, *closing])


def parse_arguments(arguments):
    parser = command.parser(
        "Compares two sets of records: ratio, 95 % interval and verdict of each row, slowest first.\n"
        "docs/gating.md defines the verdicts.",
        "examples:\n"
        "  scripts/records compare main.jsonl pr.jsonl\n"
        "  scripts/records compare --only 'chunk_decode .*dependent' --all main.jsonl pr.jsonl\n"
        "  scripts/records compare --format markdown results/before results/after > comment.md\n\n"
        "exit codes: 0 compared, 2 misuse, a file that cannot be used or written, or an error of the command\n"
        "itself, 3 not comparable (the fingerprints differ, or no row is in both), 130 interrupted.\n"
        "scripts/records gate fails if something is slower.")
    parser.add_argument("a", metavar="A", help="records (.jsonl) of the baseline, or a folder of them")
    parser.add_argument("b", metavar="B", help="the same for the candidate")
    add_common_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments):
    options = parse_arguments(arguments)
    comparison = compare_files(options.a, options.b, options)
    text = render(comparison, options.format, options.all)
    if text:
        terminal.write_out(text)
    if comparison.refused:
        raise Stop(refusal(comparison), 3)
    return 0


def refusal(comparison):
    """Why nothing is compared, and what to do."""
    hint = "; --across compares them all the same" if comparison.differences and not comparison.across else ""
    return comparison.refused + hint


def compare_files(a, b, options):
    """The Comparison of two paths, with the options of add_common_arguments()."""
    noise = verdicts.Noise(records.read(options.noise, terminal.say), options.noise) if options.noise else None
    return verdicts.compare(records.read(a, terminal.say), records.read(b, terminal.say), noise=noise,
                            only=options.only, across=options.across, builds_differ=options.across_builds)
