"""Reports that several tests read: of a simulated machine's history, and of records that a test writes."""
import functools
import html.parser
import os
import re
import tempfile
import unittest

from command_case import run_here
from folder_case import FolderTest
from synthetic import DecoderCase, Effect, KernelCase, Machine, decoder_cases, kernel_cases, write

VOID = {"meta", "link", "br", "path", "use"}
HOSTILE = "<script>alert(1)</script> & <b>"


def run_main(*arguments):
    """(exit code, stderr)."""
    code, out, err = run_here("report", *arguments)
    assert out == "" or "--help" in arguments, out
    return code, err


def history(commits=5, rows=60):
    """Runs of several commits; the last has peers, ablations, a refused and a disturbed row, a slower `down`."""
    machine = Machine(seed=2, run_noise=0.002)
    cases = kernel_cases(rows)
    lines = []
    for number in range(commits):
        machine.commit = f"{number + 1:x}c0ffee{number:033d}"
        last = number == commits - 1
        peers = [KernelCase(case.kernel, case.shape, 0.9 * case.us, implementation="flashinfer-tc",
                            library=("flashinfer", "0.7.2")) for case in cases if case.cache == "cold"
                 and case.chain == "plain"][:20]
        slower = [Effect(-4 * number, kernel="linear")]
        lines += machine.run("bench_all", cases + (peers if last else []), slower,
                             refused={cases[0]: "output is wrong: " + HOSTILE} if last else None,
                             disturbed={cases[1]: "throttled: power cap"} if last else None)
        lines += machine.decoder_run(decoder_cases((1, 8, 64)) + decoder_cases((1, 64), "qwen3-4b"),
                                     [Effect(us=60, op="down")] if last else ())
        machine.wait(days=1)
    header = machine.header("tokline ablate")
    lines.append(header)
    for batch in (1, 64):
        case = DecoderCase(batch=batch)
        lines += [machine.ablation(header, case, "rmsnorm_qkv", "rmsnorm + linear", 8, (10, 19)),
                  machine.ablation(header, case, "chunk_decode", "gather + attention", 30, (10, 31)),
                  machine.ablation(header, case, "fused_down", "linear + add", -5, (10, 13)),
                  machine.ablation(header, case, "sampling", "the reference's order", 2, None)]
    lines.append({"schema": 2, "kind": "end", "run_id": header["run_id"], "interrupted": False, "rows": 8, "refused": 0,
                  "gpu_after": None})
    for line in lines:
        if line["kind"] == "run":
            line["fingerprint"]["command_line"] = ["bench", "--shapes", "my shapes.json", "--filter=b(1|8)"]
    return lines


@functools.cache
def report_of_history():
    """The folder of the report of history(): its page is report.html, its Markdown report.md."""
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    records_path, page_path, markdown_path = (os.path.join(folder.name, name) for name in (
        "records.jsonl", "report.html", "report.md"))
    write(records_path, history())
    code, err = run_main(records_path, "-o", page_path, "--markdown", markdown_path, "--title", "Title & more")
    assert (code, err) == (0, ""), err
    return folder.name


class Page(html.parser.HTMLParser):
    """What a test asks of a page; fails on elements that are not closed in order."""
    def __init__(self, text):
        super().__init__()
        self.stack, self.ids, self.tags, self.addresses, self.words = [], [], set(), [], []
        self.feed(text)
        assert not self.stack, f"not closed: {self.stack}"

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[name] for name in ("src", "href", "xlink:href") if name in values]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.stack.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if "style" not in self.stack:
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


class ReportCase(FolderTest):
    def says(self, text, *phrases):
        for phrase in phrases:
            self.assertTrue(phrase in text, f"not said: {phrase}")

    def read(self, folder):
        """The page's text, its Page, and its Markdown."""
        with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
            text = file.read()
        with open(os.path.join(folder, "report.md"), encoding="utf-8") as file:
            return text, Page(text), file.read()

    def report_of(self, lines, *more):
        """The page's text, its Page, and its Markdown."""
        write(self.folder / "records.jsonl", lines)
        code, err = run_main(self.folder / "records.jsonl", "-o", self.folder / "report.html", "--markdown",
                             self.folder / "report.md", *more)
        self.assertEqual((code, err), (0, ""))
        return self.read(self.folder)
