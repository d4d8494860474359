"""Says how far the shapes of a sweep are from their floors, per kernel, and names the worst."""

import math
from dataclasses import dataclass

from tokline import command, records, standing, sweep, terminal
from tokline.report.evidence import Entry, Evidence
from tokline.report.wording import microseconds
from tokline.statistics import geometric_mean
from tokline.stop import Stop

WORST = 10
MANY_BYTES = 1e6  # a launch that moves fewer is mostly its start

EPILOG = """\
examples:
  scripts/bench --sweep 200 --seed 1 --out build/sweep && scripts/records sweep build/sweep
  scripts/records sweep build/sweep peers.jsonl       and how the same shapes do beside peers
  scripts/records sweep build/sweep --launch-us 1.5   a floor with another launch than the measured one

The floor of a shape is a launch and the time that its bytes or operations take at the measured rate; the launch is
an empty kernel in a graph, measured in the same run. Of rows of the same shape the fastest of ours counts. Rows of
variants that the kernel would not take by itself only show how good its choice is.

exit codes: 0 printed, 1 no row of a sweep or a file that cannot be used, 2 misuse, 130 interrupted
"""


@dataclass(frozen=True)
class Point:
    """A shape's fastest row of ours, and its floor with a launch."""
    entry: Entry
    floor_us: float

    @property
    def ratio(self):
        return self.entry.median_us / self.floor_us

    @property
    def name(self):
        return f"{self.entry.name}, {self.entry.row['dtype']}"

    @property
    def is_matmul(self):
        return self.entry.row["limit"] == "matmul"


def points(evidence, launch_us=None):
    """{kernel: [Point]} of the shapes with a floor, worst first."""
    best = {}
    for entry in evidence.ours():
        launch = launch_us if launch_us is not None else (entry.run.header["peaks"] or {}).get("graph_node_us")
        if not entry.stands or not entry.row.get("limit") or not launch:
            continue
        known = best.get(entry.work)
        if known is None or entry.median_us < known.entry.median_us:
            best[entry.work] = Point(entry, launch + entry.floor_us)
    found = {}
    for point in sorted(best.values(), key=lambda point: -point.ratio):
        found.setdefault(point.entry.kernel, []).append(point)
    return {kernel: found[kernel] for kernel in evidence.kernels if kernel in found}


@dataclass(frozen=True)
class Choice:
    """The variant that a kernel takes by itself for a shape, and the fastest one launched in the same way."""
    taken: Entry
    fastest: Entry

    @property
    def ratio(self):
        return self.taken.median_us / self.fastest.median_us


def choices(evidence):
    """{kernel: [Choice]} where there were several variants to choose from, worst first."""
    variants = {}
    for entry in evidence.ours():
        if entry.ok and "chosen" in entry.row:
            variants.setdefault((entry.work, entry.row["chain"]), []).append(entry)
    found = {}
    for rows in variants.values():
        taken = [entry for entry in rows if entry.stands]
        if taken and len(rows) > 1:
            found.setdefault(taken[0].kernel, []).append(
                Choice(taken[0], min(rows, key=lambda entry: entry.median_us)))
    return {kernel: sorted(found[kernel], key=lambda choice: -choice.ratio) for kernel in evidence.kernels
            if kernel in found}


CHOICE_HEADER = ["kernel", "shapes", "mean", "over 2 %", "worst", "taken", "time", "fastest", "its time", "shape"]


def choice_lines(found):
    """The cells of a line per kernel: how much longer than the fastest variant the one takes that is chosen."""
    for kernel, of_kernel in found.items():
        worst = of_kernel[0]
        yield [kernel, str(len(of_kernel)), f"{geometric_mean([choice.ratio for choice in of_kernel]):.3f}",
               str(sum(choice.ratio > standing.MARGIN for choice in of_kernel)), f"{worst.ratio:.2f}",
               worst.taken.row["implementation"], microseconds(worst.taken.median_us),
               worst.fastest.row["implementation"], microseconds(worst.fastest.median_us), worst.taken.name]


def quantile(ordered, share):
    """The smallest of ascending values that at least this share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


HEADER = ["kernel", "shapes", "median", "p90", "worst", "above 1 MB", "their median", "their worst"]


def lines(found):
    """The cells of a line per kernel: time over floor, of all shapes and of those that move much."""
    for kernel, of_kernel in found.items():
        many = sorted(point.ratio for point in of_kernel if point.entry.bytes > MANY_BYTES)
        ratios = sorted(point.ratio for point in of_kernel)
        cells = [quantile(ratios, 0.5), quantile(ratios, 0.9), ratios[-1]]
        yield [kernel, str(len(ratios)), *(f"{cell:.2f}" for cell in cells), str(len(many)),
               *(f"{cell:.2f}" for cell in ((quantile(many, 0.5), many[-1]) if many else ()))] + [""] * (0 if many else 2)


def worst(found):
    return sorted((point for of_kernel in found.values() for point in of_kernel), key=lambda point: -point.ratio)[:WORST]


def worst_lines(found):
    for point in worst(found):
        yield [point.entry.kernel, point.entry.how, microseconds(point.entry.median_us), microseconds(point.floor_us),
               f"{point.ratio:.2f}", point.name]


WORST_HEADER = ["kernel", "by", "time", "floor", "time / floor", "shape"]


def summary(evidence, launch_us=None):
    """The lines of the summary."""
    found = points(evidence, launch_us)
    rows = evidence.ours()
    verified = {entry.work for entry in rows if entry.ok}
    refused = [entry for entry in rows if not entry.ok]
    yield f"{terminal.count(len(verified), 'drawn shape')} verified, {terminal.count(len(refused), 'row')} refused"
    for entry in refused:
        yield f"  refused: {entry.kernel} {entry.name}, {entry.how}: {entry.row['reason']}"
    if not found:
        yield "No floor is known without a GPU's measured peaks: times are the references'."
        return
    yield ""
    yield "time / floor"
    yield from ("  " + line for line in terminal.text_table(HEADER, list(lines(found)), right=range(1, len(HEADER))))
    yield ""
    yield f"the worst {len(worst(found))}"
    yield from ("  " + line for line in terminal.text_table(WORST_HEADER, list(worst_lines(found)), right={2, 3, 4}))
    if chosen := choices(evidence):
        yield ""
        yield "the variant that a kernel takes by itself / the fastest one"
        yield from ("  " + line for line in terminal.text_table(CHOICE_HEADER, list(choice_lines(chosen)),
                                                                right={1, 2, 3, 4, 6, 8}))
    for heading, words in standing.drawn(evidence):
        yield ""
        yield f"{heading}: {words}"


def main(arguments):
    parser = command.parser(sweep.__doc__, EPILOG)
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="record files or folders")
    parser.add_argument("--launch-us", type=command.positive_number, metavar="US",
                        help="the launch of the floor (default: the measured node of a graph)")
    options = parser.parse_args(arguments)
    swept = records.parted(records.read(options.results, terminal.say))[1]
    if not swept:
        raise Stop(f"no row of a sweep in {' '.join(options.results)}; scripts/bench --sweep N --seed S makes some")
    terminal.write_out("\n".join(summary(Evidence(swept), options.launch_us)))
    return 0
