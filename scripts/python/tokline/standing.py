"""Says how Tokline stands beside other libraries: on how many shapes one of them is faster, by how much, and where."""

import math
import os
import re
from dataclasses import dataclass

from tokline import command, records, standing, terminal
from tokline.files import write_whole
from tokline.report.evidence import Entry, Evidence
from tokline.report.wording import microseconds
from tokline.stop import Stop

MARGIN = 1.02  # what runs of one commit differ by; a peer that is faster by less is not called faster

EPILOG = """\
examples:
  scripts/records standing results/h200
  scripts/records standing results/h200 --into README.md    between its lines <!-- standing --> and <!-- /standing -->

Of rows of the same work the fastest of ours is held against the fastest peer. Peers that were measured on another
GPU have a table of their own.

exit codes: 0 written, 1 records that cannot be used or a file that cannot be written, 2 misuse, 130 interrupted
"""


@dataclass(frozen=True)
class Pair:
    """The fastest row of ours and the fastest peer on the same work."""
    ours: Entry
    peer: Entry

    @property
    def ratio(self):
        return self.ours.median_us / self.peer.median_us

    @property
    def same_gpu(self):
        return self.ours.run.gpu.get("uuid_hash") == self.peer.run.gpu.get("uuid_hash")


def pairs(evidence):
    """Worst first."""
    best = {}
    for entry in evidence.ours():
        if entry.ok and evidence.peer(entry):
            known = best.get(entry.work)
            if known is None or entry.median_us < known.median_us:
                best[entry.work] = entry
    return sorted((Pair(entry, evidence.peer(entry)) for entry in best.values()), key=lambda pair: -pair.ratio)


def slower(found):
    return [pair for pair in found if pair.ratio > MARGIN]


def withheld(evidence):
    """A sentence about the shapes of which no ratio is stated, or ""."""
    found = evidence.withheld.values()
    if not found:
        return ""
    where = "; ".join(f"{entry.kernel} {entry.name}: {entry.peer}" for entry in found)
    return (f"On {terminal.count(len(found), 'more shape')} no ratio is stated, since a peer's row was refused as faster "
            f"than the limit, and the limit may be wrong: {where}.")


def sentence(found):
    behind = slower(found)
    if not behind:
        return f"No peer is faster by more than 2 % on any of {terminal.count(len(found), 'shape')}."
    worst = behind[0]
    return (f"A peer is faster by more than 2 % on {len(behind)} of {terminal.count(len(found), 'shape')}; at worst "
            f"{worst.ratio:.2f} times, {worst.peer.peer} on {worst.ours.kernel} {worst.ours.name}.")


def table(found):
    """A line per kernel, of which the worst shape is named."""
    lines = ["| kernel | shapes | a peer is faster on | the worst shape | ours | best peer | limit | ours / peer, mean |",
             "|---|---|---|---|---|---|---|---|"]
    by_kernel = {}
    for pair in found:
        by_kernel.setdefault(pair.ours.kernel, []).append(pair)
    for kernel, of_kernel in by_kernel.items():
        worst = of_kernel[0]
        mean = math.exp(sum(math.log(pair.ratio) for pair in of_kernel) / len(of_kernel))
        lines.append(f"| `{kernel}` | {len(of_kernel)} | {len(slower(of_kernel))} | {worst.ours.name} "
                     f"| {microseconds(worst.ours.median_us)} | {microseconds(worst.peer.median_us)}, {worst.peer.peer} "
                     f"| {microseconds(worst.ours.floor_us)} | {mean:.2f} |")
    return "\n".join(lines)


def markdown(evidence):
    """What a page about the records begins with: losses first."""
    found = pairs(evidence)
    parts = [] if found else ["No row of these records stands beside a peer's."]
    for same, where in ((True, f"Measured on one {evidence.device}."),
                        (False, "Beside peers that were measured on another GPU of the same kind:")):
        group = [pair for pair in found if pair.same_gpu == same]
        if group:
            parts += [f"{sentence(group)} {where}" if same else f"{where} {sentence(group)}", table(group)]
    return "\n\n".join([*parts, *filter(None, [withheld(evidence)])])


def put_into(path, text):
    """Replaces what stands between the two marks."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    marked, number = re.subn(r"(<!-- standing -->\n).*?(<!-- /standing -->)",
                             lambda found: f"{found[1]}{text}\n{found[2]}", page, flags=re.DOTALL)
    if number != 1:
        raise Stop(f"{path} has {terminal.count(number, 'pair')} of the lines <!-- standing --> and <!-- /standing -->; "
                   "it must have one")
    write_whole(path, marked)


def main(arguments):
    parser = command.parser(standing.__doc__, EPILOG)
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="record files or folders")
    parser.add_argument("--into", metavar="FILE", help="a Markdown file to write it into, between two marks")
    options = parser.parse_args(arguments)
    if options.into and not os.path.isfile(options.into):
        raise Stop(f"--into: {options.into} is no file")
    text = markdown(Evidence(records.read(options.results, terminal.say)))
    if options.into:
        put_into(options.into, text)
    else:
        print(text)
    return 0
