"""scripts/maintain/believe report: the checks of bench programs."""
import json
import unittest
import zlib

from believe_case import ReportCase, run_main
from command_case import unwrapped
from synthetic import Effect, KernelCase, Machine, kernel_cases, write

from tokline import kernels


class BenchesTest(ReportCase):
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
        self.assertGreater(checks["slowdown_10"]["details"]["by_launches"],
                           checks["slowdown_5"]["details"]["by_launches"])
        self.assertIs(checks["slowdown_10"]["met"], False)
        self.assertEqual(checks["slowdown_10"]["details"]["kernels"]["norm"]["caught"], 0)
        self.assertIn("| NO |", page)
        self.assertIn("- **every kernel made 10 % slower**: not met", page)
        self.assertIn("and 36 more, in the JSON", page)
        self.assertIn("activation", kernels.names())
        self.benches = ("linear", "norm", "activation")
        checks, page = self.report()
        self.assertIs(checks["slowdown_5"]["met"], False)
        self.assertIn("not collected in three rounds: activation", page)
        self.assertRegex(page, r"most \d\.\d % of all these rows, by kernel 1\d % \((linear|norm)\), and 100 % of what was not "
                               r"collected in three rounds \(activation\)")
        self.assertRegex(page, r"\| activation \|  \|( not in three rounds \| 100 % \|  \|){3}")

    def test_a_kernel_of_which_too_few_are_caught_is_not_made_up_for_by_others(self):
        machine = Machine(seed=9, run_noise=0.0005)
        cases = [KernelCase(kernel, (("name", f"s{number}"),), 10.0) for kernel in ("linear", "norm", "sampling")
                 for number in range(20)]
        missed = [Effect(3, shape=r"s\d$|s1[0-7]"), Effect(3, kernel="linear", shape="s1[89]"),
                  Effect(3, kernel="sampling", shape="s1[89]")]
        self.side("a", machine, cases)
        self.side("slow3", machine, cases, missed)
        check = self.report()[0]["slowdown_3"]
        self.assertIn("58 of 60 (96.7 %) caught", check["measured"])
        self.assertIn("least of norm: 18 of 20", check["measured"])
        bounds = "at most 10.1 % of all these rows, by kernel 28 % (norm) (Clopper-Pearson, one-sided 95 %)"
        self.assertIn(bounds, check["measured"])
        self.assertIs(check["met"], False)
        stored = json.loads((self.folder / "b.json").read_text())
        next(each for each in stored["checks"] if each["id"] == "slowdown_3")["met"] = True
        (self.folder / "b.json").write_text(json.dumps(stored))
        run_main("report", "--again", self.folder / "b.json", "--json", self.folder / "again.json")
        again = {each["id"]: each for each in json.loads((self.folder / "again.json").read_text())["checks"]}
        self.assertIs(again["slowdown_3"]["met"], False)
        self.assertEqual(again["slowdown_3"]["measured"].count(bounds), 1, "said once")

    def test_runs_of_two_gpus_in_one_folder_are_not_pooled(self):
        names = [f"s{number}" for number in range(300)]
        self.equal_sides(names)
        path = self.folder / "out" / "benches" / "again" / "linear.round1.jsonl"
        path.write_text(path.read_text().replace("00d1ce5eed5eed00", "0the0the0the0the"))
        check = self.report()[0]["aa"]
        self.assertIn("0 of 300 (0.0 %) distinct rows false", check["measured"])
        self.assertRegex(check["measured"], "the gate refuses runs of one folder, which differ in .*0the0the0the0the")
        self.assertIs(check["met"], False)

    def test_equal_programs_pass_with_three_hundred_distinct_rows_and_not_with_fewer(self):
        check = self.equal_sides([f"s{number}~{number}" for number in range(300)])
        self.assertIs(check["met"], True, check["measured"])
        self.assertIn("0 of 300 (0.0 %) distinct rows false, of 300 comparisons", check["measured"])
        self.assertIn("the true share is at most 0.99 % (Clopper-Pearson, one-sided 95 %)", check["measured"])
        alarm = self.equal_sides([f"s{number}" for number in range(300)], [Effect(9, shape="^s7$")])
        self.assertIs(alarm["met"], False)
        self.assertIn("1 of 300 (0.3 %) distinct rows false", alarm["measured"])
        self.assertIs(self.equal_sides([f"s{number}" for number in range(299)])["met"], False)

    def test_rows_of_two_rounds_cannot_fail_and_do_not_count(self):
        self.equal_sides([f"s{number}" for number in range(300)], [Effect(9, shape="^s7$")])
        for path in self.folder.glob("out/benches/*/linear.round2.jsonl"):
            path.unlink()
        check = self.report()[0]["aa"]
        self.assertEqual(check["measured"], "not measured")
        self.assertIsNone(check["met"])

    def test_rows_that_repeat_a_shape_count_once(self):
        check = self.equal_sides([f"s{number % 150}~{number}" for number in range(300)])
        self.assertEqual((check["details"]["comparisons"], check["details"]["distinct"]), (300, 150))
        self.assertIs(check["met"], False)
        few = self.equal_sides([f"s{number % 19}~{number}" for number in range(40)])
        self.assertIn("fewer than 20 distinct rows: linear (19)", few["measured"])
        self.assertEqual(self.equal_sides([f"s~{number}" for number in range(40)],
                                          [Effect(9, shape="~7$")])["details"]["distinct"], 1)

    def test_rows_of_which_the_gate_says_nothing_are_no_comparisons(self):
        machine, cases = Machine(seed=3), [case for case in kernel_cases(40) if case.kernel == "linear"]
        refused = {cases[1]: "no memory"}
        self.side("a", machine, cases, refused=refused)
        self.side("again", machine, cases, [Effect(9, shape=dict(cases[0].shape)["name"] + "$")],
                  disturbed={cases[0]: "throttled: thermal"}, refused=refused)
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
        self.side("a", machine, cases)
        self.side("again", machine, cases, refused={cases[0]: "unverified: wrong"})
        check = self.report()[0]["aa"]
        self.assertEqual(check["details"]["false_alarms"], 1)
        self.assertRegex(check["details"]["misses"][0], ": unverified; refused in 3 of 3 runs")

    def test_noise_of_runs_is_no_alarm(self):
        self.sides(Machine(seed=2, run_noise=0.02), again=[])
        self.assertEqual(self.report()[0]["aa"]["details"]["false_alarms"], 0)

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
                self.assertEqual(err, f"scripts/maintain/believe: {cut}: its program was cut short; left out, with "
                                      "what it would be compared with\n")
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


if __name__ == "__main__":
    unittest.main()
