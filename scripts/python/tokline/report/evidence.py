"""What a report shows: which rows stand for what, chosen from the runs. Nothing here draws or writes."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property

from tokline import ablate, blame, kernels, records, verdicts
from tokline.report.wording import change, commit_label, listed, microseconds, percent
from tokline.terminal import count, figure

# A row whose floor is shorter says more about launching than about its kernel.
LONG_FLOOR_US = 5.0
HEADLINE_BATCHES = (1, 64)
MAX_WATERFALLS = 2
# Kinds of notes after which figures are missing; after the other grave ones they are doubtful.
MISSING = {"refused", "killed", "interrupted"}


@dataclass(frozen=True)
class Entry:
    """A row and the run that it is of."""
    run: records.Run
    row: dict

    @property
    def kernel(self):
        return self.row["kernel"]

    @property
    def ok(self):
        return self.row["status"] == "ok"

    @property
    def peer(self):
        """The other library's name and version, or None for Tokline's own rows."""
        library = self.row.get("library")
        return f"{library['name']} {library.get('version') or ''}".strip() if library else None

    @property
    def median_us(self):
        return records.median_us(self.row)

    @property
    def interval_us(self):
        """The 95 % interval of the median."""
        if self.kernel == records.DECODER:
            return [1e3 * bound for bound in self.row["ci95_ms"]]
        return self.row["ci95_us"]

    @property
    def tok_s_interval(self):
        low, high = self.interval_us
        sequences = self.row.get("batch", 1)  # a workload's time is already that of one token
        return 1e6 * sequences / high, 1e6 * sequences / low

    @property
    def percent(self):
        return self.row.get("percent_of_measured_peak")

    @property
    def floor_us(self):
        return self.row.get("floor_us") or 0.0

    @property
    def stands(self):
        """Whether this is a figure that a caller gets: not that of a variant that the kernel would not take."""
        return self.ok and records.is_chosen(self.row)

    @property
    def cold(self):
        return self.row["cache"] == "cold"

    @property
    def name(self):
        """The row without its kernel: `b1_s4096_h16-8, page 64`."""
        if self.kernel == records.DECODER:
            row = self.row
            return f"{row['model']}, batch {row['batch']}, {records.lengths(row)} tokens"
        if self.kernel == records.WORKLOAD:
            return f"{self.row['model']}, {records.shape_label(self.row['shape'])}"
        if records.is_swept(self.row):
            return f"{self.row['shape']['name']}, {records.dimensions(self.row['shape'])}"
        return records.shape_label(self.row["shape"])

    @property
    def how(self):
        """Implementation, and whether launches overlap."""
        dependent = self.row.get("chain") == "dependent"
        return self.row["implementation"] + (", dependent" if dependent else "")

    @property
    def ranks(self):
        return self.row.get("ranks", 1)

    @property
    def undivided(self):
        """The implementation without its ranks."""
        return re.sub(r" with \d+ (ranks|processes)\b", "", self.row["implementation"])

    @property
    def rate(self):
        if self.row.get("limit") == "matmul":
            return f"{figure(self.row['tflops'])} TFLOP/s"
        return f"{figure(self.row['gbps'])} GB/s"

    @property
    def bytes(self):
        return self.row["cost"]["read_bytes"] + self.row["cost"]["write_bytes"]

    @cached_property
    def work(self):
        """What a peer's row has in common with ours."""
        row = self.row
        if self.kernel == records.DECODER:
            return (self.kernel, row["model"], row["dtype"], row["device"], row["batch"], records.lengths(row))
        shape = json.dumps(row["shape"], sort_keys=True)
        return self.kernel, row.get("model"), shape, row["dtype"], row["device"], row.get("cache")


@dataclass(frozen=True)
class Ablated:
    """An ablation line, its run, and what scripts/records ablate says of it."""
    run: records.Run
    line: dict
    digest: ablate.Ablation
    apart: str = ""  # after a comma, its lengths and its dtype where others have other ones

    @property
    def name(self):
        return f"{self.line['name']}, batch {self.batch}"

    @property
    def batch(self):
        return f"{self.line['batch']}{self.apart}"

    @property
    def sentence(self):
        """Where the op alone and the decoder disagree, in words; None where they agree."""
        alone, together = self.digest.isolated, self.digest.end_to_end
        if alone is None or not together.has_interval or self.digest.is_control or self.digest.unsure_alone \
                or self.digest.unsure_in_the_decoder or self.digest.alone == self.digest.in_the_decoder:
            return None
        words = {1: "wins", 0: "makes no difference", -1: "loses"}
        return (f"{self.line['name']} {words[self.digest.alone]} alone ({alone.ratio:.2f}×) and "
                f"{words[self.digest.in_the_decoder]} in the decoder at batch {self.batch} "
                f"({together.ratio:.2f}×).")


@dataclass
class Note:
    """Something a reader must know before the figures: `grave` where a figure is missing or doubtful."""
    kind: str
    words: str
    grave: bool = True
    number: int = 1  # of the rows or runs that it is about
    of: str = "run"


@dataclass
class Evidence:
    """The runs, and the choices that all parts of the report share."""
    runs: list
    baseline: list = field(default_factory=list)
    swept: list = field(default_factory=list)  # runs with the rows of drawn shapes alone

    def __post_init__(self):
        # Of rows with one key the newest stands; one that was slowed on purpose, or of a peer that was not measured, only
        # where there is no other.
        newest, self.replaced = {}, []
        for entry in sorted((Entry(run, row) for run in self.runs for row in run.rows),
                            key=lambda entry: (not records.is_unmeasured(entry.row), entry.run.injected is None,
                                               entry.run.time)):
            key = records.key(entry.row)
            if key in newest:
                self.replaced.append(newest[key])
            newest[key] = entry
        self.entries = list(newest.values())
        self.peers = {}  # with figures, by their work
        # Work on which a peer's row was refused as faster than its limit.
        self.withheld = {entry.work: entry for entry in self.entries if entry.peer and records.may_be_faster(entry.row)}
        for entry in self.entries:
            if entry.peer and entry.ok:
                self.peers.setdefault(entry.work, []).append(entry)

    @cached_property
    def device(self):
        """The device that figures are of: the GPU with most rows, else the CPU."""
        devices = Counter(entry.row["device"] for entry in self.entries)
        gpus = Counter({name: n for name, n in devices.items() if name != "cpu"})
        return (gpus or devices).most_common(1)[0][0] if devices else None

    @cached_property
    def kernels(self):
        """Names of the kernels with rows, the whole decoder left out."""
        return sorted({entry.kernel for entry in self.entries} - set(records.WHOLE), key=kernels.order)

    def ours(self, kernel=None):
        """Rows of Tokline on the report's device, refused ones too; without a name those of kernels."""
        return [entry for entry in self.entries if entry.peer is None and entry.row["device"] == self.device
                and (entry.kernel == kernel if kernel else entry.kernel not in records.WHOLE)]

    def peer(self, entry, alike=None):
        """The fastest peer on the same work, or None, also where a faster one may have been refused. `alike` asks for
        one that was measured alike, or for one that was not."""
        peers = [] if entry.work in self.withheld else self.peers.get(entry.work, [])
        return min((peer for peer in peers if alike in (None, measured_alike(entry, peer))),
                   key=lambda peer: peer.median_us, default=None)

    @cached_property
    def refused(self):
        """Rows of Tokline without a figure; what a peer cannot do is no fault of the run."""
        return [entry for entry in self.entries if not entry.ok and entry.peer is None]

    @cached_property
    def peaks_run(self):
        """The newest run that measured the peaks of the report's device; with a matmul rate if there is one."""
        runs = {id(entry.run): entry.run for entry in self.entries if entry.row["device"] == self.device}
        measured = [run for run in runs.values() if run.header["peaks"] and run.header["peaks"].get("read_gbps")]
        return max(measured, key=lambda run: (bool(run.header["peaks"].get("matmul_tflops")), run.time), default=None)

    @cached_property
    def representatives(self):
        """One row a shape of each kernel: cold, launched one after another; launches that overlap only where a kernel
        has no others."""
        rows = [entry for entry in self.ours() if entry.stands and entry.cold and entry.percent is not None]
        plain = {entry.kernel for entry in rows if entry.row["chain"] != "dependent"}
        chosen = {}
        for entry in rows:
            if entry.kernel in plain and entry.row["chain"] == "dependent":
                continue
            if entry.work not in chosen or entry.median_us < chosen[entry.work].median_us:
                chosen[entry.work] = entry
        return list(chosen.values())

    def long_rows(self, kernel):
        """A kernel's representatives that are long enough to judge it, furthest from the limit first. Where none
        is, the longest. Of shapes that differ by page size alone the one further from the limit."""
        rows = [entry for entry in self.representatives if entry.kernel == kernel]
        rows = [entry for entry in rows if entry.floor_us >= LONG_FLOOR_US] or sorted(
            rows, key=lambda entry: -entry.floor_us)[:1]
        by_shape = {}
        for entry in sorted(rows, key=lambda entry: entry.percent):
            shape = {name: value for name, value in entry.row["shape"].items() if name != "page_size"}
            by_shape.setdefault((json.dumps(shape, sort_keys=True), entry.row["dtype"]), entry)
        return list(by_shape.values())

    @cached_property
    def furthest(self):
        """For each kernel its row furthest from its limit, furthest kernel first; short rows last."""
        rows = [self.long_rows(kernel)[:1] for kernel in self.kernels]
        return sorted((entry for found in rows for entry in found),
                      key=lambda entry: (entry.floor_us < LONG_FLOOR_US, entry.percent))

    @cached_property
    def decoder_groups(self):
        """Rows of the decoder that make one plot: {(model, dtype, implementation, lengths): [Entry]}."""
        groups = {}
        for entry in sorted(self.ours(records.DECODER), key=lambda entry: entry.row["batch"]):
            groups.setdefault(decoder_group(entry), []).append(entry)
        return groups

    @cached_property
    def rank_groups(self):
        """Decoder rows that differ by their ranks alone, the fewest ranks first; where there are several numbers, or
        one above 1."""
        groups = {}
        for entry in sorted((entry for entry in self.ours(records.DECODER) if entry.ok), key=lambda entry: entry.ranks):
            groups.setdefault((entry.work, entry.undivided), []).append(entry)
        return [found for found in groups.values() if found[-1].ranks > 1]

    def headline_batches(self, entries):
        """The rows of batch 1 and 64; where one is missing, of the smallest or the largest batch."""
        rows = {entry.row["batch"]: entry for entry in entries if entry.ok}
        if not rows:
            return []
        low, high = HEADLINE_BATCHES
        wanted = [low if low in rows else min(rows), high if high in rows else max(rows)]
        return [rows[batch] for batch in dict.fromkeys(wanted)]

    @cached_property
    def commits(self):
        """Labels of the commits that our runs on the report's device are of, in order of their first run."""
        return list(dict.fromkeys(commit_label(run.fingerprint) for run in self.history_runs if run.program != "peers"))

    @cached_property
    def decoder_commits(self):
        """Those of them that have decoder rows with figures."""
        return self._commits_with(lambda key: key.kernel == records.DECODER)

    @cached_property
    def kernel_commits(self):
        """Those of them that have kernels' rows with figures."""
        return self._commits_with(lambda key: key.kernel not in records.WHOLE)

    def _commits_with(self, wanted):
        found = {label for key, entries in self.history.items() if wanted(key) for label in entries}
        return [label for label in self.commits if label in found]

    @cached_property
    def history_runs(self):
        """The runs on the report's device that nothing was done to, in order of time."""
        runs = [run for run in self.runs if run.injected is None
                and any(row["device"] == self.device for row in run.rows)]
        return sorted(runs, key=lambda run: run.time)

    @cached_property
    def history(self):
        """{key: {commit label: Entry}}, of each commit the newest row with figures."""
        history = {}
        for run in self.history_runs:
            label = commit_label(run.fingerprint)
            for row in run.rows:
                if row["status"] == "ok" and row["device"] == self.device:
                    history.setdefault(records.key(row), {})[label] = Entry(run, row)
        return history

    def kernel_history(self, kernel):
        """{key: [(commit label, time over that of the key's first commit)]} of rows with several commits."""
        result = {}
        for key, entries in self.history.items():
            if key.kernel == kernel and len(entries) > 1 and not next(iter(entries.values())).peer:
                first = next(iter(entries.values())).median_us
                result[key] = [(label, entry.median_us / first) for label, entry in entries.items()]
        return result

    @cached_property
    def profiled(self):
        """Decoder rows with a profile, of the batches that the headline names: the first model's come first."""
        found = []
        for entries in self.decoder_groups.values():
            found += self.headline_batches([entry for entry in entries if entry.ok and entry.row.get("profile")])
        return found[:MAX_WATERFALLS]

    @property
    def differences(self):
        """(what is compared, the largest [blame.Difference]): with the baseline, else of the last two commits."""
        words, found, _ = self._all_differences
        return words, found[:MAX_WATERFALLS]

    @property
    def not_blamed(self):
        """Why differences that could be split into parts are not, in a sentence; "" where none is left out."""
        return self._all_differences[2]

    @cached_property
    def _all_differences(self):
        if self.baseline:
            before, after, words = self.baseline, self._candidate_runs, "the baseline (A) and these results (B)"
        elif len(self.decoder_commits) > 1:
            a, b = self.decoder_commits[-2:]
            before, after = self._runs_of(a), self._runs_of(b)
            words = f"{a} (A) and {b} (B), the last two commits with decoder rows"
        else:
            return "", [], ""
        try:
            found = blame.differences(before, after)
        except blame.NotComparable:
            return words, [], ""
        found = [difference for difference in found if difference.parts]
        apart = blame.fingerprint_differences(*profiled_on_both_sides(before, after))
        if found and apart:
            return words, [], (f"The runs of {words} are not of the same machine and build tools, so no part of a step "
                               f"is blamed: {'; '.join(apart)}.")
        return words, sorted(found, key=lambda difference: -abs(difference.percent)), ""

    @cached_property
    def comparison(self):
        """Every row against the baseline's, as scripts/records compare does it; None without a baseline."""
        if not self.baseline:
            return None
        comparison = verdicts.compare(self.baseline, self._candidate_runs)
        comparison.rows.sort(key=lambda row: row.verdict == verdicts.NEW)  # they are no news of what there was
        return comparison

    @cached_property
    def verdict(self):
        """The first lines of the page: [(whether there is trouble, words)]. Against the baseline what is missing, then
        what is slower with the worst row of it; and whether all rows stand."""
        return self._against_baseline() + [self._state()]

    def _against_baseline(self):
        comparison = self.comparison
        if comparison is None:
            return []
        if comparison.refused:
            return [(True, f"NOT COMPARED with the baseline: {comparison.refused}")]
        missing = [row for row in comparison.rows if row.verdict == verdicts.MISSING]
        worse = [row for row in comparison.regressions if row.verdict != verdicts.MISSING]
        unsure = [row for row in comparison.rows if row.ratio and row.ratio > 1
                  and (row.verdict == verdicts.UNDECIDED or row.verdict == verdicts.DISTURBED and row.exceeds)]
        lines = []
        if missing:
            lines.append(f"MISSING: {len(missing)} of {count(comparison.common + len(missing), 'row')} of the baseline, "
                         f"of {listed(dict.fromkeys(row.key.kernel for row in missing))}")
        slower = all(row.verdict == verdicts.SLOWER for row in worse)
        for rows, state in ((worse, "SLOWER" if slower else "WORSE"), (unsure, "SLOWER, BUT UNDECIDED")):
            if rows:
                worst = max(rows, key=lambda row: row.effect)
                why = f" ({worst.notes[-1]})" if rows is unsure else ""
                lines.append(f"{state}: {len(rows)} of {count(comparison.common, 'row')}; {self._change_words(worst)}{why}")
        if lines:
            return [(True, words) for words in lines]
        faster = comparison.counts[verdicts.FASTER]
        judged = faster + comparison.counts[verdicts.SAME]
        if not judged:
            others = listed(f"{number} {name}" for name, number in comparison.counts.items())
            return [(True, f"NOT COMPARED with the baseline: {others}")]
        return [(False, f"NOT SLOWER than the baseline: {count(judged, 'row')}, {faster} of them faster, none missing")]

    def _change_words(self, row):
        """The row, by how much it changed, and of the decoder's the part of a step that is to blame."""
        key = row.key
        if key.kernel != records.DECODER:
            return str(key) + ("" if row.ratio is None else f" {change(row.ratio)} time")
        models = {entry.row["model"] for entry in self.ours(records.DECODER)}
        words = f"batch {key.batch}" if len(models) == 1 else f"{key.model} batch {key.batch}"
        if row.ratio is None:
            return words
        label = f"{key.model} batch {key.batch}, {records.lengths(key._asdict())} tokens, "
        blamed = next((one.blamed for one in self._all_differences[1] if one.label.startswith(label)), None)
        return (f"{words} {change(1 / row.ratio)} tok/s"
                + (f": {blame.GAPS.get(blamed.name, blamed.name)}" if blamed else ""))

    def _state(self):
        """(whether there is trouble, words): whether all rows stand, in one line."""
        grave = {}
        for note in self.notes:
            if note.grave:
                grave.setdefault((note.kind, note.of), []).append(note.number)
        if grave:
            kinds = listed(f"{count(sum(numbers), of)} {kind}" for (kind, of), numbers in grave.items())
            return True, ("INCOMPLETE: " if MISSING & {kind for kind, _ in grave} else "READ WITH CARE: ") + kinds
        undisturbed = "" if any(note.kind == "rested" for note in self.notes) else ", undisturbed"
        return False, f"ALL ROWS STAND: {len(self.entries):,} verified{undisturbed}, no run cut short"

    def _runs_of(self, label):
        return [run for run in self.history_runs if commit_label(run.fingerprint) == label]

    @cached_property
    def ablations(self):
        """The newest line with figures of each ablated op, by batch, largest effect end to end first."""
        newest = {}
        for run in sorted(self.runs, key=lambda run: run.time):
            for line, digest in ablate.digests(run):
                if line["status"] == "ok":
                    key = (line["model"], line["device"], line["batch"], records.lengths(line), line["dtype"],
                           line["name"])
                    before = newest.get(key)
                    if before and before.run is run and abs(before.digest.end_to_end.ratio - 1) > \
                            abs(digest.end_to_end.ratio - 1):
                        continue  # of several controls the furthest from 1
                    newest[key] = Ablated(run, line, digest)
        return told_apart(sorted(newest.values(), key=lambda one: (one.line["batch"], -one.digest.end_to_end.ratio)))

    @cached_property
    def notes(self):
        """What was refused, disturbed, interrupted, injected or differs between runs."""
        notes = []
        for entry in self.refused:
            notes.append(Note("refused", f"{entry.kernel} {entry.name}, {entry.how}: {entry.row.get('reason')}", of="row"))
        current = self._current_runs
        for run in current:
            for line in run.ablations:
                if line["status"] != "ok":
                    notes.append(Note("refused", f"ablation of {line['name']}: {line.get('reason')}", of="row"))
        for entry in self.entries:
            if entry.row.get("limit_is_wrong"):
                notes.append(Note("above the limit", f"{entry.kernel} {entry.name}, {entry.how}, is right and above its "
                                  f"{entry.row['limit']} limit ({percent(entry.percent)}): the limit is wrong", of="row"))
        disturbed = {}
        for entry in self.entries:
            if records.is_spoilt(entry.row):
                disturbed.setdefault(entry.row["disturbed"], []).append(entry)
        for words, entries in disturbed.items():
            kernels = listed(dict.fromkeys(entry.kernel for entry in entries))
            notes.append(Note("disturbed", f"{count(len(entries), 'row')}, of {kernels}: {words}",
                              number=len(entries), of="row"))
        rested = sum(bool(entry.row.get("disturbed")) and not records.is_spoilt(entry.row) for entry in self.entries)
        if rested:
            notes.append(Note("rested", f"{count(rested, 'row')} met the power cap although the GPU rested between "
                              "their samples, and count", grave=False))
        without = sum(not entry.ok for entry in self.entries if entry.peer is not None)
        if without:
            notes.append(Note("peers", f"{count(without, 'row')} of peers without a figure, mostly work that they "
                              "do not do: the tables say why", grave=False))
        for run in current:
            what = f"a run of {run.program} ({commit_label(run.fingerprint)}, {run.time})"
            if run.killed:
                notes.append(Note("killed", f"{what} has no end: it was killed, and rows may be missing"))
            elif run.interrupted:
                notes.append(Note("interrupted", f"{what} was interrupted: rows are missing"))
            if run.injected is not None:
                notes.append(Note("slowed on purpose", f"{what} was slowed on purpose: {json.dumps(run.injected)}"))
            states = {"before": run.gpu.get("before") or {}, "after": (run.end or {}).get("gpu_after") or {}}
            throttled = {when: state["throttle_reasons"] for when, state in states.items() if state.get("throttled")}
            if throttled:
                notes.append(Note("throttled", f"the GPU was throttled {listed(throttled)} {what}: "
                                  f"{listed(dict.fromkeys(throttled.values()))}"))
            crowded = {when: state["other_processes"] for when, state in states.items() if state.get("other_processes")}
            if crowded:
                others = count(max(crowded.values()), "other process", "other processes")
                notes.append(Note("crowded", f"{others} on the GPU {listed(crowded)} {what}"))
            for mode in ("mig", "mps"):
                if run.gpu.get(mode):
                    notes.append(Note("crowded", f"{what} had {mode.upper()} on: it shared the GPU"))
        return notes + self._mild_notes()

    @cached_property
    def _current_runs(self):
        """The runs whose rows stand, and those that ended early and that no later run of their program makes up for:
        what other runs suffered has passed."""
        stand = {id(entry.run) for entry in self.entries}
        newest = max(run.time for run in self.runs)
        complete = {}
        for run in self.runs:
            if not (run.killed or run.interrupted):
                complete[run.program] = max(run.time, complete.get(run.program, run.time))
        return [run for run in self.runs if id(run) in stand or run.ablations or run.time == newest
                or (run.killed or run.interrupted) and run.time > complete.get(run.program, "")]

    @cached_property
    def _candidate_runs(self):
        """What a baseline is compared with: the current runs, and as further rounds the runs of the same program and
        commit in the same file."""
        current = {(run.path, run.program, commit_label(run.fingerprint)) for run in self._current_runs}
        return [run for run in self.runs if (run.path, run.program, commit_label(run.fingerprint)) in current]

    def _mild_notes(self):
        notes = []
        cut_short = sum(run.killed or run.interrupted for run in self.runs
                        if not any(run is each for each in self._current_runs))
        if cut_short:
            notes.append(Note("older", f"{count(cut_short, 'older run')} ended early, and newer rows replace "
                              "theirs", grave=False))
        missing = [name for name in [*kernels.names(), records.DECODER]
                   if name not in {entry.kernel for entry in self.entries}]
        if missing:
            notes.append(Note("not run", listed(missing), grave=False))
        if self.device == "cpu":
            notes.append(Note("CPU only", "every row is the CPU reference, which is written to be right, not to be "
                              "fast: no GPU was measured", grave=False))
        newest = max(self.runs, key=lambda run: run.time)
        current = self._current_runs
        labels = Counter(commit_label(entry.run.fingerprint) for entry in self.entries)
        if len(labels) > 1:
            parts = [f"{count(rows, 'row')} of {label}" for label, rows in labels.most_common()]
            notes.append(Note("several commits", listed(parts), grave=False))
        differing = Counter(words for run in current for words in records.comparable(newest, run))
        for words, runs in differing.items():
            notes.append(Note("machines differ", f"{words} ({count(runs, 'run')} of {len(current)})", grave=False))
        dirty = [run for run in current if commit_label(run.fingerprint).endswith("+")]
        if dirty:
            notes.append(Note("changed tree", f"{count(len(dirty), 'run')} of {len(current)} had changes that "
                              "no commit holds (marked +)", grave=False))
        if self.replaced:
            refused = sum(not entry.ok for entry in self.replaced)
            notes.append(Note("replaced", f"{count(len(self.replaced), 'other row')} of the same measurements "
                              + (f"({refused} of them refused) " if refused else "")
                              + "stand in the plots over commits only", grave=False))
        return notes

    @cached_property
    def workload_names(self):
        """{id(entry): name}: of several rows of one workload with what tells them apart."""
        by_name = {}
        for entry in self.ours(records.WORKLOAD):
            name, *parts = workload_parts(entry)
            by_name.setdefault(name, {})[id(entry)] = parts
        return {entry: ", ".join([name, *(part for part in parts if not all(part in other for other in rows.values()))])
                for name, rows in by_name.items() for entry, parts in rows.items()}

    @cached_property
    def rate_sweeps(self):
        """{name: [Entry]}: rows of one workload that differ by their request rate, slowest first."""
        sweeps = {}
        for entry in self.ours(records.WORKLOAD):
            shape = entry.row["shape"]
            if entry.ok and "rate" in shape:
                rest = {name: value for name, value in shape.items() if name not in ("rate", "hash")}
                name = f"{entry.row['model']}, {entry.row['dtype']}, {entry.how}, {records.shape_label(rest)}"
                sweeps.setdefault(name, []).append(entry)
        return {name: sorted(entries, key=lambda entry: float(entry.row["shape"]["rate"]))
                for name, entries in sweeps.items() if len(entries) > 1}

    @cached_property
    def furthest_sentence(self):
        if not self.furthest:
            return "How far a kernel is from its limit is not known: no cold row with measured peaks."
        entry = self.furthest[0]
        return (f"Furthest from its limit: {entry.kernel}, at {percent(entry.percent)} of the {entry.row['limit']} "
                f"limit: {microseconds(entry.median_us)} where {microseconds(entry.floor_us)} would do, on "
                f"{entry.name}.")


def profiled_on_both_sides(runs_a, runs_b):
    """The runs of each side with a profile of a decoder row that is on both sides."""
    shared = blame.decoder_rows(runs_a).keys() & blame.decoder_rows(runs_b).keys()
    return [[run for run in side if any(row.get("profile") and records.key(row) in shared for row in run.rows)]
            for side in (runs_a, runs_b)]


def told_apart(ablations):
    """The ablations, named by their lengths where these differ, and by their dtypes."""
    settings = [(f"{records.lengths(one.line)} tokens", one.line["dtype"]) for one in ablations]
    differing = [len(set(values)) > 1 for values in zip(*settings)]
    return [replace(one, apart="".join(f", {words}" for words, differs in zip(setting, differing) if differs))
            for one, setting in zip(ablations, settings)]


def measured_alike(a, b):
    """Whether two rows are of one GPU and rested, or did not rest, both."""
    return (a.run.gpu.get("uuid_hash") == b.run.gpu.get("uuid_hash")
            and bool(a.row.get("rested")) == bool(b.row.get("rested")))


def workload_parts(entry):
    """The short name of a workload and what else its row says of it: requests that were made up have their
    parameters for a name."""
    name, *parts = records.shape_parts(entry.row["shape"])
    kind, _, parameters = name.partition(":")
    if parameters and "/" not in name:
        requests, *others = parameters.split(",")
        name, parts = f"{kind} {requests}", others + parts
    return [name, entry.row["model"], *parts]


def decoder_group(entry):
    row = entry.row
    return row["model"], row["dtype"], row["implementation"], records.lengths(row)
