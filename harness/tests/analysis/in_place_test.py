"""scripts/records in_place: ops in place stand beside their profile, and those that differ are counted."""
import functools
import json
import re
import unittest
from pathlib import Path

from command_case import CommandTest, run_unwrapped

run_main = functools.partial(run_unwrapped, "in_place")


class InPlaceTest(CommandTest):
    def records(self, ratios, name="in_place.jsonl", traced_us=0.0, given_back="tracing_us"):
        """A file with a decoder's row, whose ops take so many times in place what the profile says; tracing adds traced_us."""
        lines = self.machine.decoder_run()
        lines[1]["profile"]["step_us"] -= traced_us
        lines[1]["profile"][given_back] = lines[1]["profile"].get(given_back, 0) - traced_us
        for op in lines[1]["profile"]["ops"]:
            if op["op"] in ratios:
                op["in_place_us"] = ratios[op["op"]] * op["us"]
                op["in_place_ci95_us"] = [0.9 * op["in_place_us"], 1.1 * op["in_place_us"]]
        return self.write(name, lines)

    def test_ops_that_agree_are_counted(self):
        code, out, _ = run_main(self.records({"down": 1.08, "qkv": 0.92}))
        self.assertEqual(code, 0)
        self.assertEqual(out.splitlines()[0], "Of 2 ops, 2 have a share of the step within 10 % of what the profile says.")
        self.assertRegex(out, r"(?m)^\| .* \| `down` \| 28 \| .* \| 1\.08 \|$")

    def test_the_worst_op_that_differs_is_named(self):
        _, out, _ = run_main(self.records({"down": 1.12, "qkv": 0.7, "gate_up": 1.0}))
        self.assertRegex(out.splitlines()[0], r"^Of 3 ops, 1 has a share of the step within 10 % .* The worst is `qkv` at batch 1 of .*, 0\.70 times\.$")

    def test_shares_of_a_traced_step_count_what_tracing_adds(self):
        step_us = self.machine.decoder_run()[1]["profile"]["step_us"]
        for given_back in ("tracing_us", "unexplained_us"):  # the latter in older records
            file = self.records({"down": 1.0}, traced_us=0.2 * step_us, given_back=given_back)
            self.assertRegex(run_main(file)[1], r"(?m)^\| .* \| `down` \| .* \| 1\.25 \|$")

    def test_the_ops_add_up_to_the_step_that_was_not_traced(self):
        def added(ratio):
            profile = self.machine.decoder_run()[1]["profile"]
            ops = {op["op"]: ratio for op in profile["ops"]}
            _, out, _ = run_main(self.records(ops, traced_us=0.1 * profile["step_us"]))
            found = re.search(r"(?m)^Of the step without a trace the ops in place and the gaps add up to ([\d.]+) % at batch 1; "
                              r"those of the profile to ([\d.]+) % at batch 1\.$", out)
            return [float(percent) for percent in found.groups()]

        in_place, of_profile = added(0.9)
        self.assertAlmostEqual(of_profile, 100 / 0.9, delta=1)
        self.assertAlmostEqual(in_place, 100, delta=1)
        self.assertGreater(added(1.1)[0], 120)  # a time that is wrong shows

    def test_times_under_a_trace_are_held_against_the_profile_without_what_stamps_add(self):
        file = Path(self.records({"down": 0.8, "qkv": 0.8}))
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for op in lines[1]["profile"]["ops"]:
            if "in_place_us" in op:
                op["in_place_traced_us"] = {"down": 0.82, "qkv": 1.0}[op["op"]] * op["us"]
                op["in_place_stamps_us"] = {"down": -0.2, "qkv": 0.3}[op["op"]] * op["us"]
        _, out, _ = run_main(self.write("traced.jsonl", lines))
        self.assertRegex(out, r"^Of 2 ops, 1 has a share of the traced step, by their time in place under the trace less "
                              r"the stamps' part, within 10 % (.|\n)* `qkv` (.|\n)*, 0\.70\s+times\.")
        self.assertRegex(out, r"(?m)^\| .* \| `down` \| 28 \| .* \| 1\.02 \|$")
        cells = re.search(r"(?m)^\| .* \| `qkv` \| .*$", out)[0].split(" | ")
        in_place, profile = (float(cells[column].removesuffix(" %")) for column in (8, 10))  # both of the traced step
        self.assertAlmostEqual(in_place / profile, 0.7, delta=0.02)
        # What is taken back hides no share that differs.
        self.assertRegex(out.replace("\n", " "), r" within 10 % of the profile's for 0 of them; not for `(down|qkv)` at batch 1, [\d.]+ % beside ")

    def test_the_newest_row_of_a_measurement_counts(self):
        old = self.records({"down": 2.0}, "a.jsonl")
        new = self.records({"down": 1.0}, "b.jsonl")
        for files in ((old, new), (new, old)):
            self.assertIn("Of 1 op, 1 has a share", run_main(*files)[1])

    def test_a_page_is_rewritten_between_its_marks(self):
        page = self.folder / "page.md"
        page.write_text("before\n<!-- in_place -->\nold\n<!-- /in_place -->\nafter\n")
        self.assertEqual(run_main(self.records({"down": 1.0}), "--into", page)[0], 0)
        self.assertRegex(page.read_text(), r"(?s)^before\n<!-- in_place -->\nOf 1 op, .*\n<!-- /in_place -->\nafter\n$")

    def test_records_without_such_times_are_refused(self):
        code, _, err = run_main(self.records({}))
        self.assertEqual(code, 1)
        self.assertIn("tokline bench --in-place on", err)


if __name__ == "__main__":
    unittest.main()
