"""The report as one HTML file: what each section says, and its figures and tables."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from tokline import ablate, blame, compare, cost_model, records, standing, sweep
from tokline.report import figures, timelines, waterfalls
from tokline.report.evidence import LONG_FLOOR_US, Evidence, measured_alike, workload_parts
from tokline.report.wording import command_words, commit_label, listed, microseconds, percent, ratio
from tokline.schema import LEAST_CHANGE_WORDS
from tokline.statistics import median
from tokline.table import latencies
from tokline.terminal import count, figure

MAX_COMMANDS = 6


@dataclass
class Table:
    header: list
    lines: list  # of cells
    numeric: set = field(default_factory=set)  # columns that are aligned to the right
    classes: list = field(default_factory=list)  # of each line
    title: str = ""
    open: bool = False
    more: list = field(default_factory=list)  # the Table that each line folds out to

    def __post_init__(self):
        """Columns that say the same in every line are said once, in the title, and empty ones not at all."""
        said = {column: cells[0] for column, cells in enumerate(zip(*self.lines))
                if column > 0 and (not any(cells) or len(cells) > 1 and len(set(cells)) == 1)}
        kept = [column for column in range(len(self.header)) if column not in said]
        self.title += "".join(f"; {self.header[column]} {cell}" for column, cell in said.items() if cell)
        self.numeric = {new for new, column in enumerate(kept) if column in self.numeric}
        self.header, *self.lines = ([line[column] for column in kept] for line in (self.header, *self.lines))


@dataclass
class Section:
    """A figure or tables with the words around them, and what reproduces it."""
    anchor: str
    title: str
    lead: str = ""
    sentences: list = field(default_factory=list)
    drawing: object = None
    missing: str = ""
    tables: list = field(default_factory=list)
    caption: str = ""
    commands: list = field(default_factory=list)
    more_commands: int = 0

    @property
    def is_empty(self):
        return not self.drawing and not self.tables


def sections(evidence, own_command, progress=lambda words: None):
    """The report's sections, in the order in which a reader needs them."""
    makers = [beside_peers, tables, roofline, shares, sweeps, cost_models, throughput, ranks, workloads, rates,
              step, ablation, history, machine]
    makers.insert(0 if evidence.baseline else -2, difference)
    made = []
    for number, maker in enumerate(makers, 1):
        progress(f"drawing {number} of {len(makers)}: {maker.__name__}")
        section, runs = maker(evidence)
        commands = list(dict.fromkeys(command_words(run.fingerprint.get("command_line") or [run.program])
                                      for run in runs))
        section.commands = commands[:MAX_COMMANDS] + [own_command]
        section.more_commands = max(0, len(commands) - MAX_COMMANDS)
        made.append(section)
    return made


def runs_of(entries):
    return list({id(entry.run): entry.run for entry in entries}.values())


def beside_peers(evidence):
    found = standing.groups(evidence)
    section = Section(
        "standing", "Beside other libraries", "Of ours and of the peers the fastest row of the same work counts. The "
        "worst shape of each kernel; all shapes are in the tables below.",
        sentences=list(filter(None, [standing.withheld(evidence)])),
        missing="No peer's row is in these records. To measure some: scripts/peers --beside RECORDS --record FILE")
    for heading, _, of_group in found:
        shown = list(standing.lines(of_group))
        section.tables.append(Table(standing.HEADER, shown, {1, 2, 4, 6, 7},
                                    ["behind" if line[2] != "0" else "" for line in shown], heading, True))
    return section, runs_of([entry for *_, of_group in found for pair in of_group for entry in (pair.ours, pair.peer)])


def roofline(evidence):
    drawing = figures.roofline(evidence)
    section = Section(
        "roofline", "Roofline", "How fast each kernel moves data or computes, below what the device was measured to "
        "reach. The distance to the line is what could be gained.", drawing=drawing,
        caption="One point a shape: cold, launched one after another (plain), the fastest variant. Solid line: read "
        "and matmul rates measured in these runs; dashed: the datasheet's. Kernels that only move data stand at the "
        "left, where the line above them is the read rate. A pointer over a point names its row.",
        missing="No cold row with measured peaks. On a machine with a GPU: scripts/bench --device cuda")
    return section, runs_of(evidence.representatives)


def shares(evidence):
    drawing = figures.shares(evidence)
    shown = [entry for kernel in evidence.kernels for entry in evidence.long_rows(kernel)[:figures.MAX_ROWS_A_KERNEL]]
    left_out = sum(len(evidence.long_rows(kernel)) for kernel in evidence.kernels) - len(shown)
    section = Section(
        "share", "How near the limit", "The limit is the time that the compulsory bytes or operations take at the "
        "measured rates. The kernel furthest from it comes first.", drawing=drawing,
        caption=f"Cold, plain rows whose floor is at least {LONG_FLOOR_US:g} µs, since shorter ones are mostly launch "
        "and ramp (where a kernel has none, its longest row); the fastest variant; of page sizes the one further "
        "from the limit."
        + (f" {count(left_out, 'shape')} nearer to the limit are in the tables only." if left_out else "")
        + ("" if any(map(evidence.peer, shown)) else " No peer's row is in these records: scripts/peers makes them."),
        missing="No cold row with measured peaks. On a machine with a GPU: scripts/bench --device cuda")
    if drawing:
        entry = evidence.furthest[0]
        section.sentences = [evidence.furthest_sentence]
        peer = evidence.peer(entry)
        if peer:
            section.sentences.append(f"The best peer there, {peer.peer}, takes {microseconds(peer.median_us)}.")
    return section, runs_of(shown + [peer for peer in map(evidence.peer, shown) if peer])


def sweeps(evidence):
    """Drawn shapes, apart from those that somebody chose."""
    drawn = Evidence(evidence.swept)
    found = sweep.points(drawn)
    section = Section(
        "sweep", "Shapes that nobody chose", "Drawn from a seed. The floor is a launch and the time of the compulsory "
        "bytes or operations at the measured rates.", drawing=figures.sweep(found),
        caption="One point a shape: the time of its fastest row over its floor. A kernel that matrix products limit "
        "on most shapes is shown over its operations, others over their bytes. A pointer over a point names its shape.",
        missing="No row of a sweep with measured peaks. On a machine with a GPU: scripts/bench --sweep 200 --seed 1")
    refused = [entry for entry in drawn.ours() if not entry.ok]
    if found:
        section.tables = [
            Table(sweep.HEADER, list(sweep.lines(found)), set(range(1, 8)), title="Time over floor", open=True),
            Table(sweep.WORST_HEADER, list(sweep.worst_lines(found)), {2, 3, 4}, title="The worst shapes")]
    if refused:
        section.tables.append(Table(
            ["kernel", "shape", "by", "reason"],
            [[entry.kernel, entry.name, entry.how, entry.row["reason"]] for entry in refused],
            classes=["refused"] * len(refused), title=f"{count(len(refused), 'row')} refused", open=True))
    section.sentences = [f"{heading}: {words}" for heading, words in standing.drawn(drawn)]
    return section, runs_of(drawn.entries)


def cost_models(evidence):
    """Rows that take another time than their kernel's cost model says."""
    found = sweep.points(evidence)
    for kernel, points in sweep.points(Evidence(evidence.swept)).items():
        found[kernel] = found.get(kernel, []) + points
    pairs = cost_model.ratios(found, {kernel: cost_model.of_kernel(kernel) for kernel in found})
    far = cost_model.missed(pairs)
    section = Section(
        "model", "What the cost models miss", "Each kernel's README has a formula for its time. A shape that takes "
        "much longer is one that the kernel's plan may not know.",
        missing="No row is of the device that the cost models were fitted on.")
    if pairs:
        section.sentences = [f"Of {count(len(pairs), 'shape')}, {len(far)} miss their prediction by more than {100 * cost_model.MISSED:.0f} %."]
        section.tables = [Table(
            ["kernel", "by", "time", "floor", "time / prediction", "shape"],
            [[point.entry.kernel, point.entry.how, microseconds(point.entry.median_us),
              microseconds(point.entry.floor_us), ratio(off), point.name] for point, off in far],
            {2, 3, 4}, title=count(len(far), "shape"), open=True)]
    return section, runs_of([point.entry for point, _ in far])


def throughput(evidence):
    drawing = timelines.throughput(evidence)
    one_commit = len(evidence.decoder_commits) == 1
    entries = [entry for key, found in evidence.history.items() if key.kernel == records.DECODER
               for entry in found.values()]
    section = Section(
        "throughput", "Decoder: " + ("over the batch" if one_commit else "tok/s over commits"), "", drawing=drawing,
        caption="A token is as late as a step of the whole batch takes. The limit is the time to read the weights and "
        "the context once. Results of several commits show tok/s over commits here." if one_commit else
        "Tokens per second over the whole batch; bands are 95 % confidence intervals of the median. Commits "
        "stand in the order of their first run, a + marks a tree with changes.",
        missing="No decoder row with figures. To make one: tokline bench --model DIR --batch 1,64 --record FILE")
    section.tables = [latency_table(evidence)] if any(entry.row.get("first_token_ms") for entry in entries) else []
    for rows in evidence.decoder_groups.values():
        for entry in evidence.headline_batches(rows):
            peer = evidence.peer(entry)
            if peer:
                section.sentences.append(
                    f"{entry.name}: Tokline {entry.row['decode_tok_s']:,.0f} tok/s, the best peer, {peer.peer}, "
                    f"{peer.row['decode_tok_s']:,.0f}: {ratio(peer.median_us / entry.median_us)} its speed.")
    return section, runs_of(entries)


def latency_table(evidence):
    """How long the sequences of each row of the decoder waited."""
    entries = [entry for rows in evidence.decoder_groups.values() for entry in rows
               if entry.ok and entry.row.get("first_token_ms")]
    header = ["tokens in + out", "model", "implementation", "dtype", "batch", "first token ms: p50, p90, p99",
              "between tokens ms", "end to end ms", "sequences", "tokens after the first"]
    lines = [[records.lengths(entry.row), entry.row["model"], entry.how, entry.row["dtype"], str(entry.row["batch"]),
              *(latencies(entry.row[name]) for name in records.LATENCIES),
              *(f"{entry.row[name]['count']:,}" for name in ("first_token_ms", "between_tokens_ms"))]
             for entry in entries]
    return Table(header, lines, set(range(4, len(header))), title=f"latencies: {count(len(entries), 'row')}; a - says "
                 f"that there are too few for a percentile", open=True)


def ranks(evidence):
    section = Section(
        "ranks", "Decoder: more ranks", "What dividing the model is worth: the speed over that of the fewest ranks, and "
        "per rank. Sums and the gathering of logits are what the ranks exchange; waiting for a slower rank counts there.",
        missing="No decoder row has several ranks. To make some: tokline bench --model DIR --tp 1,2 --record FILE")
    groups = evidence.rank_groups
    if groups:
        section.tables = [Table(
            ["tokens in + out", "model", "implementation", "dtype", "batch", "ranks", "decode tok/s", "speed-up",
             "efficiency", "prefill tok/s", "speed-up", "efficiency", "sums, of a step", "gather, of a step"],
            [rank_cells(entry, found[0]) for found in groups for entry in found], set(range(4, 14)),
            title=f"ranks: {count(sum(map(len, groups)), 'row')}", open=True)]
    return section, runs_of([entry for found in groups for entry in found])


def rank_words(entry):
    return f", {entry.ranks} ranks" if entry.ranks > 1 else ""


def rank_cells(entry, fewest):
    row = entry.row
    cells = [records.lengths(row), row["model"], entry.undivided, row["dtype"], str(row["batch"]),
             f"{entry.ranks}{' processes' if 'processes' in entry.how else ''}"]
    for name in ("decode_tok_s", "prefill_tok_s"):
        times = row[name] / fewest.row[name]
        cells += [figure(row[name]), *([ratio(times), percent(100 * times * fewest.ranks / entry.ranks)]
                                       if entry is not fewest else ["", ""])]
    profile = row.get("profile")
    for op in ("all_reduce", "gather_logits"):
        us = sum(one["us"] for one in profile["ops"] if one["op"] == op) if profile else 0
        cells.append(percent(100 * us / profile["step_us"]) if us else "")
    return cells


def workloads(evidence):
    entries = evidence.ours(records.WORKLOAD)
    section = Section(
        "workloads", "Workloads: continuous batching", "Requests as a service gets them: they come and go, and share "
        "each step.", drawing=figures.workloads(evidence),
        caption="Output tokens per second, with the 95 % interval of the median; and how long requests waited: "
        "median (filled), p90 and p99 (hollow), of the repeat with the median time. Warm-up is in no figure.",
        missing="No row of a workload. To make one: tokline bench --model DIR --workload nano-vllm --record FILE")
    if entries:
        section.tables = [workload_table(evidence, entries)]
        section.sentences = list(standing.workloads(evidence))
    return section, runs_of(entries)


def rates(evidence):
    section = Section(
        "rates", "Workloads over the request rate", "The same requests, arriving at random, ever faster; at ∞ all arrive "
        "at once.", drawing=figures.rates(evidence),
        caption="Requests that wait for others are late, so the first token shows best where a service is full. Goodput "
        "counts the requests whose first token and mean time between tokens met the bound that was asked for.",
        missing="No workload was run at several rates. To do so: tokline bench --model DIR --workload FILE --rates "
        "1,2,4,inf --slo ttft=200,itl=20 --record FILE")
    entries = []
    for name, found in evidence.rate_sweeps.items():
        entries += found
        good = [entry for entry in found if entry.row.get("goodput_req_s")]
        if good:
            best = max(good, key=lambda entry: entry.row["goodput_req_s"])
            row, rate = best.row, best.row["shape"]["rate"]
            section.sentences.append(
                f"{name}: at most {figure(row['goodput_req_s'])} requests per second met {bound_words(row['slo'])}, "
                + ("where all arrived at once." if rate == "inf" else f"where {rate:g} arrived."))
    return section, runs_of(entries)


def bound_words(slo):
    return listed(f"{figure(slo[name])} ms {words}" for name, words in (
        ("first_token_ms", "to the first token"), ("mean_between_ms", "between tokens")) if slo[name] is not None)


def workload_table(evidence, entries):
    """A line a workload, which folds out to what explains its figures."""
    good = any(entry.row.get("goodput_req_s") for entry in entries)
    header = ["workload", "implementation", "dtype", "requests", "output tok/s", *(["goodput/s"] if good else []),
              "first token ms: p50, p90, p99", "between tokens ms", "end to end ms", "preempted", "reused", "host share",
              "verified", "remarks"]
    rest = ["in full", "tokens in + out", "total tok/s", "requests/s", "seconds", "KV pages mean / most / all", "computed again", "host µs a step",
            "warm-up s", "memory MiB"]
    lines, more = [], []
    for entry in entries:
        row, why = entry.row, [entry.name]
        cells = [evidence.workload_names[id(entry)], entry.how, row["dtype"], f"{row['shape']['requests']:,}"]
        if entry.ok:
            cells += [figure(row["output_tok_s"]), *([figure(row.get("goodput_req_s"))] if good else []),
                      *(latencies(row.get(name)) for name in records.LATENCIES),
                      f"{row['preemptions']:,}", f"{row['reused_tokens']:,}", f"{100 * row['host_share']:.1f} %",
                      verified_words(entry)]
            why += [f"{row['shape']['prompt_tokens']:,} + {median(row['samples_new_tokens']):,.0f}",
                    figure(row["total_tok_s"]), figure(row["shape"]["requests"] / row["total_s"]),
                    f"{figure(row['total_s'])}, of {len(row['samples_s'])}",
                    f"{figure(row['mean_kv_pages'])} / {row['max_kv_pages']:,} / {row['kv_pages']:,}",
                    f"{row['recomputed_tokens']:,}", figure(row["step_host_us"]), figure(row["warm_up_s"]),
                    figure(row["memory_bytes"] / 2**20)]
        lines.append(padded(cells, header, remarks(entry)))
        more.append(Table(rest[:len(why)], [why], set(range(1, len(rest)))))
    return Table(header, lines, set(range(3, len(header) - 2)), [row_class(entry) for entry in entries],
                 f"workloads: {table_summary(entries)}", True, more)


def history(evidence):
    section = Section(
        "history", "Kernels over commits", "Each row's time relative to the first commit that has it: below 1× is faster.",
        drawing=timelines.kernel_history(evidence),
        caption="Thin: one line per row. Thick: their geometric mean.",
        missing="No row of a kernel was measured at more than one commit. scripts/bench --out DIR at each commit, then "
        "scripts/records report on the folder that holds them.")
    return section, [run for run in evidence.history_runs
                     if any(row["kernel"] not in records.WHOLE for row in run.rows)]


def step(evidence):
    section = Section(
        "step", "A decode step", "Where the time between two tokens goes. A kernel owns the time that no kernel before "
        "it explains; gaps are time in which the device was idle.", drawing=waterfalls.step_waterfall(evidence),
        caption="Device gap: idle within a step. Host gap: idle between steps, while the host launches or waits. "
        "Unexplained: the step, as it runs without a trace, less all of these.",
        missing="No decoder row has a profile. To make one: tokline bench --model DIR --device cuda --batch 1,64 "
        "--record FILE")
    profiled = [entry for entries in evidence.decoder_groups.values() for entry in entries
                if entry.ok and entry.row.get("profile")]
    models = {}
    for entry in profiled:
        models.setdefault(entry.row["model"], []).append(entry)
    section.tables = [profile_table(model, entries) for model, entries in models.items()]
    return section, runs_of(profiled)


def profile_table(model, entries):
    """All profiles of a model, with ops as lines and decoder rows as columns."""
    ops = {}
    for entry in entries:
        profile = entry.row["profile"]
        for op in profile["ops"]:
            ops.setdefault(op["op"], {})[id(entry)] = op["us"]
        ops.setdefault("device gap", {})[id(entry)] = profile["device_gap_us"]
        ops.setdefault("host gap", {})[id(entry)] = profile["host_gap_us"]
        for name in ("tracing", "unexplained"):
            if f"{name}_us" in profile:
                ops.setdefault(name, {})[id(entry)] = profile[f"{name}_us"]
        ops.setdefault("step", {})[id(entry)] = profile["step_us"]
    last = [name for name in ("device gap", "host gap", "tracing", "unexplained", "step") if name in ops]
    names = [name for name in ops if name not in last] + last
    several = len({records.lengths(entry.row) for entry in entries}) > 1
    header = [f"batch {entry.row['batch']}{rank_words(entry)}{', ' + records.lengths(entry.row) if several else ''}"
              for entry in entries]
    return Table(["µs", *header], [[name, *(figure(ops[name].get(id(entry))) for entry in entries)] for name in names],
                 set(range(1, len(entries) + 1)), title=f"{model}: {count(len(entries), 'profile')}")


def difference(evidence):
    words, found = evidence.differences
    section = Section(
        "blame", "What a difference comes from", f"Between {words}." if words else "",
        drawing=waterfalls.blame_waterfall(evidence),
        sentences=[readable(f"{one.label}: {blame.verdict(one)}.") for one in found]
        + [readable(f"{one.label}: {blame.check_sentence(one)}.") for one in blame.doubtful(found)]
        + [evidence.not_blamed] * bool(evidence.not_blamed),
        caption="Each bar starts where the one above it ended; from A to B they add up to the difference of a step. "
        "Of several decoder rows those that changed most; scripts/records blame has all.",
        missing=(evidence.not_blamed or "No decoder row with a profile is in both of them." if words else
                 "There is one run to look at, so no difference.")
        + " To see one: scripts/records report RESULTS --baseline OLD.jsonl, or scripts/records blame A B.")
    comparison = evidence.comparison
    if comparison is not None and comparison.refused:
        section.sentences.append(f"The rows are not held against the baseline's: {comparison.refused} "
                                 f"({'; '.join(comparison.differences) or 'nothing in common'}).")
    elif comparison is not None:
        section.sentences += comparison.notes
        section.tables.append(verdict_table(comparison))
    runs = evidence.baseline + runs_of(evidence.profiled) if found and evidence.baseline else \
        runs_of(evidence.profiled) if found else []
    return section, runs


def readable(words):
    """The words of scripts/records blame, which a terminal must be able to print, as a page writes them."""
    return re.sub(r"\bus\b", "µs", words.replace("`", "").replace("->", "→"))


def verdict_table(comparison):
    """Rows whose verdict is not `same`."""
    lines, _ = compare.table(comparison, False)
    worse = {str(row.key) for row in comparison.regressions}
    return Table(compare.HEADER, lines, {1, 2, 3, 4, 5, 6}, ["refused" if line[0] in worse else "" for line in lines],
                 f"Rows against the baseline: {comparison.summary()}", bool(worse))


def ablation(evidence):
    section = Section(
        "ablation", "What each op is worth", "Each op swapped for its plain counterpart: how much faster the op is "
        "alone, and how much of that the decoder feels.", drawing=figures.ablation(evidence),
        caption="Medians and 95 % intervals of interleaved rounds; above 1× the op helps.",
        missing="No ablation. To make one: scripts/records ablate --model DIR --record FILE")
    if section.drawing:
        told = [one for one in evidence.ablations if one.digest.end_to_end.has_interval]
        few = len(evidence.ablations) - len(told)
        section.sentences = [one.sentence for one in told if one.sentence] or [
            "Alone and in the decoder agree for every op: what wins alone wins in the decoder."] * bool(told)
        if few:
            section.sentences.append(f"{count(few, 'ablation')} had too few rounds to say: a verdict takes "
                                     f"{ablate.LEAST_ROUNDS}.")
        section.tables = [Table(
            ["op", "batch", "instead", "decode step with, ms", "without, ms", "speed-up", "95 % interval",
             "alone", "95 % interval", "in words"],
            [ablation_cells(one) for one in evidence.ablations], {1, 3, 4, 5, 6, 7, 8}, title="The figures")]
    return section, [one.run for one in evidence.ablations]


def ablation_cells(one):
    pair = one.line["end_to_end"]
    return [one.line["name"], one.batch, one.line["instead"], figure(median(pair["with_ms"])),
            figure(median(pair["without_ms"])), *speedup_cells(one.digest.end_to_end),
            *speedup_cells(one.digest.isolated), ablate.verdict(one.digest)]


def speedup_cells(speedup):
    if not speedup:
        return ["not measured", ""]
    interval = f"{speedup.low:.2f} to {speedup.high:.2f}" if speedup.has_interval else "too few rounds"
    return [ratio(speedup.ratio), interval]


def interval_words(entry):
    low, high = entry.interval_us
    return f"{figure(low)} to {figure(high)}"


def remarks(entry):
    """What a reader must know of one row."""
    words = []
    if not entry.ok:
        words.append(f"refused: {entry.row.get('reason')}")
    if entry.row.get("limit_is_wrong"):
        words.append("above its limit, which is wrong")
    if records.is_spoilt(entry.row):
        words.append(f"disturbed: {entry.row['disturbed']}")
    if entry.run.injected is not None:
        words.append(f"slowed on purpose: {json.dumps(entry.run.injected)}")
    return "; ".join(words)


def padded(cells, header, last):
    """A line of a table whose first cells and whose last one are known."""
    return cells + [""] * (len(header) - 1 - len(cells)) + [last]


def row_class(entry):
    return "peer" if entry.peer else "refused" if not entry.ok else "disturbed" if remarks(entry) else ""


def verified_words(entry):
    """What the row's output was compared with, in a few words."""
    verified = entry.row["verified"]
    if not entry.ok:
        return "no"
    if entry.kernel in records.WHOLE:
        return f"yes, regret {verified['mean_regret']:.4f}" if verified.get("mean_regret") is not None else "yes"
    error = verified.get("max_error_over_bound")
    return "yes" if error is None else f"yes, {error:.2f} of bound"


class Shape:
    """The rows of one work: the fastest of ours beside the best peer."""
    header = ["shape", "dtype", "cache", "device", "ours", "µs", "95 % interval", "best peer", "peer µs", "peer from",
              "ours / peer", "limit µs", "of limit", "remarks"]
    numeric = {5, 6, 8, 10, 11, 12}

    def __init__(self, evidence, entries):
        ours = [entry for entry in entries if not entry.peer]
        self.first, self.refused = entries[0], [entry for entry in ours if not entry.ok]
        self.best = min((entry for entry in ours if entry.stands), key=lambda entry: entry.median_us, default=None)
        held = self.best or self.first
        self.peer = evidence.peer(held, True) or evidence.peer(held, False)
        self.ratio = self.best.median_us / self.peer.median_us if self.best and self.peer else None
        self.is_behind = bool(self.ratio) and self.ratio > standing.MARGIN
        self.rest = ["a faster peer was refused"] if self.first.work in evidence.withheld else []
        self.all_rows = all_rows(entries)

    @property
    def worst_first(self):
        return -(self.ratio or 0), self.best.percent or 0 if self.best else 0

    @property
    def cells(self):
        best, peer, row = self.best, self.peer, self.first.row
        share = percent(best.percent) if best else ""
        alike = "same GPU" if self.ratio and measured_alike(best, peer) else "elsewhere"
        return [self.first.name, row["dtype"], row["cache"], row["device"],
                *([best.how, figure(best.median_us), interval_words(best)] if best else [""] * 3),
                *([f"{peer.peer}: {peer.how}", figure(peer.median_us), alike] if peer else [""] * 3), ratio(self.ratio),
                figure(best.floor_us) if share else "", f"{share} {best.row['limit']}" if share else "",
                "; ".join(filter(None, map(remarks, [*self.refused, *filter(None, [best])]))) or "; ".join(self.rest)]


def kernel_table(evidence, kernel):
    """A line a shape, which folds out to all of its rows; the one on which a peer is furthest ahead comes first."""
    works = {}
    entries = [entry for entry in evidence.entries if entry.kernel == kernel]
    for entry in entries:
        works.setdefault(entry.work, []).append(entry)
    shapes = sorted((Shape(evidence, found) for found in works.values()), key=lambda shape: shape.worst_first)
    behind = sum(shape.is_behind for shape in shapes)
    return Table(Shape.header, [shape.cells for shape in shapes], Shape.numeric,
                 ["refused" if shape.refused else "behind" if shape.is_behind else "" for shape in shapes],
                 f"{kernel}: {count(len(shapes), 'shape')}, {table_summary(entries)}"
                 + (f", a peer is faster on {count(behind, 'shape')}" if behind else ""),
                 any(shape.refused for shape in shapes), [shape.all_rows for shape in shapes])


def all_rows(entries):
    """Ours, then the peers, the fastest first."""
    entries = sorted(entries, key=lambda entry: (bool(entry.peer), not entry.ok, entry.median_us if entry.ok else 0))
    header = ["implementation", "µs", "95 % interval", "rate", "of limit", "verified", "remarks"]
    lines = []
    for entry in entries:
        share = percent(entry.percent) if entry.ok else ""
        lines.append(padded([f"{entry.peer}: {entry.how}" if entry.peer else entry.how] + (
            [figure(entry.median_us), interval_words(entry), entry.rate, f"{share} {entry.row['limit']}" if share else "",
             verified_words(entry)] if entry.ok else []), header, remarks(entry)))
    return Table(header, lines, {1, 2, 3, 4}, [row_class(entry) for entry in entries])


def table_summary(entries):
    refused = sum(not entry.ok and not entry.peer for entry in entries)
    return count(len(entries), "row") + (f", {refused} refused" if refused else "")


def decoder_table(evidence):
    entries = sorted((entry for entry in evidence.entries if entry.kernel == records.DECODER),
                     key=lambda entry: (entry.row["model"], entry.row["dtype"], entry.row["device"],
                                        bool(entry.peer), entry.row["batch"]))
    header = ["model", "implementation", "dtype", "device", "batch", "tokens in + out", "decode tok/s",
              "95 % interval tok/s", "ms a step", "prefill tok/s", "% of limit", "host share", "memory GiB",
              "verified", "remarks"]
    lines = []
    for entry in entries:
        row = entry.row
        cells = [row["model"], f"{entry.peer}: {entry.how}" if entry.peer else entry.how, row["dtype"],
                 row["device"], str(row["batch"]), records.lengths(row)]
        if entry.ok:
            low, high = entry.tok_s_interval
            share = percent(entry.percent)
            cells += [figure(row["decode_tok_s"]), f"{figure(low)} to {figure(high)}", figure(row["ms_per_token"]),
                      figure(row["prefill_tok_s"]), f"{share} {row['limit']}" if share else "",
                      f"{100 * row['host_share']:.1f} %" if row.get("host_share") is not None else "",
                      figure(row["memory_bytes"] / 2**30) if row.get("memory_bytes") else "", verified_words(entry)]
        lines.append(padded(cells, header, remarks(entry)))
    return Table(header, lines, {4, 5, 6, 7, 8, 9, 10, 11, 12}, [row_class(entry) for entry in entries],
                 f"decoder: {table_summary(entries)}", True)


def tables(evidence):
    section = Section("tables", "Every shape",
                      "Our fastest row, the best peer and the limit. A shape folds out to all of its rows, the peers' "
                      f"too. Above 1× in ours / peer the peer is faster, by more than {LEAST_CHANGE_WORDS} where the "
                      "line is marked. A peer from elsewhere ran on another GPU, or with other pauses between samples.",
                      missing="No row of a kernel or of the decoder. To make some: scripts/bench")
    if any(entry.kernel == records.DECODER for entry in evidence.entries):
        section.tables.append(decoder_table(evidence))
    section.tables += [kernel_table(evidence, kernel) for kernel in evidence.kernels]
    return section, runs_of(evidence.entries)


PEAKS = [("read", "read_gbps", "memory_gbps", "GB/s"),
         ("two read, one written", "two_to_one_gbps", "memory_gbps", "GB/s"), ("copy", "copy_gbps", "memory_gbps", "GB/s"),
         ("matmul, bf16", "matmul_tflops", "bf16_tflops", "TFLOP/s"), ("launch on a stream", "launch_us", None, "µs"),
         ("node of a graph", "graph_node_us", None, "µs")]
FINGERPRINT = [
    ("GPU", "gpu.name"), ("GPU, hash of its UUID", "gpu.uuid_hash"), ("compute capability", "gpu.compute_capability"),
    ("SMs", "gpu.sm_count"), ("driver", "gpu.driver"), ("CUDA driver", "gpu.cuda_driver"),
    ("CUDA runtime", "gpu.cuda_runtime"), ("cuBLASLt", "gpu.cublaslt"), ("MIG", "gpu.mig"), ("MPS", "gpu.mps"),
    ("SM clock before, MHz", "gpu.before.sm_clock_mhz"), ("largest SM clock, MHz", "gpu.max_sm_clock_mhz"),
    ("memory clock before, MHz", "gpu.before.memory_clock_mhz"), ("power cap, W", "gpu.before.power_cap_w"),
    ("temperature before, °C", "gpu.before.temperature_c"),
    ("throttled before", "gpu.before.throttle_reasons"), ("other processes before", "gpu.before.other_processes"),
    ("compiler", "compiler"), ("CUDA compiler", "cuda_compiler"), ("flags", "flags"), ("build type", "build_type"),
    ("CPU", "cpu"), ("CPU threads", "cpu_threads"), ("CPU governor", "cpu_governor"), ("OS", "os")]


def at(record, path):
    for name in path.split("."):
        record = record.get(name) if isinstance(record, dict) else None
    return record


def value_words(values):
    """One value, or what all runs have; None if nobody knows."""
    known = [value for value in values if value not in (None, "", "unknown")]
    if not known:
        return None
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known):
        low, high = min(known), max(known)
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"
    words = dict.fromkeys({True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool)
                          else str(value) for value in known)
    return ", ".join(list(words)[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


def machine(evidence):
    current = runs_of(evidence.entries) or evidence.runs
    section = Section("machine", "The machine", "On what, and built from what. Peaks were measured by the runs "
                      "themselves; the roofline uses those of the newest run with a matmul rate.")
    run = evidence.peaks_run
    if run is not None:
        sheet = run.header["datasheet"] or {}
        lines = []
        for words, name, sheet_name, unit in PEAKS:
            values = [each.header["peaks"].get(name) for each in current if each.header["peaks"]]
            values = [value for value in values if value]
            if not values:
                continue
            used = run.header["peaks"].get(name)
            stated = sheet.get(sheet_name) if sheet_name else None
            lines.append([words, unit, figure(used) if used else "", f"{figure(min(values))} to {figure(max(values))}",
                          figure(stated), percent(100 * used / stated) if stated and used else ""])
        section.tables.append(Table(["peak", "unit", "measured", "over all runs", "datasheet", "of datasheet"], lines,
                                    {2, 3, 4, 5}, title="Peaks", open=True))
        taken = [each.run_id for each in current if (each.header["peaks"] or {}).get("from_run")]
        if taken:
            section.sentences.append(f"{count(len(taken), 'run')} took the peaks over from another run (--peaks).")
    lines = []
    for words, path in FINGERPRINT:
        value = value_words([at(each.fingerprint, path) for each in current])
        lines.append([words, value if value is not None else "not known"])
    commits = dict.fromkeys(commit_label(each.fingerprint) for each in sorted(current, key=lambda each: each.time))
    lines.insert(0, ["commits", ", ".join(commits)])
    times = sorted(each.time for each in current)
    lines.insert(1, ["time, UTC", times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"])
    section.tables.append(Table(["", "of these runs"], lines, title="Fingerprint"))
    section.tables.append(Table(
        ["time, UTC", "program", "commit", "rows", "ended", "command"],
        [[each.time, each.program, commit_label(each.fingerprint), str(len(each.rows) + len(each.ablations)),
          "killed" if each.killed else "interrupted" if each.interrupted else "yes",
          command_words(each.fingerprint.get("command_line") or [])]
         for each in sorted(evidence.runs, key=lambda each: each.time)],
        {3}, ["refused" if each.killed or each.interrupted else "" for each in
              sorted(evidence.runs, key=lambda each: each.time)], title=count(len(evidence.runs), "run")))
    return section, []


def tiles(evidence):
    """The few large figures at the top: (figure, unit, what it is)."""
    made = []
    # What was measured at most batches comes first.
    groups = sorted(evidence.decoder_groups.items(), key=lambda group: -len(group[1]))[:2]
    alike = len({key[:2] for key, _ in groups}) < len(groups)
    for (model, dtype, _, lengths), entries in groups:
        for entry in evidence.headline_batches(entries):
            made.append((f"{entry.row['decode_tok_s']:,.0f}", "tok/s", f"{model} {dtype}, batch {entry.row['batch']}"
                         + (f", {lengths} tokens" if alike else "") + rank_words(entry)))
    fastest = {}  # of each workload
    for entry in sorted(filter(lambda entry: entry.ok, evidence.ours(records.WORKLOAD)), key=lambda entry: entry.median_us):
        fastest.setdefault(workload_parts(entry)[0], entry)
    for entry in list(fastest.values())[:2]:
        made.append((f"{entry.row['output_tok_s']:,.0f}", "tok/s", evidence.workload_names[id(entry)]))
    if evidence.furthest:
        entry = evidence.furthest[0]
        made.append((percent(entry.percent).removesuffix(" %"), "%",
                     f"of the {entry.row['limit']} limit: {entry.kernel}, the furthest"))
    return made


def render(evidence, title, own_command, generated, progress=lambda words: None):
    """The whole page."""
    folder = Path(__file__).parent
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    commits = evidence.commits
    peers = sum(bool(entry.peer) for entry in evidence.entries)
    subtitle = [evidence.device or "no device", f"commit {commits[-1]}" if commits else "no commit",
                count(len(evidence.entries), "row") + (f", {peers:,} of them of peers" if peers else ""), f"made {generated}"]
    return environment.get_template("page.html.j2").render(
        title=title, subtitle=subtitle, style=(folder / "page.css").read_text(encoding="utf-8"),
        verdict=evidence.verdict, tiles=tiles(evidence), notes=evidence.notes,
        peers=[(heading, words) for heading, words, _ in standing.groups(evidence)],
        sections=sections(evidence, own_command, progress))
