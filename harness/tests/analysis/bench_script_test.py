"""scripts/bench over bench programs that stand in for the built ones: whose exit codes end it, and how."""

import os
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
import re, sys
kernel = NAME.removeprefix("bench_")
if sys.argv[1:2] == ["inspect"]:
    sys.exit(0)
if "--bogus" in sys.argv or f"--bogus-for-{{kernel}}" in sys.argv:
    print(f"{{NAME}}: unknown argument '--bogus'", file=sys.stderr)
    sys.exit(2)
pattern = next((each.partition("=")[2] for each in sys.argv if each.startswith("--benchmark_filter=")), "")
if not re.search(pattern, kernel) and NAME != "tokline":
    sys.exit(f"{{NAME}}: the filter matches none of the 3 cases")
if "--benchmark_list_tests=true" in sys.argv:
    sys.exit(0)
print("measured by " + NAME)
if "--record" in sys.argv and "--verify-only" not in sys.argv and NAME != "tokline":
    sys.path.insert(0, {str(ROOT / "harness/tests/analysis")!r})
    import synthetic
    lines = synthetic.Machine(seed=sum(kernel.encode())).run(NAME, synthetic.kernel_cases(3, (kernel,)))
    synthetic.write(sys.argv[sys.argv.index("--record") + 1], lines)
sys.exit(f"--fail-{{kernel}}" in sys.argv)
"""


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

    def bench(self, *arguments, expect):
        """What it said, and the names of the records that it left."""
        out = self.folder / self.id().rpartition(".")[2]
        with mock.patch.dict(os.environ, {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}):
            code, output = self.script("bench", "--no-install", "--cuda", "off", "--device", "cpu", "--out", out,
                                       *arguments)
        if code == 2 and "--no-install was given; missing" in output:
            self.skipTest("the packages that the project is built with are not there")
        self.assertEqual(code, expect, output)
        self.assertEqual(list(out.glob(".running*")), [])
        return output, sorted(path.name.split(".", 1)[1] for path in out.glob("*"))

    def test_all_programs_run_and_leave_one_record(self):
        output, records = self.bench(expect=0)
        self.assertEqual(output.count("measured by"), 4)
        self.assertEqual(records, ["jsonl"])

    def test_a_usage_error_ends_it_at_the_first_program(self):
        output, records = self.bench("--bogus", expect=2)
        self.assertEqual((output.count("unknown argument"), output.count("measured by"), records), (1, 0, []))
        self.assertIn("bench_alpha does not take its arguments\n", output)

    def test_what_was_measured_before_a_usage_error_is_kept(self):
        output, records = self.bench("--bogus-for-beta", expect=2)
        self.assertEqual((output.count("measured by"), records), (1, ["interrupted.jsonl"]))
        self.assertRegex(output, r"bench_beta does not take its arguments; measured until now: \S+.interrupted.jsonl")

    def test_a_filter_may_be_of_rows_of_one_kernel(self):
        output, records = self.bench("--benchmark_filter=beta", expect=0)
        self.assertEqual(output.count("measured by"), 2)  # and the decoder
        self.assertEqual(records, ["jsonl"])
        self.bench("--benchmark_filter=beta", "--verify-only", expect=0)

    def test_a_filter_that_matches_nothing_at_all_is_misuse(self):
        output, records = self.bench("--benchmark_filter=zzz", expect=2)
        self.assertEqual((output.count("measured by"), records), (0, []))
        self.assertIn("bench: the filter matches no row of any program\n", output)

    def test_a_program_that_fails_fails_it_filter_or_not(self):
        for more in ((), ("--benchmark_filter=beta",)):
            output, _ = self.bench("--fail-beta", *more, expect=1)
            self.assertIn("  bench_beta (exit 1)\n", output)

    def test_nothing_to_do_is_said_before_anything_is_built(self):
        for arguments, words in (
            (("--only", "decoder", "--verify-only"), "--verify-only compares kernels with references"),
            (("--only", ","), "--only ',' names nothing; allowed: alpha beta gamma decoder"),):
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
