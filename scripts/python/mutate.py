"""Seeds the bugs of every mutations.json, one at a time, and records which tests catch each.

A mutant is the unmutated test program with one more object file in front of its libraries. That file is
compiled from the one source that has the mutated text. Nothing in the tree changes. A mutations.json
names files of its own folder, so that it moves with them.
"""
import concurrent.futures
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from tokline.command import ended, parser, positive
from tokline.files import write_whole
from tokline.stop import Stop
from tokline.terminal import markdown_table, wrapped

ROOT = Path(__file__).resolve().parents[2]
SEEDED = ("benches", "harness", "kernels", "scripts")  # folders that have a mutations.json in them or below them
RECORDS = sorted((ROOT / "results").glob("*/mutations.json"))  # one for each device
REPORT = ROOT / "docs/mutations.md"
SCHEMA = 2
FIELDS = {"name", "bug", "file", "old", "new", "tests"}
NO_DEVICE = 77  # exit code of a test program all of whose tests were skipped
# After one of these, every later call of the process fails too.
LASTING_ERROR = re.compile(r"illegal memory access|misaligned address|unspecified launch failure|"
                           r"illegal instruction|invalid program counter|hardware stack error")


EPILOG = """\
examples:
  scripts/maintain/mutate cpu build/mutants --out results/cpu/mutations.json
  scripts/maintain/mutate build build/mutants_cuda
  scripts/maintain/mutate run build/mutants_cuda/mutants.tar.xz --out results/h200/mutations.json
  scripts/maintain/mutate report

The --out of cpu and run is the record of a device, into which they merge their verdicts. It keeps those that
count: of each mutation as it is now and each of its test programs, the newest. The others are dropped. It
changes when all mutants have run; until then FILE.json.unfinished is what it would be. To keep what an
interrupted run has, move that file to FILE.json.

A mutation whose old text is no longer found exactly once is an error that names it: rewrite it for the code
as it is now. A new kernel needs mutations of its own. One that survives needs a test, not another mutation.

exit codes: 0 success, 1 a bug survives or a step failed, 2 misuse, 130 interrupted
"""


# ---- the data ----

def read_json(path):
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Stop(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise Stop(f"{path} is not JSON: {error}") from None


def read_mutations():
    """All mutations, each checked against the tree."""
    mutations, names = [], set()
    paths = sorted(path for folder in SEEDED for path in (ROOT / folder).rglob("mutations.json"))
    for path, mutation in ((path, mutation) for path in paths for mutation in read_json(path)):
        name = mutation.get("name", "without a name")
        if set(mutation) != FIELDS or not mutation["tests"]:
            raise Stop(f"mutation {name} has the fields {sorted(mutation)}; it must have {sorted(FIELDS)}, and tests")
        if "/" in mutation["file"]:
            raise Stop(f"mutation {name}: {mutation['file']} is not in the folder of {path}")
        mutation["file"] = str((path.parent / mutation["file"]).relative_to(ROOT))
        if name in names:
            raise Stop(f"mutation {name} appears twice")
        names.add(name)
        try:
            text = (ROOT / mutation["file"]).read_text(encoding="utf-8")
        except OSError as error:
            raise Stop(f"mutation {name}: cannot read {mutation['file']}: {error.strerror}") from None
        count = text.count(mutation["old"])
        if count != 1:
            raise Stop(f"mutation {name}: its old text is found {count} times in {mutation['file']}; it must be found "
                       "once")
        mutations.append({**mutation, "digest": digest(mutation, text)})
    return mutations


def enclosing_definition(text, old):
    """The function or class at namespace scope of a formatted C++ file that holds all of the old text; None if none
    does. It starts in the first column, and so does the brace that ends it."""
    start = text.index(old)
    begin, offset = None, 0
    for line in text.splitlines(keepends=True):
        if begin is None and re.match(r'(?!namespace\b|using\b|extern "C" \{)[A-Za-z_\[]', line):
            begin = offset
        offset += len(line)
        if begin is None:
            continue
        part = text[begin:offset]
        closed = part.count("{") == part.count("}") and line.rstrip().endswith((";", "}"))
        if closed or line.startswith("}"):
            if begin <= start and start + len(old) <= offset:
                head = part.partition("{")[0].rstrip()
                return None if len(head) == len(part.rstrip()) or head.endswith("=") else part
            begin = None
    return None


# A string or character literal, or a comment.
LITERAL_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)


def code_of(text):
    """C++ without comments, and with one space for any white space: what a bug can depend on."""
    def kept(match):
        return " " if match[0].startswith("/") else match[0]
    return " ".join(LITERAL_OR_COMMENT.sub(kept, text).split())


def digest(mutation, text):
    """A hash of the change and of the code of the function that it is made in, or of the whole file if there is none:
    a verdict counts for exactly that. The file's name is not part of it, so it survives a move."""
    parts = [enclosing_definition(text, mutation["old"]) or text, mutation["old"], mutation["new"]]
    return hashlib.sha256("\0".join(map(code_of, parts)).encode()).hexdigest()[:16]


def included(file, found=None):
    """The project's files that a source includes, itself first, as paths below ROOT."""
    found = {} if found is None else found
    if file not in found and (ROOT / file).is_file():
        found[file] = None
        for name in re.findall(r'^#include "([^"]+)"', (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE):
            included(name, found)
    return found


def sources_of(mutation, test):
    """The sources that are compiled again for a test program: of a header, every .cu of its kernel that includes it, or
    if kernels share it, those of the kernel that the program tests, and for a program of no such kernel those of the
    first kernel among those whose tests are named."""
    path = Path(mutation["file"])
    if path.suffix in (".cc", ".cu"):
        return [str(path)]
    for kernel in [path.parent.name, *(name.removesuffix("_cuda_test") for name in [test, *mutation["tests"]])]:
        found = sorted((ROOT / path.parent.parent / kernel).glob("*.cu"))
        sources = [str(source.relative_to(ROOT)) for source in found]
        if including := [source for source in sources if str(path) in included(source)]:
            return including
    raise Stop(f"mutation {mutation['name']}: no .cu of its kernel or its tests' includes {path}")


def needs_gpu(test):
    return test.endswith("_cuda_test")


def with_tests(mutations, wanted):
    """Those mutations that have wanted test programs, with only these."""
    kept = [{**m, "tests": [test for test in m["tests"] if wanted(test)]} for m in mutations]
    return [m for m in kept if m["tests"]]


def programs_of(mutations):
    return sorted({test for mutation in mutations for test in mutation["tests"]})


# ---- build ----

def command_output(arguments, **options):
    done = subprocess.run(arguments, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise Stop(f"{shlex.join(map(str, arguments))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


class Compiler:
    """Makes mutants with the commands of an unmutated build."""
    def __init__(self, build_dir, work_dir):
        self.build_dir, self.work_dir = build_dir, work_dir
        database = json.loads(command_output(["ninja", "-C", build_dir, "-t", "compdb"]))
        self.compile_commands = {entry["file"]: entry for entry in database if entry["output"].endswith(".o")}

    def compile(self, mutation):
        """{source: object file} of the mutated sources of all its test programs."""
        overlay = self.work_dir / "overlay" / mutation["name"]
        shutil.rmtree(overlay, ignore_errors=True)  # what the mutation was before may have named another file
        mutated = overlay / mutation["file"]
        mutated.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / mutation["file"]).read_text(encoding="utf-8")
        mutated.write_text(text.replace(mutation["old"], mutation["new"]), encoding="utf-8")
        sources = {source: None for test in mutation["tests"] for source in sources_of(mutation, test)}
        return {source: self.compile_source(source, overlay, mutated) for source in sources}

    def compile_source(self, source, overlay, mutated):
        """The object file of a source that finds the mutated file first."""
        command = shlex.split(self.compile_commands[str(ROOT / source)]["command"])
        for flag in ("-MT", "-MF"):  # the dependency file is that of the unmutated object
            at = command.index(flag)
            del command[at:at + 2]
        command.remove("-MD")
        target = overlay / (source.replace("/", ".") + ".o")
        command[command.index("-o") + 1] = str(target)
        # Includes are written from the root, so the first root that has a header wins.
        command.insert(command.index(f"-I{ROOT}"), f"-I{overlay}")
        if mutated == overlay / source:
            command[command.index(str(ROOT / source))] = str(mutated)
        command_output(["nice", *command], cwd=self.build_dir)
        return target

    def link(self, test, target, objects=()):
        """Links the stripped test program; objects in front of the libraries replace what these have."""
        lines = command_output(["ninja", "-C", self.build_dir, "-t", "commands", test]).splitlines()
        command = [word for word in shlex.split(lines[-1]) if word not in ("&&", ":")]
        at = command.index("-o")
        command[at + 1] = str(target)
        command[at:at] = ["-s", *map(str, objects)]
        target.parent.mkdir(parents=True, exist_ok=True)
        command_output(command, cwd=self.build_dir)


def build_mutants(arguments, mutations, options, languages):
    """Makes a folder with unmutated/ and a folder for each mutation, which have their test programs."""
    out_dir = Path(arguments.out_dir).resolve()
    build_dir, programs = out_dir / "build", out_dir / "programs"
    shutil.rmtree(programs, ignore_errors=True)
    programs.mkdir(parents=True)
    tests = programs_of(mutations)
    configure = ["cmake", "-S", ROOT, "-B", build_dir, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *options]
    if shutil.which("ccache"):
        configure += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in languages]
    command_output(configure)
    subprocess.run(["nice", "ninja", "-C", build_dir, f"-j{arguments.jobs}", *tests], check=True)
    compiler = Compiler(build_dir, out_dir)
    for test in tests:
        compiler.link(test, programs / "unmutated" / test)

    def make(mutation):
        compiled = compiler.compile(mutation)
        for test in mutation["tests"]:
            objects = [compiled[source] for source in sources_of(mutation, test)]
            compiler.link(test, programs / mutation["name"] / test, objects)
        print(f"built {mutation['name']}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(make, mutations))  # raises what one of them raised
    return programs


def chosen(arguments, wanted):
    """The mutations with a test that is wanted; with --missing those that no record has as they are now."""
    mutations = with_tests(read_mutations(), wanted)
    if not arguments.missing:
        return mutations
    found = newest_results(read_runs(RECORDS))
    return [m for m in mutations if any((m["name"], m["digest"], test) not in found for test in m["tests"])]


def build(arguments):
    mutations = chosen(arguments, needs_gpu)
    programs = build_mutants(arguments, mutations, ["-DTOKLINE_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=90a",
                                                    "-DTOKLINE_BUILD_BENCHES=OFF"], ["CXX", "CUDA"])
    manifest = {"schema": SCHEMA, "revision": revision(), "mutations": mutations}
    (programs / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    archive = programs.parent / "mutants.tar.xz"
    # Sorted by program, so that what the copies of a program share is within the window of the compression.
    files = sorted((p for p in programs.rglob("*") if p.is_file()), key=lambda p: (p.name, str(p)))
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        for path in files:
            tar.add(path, path.relative_to(programs))
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")
    return 0


def cpu(arguments):
    out, tree = record_path(arguments.out), read_mutations()
    mutations = chosen(arguments, lambda test: not needs_gpu(test))
    programs = build_mutants(arguments, mutations, ["-DTOKLINE_CUDA=OFF", "-DTOKLINE_BUILD_BENCHES=ON"], ["CXX"])
    return run_and_record(programs, mutations, tree, revision(), None, jobs=1, out=out)


def revision():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"],
                          capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


# ---- run ----

def run_tests(program, timeout, names=None):
    """Runs a test program, or some of its tests: exit code, failed and skipped tests, output."""
    # cuBLASLt comes with the toolkit, which may be elsewhere than where the mutants were built.
    toolkits = (os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    folders = [os.environ.get("LD_LIBRARY_PATH"), *(f"{toolkit}/lib64" for toolkit in toolkits if toolkit)]
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(filter(None, folders))}
    command = [str(program), "--gtest_color=no"]
    if names:
        command.append("--gtest_filter=" + ":".join(names))
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, timeout=timeout, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""  # bytes in some versions of Python, text in others
        code, output = "timeout", output if isinstance(output, str) else output.decode(errors="replace")
    started = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
    ends = re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?),? .*\(\d+ ms\)$", output, re.MULTILINE)
    ended_tests = {name for _, name in ends}
    return {"code": code, "failed": [name for how, name in ends if how == "FAILED"],
            "skipped": [name for how, name in ends if how == "SKIPPED"], "started": len(started),
            "unended": [name for name in started if name not in ended_tests], "output": output,
            "seconds": round(time.monotonic() - start, 1)}


def run_unmutated(programs, tests, jobs):
    """What the programs do without a bug: all tests must pass. A program whose tests are all skipped is left out."""
    facts, skipping = {}, []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda test: run_tests(programs / "unmutated" / test, 300), tests)
        for test, result in zip(tests, results):
            if result["code"] == NO_DEVICE:
                skipping.append(test)
                print(f"unmutated {test}: all of its tests are skipped here; its mutants are not run", flush=True)
                continue
            if result["code"] != 0:
                raise Stop(f"{test} does not pass without a bug (exit {result['code']}):\n{result['output'][-4000:]}")
            facts[test] = {"tests": result["started"], "skipped": result["skipped"], "seconds": result["seconds"]}
            print(f"unmutated {test}: {result['started']} tests in {result['seconds']} s", flush=True)
    if skipping and not facts:
        raise Stop(f"{', '.join(skipping)} skipped all of their tests: no CUDA device")
    return facts


def bare_name(test):
    """Suite.Test of a test, whatever its parameter."""
    suite, name = test.split(".", 1)
    return suite.split("/")[-1] + "." + name.split("/")[0]


def run_mutant(program, timeout):
    result = run_tests(program, timeout)
    caught = {name: "fails" for name in result["failed"]}
    if len(caught) > 1 and LASTING_ERROR.search(result["output"]):
        # Tests that ran after the error failed because of it; alone, only those fail that see the bug.
        alone = {name: run_tests(program, timeout, [name]) for name in caught}
        caught = {name: "fails" for name, one in alone.items() if one["code"] != 0}
    if result["code"] == "timeout":
        caught.update({name: "hangs" for name in result["unended"]})
    elif result["code"] not in (0, 1):
        caught.update({name: "crashes" for name in result["unended"]})
        if not caught:
            raise Stop(f"{program} ended with {result['code']}:\n{result['output'][-4000:]}")
    tests = {}
    for name, how in caught.items():
        tests.setdefault(bare_name(name), how)
    return {"caught_by": tests, "seconds": result["seconds"]}


def run_mutants(programs, mutations, unmutated, jobs):
    """Yields each mutation, a test program, and which of its tests caught it."""
    work = [(m["name"], test) for m in mutations for test in m["tests"]
            if test in unmutated]

    def one(item):
        name, test = item
        return run_mutant(programs / name / test, max(60, 4 * unmutated[test]["seconds"]))

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for (name, test), result in zip(work, pool.map(one, work)):
            tests = ", ".join(f"{t} {how}" for t, how in result["caught_by"].items())
            print(f"{name}: {tests or 'SURVIVED ' + test} ({result['seconds']} s)", flush=True)
            yield name, test, result


def gpu_name():
    try:
        return command_output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).split("\n")[0]
    except (Stop, OSError):
        return None


def record_path(text):
    """The path of a record that is written at the end: what is wrong with it is said before all the work."""
    out = Path(text)
    if out.is_dir() or not out.parent.is_dir():
        raise Stop(f"--out {out} is a folder, or is in none")
    read_runs([out] if out.exists() else [])
    return out


def record_text(runs):
    """JSON with one line per run and one per mutation."""
    lines = []
    for one in runs:
        head = json.dumps({key: value for key, value in one.items() if key != "mutations"})
        lines.append(head[:-1] + ', "mutations": [\n' + ",\n".join(map(json.dumps, one["mutations"])) + "\n]}")
    return f'{{"schema": {SCHEMA}, "runs": [\n' + ",\n".join(lines) + "\n]}\n"


def merged(runs, tree):
    """The runs with only the verdicts that count for the mutations of the tree. A run without any is left out."""
    wanted = {(m["name"], m["digest"], test) for m in tree for test in m["tests"]}
    newest = {key: one for key, (one, _) in newest_results(runs).items() if key in wanted}
    kept = []
    for one in runs:
        verdicts = []
        for verdict in one["mutations"]:
            results = {test: result for test, result in verdict["results"].items()
                       if newest.get((verdict["name"], verdict["digest"], test)) is one}
            verdicts += [{**verdict, "results": results}] if results else []
        kept += [{**one, "mutations": verdicts}] if verdicts else []
    return kept


def run_and_record(programs, mutations, tree, revised, gpu, jobs, out):
    """Merges the verdicts into OUT when all have run; until then, OUT.unfinished is what it would be."""
    if not mutations:
        raise Stop("no mutation to run")
    unfinished = out.with_name(out.name + ".unfinished")
    unfinished.unlink(missing_ok=True)  # of an earlier run
    before = read_runs([out] if out.exists() else [])
    unmutated = run_unmutated(programs, programs_of(mutations), jobs)
    results = {}
    for name, test, result in run_mutants(programs, mutations, unmutated, jobs):
        results.setdefault(name, {})[test] = result
        new = {"revision": revised, "gpu": gpu, "unmutated": unmutated,
               "mutations": [{"name": m["name"], "digest": m["digest"], "results": results[m["name"]]}
                             for m in mutations if m["name"] in results]}
        write_whole(unfinished, record_text(merged([*before, new], tree)))
    unfinished.replace(out)
    survivors = [(name, test) for name, tests in results.items() for test, result in tests.items()
                 if not result["caught_by"]]
    for name, test in survivors:
        print(f"SURVIVED: {name} in {test}", file=sys.stderr)
    caught = len(results) - len({name for name, _ in survivors})
    not_run = len(mutations) - len(results)
    print(f"{caught} of {len(results)} mutations caught by every program named for them"
          + (f", {not_run} not run" if not_run else "") + f"; {out}")
    return 1 if survivors else 0


def run(arguments):
    out, tree = record_path(arguments.out), read_mutations()
    now = {(m["name"], m["digest"]) for m in tree}
    with tempfile.TemporaryDirectory() as scratch:
        programs = Path(arguments.mutants)
        if programs.is_file():
            with tarfile.open(programs) as tar:
                tar.extractall(scratch)
            programs = Path(scratch)
        elif (programs / "programs").is_dir():
            programs = programs / "programs"
        programs = programs.resolve()
        manifest = read_json(programs / "manifest.json")
        mutations = [m for m in manifest["mutations"] if (m["name"], m["digest"]) in now]
        if lapsed := [m["name"] for m in manifest["mutations"] if m not in mutations]:
            print(f"not run, because the tree has them otherwise now: {', '.join(lapsed)}", flush=True)
        return run_and_record(programs, mutations, tree, manifest["revision"], gpu_name(), arguments.jobs, out)


# ---- list and report ----

def list_mutations(_):
    for mutation in read_mutations():
        print(f"{mutation['name']}\n    {mutation['bug']}\n    {mutation['file']}, "
              f"caught by {', '.join(mutation['tests'])}")
    return 0


def read_runs(paths):
    """The runs of the records, of each the oldest first."""
    runs = []
    for path in paths:
        record = read_json(path)
        schema = record.get("schema") if isinstance(record, dict) else None
        if schema != SCHEMA:
            raise Stop(f"{path} has schema {schema}; this reads {SCHEMA}")
        for one in with_fields(path, record, "schema", "runs")["runs"]:
            runs.append(with_fields(path, one, "revision", "gpu", "unmutated", "mutations"))
            for verdict in one["mutations"]:
                with_fields(path, verdict, "name", "digest", "results")
    return runs


def with_fields(path, part, *fields):
    found = sorted(part) if isinstance(part, dict) else part
    if found != sorted(fields):
        raise Stop(f"{path} has {found} where the fields must be {sorted(fields)}")
    return part


def run_name(one):
    return f"{one['gpu'] or 'CPU'}, {one['revision']}"


def newest_results(runs):
    """{(mutation, digest, test program): (run, what the program did)} according to the last run that has each."""
    return {(verdict["name"], verdict["digest"], test): (one, result)
            for one in runs for verdict in one["mutations"] for test, result in verdict["results"].items()}


@functools.cache
def commit_date(revised):
    """The day of a revision, 2026-11-28, or "" where git does not have it."""
    done = subprocess.run(["git", "-C", ROOT, "show", "-s", "--format=%cs", (revised or "").removesuffix("-dirty"), "--"],
                          capture_output=True, text=True)
    return done.stdout.strip()


def of_gpus(mutations, newest):
    """How many of the bugs that have CUDA tests these catch, and how old their verdicts are, in words."""
    programs, runs = [], {}
    for mutation in with_tests(mutations, needs_gpu):
        found = [newest.get((mutation["name"], mutation["digest"], test)) for test in mutation["tests"]]
        programs.append([bool(each and each[1]["caught_by"]) for each in found])
        runs.update((run_name(each[0]), each[0]) for each in found if each)
    if not runs:
        return []
    by_all, by_any = sum(map(all, programs)), sum(map(any, programs))
    oldest = min(runs.values(), key=lambda one: commit_date(one["revision"]))
    return [f"CUDA tests are named for {len(programs)} of the bugs: {by_all} ({100 * by_all / len(programs):.1f} %) are "
            f"caught by every CUDA program that is named for them, {by_any} ({100 * by_any / len(programs):.1f} %) by one "
            f"at least. The oldest verdicts of these that count are those of {run_name(oldest)}"
            + (f", of {commit_date(oldest['revision'])}" if commit_date(oldest["revision"]) else "") + "."]


def report(arguments):
    mutations, all_runs = read_mutations(), read_runs(arguments.results)
    newest = newest_results(all_runs)
    rows, survived, not_run = [], 0, 0
    tried = {run_name(one): set() for one in all_runs}
    for mutation in mutations:
        cells, runs = [], []
        for test in mutation["tests"]:
            one, result = newest.get((mutation["name"], mutation["digest"], test), (None, None))
            if one is None:
                cells.append(f"**not run yet**: `{test}`")
                continue
            tried[run_name(one)].add(mutation["name"])
            runs += [run_name(one)] if run_name(one) not in runs else []
            cells.append(", ".join(f"`{name}`" + ("" if how == "fails" else f" ({how})")
                                   for name, how in result["caught_by"].items())
                         or f"**survived** `{test}`")
        survived += any(cell.startswith("**survived**") for cell in cells)
        not_run += any(cell.startswith("**not run yet**") for cell in cells)
        rows.append([mutation["bug"], f"`{mutation['file']}`", "; ".join(cells), "; ".join(runs)])
    runs = [[run_name(one), commit_date(one["revision"]), str(len(tried[run_name(one)])), str(len(one["unmutated"])),
             str(sum(facts["tests"] for facts in one["unmutated"].values()))] for one in all_runs]
    lines = [
        "# Seeded bugs and the tests that catch them",
        "",
        "Written by `scripts/maintain/mutate report`; its `--help` says how to run them. The bugs of a folder are in "
        "its `mutations.json`, which moves with it.",
        "",
        f"There are {len(mutations)} bugs. Each was alone in a build that is otherwise that of the revision beside it. "
        f"{len(mutations) - survived - not_run} are caught by every test program that is named for them, "
        f"{survived} survive, {not_run} have not been run as they are now by all of these programs.",
        "A verdict counts until the change, or the function that it is made in, is rewritten. "
        "A test that hangs or crashes has caught its bug too.",
        *of_gpus(mutations, newest),
        "",
        *markdown_table(["run", "day of its commit", "bugs that count by it", "test programs", "tests, all passing without a bug"], runs),
        "",
        *markdown_table(["bug", "where", "caught by", "run"], rows),
    ]
    for one in all_runs:
        skipped = sorted({bare_name(t) for facts in one["unmutated"].values() for t in facts["skipped"]})
        if skipped:
            lines += ["", f"Skipped in {run_name(one)}: " + ", ".join(f"`{n}`" for n in skipped) + "."]
    Path(arguments.out).write_text(wrapped("\n".join(lines)) + "\n", encoding="utf-8")
    print(f"{arguments.out}: {len(mutations)} bugs, {survived} survived, {not_run} not run yet")
    return 1 if survived else 0


def main():
    parsed = parser(__doc__, EPILOG)
    commands = parsed.add_subparsers(dest="command", required=True)

    def add(name, action, what):
        command = commands.add_parser(name, help=what)
        command.set_defaults(action=action)
        return command

    add("list", list_mutations, "the mutations, checked against the tree")
    on_cpu = add("cpu", cpu, "compile and run the mutants that have CPU tests; needs no nvcc")
    for command in (on_cpu, add("build", build, "compile those that have CUDA tests, for sm_90a; needs nvcc")):
        command.add_argument("out_dir", metavar="OUT_DIR", help="where the programs go")
        command.add_argument("--jobs", type=positive, default=2, metavar="N", help="parallel compilers. Default: 2")
        command.add_argument("--missing", action="store_true",
                             help="only those that no record in results/ has as they are now")
    on_gpu = add("run", run, "run the CUDA tests of all mutants; needs a GPU and no compiler")
    on_gpu.add_argument("mutants", metavar="MUTANTS", help="mutants.tar.xz, or the OUT_DIR of build")
    on_gpu.add_argument("--jobs", type=positive, default=min(os.cpu_count() or 1, 16), metavar="N",
                        help="programs at once. Default: the number of CPUs, at most 16")
    for command in (on_cpu, on_gpu):
        command.add_argument("--out", required=True, metavar="FILE.json", help="the record that gets the verdicts")
    command = add("report", report, "write docs/mutations.md from the records of cpu and run")
    command.add_argument("--results", nargs="+", default=RECORDS, metavar="FILE.json",
                         help="records; of several with a verdict the last counts. Default: results/*/mutations.json")
    command.add_argument("--out", default=REPORT, metavar="FILE.md")
    arguments = parsed.parse_args()
    try:
        return arguments.action(arguments)
    except subprocess.CalledProcessError as error:
        raise Stop(f"{error.cmd[0]} failed") from None


if __name__ == "__main__":
    sys.exit(ended("scripts/maintain/mutate", main))
