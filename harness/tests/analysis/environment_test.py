"""scripts/setup/analysis.sh with a python3 that only pretends to install: made once, whole or not at all."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# A python3 whose venvs are copies of it. PIP says what its pip does; each installation is counted.
PYTHON3 = r"""#!/usr/bin/env bash
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip "*)
    echo installing >>"$FOLDER/installations"
    case $PIP in
      fails) echo "ERROR: no route to the index" && exit 1 ;;
      hangs) sleep 30 ;;
      slow) sleep 0.5 ;;
    esac
    ;;
  "-m tokline "*) echo "ran ${*:2} with $0" ;;
  --version) echo Python 3.11.2 ;;
  *find_spec*) [[ $MODULES == "$0" ]] ;;
esac
"""
TOOLS = "bash cat cp dirname env flock grep ln mkdir readlink rm sha256sum sleep tail touch"


class EnvironmentTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tokline-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.tree = self.folder / "tree"
        shutil.copytree(ROOT / "scripts/setup", self.tree / "scripts/setup")
        self.wrapper = self.tree / "scripts/records"
        shutil.copy(ROOT / "scripts/records", self.wrapper)
        self.python = self.folder / "bin/python3"
        self.python.parent.mkdir()
        self.python.write_text(PYTHON3)
        self.python.chmod(0o755)
        for tool in TOOLS.split():  # no other python3, whatever the system's has
            (self.python.parent / tool).symlink_to(shutil.which(tool))
        (self.folder / "installations").touch()

    def start(self, pip="works", **variables):
        env = os.environ | {"PATH": str(self.python.parent), "FOLDER": str(self.folder), "PIP": pip,
                            "MODULES": "", "TOKLINE_PYTHON": ""} | variables
        return subprocess.Popen([self.wrapper, "compare", "x"], env=env, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def run_compare(self, *arguments, **variables):
        """(exit code, standard output, standard error)"""
        process = self.start(*arguments, **variables)
        out, err = process.communicate()
        return process.returncode, out, err

    def installations(self):
        return len((self.folder / "installations").read_text().split())

    def made(self):
        """The environments that are complete."""
        return sorted(path.parent for path in self.tree.glob(".venv-analysis/*/made"))

    def test_the_first_use_installs_and_the_next_are_silent(self):
        code, out, err = self.run_compare()
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"^ran tokline compare x with .*/\.venv-analysis/[0-9a-f]{12}/bin/python\n$")
        self.assertRegex(err, r"^\[ *\d+s\] making \.venv-analysis/[0-9a-f]{12}\n$")
        self.assertEqual(self.run_compare()[2], "")
        self.assertEqual(self.installations(), 1)

    def test_other_pins_and_other_pythons_have_environments_of_their_own(self):
        self.run_compare()
        first, = self.made()
        (first / "in-use").touch()
        with open(self.tree / "scripts/setup/requirements-analysis.txt", "a", encoding="utf-8") as file:
            file.write("six==1.17.0\n")
        self.assertIn("making", self.run_compare()[2])
        other = self.folder / "other/python3"
        shutil.copytree(self.python.parent, other.parent, symlinks=True)
        self.assertIn("making", self.run_compare(PATH=str(other.parent))[2])
        self.assertEqual(len(self.made()), 3)
        self.assertTrue((first / "in-use").exists())
        for path in (self.python.parent, other.parent):
            self.assertEqual(self.run_compare(PATH=str(path))[2], "")
        self.assertEqual(self.installations(), 3)

    def test_a_test_is_skipped_where_nothing_was_made_and_fails_if_what_is_named_is_broken(self):
        run = self.tree / "harness/tests/analysis/run.sh"
        run.parent.mkdir(parents=True)
        shutil.copy(ROOT / "harness/tests/analysis/run.sh", run)
        for named, code, says in (("", 77, "has not been made"), ("/bin/false", 1, "TOKLINE_PYTHON is '/bin/false'")):
            env = os.environ | {"PATH": str(self.python.parent), "MODULES": "", "TOKLINE_PYTHON": named}
            done = subprocess.run(["bash", run, "any_test"], env=env, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, code, done)
            self.assertIn(says, done.stdout + done.stderr)

    def test_of_several_at_once_one_installs(self):
        processes = [self.start("slow") for _ in range(4)]
        results = [(process.communicate()[0], process.returncode) for process in processes]
        self.assertEqual([code for _, code in results], [0] * 4)
        self.assertEqual(self.installations(), 1)

    def test_an_interrupted_installation_is_made_anew(self):
        process = self.start("hangs")
        while self.installations() == 0 and process.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, err)
        self.assertEqual(self.made(), [])
        self.assertEqual(self.run_compare()[0], 0)
        self.assertEqual(self.installations(), 2)

    def test_without_an_index_a_python_that_has_the_modules_serves_and_is_named_once(self):
        code, out, err = self.run_compare("fails", MODULES=str(self.python))
        self.assertEqual((code, out), (0, f"ran tokline compare x with {self.python}\n"), err)
        self.assertIn(f"using {self.python} and its own modules: pip: ERROR: no route to the index", err)
        self.assertEqual(self.run_compare("fails", MODULES=str(self.python))[2], "")
        self.assertEqual(self.installations(), 1)
        self.assertEqual(self.run_compare("works")[0], 0)  # it has lost the modules: they are installed
        self.assertEqual(self.installations(), 2)

    def test_without_an_index_and_modules_it_is_one_line_and_exit_2(self):
        code, out, err = self.run_compare("fails")
        self.assertEqual((code, out), (2, ""))
        self.assertEqual(err.splitlines()[1:], [
            "records: needs NumPy, SciPy, Matplotlib and Jinja2, from PyPI or in a python3 in PATH: "
            "pip: ERROR: no route to the index"])
        self.assertEqual(self.made(), [])

    def test_a_named_python_is_used_and_nothing_is_installed(self):
        code, out, err = self.run_compare(TOKLINE_PYTHON=str(self.python), MODULES=str(self.python))
        self.assertEqual((code, out, err), (0, f"ran tokline compare x with {self.python}\n", ""))
        code, _, err = self.run_compare(TOKLINE_PYTHON="/bin/false")
        self.assertEqual(code, 2)
        self.assertIn("TOKLINE_PYTHON is '/bin/false'", err)
        self.assertEqual(self.installations(), 0)


if __name__ == "__main__":
    unittest.main()
