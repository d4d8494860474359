"""scripts/maintain/believe collect: with simulated and with real programs, and what is made of it."""
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

from believe_case import InFolder, run_main
from synthetic import Machine, kernel_cases, write

from tokline import believe_collect, blame, records
from tokline.believe_collect import ROOT

HERE = Path(__file__).resolve().parent
SHAPES = ROOT / "benches" / "shapes"


class CollectTest(InFolder):
    def setUp(self):
        super().setUp()
        self.bin = self.folder / "bin"
        self.add_program("bench_activation")
        self.add_program("tokline")

    def add_program(self, name):
        self.program(f"bin/{name}",
                     f"#!/bin/sh\nexec '{sys.executable}' '{HERE / 'believe_programs.py'}' {name} \"$@\"\n")

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
        for side, left in (("a", ()), ("again", ("norm.round2",))):
            folder = self.folder / "out" / "benches" / side
            folder.mkdir(parents=True)
            for kernel in ("linear", "norm"):
                cases = [case for case in kernel_cases(20) if case.kernel == kernel]
                for name in (f"{kernel}.round{number}" for number in range(3)):
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
        for path in sorted(set(SHAPES.rglob("*.json")) - {SHAPES / "axes.json"}):
            units = believe_collect.units_of(json.loads(path.read_text()))
            for count in (1, len(units), 3 * len(units)):
                shapes = believe_collect.chosen(units, count)
                names = [entry["name"] for family in shapes.values() for entry in family]
                self.assertEqual((len(names), len(set(names))), (count, count), path)
            self.assertEqual({name for name, _ in units}, set(json.loads(path.read_text())))

    def test_a_shape_that_is_needed_again_is_another_one(self):
        for path in sorted(set(SHAPES.glob("*.json")) - {SHAPES / "axes.json"}):
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
            subprocess.run([self.bin / "tokline", "bench", "--model", ROOT / "models" / "qwen3-lookup",
                            "--device", "cpu", "--batch", "1", "--prompt-tokens", "8", "--new-tokens", "9",
                            "--repeats", "3", "--record", path, *more], check=True, capture_output=True)
            runs[name] = records.read([path])
        for name in ("host_gap", "down"):
            result, = blame.differences(runs["base"], runs[name])
            self.assertEqual(result.blamed.name, name, blame.verdict(result))
            self.assertGreater(result.blamed.change_us, 19000)


if __name__ == "__main__":
    unittest.main()
