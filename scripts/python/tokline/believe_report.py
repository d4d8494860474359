"""Judges what scripts/maintain/believe collected: how often the gate and the blame said what was true."""
import itertools
import json

from tokline import revision, terminal, verdicts
from tokline.believe_benches import (AA_MUST, BOUND, bounds_of_misses, check_false_alarms, check_slowdown,
                                     each_kernel_is_caught, slowdown_must)
from tokline.believe_check import Check, Jobs, found_in
from tokline.believe_collect import SLOWDOWNS, VERSION_FILE
from tokline.believe_decoder import MIN_EQUAL_TRIALS, MIN_TRIALS, check_blame, check_sums, trials_of
from tokline.believe_overhead import check_full_run, check_tools
from tokline.believe_tests import check_cheats, check_store, check_timing, fail_with_their_tests
from tokline.command import MISUSE
from tokline.records import BadRecords
from tokline.stop import Stop


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
        checks = [Check(**entry) for entry in stored["checks"]]
        return checks, {"machine": stored["machine"], "rules": verdicts.Rules(**stored["rules"]),
                        "left_out": stored["left_out"], "replaced": stored.get("replaced", [])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRecords(f"{path}: not what --json wrote: {error!r}") from None


def judged_again(path):
    """([Check], context) of what as_json() wrote, held against what is asked for now: a check that was not made then is
    not measured."""
    checks, context = stored_in(path)
    for check in checks:
        if check.met is None or check.id != "aa" and not check.id.startswith("slowdown_"):
            continue
        if "distinct" not in check.details:
            raise BadRecords(f"{path}: does not say how many rows are distinct; collect again")
        if check.id == "aa":
            check.must = AA_MUST
        else:
            percent = int(check.id.partition("_")[2])
            check.must = slowdown_must(percent)
            kernels = check.details["kernels"]
            check.met = check.met and each_kernel_is_caught(percent, kernels)
            if BOUND not in check.measured:
                check.measured += bounds_of_misses(kernels)
    asked_for = judge([], tool_times=False)[0]
    known = {check.id: check for check in [*asked_for, check_one_commit(context["machine"]), *checks]}
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
                       "rules": vars(context["rules"]), "left_out": context["left_out"],
                       "replaced": context["replaced"],
                       "checks": [vars(check) for check in checks]}, indent=1) + "\n"
