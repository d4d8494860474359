"""scripts/records gate --ab and --aa: two builds in turn, what fails there, and what is kept."""

import os
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from command_case import CommandTest
from synthetic import Effect
from tokline import rounds
from tokline.terminal import Progress

# A bench program that appends the next of the recordings beside it; on the last it does what `then` says.
PROGRAM = """#!/usr/bin/env bash
here=$(dirname "$0") name=$(basename "$0")
echo "$name $*" >>"$here/calls"
[[ $* != *--help* ]] || { echo "[--peaks FILE]"; exit 0; }
if [[ $* == *--unknown* ]]; then echo "$name: unknown argument" >&2; exit 2; fi
record=""
while (($#)); do [[ $1 != --record ]] || record=$2; shift; done
[[ ! -e $record ]] || { echo "$name: the record has rows of other runs" >&2; exit 2; }
number=$(cat "$here/$name.count" 2>/dev/null || echo 0)
echo $((number + 1)) >"$here/$name.count"
if [[ -f $here/$name.$number.sh ]]; then source "$here/$name.$number.sh"; fi
cat "$here/$name.$number.jsonl" >>"$record"
"""


class RoundsTest(CommandTest):
    def build(self, side, programs, rounds=3, effects=()):
        """A bin folder whose programs replay recordings of this machine."""
        folder = self.folder / side
        folder.mkdir()
        for name in programs:
            cases = [case for case in self.cases if case.kernel == name]
            for number in range(rounds):
                self.write(
                    f"{side}/bench_{name}.{number}.jsonl", self.machine.run(f"bench_{name}", cases, effects=effects))
            self.program(f"{side}/bench_{name}", PROGRAM)
        return folder

    def build_both(self, *programs):
        for side in "ab":
            self.build(side, programs)

    def ab(self, *arguments, expect, rounds=3, **environment):
        return self.run_command("gate", "--ab", self.folder / "a", self.folder / "b", "--rounds", rounds, *arguments,
                                expect=expect, **environment)

    def calls(self, side):
        return [line for line in (self.folder / side / "calls").read_text().splitlines() if "--help" not in line]

    def test_slower_build_fails_and_records_are_kept(self):
        self.build("a", ["linear", "sampling"])
        self.build("b", ["linear", "sampling"], effects=[Effect(20, kernel="linear")])
        done = self.ab("--device", "cpu", "--keep", self.folder / "out", expect=1)
        self.assertIn("3 slower", done.stdout)
        for side in "ab":
            self.assertEqual((self.folder / "out" / f"{side}.jsonl").read_text().count('"kind": "run"'), 6)
            self.assertEqual(len(self.calls(side)), 6)
        self.assertIn("2 programs, 3 rounds, order by --seed 1", done.stderr)
        self.ab("--device", "cpu", "--keep", self.folder / "out", expect=2)

    def test_equal_builds_pass(self):
        for side in "ab":
            self.build(side, ["linear", "sampling"], rounds=5)
        self.assertIn("gate: same or faster.", self.ab("--device", "cpu", expect=0, rounds=5).stdout)

    def test_the_decoder_has_the_embedded_model_wherever_the_gate_is_started(self):
        for side in "ab":
            self.build(side, ["linear"])
            self.program(f"{side}/tokline", PROGRAM)
            for number in range(3):
                self.write(f"{side}/tokline.{number}.jsonl", self.machine.decoder_run())
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.ab("--device", "cpu", "--programs", "decoder", expect=0)
        model = Path(__file__).resolve().parents[3] / "models" / "qwen3-lookup"
        self.assertIn(f"tokline bench --model {model} --device cpu", self.calls("a")[0])

    def test_a_model_may_be_a_name_that_the_programs_know(self):
        for side in "ab":
            self.build(side, ["linear"])
            self.program(f"{side}/tokline", PROGRAM)
            (self.folder / side / "tokline.0.sh").write_text("exit 0\n")  # inspect
            for number in range(1, 4):
                self.write(f"{side}/tokline.{number}.jsonl", self.machine.decoder_run())
        self.ab("--device", "cpu", "--programs", "decoder", "--model", "Qwen/Qwen3-0.6B", expect=0)
        self.assertEqual(self.calls("b")[0], "tokline inspect --model Qwen/Qwen3-0.6B --device cpu")
        self.assertIn("tokline bench --model Qwen/Qwen3-0.6B --device cpu", self.calls("b")[1])

    def test_a_model_that_is_none_is_misuse(self):
        for side in "ab":
            self.build(side, ["linear"])
            self.program(f"{side}/tokline", PROGRAM)
            (self.folder / side / "tokline.0.sh").write_text("echo 'tokline: no model \"x\"' >&2; exit 1\n")
        done = self.ab("--device", "cpu", "--model", "x", expect=2)
        self.assertEqual(done.stderr, 'scripts/records gate: --model: no model "x"\n')
        self.assertFalse((self.folder / "b" / "calls").exists())
        for path in (self.folder, "./x"):
            done = self.ab("--device", "cpu", "--model", path, expect=2)
            self.assertEqual(done.stderr, f"scripts/records gate: --model {path} has no config.json\n")

    def test_arguments_go_to_the_programs(self):
        self.build_both("linear")
        self.ab("--", "--device=cpu", "--samples", "20", expect=0)
        self.assertRegex(self.calls("a")[0], "^bench_linear --samples 20 --device cpu --record .*/run.jsonl$")
        self.ab("--device", "cpu", "--", "--unknown", expect=2)
        self.assertRegex(
            self.ab("--", "--record", "x", expect=2).stderr, "--record is set by scripts/records gate itself")

    def test_first_run_of_a_round_measures_the_peaks_for_the_others(self):
        self.build_both("linear", "sampling")
        plan = rounds.Plan({side: rounds.find_programs(self.folder / side) for side in "ab"}, rounds=3)
        rounds.Experiment(plan, self.folder, Progress(), lambda words: None).run()
        calls = self.calls("a") + self.calls("b")
        self.assertEqual(len(calls), 12)
        self.assertEqual(sum("--peaks" in call for call in calls), 9)

    def test_decoder_takes_over_the_peaks_of_a_decoder_only_where_nothing_else_runs(self):
        for side in "ab":
            self.build(side, ["linear"])
            self.program(f"{side}/tokline", PROGRAM)
            for number in range(3):
                self.write(f"{side}/tokline.{number}.jsonl",
                           self.machine.run("tokline bench", [case for case in self.cases if case.kernel == "decoder"]))
        for wanted in (["decoder"], ["decoder", "linear"]):
            for side in "ab":
                (self.folder / side / "calls").unlink(missing_ok=True)
                for count in (self.folder / side).glob("*.count"):
                    count.unlink()
            programs = {side: rounds.find_programs(self.folder / side, "model", wanted) for side in "ab"}
            folder = self.folder / "-".join(wanted)
            folder.mkdir()
            plan = rounds.Plan(programs, model="model", rounds=3)
            rounds.Experiment(plan, folder, Progress(), lambda words: None).run()
            calls = self.calls("a") + self.calls("b")
            measured = [call for call in calls if "--peaks" not in call]
            opening = "tokline" if wanted == ["decoder"] else "bench_linear"
            self.assertEqual([call.split()[0] for call in measured], [opening] * 3)

    def test_order_is_drawn_and_each_program_runs_once_a_side_and_round(self):
        names = {name: name for name in ("bench_a", "bench_b", "tokline")}
        orders = [list(rounds.Plan({"a": names, "b": names}, rounds=4, seed=seed).order()) for seed in (1, 1, 2)]
        self.assertEqual(orders[0], orders[1])
        self.assertNotEqual(orders[0], orders[2])
        for number in range(4):
            part = orders[0][6 * number : 6 * number + 6]
            self.assertEqual(len(set(part)), 6)
            self.assertEqual({at for at, _, _ in part}, {number + 1})
            self.assertNotEqual(part[0][1], "tokline")
            for first, second in zip(part[::2], part[1::2]):
                self.assertEqual(first[1], second[1])
        self.assertEqual({order[2] for order in orders[0][::2]}, {"a", "b"})

    def test_program_that_is_missing_in_b_fails(self):
        self.build("a", ["linear", "sampling"])
        self.build("b", ["linear"])
        self.assertIn("bench_sampling is missing in B", self.ab("--device", "cpu", expect=1).stdout)

    def test_program_that_is_new_in_b_is_named(self):
        self.build("a", ["linear"])
        self.build("b", ["linear", "sampling"])
        self.assertIn("bench_sampling is new in B", self.ab("--device", "cpu", expect=0).stdout)

    def test_program_that_crashes_in_b_fails(self):
        self.build_both("linear", "sampling")
        (self.folder / "b" / "bench_sampling.1.sh").write_text("kill -SEGV $$\n")
        done = self.ab("--device", "cpu", expect=1)
        self.assertIn("bench_sampling was killed by SIGSEGV in 1 of 3 rounds of B", done.stdout)
        self.assertIn("round 2: bench_sampling (B) was killed by SIGSEGV", done.stderr)

    def test_program_that_always_crashes_on_both_sides_fails(self):
        for side in "ab":
            self.build(side, ["linear", "sampling"])
            for number in range(3):
                (self.folder / side / f"bench_sampling.{number}.sh").write_text("kill -SEGV $$\n")
        done = self.ab("--device", "cpu", expect=1)
        self.assertIn("bench_sampling was killed by SIGSEGV in 3 of 3 rounds of B", done.stdout)

    def test_filter_that_matches_nothing_in_a_program_leaves_it_out(self):
        for side in "ab":
            self.build(side, ["linear", "sampling"])
            (self.folder / side / "bench_sampling.0.sh").write_text("echo 'no row matches' >&2; exit 1\n")
        done = self.ab("--device", "cpu", expect=0)
        self.assertIn("bench_sampling measured nothing on either side", done.stderr)
        self.assertEqual(sum("sampling" in call for call in self.calls("a")), 1)

    def test_only_named_programs_run(self):
        self.build_both("linear", "sampling")
        self.ab("--device", "cpu", "--programs", "linear", expect=0)
        self.assertFalse(any("sampling" in call for call in self.calls("a")))
        self.assertIn("no bench_lineal", self.ab("--device", "cpu", "--programs", "lineal", expect=2).stderr)

    def test_folder_without_programs_and_file_that_is_none_are_misuse(self):
        (self.folder / "a").mkdir()
        self.build("b", ["linear"])
        self.assertIn("no bench_* program in this folder", self.ab("--device", "cpu", expect=2).stderr)
        path = self.write("file", [])
        self.assertIn("cannot be executed", self.run_command("gate", "--aa", path, expect=2).stderr)

    def test_unwritable_folder_is_misuse(self):
        self.build_both("linear")
        self.write("file", [])
        self.assertIn(
            "cannot be written", self.ab("--device", "cpu", "--keep", self.folder / "file" / "out", expect=2).stderr)

    def test_without_a_gpu_there_is_nothing_to_measure(self):
        if rounds.gpu_present():
            self.skipTest("this machine has a GPU")
        self.build_both("linear")
        self.assertIn("no CUDA device: nothing to measure here", self.ab(expect=77).stderr)

    def test_ctrl_c_keeps_what_was_measured(self):
        self.build_both("linear")
        (self.folder / "b" / "bench_linear.1.sh").write_text(f"touch {self.folder}/waiting; sleep 60\n")
        for code, words in ((signal.SIGINT, "keep"), (signal.SIGTERM, "keep2")):
            with self.subTest(code):
                for path in [*self.folder.glob("[ab]/*.count"), *self.folder.glob("waiting")]:
                    path.unlink()
                keep = self.folder / words
                process = subprocess.Popen(
                    [sys.executable, "-m", "tokline", "gate", "--ab", self.folder / "a", self.folder / "b", "--rounds",
                     "3", "--device", "cpu", "--keep", keep],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True)
                deadline = time.monotonic() + 60
                while not (self.folder / "waiting").exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                os.killpg(process.pid, code)
                _, error = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 130, error)
                self.assertRegex(error, "interrupted in round 2 of 3, after [23] runs of 6; what was measured is in")
                self.assertIn('"kind": "end"', (keep / "a.jsonl").read_text())

    def test_what_was_measured_is_kept_and_named_where_the_verdict_cannot_be_written(self):
        self.build_both("linear")
        done = self.ab("--device", "cpu", "--json", "/dev/full", expect=2, TMPDIR=str(self.folder))
        kept = re.search(r"what was measured is in (\S+)\n.*cannot write /dev/full", done.stderr)[1]
        for side in "ab":
            self.assertEqual(Path(kept, f"{side}.jsonl").read_text().count('"kind": "run"'), 3)

    def test_aa_measures_the_noise_for_single_runs(self):
        self.build("a", ["linear"], rounds=6)
        noise = self.folder / "noise.jsonl"
        done = self.run_command(
            "gate", "--aa", self.folder / "a", "--rounds", "3", "--device", "cpu", "--out", noise, expect=0)
        self.assertRegex(done.stdout, "A/A: 0 false alarms in 3 comparisons; noise of a row from run to run: 0.* %")
        a, b = self.pair([Effect(10, kernel="linear")])
        self.run_command("gate", "--baseline", a, "--candidate", b, "--noise", noise, expect=1)


if __name__ == "__main__":
    unittest.main()
