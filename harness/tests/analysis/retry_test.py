"""scripts/setup/run_tests.sh with a ctest that only pretends to test: what counts as passed, and what is run again."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# The first run does what FIRST says, and the one with --rerun-failed what SECOND says.
CTEST = r"""#!/usr/bin/env bash
kind=$FIRST
[[ $* != *--rerun-failed* ]] || kind=$SECOND
echo "$kind" >>"$FOLDER/runs"
case $kind in
  fails) echo "7:slow_test" >"$FOLDER/Testing/Temporary/LastTestsFailed.log" && exit 8 ;;
  is-killed) kill -KILL $$ ;;
  skips) echo "1/1 Test  #7: slow_test ........***Skipped   0.05 sec" ;;
esac
"""


class RetryTest(unittest.TestCase):
    def run_tests(self, first, second="passes", left_over=None, arguments=""):
        """(what run_tests calls passed, the tests that it names as retried, the runs of ctest)"""
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            logs = folder / "Testing/Temporary"
            logs.mkdir(parents=True)
            (logs / "LastTest.log").touch()
            if left_over:
                (logs / "LastTestsFailed.log").write_text(left_over)
            (folder / "ctest").write_text(CTEST)
            (folder / "ctest").chmod(0o755)
            script = f"""set -euo pipefail; say() {{ :; }}; retry=yes; source {ROOT}/scripts/setup/run_tests.sh
                run_tests {folder} {arguments}; echo "$passed|$retried" """
            env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "FOLDER": str(folder), "FIRST": first,
                                "SECOND": second}
            said = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True).stdout
            passed, retried = said.splitlines()[-1].split("|")
            return passed, retried, (folder / "runs").read_text().split()

    def test_what_failed_runs_once_more(self):
        self.assertEqual(self.run_tests("fails"), ("yes", "slow_test", ["fails", "passes"]))
        self.assertEqual(self.run_tests("fails", "fails"), ("no", "", ["fails", "fails"]))

    def test_what_fails_and_then_skips_has_not_passed(self):
        self.assertEqual(self.run_tests("fails", "skips"), ("no", "", ["fails", "skips"]))

    def test_a_ctest_that_is_killed_has_failed_whatever_an_earlier_one_left(self):
        self.assertEqual(self.run_tests("is-killed"), ("no", "", ["is-killed"]))
        self.assertEqual(self.run_tests("is-killed", left_over="3:old_test\n"), ("no", "", ["is-killed"]))
        self.assertEqual(self.run_tests("fails", "is-killed")[0], "no")

    def test_a_ctest_that_stopped_at_a_failure_has_failed(self):
        self.assertEqual(self.run_tests("fails", arguments="--stop-on-failure"), ("no", "", ["fails"]))

    def test_what_passes_is_not_repeated(self):
        self.assertEqual(self.run_tests("passes", left_over="3:old_test\n"), ("yes", "", ["passes"]))


if __name__ == "__main__":
    unittest.main()
