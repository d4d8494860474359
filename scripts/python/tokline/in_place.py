"""Holds the time of each op in place against its share of the profile, from records of `tokline bench --in-place on`."""

import os
from dataclasses import dataclass

from tokline import command, in_place, records, terminal
from tokline.standing import put_between_marks
from tokline.stop import Stop

ALLOWED = 0.10  # by how much both may differ

EPILOG = """\
examples:
  scripts/records in_place results/h200/in_place.jsonl
  scripts/records in_place results/h200/in_place.jsonl --into docs/measuring.md    between its lines <!-- in_place -->
                                                                            and <!-- /in_place -->

exit codes: 0 written, 1 records that cannot be used or a file that cannot be written, 2 misuse, 130 interrupted
"""

HEADER = ["model", "batch", "op", "launches", "in place, µs a step", "of the step", "in place under a trace",
          "of which stamps", "profile, µs a step", "of the traced step", "in place / profile"]


@dataclass(frozen=True)
class TimedOp:
    """An op that was timed in place, of a row with a profile."""
    row: dict
    op: dict

    @property
    def share(self):
        return self.op["in_place_us"] / self.row["profile"]["step_us"]

    @property
    def traced_share(self):
        """Of the traced step: tracing makes kernels longer, which `tracing_us`, or in older records
        `unexplained_us`, takes back."""
        profile = self.row["profile"]
        return self.op["us"] / (profile["step_us"] - profile.get("tracing_us", 0) - profile["unexplained_us"])

    @property
    def share_ratio(self):
        return self.share / self.traced_share

    @property
    def ratio(self):
        """Of both times under a trace, or in records without the one in place, of both shares."""
        if "in_place_traced_us" not in self.op:
            return self.share_ratio
        return (self.op["in_place_traced_us"] - self.op.get("in_place_stamps_us", 0)) / self.op["us"]

    def cells(self):
        return [self.row["model"], str(self.row["batch"]), f"`{self.op['op']}`", str(self.op["launches"]),
                terminal.figure(self.op["in_place_us"]), f"{100 * self.share:.1f} %",
                terminal.figure(self.op.get("in_place_traced_us")) or "-",
                f"{self.op['in_place_stamps_us']:+.1f}" if "in_place_stamps_us" in self.op else "-",
                terminal.figure(self.op["us"]), f"{100 * self.traced_share:.1f} %", f"{self.ratio:.2f}"]


def timed_ops(runs):
    """The ops of the newest row of each measurement."""
    newest = {}
    for run in sorted(runs, key=lambda run: run.time):
        for row in run.rows:
            if row["kernel"] == records.DECODER and row["status"] == "ok" and row["profile"]:
                if any("in_place_us" in op for op in row["profile"]["ops"]):
                    newest[records.key(row)] = row
    return [TimedOp(row, op) for row in newest.values() for op in row["profile"]["ops"]
            if "in_place_us" in op and op["us"] > 0]


def differing(ops, ratio):
    """The ops of which `ratio` is too far from 1, the furthest first."""
    return sorted((op for op in ops if abs(ratio(op) - 1) > ALLOWED), key=lambda op: -abs(ratio(op) - 1))


def sentence(ops):
    apart = differing(ops, lambda op: op.ratio)
    what = ("share of the step" if any("in_place_traced_us" not in op.op for op in ops)
            else "time in place under the trace, less the stamps' part,")
    agree = len(ops) - len(apart)
    words = (f"Of {terminal.count(len(ops), 'op')}, {agree} {'has' if agree == 1 else 'have'} a {what} within "
             f"{100 * ALLOWED:.0f} % of what the profile says")
    if not apart:
        return words + "."
    worst = apart[0]
    return (f"{words}. The worst is `{worst.op['op']}` at batch {worst.row['batch']} of {worst.row['model']}, "
            f"{worst.ratio:.2f} times.")


def by_shares(ops):
    """What the shares say as they are, where `ratio` is of times under one trace; "" where it is of shares itself."""
    if all("in_place_traced_us" not in op.op for op in ops):
        return ""
    apart = differing(ops, lambda op: op.share_ratio)
    words = (f" Shares of the two steps as they are, of one without a trace and of one with it, are within "
             f"{100 * ALLOWED:.0f} % for {len(ops) - len(apart)} of them")
    named = [f"`{op.op['op']}` at batch {op.row['batch']}, {100 * op.share:.1f} % and {100 * op.traced_share:.1f} %"
             for op in apart]
    return words + ("; not for " + "; ".join(named) if named else "") + "."


def sums(ops):
    """What the ops add up to: of a step without a trace, the times in place should be all and those of a profile more."""
    rows = list({id(op.row): op.row for op in ops}.values())
    several = len({row["model"] for row in rows}) > 1

    def percents(of_op):
        found = []
        for row in rows:
            profile = row["profile"]
            parts = [of_op(op) for op in profile["ops"]] + [profile["device_gap_us"], profile["host_gap_us"]]
            found.append(f"{100 * sum(parts) / profile['step_us']:.1f} % at batch {row['batch']}"
                         + f" of {row['model']}" * several)
        return ", ".join(found)

    return ("Of the step without a trace the ops in place and the gaps add up to "
            f"{percents(lambda op: op.get('in_place_us', op['us']))}; those of the profile to "
            f"{percents(lambda op: op['us'])}.")


def markdown(ops):
    return "\n".join([terminal.wrapped(f"{sentence(ops)}{by_shares(ops)}\n\n{sums(ops)}"), "",
                      *terminal.markdown_table(HEADER, [op.cells() for op in ops], {1, 3, 4, 5, 6, 7, 8, 9, 10})])


def main(arguments):
    parser = command.parser(in_place.__doc__, EPILOG)
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="record files or folders")
    parser.add_argument("--into", metavar="FILE", help="a Markdown file to write it into, between two marks")
    options = parser.parse_args(arguments)
    if options.into and not os.path.isfile(options.into):
        raise Stop(f"--into: {options.into} is no file")
    ops = timed_ops(records.read(options.results, terminal.say))
    if not ops:
        raise Stop("no row has ops that were timed in place; tokline bench --in-place on --record FILE times them")
    text = markdown(ops)
    if options.into:
        put_between_marks(options.into, "in_place", text)
    else:
        terminal.write_out(text)
    return 0
