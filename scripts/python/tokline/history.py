"""Keeps the records of full runs in a branch of their own that only grows."""

import collections
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tokline import records, terminal
from tokline.command import parser
from tokline.kernels import ROOT
from tokline.stop import Stop

ATTEMPTS = 5  # to push, while others push too
MARK = ".history"  # a file in every folder that this command made


def parse_arguments(argv):
    parsed = parser(
        "Fetches the branch that has the records of all nightly runs into a folder, for scripts/records report;\n"
        "adds the given records, one file per run, and pushes them. What the branch has is never changed or removed:\n"
        "a file of the same name and other content is refused. The first addition makes the branch.",
        """exit codes: 0 success, 1 the remote cannot be read or written, 2 misuse, unreadable records, or a file
that the branch has with other content, 130 interrupted

examples:
  scripts/records history && scripts/records report build/history -o report.html
  scripts/records history build/results/20260102T031700Z.jsonl
  scripts/records history --retried build/nightly/retried.txt build/nightly/*.jsonl""")
    parsed.add_argument("records", nargs="*", type=Path, metavar="RECORDS.jsonl", help="to be added")
    parsed.add_argument("--retried", type=Path, metavar="FILE",
                        help="with records: the tests that passed only at their second try (scripts/test --retried). It "
                             "is kept beside the records, and how often each was named is printed")
    parsed.add_argument("--remote", default="origin", help="the git remote (default: %(default)s)")
    parsed.add_argument("--branch", default="history", help="the branch (default: %(default)s)")
    parsed.add_argument("--out", type=Path, default=ROOT / "build" / "history", metavar="DIR",
                        help="where it is checked out; the folder is replaced each time (default: build/history)")
    return parsed.parse_args(argv)


def git(*arguments, check=True, **options):
    """The finished process; with `check` its output, or Stop if it fails."""
    done = subprocess.run(["git", *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)
    if not check:
        return done
    if done.returncode:
        raise Stop(f"git {arguments[0]} failed")
    return done.stdout.strip()


def check_arguments(options):
    for file in options.records:
        if file.suffix != ".jsonl" or not file.is_file() or not file.stat().st_size:
            raise Stop(f"{file}: no records; a file named *.jsonl is needed", 2)
    if options.retried:
        if not options.records:
            raise Stop("--retried needs the records that it stands beside", 2)
        try:
            names = options.retried.read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            raise Stop(f"--retried {options.retried}: no file of names", 2) from None
        bad = [name for name in names if not re.fullmatch(r"[\w.-]+", name)]
        if bad:
            raise Stop(f"--retried {options.retried}: '{bad[0][:60]}' is no name of a test", 2)
    if git("remote", "get-url", options.remote, check=False, stderr=subprocess.DEVNULL).returncode:
        raise Stop(f"--remote {options.remote}: no such remote", 2)
    if git("check-ref-format", f"refs/heads/{options.branch}", check=False).returncode:
        raise Stop(f"--branch '{options.branch}' is no name of a branch", 2)
    out = options.out
    if out.exists() and not (out / MARK).exists() and (not out.is_dir() or any(out.iterdir())):
        raise Stop(f"--out {out}: this folder has other files; name a new one", 2)
    try:
        for run in records.read(options.records):
            if run.killed or run.interrupted:
                raise Stop(f"{run.path}: {run.program} did not end; only whole runs are kept", 2)
    except records.BadRecords as error:
        raise Stop(error, 2) from None


def fetch(remote, branch):
    """The branch's last commit, or "" if there is no branch yet."""
    listed = git("ls-remote", "--exit-code", "--heads", remote, f"refs/heads/{branch}", check=False).returncode
    if listed == 2:
        return ""
    kept = f"refs/remotes/{remote}/{branch}"
    if listed or git("fetch", "--quiet", "--no-tags", remote, f"+refs/heads/{branch}:{kept}", check=False).returncode:
        raise Stop(f"the branch {branch} of {remote} cannot be read")
    return git("rev-parse", kept)


def commit(files, branch, tip):
    """A commit on top of `tip` with the files added, {name: file}, or None where it has them all. It is made beside the
    checkout: neither the branch that is checked out nor its files are touched."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {"GIT_INDEX_FILE": os.path.join(scratch, "index")}
        git("read-tree", tip or "--empty", env=environment)
        for name, file in files.items():
            blob = git("hash-object", "-w", "--no-filters", file.resolve())
            if git("ls-files", "--format=%(objectname)", "--", name, env=environment) not in ("", blob):
                raise Stop(f"{branch} has a file {name} with other content; it is not replaced", 2)
            git("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}", env=environment)
        tree = git("write-tree", env=environment)
    if tip and tree == git("rev-parse", tip + "^{tree}"):
        return None
    environment = dict(os.environ)
    if git("var", "GIT_COMMITTER_IDENT", check=False, stderr=subprocess.DEVNULL).returncode:
        environment |= {f"GIT_{who}_{what}": words for who in ("AUTHOR", "COMMITTER")
                        for what, words in (("NAME", "Tokline"), ("EMAIL", "tokline@localhost"))}
    return git("commit-tree", tree, *(["-p", tip] if tip else []), "-m",
               f"Records, first {next(iter(files))}", env=environment)


def add(options, tip):
    """The branch's last commit once it has the records."""
    files = {file.name: file for file in options.records}
    if len(files) < len(options.records):
        raise Stop("two records have the same name, and the branch has one file of a name; rename one", 2)
    if options.retried:
        files[f"{options.records[0].stem}.retried"] = options.retried.resolve()
    for attempt in range(1, ATTEMPTS + 1):
        new = commit(files, options.branch, tip)
        if new is None:
            return tip
        # A push that would drop what another one added meanwhile is refused: build on that and try again.
        pushed = git("push", "--quiet", options.remote, f"{new}:refs/heads/{options.branch}", check=False,
                     stderr=subprocess.PIPE)
        if pushed.returncode == 0:
            return new
        if attempt < ATTEMPTS:
            time.sleep(attempt)
            tip = fetch(options.remote, options.branch)
    said = pushed.stderr.strip().rpartition("\n")[2]
    raise Stop(f"{options.branch} cannot be pushed to {options.remote}: {said}")


def retried_tests(folder):
    """A sentence: how often each test passed only at its second try."""
    nights = list(folder.glob("*.retried"))
    times = collections.Counter(name for night in nights for name in set(night.read_text(encoding="utf-8").split()))
    named = ", ".join(f"{name} {number}" for name, number in times.most_common())
    return f"Tests that passed only at their second try, of {terminal.count(len(nights), 'night')}: {named or 'none'}."


def main(argv):
    options = parse_arguments(argv)
    options.records = [file.resolve() for file in options.records]
    options.out = options.out.resolve()
    check_arguments(options)
    tip = fetch(options.remote, options.branch)
    if options.records:
        tip = add(options, tip)
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    (options.out / MARK).touch()
    if tip:
        with subprocess.Popen(["git", "archive", tip], cwd=ROOT, stdout=subprocess.PIPE) as archive:
            subprocess.run(["tar", "-x", "-C", options.out], stdin=archive.stdout, check=True)
    files = len(list(options.out.glob("*.jsonl")))
    if options.retried:
        terminal.write_out(retried_tests(options.out))
    terminal.say(f"{os.path.relpath(options.out, ROOT)}: {files} files of {options.branch}")
    return 0
