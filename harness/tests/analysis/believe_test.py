"""scripts/maintain/believe: collecting with simulated and with real programs, and what is made of it."""
import datetime
import functools
import json
import os
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path
from unittest import mock

from command_case import run_here, unwrapped
from synthetic import START, DecoderCase, Effect, KernelCase, Machine, kernel_cases, write

from tokline import believe_collect, believe_report, blame, records
from tokline.believe_collect import ROOT

HERE = Path(__file__).resolve().parent

# Rows that independent timing must cover.
ALL_LENGTHS = [{"suite_us": us, "independent_us": us, "kernel": kernel}
               for us, kernel in ((2, "norm"), (10, "linear"), (100, "linear"), (1000, "paged_prefill"))]

run_main = functools.partial(run_here, "believe")


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    benches = ()  # that must be there

    def report(self):
        """The checks of the folder's report by id, and the page."""
        with mock.patch.object(believe_report, "kernel_names", return_value=self.benches):
            code, page, err = run_main("report", self.folder / "out", "--without-tool-times", "--json",
                                       self.folder / "b.json")
        self.assertEqual(code, 0, err)
        checks = json.loads((self.folder / "b.json").read_text())["checks"]
        return {check["id"]: check for check in checks}, unwrapped(page)


class CollectTest(InFolder):
    def setUp(self):
        super().setUp()
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        self.add_program("bench_activation")
        self.add_program("tokline")

    def add_program(self, name):
        program = self.bin / name
        program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{HERE / 'believe_programs.py'}' {name} \"$@\"\n")
        program.chmod(0o755)

    def collect(self, *more):
        return run_main("collect", "--bin", self.bin, "--model", "M", "--out", self.folder / "out",
                        "--comparisons", 4, *more)

    def journal(self):
        path = self.folder / "out" / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def test_what_was_put_in_is_found(self):
        code, _, err = self.collect("--decoder-rounds", 2)
        self.assertEqual(code, 0, err)
        orders = [tuple(entry["job"].split()[-1] for entry in self.journal()[5 * index:5 * index + 5])
                  for index in range(3)]
        self.assertEqual({frozenset(order) for order in orders},
                         {frozenset(("a", "again", "slow3", "slow5", "slow10"))}, "rounds are interleaved")
        self.assertGreater(len(set(orders)), 1, "their order changes")
        checks, page = self.report()
        self.assertEqual(checks["aa"]["details"]["comparisons"], 4)
        self.assertEqual(checks["aa"]["details"]["false_alarms"], 0)
        for percent in (3, 5, 10):
            kernel = checks[f"slowdown_{percent}"]["details"]["kernels"]["activation"]
            self.assertEqual((kernel["caught"], kernel["comparisons"]), (4, 4))
            self.assertAlmostEqual(kernel["median_percent"], percent, delta=0.5)
        for name in ("host_delay", "op_delay"):
            self.assertEqual(checks[name]["details"]["right"], 6)
            self.assertIs(checks[name]["met"], False, "six trials are too few to say so")
        self.assertGreaterEqual(len(checks["op_delay"]["details"]["by_part"]), 5)
        self.assertEqual(checks["blame_aa"]["details"]["right"], 1)
        self.assertIs(checks["adds_up"]["met"], True)
        self.assertIs(checks["steps_add_up"]["met"], True)
        self.assertIsNone(checks["cheats"]["met"])
        self.assertIn("| activation | 4 | 4 of 4 |", page)

    def test_peaks_are_measured_once_and_taken_over(self):
        self.collect("--only", "aa", "--rounds", 1)
        arguments = [entry["arguments"] for entry in self.journal()]
        self.assertEqual(["--peaks" in each for each in arguments], [False, True])

    def test_begun_folder_is_continued(self):
        code, _, err = self.collect("--only", "aa", "--rounds", 2, "--time-limit", 0)
        self.assertEqual((code, self.journal()), (3, []))
        self.assertIn("run again", err)
        self.assertEqual(self.collect("--only", "aa", "--rounds", 1)[0], 0)
        self.assertEqual(len(self.journal()), 2)
        left = self.folder / "out" / "benches" / "a" / "activation.round1.jsonl.running"
        left.write_text("half a line of a killed run")
        self.assertEqual(self.collect("--only", "aa", "--rounds", 2)[0], 0)
        self.assertEqual(len(self.journal()), 4)
        self.assertFalse(left.exists())
        self.assertEqual(self.collect("--only", "aa", "--rounds", 2)[0], 0)
        self.assertEqual(len(self.journal()), 4)
        code, _, err = self.collect("--only", "aa", "--seed", 2)
        self.assertEqual(code, 2)
        self.assertIn("was begun with seed 1, this is 2", err)

    def test_dry_run_estimates_and_runs_nothing(self):
        code, _, err = self.collect("--dry-run", "--rounds", 3, "--decoder-rounds", 7)
        self.assertEqual((code, self.journal()), (0, []))
        self.assertIn(f"{15 + 49} program runs to do, about {15 * 5 + 49 * 4} s", err)

    def test_half_collected_kernel_is_not_compared(self):
        machine = Machine(seed=4)
        for side, left in (("a", ()), ("again", ("norm.round1",))):
            folder = self.folder / "out" / "benches" / side
            folder.mkdir(parents=True)
            for kernel in ("linear", "norm"):
                cases = [case for case in kernel_cases(20) if case.kernel == kernel]
                for name in (f"{kernel}.round0", f"{kernel}.round1"):
                    if name not in left:
                        write(folder / f"{name}.jsonl", machine.run(f"bench_{kernel}", cases))
        check = self.report()[0]["aa"]
        self.assertEqual(check["details"]["rows_a_kernel"], {"linear": 2})

    def test_program_that_fails_is_named(self):
        with mock.patch.dict(os.environ, {"BREAK": "tokline"}):
            code, _, err = self.collect("--only", "host")
        self.assertEqual(code, 2)
        self.assertIn("this program is broken", err)

    def test_a_program_that_refuses_its_arguments_ends_the_collection(self):
        with mock.patch.dict(os.environ, {"REFUSE": "bench_activation"}):
            code, _, err = self.collect("--only", "aa", "--rounds", 3)
        self.assertEqual((code, len(self.journal())), (2, 1))
        self.assertIn("--peaks: of another GPU", err)

    def test_tests_leave_their_figures(self):
        for name in ("cheats_test", "store_kill_test", "independent_timing_cuda_test"):
            self.add_program(name)
        code, _, err = self.collect("--only", "tests", "--store-kills", 10000)
        self.assertEqual(code, 0, err)
        checks, _ = self.report()
        self.assertEqual([checks[name]["met"] for name in ("cheats", "store", "timing")], [True, True, True])

    def test_misuse(self):
        self.assertEqual(self.collect("--only", "everything")[0], 2)
        self.assertEqual(self.collect("--kernels", "none")[0], 2)
        self.assertEqual(self.collect("--only", "ops", "--ops", "none")[0], 2)
        self.assertEqual(self.collect("--rounds", 0)[0], 2)
        self.assertEqual(run_main("collect", "--bin", self.folder, "--out", self.folder / "o", "--only", "aa")[0], 2)
        self.assertEqual(self.collect("--only", "tests")[0], 2)
        self.assertEqual(run_main("report", self.folder / "none")[0], 1)

    def test_folder_that_cannot_be_written_is_said(self):
        (self.folder / "file").write_text("")
        code, _, err = run_main("collect", "--bin", self.bin, "--out", self.folder / "file" / "o", "--only", "aa")
        self.assertEqual(code, 2)
        self.assertIn("cannot be written", err)


class ShapesTest(unittest.TestCase):
    def test_every_default_shape_is_a_unit_and_its_name_is_unique(self):
        for path in sorted(set((ROOT / "benches" / "shapes").rglob("*.json")) - {ROOT / "benches" / "shapes" / "axes.json"}):
            units = believe_collect.units_of(json.loads(path.read_text()))
            for count in (1, len(units), 3 * len(units)):
                shapes = believe_collect.chosen(units, count)
                names = [entry["name"] for family in shapes.values() for entry in family]
                self.assertEqual((len(names), len(set(names))), (count, count), path)
            self.assertEqual({name for name, _ in units}, set(json.loads(path.read_text())))

    def test_a_shape_that_is_needed_again_is_another_one(self):
        for path in sorted(set((ROOT / "benches" / "shapes").glob("*.json")) - {ROOT / "benches" / "shapes" / "axes.json"}):
            shapes = believe_collect.chosen(believe_collect.units_of(json.loads(path.read_text())), 36)
            works = {json.dumps(entry | {"name": family, "q": entry.get("q"), "kv": entry.get("kv")}, sort_keys=True)
                     for family, entries in shapes.items() for entry in entries}
            self.assertEqual(len(works), 36, path)
        shortened = believe_collect.shortened({"name": "a", "q": [80, 5], "kv_len": 100, "pages": [64]}, 8)
        self.assertEqual(shortened, {"name": "a", "q": [10, 1], "kv_len": 12, "pages": [64]})
        grown = believe_collect.grown({"name": "a", "q": [8, 5], "kv": [100, 5]}, 2)
        self.assertEqual((grown["q"], grown["kv"]), ([12, 5], [104, 5]), "the context before the new tokens stays")

    def test_shapes_with_variants_need_fewer_units(self):
        units = believe_collect.units_of({"linear": [{"name": "x", "tokens": [1, 2]}, {"name": "y", "tokens": [1, 2]}]})
        rows = [f"linear/x/tokens:{tokens}/{variant}/{chain}" for tokens in (1, 2) for variant in ("skinny", "matmul")
                for chain in ("plain", "dependent")]
        rows += [f"linear/y/tokens:{tokens}/matmul/{chain}" for tokens in (1, 2) for chain in ("plain", "dependent")]
        for wanted, count in ((1, 1), (4, 1), (6, 2), (12, 4), (13, 5), (24, 8)):
            shapes = believe_collect.enough(units, rows, wanted)["linear"]
            self.assertEqual(len(shapes), count, wanted)

    def test_lists_are_split_and_units_spread_evenly(self):
        units = believe_collect.units_of({"linear": [{"name": "x", "tokens": [1, 2, 4, 8], "in": 8}]})
        self.assertEqual([entry["tokens"] for _, entry in units], [[1], [2], [4], [8]])
        picked = believe_collect.chosen(units, 2)["linear"]
        self.assertEqual([entry["tokens"] for entry in picked], [[1], [4]])


class ReportTest(InFolder):
    """On records written directly: what the tools get wrong must be seen."""
    def sides(self, machine, **effects):
        cases = [case for case in kernel_cases(240) if case.kernel in ("linear", "norm")]
        for side, effect in {"a": [], **effects}.items():
            folder = self.folder / "out" / "benches" / side
            folder.mkdir(parents=True)
            for number in range(3):
                write(folder / f"linear.round{number}.jsonl", machine.run("bench_linear", cases, effect))

    def decoder(self, name, effects=(), injected=None, round_index=0):
        folder = self.folder / "out" / "decoder" / f"round{round_index}"
        folder.mkdir(parents=True, exist_ok=True)
        machine = Machine(seed=zlib.crc32(f"{name} {round_index}".encode()), run_noise=0.0003)
        return write(folder / f"{name}.jsonl", machine.decoder_run([DecoderCase()], effects, injected=injected))

    def test_alarms_and_misses_are_counted_and_shown(self):
        # The second side is not equal: what the gate says of it counts as false alarms.
        self.sides(Machine(seed=1, run_noise=0.001), again=[Effect(6, kernel="linear")],
                   slow3=[Effect(0.5)], slow5=[Effect(5)], slow10=[Effect(10, kernel="linear")])
        checks, page = self.report()
        self.assertEqual(checks["aa"]["details"]["comparisons"], 48)
        self.assertEqual(checks["aa"]["details"]["false_alarms"], 24)
        self.assertIs(checks["aa"]["met"], False)
        self.assertEqual(checks["slowdown_3"]["details"]["caught"], 0)
        self.assertIs(checks["slowdown_5"]["met"], True)
        # Of rows of a millisecond there is one launch in a graph, and of those of 5 us there are 200.
        self.assertTrue(0 < checks["slowdown_5"]["details"]["by_launches"] < 48)
        self.assertGreater(checks["slowdown_10"]["details"]["by_launches"], checks["slowdown_5"]["details"]["by_launches"])
        self.assertIs(checks["slowdown_10"]["met"], False)
        self.assertEqual(checks["slowdown_10"]["details"]["kernels"]["norm"]["caught"], 0)
        self.assertIn("| NO |", page)
        self.assertIn("- **every kernel made 10 % slower**: not met", page)
        self.assertIn("and 36 more, in the JSON", page)
        self.assertIn("activation", believe_report.kernel_names())
        self.benches = ("linear", "norm", "activation")
        checks, page = self.report()
        self.assertIs(checks["slowdown_5"]["met"], False)
        self.assertIn("not collected: activation", page)

    def test_a_kernel_of_which_too_few_are_caught_is_not_made_up_for_by_others(self):
        machine = Machine(seed=9, run_noise=0.0005)
        cases = [KernelCase(kernel, (("name", f"s{number}"),), 10.0) for kernel in ("linear", "norm", "sampling")
                 for number in range(20)]
        missed = [Effect(3, shape=r"s\d$|s1[0-7]"), Effect(3, kernel="linear", shape="s1[89]"),
                  Effect(3, kernel="sampling", shape="s1[89]")]
        for side, effects in (("a", []), ("slow3", missed)):
            folder = self.folder / "out" / "benches" / side
            folder.mkdir(parents=True)
            for number in range(3):
                write(folder / f"all.round{number}.jsonl", machine.run("bench_all", cases, effects))
        check = self.report()[0]["slowdown_3"]
        self.assertIn("58 of 60 (96.7 %) caught", check["measured"])
        self.assertIn("least of norm: 18 of 20", check["measured"])
        self.assertIs(check["met"], False)
        stored = json.loads((self.folder / "b.json").read_text())
        next(each for each in stored["checks"] if each["id"] == "slowdown_3")["met"] = True
        (self.folder / "b.json").write_text(json.dumps(stored))
        run_main("report", "--again", self.folder / "b.json", "--json", self.folder / "again.json")
        again = {each["id"]: each for each in json.loads((self.folder / "again.json").read_text())["checks"]}
        self.assertIs(again["slowdown_3"]["met"], False)

    def test_runs_of_two_gpus_in_one_folder_are_not_pooled(self):
        names = [f"s{number}" for number in range(300)]
        self.equal_sides(names)
        path = self.folder / "out" / "benches" / "again" / "linear.round1.jsonl"
        path.write_text(path.read_text().replace("00d1ce5eed5eed00", "0the0the0the0the"))
        check = self.report()[0]["aa"]
        self.assertIn("0 of 300 (0.0 %) distinct rows false", check["measured"])
        self.assertRegex(check["measured"], "the gate refuses runs of one folder, which differ in .*0the0the0the0the")
        self.assertIs(check["met"], False)

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
        self.assertRegex(err, "b.json is of a collection of 2026-01-01, commit a{12}, that missed 1 check; --because TEXT must")
        self.assertEqual(json.loads((self.folder / "b.json").read_text()), missed)
        code, page, err = run_main(*report, "--because", "rows were too few")
        self.assertEqual(code, 0, err)
        self.assertRegex(page, r"\| 2026-01-01 \| a{12} \| equal programs .*fewer than 20 .* \| rows were too few \|")
        self.assertEqual(run_main(*report)[1], page, "the same collection again")
        self.assertEqual(run_main("report", "--again", self.folder / "b.json")[1], page)
        page = run_main("report", self.folder / "after2", *report[2:], "--because", "still too few")[1]
        self.assertRegex(page, r"rows were too few \|\n\| 2026-01-02 \| .* \| still too few \|\n")

    def equal_sides(self, names, effects=()):
        machine = Machine(seed=8, run_noise=0.0005)
        cases = [KernelCase("linear", (("name", name),), 10.0) for name in names]
        for side, effect in (("a", ()), ("again", effects)):
            folder = self.folder / "out" / "benches" / side
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(3):
                write(folder / f"linear.round{number}.jsonl", machine.run("bench_linear", cases, effect))
        return self.report()[0]["aa"]

    def test_equal_programs_pass_with_three_hundred_distinct_rows_and_not_with_fewer(self):
        check = self.equal_sides([f"s{number}~{number}" for number in range(300)])
        self.assertIs(check["met"], True, check["measured"])
        self.assertIn("0 of 300 (0.0 %) distinct rows false, of 300 comparisons", check["measured"])
        self.assertIn("the true share is at most 0.99 % (Clopper-Pearson, one-sided 95 %)", check["measured"])
        alarm = self.equal_sides([f"s{number}" for number in range(300)], [Effect(9, shape="^s7$")])
        self.assertIs(alarm["met"], False)
        self.assertIn("1 of 300 (0.3 %) distinct rows false", alarm["measured"])
        self.assertIs(self.equal_sides([f"s{number}" for number in range(299)])["met"], False)

    def test_rows_that_repeat_a_shape_count_once(self):
        check = self.equal_sides([f"s{number % 150}~{number}" for number in range(300)])
        self.assertEqual((check["details"]["comparisons"], check["details"]["distinct"]), (300, 150))
        self.assertIs(check["met"], False)
        few = self.equal_sides([f"s{number % 19}~{number}" for number in range(40)])
        self.assertIn("fewer than 20 distinct rows: linear (19)", few["measured"])
        self.assertEqual(self.equal_sides([f"s~{number}" for number in range(40)],
                                          [Effect(9, shape="~7$")])["details"]["distinct"], 1)

    def test_figures_that_do_not_say_how_many_rows_are_distinct_no_longer_pass(self):
        self.sides(Machine(seed=1, run_noise=0.001), again=[], slow5=[Effect(5)])
        checks, _ = self.report()
        stored = json.loads((self.folder / "b.json").read_text())
        stored["checks"] = [check for check in stored["checks"] if check["id"] != "store"]
        for check in stored["checks"]:
            if check["id"] in ("aa", "slowdown_5"):
                check |= {"must": "at least 200 comparisons", "met": True}
                del check["details"]["distinct"]
        (self.folder / "old.json").write_text(json.dumps(stored))
        code, page, err = run_main("report", "--again", self.folder / "old.json", "--json", self.folder / "b.json")
        self.assertEqual(code, 0, err)
        again = {check["id"]: check for check in json.loads((self.folder / "b.json").read_text())["checks"]}
        self.assertEqual((again["store"]["met"], again["store"]["measured"]), (None, "not measured"))
        for name in ("aa", "slowdown_5"):
            self.assertEqual((again[name]["met"], again[name]["must"]), (False, checks[name]["must"]))
            self.assertIn("distinct is not recorded", again[name]["measured"])
        self.assertEqual(run_main("report", "--again", self.folder / "b.json")[1], page, "nothing is said twice")
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

    def test_rows_of_which_the_gate_says_nothing_are_no_comparisons(self):
        machine, cases = Machine(seed=3), [case for case in kernel_cases(40) if case.kernel == "linear"]
        for side in ("a", "again"):
            folder = self.folder / "out" / "benches" / side
            folder.mkdir(parents=True)
            for number in range(3):
                disturbed = {cases[0]: "throttled: thermal"} if side == "again" else {}
                refused = {cases[1]: "no memory"}
                lines = machine.run("bench_linear", cases, [Effect(9, shape=dict(cases[0].shape)["name"] + "$")]
                                    if side == "again" else [], disturbed=disturbed, refused=refused)
                write(folder / f"linear.round{number}.jsonl", lines)
        check = self.report()[0]["aa"]
        self.assertEqual(check["details"]["comparisons"], len(cases) - 2)
        self.assertEqual(check["details"]["false_alarms"], 0)
        self.assertEqual(len(check["details"]["not_counted"]), 2)
        self.assertIn("2 disturbed or undecided rows are not counted", check["measured"])

    def slowed_sides(self, cases, effects=(), **of_slowed):
        """The check of a slowdown by 5 %; `of_slowed` are arguments of the slowed runs."""
        machine = Machine(seed=3, run_noise=0.0005)
        for side in ("a", "slow5"):
            folder = self.folder / "out" / "benches" / side
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(3):
                how = of_slowed | {"effects": [Effect(5)]} if side == "slow5" else {}
                write(folder / f"x.round{number}.jsonl", machine.run("bench_x", cases, **how))
        return self.report()

    def test_a_slowed_row_that_was_refused_throughout_is_missed(self):
        cases = [KernelCase(kernel, (("name", f"s{number}"),), 10.0) for kernel in ("linear", "norm")
                 for number in range(20)]
        for refused in (cases[:1], cases[:20]):
            checks, page = self.slowed_sides(cases, refused=dict.fromkeys(refused, "unverified: wrong"))
            check = checks["slowdown_5"]
            self.assertIn(f"{40 - len(refused)} of 40 ", check["measured"])
            self.assertIn(f"least of linear: {20 - len(refused)} of 20", check["measured"])
            self.assertEqual((check["met"], len(check["details"]["misses"])), (False, len(refused)))
            self.assertIn("linear s0 cuda plain bf16 cold: unverified", page)

    def test_a_row_that_was_refused_as_it_is_is_no_comparison(self):
        self.benches = ("norm",)
        cases = [KernelCase("norm", (("name", f"s{number}"),), 10.0) for number in range(21)]
        self.slowed_sides(cases)
        for path in (self.folder / "out" / "benches" / "a").glob("*.jsonl"):
            write(path, Machine(seed=zlib.crc32(path.name.encode()), run_noise=0.0005).run(
                "bench_x", cases, refused={cases[0]: "no memory"}))
        check = self.report()[0]["slowdown_5"]
        self.assertEqual((check["met"], check["details"]["distinct"]), (True, 20), check["measured"])
        self.assertEqual(len(check["details"]["not_counted"]), 1)

    def test_a_false_alarm_without_a_figure_is_listed(self):
        machine = Machine(seed=3)
        cases = [case for case in kernel_cases(40) if case.kernel == "linear"]
        for side in ("a", "again"):
            folder = self.folder / "out" / "benches" / side
            folder.mkdir(parents=True)
            for number in range(3):
                refused = {cases[0]: "unverified: wrong"} if side == "again" else {}
                write(folder / f"linear.round{number}.jsonl", machine.run("bench_linear", cases, refused=refused))
        check = self.report()[0]["aa"]
        self.assertEqual(check["details"]["false_alarms"], 1)
        self.assertRegex(check["details"]["misses"][0], ": unverified; refused in 3 of 3 runs")

    def test_noise_of_runs_is_no_alarm(self):
        self.sides(Machine(seed=2, run_noise=0.02), again=[])
        self.assertEqual(self.report()[0]["aa"]["details"]["false_alarms"], 0)

    def cut(self, path, size=2000):
        path.write_bytes(path.read_bytes()[:size])

    def test_round_that_was_cut_short_counts_on_neither_side(self):
        # What is left of one side, against all of the other, would be alarms: the rounds differ.
        machine, cases = Machine(seed=5), [case for case in kernel_cases(240) if case.kernel == "linear"]
        benches = self.folder / "out" / "benches"
        for number, percent in enumerate((0, 0, 0, 30)):
            for side in ("a", "again"):
                (benches / side).mkdir(parents=True, exist_ok=True)
                lines = machine.run("bench_linear", cases, [Effect(percent)])
                write(benches / side / f"linear.round{number}.jsonl", lines)
        self.assertEqual(self.report()[0]["aa"]["details"]["false_alarms"], 0)
        cut = benches / "again" / "linear.round3.jsonl"
        whole = cut.read_bytes()
        for size in (0, 100, 2000, whole.rstrip().rfind(b"\n") + 1):  # nothing, half a line, a row and a half, no end
            with self.subTest(size):
                self.cut(cut, size)
                code, page, err = run_main("report", self.folder / "out", "--without-tool-times", "--json",
                                           self.folder / "b.json")
                self.assertEqual(code, 0, err)
                self.assertEqual(err, f"scripts/maintain/believe: {cut}: its program was cut short; left out, with what it "
                                      "would be compared with\n")
                self.assertIn("- left out, since its program was cut short, with what it would be compared with: "
                              f"{cut}", unwrapped(page))
                judged = json.loads((self.folder / "b.json").read_text())
                self.assertEqual(judged["left_out"], [str(cut)])
                aa = judged["checks"][1]["details"]
                self.assertEqual((aa["comparisons"], aa["false_alarms"]), (len(cases), 0))
                self.assertLess(aa["largest_effect_percent"], 5)
                cut.write_bytes(whole)
        cut.unlink()  # stopped between the two sides of a round
        self.assertLess(self.report()[0]["aa"]["details"]["largest_effect_percent"], 5)

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
        with mock.patch.object(believe_report, "timed", return_value=(1.0, 0, "")) as timed:
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

    def leave(self, name, text):
        """As a test leaves it that `collect` runs."""
        path = self.folder / "out" / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def leave_cheats(self, name, results):
        cases = [{"name": name, "result": "SKIPPED" if result == "skipped" else "COMPLETED",
                  **({"failures": [{}]} if result == "failed" else {})} for name, result in results.items()]
        self.leave(name, json.dumps({"testsuites": [{"testsuite": cases}]}))

    def test_cheats_count_when_all_are_refused(self):
        names = [f"Cheat{number}" for number in range(believe_report.ALL_CHEATS)]
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

    def leave_timing(self, *lines):
        self.leave("independent_timing.jsonl", "".join(json.dumps({"kernel": "linear", "shape": "x"} | line) + "\n"
                                                       for line in lines))

    def test_timing_is_held_against_two_percent(self):
        for ratio, met in ((1.019, True), (0.975, False)):
            self.leave_timing(*ALL_LENGTHS, {"suite_us": 10 * ratio, "independent_us": 10})
            self.assertIs(self.report()[0]["timing"]["met"], met)

    def test_timing_of_too_few_lengths_or_without_prefill_does_not_pass(self):
        for left_out, words in zip(ALL_LENGTHS, ("no row of 1 to 4 us", "no row of 5 to 20 us", "no row of 50 to 300 us",
                                                 "no row of 500 to 2,000 us; no row of paged_prefill")):
            self.leave_timing(*(line for line in ALL_LENGTHS if line is not left_out))
            check = self.report()[0]["timing"]
            self.assertIs(check["met"], False)
            self.assertTrue(check["measured"].endswith("; " + words), check["measured"])

    def test_the_independent_timer_must_find_the_slowdown_that_was_put_in(self):
        def slowed(by, percent):
            return {"suite_us": 11, "independent_us": 10, "slowdown_percent": 3, "slowed_percent": percent, "by": by}
        for second, met in ((slowed("a spin", 2.5), True), (slowed("a spin", 4.1), False), (slowed("launches", 3), False)):
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
        path = write(self.folder / "many.jsonl", believe_report.repeated(source, 100))
        run, = believe_report.records.read([path])
        self.assertEqual(len({believe_report.records.key(row) for row in run.rows}), 100)

    def test_the_tools_are_timed_on_a_run_with_figures(self):
        folder = self.folder / "out" / "benches" / "a"
        folder.mkdir(parents=True)
        cases, machine = kernel_cases(10), Machine(seed=3)
        write(folder / "a.jsonl", machine.run("bench_a", cases, refused=dict.fromkeys(cases, "no memory")))
        write(folder / "b.jsonl", machine.run("bench_b", cases, refused={cases[0]: "no memory"}))

        def timed(argv):
            run, = records.read([next(path for path in argv if str(path).endswith(".jsonl"))])
            return 1.0, len(run.rows) != believe_report.GATE_ROWS, ""

        with mock.patch.object(believe_report, "timed", timed):
            checks = believe_report.check_tools([self.folder / "out"], True, believe_report.Jobs())
        self.assertEqual([check.met for check in checks], [True, True])

    def test_refused_rows_are_not_repeated(self):
        cases = kernel_cases(10)
        path = write(self.folder / "run.jsonl", Machine(seed=3).run("bench_x", cases, refused={cases[0]: "no memory"}))
        run, = records.read([write(self.folder / "many.jsonl", believe_report.repeated(Path(path), 100))])
        self.assertEqual([row["status"] for row in run.rows], ["ok"] * 100)


class RealProgramsTest(InFolder):
    """The built programs, at tiny scale on the CPU. What they take is no claim; that they do what is asked is."""
    def setUp(self):
        super().setUp()
        self.bin = Path(os.environ.get("TOKLINE_BIN_DIR", ""))

    def need(self, name):
        if not os.environ.get("TOKLINE_BIN_DIR") or not os.access(self.bin / name, os.X_OK):
            self.skipTest(f"{name} is not built in TOKLINE_BIN_DIR '{self.bin}'")

    def test_bench_programs_can_be_slowed_and_judged(self):
        self.need("bench_activation")
        code, _, err = run_main("collect", "--bin", self.bin, "--out", self.folder / "out", "--device", "cpu", "--only",
                                "aa,slowdowns", "--kernels", "activation", "--comparisons", 2, "--bench-args",
                                "--max-seconds 0.05")
        self.assertEqual(code, 0, err)
        checks, _ = self.report()
        equal = checks["aa"]["details"]  # on a busy machine a row may be undecided
        self.assertEqual(equal["comparisons"] + len(equal["not_counted"]), 2)
        self.assertEqual(checks["slowdown_10"]["details"]["comparisons"], 2)

    def test_decoder_can_be_delayed_and_blamed(self):
        self.need("tokline")
        code, _, err = run_main("collect", "--bin", self.bin, "--out", self.folder / "out", "--device", "cpu", "--only",
                                "host,ops", "--decoder-rounds", 1, "--model", ROOT / "models" / "qwen3-lookup",
                                "--decoder-args", "--prompt-tokens 8 --new-tokens 16 --repeats 3")
        self.assertEqual(code, 0, err)
        checks, _ = self.report()
        self.assertGreaterEqual(checks["host_delay"]["details"]["trials"], 1)
        self.assertGreaterEqual(checks["op_delay"]["details"]["trials"], 3)

    def test_large_delays_are_blamed_on_what_was_delayed(self):
        self.need("tokline")
        runs = {}
        for name, more in (("base", []), ("host_gap", ["--inject-host-delay", "20000"]),
                           ("down", ["--inject-op-delay", "down:10000"])):
            path = self.folder / f"{name}.jsonl"
            subprocess.run([self.bin / "tokline", "bench", "--model", ROOT / "models" / "qwen3-lookup", "--device", "cpu",
                            "--batch", "1", "--prompt-tokens", "8", "--new-tokens", "9", "--repeats", "3", "--record",
                            path, *more], check=True, capture_output=True)
            runs[name] = records.read([path])
        for name in ("host_gap", "down"):
            result, = blame.differences(runs["base"], runs[name])
            self.assertEqual(result.blamed.name, name, blame.verdict(result))
            self.assertGreater(result.blamed.change_us, 19000)


if __name__ == "__main__":
    unittest.main()
