"""scripts/records compare as it is run: order, forms, refusals."""

import json
import subprocess
import sys
import unittest

import synthetic
from command_case import CommandTest
from synthetic import Effect


class CompareTest(CommandTest):
    def test_lists_the_slowest_first_and_leaves_out_what_is_the_same(self):
        a, b = self.pair([Effect(5, kernel="linear"), Effect(30, kernel="sampling"), Effect(-10, kernel="embedding")])
        lines = self.run_command("compare", a, b, expect=0).stdout.splitlines()
        self.assertEqual(
            [line.split()[0] for line in lines[1:10]], ["sampling"] * 3 + ["linear"] * 3 + ["embedding"] * 3)
        self.assertTrue(lines[-2].startswith("30 rows: 6 slower, 3 faster, 21 same; B takes "))
        self.assertEqual(lines[-1], "21 rows that are the same are not listed (--all).")
        self.assertEqual(len(self.run_command("compare", "--all", a, b, expect=0).stdout.splitlines()), 33)

    def test_json_holds_what_the_verdict_rests_on(self):
        result = json.loads(
            self.run_command("compare", "--format", "json", *self.pair([Effect(10)], rounds=3), expect=0).stdout)
        row = result["rows"][0]
        self.assertEqual((row["verdict"], row["rounds"]), ("slower", 3))
        self.assertAlmostEqual(row["ratio"], 1.1, delta=0.03)
        self.assertLess(row["p"], result["rules"]["alpha"])
        self.assertGreater(row["needed"], 0.02)

    def test_what_became_worse_is_said_of_disturbed_rows_too(self):
        case = self.cases[0]
        a = self.write("a.jsonl", self.machine.run("x", self.cases, disturbed={case: "throttled: thermal"}))
        b = self.write("b.jsonl", self.machine.run("x", self.cases, memory={case: 10**9}))
        self.assertRegex(self.run_command("compare", a, b, expect=0).stdout,
                         r"  disturbed: rests on disturbed runs \(throttled: thermal\); memory grew from .* MiB\n")

    def test_other_fingerprints_are_refused(self):
        a = self.write("a.jsonl", self.machine.run("x", self.cases))
        b = self.write("b.jsonl", synthetic.Machine(2, build={"compiler": "clang 18"}).run("x", self.cases))
        done = self.run_command("compare", a, b, expect=3)
        self.assertIn("compiler: gcc 12.2.0 and clang 18", done.stdout)
        self.assertIn("--across", done.stderr)
        self.assertIn("30 same", self.run_command("compare", "--across-builds", a, b, expect=0).stdout)

    def test_bad_file_is_misuse(self):
        done = self.run_command("compare", self.folder, self.folder, expect=2)
        self.assertRegex(done.stderr, "^scripts/records compare: .*no \\*.jsonl")

    def test_reader_that_has_seen_enough_is_no_failure(self):
        a, b = self.pair([Effect(10)])
        command = f"'{sys.executable}' -m tokline compare --all '{a}' '{b}' | head -n 1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(command, shell=True, executable="/bin/bash", capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
