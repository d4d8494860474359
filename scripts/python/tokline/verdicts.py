"""Says for each row of two sets of runs whether it became slower, and what else became worse.
docs/gating.md has the reasons; Rules has the constants."""

import math
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cache

import numpy as np

from tokline import records, statistics
from tokline.records import BadRecords
from tokline.schema import LEAST_CHANGE, MAX_MEAN_REGRET
from tokline.terminal import count

# The standard error of the median of n samples of normal noise is this times MAD / sqrt(n).
_MEDIAN_ERROR = 1.4826 * 1.2533
# With at least this many medians of both sides together, their own spread determines the A/A floor.
_ENOUGH_MEDIANS = 6
_SIMULATED = 100_000
# The fields that may differ with --ab, which compares builds.
_BUILD_WORDS = ("compiler:", "CUDA compiler:", "compiler flags:", "build type:")

FASTER, SLOWER, SAME, DISTURBED, UNDECIDED = "faster", "slower", "same", "disturbed", "undecided"
UNVERIFIED, MISSING, NEW, NOT_COMPARABLE = "unverified", "missing", "new", "not comparable"
VERDICTS = (SLOWER, UNVERIFIED, MISSING, DISTURBED, UNDECIDED, NOT_COMPARABLE, NEW, FASTER, SAME)


@dataclass(frozen=True)
class Rules:
    """When a difference counts."""
    alpha: float = 0.01  # of the U test, over all rows together
    least_percent: float = 100 * LEAST_CHANGE  # a smaller effect never counts
    kernel_us: float = 0.01  # nor does a smaller difference, for a launch or a token of a workload,
    decoder_us: float = 1.0  # or for a decode step
    single_run_percent: float = 3.0  # the A/A floor if nothing is known about the noise between runs;
    known_run_percent: float = 15.0  # a larger effect is then undecided up to what single runs have differed by,
    known_cpu_run_percent: float = 100.0  # on a GPU and on CPU cores
    noisy_percent: float = 10.0  # a larger effect is never "the same", however much the row varies
    floor_alpha: float = 0.002  # how often the noise of equal programs may exceed the A/A floor, on one side
    memory_percent: float = 1.0  # memory grew if it did so by more than this
    memory_bytes: int = 1 << 20  # and by more than this
    error_share: float = 0.5  # an error grew if it is above this share of its bound
    error_factor: float = 2.0  # and more than this times the baseline's


@dataclass
class Row:
    """The verdict on one row, and its reasons. Times are medians over rounds; effects are relative."""
    key: records.RowKey
    verdict: str = SAME
    a_us: float | None = None
    b_us: float | None = None
    ratio: float | None = None  # b over a
    interval: tuple | None = None  # 95 % of the ratio
    p: float | None = None  # of the U test for "slower" or "faster", corrected for the number of rows
    needed: float | None = None  # the effect that would count
    floor: float | None = None  # the part of it that is the A/A floor
    rounds: int = 0  # of a missing row, the runs of B that have it
    knows_noise: bool = True  # whether the floor comes from the noise between runs
    regressions: list = field(default_factory=list)  # why the row gates, in words
    notes: list = field(default_factory=list)

    @property
    def effect(self):
        """The relative change, for sorting; rows without figures come first."""
        return math.inf if self.ratio is None else self.ratio - 1

    @property
    def change(self):
        """The size of the effect, slower or faster."""
        return max(self.ratio, 1 / self.ratio) - 1

    @property
    def exceeds(self):
        """Whether it is larger than what would count."""
        return self.change > self.needed


@dataclass
class Comparison:
    rows: list
    differences: list  # of the fingerprints, in words
    notes: list
    vanished: list  # kernels of which no row is left
    rules: Rules
    across: bool = False
    faults: list = field(default_factory=list)  # what went wrong in measuring B, and gates
    only: str = ""  # the rows that were looked at

    @property
    def common(self):
        return sum(row.verdict not in (MISSING, NEW) for row in self.rows)

    @property
    def refused(self):
        """Why there are no verdicts, in words; "" if there are."""
        if self.differences and not self.across:
            return "the fingerprints differ, so the rows are not comparable"
        if self.only and not self.rows:
            return f"no row matches --only '{self.only}'"
        if not self.common and not any(row.rounds for row in self.rows):
            return "no row is in both"
        return ""

    @property
    def regressions(self):
        return [row for row in self.rows if row.regressions]

    @property
    def undecided(self):
        return [row for row in self.rows if row.verdict == UNDECIDED]

    @property
    def blind(self):
        """Rows that are called the same, but vary too much to show an effect of noisy_percent."""
        least = self.rules.noisy_percent / 100
        return [row for row in self.rows if row.verdict == SAME and row.needed is not None and row.needed > least]

    @property
    def counts(self):
        return Counter(row.verdict for row in self.rows)

    def summary(self):
        """One sentence."""
        counts = self.counts
        parts = [f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS if counts[verdict]]
        ratios = [row.ratio for row in self.rows if row.ratio is not None]
        change = ""
        if ratios:
            change = f"; B takes {100 * statistics.geometric_mean(ratios):.1f} % of A's time, geometric mean"
        return f"{count(len(self.rows), 'row')}: {', '.join(parts)}{change}."

    def to_json(self):
        """The comparison as JSON (docs/gating.md)."""
        rows = []
        for row in self.rows:
            rows.append(vars(row) | {"row": str(row.key), "key": row.key._asdict()})
        return {"schema": 1, "kind": "comparison", "refused": self.refused or None, "across": self.across,
                "regressed": bool(self.regressions or self.faults), "faults": self.faults, "summary": self.summary(),
                "counts": dict(self.counts), "differences": self.differences, "vanished": self.vanished,
                "notes": self.notes, "rules": asdict(self.rules), "rows": rows}


def spread(groups):
    """The noise of medians from run to run: the root mean square of the deviations (of logarithms) from each
    group's median, without the largest tenth of them. It is not scaled; floor_factor() is for exactly this."""
    deviations = np.sort(np.concatenate([np.abs(group - np.median(group)) for group in groups]))
    kept = deviations[: len(deviations) - len(deviations) // 10]
    return float(np.sqrt(np.mean(kept**2)))


@cache
def floor_factor(a_runs, b_runs, paired, noise_runs, miss):
    """The multiple of spread() that the effect of equal programs exceeds, on one side, with probability
    `miss`.

    Found by simulating experiments of normal noise with these numbers of runs; seeded, so always the
    same. With noise_runs > 0 the spread comes from as many runs of another experiment, otherwise from
    this one.
    """
    random = np.random.default_rng([a_runs, b_runs, noise_runs])
    a = random.standard_normal((_SIMULATED, a_runs))
    b = random.standard_normal((_SIMULATED, b_runs))
    if paired:
        effects = np.median(b - a, axis=1)
    else:
        effects = np.median(b, axis=1) - np.median(a, axis=1)
    groups = [random.standard_normal((_SIMULATED, noise_runs))] if noise_runs else [a, b]
    deviations = np.concatenate([np.abs(group - np.median(group, axis=1, keepdims=True)) for group in groups], axis=1)
    deviations.sort(axis=1)
    kept = deviations[:, : deviations.shape[1] - deviations.shape[1] // 10]
    spreads = np.sqrt(np.mean(kept**2, axis=1))
    return float(np.quantile(np.abs(effects) / spreads, 1 - 2 * miss))


class Noise:
    """The spread of each row in an A/A experiment: runs of one program, all of them equal."""
    def __init__(self, runs, path="--noise"):
        commits = {run.commit for run in runs}
        if len(commits) > 1:
            raise BadRecords(f"{path}: holds runs of {len(commits)} commits; an A/A experiment is of one")
        self.run = runs[0]
        self._rows = {}
        for key, measured in _by_key(runs, False).items():
            medians = [records.median_us(row) for _, row in measured if row["status"] == "ok"]
            if len(medians) >= _ENOUGH_MEDIANS:
                self._rows[key] = (spread([np.log(medians)]), len(medians))
        self._anywhere = {key.anywhere(): found for key, found in self._rows.items()}
        if not self._rows:
            raise BadRecords(f"{path}: no row has {_ENOUGH_MEDIANS} runs or more; make it with "
                             "scripts/records gate --aa BIN --out FILE")

    def of(self, key):
        """(spread, runs) of a row, or None; also of its key.anywhere(), on whatever device they were measured."""
        return self._rows.get(key) or self._anywhere.get(key)

    @property
    def spreads(self):
        """The spread of each row."""
        return {key: value for key, (value, _) in self._rows.items()}


def compare(runs_a, runs_b, rules=Rules(), noise=None, only=None, across=False, builds_differ=False):
    """The Comparison of two sets of runs. `only` is a regular expression that a row's words must match;
    `builds_differ` allows other compilers and flags, for two builds that are measured in turn."""
    rows_a, rows_b = _by_key(runs_a, across), _by_key(runs_b, across)
    pattern = re.compile(only or "")
    keys = [key for key in {**rows_a, **rows_b} if not pattern or pattern.search(str(key))]
    notes = _notes_on_runs("A", runs_a) + _notes_on_runs("B", runs_b)
    differences, expected = _differences(keys, rows_a, rows_b, builds_differ)
    notes += [f"the builds differ in {words}" for words in expected]
    if noise and runs_b:
        apart = records.comparable(noise.run, runs_b[0])
        notes += [f"the A/A experiment was elsewhere: {words}" for words in apart]
    attempts_a, attempts_b = _attempts(runs_a), _attempts(runs_b)
    rows, pending = [], []
    for key in keys:
        row = Row(key)
        rows.append(row)
        if key not in rows_b:
            _set_missing(row, rows_a[key], [], attempts_b)
        elif key not in rows_a:
            row.verdict = NEW
            row.b_us = _median_over(rows_b[key])
        elif _most_lack(rows_b[key], attempts_b) and not _most_lack(rows_a[key], attempts_a):
            _set_missing(row, rows_a[key], rows_b[key], attempts_b)
        else:
            row.a_us, row.b_us = _median_over(rows_a[key]), _median_over(rows_b[key])
            tests = _judge(row, [each for _, each in rows_a[key]], [each for _, each in rows_b[key]], rules, noise)
            if tests:
                pending.append((row, *tests))
    _decide(pending, rules)
    kernels_b = {key.kernel for key in keys if key in rows_b}
    vanished = sorted({key.kernel for key in keys} - kernels_b) if kernels_b else []
    rows.sort(key=lambda row: (-row.effect, row.key))
    return Comparison(rows, differences, notes, vanished, rules, across, only=pattern.pattern)


def _by_key(runs, across):
    """(run, row) by key in order of time. A run gives only its last row of a key, and none that was interrupted."""
    found = {}
    for run in sorted(runs, key=lambda run: run.time):
        latest = {}
        for row in run.rows:
            if not row.get("interrupted"):
                key = records.key(row)
                latest[key.anywhere() if across else key] = (run, row)
        for key, measured in latest.items():
            found.setdefault(key, []).append(measured)
    return found


# The arguments that say where records lie: runs of one command differ in them.
_PLACES = ("--record", "--peaks")


def _asked(run):
    """What a run was asked to measure: its program and arguments, without the paths of records."""
    arguments = run.fingerprint["command_line"][1:]
    return run.program, *(word for before, word in zip(["", *arguments], arguments)
                          if word.partition("=")[0] not in _PLACES and before not in _PLACES)


def _attempts(runs):
    """{(what was asked for, kernel): ids of the runs}. The kernel is None for a run that ended before one could know
    all of its kernels."""
    found = {}
    for run in runs:
        kernels = set() if run.killed else {row["kernel"] for row in run.rows}
        for kernel in kernels or {None}:
            found.setdefault((_asked(run), kernel), set()).add(run.run_id)
    return found


def _attempts_at(measured, attempts):
    """How many runs were to measure a row, whether or not they have it."""
    wanted = {(_asked(run), kernel) for run, row in measured for kernel in (row["kernel"], None)}
    return len(set().union(*(attempts.get(each, ()) for each in wanted)))


def _most_lack(measured, attempts):
    return 2 * len(measured) < _attempts_at(measured, attempts)


def _set_missing(row, measured_a, measured_b, attempts_b):
    row.verdict, row.rounds = MISSING, len(measured_b)
    row.a_us, row.b_us = _median_over(measured_a), _median_over(measured_b)
    runs = _attempts_at(measured_b, attempts_b)
    row.regressions.append(f"absent from {runs - row.rounds} of {count(runs, 'run')}" if runs else "the row is missing")


def _notes_on_runs(side, runs):
    notes = []
    for run in runs:
        if run.killed:
            notes.append(f"{side}: the run of {run.program} in {run.path} was killed before its end; "
                         f"the {count(len(run.rows), 'row')} that it wrote count")
        elif run.interrupted:
            notes.append(f"{side}: the run of {run.program} in {run.path} was interrupted")
    injected = {", ".join(f"{name} {value}" for name, value in run.injected.items()) for run in runs if run.injected}
    notes += [f"{side}: slowed on purpose, to test the tools: {words}" for words in sorted(injected)]
    commits = {run.commit for run in runs}
    if len(commits) > 1:
        notes.append(f"{side}: holds runs of {len(commits)} commits")
    return notes


def _differences(keys, rows_a, rows_b, builds_differ):
    """The fingerprint fields that differ between runs whose rows would be compared, and those whose difference is
    expected."""
    differing, seen = Counter(), set()
    for key in keys:
        if key not in rows_a or key not in rows_b:
            continue
        first = rows_a[key][0][0]
        for run in [run for run, _ in rows_a[key][1:] + rows_b[key]]:
            pair = (first.run_id, run.run_id)
            if pair not in seen:
                seen.add(pair)
                differing.update(records.comparable(first, run))
    expected = [words for words in differing if builds_differ and words.startswith(_BUILD_WORDS)]
    return [words for words in differing if words not in expected], expected


def _median_over(measured):
    """The median over the rows that were not refused, or None."""
    medians = [records.median_us(row) for _, row in measured if row["status"] == "ok"]
    return statistics.median(medians) if medians else None


def _is_wrong(row):
    """Whether a row was refused because what it computed was wrong."""
    return row["status"] == "refused" and row["reason"].startswith("unverified")


def _judge(row, all_a, all_b, rules, noise):
    """Fills the row except for the verdict, which depends on all other rows. Returns (p slower, p faster,
    least p) of the U test, or None if there is nothing to test."""
    a = [each for each in all_a if each["status"] == "ok"]
    b = [each for each in all_b if each["status"] == "ok"]
    refused_b = [each for each in all_b if each["status"] == "refused"]
    if not a:
        row.verdict = NOT_COMPARABLE
        row.notes.append(f"refused in A: {all_a[-1]['reason']}")
        return None
    wrong = [each for each in refused_b if _is_wrong(each)]
    if wrong and not any(_is_wrong(each) for each in all_a) or 2 * len(refused_b) > len(all_b):
        reason = (wrong or refused_b)[-1]["reason"]
        row.verdict = UNVERIFIED
        row.regressions.append(f"refused in {len(refused_b)} of {count(len(all_b), 'run')}: {reason}")
        return None
    refusals = len(all_a) - len(a) + len(refused_b)
    if refusals:
        row.notes.append(f"{count(refusals, 'run')} refused, the others count")
    versions = {str((each["library"] or {}).get("version")) for each in a + b}
    if len(versions) > 1:
        row.verdict = NOT_COMPARABLE
        row.notes.append(f"versions of the library differ: {', '.join(sorted(versions))}")
        return None
    _judge_memory(row, a, b, rules)
    _judge_error(row, a, b, rules)
    return _judge_time(row, a, b, rules, noise)


def _judge_memory(row, a, b, rules):
    sizes = [[size for size in map(records.own_memory_bytes, side) if size is not None] for side in (a, b)]
    if not all(sizes):
        return
    before, after = (statistics.median(side) for side in sizes)
    growth = after - before
    if growth > rules.memory_bytes and growth > rules.memory_percent / 100 * before:
        row.regressions.append(f"memory grew from {before / 2**20:,.1f} to {after / 2**20:,.1f} MiB")


def _judge_error(row, a, b, rules):
    """The error of random inputs differs from seed to seed: the smallest of B is compared with the largest of A."""
    if row.key.kernel in records.WHOLE:
        what = "mean regret"
        most = MAX_MEAN_REGRET[row.key.kernel]
        errors = [[each["verified"]["mean_regret"] / most for each in side if "mean_regret" in each["verified"]]
                  for side in (a, b)]
        if not all(errors):  # of another program only the number of tokens is checked
            return
    else:
        what = "error"
        errors = [[each["verified"]["max_error_over_bound"] for each in side] for side in (a, b)]
    before, after = max(errors[0]), min(errors[1])
    if after > rules.error_share and after > rules.error_factor * before:
        row.regressions.append(f"{what} grew from {before:.2f} to {after:.2f} of its bound")


def _judge_time(row, a, b, rules, noise):
    clean_a, clean_b, paired = _undisturbed(row, a, b)
    samples = [[records.samples_us(each) for each in side] for side in (clean_a, clean_b)]
    logs = [np.log([records.median_us(each) for each in side]) for side in (clean_a, clean_b)]
    row.a_us, row.b_us = (float(np.exp(np.median(side))) for side in logs)
    row.rounds = min(len(clean_a), len(clean_b))
    effect = float(np.median(logs[1] - logs[0]) if paired else np.median(logs[1]) - np.median(logs[0]))
    row.ratio = math.exp(effect)
    row.floor, row.knows_noise = _floor(row, logs, paired, rules, noise)
    row.needed = max(rules.least_percent / 100, 3 * _median_error(clean_a, clean_b), row.floor)
    row.interval = _interval(effect, logs, paired, samples)
    if paired and row.rounds > 1:
        pairs = list(zip(*samples))
        slower, faster = statistics.stratified_u_test(pairs)
        least = statistics.smallest_p([(len(a_), len(b_)) for a_, b_ in pairs])
    else:
        pooled = [np.concatenate(side) for side in samples]
        slower, faster = statistics.u_test(*pooled)
        least = statistics.smallest_p([(len(pooled[0]), len(pooled[1]))])
    return slower, faster, least


def _undisturbed(row, a, b):
    """The rows of both sides that count, and whether they are pairs. Disturbed rounds are left out if
    at least half of all rounds remain."""
    paired = len(a) == len(b)
    if paired:
        clean = [i for i in range(len(a)) if not (records.is_spoilt(a[i]) or records.is_spoilt(b[i]))]
        kept_a, kept_b = [a[i] for i in clean], [b[i] for i in clean]
    else:
        kept_a, kept_b = ([each for each in side if not records.is_spoilt(each)] for side in (a, b))
    if len(kept_a) == len(a) and len(kept_b) == len(b):
        return a, b, paired
    reasons = sorted({each["disturbed"] for each in a + b if records.is_spoilt(each)})
    words = ", ".join(reasons)
    if len(reasons) == 1 and all(2 * sum(map(records.is_spoilt, side)) > len(side) for side in (a, b)):
        # A kernel that reaches the power cap does so on both sides: that is its state, not an accident.
        row.notes.append(f"in most runs of both sides: {words}")
        return a, b, paired
    if kept_a and kept_b and 2 * len(kept_a) >= len(a) and 2 * len(kept_b) >= len(b):
        row.notes.append(f"disturbed runs left out ({words})")
        return kept_a, kept_b, paired
    row.notes.append(f"rests on disturbed runs ({words})")
    row.verdict = DISTURBED
    return a, b, paired


def _floor(row, logs, paired, rules, noise):
    """The A/A floor: the effect that equal programs exceed on each side in floor_alpha of the cases, and whether it
    comes from the noise between runs."""
    counts = len(logs[0]), len(logs[1])
    known = noise.of(row.key) if noise else None
    if sum(counts) >= _ENOUGH_MEDIANS and min(counts) > 1:
        known = spread(logs), 0
    if not known:
        return rules.single_run_percent / 100, False
    noise_of_logs, runs = known
    return math.expm1(floor_factor(*counts, paired, runs, rules.floor_alpha) * noise_of_logs), True


def _median_error(a, b):
    """The relative standard error of the ratio of two medians of samples, from their MADs; for several
    rounds it is that of the median round."""
    errors = []
    for side in (a, b):
        errors.append(statistics.median([_MEDIAN_ERROR
                                         * records.mad_us(row)
                                         / records.median_us(row)
                                         / math.sqrt(len(records.samples_us(row)))
                                         for row in side]))
    return math.hypot(*errors)


def _interval(effect, logs, paired, samples):
    """The 95 % interval of the ratio: from the rounds if there are enough, otherwise from the samples."""
    counts = len(logs[0]), len(logs[1])
    if sum(counts) >= _ENOUGH_MEDIANS and min(counts) > 1:
        half = floor_factor(*counts, paired, 0, 0.025) * spread(logs)
        return math.exp(effect - half), math.exp(effect + half)
    # The samples of each run around its own median: runs of one side may lie far apart.
    low, high = statistics.ratio_interval(*(np.concatenate([run / np.median(run) for run in side]) for side in samples))
    return low * math.exp(effect), high * math.exp(effect)


_MORE = ("measure in rounds", "measure in more rounds")


def _decide(pending, rules):
    """Sets the verdicts on time: by the U test of all rows together, and the sizes of effect and difference."""
    slower = statistics.holm([tests[0] for _, *tests in pending])
    faster = statistics.holm([tests[1] for _, *tests in pending])
    for (row, _, _, least), p_slower, p_faster in zip(pending, slower, faster):
        is_slower = row.ratio > 1
        row.p = float(p_slower if is_slower else p_faster)
        if row.verdict == DISTURBED:
            continue
        absolute = rules.decoder_us if row.key.kernel == records.DECODER else rules.kernel_us
        effect = row.change
        if abs(row.b_us - row.a_us) <= absolute:
            continue
        if not row.exceeds:
            if effect > rules.noisy_percent / 100:
                row.verdict = UNDECIDED
                row.notes.append(f"the row varies too much to show less than {100 * row.needed:.0f} %; {_MORE[row.rounds > 1]}")
            continue
        if row.p > rules.alpha:
            few = least * len(pending) > rules.alpha
            row.verdict = UNDECIDED
            row.notes.append(f"{'too few samples for the U test' if few else 'the samples overlap'}; {_MORE[row.rounds > 1]}")
            continue
        known = rules.known_cpu_run_percent if row.key.device == "cpu" else rules.known_run_percent
        if not row.knows_noise and effect <= known / 100:
            row.verdict = UNDECIDED
            row.notes.append(f"single runs of equal programs differ by up to {known:g} %")
            continue
        row.verdict = SLOWER if is_slower else FASTER
        if is_slower:
            row.regressions.append(f"slower by {100 * effect:.1f} %")
