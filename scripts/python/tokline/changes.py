"""Says what changed since the last record: of each row its newest figure beside the one before it, losses first."""

import dataclasses

from tokline import changes, command, compare, records, terminal, verdicts
from tokline.report.wording import commit_label
from tokline.schema import LEAST_CHANGE, LEAST_CHANGE_WORDS
from tokline.terminal import count, figure, percent

SMALL_LOSS = 1 + LEAST_CHANGE  # losses from here on are listed, too, where the noise is as large

EPILOG = f"""\
examples:
  scripts/records changes old.jsonl results/h200
  git show v1:results/h200/kernels.jsonl > old.jsonl; scripts/records changes old.jsonl results/h200 --markdown

Of each row of NEW the newest figure is held against the newest one in OLD that an earlier run measured. Listed is what
differs by more than its noise (docs/gating.md, of one run a side), or became worse in another way, and behind it what
is slower by {LEAST_CHANGE_WORDS} and more within its noise, or by too little to count; also where a run was disturbed, which the
verdict says. A row may have been measured on another GPU of the same kind, or by another build: the table says so.

exit codes: 0 written, 1 records that cannot be used, 2 misuse, 130 interrupted
"""
HEADER = ["row", "before µs", "now µs", "change", "counts from", "commits", "GPU", "verdict"]
# Of one run a side, whether a difference that exceeds the noise also has enough samples does not keep it from the list.
BEYOND_NOISE = (verdicts.SLOWER, verdicts.FASTER, verdicts.UNVERIFIED, verdicts.UNDECIDED)


def newest(runs, than=None):
    """{key: (run, row)} of the suite's own rows; with `than`, of each of its rows the newest that an earlier run has."""
    found = {}
    for run in sorted(runs, key=lambda run: run.time):
        for row in run.rows if run.injected is None else ():
            key = records.key(row).anywhere()
            if row["library"] or row["interrupted"] or than is not None and not (
                    key in than and run.time < than[key][0].time and run.run_id != than[key][0].run_id):
                continue
            found[key] = (run, row)
    return found


def verdicts_on(before, now):
    """The verdict on each row that both have, as scripts/records compare makes it."""
    sides = [[dataclasses.replace(run, rows=[row]) for key in before for run, row in (side[key],)]
             for side in (before, now)]
    return verdicts.compare(*sides, across=True).rows


def lines(judged, before, now):
    """The cells of a row's line."""
    for row in judged:
        (run_a, a), (run_b, b) = before[row.key], now[row.key]
        same = run_a.gpu.get("uuid_hash") == run_b.gpu.get("uuid_hash")
        beside_time = row.regressions[:-1] if row.verdict == verdicts.SLOWER else row.regressions
        words = "; ".join([row.verdict, *beside_time])
        yield [str(row.key), figure(row.a_us), figure(row.b_us), "" if row.ratio is None else percent(row.ratio),
               "" if row.needed is None else f"{100 * row.needed:.1f} %",
               f"{commit_label(run_a.fingerprint)} -> {commit_label(run_b.fingerprint)}",
               "the same" if same else "another", words]


def is_beyond_noise(row):
    return row.verdict in BEYOND_NOISE or row.verdict == verdicts.DISTURBED and row.exceeds


def is_small_loss(row):
    return row.verdict in (verdicts.SAME, verdicts.DISTURBED) and not is_beyond_noise(row) and row.ratio >= SMALL_LOSS


def is_loss(row):
    return bool(row.regressions) or row.ratio > 1


def within(small, verdict):
    number = sum(row.verdict == verdict for row in small)
    return f" ({number:,} of them slower by {LEAST_CHANGE_WORDS} or more, listed last)" if number else ""


def sentence(judged, listed, small, now):
    compared = sum(row.verdict != verdicts.NOT_COMPARABLE for row in judged)  # the others were refused before
    decided = [row for row in listed if row.verdict in (verdicts.SLOWER, verdicts.FASTER) or row.regressions]
    open_rows = [row for row in listed if row not in decided]
    losses = sum(map(is_loss, decided))
    disturbed = sum(row.verdict == verdicts.DISTURBED and row not in listed for row in judged)
    unknown = (f"; {disturbed:,} show no difference, but rest on disturbed runs{within(small, verdicts.DISTURBED)}"
               if disturbed else "")
    unchanged = compared - len(listed) - disturbed
    slowest = next((row for row in listed if row.ratio is not None and row.ratio > 1 and is_beyond_noise(row)), None)
    worst = f" The largest loss is {slowest.key} ({percent(slowest.ratio)}, {slowest.verdict})." if slowest else ""
    return (f"Of {count(compared, 'row')} that were measured before, {losses:,} became slower or otherwise worse and "
            f"{len(decided) - losses:,} faster; {len(open_rows):,} differ by more than the noise, but undecided "
            f"({sum(map(is_loss, open_rows)):,} slower); {unchanged:,} did not change{within(small, verdicts.SAME)}{unknown}.{worst} "
            f"{count(len(now) - compared, 'row')} had no earlier figure.")


def main(arguments):
    parser = command.parser(changes.__doc__, EPILOG)
    parser.add_argument("old", metavar="OLD", help="records (.jsonl) or a folder of them")
    parser.add_argument("new", metavar="NEW", nargs="+", help="the same, of what stands now")
    parser.add_argument("--markdown", action="store_true", help="Markdown instead of plain text")
    options = parser.parse_args(arguments)
    now = newest(records.read(options.new, terminal.say))
    before = newest(records.read(options.old, terminal.say), now)
    judged = verdicts_on(before, now)
    listed = sorted((row for row in judged if is_beyond_noise(row) or row.regressions),
                    key=lambda row: (not is_loss(row), -abs(row.effect), row.key))
    small = sorted((row for row in judged if is_small_loss(row) and not row.regressions),
                   key=lambda row: (-row.ratio, row.key))
    shown = list(lines(listed + small, before, now))
    words = sentence(judged, listed, small, now)
    output = [terminal.wrapped(words) if options.markdown else words, ""]
    if shown and options.markdown:
        output += terminal.markdown_table(HEADER, shown, range(1, 5))
    elif shown:
        colours = [[None] * 7 + ["red" if row.regressions else compare.COLOURS[row.verdict]] for row in listed + small]
        output += terminal.text_table(HEADER, shown, range(1, 5), colours, terminal.colour_wanted())
    terminal.write_out("\n".join(output))
    return 0
