"""The checks that rest on what tests left: cheats, independent timing, and the store."""
import json
import re

from tokline import terminal
from tokline.believe_check import Check, journal_of, share
from tokline.records import BadRecords

# What the checks must show.
ALL_CHEATS = 20
HONEST = "Honest"  # in the names of tests of rows that must not be refused
TIMING_WITHIN = 0.02
# What independent timing must cover: rows of about 2, 10, 100 and 1,000 us, from and to so many, and these kernels.
TIMED_LENGTHS = ((1, 4), (5, 20), (50, 300), (500, 2000))
TIMED_KERNELS = ("paged_prefill",)
SLOWED_WITHIN = 1.0  # points: what the independent timer finds of a slowdown that was put in
SLOWED_BY = {"launches", "a spin"}  # in each of these ways some row must have been slowed
STORE_KILLS, STORE_WRITERS = 10000, 8


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
                  f"within {100 * TIMING_WITHIN:.0f} %, of rows of {lengths} us, {' and '.join(TIMED_KERNELS)} among "
                  "them",
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
