"""scripts/bench over bench programs that stand in for the built ones: whose exit codes end it, and how."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

from scratch_repository import ROOT, ScratchRepository

KERNELS = ("alpha", "beta", "gamma")

# Configures nothing, and builds the stand-ins.
CMAKE = f"""#!{sys.executable}
import pathlib, sys
if sys.argv[1] == "--version":
    print("cmake version 3.28.0")
elif sys.argv[1] == "--build":
    folder = pathlib.Path(sys.argv[2], "bin")
    folder.mkdir(exist_ok=True)
    for name in {["tokline", *(f"bench_{kernel}" for kernel in KERNELS)]}:
        lines = "#!{sys.executable}", f"NAME = {{name!r}}", pathlib.Path("program.py").read_text()
        (folder / name).write_text("\\n".join(lines))
        (folder / name).chmod(0o755)
"""

# What benches/runner.cc does with these arguments.
PROGRAM = f"""
import pathlib, re, sys
kernel = NAME.removeprefix("bench_")
if sys.argv[1:2] == ["inspect"]:
    sys.exit(0)
if "--bogus" in sys.argv or f"--bogus-for-{{kernel}}" in sys.argv:
    print(f"{{NAME}}: unknown argument '--bogus'", file=sys.stderr)
    sys.exit(2)
pattern = next((each.partition("=")[2] for each in sys.argv if each.startswith("--benchmark_filter=")), "")
if not re.search(pattern, kernel) and NAME != "tokline":
    sys.exit(f"{{NAME}}: the filter matches none of the 3 cases")
if "--shapes" in sys.argv and kernel not in pathlib.Path(sys.argv[sys.argv.index("--shapes") + 1]).read_text() \\
        and NAME != "tokline":
    print(f"{{NAME}}: mine.json: no shapes of family 'x'", file=sys.stderr)
    sys.exit(2)
if "--benchmark_list_tests=true" in sys.argv:
    sys.exit(0)
print("measured by " + NAME, file=sys.stderr)
print("table of " + NAME)
if "--record" in sys.argv and "--verify-only" not in sys.argv and NAME != "tokline":
    sys.path.insert(0, {str(ROOT / "harness/tests/analysis")!r})
    import synthetic
    lines = synthetic.Machine(seed=sum(kernel.encode())).run(NAME, synthetic.kernel_cases(3, (kernel,)))
    if "--sweep" in sys.argv:
        for number, line in enumerate(lines[1:-1]):
            line["shape"]["name"] = f"sweep:7:{{number}}"
    synthetic.write(sys.argv[sys.argv.index("--record") + 1], lines)
if f"--hang-{{kernel}}" in sys.argv:
    import time
    print("hanging", file=sys.stderr, flush=True)
    time.sleep(60)
sys.exit(f"--fail-{{kernel}}" in sys.argv)
"""

# The cat of a disk that is full before it has all records.
FULL = """#!/bin/sh
case $1 in *.running.*) head -c 100 "$1"; echo "cat: write error: No space left on device" >&2; exit 1 ;; esac
exec /bin/cat "$@"
"""

KEPT = r"rows measured until then: 3 of alpha, 3 of beta: \S+\.interrupted\.jsonl\n"


class BenchScriptTest(ScratchRepository):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.tree / "program.py").write_text(PROGRAM)
        (cls.tree / "CMakePresets.json").write_text((ROOT / "CMakePresets.json").read_text())
        (cls.tree / "CMakeLists.txt").write_text("".join(f"add_kernel({kernel})\n" for kernel in KERNELS))
        model = cls.tree / "models" / "qwen3-lookup"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        (cls.folder / "bin").mkdir()
        (cls.folder / "bin" / "cmake").write_text(CMAKE)
        (cls.folder / "bin" / "cmake").chmod(0o755)

    def run_bench(self, out, *arguments):
        """Its exit code, and what it said."""
        with mock.patch.dict(os.environ, {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}):
            return self.script("bench", "--no-install", "--cuda", "off", "--device", "cpu", "--out", out, *arguments)

    def bench(self, *arguments, expect):
        """What it said, and the names of the records that it left."""
        out = self.folder / self.id().rpartition(".")[2]
        code, output = self.run_bench(out, *arguments)
        if code == 2 and "--no-install was given; missing" in output:
            self.skipTest("the packages that the project is built with are not there")
        self.assertEqual(code, expect, output)
        self.assertEqual(list(out.glob(".running*")), [])
        return output, sorted(path.name.split(".", 1)[1] for path in out.glob("*"))

    def start(self, *arguments):
        """scripts/bench in a process group of its own whose second program hangs; returns when it does."""
        self.out = self.folder / self.id().rpartition(".")[2]
        line = [self.tree / "scripts" / "bench", "--no-install", "--cuda", "off", "--device", "cpu", "--out", self.out,
                "--hang-beta", *arguments]
        env = os.environ | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        process = subprocess.Popen(line, cwd=self.tree, env=env, stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        self.addCleanup(self.kill, process)
        for said in process.stdout:
            if "--no-install was given; missing" in said:
                self.skipTest("the packages that the project is built with are not there")
            if said == "hanging\n":
                return process
        return self.fail("it ended before it hung")

    def kill(self, process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()

    def rows_kept(self):
        kept, = self.out.glob("*.interrupted.jsonl")
        self.assertEqual(list(self.out.glob(".running*")), [])
        return [line["kernel"] for line in map(json.loads, kept.read_text().splitlines()) if line["kind"] == "row"]

    def test_whatever_signal_ends_it_what_was_measured_is_kept_and_named(self):
        for number, code, words in ((signal.SIGHUP, 129, "hung up"), (signal.SIGTERM, 130, "interrupted"),
                                    (signal.SIGINT, 130, "interrupted")):
            with self.subTest(number.name):
                process = self.start()
                os.kill(process.pid, number)
                output = process.stdout.read()
                self.assertEqual(process.wait(20), code, output)
                self.assertRegex(output, rf"{words}; {KEPT}")
                self.assertEqual(self.rows_kept(), ["alpha"] * 3 + ["beta"] * 3)
                shutil.rmtree(self.out)

    def test_a_reader_that_leaves_costs_no_row(self):
        process = self.start()
        process.stdout.close()  # the next line that it writes fails
        beta, = [int(pid) for pid in subprocess.run(["pgrep", "-g", str(process.pid), "-f", "bench_beta"],
                                                    capture_output=True, text=True).stdout.split()]
        os.kill(beta, signal.SIGKILL)
        self.assertEqual(process.wait(20), 141)
        self.assertEqual(self.rows_kept(), ["alpha"] * 3 + ["beta"] * 3)

    def test_what_a_killed_run_measured_is_kept_by_the_next(self):
        process = self.start()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.kept_by_the_next()

    def kept_by_the_next(self):
        code, output = self.run_bench(self.out, "--bogus")
        self.assertEqual(code, 2)
        self.assertRegex(output, f"an earlier run did not finish; {KEPT}")
        self.assertEqual(self.rows_kept(), ["alpha"] * 3 + ["beta"] * 3)

    def test_what_a_full_disk_cannot_take_in_one_file_stays_and_is_kept_by_the_next(self):
        cat = self.folder / "bin" / "cat"
        for interrupted in (False, True):
            cat.write_text(FULL)
            cat.chmod(0o755)
            self.addCleanup(cat.unlink, missing_ok=True)
            if interrupted:
                process = self.start()
                os.kill(process.pid, signal.SIGINT)
                output, code = process.stdout.read(), process.wait(20)
            else:
                self.out = self.folder / "full"
                code, output = self.run_bench(self.out, "--only=alpha,beta")
                if "--no-install was given; missing" in output:
                    self.skipTest("the packages that the project is built with are not there")
            self.assertEqual(code, 130 if interrupted else 1, output)
            self.assertNotIn("nothing was measured", output)
            left, = self.out.iterdir()
            self.assertRegex(output, rf"what was measured is in \S+/{left.name}: ")
            self.assertEqual(sorted(path.name for path in left.iterdir()), ["alpha.jsonl", "beta.jsonl"])
            cat.unlink()
            self.kept_by_the_next()

    def test_all_programs_run_and_leave_one_record(self):
        output, records = self.bench(expect=0)
        self.assertEqual(output.count("measured by"), 4)
        self.assertEqual(records, ["jsonl"])
        self.assertNotIn("table of", output)  # the figures are in the tables at the end
        self.assertEqual(output.count("median µs"), 1)

    def test_what_was_only_verified_is_shown_by_the_programs(self):
        output, records = self.bench("--verify-only", expect=0)
        self.assertEqual((output.count("table of bench_"), records), (3, []))

    def test_a_sweep_is_summed_up_and_leaves_the_decoder_out(self):
        output, records = self.bench("--sweep=3", "--seed", "7", expect=0)
        self.assertEqual((output.count("measured by"), records), (3, ["jsonl"]))
        self.assertIn("9 drawn shapes verified, 0 rows refused", output)
        self.assertIn("--sweep: decoder not run", output)
        output, _ = self.bench("--sweep=3", "--only=alpha,decoder", expect=0)
        self.assertEqual(output.count("measured by"), 2)

    def test_a_usage_error_ends_it_at_the_first_program(self):
        output, records = self.bench("--bogus", expect=2)
        self.assertEqual((output.count("unknown argument"), output.count("measured by"), records), (1, 0, []))
        self.assertIn("bench_alpha does not take its arguments\n", output)

    def test_what_was_measured_before_a_usage_error_is_kept(self):
        output, records = self.bench("--bogus-for-beta", expect=2)
        self.assertEqual((output.count("measured by"), records), (1, ["interrupted.jsonl"]))
        self.assertRegex(output, r"bench_beta does not take its arguments; rows measured until then: 3 of alpha: \S+")

    def test_a_filter_may_be_of_rows_of_one_kernel(self):
        output, records = self.bench("--benchmark_filter=beta", expect=0)
        self.assertEqual(output.count("measured by"), 2)  # and the decoder
        self.assertEqual(records, ["jsonl"])
        self.bench("--benchmark_filter=beta", "--verify-only", expect=0)

    def test_a_filter_that_matches_nothing_at_all_is_misuse(self):
        output, records = self.bench("--benchmark_filter=zzz", expect=2)
        self.assertEqual((output.count("measured by"), records), (0, []))
        self.assertIn("bench: --shapes, --axis and --benchmark_filter leave no row of any program\n", output)

    def test_shapes_may_be_of_some_kernels_and_paths_are_those_of_the_caller(self):
        here = self.folder / "elsewhere"
        here.mkdir()
        (here / "mine.json").write_text('{"beta": 1}')
        with mock.patch.dict(os.environ, {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}):
            link = here / "link"
            link.symlink_to(self.tree / "scripts" / "bench")
            for script, shapes, code, measured in ((self.tree / "scripts" / "bench", "mine.json", 0, 2),
                                                   (link, "mine.json", 0, 2), (link, "none.json", 2, 0)):
                done = subprocess.run([script, "--no-install", "--cuda", "off", "--device", "cpu", "--out", "o",
                                       "--shapes", shapes], cwd=here, capture_output=True, text=True,
                                      env=os.environ | {"TOKLINE_PYTHON": sys.executable})
                output = done.stdout + done.stderr
                if "--no-install was given; missing" in output:
                    self.skipTest("the packages that the project is built with are not there")
                self.assertEqual((done.returncode, output.count("measured by")), (code, measured), output)
        self.assertEqual(len(list((here / "o").glob("*.jsonl"))), 2)

    def test_an_unknown_option_is_refused_before_anything_is_built(self):
        options = self.tree / "benches" / "options.cc"
        options.parent.mkdir()
        self.addCleanup(shutil.rmtree, options.parent)
        shutil.copy(ROOT / "benches/options.cc", options)
        for arguments, words in ((("--bogus=1",), "unknown argument '--bogus=1'; "), (("x",), "unexpected argument 'x'; "),
                                 (("--samples", "15", "x"), "unexpected argument 'x'; "),
                                 (("--samples=15", "x"), "unexpected argument 'x'; ")):
            output, _ = self.bench(*arguments, expect=2)
            self.assertRegex(output, rf"^bench: {words}.*\n$")
        for known in ("--samples=15", "--dtype", "--max-seconds", "--benchmark_filter=beta"):
            output, _ = self.bench(known, expect=0)

    def test_a_program_that_fails_fails_it_filter_or_not(self):
        for more in ((), ("--benchmark_filter=beta",)):
            output, _ = self.bench("--fail-beta", *more, expect=1)
            self.assertIn("  bench_beta (exit 1)\n", output)

    def test_nothing_to_do_is_said_before_anything_is_built(self):
        for arguments, words in (
            (("--only", "decoder", "--verify-only"), "--verify-only compares kernels with references"),
            (("--sweep=x",), "--sweep is 'x'; allowed: 1 to 10000"), (("--verify-only=1",), "--verify-only takes no value"),
            (("--sweep=10001",), "--sweep is '10001'; allowed: 1 to 10000"),
            (("--only", "--verify-only"), "--only needs a value"), (("--shapes", "."), "there is no such file"),
            (("--benchmark_out=x",), "--benchmark_out: every program would write the same file"),
            (("--format=csv",), "--format: the table at the end has one; see scripts/records table --markdown"),
            (("--device", "one"), "--device is 'one'; allowed: cpu, cuda, or the number of a GPU"),
            (("--device", "1"), "--device is 1; CUDA_VISIBLE_DEVICES is '3'"),
            (("--only", ","), "--only ',' names nothing; allowed: alpha beta gamma decoder"),):
            with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "3"}):
                output, _ = self.bench(*arguments, expect=2)
            self.assertIn(words, output)
            self.assertEqual(len(output.splitlines()), 1)

    def test_the_built_programs_say_so_of_a_filter_in_these_words(self):
        program = Path(os.environ.get("TOKLINE_BIN_DIR", ""), "bench_activation")
        if not os.access(program, os.X_OK):
            self.skipTest("bench_activation is not built in TOKLINE_BIN_DIR")
        for more in ((), ("--benchmark_list_tests=true",)):
            line = [program, "--device", "cpu", "--benchmark_filter=zzz", *more]
            done = subprocess.run(line, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"bench_activation: the filter matches none of the \d+ cases")


if __name__ == "__main__":
    unittest.main()
