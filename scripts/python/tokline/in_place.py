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

HEADER = ["model", "batch", "op", "launches", "in place, µs a step", "of the untraced step", "in place under a trace",
          "of which stamps", "of the traced step", "profile, µs a step", "of the traced step", "in place / profile"]


@dataclass(frozen=True)
class TimedOp:
    """An op that was timed in place, of a row with a profile."""
    row: dict
    op: dict

    @property
    def traced_step_us(self):
        """Tracing makes kernels longer, which `tracing_us`, or in older records `unexplained_us`, takes back."""
        profile = self.row["profile"]
        return profile["step_us"] - profile.get("tracing_us", 0) - profile["unexplained_us"]

    @property
    def profile_share(self):
        return self.op["us"] / self.traced_step_us

    @property
    def untraced_share(self):
        return self.op["in_place_us"] / self.row["profile"]["step_us"]

    @property
    def untraced_ratio(self):
        """Of shares of two steps, of which only one was traced."""
        return self.untraced_share / self.profile_share

    @property
    def traced_share(self):
        """The time in place under the trace, less the stamps' part, of the step that the profile is of; None in records
        without it."""
        if "in_place_traced_us" not in self.op:
            return None
        return (self.op["in_place_traced_us"] - self.op.get("in_place_stamps_us", 0)) / self.traced_step_us

    @property
    def ratio(self):
        """Of both shares of the traced step, or in records without the one in place, of what stands for it."""
        return self.untraced_ratio if self.traced_share is None else self.traced_share / self.profile_share

    def cells(self):
        return [self.row["model"], str(self.row["batch"]), f"`{self.op['op']}`", str(self.op["launches"]),
                terminal.figure(self.op["in_place_us"]), f"{100 * self.untraced_share:.1f} %",
                terminal.figure(self.op.get("in_place_traced_us")) or "-",
                f"{self.op['in_place_stamps_us']:+.1f}" if "in_place_stamps_us" in self.op else "-",
                "-" if self.traced_share is None else f"{100 * self.traced_share:.1f} %",
                terminal.figure(self.op["us"]), f"{100 * self.profile_share:.1f} %", f"{self.ratio:.2f}"]


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
    what = ("step" if any(op.traced_share is None for op in ops)
            else "traced step, by their time in place under the trace less the stamps' part,")
    agree = len(ops) - len(apart)
    words = (f"Of {terminal.count(len(ops), 'op')}, {agree} {'has' if agree == 1 else 'have'} a share of the {what} within "
             f"{100 * ALLOWED:.0f} % of what the profile says")
    if not apart:
        return words + "."
    worst = apart[0]
    return (f"{words}. The worst is `{worst.op['op']}` at batch {worst.row['batch']} of {worst.row['model']}, "
            f"{worst.ratio:.2f} times.")


def without_a_trace(ops):
    """How many times without a trace agree, as shares of a step without one; "" where `ratio` is of these itself."""
    if all(op.traced_share is None for op in ops):
        return ""
    apart = differing(ops, lambda op: op.untraced_ratio)
    words = (f" Without a trace, of a step without one, the shares in place are within {100 * ALLOWED:.0f} % of the "
             f"profile's for {len(ops) - len(apart)} of them")
    named = [f"`{op.op['op']}` at batch {op.row['batch']}, {100 * op.untraced_share:.1f} % beside "
             f"{100 * op.profile_share:.1f} %" for op in apart]
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
    return "\n".join([terminal.wrapped(f"{sentence(ops)}{without_a_trace(ops)}\n\n{sums(ops)}"), "",
                      *terminal.markdown_table(HEADER, [op.cells() for op in ops], {1, *range(3, len(HEADER))})])


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
