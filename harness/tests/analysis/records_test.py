"""Reading records: what is taken, what is refused with file and line, what is only said."""

import json
import os
import unittest
from pathlib import Path

import synthetic
from folder_case import FolderTest
from tokline import records, standing
from tokline.report.evidence import Evidence
from tokline.records import BadRecords


class RecordsTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.path = str(self.folder / "run.jsonl")
        self.machine = synthetic.Machine(seed=1)
        self.cases = synthetic.kernel_cases(20)
        self.warnings = []

    def read(self, lines=None):
        if lines is not None:
            synthetic.write(self.path, lines)
        return records.read(self.path, self.warnings.append)

    def refuses(self, expression, lines=None):
        with self.assertRaisesRegex(BadRecords, expression):
            self.read(lines)

    def changed_row(self, **fields):
        lines = self.machine.run("bench_x", self.cases)
        lines[3] |= fields
        return lines

    def test_reads_runs_rows_and_ends(self):
        run, decoder = self.read(
            self.machine.run("bench_x", self.cases) + self.machine.decoder_run(synthetic.decoder_cases()))
        self.assertEqual((run.program, len(run.rows), run.killed), ("bench_x", 20, False))
        self.assertEqual((decoder.program, len(decoder.rows)), ("tokline bench", 3))
        self.assertEqual(self.warnings, [])

    def test_committed_runs_are_the_newest_of_at_least_one_measurement(self):
        for folder in (Path(__file__).parents[3] / "results").glob("*/"):
            if folder.name.startswith("gate_"):  # all runs of a gate count
                continue
            runs = sorted(records.read(folder), key=lambda run: run.time)
            found = sorted(((run, row) for run in runs for row in run.rows),
                           key=lambda each: not records.is_unmeasured(each[1]))
            newest = {records.key(row)._replace(cache=""): run.run_id for run, row in found}
            evidence = Evidence(runs)
            beside = {ours.run.run_id for peer in evidence.entries if peer.peer and (ours := standing.beside_workload(evidence, peer))}
            replaced = [(run.path, run.run_id) for run in runs
                        if run.run_id not in {*newest.values(), *beside} and not run.ablations]
            self.assertEqual(replaced, [], "results/README.md: a run that newer ones replace is deleted")

    def test_a_run_whose_end_counts_other_rows_is_refused(self):
        lines = self.machine.run("bench_x", self.cases, refused={self.cases[4]: "wrong"})
        self.refuses(":21: the end of run .* counts 20 rows, but the file has 19", lines[:3] + lines[4:])
        self.refuses(":23: the end of run .* counts 20 rows, but the file has 21", lines[:-1] + [lines[2], lines[-1]])
        self.refuses(":22: .* counts 0 refused rows, but the file has 1", lines[:-1] + [lines[-1] | {"refused": 0}])

    def test_ablations_count_as_rows_of_the_end(self):
        lines = self.machine.run("tokline ablate", [])
        line = self.machine.ablation(lines[0], synthetic.DecoderCase(), "rmsnorm_qkv", "plain ops", 4)
        self.refuses("counts 0 rows, but the file has 1", [lines[0], line, lines[1]])
        self.read([lines[0], line, lines[1] | {"rows": 1}])

    def test_lines_of_concurrent_runs_go_to_their_own_run(self):
        a, b = (self.machine.run(name, self.cases) for name in ("bench_a", "bench_b"))
        runs = self.read([line for pair in zip(a, b) for line in pair])
        self.assertEqual([(run.program, len(run.rows)) for run in runs], [("bench_a", 20), ("bench_b", 20)])

    def test_folder_is_searched_below(self):
        os.mkdir(os.path.join(self.folder, "h200"))
        synthetic.write(os.path.join(self.folder, "h200", "a.jsonl"), self.machine.run("bench_x", self.cases))
        synthetic.write(os.path.join(self.folder, "b.jsonl"), self.machine.run("bench_y", self.cases))
        self.assertEqual({run.program for run in records.read([self.folder])}, {"bench_x", "bench_y"})

    def test_what_else_lies_in_a_folder_is_left_out_with_a_warning(self):
        synthetic.write(os.path.join(self.folder, "a.jsonl"), self.machine.run("bench_x", self.cases))
        synthetic.write(os.path.join(self.folder, "tests.jsonl"), [{"test": "a", "status": "passed"}])
        warnings = []
        self.assertEqual([run.program for run in records.read([self.folder], warnings.append)], ["bench_x"])
        self.assertRegex(" ".join(warnings), "left out.*tests.jsonl")

    def test_foreign_file_that_is_named_is_refused(self):
        foreign = synthetic.write(os.path.join(self.folder, "tests.jsonl"), [{"test": "a", "status": "passed"}])
        with self.assertRaisesRegex(BadRecords, "tests.jsonl:1: not a record"):
            records.read([foreign])
        with self.assertRaisesRegex(BadRecords, "no \\*.jsonl in this folder holds records"):
            records.read([self.folder])

    def test_empty_folder_is_refused(self):
        with self.assertRaisesRegex(BadRecords, "no \\*.jsonl in this folder"):
            records.read([self.folder])

    def test_empty_file_is_refused(self):
        self.refuses("run.jsonl: is empty", [])

    def test_missing_and_unreadable_file_is_refused(self):
        self.refuses("cannot read .*run.jsonl: No such file")

    def test_file_that_cannot_be_opened_is_refused(self):
        os.symlink(self.path, self.path)
        self.refuses("cannot read .*run.jsonl: Too many levels of symbolic links")

    def test_unfinished_last_line_is_left_out_and_said(self):
        self.write_text(self.text()[:-40])
        (run,) = self.read()
        self.assertTrue(run.killed)
        self.assertEqual(len(run.rows), 20)
        self.assertRegex(self.warnings[0], "run.jsonl:22: the last line is unfinished")

    def test_line_of_which_only_the_newline_is_missing_was_not_acknowledged(self):
        self.write_text(self.text()[:-1])
        (run,) = self.read()
        self.assertTrue(run.killed)
        self.assertRegex(self.warnings[0], "run.jsonl:22: the last line is unfinished")

    def test_truncation_in_the_middle_is_refused_with_its_line(self):
        lines = self.text().splitlines()
        lines[4] = lines[4][:100]
        self.write_text("\n".join(lines) + "\n")
        self.refuses("run.jsonl:5: not JSON")

    def test_foreign_files_are_refused(self):
        for text, expression in (("hello\n", ":1: not JSON"), ("[1]\n", ":1: not a JSON object"),
                                 ('{"a": 1}\n', "not a record of Tokline"), ("\x00\x01", ":1: not JSON")):
            with self.subTest(text):
                self.write_text(text)
                self.refuses(expression)
        with open(self.path, "wb") as file:
            file.write(b"\xff\xfe\n")
        self.refuses("not UTF-8")

    def test_other_schema_versions_are_refused(self):
        for schema in (0, 3, "2", None, True):
            with self.subTest(schema=schema):
                self.refuses(":4: schema is .*; this reads 1 to 2", self.changed_row(schema=schema))

    def test_schema_1_is_lifted(self):
        lines = self.machine.run("bench_x", self.cases)
        for line in lines:
            line["schema"] = 1
            for name in ("injected", "disturbed", "memory_bytes", "ci95_us", "stopped", "fresh_us", "library"):
                line.pop(name, None)
        del lines[0]["fingerprint"]["gpu"]["mig"]
        (run,) = self.read(lines)
        self.assertIsNone(run.injected)
        self.assertIsNone(run.gpu["mig"])
        self.assertIsNone(run.rows[0]["memory_bytes"])

    def test_nan_and_other_samples_that_are_none_are_refused(self):
        for sample in (float("nan"), float("inf"), None, 0, -1.0, "3", True):
            with self.subTest(sample=sample):
                self.refuses(":4: ", self.changed_row(samples_us=[1.0] * 14 + [sample]))

    def test_figures_that_do_not_follow_are_refused(self):
        for name in ("median_us", "mad_us", "gbps", "tflops"):
            with self.subTest(name):
                self.refuses(f":4: row.{name} is .* follows", self.changed_row(**{name: 1.2345}))

    def test_a_cold_row_above_its_limit_must_say_that_the_limit_is_wrong(self):
        self.cases = [case for case in self.cases if case.cache == "cold"]
        lines = self.changed_row()
        lines[3] |= {"floor_us": 1.05 * lines[3]["median_us"], "percent_of_measured_peak": 105.0}
        for said in ({}, {"limit_is_wrong": False}):
            lines[3] |= said
            self.refuses(":4: row.percent_of_measured_peak is 105.0; it must be at most 102", lines)
        lines[3]["limit_is_wrong"] = True
        self.assertTrue(self.read(lines)[0].rows[2]["limit_is_wrong"])

    def test_a_median_of_0_is_refused(self):
        self.refuses(":4: row.median_us is 0, but from the samples and the cost follows", self.changed_row(median_us=0.0))

    def test_intervals_that_do_not_follow_are_refused(self):
        self.refuses(r":4: row.ci95_us is \[1.5, 2.5\], but from the samples follows", self.changed_row(ci95_us=[1.5, 2.5]))
        self.refuses(r":4: row.ci95_us is 3; it must be a list", self.changed_row(ci95_us=3))

    def test_figures_without_verification_are_refused(self):
        self.refuses(
            ":4: row.verified.after is false; it must be true",
            self.changed_row(verified={"before": True, "after": False, "max_error_over_bound": 0.1, "audits": 3}),
        )

    def test_refused_row_with_figures_is_refused(self):
        self.refuses(":4: row.samples_us is .*; it must be absent", self.changed_row(status="refused", reason="wrong"))

    def test_unknown_kind_and_missing_header_are_refused(self):
        self.refuses(":4: note.kind is \"note\"; it must be one of run, row, ablation, end", self.changed_row(kind="note"))
        self.refuses(":1: row of run .*, whose header is not before it", self.machine.run("x", self.cases)[1:])

    def test_profile_must_add_up(self):
        lines = self.machine.decoder_run()
        lines[1]["profile"]["ops"][0]["us"] += 50
        self.refuses("step_us is .*, but its parts add up to", lines)

    def test_phases_of_an_op_must_add_up(self):
        lines = self.machine.decoder_run()
        op = lines[1]["profile"]["ops"][0]
        op["phases"] = [{"phase": "qkv", "us": op["us"] / 2}]
        self.refuses(f"profile.{op['op']}.us is .*, but its parts add up to", lines)

    def test_ablation_must_be_paired(self):
        header = self.machine.header("tokline ablate")
        line = self.machine.ablation(header, synthetic.DecoderCase(), "rmsnorm_qkv", "plain ops", 4, (3.0, 5.0))
        self.assertEqual(len(self.read([header, line])[0].ablations), 1)
        line["end_to_end"]["with_ms"].pop()
        self.refuses("6 samples of with_ms and 7 samples of without_ms", [header, line])

    def test_run_that_is_there_twice_counts_once(self):
        lines = self.machine.run("bench_x", self.cases)
        other = synthetic.write(os.path.join(self.folder, "copy.jsonl"), lines)
        synthetic.write(self.path, lines)
        (run,) = records.read([self.path, other], self.warnings.append)
        self.assertEqual(len(run.rows), 20)
        self.assertRegex(self.warnings[0], "copy.jsonl:1: run .* was read from .*run.jsonl before")

    def text(self):
        synthetic.write(self.path, self.machine.run("bench_x", self.cases))
        with open(self.path, encoding="utf-8") as file:
            return file.read()

    def write_text(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)


class KeyTest(unittest.TestCase):
    def test_label_says_what_tells_rows_apart(self):
        case = synthetic.KernelCase(
            "chunk_decode", (("name", "b32_s8192_h32-8"), ("page_size", 256)), 5.0, chain="dependent")
        row = synthetic.Machine().run("x", [case])[1]
        self.assertEqual(str(records.key(row)), "chunk_decode b32_s8192_h32-8 page 256 cuda dependent bf16 cold")
        row = synthetic.Machine().decoder_run()[1]
        self.assertEqual(str(records.key(row)), "decoder qwen3-0.6b batch 1 128+128 tokens cuda bf16")

    def test_order_of_dimensions_does_not_matter_and_all_else_does(self):
        row = synthetic.Machine().run("x", synthetic.kernel_cases(1))[1]
        other = json.loads(json.dumps(row))
        other["shape"] = dict(reversed(other["shape"].items()))
        self.assertEqual(records.key(row), records.key(other))
        for name, value in (("cache", "warm"), ("chain", "dependent"), ("dtype", "fp16"), ("implementation", "v2")):
            self.assertNotEqual(records.key(row), records.key(row | {name: value}))
        row = synthetic.Machine().decoder_run()[1]
        self.assertEqual(records.key(row), records.key(row | {"page_size": 256}))
        for name, value in (("depth", 64), ("page_size", 64)):
            self.assertNotEqual(records.key(row), records.key(row | {name: value}))
            self.assertNotEqual(str(records.key(row)), str(records.key(row | {name: value})))

    def test_keys_sort(self):
        rows = synthetic.Machine().run("x", synthetic.kernel_cases(50))[1:-1]
        rows += synthetic.Machine().decoder_run(synthetic.decoder_cases())[1:-1]
        self.assertEqual(len(sorted(map(records.key, rows))), 53)


class ComparableTest(unittest.TestCase):
    def differences(self, **other):
        def run(**kinds):
            return records.Run(synthetic.Machine(**kinds).header("x"))

        return records.comparable(run(), run(**other))

    def test_time_and_commit_may_differ(self):
        self.assertEqual(
            self.differences(
                commit="b" * 40, build={"dirty": "true", "time_utc": "2027-01-01T00:00:00Z", "command_line": ["other"]}
            ),
            [],
        )

    def test_gpu_driver_limits_compiler_and_libraries_may_not(self):
        for other in ({"gpu": {"uuid_hash": "1"}}, {"gpu": {"driver": "1"}}, {"gpu": {"cublaslt": "1"}},
                      {"gpu": {"mig": True}}, {"gpu": {"max_sm_clock_mhz": 1500}}, {"build": {"flags": "-O0"}},
                      {"gpu": {"before": {"power_cap_w": 500.0}}}, {"build": {"compiler": "clang 18"}}):
            with self.subTest(other):
                self.assertEqual(len(self.differences(**other)), 1)
        self.assertEqual(self.differences(gpu={"driver": "570"}), ["driver: 580.1 and 570"])

    def test_what_could_not_be_read_is_no_difference(self):
        self.assertEqual(self.differences(gpu={"mig": None}, build={"cpu_governor": "unknown"}), [])

    def test_gpu_and_cpu_runs_differ(self):
        cpu = records.Run(synthetic.Machine(build={"gpu": None}).header("x"))
        self.assertEqual(records.comparable(cpu, cpu), [])
        words = records.comparable(records.Run(synthetic.Machine().header("x")), cpu)
        self.assertIn("GPU: NVIDIA H200 and none", words)


if __name__ == "__main__":
    unittest.main()
