"""scripts/records gate on records: output, exit codes, bad input, speed."""

import json
import os
import unittest
from pathlib import Path

import synthetic
from command_case import CommandTest
from synthetic import Effect


class GateRecordsTest(CommandTest):
    def gate(self, a, b, *arguments, expect):
        return self.run_command("gate", "--baseline", a, "--candidate", b, *arguments, expect=expect)

    def refuses(self, a, b, expression):
        done = self.gate(a, b, expect=2)
        self.assertRegex(done.stderr, f"^scripts/records gate: .*{expression}")
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertEqual(done.stdout, "")

    def test_same_or_faster_passes(self):
        self.assertIn("gate: same or faster.", self.gate(*self.pair(), expect=0).stdout)
        self.assertIn(" faster", self.gate(*self.pair([Effect(-20)]), expect=0).stdout)

    def test_slower_fails_and_names_the_rows(self):
        done = self.gate(*self.pair([Effect(10, kernel="linear")]), expect=1)
        self.assertIn("3 slower", done.stdout)
        self.assertRegex(done.stdout, r"linear b1_s1024 .* slower")
        self.assertIn("gate: worse: linear", done.stdout)
        self.assertEqual(done.stderr, "")

    def test_single_runs_of_one_commit_are_undecided_and_how_to_know_is_said(self):
        done = self.gate(*self.pair([Effect(9, kernel="linear")], rounds=1), expect=3)
        self.assertNotIn(" slower", done.stdout)
        self.assertIn("linear b1_s1024", done.stdout)
        self.assertRegex(done.stdout, "gate: undecided: 3 rows .*measure in rounds: scripts/records gate --ab")
        done = self.gate(*self.pair([Effect(20, kernel="linear")], rounds=1), expect=1)
        self.assertIn("3 slower", done.stdout)

    def test_only_looks_at_the_rows_that_match(self):
        self.assertIn(
            "27 rows", self.gate(*self.pair([Effect(10, kernel="linear")]), "--only", "^(?!linear)", expect=0).stdout)

    def test_other_fingerprints_are_not_compared_unless_across(self):
        a = self.write("a.jsonl", self.machine.run("x", self.cases))
        b = self.write("b.jsonl", synthetic.Machine(2, gpu={"driver": "570"}).run("x", self.cases))
        self.assertIn("the fingerprints differ: driver: 580.1 and 570", self.gate(a, b, expect=3).stdout)
        self.assertIn("compared across different fingerprints: driver", self.gate(a, b, "--across", expect=0).stdout)

    def test_no_common_rows_is_not_comparable(self):
        a = self.write("a.jsonl", self.machine.run("x", self.cases[:10]))
        b = self.write("b.jsonl", self.machine.run("x", self.cases[10:]))
        self.assertIn("no row is in both", self.gate(a, b, expect=3).stdout)
        self.assertIn("no row is in both", self.gate(a, b, "--only", "b1_s1024", expect=3).stdout)

    def bench(self, side, then):
        """A bench program that records a run of `side` and then does what it is told; a crash leaves no row."""
        lines = self.write(f"{side}.jsonl", self.machine.run("bench_x", self.cases))
        return self.program(side, "#!/bin/bash\nwhile (($#)); do [[ $1 != --record ]] || record=$2; shift; done\n"
                            f"{then.format(lines=lines)}\n")

    def test_a_candidate_that_crashes_before_its_first_row_is_worse(self):
        whole, crashed = 'cat {lines} >"$record"', 'head -n 1 {lines} >"$record"; kill -SEGV $$'
        json_file = self.folder / "r.json"
        for a, b, code in ((whole, crashed, 1), (crashed, whole, 3)):
            done = self.run_command("gate", "--ab", self.bench("a", a), self.bench("b", b), "--rounds", 1,
                                    "--device", "cpu", "--json", json_file, expect=code)
            if code == 1:
                self.assertRegex(done.stdout, "gate: worse: a was killed by SIGSEGV in 1 of 1 round of B\\.$")
            self.assertEqual(json.loads(json_file.read_text())["regressed"], code == 1)

    def test_rows_without_a_verdict_do_not_pass_as_same(self):
        cases = self.cases[:2]
        refused = dict.fromkeys(cases, "unverified: before timing no")
        a = self.write("a.jsonl", self.machine.run("x", cases, refused=refused))
        b = self.write("b.jsonl", self.machine.run("x", cases, refused=refused))
        self.assertIn("not comparable: none of 2 rows has a verdict", self.gate(a, b, expect=3).stdout)
        refused.pop(cases[1])
        a = self.write("a.jsonl", self.machine.run("x", cases, refused=refused))
        self.assertIn("same or faster in 1 row of 2; the others have no verdict", self.gate(
            a, self.write("b.jsonl", self.machine.run("x", cases, refused=refused)), expect=0).stdout)

    def test_a_regex_that_matches_no_row_is_said(self):
        a, b = self.pair()
        self.assertIn("not comparable: no row matches --only 'zzz'.", self.gate(a, b, "--only", "zzz", expect=3).stdout)
        done = self.run_command("compare", "--only", "zzz", a, b, expect=3)
        self.assertEqual(done.stderr, "scripts/records compare: no row matches --only 'zzz'\n")

    def test_too_few_samples_do_not_pass_as_same(self):
        cases = synthetic.decoder_cases()
        a = self.write("a.jsonl", self.machine.decoder_run(cases))
        b = self.write("b.jsonl", self.machine.decoder_run(cases, effects=[Effect(30)]))
        self.assertIn("gate: undecided: 3 rows", self.gate(a, b, expect=3).stdout)

    def test_result_in_json_and_markdown_files_too(self):
        done = self.gate(*self.pair([Effect(10)]), "--json", self.folder / "r.json", "--markdown", self.folder / "r.md",
                         "--format", "json", expect=1)
        result = json.loads(done.stdout)
        self.assertEqual(result, json.loads((self.folder / "r.json").read_text()))
        self.assertEqual((result["exit_code"], result["counts"]), (1, {"slower": 30}))
        markdown = (self.folder / "r.md").read_text()
        self.assertEqual(sum(line.startswith("| ") for line in markdown.splitlines()), 31)
        self.assertIn("gate: worse", markdown)

    def test_bad_input_is_one_clear_line(self):
        a, b = self.pair()
        text = Path(b).read_text()
        for name, content, expression in (
            ("truncated", text[:5000] + "\n" + text[9000:], "bad.jsonl:.*: not JSON"),
            ("foreign", "<html>\n", "bad.jsonl:1: not JSON"), ("empty", "", "bad.jsonl: is empty"),
            ("schema", text.replace('"schema": 2', '"schema": 9'), "schema is 9; this reads 1 to 2"),
            ("nan", text.replace('"samples_us": [', '"samples_us": [NaN, '), "NaN is not a number")):
            with self.subTest(name):
                (self.folder / "bad.jsonl").write_text(content)
                self.refuses(a, self.folder / "bad.jsonl", expression)
        self.refuses(a, self.folder / "none.jsonl", "cannot read .*none.jsonl: No such file")
        (self.folder / "store").mkdir()
        self.refuses(self.folder / "store", a, "store: no \\*.jsonl in this folder")

    def test_killed_run_counts_and_is_named(self):
        done = self.gate(*self.pair(killed=True), expect=0)
        self.assertRegex(done.stdout, "B: the run of bench_x in .* was killed before its end; the 30 rows")

    def test_a_throttled_baseline_does_not_hide_a_slowdown(self):
        throttled = dict.fromkeys(self.cases, "throttled: thermal")
        a, b = [], []
        for _ in range(5):
            a += self.machine.run("bench_x", self.cases, [Effect(20)], disturbed=throttled)
            b += self.machine.run("bench_x", self.cases, [Effect(20)])
        done = self.gate(self.write("a.jsonl", a), self.write("b.jsonl", b), expect=3)
        self.assertIn("30 rows: 30 disturbed", done.stdout)

    def test_rows_that_most_runs_of_the_candidate_lack_fail(self):
        for left, rows in ((29, 1), (0, 30)):
            a, b = [], []
            for number in range(5):
                a += self.machine.run("bench_x", self.cases)
                b += self.machine.run("bench_x", self.cases[:left] if number else self.cases, killed=number > 0)
            done = self.gate(self.write("a.jsonl", a), self.write("b.jsonl", b), expect=1)
            self.assertIn(f"{rows} missing", done.stdout)
            self.assertIn("missing: absent from 4 of 5 runs", done.stdout)

    def test_unwritable_output_is_said_before_anything_else(self):
        path = self.folder / "none" / "out.md"
        done = self.gate(*self.pair(), "--markdown", path, expect=2)
        self.assertRegex(done.stderr, "cannot write .*out.md: No such file")

    def test_full_disk_is_said(self):
        done = self.gate(*self.pair(), "--json", "/dev/full", expect=2)
        self.assertRegex(done.stderr, "cannot write /dev/full: No space left")

    def test_misuse(self):
        a, b = self.pair()
        for arguments in ([], ["--baseline", a], ["--baseline", a, "--candidate", b, "--aa", "x"],
                          ["--baseline", a, "--candidate", b, "--keep", "x"], ["--ab", a], ["--ab", a, b, "--out", "x"],
                          ["--baseline", a, "--candidate", b, "--", "--samples", "20"],
                          ["--baseline", a, "--candidate", b, "--only", "("], ["--aa", a, "--rounds", "0"]):
            with self.subTest(arguments):
                self.run_command("gate", *arguments, expect=2)

    def test_two_thousand_rows_are_judged_within_five_seconds_of_processor_time(self):
        self.cases = synthetic.kernel_cases(2000)
        a, b = self.pair([Effect(4, kernel="linear")])
        before = os.times()
        self.assertIn("2,000 rows", self.gate(a, b, expect=1).stdout)
        after = os.times()
        self.assertLess(after.children_user + after.children_system - before.children_user - before.children_system, 5)


if __name__ == "__main__":
    unittest.main()
