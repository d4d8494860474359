"""How programs and scripts end with input that they cannot use: exit code, one clear line, and so much time and memory.

One table. A case that takes longer, takes more memory, says more, or says it with control characters, fails.
"""

import dataclasses
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import synthetic

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(os.environ.get("TOKLINE_BIN_DIR", ""))
PYTHON = [sys.executable, "-m", "tokline"]
CONFIG = ROOT / "harness/tests/golden/qwen3_tiny"
MOST_SECONDS, MOST_MIB = 10, 1500  # of processor time, and resident
ESCAPE = "\033[31m"


@dataclasses.dataclass
class Case:
    """`command` may name files of the folder as {folder}; `says` must be found in the last line of standard error, and
    `shows` on standard output."""
    name: str
    command: list
    code: int
    says: str
    stdin: str = "/dev/null"
    lines: int = 1  # on standard error
    shows: str = "^"
    env: dict = dataclasses.field(default_factory=dict)
    shell: str = ""  # feeds standard input


def tokline(*arguments):
    return [BIN / "tokline", *arguments]


def bench(*arguments):
    return tokline("bench", "--device", "cpu", *arguments)


SCRIPTS = sorted(str(path.relative_to(ROOT / "scripts")) for folder in ("scripts", "scripts/maintain")
                 for path in (ROOT / folder).iterdir() if path.is_file())

CASES = [
    # Weights, files and formats.
    Case("nan weights", tokline("generate", "--model", "{folder}/nan", "--prompt-ids", "1"), 1,
         r'tensor "model.norm.weight" has elements that are NaN or infinite'),
    Case("infinite weights", bench("--model", "{folder}/inf"), 1,
         r'tensor "model.norm.weight" has elements that are NaN or infinite'),
    Case("a gguf file", tokline("inspect", "--model", "{folder}/model.gguf"), 1, r"scripts/model --gguf FILE"),
    Case("a folder with a gguf", tokline("inspect", "--model", "{folder}/gguf"), 1, r"scripts/model --gguf FILE"),
    Case("a safetensors file of 8 bytes", tokline("inspect", "--model", "{folder}/short"), 1,
         r"the file has 8 bytes; a safetensors file has at least 9"),
    # Endless and long input.
    Case("a turn of 100 MB", tokline("chat", "--device", "cpu"), 1, r"a turn is longer than the 4194304 bytes",
         shell="head -c 100000000 /dev/zero | tr '\\0' a"),
    Case("an endless workload", bench("--workload", "/dev/zero"), 2, r"/dev/zero has a line of more than"),
    Case("a workload of endless requests", bench("--workload", "/dev/stdin"), 2, r"more than the 1000000 requests",
         shell="yes '{\"prompt_tokens\": 4, \"new_tokens\": 2}'"),
    Case("an endless record", [*PYTHON, "table", "/dev/zero"], 1, r"/dev/zero: holds no records: at most 64 MiB"),
    # Workloads.
    Case("a workload that waits for years", bench("--workload", "synthetic:requests=3,rate=1e-9"), 2,
         r"the last request of .* arrives after .* s; at most 604800 are allowed"),
    Case("a part given twice", bench("--workload", "synthetic:requests=3,requests=4"), 2, r'"requests" is given twice'),
    Case("a key given twice", bench("--workload", "{folder}/twice.jsonl"), 2, r'twice.jsonl:1: .*"new_tokens" occurs twice'),
    Case("an unknown part in quotes", bench("--workload", "synthetic:'x'=3"), 2, r"""unknown part "'x'";"""),
    Case("too many prompt tokens", bench("--workload", "synthetic:requests=1000000,prompt=1000000"), 2,
         r"prompt tokens; at most 268435456 are allowed"),
    # Flags.
    Case("a mistyped flag", tokline("generate", "--tempertaure", "1"), 2, r"did you mean --temperature\?"),
    Case("a page size by its flag", tokline("generate", "--page-size", "24"), 2, r'--page-size is "24"; it must be a power'),
    Case("a context by its flag", tokline("inspect", "--context", "5000"), 2, r"--context is 5000; the model has 4096"),
    Case("weights that are not random", bench("--weights", "rnd"), 2, r'--weights is "rnd"; it must be random or'),
    Case("a format of nobody", [BIN / "bench_norm", "--device=cpu", "--benchmark_format=bogus"], 2,
         r"--benchmark_format does nothing here, since the program itself measures and prints: see .* --format"),
    Case("a cascade of 2e9 sequences",
         [BIN / "bench_chunk_decode", "--device=cpu", "--shapes", "{folder}/cascade.json"], 2,
         r"cascade: a: 'batch' is 2000000000; it must be a whole number from 1 to 65536"),
    Case("a name with an escape", tokline("inspect", "--model", f"/tmp/{ESCAPE}red"), 1, r"\\x1b\[31mred"),
    Case("a shape whose name has an escape", [BIN / "bench_norm", "--device=cpu", "--shapes", "{folder}/escape.json"], 2,
         r"norm: \\x1b\[31mred: 'hidden' is missing"),
    # Scripts.
    Case("a page on standard output", [*PYTHON, "report", "{folder}/run.jsonl", "-o", "-"], 2, r"-o is '-': it names a file"),
    Case("a file gated against itself", [*PYTHON, "gate", "--baseline", "{folder}/run.jsonl", "--candidate",
                                         "{folder}/run.jsonl"], 0, r"every row is compared with itself"),
    Case("rounds beyond counting", [*PYTHON, "gate", "--ab", "/bin/true", "/bin/true", "--rounds", "9" * 20], 2,
         r"--rounds: is '9+'; it must be a whole number from 1 to 99999; see --help"),
    Case("noise without an exponent", [*PYTHON, "blame", "{folder}/decoder.jsonl", "{folder}/decoder.jsonl", "--noise",
                                       "40"], 0, "^", lines=0, shows=r"no difference beyond noise .*, noise \d{3} us\)"),
    Case("an ablation without a model", [*PYTHON, "ablate", "--bin", BIN / "tokline", "--device", "cpu", "--batch", "1",
                                         "--", "--rounds", "1", "--prompt-tokens", "4", "--new-tokens", "2", "--only",
                                         "fused_mlp"], 0, "^", lines=0, shows="qwen3-lookup batch 1, "),
    Case("an unknown option with an escape", [*PYTHON, "table", "x", f"--{ESCAPE}"], 2, r"arguments: --\\x1b\[31m; see"),
    Case("an argument of a script with an escape", [ROOT / "scripts/test", "--cuda", ESCAPE], 2, r"is '\\x1b\[31m'; all"),
    Case("a report with the backend of a notebook",
         [*PYTHON, "report", "{folder}/run.jsonl", "-o", "{folder}/report.html"], 0, "^", lines=0,
         env={"MPLBACKEND": "module://matplotlib_inline.backend_inline"}),
    Case("a table in ASCII", [*PYTHON, "table", "{folder}/run.jsonl"], 0, "^", lines=0,
         env={"PYTHONIOENCODING": "ascii"}),
    Case("a comparison in ASCII", [*PYTHON, "compare", "{folder}/run.jsonl", "{folder}/run.jsonl"], 0, "^", lines=None,
         env={"PYTHONIOENCODING": "ascii"}),
    Case("a record whose names have escapes", [*PYTHON, "table", "{folder}/escape.jsonl"], 0, "^", lines=None),
    Case("jobs beyond counting", [ROOT / "scripts/bench", "--jobs", "9" * 20], 2, r"--jobs is '9+'; allowed: 1 to 9999"),
    *(Case(f"a link to {name}", ["{folder}/links/" + name.replace("/", " "), "--help"], 0, "^", lines=0, shows="(?i)usage: ")
      for name in SCRIPTS),
    Case("an unknown option of the benches", [ROOT / "scripts/bench", "--bogus=1"], 2, r"unknown argument '--bogus=1'"),
]


class EndingsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        machine = synthetic.Machine(seed=1)
        lines = machine.run("bench_x", synthetic.kernel_cases(6))
        synthetic.write(cls.folder / "run.jsonl", lines)
        for line in lines:
            if "shape" in line:
                line["shape"]["name"] = ESCAPE + line["shape"]["name"]
        synthetic.write(cls.folder / "escape.jsonl", lines)
        synthetic.write(cls.folder / "decoder.jsonl", machine.decoder_run())
        (cls.folder / "links").mkdir()
        for name in SCRIPTS:
            (cls.folder / "links" / name.replace("/", " ")).symlink_to(ROOT / "scripts" / name)
        (cls.folder / "twice.jsonl").write_text('{"prompt_tokens": 4, "new_tokens": 2, "new_tokens": 3}\n')
        (cls.folder / "cascade.json").write_text(json.dumps({"cascade": [
            {"name": "a", "batch": 2000000000, "shared": 16, "unique": 16, "hq": 4, "hk": 2}]}))
        (cls.folder / "escape.json").write_text(json.dumps({"norm": [
            {"name": ESCAPE + "red", "kind": "rmsnorm", "tokens": [1]}]}))
        (cls.folder / "model.gguf").write_bytes(b"GGUF")
        for name in ("gguf", "short", "nan", "inf"):
            (cls.folder / name).mkdir()
            (cls.folder / name / "config.json").write_bytes((CONFIG / "config.json").read_bytes())
        (cls.folder / "gguf" / "m.gguf").write_bytes(b"GGUF")
        (cls.folder / "short" / "model.safetensors").write_bytes(b"\1" + b"\0" * 7)
        for name, bits in (("nan", b"\xc0\x7f"), ("inf", b"\x80\xff")):
            cls.spoil(cls.folder / name / "model.safetensors", bits)

    @staticmethod
    def spoil(path, bits):
        """The tiny checkpoint with one element of its final norm replaced."""
        data = bytearray((CONFIG / "model.safetensors").read_bytes())
        size = int.from_bytes(data[:8], "little")
        tensor = json.loads(data[8:8 + size])["model.norm.weight"]
        assert tensor["dtype"] == "BF16", tensor
        at = 8 + size + tensor["data_offsets"][1] - 2
        data[at:at + 2] = bits
        path.write_bytes(data)

    def end(self, case):
        """(exit code, standard output, standard error, seconds of processor time, MiB)"""
        command = [str(word).replace("{folder}", str(self.folder)) for word in case.command]
        if case.shell:
            command = ["bash", "-c", f'{case.shell} | "$@"', "-", *command]
        env = os.environ | {"PYTHONPATH": str(ROOT / "scripts/python"), "NO_COLOR": "1"} | case.env
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return done.returncode, done.stdout.decode(), done.stderr.decode(), seconds, after.ru_maxrss / 1024

    def test_every_case(self):
        for case in CASES:
            program = case.command[0]
            if BIN in getattr(program, "parents", ()) and not os.access(program, os.X_OK):
                continue
            with self.subTest(case.name):
                code, out, err, seconds, mib = self.end(case)
                self.assertEqual(code, case.code, err)
                if case.lines is not None:
                    self.assertEqual(len(err.splitlines()), case.lines, err)
                self.assertRegex(err.splitlines()[-1] if err.strip() else "", case.says)
                self.assertIsNone(re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out + err), repr(out + err))
                self.assertLess(seconds, MOST_SECONDS)
                self.assertLess(mib, MOST_MIB)  # of the largest case until now
                self.assertNotIn("Traceback", err)
                self.assertRegex(out, case.shows)
                self.assertNotRegex(err, r"""(["'])\1\w|\w(["'])\2""")  # quotes that are doubled

    def test_the_pages_name_builds_that_are_made(self):
        pages = "".join(page.read_text(encoding="utf-8") for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
        made = {"bench-cpu", "bench-cuda", "ci", *re.findall(r" -B build/(\w+)", pages)}  # by scripts, and as pages say
        self.assertEqual(set(re.findall(r"build/([\w-]+)/bin", pages)) - made, set())

    def test_the_programs_are_there(self):
        if not os.access(BIN / "tokline", os.X_OK):
            self.skipTest("tokline is not built in TOKLINE_BIN_DIR")


if __name__ == "__main__":
    unittest.main()
