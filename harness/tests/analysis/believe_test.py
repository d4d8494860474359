"""scripts/maintain/believe report: the checks of the decoder, of tests and of overhead, and the report as a whole."""
import datetime
import json
import unittest
from pathlib import Path
from unittest import mock

from believe_case import ALL_LENGTHS, ReportCase, run_main
from synthetic import START, Effect, KernelCase, Machine, kernel_cases, write

from tokline import believe_overhead, believe_report, believe_tests, records
from tokline.believe_check import Jobs


class ReportTest(ReportCase):
    def test_a_collection_that_missed_is_listed_by_the_one_that_replaces_it(self):
        self.equal_sides(["s1"])  # too few rows
        missed = json.loads((self.folder / "b.json").read_text())
        for days in (1, 2):
            later = Machine(seed=11 + days, start=START + datetime.timedelta(days=days))
            for side in ("a", "again"):
                folder = self.folder / f"after{days}" / "benches" / side
                folder.mkdir(parents=True)
                write(folder / "linear.round0.jsonl",
                      later.run("bench_linear", [KernelCase("linear", (("name", "s1"),), 10.0)]))
        report = ("report", self.folder / "after1", "--without-tool-times", "--json", self.folder / "b.json")
        code, page, err = run_main(*report)
        self.assertEqual((code, page), (2, ""))
        self.assertRegex(err, "b.json is of a collection of 2026-01-01, commit a{12}, that missed 1 check; "
                              "--because TEXT must")
        self.assertEqual(json.loads((self.folder / "b.json").read_text()), missed)
        code, page, err = run_main(*report, "--because", "rows were too few")
        self.assertEqual(code, 0, err)
        self.assertRegex(page, r"\| 2026-01-01 \| a{12} \| equal programs .*fewer than 20 .* \| rows were too few \|")
        self.assertEqual(run_main(*report)[1], page, "the same collection again")
        self.assertEqual(run_main("report", "--again", self.folder / "b.json")[1], page)
        page = run_main("report", self.folder / "after2", *report[2:], "--because", "still too few")[1]
        self.assertRegex(page, r"rows were too few \|\n\| 2026-01-02 \| .* \| still too few \|\n")

    def test_figures_are_held_against_what_is_asked_for_now(self):
        self.sides(Machine(seed=1, run_noise=0.001), again=[], slow5=[Effect(5)])
        checks, _ = self.report()
        stored = json.loads((self.folder / "b.json").read_text())
        stored["checks"] = [check for check in stored["checks"] if check["id"] != "store"]
        for check in stored["checks"]:
            if check["id"] in ("aa", "slowdown_5"):
                check |= {"must": "at least 200 comparisons", "met": True,
                          "measured": check["measured"].partition("; the true share")[0]}
                for group in check["details"].get("kernels", {}).values():
                    group["caught"] = 0
        (self.folder / "old.json").write_text(json.dumps(stored))
        code, page, err = run_main("report", "--again", self.folder / "old.json", "--json", self.folder / "b.json")
        self.assertEqual(code, 0, err)
        again = {check["id"]: check for check in json.loads((self.folder / "b.json").read_text())["checks"]}
        self.assertEqual((again["store"]["met"], again["store"]["measured"]), (None, "not measured"))
        self.assertIn("the true share that is missed is at most", again["slowdown_5"]["measured"])
        for name, met in ("aa", True), ("slowdown_5", False):
            self.assertEqual((again[name]["met"], again[name]["must"]), (met, checks[name]["must"]))
        self.assertEqual(run_main("report", "--again", self.folder / "b.json")[1], page)
        del stored["checks"][1]["details"]["distinct"]
        (self.folder / "old.json").write_text(json.dumps(stored))
        self.assertIn("distinct; collect again", run_main("report", "--again", self.folder / "old.json")[2])
        self.assertEqual(run_main("report", "--again", self.folder / "none.json")[0], 1)
        self.assertEqual(run_main("report")[0], 2)

    def test_runs_of_another_commit_are_named(self):
        self.sides(Machine(seed=1, run_noise=0.001), again=[])
        self.assertIs(self.report()[0]["one_commit"]["met"], True)
        path = self.folder / "out" / "benches" / "again" / "linear.round2.jsonl"
        other = "f" * 40
        text = path.read_text(encoding="utf-8")
        commit = json.loads(text.splitlines()[0])["fingerprint"]["commit"]
        path.write_text(text.replace(commit, other), encoding="utf-8")
        checks, page = self.report()
        self.assertIn(f"Commit {other[:12]}: bench_linear.", page)
        self.assertEqual((checks["one_commit"]["measured"], checks["one_commit"]["met"]), ("2 commits", False))
        path.write_text(text, encoding="utf-8")
        overhead = self.folder / "out" / "overhead"
        overhead.mkdir()
        line = json.loads(text.splitlines()[0])
        (overhead / "linear.jsonl").write_text(
            text.replace(commit, "e" * 40).replace(line["run_id"], "another"), encoding="utf-8")
        self.assertIn(f"Commit {'e' * 12}: bench_linear.", self.report()[1])
        (overhead / "linear.jsonl").unlink()
        for version, words in (("(commit {} with changes, gcc)", "one commit, with changes"),
                               ("(commit 0123, gcc)", "2 commits"), ("", "2 commits")):
            self.leave("store_kill_test.txt", "10000 kills of 8 writers at once, 9 lines acknowledged, 0 lost, "
                                              "0 unreadable files")
            self.leave("version.txt", version.format(commit))
            check = self.report()[0]["one_commit"]
            self.assertEqual((check["measured"], check["met"]), (words, False))
        self.leave("version.txt", f"tokline 0.1.0 (commit {commit}, gcc)")
        self.assertIs(self.report()[0]["one_commit"]["met"], True)

    def test_programs_that_failed_or_did_not_run_have_met_nothing(self):
        self.leave("store_kill_test.txt", "10000 kills of 8 writers at once, 9 lines acknowledged, 0 lost, "
                                          "0 unreadable files")
        self.assertTrue(self.report()[0]["store"]["met"])
        journal = self.folder / "out" / "journal.jsonl"

        def end(*ended):
            lines = [json.dumps({"job": program, "kind": kind, "program": program, "exit": code, "seconds": 1})
                     for kind, program, code in ended]
            journal.write_text("\n".join(lines) + "\n", encoding="utf-8")
            return self.report()[0]

        check = end(("test", "store_kill_test", 1))["store"]
        self.assertFalse(check["met"])
        self.assertRegex(check["measured"], "0 unreadable files; store_kill_test ended with 1$")
        self.benches = ("linear", "norm")
        programs = ["tokline", "bench_linear", "bench_norm"]
        self.assertTrue(end(*(("overhead", program, 0) for program in programs))["full_run"]["met"])
        check = end(*(("overhead", program, 0) for program in programs[:-1]))["full_run"]
        self.assertEqual((check["met"], check["measured"].split("; ")[1:]), (False, [f"{programs[-1]} did not run"]))
        check = end(*(("overhead", program, int(program == "tokline")) for program in programs))["full_run"]
        self.assertEqual((check["met"], check["measured"].split("; ")[1:]), (False, ["tokline failed"]))

    def test_decoder_run_that_was_cut_short_is_no_trial(self):
        for index in range(3):
            self.decoder("base", round_index=index)
            self.decoder("host", [Effect(us=60, op="host_gap")], {"host_delay_us": 60}, round_index=index)
        decoder = self.folder / "out" / "decoder"
        for path, host, equal in (("round0/host.jsonl", 2, 2), ("round1/base.jsonl", 1, 1)):
            self.cut(decoder / path)
            checks, page = self.report()
            self.assertEqual(checks["host_delay"]["details"]["trials"], host)
            self.assertEqual(checks["blame_aa"]["details"]["trials"], equal)
            self.assertIn(str(decoder / path), page)

    def test_file_that_is_no_record_ends_the_report(self):
        self.sides(Machine(seed=6), again=[])
        benches = self.folder / "out" / "benches"
        path = benches / "a" / "linear.round1.jsonl"
        for text, why in (('{"loss": 1}\n', "not a record of Tokline"), ("<html>\n", "not JSON"),
                          ((benches / "again" / "linear.round1.jsonl").read_text(), "run .* is in .* too")):
            path.write_text(text)
            code, out, err = run_main("report", self.folder / "out", "--without-tool-times")
            self.assertEqual((code, out), (1, ""))
            self.assertRegex(err, rf"^scripts/maintain/believe: .*linear.round1.jsonl(:1)?: {why}[^\n]*\n$")
        path.unlink()
        (self.folder / "out" / "journal.jsonl").write_text('{"loss": 1}\n')
        code, _, err = run_main("report", self.folder / "out", "--without-tool-times")
        self.assertEqual(code, 1)
        self.assertRegex(err, "journal.jsonl: no journal of scripts/maintain/believe collect")

    def test_tool_times_are_of_a_whole_file(self):
        self.sides(Machine(seed=7), again=[])
        self.cut(self.folder / "out" / "benches" / "a" / "linear.round0.jsonl")
        with mock.patch.object(believe_overhead, "timed", return_value=(1.0, 0, "")) as timed:
            checks, _ = believe_report.judge([self.folder / "out"])
        self.assertEqual(timed.call_count, 2)
        self.assertIs({check.id: check for check in checks}["report_time"].met, True)

    def test_wrong_blame_is_a_miss(self):
        self.decoder("base")
        self.decoder("op.qkv", [Effect(us=60, op="down")], {"op": "qkv", "op_delay_us": 2})
        self.decoder("op.down", [Effect(us=60, op="down")], {"op": "down", "op_delay_us": 2})
        self.decoder("host", [], {"host_delay_us": 60})
        checks, page = self.report()
        self.assertEqual((checks["op_delay"]["details"]["right"], checks["op_delay"]["details"]["trials"]), (1, 2))
        self.assertEqual(checks["host_delay"]["details"]["right"], 0)
        self.assertIn('{"op": "qkv", "op_delay_us": 2}, batch 1: B is', page)

    def test_blame_of_equal_runs_is_a_miss(self):
        self.decoder("base", round_index=0)
        self.decoder("base", [Effect(us=60, op="down")], round_index=1)
        self.assertIs(self.report()[0]["blame_aa"]["met"], False)

    def test_run_without_its_delay_is_refused(self):
        self.decoder("base")
        self.decoder("host.10us")
        code, _, err = run_main("report", self.folder / "out", "--without-tool-times")
        self.assertEqual(code, 1)
        self.assertIn("says of no delay", err)

    def leave_cheats(self, name, results):
        cases = [{"name": name, "result": "SKIPPED" if result == "skipped" else "COMPLETED",
                  **({"failures": [{}]} if result == "failed" else {})} for name, result in results.items()]
        self.leave(name, json.dumps({"testsuites": [{"testsuite": cases}]}))

    def test_cheats_count_when_all_are_refused(self):
        names = [f"Cheat{number}" for number in range(believe_tests.ALL_CHEATS)]
        for results, met in (({name: "passed" for name in names}, True),
                             ({name: "passed" for name in names[1:]}, False),
                             ({name: "passed" for name in names} | {"More": "failed"}, False),
                             ({name: "passed" for name in names} | {"More": "skipped"}, False),
                             ({name: "passed" for name in names} | {"AnHonestRowStands": "passed"}, True),
                             ({name: "passed" for name in names} | {"AnHonestRowStands": "failed"}, False),
                             ({name: "passed" for name in names[1:]} | {"AnHonestRowStands": "passed"}, False)):
            self.leave_cheats("cheats_test.json", results)
            self.assertIs(self.report()[0]["cheats"]["met"], met, results)

    def test_cheat_that_one_program_skips_may_be_refused_by_the_other(self):
        self.leave_cheats("cheats_cuda_test.json", {"A": "skipped", "B": "passed"})
        self.leave_cheats("cheats_test.json", {"A": "passed", "B": "skipped"})
        self.assertEqual(self.report()[0]["cheats"]["details"]["tests"], {"A": "passed", "B": "passed"})

    def test_timing_is_held_against_two_percent(self):
        for ratio, met in ((1.019, True), (0.975, False)):
            self.leave_timing(*ALL_LENGTHS, {"suite_us": 10 * ratio, "independent_us": 10})
            self.assertIs(self.report()[0]["timing"]["met"], met)

    def test_timing_of_too_few_lengths_or_without_prefill_does_not_pass(self):
        for left_out, words in zip(ALL_LENGTHS, ("no row of 1 to 4 us", "no row of 5 to 20 us",
                                                 "no row of 50 to 300 us",
                                                 "no row of 500 to 2,000 us; no row of paged_prefill")):
            self.leave_timing(*(line for line in ALL_LENGTHS if line is not left_out))
            check = self.report()[0]["timing"]
            self.assertIs(check["met"], False)
            self.assertTrue(check["measured"].endswith("; " + words), check["measured"])

    def test_the_independent_timer_must_find_the_slowdown_that_was_put_in(self):
        def slowed(by, percent):
            return {"suite_us": 11, "independent_us": 10, "slowdown_percent": 3, "slowed_percent": percent, "by": by}
        for second, met in ((slowed("a spin", 2.5), True), (slowed("a spin", 4.1), False),
                            (slowed("launches", 3), False)):
            self.leave_timing(*ALL_LENGTHS, slowed("launches", 3.1), second)
            checks = self.report()[0]
            self.assertEqual((checks["timing"]["met"], checks["slowed_timing"]["met"]), (True, met))
        self.assertIn("none slowed by a spin", checks["slowed_timing"]["measured"])

    def test_results_of_tests_are_found_beside_the_runs(self):
        self.decoder("base")
        self.leave_timing(*ALL_LENGTHS)
        self.leave("store_kill_test.txt",
                   "10000 kills of 8 writers at once, 9 lines acknowledged, 0 lost, 0 unreadable files")
        checks, page = self.report()
        self.assertEqual((checks["timing"]["met"], checks["store"]["met"]), (True, True))
        self.assertIn("Collected on NVIDIA H200", page)

    def test_store_must_lose_nothing(self):
        line = "{} kills of {} writers at once, 90000 lines acknowledged, {} lost, {} unreadable files, 9 lines torn"
        for figures, met in (((10000, 8, 0, 0), True), ((10000, 8, 1, 0), False), ((10000, 8, 0, 1), False),
                             ((320, 8, 0, 0), False), ((10000, 4, 0, 0), False)):
            self.leave("store_kill_test.txt", line.format(*figures))
            self.assertIs(self.report()[0]["store"]["met"], met, figures)

    def test_results_that_are_none_are_refused(self):
        for name in ("store_kill_test.txt", "independent_timing.jsonl", "cheats_test.json"):
            self.leave(name, "nothing of it")
            code, _, err = run_main("report", self.folder / "out")
            self.assertEqual(code, 1, name)
            self.assertIn(name, err)
            (self.folder / "out" / "tests" / name).unlink()

    def test_repeated_rows_are_a_record(self):
        self.sides(Machine(seed=3))
        source = next((self.folder / "out" / "benches" / "a").glob("*.jsonl"))
        path = write(self.folder / "many.jsonl", believe_overhead.repeated(source, 100))
        run, = records.read([path])
        self.assertEqual(len({records.key(row) for row in run.rows}), 100)

    def test_the_tools_are_timed_on_a_run_with_figures(self):
        folder = self.folder / "out" / "benches" / "a"
        folder.mkdir(parents=True)
        cases, machine = kernel_cases(10), Machine(seed=3)
        write(folder / "a.jsonl", machine.run("bench_a", cases, refused=dict.fromkeys(cases, "no memory")))
        write(folder / "b.jsonl", machine.run("bench_b", cases, refused={cases[0]: "no memory"}))

        def timed(argv):
            run, = records.read([next(path for path in argv if str(path).endswith(".jsonl"))])
            return 1.0, len(run.rows) != believe_overhead.GATE_ROWS, ""

        with mock.patch.object(believe_overhead, "timed", timed):
            checks = believe_overhead.check_tools([self.folder / "out"], True, Jobs())
        self.assertEqual([check.met for check in checks], [True, True])

    def test_refused_rows_are_not_repeated(self):
        cases = kernel_cases(10)
        path = write(self.folder / "run.jsonl", Machine(seed=3).run("bench_x", cases, refused={cases[0]: "no memory"}))
        run, = records.read([write(self.folder / "many.jsonl", believe_overhead.repeated(Path(path), 100))])
        self.assertEqual([row["status"] for row in run.rows], ["ok"] * 100)


if __name__ == "__main__":
    unittest.main()
