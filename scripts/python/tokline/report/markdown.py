"""The report's essence for a comment on a pull request."""

from tokline import blame, compare, records, standing, verdicts
from tokline.report.wording import microseconds, percent
from tokline.terminal import markdown_table

MAX_LISTED = 10
MAX_KERNELS = 5


def escaped(words):
    """Keeps a record's words from being read as Markdown or HTML."""
    return str(words).replace("\\", "\\\\").replace("<", "&lt;").replace("\n", " ")


def render(evidence, title, page_name):
    """A short Markdown text: what matters, tok/s, what changed, the kernels furthest from their limits, trouble."""
    lines = [f"## {escaped(title)}", ""]
    grave = [note for note in evidence.notes if note.grave]
    lines += [f"{'⚠️ ' if trouble else ''}**{escaped(words)}**  " for trouble, words in evidence.verdict]
    lines += [f"{escaped(f'{heading}: {words}')}  " for heading, words, _ in standing.groups(evidence)]
    lines += [escaped(words) for words in filter(None, [standing.withheld(evidence)])]
    lines.append("")
    rates = []
    for (model, dtype, _, lengths), entries in evidence.decoder_groups.items():
        for entry in evidence.headline_batches(entries):
            low, high = entry.tok_s_interval
            rates.append([escaped(model), dtype, str(entry.row["batch"]), lengths,
                          f"{entry.row['decode_tok_s']:,.0f}", f"{low:,.0f} to {high:,.0f}",
                          percent(entry.percent)])
    if rates:
        lines += ["### Decoder", "", *markdown_table(
            ["model", "dtype", "batch", "in + out", "tok/s", "95 % interval", "of limit"], rates,
            {2, 3, 4, 5, 6}), ""]
    workloads = [[escaped(evidence.workload_names[id(entry)]), f"{entry.row['output_tok_s']:,.0f}"]
                 for entry in evidence.ours(records.WORKLOAD) if entry.ok]
    if workloads:
        lines += ["### Workloads", "", *markdown_table(["workload", "output tok/s"], workloads, {1}), ""]
    comparison = evidence.comparison
    if comparison is not None:
        lines += ["### Against the baseline", "", escaped(
            f"Not compared: {comparison.refused}." if comparison.refused else comparison.summary()), ""]
        lines += [*[f"- {escaped(note)}" for note in comparison.notes], ""] * bool(comparison.notes)
        found = [] if comparison.refused else compare.table(comparison, False)[0]
        found.sort(key=lambda line: line[-1].startswith(verdicts.MISSING))  # the first lines count them
        if found:
            lines += [*markdown_table(compare.HEADER, [[escaped(cell) for cell in line] for line in
                                                       found[:MAX_LISTED]], range(1, 7)), ""]
        if len(found) > MAX_LISTED:
            lines += [f"and {len(found) - MAX_LISTED:,} rows more that are not the same, all in the report", ""]
    words, differences = evidence.differences
    if differences:
        lines += [f"### What the decoder's difference comes from, between {words}", ""]
        lines += [f"- {escaped(one.label)}: {escaped(blame.verdict(one))}" for one in differences]
        lines += [f"- {escaped(one.label)}: {escaped(blame.check_sentence(one))}" for one in blame.doubtful(differences)]
        lines += [""]
    if evidence.not_blamed:
        lines += ["### What the decoder's difference comes from", "", escaped(evidence.not_blamed), ""]
    if evidence.furthest:
        lines += ["### Furthest from the limit", "", *markdown_table(
            ["kernel", "shape", "median", "limit would be", "of limit"],
            [[entry.kernel, entry.name, microseconds(entry.median_us), microseconds(entry.floor_us),
              f"{percent(entry.percent)} {entry.row['limit']}"] for entry in evidence.furthest[:MAX_KERNELS]],
            {2, 3, 4}), ""]
    sentences = [one.sentence for one in evidence.ablations if one.sentence]
    if sentences:
        lines += ["### Alone and in the decoder", "", *[f"- {escaped(words)}" for words in sentences], ""]
    if grave:
        lines += ["### What does not stand", "",
                  *[f"- **{note.kind}** {escaped(note.words)}" for note in grave[:MAX_LISTED]]]
        if len(grave) > MAX_LISTED:
            lines.append(f"- and {len(grave) - MAX_LISTED} more, all in the report")
        lines.append("")
    lines.append(f"All rows and plots: `{page_name}`, one file that opens without a network.")
    return "\n".join(lines) + "\n"
