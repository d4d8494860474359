"""Says how Tokline stands beside other libraries: on how many shapes one of them is faster, by how much, and where."""

import os
import re
from dataclasses import dataclass

from tokline import command, records, standing, terminal
from tokline.files import write_whole
from tokline.report.evidence import Entry, Evidence, measured_alike
from tokline.report.wording import commit_label, microseconds
from tokline.schema import LEAST_CHANGE, LEAST_CHANGE_WORDS
from tokline.statistics import geometric_mean
from tokline.stop import Stop

# What runs of one commit differ by. A peer that is faster by less is not called faster.
MARGIN = 1 + LEAST_CHANGE

EPILOG = """\
examples:
  scripts/records standing results/h200
  scripts/records standing results/h200 --into README.md    between its lines <!-- standing --> and <!-- /standing -->

Of rows of the same work the fastest of ours is held against the fastest peer; rows of variants that a kernel would
not take by itself do not count. Peers that were measured on another GPU, or of which one rested between its samples
and ours did not, are told apart. Only the larger of these groups has a table; `scripts/records table` prints every
row. A limit that a row of ours is faster than is marked as wrong.

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


def pairs(evidence, alike):
    """Of each work that has a peer, measured alike or not, ours and that peer; worst first."""
    best = {}
    for entry in evidence.ours():
        if entry.stands and evidence.peer(entry, alike):
            known = best.get(entry.work)
            if known is None or entry.median_us < known.median_us:
                best[entry.work] = entry
    return sorted((Pair(entry, evidence.peer(entry, alike)) for entry in best.values()
                   if evidence.peer(entry, alike)), key=lambda pair: -pair.ratio)


def slower(found):
    return [pair for pair in found if pair.ratio > MARGIN]


def withheld(evidence):
    """A sentence about the shapes of which no ratio is stated, or ""."""
    found = evidence.withheld.values()
    if not found:
        return ""
    def ours(work):
        times = [entry.median_us for entry in evidence.ours() if entry.stands and entry.work == work]
        return microseconds(min(times)) if times else "not measured"

    where = "; ".join(f"{entry.kernel} {entry.name}: {entry.peer} ({entry.row['reason']}), ours {ours(entry.work)}"
                      for entry in found)
    return (f"On {terminal.count(len(found), 'more shape')} no ratio is stated, since a peer's row was refused as faster "
            f"than the limit, and the limit may be wrong: {where}.")


def sentence(found):
    behind = slower(found)
    commits = sorted({commit_label(pair.ours.run.fingerprint) for pair in found})
    shapes = f"{terminal.count(len(found), 'shape')} (ours of {', '.join(commits)})"
    if not behind:
        return f"No peer is faster by more than {LEAST_CHANGE_WORDS} on any of {shapes}."
    worst = behind[0]
    return (f"A peer is faster by more than {LEAST_CHANGE_WORDS} on {len(behind)} of {shapes}; "
            f"at worst {worst.ratio:.2f} times, {worst.peer.peer} on {worst.ours.kernel} {worst.ours.name}.")


def limit(entry):
    """The floor in words. One that the row is faster than was measured wrong."""
    if not entry.floor_us:
        return "-"
    return microseconds(entry.floor_us) + (", wrong" if entry.median_us < entry.floor_us else "")


HEADER = ["kernel", "shapes", "a peer is faster on", "the worst shape", "ours", "best peer", "limit",
          "ours / peer, mean"]


def lines(found):
    """The cells of a line per kernel, of which the worst shape is named."""
    by_kernel = {}
    for pair in found:
        by_kernel.setdefault(pair.ours.kernel, []).append(pair)
    for kernel, of_kernel in by_kernel.items():
        worst = of_kernel[0]
        mean = geometric_mean([pair.ratio for pair in of_kernel])
        yield [kernel, str(len(of_kernel)), str(len(slower(of_kernel))), worst.ours.name,
               microseconds(worst.ours.median_us), f"{microseconds(worst.peer.median_us)}, {worst.peer.peer}",
               limit(worst.ours), f"{mean:.2f}"]


def groups(evidence):
    """[(heading, sentence, pairs)]: peers that were measured as ours were, and the others. Empty where there is no
    peer."""
    headings = {True: f"Beside peers of the same {evidence.device}",
                False: "Beside peers of another GPU of the same kind, or with other pauses between samples"}
    found = [(headings[alike], pairs(evidence, alike)) for alike in (True, False)]
    return [(heading, sentence(of_group), of_group) for heading, of_group in found if of_group]


def with_mean(words, found):
    """The sentence of a group that has no table."""
    mean = geometric_mean([pair.ratio for pair in found])
    return f"{words} In the geometric mean, our kernels take {mean:.2f} times as long as the best peer."


def drawn(evidence):
    """[(heading, sentence)] of the same groups, where the shapes are drawn ones."""
    return [(heading, with_mean(words, found)) for heading, words, found in groups(evidence)]


def beside_workload(evidence, peer):
    """Of the newest rows of ours on a peer's requests the fastest, of the same GPU where there is one, though a newer one
    of another GPU stands in the other tables; or None."""
    if peer.kernel != records.WORKLOAD:
        return None
    newest = {}
    for entry in sorted([*evidence.entries, *evidence.replaced], key=lambda entry: entry.run.time):
        if entry.ok and not entry.peer and not entry.run.injected and requests(entry) == requests(peer):
            newest[measured_alike(entry, peer), records.key(entry.row)] = entry
    alike = max((of_same_gpu for of_same_gpu, _ in newest), default=False)
    return min((entry for (of_same_gpu, _), entry in newest.items() if of_same_gpu == alike),
               key=lambda entry: entry.median_us, default=None)


def requests(entry):
    """What two rows of one workload have in common, whatever their settings; None for other rows."""
    row = entry.row
    return (row["model"], row["dtype"], row["device"], row["shape"]["hash"]) if entry.kernel == records.WORKLOAD else None


def workloads(evidence):
    """A sentence for each workload that another library ran, too."""
    for peer in evidence.entries:
        ours = beside_workload(evidence, peer) if peer.ok and peer.peer else None
        if ours:
            rates = [entry.row["output_tok_s"] for entry in (peer, ours)]
            where = (f"on the same GPU {rates[1]:,.0f} ({commit_label(ours.run.fingerprint)}), "
                     f"{rates[1] / rates[0]:.2f} times as many"
                     if measured_alike(ours, peer) else f"{rates[1]:,.0f}, but on another GPU")
            yield (f"On the workload {ours.row['shape']['name']}, {peer.peer} generates {rates[0]:,.0f} tok/s, and Tokline "
                   f"{where}.")


def markdown(evidence):
    """What a page about the records begins with: losses first."""
    parts = []
    known = groups(evidence)
    largest = max(known, key=lambda group: len(group[2]), default=None)
    for group in known:
        heading, words, found = group
        if group is largest:
            table = terminal.markdown_table(HEADER, [[f"`{line[0]}`", *line[1:]] for line in lines(found)])
            parts += [f"**{heading}.** {words}", "\n".join(table)]
        else:
            parts.append(f"**{heading}.** {with_mean(words, found)}")
    if evidence.swept:
        parts += [f"**Shapes drawn at random. {heading}.** {words}" for heading, words in drawn(Evidence(evidence.swept))]
    parts += [f"**Workloads.** {words}" for words in workloads(evidence)]
    parts = parts or ["No row of these records stands beside a peer's."]
    return terminal.wrapped("\n\n".join([*parts, *filter(None, [withheld(evidence)])]))


def put_between_marks(path, mark, text):
    """Replaces what stands between the two marks."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    marked, number = re.subn(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)",
                             lambda found: f"{found[1]}{text}\n{found[2]}", page, flags=re.DOTALL)
    if number != 1:
        raise Stop(f"{path} has {terminal.count(number, 'pair')} of the lines <!-- {mark} --> and <!-- /{mark} -->; "
                   "it must have one")
    write_whole(path, marked)


def main(arguments):
    parser = command.parser(standing.__doc__, EPILOG)
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="record files or folders")
    parser.add_argument("--into", metavar="FILE", help="a Markdown file to write it into, between two marks")
    options = parser.parse_args(arguments)
    if options.into and not os.path.isfile(options.into):
        raise Stop(f"--into: {options.into} is no file")
    chosen, swept = records.parted(records.read(options.results, terminal.say))
    text = markdown(Evidence(chosen, [], swept))
    if options.into:
        put_between_marks(options.into, "standing", text)
    else:
        terminal.write_out(text)
    return 0
