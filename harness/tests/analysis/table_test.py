"""scripts/records table: the kernels' rows stand in one table, each median with its interval."""

import json
import re
import unittest
from dataclasses import replace
from pathlib import Path

import synthetic
from command_case import CommandTest


class TableTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.path = self.write(
            "run.jsonl", self.machine.run("bench_x", synthetic.kernel_cases(12, ("norm", "chunk_decode"))))
        self.rows = [row for row in map(json.loads, Path(self.path).read_text().splitlines()) if row["kind"] == "row"]

    def shown(self, *arguments):
        return self.run_command("table", self.path, *arguments, expect=0).stdout.splitlines()

    def test_kernels_stand_above_their_rows_in_one_table(self):
        lines = self.shown()
        self.assertEqual(lines[0], "kernels on " + self.rows[0]["device"])
        names = [line for line in lines if re.fullmatch("  [a-z_]+", line)]
        self.assertEqual(names, ["  chunk_decode", "  norm"])
        rows = [line for line in lines if line.startswith("    b")]
        self.assertEqual(len(rows), len(self.rows))
        end = lines[1].index("median µs") + len("median µs")
        for line in rows:  # figures end where their title ends
            self.assertRegex(line[:end], r" [\d.,]+$")
            self.assertEqual(line[end:end + 2], "  ")

    def test_rows_of_two_devices_stand_apart(self):
        case = synthetic.kernel_cases(1, ("norm",))[0]
        cases = [case, replace(case, implementation="flashinfer", library=("flashinfer", "1"), us=case.us / 2)]
        other = self.write("other.jsonl", synthetic.Machine(seed=2, gpu={"name": "another GPU"}).run("bench_x", cases))
        shown = self.run_command("table", self.path, other, expect=0).stdout
        device = self.rows[0]["device"]
        self.assertEqual(re.findall("^kernels on .*", shown, re.MULTILINE), [f"kernels on {device}", "kernels on another GPU"])
        own, others = shown.split("kernels on another GPU")
        self.assertNotIn("of best peer", own)  # of the other device there is no peer
        self.assertRegex(others, r" (1\.9|2\.0)\dx\n")
        marked = self.run_command("table", self.path, other, "--markdown", expect=0).stdout
        self.assertIn(f"## norm on {device}\n", marked)
        self.assertIn("on another GPU\n", marked)

    def test_of_one_measurement_the_newest_row_stands_and_none_that_was_slowed_where_there_is_another(self):
        cases = synthetic.kernel_cases(1, ("norm",))

        def recorded(name, us, **how):
            machine.wait(days=1)
            return self.write(name, machine.run("bench_x", [replace(cases[0], us=us)], **how))

        machine = synthetic.Machine(seed=2, run_noise=0.0, sample_noise=0.0)
        old, new = recorded("old.jsonl", 40.0), recorded("new.jsonl", 20.0)
        slowed = recorded("slowed.jsonl", 60.0, injected={"slowdown_percent": 200})
        for paths, us in ((old, new), "20.0"), ((new, old), "20.0"), ((new, slowed, old), "20.0"), ((slowed,), "60.0"):
            lines = self.run_command("table", *paths, "--markdown", expect=0).stdout.splitlines()
            self.assertEqual([line.split(" | ")[4] for line in lines if line.startswith("| b")], [us], paths)

    def test_each_median_has_half_of_its_interval(self):
        expected = [f"{50 * (row['ci95_us'][1] - row['ci95_us'][0]) / row['median_us']:.2f}" for row in self.rows]
        spreads = [line.split(" | ")[5] for line in self.shown("--markdown") if line.startswith("| b")]
        self.assertEqual(sorted(spreads), sorted(expected))


if __name__ == "__main__":
    unittest.main()
