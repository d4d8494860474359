"""Verdicts on a simulated machine: how often a false alarm, how often an effect is caught, and what else
gates."""

import unittest

import numpy as np

import synthetic
from synthetic import Effect
from tokline import records, verdicts


def runs_of(lines):
    """The runs of records that were never written."""
    runs = {}
    for line in lines:
        if line["kind"] == "run":
            runs[line["run_id"]] = records.Run(line, path="simulated")
        elif line["kind"] == "row":
            runs[line["run_id"]].rows.append(line)
        else:
            runs[line["run_id"]].end = line
    return list(runs.values())


def experiment(rows=1000, rounds=5, effects=(), seed=1, cases=None, side_b=None, **machine):
    """The runs of both sides, interleaved. `side_b` changes the arguments of B's runs."""
    machine = synthetic.Machine(seed, **machine)
    cases = cases or synthetic.kernel_cases(rows)
    a, b = [], []
    for _ in range(rounds):
        a += machine.run("bench_x", cases)
        b += machine.run("bench_x", cases, effects=effects, **(side_b or {}))
    return runs_of(a), runs_of(b)


def counts(**arguments):
    return verdicts.compare(*experiment(**arguments)).counts


class PowerTest(unittest.TestCase):
    """230 rows an experiment are the suite's size; these have more, so that rare events are seen."""
    def test_false_alarms_of_five_rounds_are_below_one_percent(self):
        found = counts(rows=1000)
        self.assertLessEqual(found["slower"] + found["faster"], 2)
        self.assertEqual(sum(found.values()), 1000)

    def test_false_alarms_of_noisy_rows_are_below_one_percent(self):
        for noise in ({"run_noise": 0.03}, {"outlier_share": 0.1, "outlier_percent": 8.0}):
            with self.subTest(noise):
                found = counts(rows=500, seed=2, **noise)
                self.assertLessEqual(found["slower"] + found["faster"], 5)

    def test_three_percent_is_caught_in_95_of_100_rows(self):
        self.assertGreaterEqual(counts(rows=600, effects=[Effect(3)])["slower"], 0.95 * 600)

    def test_five_and_ten_percent_are_always_caught(self):
        for percent in (5, 10):
            self.assertEqual(counts(rows=300, seed=3, effects=[Effect(percent)])["slower"], 300)

    def test_gain_is_called_faster(self):
        self.assertGreaterEqual(counts(rows=200, effects=[Effect(-5)])["faster"], 199)

    def test_one_percent_does_not_count(self):
        self.assertLessEqual(counts(rows=300, effects=[Effect(1)])["slower"], 3)

    def test_single_runs_hold_with_half_a_percent_of_noise(self):
        found = counts(rows=1000, rounds=1)
        self.assertLessEqual(found["slower"] + found["faster"], 10)
        self.assertEqual(counts(rows=300, rounds=1, effects=[Effect(20)])["slower"], 300)

    def test_a_large_effect_of_samples_that_overlap_is_undecided_and_not_the_same(self):
        a, b = experiment(rows=1, rounds=1)
        for runs, samples in ((a, [10.0, 10.1, 10.2, 30.0, 31.0]), (b, [9.9, 10.3, 25.0, 25.1, 25.2])):
            runs[0].rows[0].update(samples_us=samples, median_us=samples[2], mad_us=0.2)
        row = verdicts.compare(a, b).rows[0]
        self.assertGreater(row.ratio, 2)
        self.assertEqual((row.verdict, row.notes), ("undecided", ["the samples overlap; measure in rounds"]))

    def test_a_large_effect_of_a_row_that_varies_as_much_is_undecided_and_not_the_same(self):
        a, b = experiment(rows=1)
        for runs, factors in ((a, (1, 1.4, 1, 1.3, 1.1)), (b, (1.2, 1.3, 1.5, 1.5, 1.2))):
            for run, factor in zip(runs, factors):
                row = run.rows[0]
                row.update(samples_us=[factor * value for value in row["samples_us"]], median_us=factor * row["median_us"])
        row = verdicts.compare(a, b).rows[0]
        self.assertGreater(row.needed, row.effect)
        self.assertEqual(row.verdict, "undecided")
        self.assertIn("measure in more rounds", row.notes[0])
        for run in b:  # a small effect of such a row is the same, and the row is told
            run.rows[0].update({name: a[b.index(run)].rows[0][name] for name in ("samples_us", "median_us")})
        comparison = verdicts.compare(a, b)
        self.assertEqual([row.verdict for row in comparison.rows], ["same"])
        self.assertEqual(comparison.blind, comparison.rows)

    def test_what_single_runs_of_equal_programs_differ_by_is_undecided_without_rounds(self):
        for percent in (8, -8):
            for rounds in (1, 2):
                self.assertEqual(counts(rows=100, rounds=rounds, effects=[Effect(percent)])["undecided"], 100)

    def test_single_runs_on_shared_cores_differ_by_up_to_a_factor_of_two(self):
        for percent, verdict in ((90, "undecided"), (-47, "undecided"), (110, "slower")):
            a, b = experiment(rows=100, rounds=1, effects=[Effect(percent)])
            for row in (row for run in a + b for row in run.rows):
                row["device"] = "cpu"
            self.assertEqual(verdicts.compare(a, b).counts[verdict], 100)

    def test_interval_covers_the_effect(self):
        compared = verdicts.compare(*experiment(rows=300, effects=[Effect(4)]))
        covered = sum(row.interval[0] <= 1.04 <= row.interval[1] for row in compared.rows)
        self.assertGreaterEqual(covered, 0.91 * 300)
        self.assertLessEqual(covered, 0.99 * 300)

    def test_interval_holds_the_ratio_where_runs_that_lie_apart_have_other_numbers_of_samples(self):
        a, b = experiment(rows=50, rounds=2, run_noise=0.1)
        for row in a[0].rows:
            row["samples_us"] = row["samples_us"][:5]
        for row in verdicts.compare(a, b[:1]).rows:
            self.assertLessEqual(row.interval[0], row.ratio)
            self.assertGreaterEqual(row.interval[1], row.ratio)

    def test_only_the_slowed_kernel_is_blamed(self):
        compared = verdicts.compare(*experiment(rows=230, effects=[Effect(5, kernel="linear")]))
        self.assertEqual({row.key.kernel for row in compared.regressions}, {"linear"})
        self.assertEqual(len(compared.regressions), 23)

    def test_drift_over_the_experiment_is_no_alarm(self):
        found = counts(rows=230, run_noise=0.003, drift_percent_per_hour=2.0)
        self.assertEqual(found["slower"], 0)


class FloorTest(unittest.TestCase):
    def test_noise_of_an_aa_experiment_replaces_the_default_for_single_runs(self):
        quiet_a, quiet_b = experiment(rows=20, run_noise=0.001)
        noise = verdicts.Noise(quiet_a + quiet_b)
        a, b = experiment(rows=20, rounds=1, effects=[Effect(2.5)], run_noise=0.001, seed=2)
        self.assertEqual(verdicts.compare(a, b).counts["slower"], 0)
        self.assertEqual(verdicts.compare(a, b, noise=noise).counts["slower"], 20)

    def test_noisy_aa_experiment_raises_the_floor(self):
        noisy_a, noisy_b = experiment(rows=20, run_noise=0.03)
        a, b = experiment(rows=20, rounds=1, effects=[Effect(5)], run_noise=0.001, seed=2)
        self.assertEqual(verdicts.compare(a, b).counts["undecided"], 20)
        found = verdicts.compare(a, b, noise=verdicts.Noise(noisy_a + noisy_b)).counts
        self.assertLessEqual(found["slower"], 2)

    def test_noise_is_known_across_devices_too(self):
        noise = verdicts.Noise(sum(experiment(rows=20, run_noise=0.001), []))
        a, _ = experiment(rows=20, rounds=1, run_noise=0.001, seed=2, gpu={"name": "NVIDIA H100", "uuid_hash": "1"})
        _, b = experiment(rows=20, rounds=1, effects=[Effect(6)], run_noise=0.001, seed=2)
        self.assertEqual(verdicts.compare(a, b, across=True).counts["undecided"], 20)
        self.assertEqual(verdicts.compare(a, b, across=True, noise=noise).counts["slower"], 20)

    def test_the_floor_is_an_effect_and_no_logarithm(self):
        for rounds in (5, 1):
            sides = experiment(rows=20, rounds=5, run_noise=0.1)
            noise = verdicts.Noise(sum(sides, []))
            compared = verdicts.compare(*(runs[:rounds] for runs in sides), noise=noise)
            for row in compared.rows:
                logs = [np.log([records.median_us(each) for run in runs for each in run.rows
                                if records.key(each) == row.key]) for runs in sides]
                groups, runs = (logs, 0) if rounds == 5 else ([np.concatenate(logs)], 10)
                least = verdicts.floor_factor(rounds, rounds, True, runs, 0.002) * verdicts.spread(groups)
                self.assertAlmostEqual(row.floor, np.exp(least) - 1)

    def test_noise_of_another_machine_is_said(self):
        noise = verdicts.Noise(sum(experiment(rows=5, rounds=3, gpu={"driver": "570"}), []))
        compared = verdicts.compare(*experiment(rows=5, rounds=1), noise=noise)
        self.assertEqual(compared.notes, ["the A/A experiment was elsewhere: driver: 570 and 580.1"])

    def test_noise_needs_enough_runs_of_one_commit(self):
        a, _ = experiment(rows=5, rounds=2)
        with self.assertRaisesRegex(records.BadRecords, "no row has 6 runs"):
            verdicts.Noise(a)
        b, _ = experiment(rows=5, rounds=6, commit="b" * 40)
        with self.assertRaisesRegex(records.BadRecords, "2 commits"):
            verdicts.Noise(a + b)

    def test_absolute_floors_of_kernels_and_decoder_steps(self):
        cases = [synthetic.KernelCase("embedding", (("name", f"{us} us"),), us) for us in (0.15, 3.0)]
        compared = verdicts.compare(*experiment(cases=cases, effects=[Effect(5)], run_noise=0.001))
        self.assertEqual({row.a_us < 1: row.verdict for row in compared.rows}, {True: "same", False: "slower"})
        machine = synthetic.Machine(1, run_noise=0.0005, sample_noise=0.0005)
        a, b = [], []
        for _ in range(5):
            a += machine.decoder_run()
            b += machine.decoder_run(effects=[Effect(us=30, op="down")])
        self.assertEqual(verdicts.compare(runs_of(a), runs_of(b)).counts["slower"], 1)
        strict = verdicts.Rules(decoder_us=40.0)
        self.assertEqual(verdicts.compare(runs_of(a), runs_of(b), strict).counts["same"], 1)

    def test_factor_is_what_normal_noise_exceeds_as_rarely_as_said(self):
        random = np.random.default_rng(9)
        a, b = random.standard_normal((2, 4000, 5))
        factor = verdicts.floor_factor(5, 5, True, 0, 0.02)
        exceeded = sum(np.median(y - x) > factor * verdicts.spread([x, y]) for x, y in zip(a, b))
        self.assertLess(abs(exceeded / 4000 - 0.02), 0.008)


class OtherRegressionsTest(unittest.TestCase):
    def setUp(self):
        self.cases = synthetic.kernel_cases(20)
        self.case = self.cases[4]

    def judge(self, rounds=3, **side_b):
        compared = verdicts.compare(*experiment(cases=self.cases, rounds=rounds, side_b=side_b))
        return compared, [row for row in compared.rows if row.regressions]

    def test_equal_sides_have_none(self):
        self.assertEqual(self.judge()[1], [])

    def test_wrong_output_in_a_single_round_gates(self):
        machine = synthetic.Machine(1)
        a = runs_of([line for _ in range(3) for line in machine.run("x", self.cases)])
        b = runs_of(
            [
                line
                for i in range(3)
                for line in machine.run(
                    "x", self.cases, refused={self.case: "unverified: after timing no"} if i == 1 else None)
            ]
        )
        (row,) = verdicts.compare(a, b).regressions
        self.assertEqual(row.verdict, "unverified")
        self.assertEqual(row.regressions, ["refused in 1 of 3 runs: unverified: after timing no"])
        self.assertEqual(verdicts.compare(b, a).regressions, [])

    def test_row_refused_throughout_gates_whatever_the_reason(self):
        _, rows = self.judge(refused={self.case: "above the roofline"})
        self.assertEqual([row.verdict for row in rows], ["unverified"])

    def test_row_refused_on_both_sides_is_not_comparable(self):
        machine = synthetic.Machine(1)
        a, b = (runs_of(machine.run("x", self.cases, refused={self.case: "no memory"})) for _ in "ab")
        compared = verdicts.compare(a, b)
        self.assertEqual(compared.counts["not comparable"], 1)
        self.assertEqual(compared.regressions, [])

    def test_missing_row_gates_and_new_row_does_not(self):
        machine = synthetic.Machine(1)
        a, b = (runs_of(machine.run("x", cases)) for cases in (self.cases[:-1], self.cases[1:]))
        compared = verdicts.compare(a, b)
        self.assertEqual([row.verdict for row in compared.regressions], ["missing"])
        self.assertEqual(compared.counts["new"], 1)
        self.assertEqual(compared.vanished, [])

    def runs_with(self, number, *others, **arguments):
        """The runs of a side: `number` with all rows, and others with the rows that are given."""
        machine = synthetic.Machine(2, **arguments)
        return runs_of([line for cases in [self.cases] * number + list(others) for line in machine.run("x", cases)])

    def test_row_that_most_runs_of_b_lack_is_missing(self):
        rest = self.cases[:-1]
        a = self.runs_with(5)
        for whole, lacking, missing in ((1, 4, True), (2, 3, True), (3, 2, False), (1, 1, False)):
            compared = verdicts.compare(a, self.runs_with(whole, *[rest] * lacking))
            self.assertEqual(compared.counts["missing"], missing)
            self.assertEqual([row.regressions for row in compared.regressions],
                             [[f"absent from {lacking} of {whole + lacking} runs"]] if missing else [])
        row, = verdicts.compare(a, self.runs_with(1, rest, rest)).regressions
        self.assertEqual((row.ratio, row.rounds), (None, 1))
        self.assertAlmostEqual(row.b_us / row.a_us, 1, delta=0.05)

    def test_row_that_both_sides_lack_alike_is_compared(self):
        sides = (self.runs_with(1, *[self.cases[:-1]] * 3) for _ in "ab")
        self.assertEqual(verdicts.compare(*sides).counts, {"same": len(self.cases)})

    def test_row_is_not_missing_from_runs_that_were_asked_for_others(self):
        a = self.runs_with(1)
        b = self.runs_with(1, *[self.cases[:1]] * 4)
        for number, run in enumerate(b):
            run.fingerprint["command_line"] += ["--peaks", f"{number}.jsonl"]
            run.end = run.end if number == 0 else None
        self.assertEqual(verdicts.compare(a, b).counts["missing"], len(self.cases) - 1)
        for run in b[1:]:
            run.fingerprint["command_line"].append("--benchmark_filter=b1_")
        self.assertEqual(verdicts.compare(a, b).counts, {"same": len(self.cases)})
        # A peer's runs are of one command, but of a kernel each.
        kernels = dict.fromkeys(case.kernel for case in self.cases)
        b = self.runs_with(0, *([case for case in self.cases if case.kernel == kernel] for kernel in kernels))
        self.assertEqual(verdicts.compare(a, b).counts, {"same": len(self.cases)})

    def test_vanished_kernel_is_named(self):
        machine = synthetic.Machine(1)
        rest = [case for case in self.cases if case.kernel != "linear"]
        compared = verdicts.compare(*(runs_of(machine.run("x", cases)) for cases in (self.cases, rest)))
        self.assertEqual(compared.vanished, ["linear"])
        self.assertEqual(compared.counts["missing"], 2)

    def test_memory_gates_only_if_it_grew_by_more_than_a_mebibyte_and_a_percent(self):
        base = int(64e6)
        for grown, gates in ((base + 2**20, False), (int(base * 1.009), False), (base + 2**21, True),
                             (base // 2, False)):
            with self.subTest(grown=grown):
                machine = synthetic.Machine(1)
                a = runs_of(machine.run("x", self.cases, memory={self.case: base}))
                b = runs_of(machine.run("x", self.cases, memory={self.case: grown}))
                self.assertEqual(len(verdicts.compare(a, b).regressions), gates)

    def test_error_gates_only_if_all_of_b_is_beyond_twice_all_of_a_and_half_the_bound(self):
        for before, after, gates in (([0.2, 0.3], [0.7, 0.9], True), ([0.2, 0.3], [0.55, 0.9], False),
                                     ([0.1, 0.1], [0.4, 0.4], False), ([0.5, 0.2], [0.9, 0.9], False)):
            with self.subTest(before=before, after=after):
                machine = synthetic.Machine(1)
                a, b = (
                    runs_of(
                        [line for error in errors for line in machine.run("x", self.cases, errors={self.case: error})])
                    for errors in (before, after)
                )
                self.assertEqual(len(verdicts.compare(a, b).regressions), gates)

    def test_slower_row_that_rests_on_disturbed_runs_does_not_gate(self):
        machine = synthetic.Machine(1)
        a = runs_of([line for _ in range(5) for line in machine.run("x", self.cases)])
        slowed = Effect(10, shape=f"^{dict(self.case.shape)['name']}$", kernel=self.case.kernel)
        for disturbed_rounds, verdict in ((5, "disturbed"), (3, "disturbed"), (2, "slower")):
            b = runs_of(
                [
                    line
                    for i in range(5)
                    for line in machine.run(
                        "x", self.cases, effects=[slowed],
                        disturbed={self.case: "throttled: power cap"} if i < disturbed_rounds else None)
                ]
            )
            row = next(row for row in verdicts.compare(a, b).rows if str(row.key) == self.label())
            self.assertEqual(row.verdict, verdict)
            self.assertIn("throttled: power cap", row.notes[0])

    def test_the_power_cap_does_not_spoil_rows_that_rested(self):
        machine = synthetic.Machine(1)
        a = runs_of([line for _ in range(5) for line in machine.run("x", self.cases)])
        slowed = Effect(10, shape=f"^{dict(self.case.shape)['name']}$", kernel=self.case.kernel)
        cap, others = "throttled: power cap", "1 other process on the GPU"
        for rested, disturbed, verdict in ((True, cap, "slower"), (False, cap, "disturbed"),
                                           (True, others, "disturbed"), (True, f"{cap}; {others}", "disturbed")):
            lines = [line
                     for _ in range(5)
                     for line in machine.run("x", self.cases, effects=[slowed], disturbed={self.case: disturbed})]
            for line in lines:
                if line["kind"] == "row":
                    line["rested"] = rested
            row = next(row for row in verdicts.compare(a, runs_of(lines)).rows if str(row.key) == self.label())
            self.assertEqual(row.verdict, verdict, (rested, disturbed))

    def test_disturbed_baseline_counts_too_where_the_sides_have_different_numbers_of_runs(self):
        machine = synthetic.Machine(1)
        for disturbed_runs, verdict in ((2, "disturbed"), (1, "slower")):
            a = [
                machine.run("x", self.cases, disturbed={self.case: "2 other processes"} if i < disturbed_runs else None)
                for i in range(3)]
            b = [machine.run("x", self.cases, effects=[Effect(20)]) for _ in range(5)]
            sides = (runs_of([line for lines in side for line in lines]) for side in (a, b))
            row = next(row for row in verdicts.compare(*sides).rows if str(row.key) == self.label())
            self.assertEqual(row.verdict, verdict)

    def test_no_difference_to_a_disturbed_side_is_no_verdict(self):
        machine, cap = synthetic.Machine(1), {self.case: "throttled: power cap"}
        others = {self.case: "1 other process on the GPU"}
        for disturbed_a, disturbed_b, verdict in ((cap, None, "disturbed"), (None, cap, "disturbed"),
                                                  (cap, others, "disturbed"), (cap, cap, "same")):
            sides = [runs_of([line for _ in range(5) for line in machine.run("x", self.cases, disturbed=disturbed)])
                     for disturbed in (disturbed_a, disturbed_b)]
            compared = verdicts.compare(*sides)
            row = next(row for row in compared.rows if str(row.key) == self.label())
            self.assertEqual((row.verdict, row.exceeds), (verdict, False))
            self.assertEqual(compared.counts["same"], len(self.cases) - (verdict == "disturbed"))

    def label(self):
        return str(records.key(synthetic.Machine().run("x", [self.case])[1]))

    def test_too_few_samples_are_undecided_and_rounds_settle_it(self):
        machine = synthetic.Machine(1)
        cases = synthetic.decoder_cases((1, 2, 4, 8))
        rounds = [(machine.decoder_run(cases), machine.decoder_run(cases, effects=[Effect(20)])) for _ in range(5)]
        one = verdicts.compare(runs_of(rounds[0][0]), runs_of(rounds[0][1]))
        self.assertEqual(one.counts["undecided"], 4)
        all_ = verdicts.compare(*(runs_of([line for pair in rounds for line in pair[side]]) for side in (0, 1)))
        self.assertEqual(all_.counts["slower"], 4)

    def test_other_version_of_a_library_is_not_comparable(self):
        machine = synthetic.Machine(1)
        sides = [[synthetic.KernelCase("linear", (("name", "x"),), 5.0, "cublas", library=("cublas", version))]
                 for version in ("1", "2")]
        compared = verdicts.compare(*(runs_of(machine.run("x", cases)) for cases in sides))
        self.assertEqual(compared.counts["not comparable"], 1)


class FingerprintTest(unittest.TestCase):
    def compare(self, across=False, builds_differ=False, **other):
        cases = synthetic.kernel_cases(10)
        a = runs_of(synthetic.Machine(1).run("x", cases))
        b = runs_of(synthetic.Machine(2, **other).run("x", cases))
        return verdicts.compare(a, b, across=across, builds_differ=builds_differ)

    def test_other_driver_is_refused_unless_across(self):
        compared = self.compare(gpu={"driver": "570"})
        self.assertEqual(compared.differences, ["driver: 580.1 and 570"])
        self.assertIn("fingerprints differ", compared.refused)
        self.assertEqual(self.compare(across=True, gpu={"driver": "570"}).refused, "")

    def test_other_gpu_has_common_rows_across(self):
        gpu = {"name": "NVIDIA H100", "uuid_hash": "1"}
        self.assertEqual(self.compare(gpu=gpu).refused, "no row is in both")
        compared = self.compare(across=True, gpu=gpu)
        self.assertEqual((compared.refused, compared.common), ("", 10))
        self.assertEqual(len(compared.differences), 2)

    def test_other_compiler_is_expected_of_two_builds(self):
        build = {"compiler": "clang 18"}
        self.assertNotEqual(self.compare(build=build).refused, "")
        compared = self.compare(builds_differ=True, build=build)
        self.assertEqual(compared.refused, "")
        self.assertEqual(compared.notes, ["the builds differ in compiler: gcc 12.2.0 and clang 18"])

    def test_runs_that_were_slowed_on_purpose_are_named(self):
        a, b = experiment(rows=10, side_b={"injected": {"slowdown_percent": 3}})
        self.assertIn("B: slowed on purpose, to test the tools: slowdown_percent 3", verdicts.compare(a, b).notes)


if __name__ == "__main__":
    unittest.main()
