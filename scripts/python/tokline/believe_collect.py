"""Runs the programs that scripts/maintain/believe judges the tools by, on the machine whose figures are asked for.

Standard library only: it runs where nothing can be installed. Every program run is a job with its own
file, which appears when the job has ended, so a collection can be stopped and continued.
"""
import collections
import itertools
import json
import os
import random
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tokline import command
from tokline.kernels import ROOT
from tokline.stop import Stop

PARTS = ["aa", "slowdowns", "host", "ops", "tests", "overhead"]
DEFAULT_PARTS = ["aa", "slowdowns", "host", "ops"]
SLOWDOWNS = [3, 5, 10]
DELAYS = [3, 5, 10]
GUESSED_SECONDS = {"bench": 5.0, "decoder": 4.0, "overhead": 8.0, "test": 60.0}
VERSION_FILE = "version.txt"  # beside the results of tests, which do not say of which commit they are
PEAKS_LAST_SECONDS = 3000  # a program takes over peaks that are at most an hour old
SHAPES = ROOT / "benches" / "shapes"
# Kernels whose outputs take the CPU minutes to verify on the default shapes of a GPU. The tools judge rows of small
# shapes in the same way.
SLOW_TO_VERIFY = ("decode_step",)
# Kernels whose default shapes keep the tensor cores busy for milliseconds, so that each sample is followed by a rest:
# their rows are compared with lengths divided by this.
SHORTER = {"paged_prefill": 8}
LENGTHS = ("q_len", "kv_len", "q", "kv")
# Keys of a shape whose lists are rows (docs/measuring.md, "Shapes").
ROW_LISTS = ("tokens", "rows", "pages", "append")
# Of a shape that is needed more often than it is there, the first of these that it has grows, with those beside it.
GROWING = (("context",), ("rows",), ("tokens",), ("len",), ("lens",), ("unique",), ("q_len", "kv_len"), ("q", "kv"))


class CollectError(Stop):
    """A program or a folder that cannot be used; the message says what is needed."""
    exit_code = 2


# Arguments that a continued collection must not change.
SETTINGS = ("device", "comparisons", "seed", "batch", "ops", "bench_args", "decoder_args")
FILE = "{file}"  # in a job's arguments, means the file that it leaves


@dataclass
class Job:
    """One program run; `path` is the file that it leaves, of its own accord or from what it prints."""
    name: str
    kind: str
    path: Path
    argv: list
    env: dict = field(default_factory=dict)
    keep_output: bool = False

    @property
    def program(self):
        return Path(self.argv[0]).name


class OutOfTime(Exception):
    """The next job would end after the time limit."""


class Collector:
    """Runs jobs, skips those whose file is there, and keeps a journal of what ran and how long it took."""
    def __init__(self, plan, say):
        self.plan = plan
        self.say = say
        self.started = time.monotonic()
        self.journal_path = plan.out / "journal.jsonl"
        self.failed = []
        self.planned = []  # seconds of each job that would run, while `dry`
        self.dry = False
        try:
            plan.out.mkdir(parents=True, exist_ok=True)
            self.check_settings()
            lines = self.journal_path.read_text(encoding="utf-8").splitlines() if self.journal_path.exists() else []
            # The last line of a collection that was killed may be unfinished.
            self.journal = [json.loads(line) for line in lines if line.endswith("}")]
        except (OSError, ValueError) as error:
            raise CollectError(f"--out {plan.out}: cannot be written or continued: {error}") from None

    def check_settings(self):
        """A folder is continued with the settings that it was begun with."""
        path = self.plan.out / "settings.json"
        settings = {name: getattr(self.plan, name) for name in SETTINGS}
        if not path.exists():
            path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
            return
        begun = json.loads(path.read_text(encoding="utf-8"))
        for name, value in settings.items():
            if begun.get(name) != value:
                raise CollectError(f"--out {self.plan.out} was begun with {name} {begun.get(name)!r}, "
                                   f"this is {value!r}; use another folder")

    def seconds_of(self, job):
        """How long a run of the job's program takes: the mean of its past runs, or a guess."""
        past = [entry["seconds"] for entry in self.journal
                if entry["program"] == job.program and entry["kind"] == job.kind]
        return sum(past) / len(past) if past else GUESSED_SECONDS[job.kind]

    def run(self, job):
        """Whether the job's file is there now. Raises OutOfTime before a run that would take too long."""
        if job.path.exists():
            return True
        guess = self.seconds_of(job)
        if self.dry:
            self.planned.append(guess)
            return False
        if self.elapsed() + guess > self.plan.time_limit:
            raise OutOfTime
        job.path.parent.mkdir(parents=True, exist_ok=True)
        running = job.path.with_name(job.path.name + ".running")
        running.unlink(missing_ok=True)
        argv = [str(word).replace(FILE, str(running)) for word in job.argv]
        env = os.environ | {name: value.replace(FILE, str(running)) for name, value in job.env.items()}
        begun = time.monotonic()
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  errors="replace", check=False, env=env)
        except OSError as error:
            raise CollectError(f"cannot run {argv[0]}: {error.strerror}") from None
        except BaseException:
            running.unlink(missing_ok=True)
            raise
        seconds = time.monotonic() - begun
        self.write_journal(job, done.returncode, seconds)
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if line.strip()]
            errors = [line for line in lines if "ERROR" in line]
            said = (errors or lines[-1:] or ["no message"])[0]
            if done.returncode == command.MISUSE:  # such as peaks of another GPU, which every run would refuse
                raise CollectError(f"{job.name}: {said}")
            self.failed.append(f"{job.name}: exit {done.returncode}: {said}")
        if job.keep_output:
            running.write_text(done.stdout, encoding="utf-8")
        if not running.exists():
            return False
        running.rename(job.path)
        return True

    def write_journal(self, job, code, seconds):
        entry = {"job": job.name, "kind": job.kind, "program": job.program, "exit": code,
                 "seconds": round(seconds, 3), "arguments": [str(word) for word in job.argv[1:]]}
        self.journal.append(entry)
        with open(self.journal_path, "a", encoding="utf-8") as journal:
            journal.write(json.dumps(entry) + "\n")
        self.say(f"[{self.elapsed():5.0f}s] {job.name}: {seconds:.1f} s" + (f", exit {code}" if code else ""))

    def elapsed(self):
        return time.monotonic() - self.started


def records_of(path):
    """The JSON objects of a record file."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def shuffled(items, *seeds):
    """The same order for the same seeds, so that a continued collection runs what was left."""
    items = list(items)
    random.Random("/".join(str(seed) for seed in seeds)).shuffle(items)
    return items


# ---- benches: the same program against itself, and against itself slowed down ----

def bench_kernels(plan):
    found = sorted(path.name.removeprefix("bench_") for path in plan.bin_dir.glob("bench_*")
                   if os.access(path, os.X_OK) and not path.name.endswith("_test"))
    if not found:
        raise CollectError(f"--bin {plan.bin_dir} has no bench_* program; "
                           "scripts/bench builds them into build/bench-*/bin")
    for kernel in plan.kernels:
        if kernel not in found:
            raise CollectError(f"--kernels names '{kernel}'; {plan.bin_dir} has: {', '.join(found)}")
    return [kernel for kernel in found if not plan.kernels or kernel in plan.kernels]


def units_of(shapes):
    """[(family, shape)]: each shape of the file separately, and each value of its lists."""
    units = []
    for family, entries in shapes.items():
        for entry in entries:
            if family == "qkv":
                entry = {"append": [0, 1], **entry}
            lists = [name for name in ROW_LISTS if isinstance(entry.get(name), list)]
            for values in itertools.product(*(entry[name] for name in lists)):
                units.append((family, entry | {name: [value] for name, value in zip(lists, values)}))
    return units


def chosen(units, count):
    """A shapes file with `count` of the units: spread evenly where they are more, again and again and each time larger
    where they are fewer, since a shape that is measured again says nothing new."""
    shapes = {}
    for index in range(count):
        family, entry = units[index * len(units) // count if count < len(units) else index % len(units)]
        entry = grown(entry, index // len(units))
        shapes.setdefault(family, []).append(entry | {"name": f"{entry['name']}~{index}"})
    return shapes


def shortened(entry, divisor):
    """The shape with its lengths divided, each at least 1."""
    def shorter(length):
        return max(1, length // divisor)

    return {name: value if name not in LENGTHS else
            [shorter(length) for length in value] if isinstance(value, list) else shorter(value)
            for name, value in entry.items()}


def grown(entry, times):
    """The shape with the first of its sizes a quarter larger, or by 1, as often as that."""
    names = next(names for names in GROWING if names[0] in entry)
    first = entry[names[0]]
    more = max(1, (first[0] if isinstance(first, list) else first) // 4) * times
    return entry | {name: [entry[name][0] + more, *entry[name][1:]] if isinstance(entry[name], list)
                    else entry[name] + more for name in names}


def listed_rows(plan, kernel, *more):
    """The names of the rows that the program would run, with its default shapes unless `more` says otherwise."""
    argv = [str(plan.bin_dir / f"bench_{kernel}"), "--device", plan.device, "--benchmark_list_tests=true", *more]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CollectError(f"cannot run {argv[0]}: {error.strerror}") from None
    names = [line for line in done.stdout.splitlines() if line.startswith(kernel + "/")]
    if done.returncode or not names:
        raise CollectError(f"{argv[0]} lists no rows: exit {done.returncode}: {done.stderr.strip()[-200:]}")
    return names


def shapes_for(plan, kernel):
    """The path of a shapes file with which the program has at least `comparisons` rows, and hardly more."""
    path = plan.out / "shapes" / f"{kernel}.json"
    if path.exists():
        return path
    rows = listed_rows(plan, kernel)
    on_gpu = any("/dependent" in name for name in rows)
    source = SHAPES / ("" if on_gpu and kernel not in SLOW_TO_VERIFY else "cpu") / f"{kernel}.json"
    if on_gpu and kernel in SLOW_TO_VERIFY:
        rows = listed_rows(plan, kernel, "--shapes", str(source))
    try:
        units = units_of(json.loads(source.read_text(encoding="utf-8")))
        if on_gpu and kernel in SHORTER:
            units = [(family, shortened(entry, SHORTER[kernel])) for family, entry in units]
    except (OSError, ValueError) as error:
        raise CollectError(f"the default shapes of bench_{kernel} cannot be read: {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(enough(units, rows, plan.comparisons), indent=1) + "\n", encoding="utf-8")
    return path


def enough(units, rows, wanted):
    """The fewest units that have at least `wanted` rows, as a shapes file. `rows` are the names of the rows of all
    units: a unit has one per chain, and with some kernels one per variant too."""
    in_shape = collections.Counter(name.split("/")[1] for name in rows)
    units_in_shape = collections.Counter(entry["name"] for _, entry in units)
    for count in itertools.count(1):
        shapes = chosen(units, count)
        names = [entry["name"].rpartition("~")[0] for entries in shapes.values() for entry in entries]
        if count >= wanted or sum(in_shape[name] / units_in_shape[name] for name in names) >= wanted:
            return shapes


def sides_of(plan):
    """The name and the slowdown of each side that runs in a round."""
    sides = [("a", 0)]
    if "aa" in plan.parts:
        sides.append(("again", 0))
    if "slowdowns" in plan.parts:
        sides += [(f"slow{percent}", percent) for percent in SLOWDOWNS]
    return sides


def collect_benches(plan, collector):
    """Interleaved rounds of every kernel's program: as it is, as it is once more, and slowed down. A kernel's
    rounds are complete before the next kernel's begin, so that what a time limit leaves can be used."""
    folder = plan.out / "benches"
    for kernel in bench_kernels(plan):
        shapes = shapes_for(plan, kernel)
        for round_index in range(plan.rounds):
            for side, percent in shuffled(sides_of(plan), plan.seed, kernel, round_index):
                path = folder / side / f"{kernel}.round{round_index}.jsonl"
                argv = [str(plan.bin_dir / f"bench_{kernel}"), "--device", plan.device, "--shapes", str(shapes),
                        "--record", FILE, *peaks_arguments(folder), *plan.bench_args]
                if percent:
                    argv += ["--inject-slowdown", str(percent)]
                if collector.run(Job(f"{kernel} round {round_index} {side}", "bench", path, argv)):
                    remember_peaks(folder, path)


def peaks_arguments(folder):
    """Peaks are measured by the first run, and again when they are too old; other runs take them over."""
    peaks = folder / "peaks.jsonl"
    if peaks.exists() and time.time() - peaks.stat().st_mtime > PEAKS_LAST_SECONDS:
        peaks.unlink()
    return ["--peaks", str(peaks)] if peaks.exists() else []


def remember_peaks(folder, path):
    peaks = folder / "peaks.jsonl"
    if not peaks.exists() and any(record["kind"] == "run" and record.get("peaks")
                                  and not record["peaks"].get("from_run") for record in records_of(path)):
        partial = peaks.with_suffix(".running")
        partial.write_bytes(path.read_bytes())
        partial.rename(peaks)


# ---- the decoder: delays on the host, delays of one op ----

def tokline_program(plan):
    if plan.model is None:
        raise CollectError("the decoder runs a checkpoint: --model DIR is missing")
    program = plan.bin_dir / "tokline"
    if not os.access(program, os.X_OK):
        raise CollectError(f"--bin {plan.bin_dir} has no program tokline")
    return str(program)


def decoder_job(plan, round_index, name, *more):
    """A run of the decoder as a chain: an op of a step that runs as one kernel cannot be delayed alone."""
    argv = [tokline_program(plan), "bench", "--model", str(plan.model), "--batch", plan.batch, "--record", FILE,
            "--ablate", "persistent"]
    if plan.device != "auto":
        argv += ["--device", plan.device]
    return Job(f"decoder round {round_index} {name}", "decoder",
               plan.out / "decoder" / f"round{round_index}" / f"{name}.jsonl", [*argv, *plan.decoder_args, *more])


def profiles_of(path):
    """The profiles of a record's decoder rows."""
    return [record["profile"] for record in records_of(path)
            if record["kind"] == "row" and record["kernel"] == "decoder" and record.get("profile")]


def delay_us(percent, profiles, op=None):
    """The delay of the host, or of each launch of `op`, that makes the longest of the profiled steps about `percent`
    longer. The host works a step ahead of a device, so its delay shows only if it is longer than a step."""
    delays = []
    for profile in profiles:
        share = percent / 100
        launches = sum(entry["launches"] for entry in profile["ops"] if entry["op"] == op) if op else 1
        if op is None and profile["method"] != "clock":
            share += 1
        delays.append(share * profile["step_us"] / launches)
    return max(0.1, round(max(delays), 1))


def delayable_ops(plan, profiles):
    """The ops that every profiled step has, or those of --ops."""
    ops = [entry["op"] for entry in profiles[0]["ops"] if entry["launches"] > 0]
    ops = [op for op in dict.fromkeys(ops)
           if all(any(entry["op"] == op and entry["launches"] > 0 for entry in profile["ops"])
                  for profile in profiles)]
    for op in plan.ops:
        if op not in ops:
            raise CollectError(f"--ops names '{op}'; the decoder's are: {', '.join(ops)}")
    return plan.ops or ops


def collect_decoder(plan, collector):
    """Rounds of a run as it is and, for each size, one with a delay on the host and one with a slowed op. Each round
    slows other ops, until every op had its turn."""
    kinds = [kind for kind in ("host", "ops") if kind in plan.parts]
    first = decoder_job(plan, 0, "base")
    if not collector.run(first):
        if collector.dry:  # the profile of the first run says which ops there are, but not how many runs
            more = plan.decoder_rounds * (1 + len(kinds) * len(DELAYS)) - 1
            collector.planned += [collector.seconds_of(first)] * more
            return
        raise CollectError("the first decoder run left no record: " + "; ".join(collector.failed[-1:]))
    profiles = profiles_of(first.path)
    if not profiles:
        raise CollectError(f"{first.path}: no decoder row has a profile, so no op can be slowed by name")
    ops = delayable_ops(plan, profiles)
    turn = 0
    for round_index in range(plan.decoder_rounds):
        jobs = [decoder_job(plan, round_index, "base")]
        for percent in DELAYS:
            if "host" in kinds:
                us = delay_us(percent, profiles)
                jobs.append(decoder_job(plan, round_index, f"host.{us}us", "--inject-host-delay", us))
            if "ops" in kinds:
                op = ops[(turn + turn // len(ops)) % len(ops)]  # other sizes in an op's next turn
                us = delay_us(percent, profiles, op)
                jobs.append(decoder_job(plan, round_index, f"op.{op}.{us}us", "--inject-op-delay", f"{op}:{us}"))
                turn += 1
        for job in shuffled(jobs, plan.seed, "decoder", round_index):
            collector.run(job)


# ---- tests that give a figure, and a full default run ----

def collect_tests(plan, collector):
    """Those tests that the folder has and whose results are figures of the believability page."""
    folder = plan.out / "tests"
    jobs = [Job(name, "test", folder / f"{name}.json", [f"--gtest_output=json:{FILE}"])
            for name in ("cheats_test", "cheats_cuda_test")]
    jobs.append(Job("store_kill_test", "test", folder / "store_kill_test.txt", [],
                    env={"TOKLINE_STORE_KILLS": str(plan.store_kills)}, keep_output=True))
    jobs.append(Job("independent_timing_cuda_test", "test", folder / "independent_timing.jsonl", [],
                    env={"TOKLINE_INDEPENDENT_TIMING": FILE}))
    built = [job for job in jobs if os.access(plan.bin_dir / job.name, os.X_OK)]
    if not built:
        raise CollectError(f"--bin {plan.bin_dir} has none of {', '.join(job.name for job in jobs)}; "
                           "scripts/test builds them into build/*/bin")
    for job in built:
        job.argv.insert(0, str(plan.bin_dir / job.name))
        collector.run(job)
    collector.run(Job("version", "test", folder / VERSION_FILE, [str(plan.bin_dir / "tokline"), "--version"],
                      keep_output=True))


def collect_overhead(plan, collector):
    """A full default run: every bench program and the decoder, with no flag but --record."""
    folder = plan.out / "overhead"
    for kernel in bench_kernels(plan):
        collector.run(Job(f"default run of {kernel}", "overhead", folder / f"{kernel}.jsonl",
                          [str(plan.bin_dir / f"bench_{kernel}"), "--device", plan.device, "--record", FILE]))
    argv = [tokline_program(plan), "bench", "--model", str(plan.model), "--record", FILE]
    if plan.device != "auto":
        argv += ["--device", plan.device]
    collector.run(Job("default run of the decoder", "overhead", folder / "decoder.jsonl", argv))


def collect(plan, say, dry_run=False):
    """Runs what is not there yet; `plan` has the arguments of the command line. Returns the failures in words; raises
    OutOfTime at the time limit."""
    collector = Collector(plan, say)
    wanted = [(collect_benches, {"aa", "slowdowns"}), (collect_decoder, {"host", "ops"}),
              (collect_tests, {"tests"}), (collect_overhead, {"overhead"})]
    wanted = [run_part for run_part, parts in wanted if parts & set(plan.parts)]
    collector.dry = True
    for run_part in wanted:
        run_part(plan, collector)
    say(f"{len(collector.planned)} program runs to do, about {sum(collector.planned):.0f} s")
    collector.dry = False
    if not dry_run:
        for run_part in wanted:
            run_part(plan, collector)
    return collector.failed
