"""The checks of the decoder: how often the blame said what was true, and whether its parts add up."""
import itertools
import json
from dataclasses import dataclass

from tokline import blame, statistics
from tokline.believe_check import Check, share
from tokline.records import BadRecords

# What the checks must show. The share is of trials.
MIN_TRIALS, MIN_EQUAL_TRIALS = 20, 5
LEAST_BLAMED = 0.95


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
