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
TOOLS = "bash cat cksum cp dirname env flock grep ln mkdir readlink rm sleep tail"


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

    def made_from(self):
        """What the environment was made from, or None."""
        path = self.tree / ".venv-analysis/made-from"
        return path.read_text() if path.exists() else None

    def test_the_first_use_installs_and_the_next_are_silent(self):
        code, out, err = self.run_compare()
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"^ran tokline compare x with .*/\.venv-analysis/bin/python\n$")
        self.assertRegex(err, r"^\[ *\d+s\] making \.venv-analysis\n$")
        self.assertEqual(self.run_compare()[2], "")
        self.assertEqual(self.installations(), 1)

    def test_other_pins_replace_the_environment(self):
        self.run_compare()
        (self.tree / ".venv-analysis/old").touch()
        with open(self.tree / "scripts/setup/requirements-analysis.txt", "a", encoding="utf-8") as file:
            file.write("six==1.17.0\n")
        old = self.made_from()
        self.assertIn("making", self.run_compare()[2])
        self.assertFalse((self.tree / ".venv-analysis/old").exists())
        self.assertNotEqual(self.made_from(), old)

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
        self.assertIsNone(self.made_from())
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
        self.assertFalse((self.tree / ".venv-analysis").exists())

    def test_a_named_python_is_used_and_nothing_is_installed(self):
        code, out, err = self.run_compare(TOKLINE_PYTHON=str(self.python), MODULES=str(self.python))
        self.assertEqual((code, out, err), (0, f"ran tokline compare x with {self.python}\n", ""))
        code, _, err = self.run_compare(TOKLINE_PYTHON="/bin/false")
        self.assertEqual(code, 2)
        self.assertIn("TOKLINE_PYTHON is '/bin/false'", err)
        self.assertEqual(self.installations(), 0)


if __name__ == "__main__":
    unittest.main()
