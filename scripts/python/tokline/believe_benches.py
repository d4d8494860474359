"""The checks of bench programs: how often the gate said what was true of equal and of slowed programs."""
import json
from collections import Counter

from scipy.special import betaincinv

from tokline import records, statistics, terminal, verdicts
from tokline.believe_check import Check, share
from tokline.kernels import names as kernel_names
from tokline.schema import RULES

# What the checks must show. The shares are of distinct rows.
MIN_AA_ROWS = 300  # without a false alarm, the true share is then at most 1 %
MOST_FALSE_ALARMS = 0.01
MIN_ROWS_A_KERNEL = 20
LEAST_CAUGHT = {3: 0.95, 5: 1.0, 10: 1.0}
AA_MUST = (f"at least {MIN_AA_ROWS} distinct rows, {MIN_ROWS_A_KERNEL} a kernel; false alarms <= "
           f"{100 * MOST_FALSE_ALARMS:.0f} % with a confidence of 95 %")


def slowdown_must(percent):
    least = LEAST_CAUGHT[percent]
    return (f"at least {MIN_ROWS_A_KERNEL} distinct rows a kernel, caught "
            + ("always" if least == 1 else f">= {100 * least:.0f} % of each kernel's"))


def each_kernel_is_caught(percent, kernels):
    """Whether of each of a slowdown's `kernels`, as the details have them, as many rows as must be were caught."""
    return all(group["caught"] >= LEAST_CAUGHT[percent] * group["comparisons"] for group in kernels.values())


def largest_share(part, whole):
    """The upper end of the one-sided 95 % Clopper-Pearson interval of a share."""
    return 1.0 if part == whole else float(betaincinv(part + 1, whole - part, 0.95))


def most_missed(group):
    """The upper end of the share that is missed of a kernel's slowed rows, as the details have them; 1 without rows."""
    return largest_share(group["comparisons"] - group["caught"], group["comparisons"]) if group else 1.0


BOUND = "the true share that is missed is at most"


def bounds_of_misses(kernels):
    """What is said of the share that is missed: over all rows, by kernel, and of kernels without rows."""
    total = {what: sum(group[what] for group in kernels.values()) for what in ("comparisons", "caught")}
    worst = max(kernels, key=lambda name: most_missed(kernels[name]))
    missing = [name for name in sorted(kernel_names()) if name not in kernels]
    return (f"; {BOUND} {100 * most_missed(total):.1f} % of all these rows, by kernel {100 * most_missed(kernels[worst]):.0f} % "
            f"({worst})" + (f", and 100 % of what was not collected in three rounds ({', '.join(missing)})" if missing else "")
            + " (Clopper-Pearson, one-sided 95 %)")


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
            + (f"; not collected in three rounds: {', '.join(missing)}" if missing else ""))


def without_blind(rows):
    """The rows of which the gate knows the noise, and what is said of the others: with too few rounds it calls nothing
    slower or faster below known_run_percent of its rules, so they count neither for equal programs nor for slowed ones."""
    blind = Counter(row.key.kernel for row in rows if not row.knows_noise)
    words = ", ".join(f"{name} ({number})" for name, number in sorted(blind.items()))
    return ([row for row in rows if row.knows_noise],
            f"; of too few rounds to be called slower or faster, and not counted: {words}" if words else "")


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
    rows, blind = without_blind([row for comparison in comparisons for row in comparison.rows])
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
                      f"most {100 * most:.2f} % (Clopper-Pearson, one-sided 95 %)"
                      f"{too_few(numbers)}{apart(comparisons)}{blind}")
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
    rows, blind = without_blind([row for comparison in comparisons for row in comparison.rows])
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
    check.measured = (f"{share(total, number)} caught, {own:,} of them slowed by launches of their own, the others by "
                      "a spin")
    if total < number:
        check.measured += f"; least of {worst}: {of_worst['caught']} of {of_worst['comparisons']}"
    if silent:
        check.measured += f"; without a figure of the program as it is, and not counted: {len(silent)}"
    check.measured += few + apart(comparisons) + blind + bounds_of_misses(found)
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
