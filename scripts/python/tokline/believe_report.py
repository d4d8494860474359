"""Judges what scripts/maintain/believe collected: how often the gate and the blame said what was true."""
import itertools
import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from scipy.special import betaincinv

from tokline import blame, records, revision, statistics, terminal, verdicts
from tokline.believe_collect import ROOT, SLOWDOWNS, VERSION_FILE
from tokline.command import MISUSE
from tokline.kernels import names as kernel_names
from tokline.records import BadRecords
from tokline.schema import RULES, VERSION
from tokline.stop import Stop

# What each check must show. The shares are of comparisons or trials.
MIN_AA_ROWS = 300  # without a false alarm, the true share is then at most 1 %
MOST_FALSE_ALARMS = 0.01
MIN_ROWS_A_KERNEL = 20
LEAST_CAUGHT = {3: 0.95, 5: 1.0, 10: 1.0}
MIN_TRIALS, MIN_EQUAL_TRIALS = 20, 5
LEAST_BLAMED = 0.95
ALL_CHEATS = 20
HONEST = "Honest"  # in the names of tests of rows that must not be refused
NO_ROWS = ("AFilterThatMatchesNothing",)  # tests beside them that judge no row
TIMING_WITHIN = 0.02
# What independent timing must cover: rows of about 2, 10, 100 and 1,000 us, from and to so many, and these kernels.
TIMED_LENGTHS = ((1, 4), (5, 20), (50, 300), (500, 2000))
TIMED_KERNELS = ("paged_prefill",)
SLOWED_WITHIN = 1.0  # points: what the independent timer finds of a slowdown that was put in
SLOWED_BY = {"launches", "a spin"}  # in each of these ways some row must have been slowed
STORE_KILLS, STORE_WRITERS = 10000, 8
MOST_SECONDS = {"full run": 600, "gate": 5, "report": 20}
GATE_ROWS = 2000


AA_MUST = (f"at least {MIN_AA_ROWS} distinct rows, {MIN_ROWS_A_KERNEL} a kernel; false alarms <= "
           f"{100 * MOST_FALSE_ALARMS:.0f} % with a confidence of 95 %")


def slowdown_must(percent):
    least = LEAST_CAUGHT[percent]
    return (f"at least {MIN_ROWS_A_KERNEL} distinct rows a kernel, caught "
            + ("always" if least == 1 else f">= {100 * least:.0f} % of each kernel's"))


def each_kernel_is_caught(percent, kernels):
    """Whether of each of a slowdown's `kernels`, as the details have them, as many rows as must be were caught."""
    return all(group["caught"] >= LEAST_CAUGHT[percent] * group["comparisons"] for group in kernels.values())


@dataclass
class Check:
    """A row of the table. `met` is None where nothing was measured; `details` goes to the JSON."""
    id: str
    check: str
    must: str
    reproduce: str
    measured: str = "not measured"
    met: bool | None = None
    details: dict = field(default_factory=dict)

    @property
    def verdict(self):
        return {None: "not measured", True: "yes", False: "NO"}[self.met]


def share(part, whole):
    return f"{part:,} of {whole:,} ({100 * part / whole:.1f} %)"


def largest_share(part, whole):
    """The upper end of the one-sided 95 % Clopper-Pearson interval of a share."""
    return 1.0 if part == whole else float(betaincinv(part + 1, whole - part, 0.95))


class Jobs:
    """The runs of the files that `collect` left, each read once. `left_out` are those whose program was cut short:
    they have none. Raises BadRecords for a file that holds something else, or the run of another."""
    def __init__(self, say=lambda text: None):
        self._say, self._runs, self._paths, self.left_out = say, {}, {}, []

    def runs(self, path):
        if path not in self._runs:
            self._runs[path] = self._read(path)
        return self._runs[path]

    def _read(self, path):
        unfinished = []
        runs = records.read([path], unfinished.append) if b"\n" in path.read_bytes() else []
        if unfinished or not runs or any(run.killed or run.interrupted for run in runs):
            self.left_out.append(str(path))
            self._say(f"{path}: its program was cut short; left out, with what it would be compared with")
            return []
        for run in runs:
            if self._paths.setdefault(run.run_id, path) != path:
                raise BadRecords(f"{path}: run {run.run_id} is in {self._paths[run.run_id]} too")
        return runs


# ---- the gate ----

def bench_comparisons(folders, side, jobs):
    """The gate's own comparison of side `a` with another, one a folder. Of a round that one side lacks, or whose
    program was cut short, the other side does not count either."""
    comparisons = []
    for folder in folders:
        a, b = ({path.name: path for path in (folder / "benches" / name).glob("*.jsonl")} for name in ("a", side))
        rounds = [runs for runs in ((jobs.runs(a[name]), jobs.runs(b[name])) for name in sorted(a.keys() & b.keys()))
                  if all(runs)]
        # What a time limit left undone is no missing row: only kernels with all rounds count.
        done = Counter(run.program for runs, _ in rounds for run in runs)
        whole = {program for program in done if done[program] == max(done.values())}
        if whole:
            comparisons.append(verdicts.compare(*([run for runs in sides for run in runs if run.program in whole]
                                                  for sides in zip(*rounds))))
    return comparisons


def apart(comparisons):
    """What is said of runs of one folder that the gate would not compare; "" where there are none."""
    differences = sorted({words for comparison in comparisons for words in comparison.differences})
    return f"; the gate refuses runs of one folder, which differ in {'; '.join(differences)}" if differences else ""


def distinct(rows):
    """[[row, ...]]: rows that repeat one shape under other names (believe_collect.chosen) count once."""
    groups = {}
    for row in rows:
        shape = json.loads(row.key.shape)
        shape["name"] = shape["name"].partition("~")[0]
        groups.setdefault(row.key._replace(shape=json.dumps(shape, sort_keys=True)), []).append(row)
    return list(groups.values())


def a_kernel(groups):
    return Counter(group[0].key.kernel for group in groups)


def too_few(numbers):
    """What is said of kernels with too few distinct rows, or with none; "" where there are none."""
    few = [f"{name} ({number})" for name, number in sorted(numbers.items()) if number < MIN_ROWS_A_KERNEL]
    missing = [name for name in sorted(kernel_names()) if name not in numbers]
    return ((f"; fewer than {MIN_ROWS_A_KERNEL} distinct rows: {', '.join(few)}" if few else "")
            + (f"; not collected: {', '.join(missing)}" if missing else ""))


def row_in_words(row):
    change = "" if row.ratio is None else f"{terminal.percent(row.ratio, 2)}, "
    words = f"{row.key}: {change}{row.verdict}"
    if row.needed is not None:
        words += f", needed {100 * row.needed:.2f} %"
    if row.p is not None:
        words += f", p {row.p:.1g}"
    return words


def check_false_alarms(folders, jobs):
    check = Check("aa", "equal programs against each other (A/A), over all benches",
                  AA_MUST, "`scripts/maintain/believe collect --only aa`")
    comparisons = bench_comparisons(folders, "again", jobs)
    rows = [row for comparison in comparisons for row in comparison.rows]
    # What the gate says nothing of is neither right nor wrong.
    silent = [row for row in rows if not row.regressions
              and (row.ratio is None or row.verdict in (verdicts.UNDECIDED, verdicts.DISTURBED))]
    rows = [row for row in rows if row not in silent]
    check.details = {"comparisons": len(rows), "not_counted": [f"{row.key}: {row.verdict}" for row in silent]}
    if not rows:
        return check
    alarms = [row for row in rows if row.regressions or row.verdict in (verdicts.SLOWER, verdicts.FASTER)]
    slower = sum(row.verdict == verdicts.SLOWER for row in alarms)
    faster = sum(row.verdict == verdicts.FASTER for row in alarms)
    groups = distinct(rows)
    false = sum(any(row in alarms for row in group) for group in groups)
    most = largest_share(false, len(groups))
    numbers = a_kernel(groups)
    check.measured = (f"{share(false, len(groups))} distinct rows false, of {len(rows):,} comparisons: {slower} called "
                      f"slower, {faster} faster, {len(alarms) - slower - faster} otherwise worse; the true share is at "
                      f"most {100 * most:.2f} % (Clopper-Pearson, one-sided 95 %){too_few(numbers)}{apart(comparisons)}")
    if silent:
        check.measured += f"; {len(silent)} disturbed or undecided rows are not counted"
    check.met = (len(groups) >= MIN_AA_ROWS and most <= MOST_FALSE_ALARMS and not too_few(numbers)
                 and not apart(comparisons))
    effects = sorted(abs(row.ratio - 1) for row in rows if row.ratio is not None)
    check.details |= {"false_alarms": len(alarms), "distinct": len(groups), "most_false_alarms": most,
                       "misses": [row_in_words(row) + "".join(f"; {words}" for words in row.regressions)
                                  for row in alarms],
                       "median_effect_percent": 100 * statistics.median(effects) if effects else None,
                       "largest_effect_percent": 100 * effects[-1] if effects else None,
                       "rows_a_kernel": dict(numbers)}
    return check


def check_slowdown(folders, percent, jobs):
    check = Check(f"slowdown_{percent}", f"every kernel made {percent} % slower",
                  slowdown_must(percent), "`scripts/maintain/believe collect --only slowdowns`")
    comparisons = bench_comparisons(folders, f"slow{percent}", jobs)
    rows = [row for comparison in comparisons for row in comparison.rows]
    silent = [row for row in rows if row.a_us is None]
    rows = [row for row in rows if row.a_us is not None]
    if not rows:
        return check
    kernels = {}
    for group in distinct(rows):
        kernels.setdefault(group[0].key.kernel, []).append(group)
    # Of rows that repeat one shape all must be caught. A row without a figure of the slowed program is not.
    found = {name: {"comparisons": len(groups),
                    "caught": sum(all(row.verdict == verdicts.SLOWER for row in group) for group in groups)}
             for name, groups in sorted(kernels.items())}
    changes = {name: [row.ratio for group in groups for row in group if row.ratio is not None]
               for name, groups in kernels.items()}
    total, number = (sum(group[what] for group in found.values()) for what in ("caught", "comparisons"))
    worst, of_worst = min(found.items(), key=lambda item: item[1]["caught"] / item[1]["comparisons"])
    few = too_few({name: len(groups) for name, groups in kernels.items()})
    by_launches = rows_slowed_by_launches(folders, percent, jobs)
    own = sum(all(row.key in by_launches for row in group) for groups in kernels.values() for group in groups)
    check.measured = f"{share(total, number)} caught, {own:,} of them slowed by launches of their own, the others by a spin"
    if total < number:
        check.measured += f"; least of {worst}: {of_worst['caught']} of {of_worst['comparisons']}"
    if silent:
        check.measured += f"; without a figure of the program as it is, and not counted: {len(silent)}"
    check.measured += few + apart(comparisons)
    check.details = {"comparisons": len(rows), "caught": total, "distinct": number, "by_launches": own,
                     "kernels": {name: group | {"median_percent": 100 * (statistics.median(changes[name]) - 1)}
                                 for name, group in found.items() if changes[name]},
                     "not_counted": [f"{row.key}: {row.verdict}" for row in silent],
                     "misses": [row_in_words(row) for row in rows if row.verdict != verdicts.SLOWER]}
    check.met = not few and not apart(comparisons) and each_kernel_is_caught(percent, found)
    return check


def slowed_by_launches(launches, percent):
    """Whether a whole number of launches slows a graph of so many, as MoreLaunches() of harness/measure has it."""
    wanted = launches * percent / 100
    return abs(int(wanted + 0.5) - wanted) <= RULES["repeated_launches_within"] * wanted


def rows_slowed_by_launches(folders, percent, jobs):
    """Keys of rows that more launches of the same kernel made slower: the kernel itself did more. All others had a
    spin beside it."""
    return {records.key(row) for folder in folders for path in (folder / "benches" / f"slow{percent}").glob("*.jsonl")
            for run in jobs.runs(path) for row in run.rows
            if row["device"] != "cpu" and slowed_by_launches(row["launches_per_sample"], percent)}


# ---- the blame ----

@dataclass
class Trial:
    """A decoder row of a run that was delayed on purpose, against the same row of its round's run as it is."""
    injected: str
    expected: str | None
    result: blame.Difference

    @property
    def said(self):
        return self.result.blamed.name if self.result.blamed else None

    @property
    def right(self):
        return self.said == self.expected

    def __str__(self):
        return f"{self.injected}, batch {self.result.a.batch}: {blame.verdict(self.result)}"


def expected_of(injected):
    return "host_gap" if "host_delay_us" in injected else injected["op"]


def trials_of(folders, jobs):
    """(trials of delayed runs, trials of equal runs). A round without a whole run as it is has none."""
    delayed, equal = [], []
    for folder in folders:
        rounds = sorted((folder / "decoder").glob("round*"), key=lambda path: int(path.name[5:]))
        bases = {path: jobs.runs(path / "base.jsonl") for path in rounds if (path / "base.jsonl").exists()}
        bases = {path: base for path, base in bases.items() if base}
        for before, after in itertools.pairwise(bases.values()):
            equal += [Trial("nothing", None, result) for result in blame.differences(before, after)]
        for path, base in bases.items():
            for other in sorted(path.glob("*.jsonl")):
                runs = [] if other.name == "base.jsonl" else jobs.runs(other)
                if not runs:
                    continue
                injected = runs[0].injected
                if not injected:
                    raise BadRecords(f"{other}: the run says of no delay that was injected")
                try:
                    results = blame.differences(base, runs)
                except blame.NotComparable as error:
                    raise BadRecords(f"{other}: {error}") from None
                delayed += [Trial(json.dumps(injected), expected_of(injected), result) for result in results]
    return delayed, equal


def check_blame(id_, what, trials, must_trials, reproduce, right_words):
    check = Check(id_, what, f"at least {must_trials} trials, >= {100 * LEAST_BLAMED:.0f} %", reproduce)
    if not trials:
        return check
    right = sum(trial.right for trial in trials)
    check.measured = f"{share(right, len(trials))} {right_words}"
    check.met = len(trials) >= must_trials and right >= LEAST_BLAMED * len(trials)
    by_expected = {}
    for trial in trials:
        by_expected.setdefault(trial.expected or "nothing", []).append(trial.right)
    check.details = {"trials": len(trials), "right": right,
                     "by_part": {name: {"trials": len(group), "right": sum(group)}
                                 for name, group in sorted(by_expected.items())},
                     "misses": [str(trial) for trial in trials if not trial.right]}
    return check


def check_parts(id_, what, must, results, percent_of, adds_up):
    """That measured parts add up to what was measured apart from them, for `results` that have parts."""
    check = Check(id_, what, must, "`scripts/maintain/believe collect --only host,ops`")
    if not results:
        return check
    percents = sorted(abs(percent_of(result)) for result in results)
    within = sum(adds_up(result) for result in results)
    check.measured = (f"{share(within, len(results))} within; unexplained: median {statistics.median(percents):.2f} %, "
                      f"largest {percents[-1]:.1f} %")
    check.met = within == len(results)
    check.details = {"trials": len(results), "within": within,
                     "median_unexplained_percent": statistics.median(percents),
                     "largest_unexplained_percent": percents[-1],
                     "misses": [f"{result.label}: {blame.check_sentence(result)}" for result in results
                                if not adds_up(result)]}
    return check


def check_sums(trials):
    results = [trial.result for trial in trials if trial.result.parts]
    within = f"within {blame.EXPLAINED_WITHIN_PERCENT:.0f} %"
    return [check_parts("adds_up", "parts of the waterfall against the difference of the delayed runs",
                        f"{within} of the difference or the noise of a step",
                        [result for result in results if result.beyond_noise],
                        lambda result: result.unexplained_percent, lambda result: result.adds_up),
            check_parts("steps_add_up", "parts of the delayed runs' steps against these steps", f"{within} of the step",
                        results, lambda result: result.b.unexplained_percent,
                        lambda result: "B" not in dict(result.open_sides))]


# ---- results of tests ----

def gtest_results(path):
    """{name of a test: "passed", "failed" or "skipped"} of --gtest_output=json."""
    try:
        cases = [case for suite in json.loads(path.read_text(encoding="utf-8"))["testsuites"]
                 for case in suite["testsuite"]]
        return {case["name"]: "skipped" if case.get("result") == "SKIPPED" else
                "failed" if case.get("failures") else "passed" for case in cases}
    except (OSError, ValueError, KeyError) as error:
        raise BadRecords(f"{path}: no result of --gtest_output: {error}") from None


def check_cheats(paths):
    check = Check("cheats", "cheats: work that is not done, not checked, or done elsewhere",
                  f"{ALL_CHEATS} of {ALL_CHEATS} refused, each by a test",
                  "`cheats_test` and `cheats_cuda_test`, built by `scripts/test`")
    results = {}
    for path in paths:
        for name, result in gtest_results(path).items():
            if name in NO_ROWS:
                continue
            # A cheat that needs a device is skipped by one program and tried by another.
            if results.get(name, "skipped") == "skipped" or result == "failed":
                results[name] = result
    if not results:
        return check
    honest = {name for name in results if HONEST in name}
    refused = sum(result == "passed" for name, result in results.items() if name not in honest)
    standing = sum(results[name] == "passed" for name in honest)
    check.measured = f"{refused} of {len(results) - len(honest)} refused"
    if honest:
        check.measured += f"; {standing} of {len(honest)} honest rows stand"
    check.met = refused >= ALL_CHEATS and refused + standing == len(results)
    check.details = {"tests": results, "misses": [f"{name}: {result}" for name, result in results.items()
                                                  if result != "passed"]}
    return check


def not_timed(lines):
    """What independent timing must cover and (kernel, independent us) of its rows do not, in words."""
    return ([f"no row of {low} to {high:,} us" for low, high in TIMED_LENGTHS
             if not any(low <= us <= high for _, us in lines)]
            + [f"no row of {kernel}" for kernel in TIMED_KERNELS if kernel not in {name for name, _ in lines}])


def check_timing(paths):
    """Of rows as they are, and of rows that were slowed on purpose."""
    lengths = ", ".join(f"{low} to {high:,}" for low, high in TIMED_LENGTHS)
    check = Check("timing", "the suite's figures against an independent measurement of the same launches",
                  f"within {100 * TIMING_WITHIN:.0f} %, of rows of {lengths} us, {' and '.join(TIMED_KERNELS)} among them",
                  "`independent_timing_cuda_test`, built by `scripts/test`")
    slowed_check = Check("slowed_timing", "rows that were slowed on purpose, by the independent timer",
                         f"slowed as asked, within {SLOWED_WITHIN:g} points, by {' and by '.join(sorted(SLOWED_BY))}",
                         "`independent_timing_cuda_test`, built by `scripts/test`")
    lines, slowed, covered, ways = [], [], [], set()
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(text, 1):
                row = json.loads(line)
                ratio = row["suite_us"] / row["independent_us"]
                name = f"{row['kernel']} {row['shape']}"
                if row.get("slowdown_percent"):
                    name += f", {row['slowdown_percent']:g} % slower by {row['by']}"
                    slowed.append((name, row["slowed_percent"] - row["slowdown_percent"]))
                    ways.add(row["by"])
                    continue
                lines.append((name, ratio))
                covered.append((row["kernel"], row["independent_us"]))
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            raise BadRecords(f"{path}: no line of independent timing: {error!r}") from None
    if slowed:
        name, off = max(slowed, key=lambda line: abs(line[1]))
        exact = sum(abs(each) <= SLOWED_WITHIN for _, each in slowed)
        slowed_check.measured = f"{share(exact, len(slowed))} within; furthest {off:+.2f} points ({name})"
        unused = sorted(SLOWED_BY - ways)
        slowed_check.met = exact == len(slowed) and not unused
        if unused:
            slowed_check.measured += f"; none slowed by {' or by '.join(unused)}"
        slowed_check.details = {"rows": [{"row": name, "points": each} for name, each in slowed],
                                "misses": [f"{name}: {each:+.2f} points" for name, each in slowed
                                           if abs(each) > SLOWED_WITHIN]}
    if not lines:
        return [check, slowed_check]
    within = sum(abs(ratio - 1) <= TIMING_WITHIN for _, ratio in lines)
    largest = max(lines, key=lambda line: abs(line[1] - 1))
    check.measured = f"{share(within, len(lines))} within; largest {terminal.percent(largest[1], 2)} ({largest[0]})"
    missing = not_timed(covered)
    check.measured += "".join(f"; {words}" for words in missing)
    check.met = within == len(lines) and not missing
    check.details = {"rows": [{"row": name, "ratio": ratio} for name, ratio in lines],
                     "misses": [f"{name}: {terminal.percent(ratio, 2)}" for name, ratio in lines
                                if abs(ratio - 1) > TIMING_WITHIN]}
    return [check, slowed_check]


def check_store(paths):
    check = Check("store", "the store, its writers killed at random moments",
                  f"{STORE_KILLS:,} kills, {STORE_WRITERS} writers at once: no acknowledged line lost, no unreadable "
                  "file", f"`TOKLINE_STORE_KILLS={STORE_KILLS} store_kill_test`")
    if not paths:
        return check
    pattern = r"(\d+) kills of (\d+) writers at once, (\d+) lines acknowledged, (\d+) lost, (\d+) unreadable"
    try:
        figures = re.search(pattern, paths[0].read_text(encoding="utf-8")).groups()
    except (OSError, ValueError, AttributeError) as error:
        raise BadRecords(f"{paths[0]}: not what store_kill_test prints: {error!r}") from None
    kills, writers, acknowledged, lost, unreadable = map(int, figures)
    check.details = {"kills": kills, "writers": writers, "acknowledged": acknowledged, "lost": lost,
                     "unreadable": unreadable}
    check.measured = (f"{kills:,} kills of {writers} writers at once: {acknowledged:,} lines acknowledged, "
                      f"{lost} lost, {unreadable} unreadable files")
    check.met = kills >= STORE_KILLS and writers >= STORE_WRITERS and lost == unreadable == 0
    return check


# ---- overhead ----

def journal_of(folder):
    path = folder / "journal.jsonl"
    if not path.exists():
        return []
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        return [{name: entry[name] for name in ("kind", "program", "exit", "seconds")} for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRecords(f"{path}: no journal of scripts/maintain/believe collect: {error!r}") from None


def check_full_run(folders):
    check = Check("full_run", "overhead: a full default run, all benches and the decoder",
                  f"<= {MOST_SECONDS['full run'] // 60} minutes", "`scripts/maintain/believe collect --only overhead`")
    for folder in folders:
        entries = {entry["program"]: entry for entry in journal_of(folder) if entry["kind"] == "overhead"}
        if entries:
            seconds = {program: entry["seconds"] for program, entry in entries.items()}
            missing = sorted({"tokline", *(f"bench_{kernel}" for kernel in kernel_names())} - seconds.keys())
            failed = sorted(program for program, entry in entries.items() if entry["exit"])
            check.measured = f"{sum(seconds.values()):.0f} s, {len(seconds)} programs"
            check.measured += "".join(f"; {program} did not run" for program in missing)
            check.measured += "".join(f"; {program} failed" for program in failed)
            check.met = sum(seconds.values()) <= MOST_SECONDS["full run"] and not missing and not failed
            check.details = {"seconds": seconds, "misses": missing + failed}
    return check


def fail_with_their_tests(checks, folders):
    """A test that crashed has not met its checks, whatever figures it left, nor one that failed at what they do not
    show."""
    exits = {entry["program"]: entry["exit"] for folder in folders for entry in journal_of(folder)
             if entry["kind"] == "test"}
    for program, code in exits.items():
        of_program = [check for check in checks if check.met is not None and program in check.reproduce]
        if code == 0 or code == 1 and not all(check.met for check in of_program):
            continue
        for check in of_program:
            check.met = False
            check.measured += f"; {program} ended with {code}"


def timed(argv):
    """(seconds, exit code, stderr) of a script of the project."""
    begun = time.monotonic()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return time.monotonic() - begun, done.returncode, done.stderr


def check_tools(folders, wanted, jobs):
    """The gate and the report on GATE_ROWS rows, timed here: rows of a collected run, repeated under other names."""
    gate = Check("gate_time", f"overhead: the gate on {GATE_ROWS:,} rows", f"<= {MOST_SECONDS['gate']} s",
                 "`scripts/maintain/believe report`")
    report = Check("report_time", f"overhead: the report of {GATE_ROWS:,} rows", f"<= {MOST_SECONDS['report']} s",
                   "`scripts/maintain/believe report`")
    paths = (path for folder, part in itertools.product(folders, ("benches/a", "overhead"))
             for path in sorted((folder / part).glob("*.jsonl")) if path.name != "decoder.jsonl")
    source = next((path for path in paths for run in jobs.runs(path)[:1]
                   if any(row["status"] == "ok" for row in run.rows)), None)
    if not wanted or source is None:
        return [gate, report]
    with tempfile.TemporaryDirectory() as temporary:
        many = Path(temporary) / "many.jsonl"
        many.write_text("".join(json.dumps(line) + "\n" for line in repeated(source, GATE_ROWS)), encoding="utf-8")
        for check, *argv in ((gate, "gate", "--baseline", many, "--candidate", many),
                             (report, "report", many, "-o", os.path.join(temporary, "report.html"))):
            seconds, code, stderr = timed([ROOT / "scripts" / "records", *argv])
            if code:
                check.measured, check.met = f"failed with exit {code}: {stderr.strip()[-200:]}", False
                continue
            check.measured = f"{seconds:.1f} s on this machine"
            check.met = seconds <= MOST_SECONDS[argv[0]]
            check.details = {"seconds": seconds, "rows": GATE_ROWS}
    return [gate, report]


def repeated(source, count):
    """A record of `count` rows: those of a run that have figures, again and again under other names."""
    lines = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    header = next(line for line in lines if line["kind"] == "run")
    rows = [line for line in lines
            if line["kind"] == "row" and line["status"] == "ok" and line["run_id"] == header["run_id"]]
    yield header
    for index in range(count):
        row = rows[index % len(rows)]
        yield row | {"shape": row["shape"] | {"name": f"{row['shape']['name']}.{index // len(rows)}"}}
    yield {"schema": VERSION, "kind": "end", "run_id": header["run_id"], "interrupted": False, "rows": count,
           "refused": 0, "gpu_after": None}


# ---- all of it ----

def machine_of(folders, jobs):
    """What the collected runs say of where they ran; {} without runs. `other_commits`: programs by commit, of runs
    of another than the first, the tests among them. `dirty`: whether any run is. `gpus`: how many GPUs took part."""
    machine, gpus = {}, set()
    paths = [path for folder, runs in itertools.product(folders, ("benches/*/*.jsonl", "decoder/*/*.jsonl",
                                                                  "overhead/*.jsonl"))
             for path in sorted(folder.glob(runs))]
    for path in paths:
        for run in jobs.runs(path):
            if machine and run.commit != machine["commit"]:
                machine["other_commits"].setdefault(run.commit, set()).add(run.program)
            machine = machine or {
                "gpu": run.gpu.get("name", "none: CPU references"), "driver": run.gpu.get("driver"),
                "cuda_runtime": run.gpu.get("cuda_runtime"), "cpu": run.fingerprint.get("cpu"), "commit": run.commit,
                "dirty": run.fingerprint.get("dirty"), "time_utc": run.time, "other_commits": {}}
            gpus.add(run.gpu.get("uuid_hash"))
            if run.fingerprint.get("dirty") == "true":
                machine["dirty"] = "true"
    for commit, dirty in map(commit_of_tests, folders if machine else ()):
        if commit not in (None, machine["commit"]):
            machine["other_commits"].setdefault(commit, set()).add("tests")
        if dirty:
            machine["dirty"] = "true"
    if machine:
        machine["gpus"] = len(gpus)
        machine["other_commits"] = {commit: sorted(found) for commit, found in machine["other_commits"].items()}
    return machine


def commit_of_tests(folder):
    """(commit, whether with changes) of the programs that left the folder's tests; (None, False) without tests."""
    if not found_in([folder], "*"):
        return None, False
    try:
        said = revision.of_version((folder / "tests" / VERSION_FILE).read_text(encoding="utf-8"))
    except OSError:
        said = None
    return said or ("unknown", False)


def check_one_commit(machine):
    check = Check("one_commit", "the programs that were collected", "of one commit, without changes",
                  "`scripts/maintain/believe collect`, into one new folder")
    if machine:
        others = machine["other_commits"]
        check.measured = (f"{len(others) + 1} commits" if others else "one commit") + (
            ", with changes" if machine["dirty"] == "true" else "")
        check.met = not others and machine["dirty"] != "true"
        check.details = {"misses": [f"{commit[:12]}: {', '.join(programs)}" for commit, programs in others.items()]}
    return check


def found_in(folders, pattern):
    """What the tests left that `collect` ran."""
    return [path for folder in folders for path in sorted((folder / "tests").glob(pattern))]


def judge(folders, tool_times=True, say=lambda text: None):
    """([Check], what to say of the machine). Raises BadRecords for what cannot be read."""
    for folder in folders:
        if not folder.is_dir():
            raise BadRecords(f"{folder} is no folder; scripts/maintain/believe collect --out makes one")
    progress, jobs = terminal.Progress(), Jobs(say)
    progress.show("the gate's verdicts")
    machine = machine_of(folders, jobs)
    checks = [check_one_commit(machine), check_false_alarms(folders, jobs)]
    checks += [check_slowdown(folders, percent, jobs) for percent in SLOWDOWNS]
    progress.show("the blame's verdicts")
    delayed, equal = trials_of(folders, jobs)
    host = [trial for trial in delayed if trial.expected == "host_gap"]
    ops = [trial for trial in delayed if trial.expected != "host_gap"]
    checks += [
        check_blame("host_delay", "the decoder with a delay at the host (3, 5, 10 % of a step): blamed on the host gap",
                    host, MIN_TRIALS, "`scripts/maintain/believe collect --only host`", "blamed on the host gap"),
        check_blame("op_delay", "the decoder with one op slowed (3, 5, 10 % of a step): blamed on that op",
                    ops, MIN_TRIALS, "`scripts/maintain/believe collect --only ops`", "blamed on the op"),
        check_blame("blame_aa", "the decoder against itself: nothing is blamed", equal, MIN_EQUAL_TRIALS,
                    "`scripts/maintain/believe collect --only host`", "without blame"),
        *check_sums(delayed),
        check_cheats(found_in(folders, "cheats*.json")), *check_timing(found_in(folders, "*timing*.jsonl")),
        check_store(found_in(folders, "store_kill*.txt")),
        check_full_run(folders)]
    fail_with_their_tests(checks, folders)
    progress.show("the tools' own time")
    checks += check_tools(folders, tool_times, jobs)
    progress.clear()
    return checks, {"machine": machine, "rules": verdicts.Rules(), "left_out": jobs.left_out, "replaced": []}


def stored_in(path):
    """([Check], context) that as_json() wrote."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        checks = [Check(*(entry[name] for name in ("id", "check", "must", "reproduce", "measured", "met", "details")))
                  for entry in stored["checks"]]
        return checks, {"machine": stored["machine"], "rules": verdicts.Rules(**stored["rules"]),
                        "left_out": stored["left_out"], "replaced": stored.get("replaced", [])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRecords(f"{path}: not what --json wrote: {error!r}") from None


NOT_RECORDED = "; how many of these rows are distinct is not recorded"


def judged_again(path):
    """([Check], context) of what as_json() wrote, held against what is asked for now: a check that was not made then is
    not measured. Where it is not said how many rows are distinct, that is not known, and the check is not met."""
    checks, context = stored_in(path)
    for check in checks:
        if check.met is None or check.id != "aa" and not check.id.startswith("slowdown_"):
            continue
        kernels = check.details.get("kernels", {})
        if check.id == "aa":
            check.must = AA_MUST
        else:
            percent = int(check.id.partition("_")[2])
            check.must = slowdown_must(percent)
            check.met = check.met and each_kernel_is_caught(percent, kernels)
        if "distinct" not in check.details:
            check.met = False
            if NOT_RECORDED not in check.measured:
                numbers = Counter()
                for name, number in (check.details.get("rows_a_kernel")
                                     or {name: group["comparisons"] for name, group in kernels.items()}).items():
                    numbers[records.kernel_now(name)] += number
                check.measured += NOT_RECORDED + too_few(numbers)
    known = {check.id: check for check in [*judge([], tool_times=False)[0], check_one_commit(context["machine"]), *checks]}
    return list(known.values()), context


def replaced_by(machine, path, because):
    """What `path`, if it is there, and what it replaced, say of collections that the one on `machine` replaces. Raises
    Stop where one missed a check and nobody says why it was repeated."""
    if not path.exists():
        return []
    checks, context = stored_in(path)
    old = context["machine"]
    if old.get("time_utc") == machine.get("time_utc") and old.get("commit") == machine.get("commit"):
        return context["replaced"]
    missed = [f"{check.check}: {check.measured}" for check in checks if check.met is False]
    if missed and not because:
        raise Stop(f"{path} is of a collection of {old['time_utc'][:10]}, commit {old['commit'][:12]}, that missed "
                   f"{terminal.count(len(missed), 'check')}; --because TEXT must say why it was repeated", MISUSE)
    return [*context["replaced"], {"time_utc": old.get("time_utc"), "commit": old.get("commit"), "missed": missed,
                                   "because": because}]


def as_json(checks, context):
    return json.dumps({"schema": 1, "kind": "believability", "machine": context["machine"],
                       "rules": vars(context["rules"]), "left_out": context["left_out"], "replaced": context["replaced"],
                       "checks": [{"id": check.id, "check": check.check, "must": check.must,
                                   "measured": check.measured, "met": check.met, "reproduce": check.reproduce,
                                   "details": check.details} for check in checks]}, indent=1) + "\n"


def markdown(checks, context):
    from tokline import believe_page
    return believe_page.page(checks, context)


