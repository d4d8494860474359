"""scripts/records gate_change over a scratch repository whose bench programs run on a simulated clock."""

import json
import os
import shutil
import sys
import unittest
from pathlib import Path
from unittest import mock

from scratch_repository import ROOT, ScratchRepository, git

GPU = any(Path("/dev").glob("nvidia[0-9]*"))

# A side of the scratch repository: what its programs take, and whether it builds and passes its tests.
BASE = {"benches": ["linear", "norm"], "percent": 0, "builds": True, "tests": "true"}

BUILD = """
import json, os, pathlib, sys
toy = json.load(open("toy.json"))
if not toy["builds"]:
    sys.exit("toy.cc:1: error: it does not compile")
folder = pathlib.Path(os.environ["BUILD_DIR"])
(folder / "bin").mkdir(exist_ok=True)
for kernel in toy["benches"]:
    program = folder / "bin" / f"bench_{kernel}"
    program.write_text(f"#!{sys.executable}\\nKERNEL, PERCENT = {kernel!r}, {toy['percent']}\\n"
                       + pathlib.Path("bench.py").read_text())
    program.chmod(0o755)
(folder / "CTestTestfile.cmake").write_text(f"add_test(toy_test {toy['tests']})\\n")
"""

# The same by CMake, as the project itself is built.
CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(toy LANGUAGES NONE)
macro(add_kernel)
endmacro()
add_kernel(linear)
set(ENV{BUILD_DIR} "${CMAKE_BINARY_DIR}")
execute_process(COMMAND "$ENV{TOKLINE_PYTHON}" build.py WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}"
  COMMAND_ERROR_IS_FATAL ANY)
add_custom_target(bench_linear)
add_custom_target(linear_test)
add_custom_target(measured_by_nobody ALL COMMAND false)
if(TOKLINE_BUILD_TESTS)
  enable_testing()
  add_test(NAME toy_cuda_test COMMAND false)
  set_tests_properties(toy_cuda_test PROPERTIES LABELS gpu)
  add_test(NAME linear_test COMMAND true)
  add_test(NAME norm_test COMMAND false)
endif()
"""

# Each run is the next of its side on a clock of its own: what is measured does not depend on the order.
BENCH = f"""
import argparse, json, pathlib, sys, zlib
sys.path.insert(0, {str(ROOT / "harness/tests/analysis")!r})
import synthetic
parser = argparse.ArgumentParser()
for name in ("--record", "--device", "--peaks", "--dtype"):
    parser.add_argument(name)
arguments, _ = parser.parse_known_args()
program = pathlib.Path(sys.argv[0])
side = program.parents[3].name
clock = program.with_suffix(".clock")
count = int(clock.read_text()) if clock.exists() else 0
clock.write_text(str(count + 1))
machine = synthetic.Machine(seed=zlib.crc32(f"{{side}} {{KERNEL}} {{count}}".encode()), commit=side[0] * 40)
machine.wait(minutes=count)
if arguments.record:
    with open(arguments.record, "a") as file:
        for line in machine.run(program.name, synthetic.kernel_cases(6, (KERNEL,)),
                                effects=[synthetic.Effect(PERCENT, kernel=KERNEL)]):
            print(json.dumps(line), file=file)
"""


class GateChangeTest(ScratchRepository):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.tree / "build.py").write_text(BUILD)
        (cls.tree / "bench.py").write_text(BENCH)
        cls.commit_side("base")

    @classmethod
    def commit_side(cls, message, **change):
        """Commits to main; a change to a branch of that name."""
        if change:
            git(cls.tree, "checkout", "-q", "-b", message, "main")
        (cls.tree / "toy.json").write_text(json.dumps(BASE | change))
        cls.commit_tree(message)
        git(cls.tree, "checkout", "-q", "main")

    @classmethod
    def commit_tree(cls, message):
        git(cls.tree, "add", ".")
        git(cls.tree, "commit", "-q", "--allow-empty", "-m", message)

    def test_with_a_gpu_a_model_of_real_size_is_made_once_and_kept(self):
        self.commit_side("real", percent=0)
        path = self.folder / "path"
        path.mkdir()
        (path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: simulated'\n")
        (path / "nvidia-smi").chmod(0o755)
        parity = self.tree / "scripts/maintain/parity"
        kept = self.folder / "kept"
        for made, text in ((0, "echo no torch >&2; exit 1"), (1, 'mkdir -p "$5"; echo {} >"$5/config.json"'), (1, "exit 1")):
            parity.write_text(f'#!/bin/bash\necho "making: $*"\n{text}\n')
            with mock.patch.dict(os.environ, {"PATH": f"{path}:{os.environ['PATH']}", "TOKLINE_MODELS": str(kept)}):
                code, output, verdict = self.gate("real", "--no-tests", device="cuda")
            self.assertEqual(code, 0, output)
            but = "" if made else (f", but the decoder ran a model of 1.2 MB, since {kept}/qwen3-0.6b is not there and "
                                   "cannot be made: no torch")
            self.assertEqual(verdict.splitlines()[0], f"## Same or faster{but}")
            self.assertEqual((kept / "qwen3-0.6b/config.json").exists(), bool(made))
        self.assertNotIn("making:", output, "what is there is kept")

    def gate(self, head, *arguments, device="cpu", rounds=3):
        """(exit code, output, verdict.md)"""
        self.out = self.folder / f"out-{head}"
        code, output = self.script("records", "gate_change", "--head", head, "--device", device, "--out", self.out,
                                   "--rounds", rounds, "--build-command", f"{sys.executable} build.py", *arguments)
        path = self.out / "verdict.md"
        return code, output, path.read_text() if path.exists() else ""

    def test_a_change_of_the_same_speed_passes_with_all_results(self):
        self.commit_side("same", percent=0)
        code, output, verdict = self.gate("same")
        self.assertEqual(code, 0, output)
        self.assertTrue(verdict.startswith("## Same or faster\n"), verdict)
        self.assertIn("| change | `" + git(self.tree, "rev-parse", "--short", "same") + "` | same |", verdict)
        self.assertIn("<html", (self.out / "report.html").read_text().lower())
        for side, letter in (("a", "b"), ("b", "h")):  # base and head: the first letter is the commit's
            header = json.loads((self.out / f"{side}.jsonl").read_text().splitlines()[0])
            self.assertEqual(header["fingerprint"]["commit"], letter * 40)

    def test_a_slower_change_fails_and_the_verdict_names_the_rows(self):
        self.commit_side("slower", percent=10)
        code, output, verdict = self.gate("slower", "--programs", "linear")
        self.assertEqual(code, 1, output)
        self.assertTrue(verdict.startswith("## Slower, or worse"), verdict)
        self.assertIn("linear", verdict)
        self.assertTrue((self.out / "report.html").exists())

    def test_a_bench_that_vanished_fails(self):
        self.commit_side("vanished", benches=["linear"])
        code, output, verdict = self.gate("vanished", "--no-tests", rounds=1)
        self.assertEqual(code, 1, output)
        self.assertIn("bench_norm", verdict)

    def test_a_failing_test_fails_before_anything_is_measured(self):
        self.commit_side("untested", tests="false")
        code, output, verdict = self.gate("untested")
        self.assertEqual(code, 1, output)
        self.assertTrue(verdict.startswith("## A test of the change fails\n"), verdict)
        self.assertIn("toy_test", verdict)
        self.assertFalse((self.out / "a.jsonl").exists())

    def test_a_change_that_does_not_build_fails_with_the_compilers_words(self):
        self.commit_side("broken", builds=False)
        code, output, verdict = self.gate("broken")
        self.assertEqual(code, 1, output)
        self.assertTrue(verdict.startswith("## The change does not build\n"), verdict)
        self.assertIn("toy.cc:1: error: it does not compile", verdict)

    def test_a_base_that_does_not_build_cannot_be_compared_with(self):
        self.commit_side("broken_base", builds=False)
        git(self.tree, "checkout", "-q", "-b", "repaired", "broken_base")
        (self.tree / "toy.json").write_text(json.dumps(BASE))
        git(self.tree, "commit", "-q", "-am", "repaired")
        git(self.tree, "checkout", "-q", "main")
        code, output, verdict = self.gate("repaired", "--base", "broken_base", "--no-tests")
        self.assertEqual(code, 3, output)
        self.assertTrue(verdict.startswith("## The base does not build"), verdict)

    @unittest.skipIf(GPU, "there is a GPU")
    def test_without_a_gpu_nothing_is_built(self):
        self.commit_side("anything", percent=1)
        code, output, verdict = self.gate("anything", device="cuda")
        self.assertEqual((code, verdict.splitlines()[0]), (77, "## No CUDA device: nothing was measured"), output)
        self.assertFalse((self.out / "a.jsonl").exists())

    def test_a_history_without_a_common_commit_is_refused(self):
        git(self.tree, "checkout", "-q", "--orphan", "foreign")
        git(self.tree, "commit", "-q", "-m", "foreign")
        git(self.tree, "checkout", "-q", "main")
        code, output, _ = self.gate("foreign")
        self.assertEqual(code, 2)
        self.assertIn("main and foreign have no merge base", output)

    def test_a_commit_that_main_already_has_is_no_change(self):
        code, output, _ = self.gate("main")
        self.assertEqual(code, 2)
        self.assertIn("there is no change to measure", output)

    def test_what_no_program_takes_is_said_before_anything_is_built(self):
        git(self.tree, "checkout", "-q", "-b", "named", "main")
        lines = self.tree / "CMakeLists.txt"
        lines.write_text("add_kernel(activation)\nadd_kernel(linear KERNELS activation)\nadd_library(shapes)\n")
        self.commit_tree("kernels")
        lines.write_text("add_kernel(linear)\n")
        self.commit_tree("fewer kernels")
        git(self.tree, "checkout", "-q", "main")
        side = ("--base", "named~1", "--head", "named", "--device", "cpu", "--no-install")
        for arguments, words in (
            (("--bogus",), "unknown argument '--bogus'; arguments of the bench programs go after --"),
            (("x", "--", "--dtype", "fp16"), "unknown argument 'x'; arguments of the bench programs go after --"),
            (("--programs", "bogus"), "--programs names 'bogus'; allowed: activation linear decoder"),
            (("--programs", "linear,decoder,shapes"), "--programs names 'shapes'; allowed: activation linear decoder"),
            (("--programs", ","), "--programs is ','; allowed: names with commas between"),
            (("--model", "./none"), "--model ./none has no config.json"),):
            with self.subTest(arguments):
                code, output = self.script("records", "gate_change", *side, "--out", self.folder / "out-misuse",
                                           *arguments)
                self.assertEqual((code, output), (2, f"gate_change: {words}\n"))

    def test_what_is_not_committed_is_named_and_not_measured(self):
        (self.tree / "new.cc").write_text("")
        self.addCleanup((self.tree / "new.cc").unlink)
        code, output = self.script("records", "gate_change", "--device", "cpu")
        self.assertEqual(code, 2)
        self.assertIn("not committed: new.cc", output)

    def test_without_a_build_command_cmake_builds_and_only_tests_of_the_device_run(self):
        git(self.tree, "checkout", "-q", "-b", "cmake", "main")
        (self.tree / "CMakeLists.txt").write_text(CMAKE)
        shutil.copy(ROOT / "CMakePresets.json", self.tree)
        self.commit_tree("a project")
        self.commit_tree("its change")
        git(self.tree, "checkout", "-q", "main")
        code, output = self.script("records", "gate_change", "--base", "cmake~1", "--head", "cmake", "--device", "cpu",
                                   "--rounds", 1, "--out", self.folder / "out-cmake", "--no-install", "--programs",
                                   "linear")
        if code == 2 and "--no-install was given; missing" in output:
            self.skipTest("the packages that the project is built with are not there")
        self.assertEqual(code, 0, output)
        self.assertIn("configuring preset cpu in", output)
        self.assertRegex(output, r"linear_test \.+ +Passed")
        self.assertNotIn("norm_test", output)

    def test_the_branch_and_the_files_stay_as_they_are(self):
        before = git(self.tree, "status", "--porcelain", "--branch"), git(self.tree, "stash", "list")
        self.commit_side("side", percent=2)
        _, output, verdict = self.gate("side", "--no-tests", "--programs", "linear", rounds=1)
        self.assertTrue(verdict.startswith("## "), output)
        self.assertEqual((git(self.tree, "status", "--porcelain", "--branch"), git(self.tree, "stash", "list")), before)


if __name__ == "__main__":
    unittest.main()
