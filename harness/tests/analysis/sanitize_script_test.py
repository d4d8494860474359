"""scripts/maintain/sanitize with programs that stand for a GPU's and for compute-sanitizer: what runs under which tool."""

import json
import os
import subprocess
import unittest
from pathlib import Path

from folder_case import FolderTest

ROOT = Path(__file__).resolve().parents[3]
KERNELS = sorted(path.name for path in (ROOT / "kernels").iterdir() if (path / "README.md").is_file())
# Finds what a file beside the program holds that is named after the tool.
SANITIZER = """#!/usr/bin/env bash
[[ $1 != --version ]] || { echo "Version 1.2.3"; exit; }
tool=$2
for program; do [[ $program != */* ]] || break; done
echo "[  PASSED  ] 2 tests."
echo "========= ERROR SUMMARY: 0 errors"
[[ ! -e $program.$tool ]] || { cat "$program.$tool"; exit 9; }
"""


class SanitizeScriptTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.program("path/compute-sanitizer", SANITIZER)
        self.program("path/nvidia-smi", "#!/bin/sh\necho 'GPU 0: simulated'\n")
        self.program("bin/tokline", "#!/bin/sh\necho 'tokline 0.1.0 (commit 0123abc, with CUDA)'\n")
        for name in [*KERNELS, "decoder", "decoder_golden", "divergence", "coherence", "trained_model", "backend",
                     "launch_timer", "independent_timing", "step_profiler", "ops_in_place", "device_memory",
                     "work_stream", "cheats"]:
            self.program(f"bin/{name}_cuda_test", "#!/bin/sh\n")

    def sanitize(self, *arguments, expect, command=()):
        done = subprocess.run(
            [*command, ROOT / "scripts/maintain/sanitize", "--bin", self.folder / "bin", "--out", self.folder / "out.json",
             *arguments],
            env=os.environ | {"PATH": f"{self.folder / 'path'}:{os.environ['PATH']}"},
            text=True, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=120)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return json.loads((self.folder / "out.json").read_text())["runs"]

    def test_kernels_run_under_every_tool_and_the_decoder_under_racecheck(self):
        self.assertIn("chunk_decode", KERNELS)
        ran = {}
        for run in self.sanitize(expect=0):
            ran.setdefault(run["program"].removesuffix("_cuda_test"), []).append(run["tool"])
        self.assertGreater(ran["chunk_decode"].count("memcheck"), 1)
        for kernel in KERNELS:
            self.assertEqual(sorted(set(ran.pop(kernel))), ["initcheck", "memcheck", "racecheck", "synccheck"], kernel)
        self.assertEqual({name: sorted(tools) for name, tools in ran.items()}, {
            "backend": ["memcheck", "racecheck"], "decoder": ["memcheck", "racecheck"],
            "decoder_golden": ["memcheck"], "divergence": ["memcheck"]})

    def test_every_filter_names_tests_that_there_are(self):
        sources = "".join(path.read_text() for path in (ROOT / "harness/tests").rglob("*_cuda_test.cc"))
        for run in self.sanitize(expect=0):
            for pattern in run["filter"].lstrip("-").split(":"):
                for part in filter(None, pattern.split("*")):
                    self.assertTrue(part in sources or part in ("qwen3_tiny", "llama_biased"), run)

    def test_the_parts_of_a_program_are_all_of_its_tests(self):
        filters = [run["filter"] for run in self.sanitize("--only", "chunk_decode", expect=0)
                   if run["tool"] == "memcheck"]
        parts = [one for one in filters if not one.startswith("-")]
        rest = [set(one[1:].split(":")) for one in filters if one.startswith("-")]
        self.assertEqual(rest, [set(":".join(parts).split(":"))])

    def test_a_finding_in_one_part_fails(self):
        self.program("path/compute-sanitizer", SANITIZER.replace(
            "for program;", '[[ $* != *"=*AnyGrid*"* ]] || exit 9\nfor program;'))
        runs = self.sanitize("--only", "chunk_decode", expect=1)
        self.assertEqual([(run["tool"], run["filter"]) for run in runs if run["exit"]],
                         [("memcheck", "*AnyGrid*:*PartsOfWarps*")])

    def test_an_ended_script_keeps_its_runs_and_leaves_none_behind(self):
        self.program("path/compute-sanitizer", SANITIZER.replace(
            "for program;", f'[[ $* != *linear* ]] || {{ echo $$ >>{self.folder}/pids; exec sleep 60; }}\nfor program;'))
        with self.assertRaises(AssertionError):  # ended by the limit
            self.sanitize("--only", "^(linear|norm)_", "--jobs", "20", expect=0, command=["timeout", "3"])
        kept = [json.loads(line)["program"] for line in (self.folder / "out.json.unfinished").read_text().splitlines()]
        self.assertEqual(set(kept), {"norm_cuda_test"})
        for pid in (self.folder / "pids").read_text().split():
            self.assertFalse(Path("/proc", pid).exists())
        self.program("path/compute-sanitizer", SANITIZER)
        self.sanitize("--only", "^(linear|norm)_", expect=0)
        self.assertFalse((self.folder / "out.json.unfinished").exists())

    def test_what_ended_before_the_script_was_ended_is_not_run_again(self):
        (self.folder / "bin/norm_cuda_test.synccheck").touch()
        self.sanitize("--only", "^(embedding|norm)_", expect=1)
        self.program("path/compute-sanitizer", SANITIZER.replace("tool=$2", f'tool=$2; echo "$@" >>{self.folder}/calls'))
        (self.folder / "bin/norm_cuda_test.synccheck").unlink()
        kept = self.folder / "out.json.unfinished"
        lines = kept.read_text().splitlines(keepends=True)
        kept.write_text("".join(line for line in lines if '"racecheck", "program": "embedding' not in line))
        runs = self.sanitize("--only", "^(embedding|norm)_", "--resume", expect=1)  # what failed stays so
        self.assertEqual(len((self.folder / "calls").read_text().splitlines()), 1)
        self.assertEqual(len(runs), 8)
        self.assertEqual([(run["tool"], run["program"]) for run in runs if run["exit"]], [("synccheck", "norm_cuda_test")])
        self.program("bin/tokline", "#!/bin/sh\necho 'tokline 0.1.0 (commit 4567def, with CUDA)'\n")
        self.sanitize("--only", "^(embedding|norm)_", "--resume", expect=0)  # nothing of another commit counts
        self.assertEqual(len((self.folder / "calls").read_text().splitlines()), 9)

    def test_a_run_that_lacks_gpus_is_listed_as_skipped(self):
        self.program("path/compute-sanitizer", SANITIZER.replace(
            "for program;", '[[ $* != *sharded* ]] || exit 77\nfor program;'))
        self.program("bin/sharded_decode_cuda_test", "#!/bin/sh\n")
        runs = self.sanitize("--only", "sharded|norm_", expect=0)
        self.assertEqual([(run["tool"], run["program"]) for run in runs if run["exit"] == 77],
                         [("memcheck", "sharded_decode_cuda_test")])
        self.program("path/compute-sanitizer", SANITIZER.replace(
            "for program;", '[[ $* != *sharded* ]] || exit 7\nfor program;'))
        self.sanitize("--only", "sharded", expect=1)
        self.program("path/compute-sanitizer", SANITIZER.replace("for program;", "exit 77\nfor program;"))
        self.sanitize("--only", "norm_", expect=1)  # a kernel's tests need one GPU, and skipping them all is no pass

    def test_a_filter_that_matches_no_test_fails(self):
        for words in ("[  PASSED  ] 0 tests.", "no summary"):
            self.program("path/compute-sanitizer", SANITIZER.replace("[  PASSED  ] 2 tests.", words))
            runs = self.sanitize("--only", "norm_", "--tools", "memcheck", expect=1)
            self.assertEqual({(run["exit"], run["passed"]) for run in runs}, {(0, "0" if "0" in words else "")})
            self.assertTrue((self.folder / "out.json.unfinished").exists())

    def test_what_initcheck_cannot_see_is_excluded_in_its_program_alone(self):
        self.program("path/compute-sanitizer", SANITIZER.replace("tool=$2", f'tool=$2; echo "$@" >>{self.folder}/calls'))
        runs = self.sanitize("--only", "linear|norm", expect=0)
        programs = {"all_reduce_norm_cuda_test": "ncclDevKernel", "linear_cuda_test": "ActivationKernel"}
        told = sorted((run["tool"], run["program"]) for run in runs if run["options"])
        self.assertEqual(told, [("initcheck", program) for program in programs])
        calls = (self.folder / "calls").read_text().splitlines()
        for program, kernel in programs.items():
            excluded = [call for call in calls if f"--kernel-name-exclude kns={kernel}" in call]
            self.assertEqual(len(excluded), 1)
            self.assertRegex(excluded[0], rf"^--tool initcheck .*/{program} ")

    def test_a_finding_of_any_tool_fails(self):
        for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
            mark = self.folder / f"bin/linear_cuda_test.{tool}"
            mark.touch()
            runs = self.sanitize("--only", "linear|norm", expect=1)
            failed = {(run["program"], run["tool"]) for run in runs if run["exit"]}
            self.assertEqual(failed, {("linear_cuda_test", tool)})
            alone = self.sanitize("--only", "linear", "--tools", "memcheck", expect=int(tool == "memcheck"))
            self.assertEqual({run["tool"] for run in alone}, {"memcheck"})
            mark.unlink()

    def test_only_races_within_cublaslt_are_counted_apart(self):
        found = self.folder / "bin/linear_cuda_test.racecheck"
        library = "Race reported between Write access at nvjet_tst_64x8\n"
        for text, exit_code in ((library, 0), (library + "Race reported between Write access at Skinny\n", 1),
                                (library + "[  FAILED  ] A.B\n", 1), ("Internal Sanitizer Error\n", 1)):
            found.write_text(text)
            runs = self.sanitize("--only", "linear", expect=exit_code)
            race = next(run for run in runs if run["tool"] == "racecheck")
            self.assertEqual(race["races_in_cublaslt"], text.count("nvjet"))

    def test_only_copies_into_decode_steps_ring_against_its_readers_are_counted_apart(self):
        found = self.folder / "bin/decode_step_cuda_test.racecheck"
        copy = "========= Error: Race reported between Write access at tokline::ptx::BulkCopyToShared(unsigned int)+0x2 in a:39\n"
        read = ("=========     and Read access at tokline::ptx::LdMatrixX4(unsigned int (&)[4], unsigned int)+0xe1 in b:16\n"
                "=========     and Read access at tokline::decode_step::WarpState<tokline::decode_step::Policy<(int)4>>::Add("
                "const unsigned int (&)[4][2])::[lambda(int) (instance 1)]::operator ()(int) const+0xe1 in b:16\n"
                "=========     and Read access at tokline::decode_step::LoadShared16(unsigned int)+0x11 in c:54 [9 hazards]\n")
        other = "=========     and Read access at tokline::decode_step::TakePacket(unsigned int)+0x11 in d:7 [9 hazards]\n"
        for text, exit_code in ((copy + read, 0), (copy + other + 1000 * read, 1), (copy + read.replace("Read", "Write"), 1),
                                (copy.replace("Bulk", "Other") + read, 1)):
            found.write_text(text)
            runs = self.sanitize("--only", "decode_step", expect=exit_code)
            race = next(run for run in runs if run["tool"] == "racecheck")
            self.assertEqual(race["ring_releases"], 1 - exit_code)


if __name__ == "__main__":
    unittest.main()
