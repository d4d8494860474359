"""Which kernel, or which gap, the difference of two decoder runs comes from.

A decode step is its kernels' time, the device's idle time within a step (device gap), the idle time
between steps (host gap), and what these leave open of the step, which is measured apart from them
(unexplained). The waterfall from A to B can be believed as far as little of it is unexplained.
"""
import json
import math
import sys
from dataclasses import dataclass, field

from scipy.special import stdtrit

from tokline import command, records, terminal
from tokline.stop import Stop

# Where a side is a single run, a step is taken to differ by this much from run to run: clocks, page
# placement and autotuning move whole runs, which no interval from within one run shows.
RUN_TO_RUN_PERCENT = 1.0
# The waterfall's measured parts must explain the difference, and each side's step, up to this. Parts and step
# are of different runs, so they need not explain the difference better than runs agree.
EXPLAINED_WITHIN_PERCENT = 2.0
CONFIDENCE = 0.95
GAPS = {"device_gap": "device gap", "host_gap": "host gap", "tracing": "tracing", "unexplained": "unexplained"}
MIN_SHARE_SHOWN = 0.02  # of the largest change; smaller ones are one line together
BAR_WIDTH = 32


class NotComparable(Stop):
    """Both sides are readable, but have nothing that can be compared."""
    exit_code = 3


@dataclass
class Part:
    """A share of a decode step, on both sides, in microseconds; tok_s is what its change costs."""
    name: str
    a_us: float
    b_us: float
    noise_us: float | None  # of the change, from several runs a side; None: not known
    tok_s: float = 0.0
    phases: list = field(default_factory=list)  # Parts of this one, if profiles of both sides have them

    @property
    def change_us(self):
        return self.b_us - self.a_us

    @property
    def label(self):
        return GAPS.get(self.name, f"`{self.name}`")


@dataclass
class Side:
    """One decoder row of one side, over its runs: means, since means add up and medians do not."""
    steps_us: list
    half_us: float  # of the interval within a run, mean over runs
    batch: int
    parts: dict = field(default_factory=dict)  # name -> one value a run; empty without profiles
    phases: dict = field(default_factory=dict)  # part -> phase -> one value a run

    @property
    def runs(self):
        return len(self.steps_us)

    @property
    def step_us(self):
        return mean(self.steps_us)

    @property
    def tok_s(self):
        return 1e6 * self.batch / self.step_us

    @property
    def unexplained_percent(self):
        """Of the step; negative where the parts are more than the step. Only with profiles."""
        return 100 * mean(self.parts["unexplained"]) / self.step_us


@dataclass
class Difference:
    """The step of one row on both sides, and its parts, largest change first."""
    label: str
    a: Side
    b: Side
    noise_us: float
    parts: list

    @property
    def change_us(self):
        return self.b.step_us - self.a.step_us

    @property
    def percent(self):
        """Of tok/s."""
        return 100 * (self.b.tok_s / self.a.tok_s - 1)

    @property
    def beyond_noise(self):
        return abs(self.change_us) > self.noise_us

    @property
    def explained_us(self):
        return sum(part.change_us for part in self.parts if part.name != "unexplained")

    @property
    def unexplained_us(self):
        return self.change_us - self.explained_us

    @property
    def unexplained_percent(self):
        """Of the difference; None where there is none."""
        return 100 * abs(self.unexplained_us / self.change_us) if self.change_us else None

    @property
    def may_be_unexplained_us(self):
        return max(EXPLAINED_WITHIN_PERCENT / 100 * abs(self.change_us), self.noise_us)

    @property
    def adds_up(self):
        return abs(self.unexplained_us) <= self.may_be_unexplained_us

    @property
    def open_sides(self):
        """(name, side) of the sides whose parts do not add up to their own step."""
        return [(name, side) for name, side in (("A", self.a), ("B", self.b))
                if abs(side.unexplained_percent) > EXPLAINED_WITHIN_PERCENT]

    @property
    def blamed(self):
        """The part with the largest share of the difference, which the trace alone cannot have; None without a
        profile or difference."""
        if not self.parts or not self.beyond_noise:
            return None
        sign = math.copysign(1, self.change_us)
        return max((part for part in self.parts if part.name != "tracing"), key=lambda part: sign * part.change_us)


def mean(values):
    return sum(values) / len(values)


def pooled_noise(a, b):
    """Half the width of the interval of mean(b) - mean(a), from the spread of runs; None if too few."""
    freedom = len(a) + len(b) - 2
    if freedom < 2:
        return None
    squares = sum((x - mean(side)) ** 2 for side in (a, b) for x in side)
    error = math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error


def side_of(rows):
    """The rows of one key, one a run. Undisturbed and profiled ones are preferred where there are any."""
    for wanted in (lambda row: not row.get("disturbed"), lambda row: row.get("profile")):
        rows = [row for row in rows if wanted(row)] or rows
    halves = []
    for row in rows:
        low, high = row["ci95_ms"]
        halves.append(1e3 * (high - low) / 2)
    side = Side([1e3 * row["ms_per_token"] for row in rows], mean(halves), rows[0]["batch"])
    profiles = [row.get("profile") for row in rows]
    if not all(profiles):
        return side
    names = dict.fromkeys(op["op"] for profile in profiles for op in profile["ops"])
    for name in names:
        side.parts[name] = [sum(op["us"] for op in profile["ops"] if op["op"] == name) for profile in profiles]
        side.phases[name] = phases_of(name, profiles)
    side.parts["device_gap"] = [profile["device_gap_us"] for profile in profiles]
    side.parts["host_gap"] = [profile["host_gap_us"] for profile in profiles]
    if any("tracing_us" in profile for profile in profiles):
        side.parts["tracing"] = [profile.get("tracing_us", 0.0) for profile in profiles]
    measured = zip(*side.parts.values())
    side.parts["unexplained"] = [step - sum(parts) for step, parts in zip(side.steps_us, measured)]
    return side


def phases_of(name, profiles):
    """phase -> one value a run, of this op; empty unless all profiles have its phases."""
    runs = [{phase["phase"]: phase["us"] for op in profile["ops"] if op["op"] == name for phase in op.get("phases", ())}
            for profile in profiles]
    return {phase: [run.get(phase, 0.0) for run in runs] for phase in runs[0]} if all(runs) else {}


def difference(label, a, b, run_to_run_percent=RUN_TO_RUN_PERCENT):
    """The Difference of two Sides. With few runs `run_to_run_percent` of a step is noise at least."""
    within = math.hypot(a.half_us / math.sqrt(a.runs), b.half_us / math.sqrt(b.runs))
    between = pooled_noise(a.steps_us, b.steps_us)
    if between is None:
        between = run_to_run_percent / 100 * a.step_us

    def split(parts_a, parts_b):
        parts = []
        if not parts_a or not parts_b:
            return parts
        nothing_a, nothing_b = [0.0] * a.runs, [0.0] * b.runs
        for name in dict.fromkeys([*parts_a, *parts_b]):
            in_a, in_b = parts_a.get(name, nothing_a), parts_b.get(name, nothing_b)
            part = Part(name, mean(in_a), mean(in_b), pooled_noise(in_a, in_b))
            # tok/s = batch / step on both sides, so a microsecond costs the same in every part.
            part.tok_s = -1e6 * a.batch * part.change_us / (a.step_us * b.step_us)
            parts.append(part)
        return sorted(parts, key=lambda part: -abs(part.change_us))

    parts = split(a.parts, b.parts)
    for part in parts:
        part.phases = split(a.phases.get(part.name), b.phases.get(part.name))
    return Difference(label, a, b, max(within, between), parts)


def decoder_rows(runs):
    """Rows with figures by key, in order of appearance."""
    rows = {}
    for run in runs:
        for row in run.rows:
            if row["kernel"] == "decoder" and row["status"] == "ok":
                rows.setdefault(records.key(row), []).append(row)
    return rows


def without_implementation(rows):
    """The same rows by the work alone, whatever did it; only where that is not ambiguous."""
    regrouped = {}
    for group in rows.values():
        row = group[0]
        work = (row["model"], row["batch"], records.lengths(row))
        if work in regrouped:
            raise NotComparable("one side has several implementations of decoder rows that the other lacks: "
                                f"{row['model']} batch {row['batch']}")
        regrouped[work] = group
    return regrouped


def differences(runs_a, runs_b, batch=None, across=False, run_to_run_percent=RUN_TO_RUN_PERCENT):
    """A Difference for each decoder row that both sides have.

    `across` compares rows of other implementations too where no row is the same on both sides.
    Raises NotComparable where there is nothing in common.
    """
    rows_a, rows_b = decoder_rows(runs_a), decoder_rows(runs_b)
    common = [key for key in rows_a if key in rows_b]
    if not common and across:
        rows_a, rows_b = without_implementation(rows_a), without_implementation(rows_b)
        common = [key for key in rows_a if key in rows_b]
    if batch is not None:
        common = [key for key in common if rows_a[key][0]["batch"] == batch]
    if not common:
        raise NotComparable("no decoder row with figures is on both sides"
                            + ("" if batch is None else f" with batch {batch}")
                            + f" (A has {len(rows_a)}, B has {len(rows_b)})"
                            + ("" if across else "; --across compares other implementations and devices"))
    return [difference(row_label(rows_a[key][0], rows_b[key][0]), side_of(rows_a[key]),
                       side_of(rows_b[key]), run_to_run_percent) for key in common]


def row_label(a, b):
    def both(field_name):
        return a[field_name] if a[field_name] == b[field_name] else f"{a[field_name]} -> {b[field_name]}"
    return (f"{a['model']} batch {a['batch']}, {records.lengths(a)} tokens, "
            f"{both('implementation')} {both('dtype')} on {both('device')}")


def fingerprint_differences(runs_a, runs_b):
    """In words, each once."""
    return list(dict.fromkeys(words for a in runs_a for b in runs_b for words in records.comparable(a, b)))


def signed(value, unit="us"):
    """`+34.6 us`: three digits, never an exponent."""
    magnitude = abs(value)
    digits = 0 if magnitude >= 999.5 else 1 if magnitude >= 9.995 else 2
    return f"{value:+,.{digits}f} {unit}".rstrip()


def small(value):
    """A figure with two significant digits, and never an exponent."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def leading(ranked, change_us):
    """Those that make up most of a change, at most three, and the share of it that they have together."""
    found, covered = [], 0.0
    for part in ranked:
        share = part.change_us / change_us
        if share <= 0.05 and found:
            break
        found.append(part)
        covered += share
        if covered >= 0.8 or len(found) == 3:
            break
    return found, covered


def words_of_phases(part):
    """`, of which `gate_up` +3.9 us`: what the change of a part comes from, if it has phases."""
    if not part.phases or not part.change_us:
        return ""
    sign = math.copysign(1, part.change_us)
    found, _ = leading(sorted(part.phases, key=lambda phase: -sign * phase.change_us), part.change_us)
    return ", of which " + " and ".join(f"{phase.label} {signed(phase.change_us)}" for phase in found)


def verdict(result):
    """One sentence: how much slower or faster, and why."""
    change = f"{result.a.tok_s:,.0f} -> {result.b.tok_s:,.0f} tok/s"
    if result.a.tok_s < 100:
        change = f"{result.a.tok_s:.3g} -> {result.b.tok_s:.3g} tok/s"
    if not result.beyond_noise:
        return (f"no difference beyond noise ({change}, {result.percent:+.1f} %; a step {signed(result.change_us)}, "
                f"noise {small(result.noise_us)} us)")
    direction = "slower" if result.change_us > 0 else "faster"
    text = f"B is {abs(result.percent):.1f} % {direction} ({change}): "
    if not result.parts:
        return text + "no profile on both sides, so it cannot be split"
    sign = math.copysign(1, result.change_us)
    # The trace comes last: it is no part of the program.
    ranked = sorted(result.parts, key=lambda part: (part.name == "tracing", -sign * part.change_us))
    found, covered = leading(ranked, result.change_us)
    named = []
    for part in found:
        share = part.change_us / result.change_us
        name = "the " + part.label if part.name in ("device_gap", "host_gap") else part.label
        if part.name == "tracing":
            name = "what the trace adds to a step"
        if part.name == "unexplained":
            name = "what the profile does not show"
        named.append(f"{name} {signed(part.change_us)} ({100 * share:.0f} % of it{words_of_phases(part)})")
    text += ", ".join(named)
    opposite = min(result.parts, key=lambda part: sign * part.change_us)
    if covered >= 1.1 and sign * opposite.change_us < 0:
        text += f", in part made up for by {opposite.label} {signed(opposite.change_us)}"
    blamed = result.blamed
    if blamed.noise_us is not None and abs(blamed.change_us) <= blamed.noise_us:
        text += f"; uncertain: within the run-to-run noise of that part ({small(blamed.noise_us)} us)"
    return text


def check_sentence(result):
    """What the measured parts add up to, said loudly where that is not the difference or not the step."""
    said = (f"the parts of the profile add up to {signed(result.explained_us)} of {signed(result.change_us)}: "
            f"{signed(result.unexplained_us)} unexplained")
    if not result.adds_up:
        said = (f"THE PARTS DO NOT ADD UP: {said}; at most {small(result.may_be_unexplained_us)} us is allowed, "
                f"{EXPLAINED_WITHIN_PERCENT:.0f} % of the difference or the noise of the step")
    for name, side in result.open_sides:
        said += (f"; THE PARTS OF {name} ARE NOT ITS STEP: {side.unexplained_percent:+.1f} % of its "
                 f"{side.step_us:,.1f} us without the profiler are unexplained, at most {EXPLAINED_WITHIN_PERCENT:.0f} % is "
                 "allowed; measure again on a quiet machine")
    return said


def doubtful(results):
    """Those whose parts do not explain the difference."""
    return [one for one in results if one.parts and one.beyond_noise and (one.open_sides or not one.adds_up)]


def lines_of(result):
    """The shown parts: large ones apart, all others as one; they add up as all do."""
    least = MIN_SHARE_SHOWN * max([abs(result.change_us)] + [abs(part.change_us) for part in result.parts])
    gaps = [part for part in result.parts if part.name in GAPS]
    ops = [part for part in result.parts if part.name not in GAPS]
    small = [part for part in ops if abs(part.change_us) < least]
    if len(small) < 2:
        small = []
    shown = [part for part in ops if part not in small]
    if small:
        noise = None
        if all(part.noise_us is not None for part in small):
            noise = math.hypot(*(part.noise_us for part in small))
        shown.append(Part(f"{len(small)} other ops", sum(part.a_us for part in small),
                          sum(part.b_us for part in small), noise, sum(part.tok_s for part in small)))
    order = list(GAPS)
    return shown + sorted(gaps, key=lambda part: order.index(part.name))


def waterfall(start, changes, width=BAR_WIDTH):
    """For each change the columns [first, last) of its bar, on an axis that holds all of them."""
    levels = [start]
    for change in changes:
        levels.append(levels[-1] + change)
    low, high = min(levels), max(levels)
    span = (high - low) or 1.0
    bars = []
    for before, after in zip(levels, levels[1:]):
        first, last = sorted(round(width * (level - low) / span) for level in (before, after))
        if first == last and before != after:
            first, last = (first, last + 1) if last < width else (first - 1, last)
        bars.append((first, last))
    return bars


def table_of(result, block="█"):
    """Header and cells of the waterfall: A, its parts, B."""
    header = ["", "A us", "B us", "change us", "tok/s"]
    noisy = any(part.noise_us is not None for part in result.parts)
    if noisy:
        header.append("noise us")
    header.append("waterfall")

    def line(name, a_us, b_us, change, tok_s, noise, bar):
        cells = [name, a_us, b_us, change, tok_s]
        return cells + ([noise] if noisy else []) + [bar]

    def line_of(part, name, bar):
        return line(name, f"{part.a_us:,.1f}", f"{part.b_us:,.1f}", signed(part.change_us, ""), f"{part.tok_s:+,.1f}",
                    "" if part.noise_us is None else small(part.noise_us), bar)

    parts = lines_of(result)
    rows = [line("A", f"{result.a.step_us:,.1f}", "", "", f"{result.a.tok_s:,.1f}", "", "")]
    for part, (first, last) in zip(parts, waterfall(result.a.step_us, [p.change_us for p in parts])):
        bar = " " * first + block * (last - first)
        rows.append(line_of(part, GAPS.get(part.name, part.name), bar))
        rows += [line_of(phase, f"of which {phase.name}", "") for phase in part.phases]
    rows.append(line("B", "", f"{result.b.step_us:,.1f}", signed(result.change_us, ""),
                     f"{result.b.tok_s:,.1f}", small(result.noise_us) if noisy else "", ""))
    return header, rows


def as_json(result):
    """All parts, also those too small to be shown."""
    blamed = result.blamed

    def part_of(part, kind, whole_us):
        found = {kind: part.name, "a_us": part.a_us, "b_us": part.b_us, "change_us": part.change_us,
                 "change_tok_s": part.tok_s, "noise_us": part.noise_us,
                 "share": part.change_us / whole_us if whole_us else None}
        if part.phases:
            found["phases"] = [part_of(phase, "phase", part.change_us) for phase in part.phases]
        return found

    return {
        "row": result.label,
        "batch": result.a.batch,
        "a": {"runs": result.a.runs, "step_us": result.a.step_us, "tok_s": result.a.tok_s},
        "b": {"runs": result.b.runs, "step_us": result.b.step_us, "tok_s": result.b.tok_s},
        "change_us": result.change_us, "change_tok_s": result.b.tok_s - result.a.tok_s,
        "change_percent": result.percent, "noise_us": result.noise_us,
        "beyond_noise": result.beyond_noise,
        "parts": [part_of(part, "part", result.change_us) for part in result.parts],
        "explained_us": result.explained_us if result.parts else None,
        "unexplained_percent": result.unexplained_percent if result.parts else None,
        "adds_up": result.adds_up if result.parts else None,
        "open_sides": [name for name, _ in result.open_sides] if result.parts else None,
        "blamed": None if blamed is None else blamed.name,
        "verdict": verdict(result),
    }


def render_text(result, colour=False):
    """Lines of a terminal: the row, its verdict, the waterfall, and whether it adds up."""
    paint = None
    if result.beyond_noise:
        paint = "red" if result.change_us > 0 else "green"
    yield result.label
    yield "  " + terminal.paint(verdict(result), paint, colour)
    if not result.parts:
        return
    header, rows = table_of(result, "#" if not unicode_wanted() else "█")
    for line in terminal.text_table(header, rows, right=range(1, len(header) - 1)):
        yield "  " + line
    yield "  " + check_sentence(result)


def render_markdown(result):
    """The same for a pull request: the bars stand in code, which keeps their spaces."""
    yield f"**{result.label}**: {verdict(result)}"
    yield ""
    if not result.parts:
        return
    header, rows = table_of(result)
    rows = [[*cells[:-1], f"`{cells[-1]}`" if cells[-1].strip() else ""] for cells in rows]
    yield from terminal.markdown_table(header, rows, right=range(1, len(header) - 1))
    yield ""
    yield check_sentence(result)


def unicode_wanted():
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"


def side_sentence(name, runs, rows):
    """What stands on one side: how many runs, of which commits, and what was done to them on purpose."""
    commits = ", ".join(dict.fromkeys(run.commit[:12] for run in runs))
    injected = dict.fromkeys(json.dumps(run.injected) for run in runs if run.injected)
    words = f"{name}: {terminal.count(rows, 'decoder row')} of {terminal.count(len(runs), 'run')}, commit {commits}"
    return words + "".join(f", INJECTED {text}" for text in injected)


def parse_arguments(argv):
    parser = command.parser(
        "Splits the difference of two decoder runs into kernels and gaps: a waterfall from A's decode step to B's.",
        """examples:
  scripts/records blame main.jsonl pr.jsonl
  scripts/records blame main/ pr/ --batch 1             folders: several runs a side show the run-to-run noise
  scripts/records blame h200.jsonl h100.jsonl --across  other devices or other implementations

With one or two runs a side, a step is taken to differ by --noise percent from run to run; with more
(four in all), the spread of the runs says it, for each part too.

exit codes: 0 done, 1 a file that cannot be used or written, 2 misuse, 3 nothing that can be compared,
130 interrupted.""")
    parser.add_argument("a", metavar="A.jsonl", help="records of `tokline bench --record`, or a folder of them")
    parser.add_argument("b", metavar="B.jsonl", help="the same of what is compared with A")
    parser.add_argument("--batch", type=int, metavar="N", help="this batch only (default: all)")
    parser.add_argument("--format", choices=["text", "markdown", "json"], default="text")
    parser.add_argument("--across", action="store_true",
                        help="compare although device, driver, clocks or implementation differ")
    parser.add_argument("--noise", type=float, default=RUN_TO_RUN_PERCENT, metavar="PERCENT",
                        help="run-to-run noise of a step where runs are few (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.batch is not None and arguments.batch < 1:
        parser.error(f"--batch is {arguments.batch}; it must be at least 1")
    if not 0 <= arguments.noise < 100:
        parser.error(f"--noise is {arguments.noise:g}; it must be in [0, 100)")
    return arguments


def main(argv):
    arguments = parse_arguments(argv)
    # Only the runs that measured a decoder: a folder may hold the kernels' runs too.
    runs = {name: [run for run in records.read([path], terminal.say)
                   if any(row["kernel"] == records.DECODER for row in run.rows)]
            for name, path in (("A", arguments.a), ("B", arguments.b))}
    fingerprints = fingerprint_differences(runs["A"], runs["B"])
    if fingerprints and not arguments.across:
        raise NotComparable("the runs are not of the same machine and build tools: " +
                            "; ".join(fingerprints) + " (--across compares all the same)")
    results = differences(runs["A"], runs["B"], arguments.batch, arguments.across, arguments.noise)
    sides = [side_sentence(name, side, sum(len(rows) for rows in decoder_rows(side).values()))
             for name, side in runs.items()]
    across = [f"compared across: {words}" for words in fingerprints]
    if arguments.format == "json":
        output = json.dumps({"schema": 1, "a": arguments.a, "b": arguments.b,
                             "injected": {name.lower(): [run.injected for run in side if run.injected]
                                          for name, side in runs.items()},
                             "differing_fingerprints": fingerprints,
                             "rows": [as_json(result) for result in results]}, indent=1)
    elif arguments.format == "markdown":
        blocks = ["\n".join(render_markdown(result)) for result in results]
        output = "\n\n".join(["\n".join("- " + line for line in sides + across), *blocks])
    else:
        wanted = terminal.colour_wanted()
        blocks = ["\n".join(render_text(result, wanted)) for result in results]
        output = "\n\n".join(["\n".join(sides + across), *blocks])
    terminal.write_out(output)
    return 0
