"""Folders of scripts/maintain/believe collect, written directly or by simulated programs, and the report on them."""
import functools
import json
import zlib
from unittest import mock

from command_case import run_here, unwrapped
from folder_case import FolderTest
from synthetic import DecoderCase, KernelCase, Machine, kernel_cases, write

from tokline import believe_benches, believe_overhead

# Rows that independent timing must cover.
ALL_LENGTHS = [{"suite_us": us, "independent_us": us, "kernel": kernel}
               for us, kernel in ((2, "norm"), (10, "linear"), (100, "linear"), (1000, "paged_prefill"))]

run_main = functools.partial(run_here, "believe")


class InFolder(FolderTest):
    benches = ()  # that must be there

    def report(self):
        """The checks of the folder's report by id, and the page."""
        with (mock.patch.object(believe_benches, "kernel_names", return_value=self.benches),
              mock.patch.object(believe_overhead, "kernel_names", return_value=self.benches)):
            code, page, err = run_main("report", self.folder / "out", "--without-tool-times", "--json",
                                       self.folder / "b.json")
        self.assertEqual(code, 0, err)
        checks = json.loads((self.folder / "b.json").read_text())["checks"]
        return {check["id"]: check for check in checks}, unwrapped(page)


class ReportCase(InFolder):
    """On records written directly: what the tools get wrong must be seen."""
    def side(self, name, machine, cases, effects=(), **more):
        folder = self.folder / "out" / "benches" / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(3):
            write(folder / f"linear.round{number}.jsonl", machine.run("bench_linear", cases, effects, **more))

    def sides(self, machine, **effects):
        cases = [case for case in kernel_cases(240) if case.kernel in ("linear", "norm")]
        for name, effect in {"a": [], **effects}.items():
            self.side(name, machine, cases, effect)

    def equal_sides(self, names, effects=()):
        machine = Machine(seed=8, run_noise=0.0005)
        cases = [KernelCase("linear", (("name", name),), 10.0) for name in names]
        self.side("a", machine, cases)
        self.side("again", machine, cases, effects)
        return self.report()[0]["aa"]

    def decoder(self, name, effects=(), injected=None, round_index=0):
        folder = self.folder / "out" / "decoder" / f"round{round_index}"
        folder.mkdir(parents=True, exist_ok=True)
        machine = Machine(seed=zlib.crc32(f"{name} {round_index}".encode()), run_noise=0.0003)
        return write(folder / f"{name}.jsonl", machine.decoder_run([DecoderCase()], effects, injected=injected))

    def leave(self, name, text):
        """As a test leaves it that `collect` runs."""
        path = self.folder / "out" / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def leave_timing(self, *lines):
        self.leave("independent_timing.jsonl", "".join(json.dumps({"kernel": "linear", "shape": "x"} | line) + "\n"
                                                       for line in lines))

    def cut(self, path, size=2000):
        path.write_bytes(path.read_bytes()[:size])
