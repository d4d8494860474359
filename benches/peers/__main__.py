"""Measures FlashInfer, FlashAttention-3, cuDNN and PyTorch on exactly the shapes of the suite's own rows."""
import os
import re
import sys
import time
import warnings

from peers import rows
from peers.measure import Measurement, Unsupported, measure
from peers.operations import PEERS, Bench, attempts
from tokline import command, records, terminal
from tokline.stop import Stop

LIBRARIES = ("flashinfer", "fa3", "cudnn", "torch")
NO_GPU_EXIT = 77
EPILOG = """\
Kernel, shape, cost, cache state, dtype and buffer sets are taken over from RECORDS.jsonl, and so are the
measured peaks if the GPU is the same. What a library cannot run is a refused row that says why.

examples:
  scripts/peers --beside build/results --record build/results/peers.jsonl
  scripts/peers --beside kernels.jsonl --record peers.jsonl --only chunk_decode --peers flashinfer,fa3
  PYTHONPATH=/opt/libs scripts/peers --python python3 --beside kernels.jsonl --record peers.jsonl

exit codes: 0 every row is measured or says why the library cannot run it, 1 no row could be measured, a
library could not be loaded, a module of FlashInfer is not compiled, the time limit was reached or a file
cannot be used, 2 misuse or something that is missing, 77 no GPU, 130 interrupted.
"""


def parse(arguments):
    terminal.program = "scripts/peers"
    parser = command.parser(__doc__, EPILOG)
    parser.add_argument("--beside", required=True, nargs="+", metavar="RECORDS.jsonl",
                        help="the suite's records, files or folders")
    parser.add_argument("--record", required=True, metavar="OUT.jsonl", help="rows are appended to this file")
    parser.add_argument("--only", type=command.regular_expression, default=re.compile(""), metavar="REGEX",
                        help="shapes whose 'kernel name page tokens' matches, as the progress lines show them")
    parser.add_argument("--peers", default=",".join(LIBRARIES), metavar="LIST",
                        help=f"some of {', '.join(LIBRARIES)} (default: all)")
    parser.add_argument("--time-limit", type=command.positive_number, default=600, metavar="SECONDS",
                        help="no row is begun later, and the run is then marked as unfinished; 600 by default, most "
                        "of which is spent on rests between samples")
    parser.add_argument("--row-time", type=command.positive_number, default=0.05, metavar="SECONDS",
                        help="how long a row is sampled while the median's interval is wide (default: 0.05)")
    parser.add_argument("--compile", action="store_true",
                        help="let FlashInfer compile missing modules, which takes minutes and needs nvcc")
    parser.add_argument("--fa3-version", metavar="TEXT",
                        help="version of FlashAttention-3, if the package that it came in is not installed")
    # The script that starts this takes it.
    parser.add_argument("--python", metavar="PATH",
                        help="an interpreter that has the libraries, instead of an environment made here")
    options = parser.parse_args(arguments)
    options.peers = options.peers.split(",")
    for peer in options.peers:
        if peer not in LIBRARIES:
            parser.error(f"--peers names '{peer}'; allowed: {', '.join(LIBRARIES)}")
    return options


class Progress:
    """A line on standard error for each row."""
    def __init__(self):
        self._begin = time.monotonic()

    def say(self, words):
        print(f"[{time.monotonic() - self._begin:5.1f}s] {words}", file=sys.stderr, flush=True)


def plan(runs, options):
    """[(run, [(row, [attempt, ...]), ...]), ...]: everything that is to be done."""
    work = []
    for run, found in rows.work_of(runs):
        chosen = [(row, attempts(row, options.peers)) for row in found
                  if row["kernel"] in PEERS and options.only.search(rows.label(row))]
        if any(tried for _, tried in chosen):
            work.append((run, chosen))
    return work


def uncompiled(error):
    """The module of FlashInfer that an error says is not compiled, or ""."""
    return getattr(getattr(error, "spec", None), "name", "")


def error_text(error):
    """A library's error in one line."""
    if module := uncompiled(error):
        return f"FlashInfer's module {module} is not compiled; --compile or peers.prebuild does that"
    words = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class Session:
    """One call: the device, the libraries and the file that rows go to."""
    def __init__(self, torch, device, libraries, missing, options, record, command_line, progress=None,
                 clock=time.monotonic):
        self.torch, self.device, self.libraries, self.missing = torch, device, libraries, missing
        self.options, self.record, self.command_line = options, record, command_line
        self.say = progress.say if progress else lambda words: None
        self.clock, self.begin = clock, clock()
        self.measured = self.refused = 0
        self.uncompiled = {}  # modules of FlashInfer, and of how many rows each was missed
        self._workspaces = {}

    def run(self, suite_run, work):
        """The rows beside one run of the suite, as a run of their own: its peaks are theirs."""
        run_id, written = rows.new_run_id(), []
        limits = rows.Limits(suite_run, self.device.identity["uuid_hash"])
        versions = {library.name: library.version for library in self.libraries.values()}
        fingerprint = self.device.fingerprint(self.command_line, versions)
        self.record.append(rows.header_line(run_id, fingerprint, limits.peaks, limits.datasheet))
        interrupted = True
        try:
            for suite_row, tried in work:
                bench = Bench(self.torch, self.libraries, suite_row, self.device.l2_bytes, self._workspaces)
                for attempt in tried:
                    if self.clock() - self.begin > self.options.time_limit:
                        raise Stop(f"the time limit of {self.options.time_limit:g} s was reached; the run is marked as "
                                   "unfinished, and rows that were not begun have no line" + self.lacking("; "))
                    result = self.attempt(bench, attempt, bool(suite_row.get("rested")))
                    if rows.shows_a_wrong_limit(suite_row, result, limits):
                        limits.peaks = self.device.peaks_again(limits.peaks)
                    row = rows.peer_row(run_id, suite_row, attempt.implementation, attempt.chain,
                                        self.library(attempt.peer), self.device.name, result, limits)
                    self.record.append(row)
                    written.append(row)
                    self.tell(suite_row, row)
            interrupted = False
        finally:
            self.record.append(rows.end_line(run_id, written, interrupted, self.device.nvml.state()))

    def library(self, peer):
        library = self.libraries.get(peer)
        return {"name": library.name if library else peer, "version": library.version if library else "missing"}

    def attempt(self, bench, attempt, rests):
        """The measurement, with its failure if there is one: a library's error costs only its row."""
        if attempt.peer in self.missing:
            return Measurement(failure=f"{attempt.peer} is missing: {self.missing[attempt.peer]}")
        if attempt.reason:
            return Measurement(failure=f"not supported: {attempt.reason}")
        try:
            operation = attempt.make(bench, bench.inputs(attempt.layout), attempt.chain)
            return measure(self.device, operation, self.options.row_time, rests=rests)
        except Unsupported as error:
            return Measurement(failure=f"not supported: {error}")
        except Exception as error:  # whatever a library throws
            if module := uncompiled(error):
                self.uncompiled[module] = self.uncompiled.get(module, 0) + 1
            return Measurement(failure=error_text(error))

    def tell(self, suite_row, row):
        ok = row["status"] == "ok"
        self.measured, self.refused = self.measured + ok, self.refused + (not ok)
        what = f"{row['median_us']:.2f} us" if ok else f"refused: {row['reason']}"
        chain = ", dependent" if row["chain"] == "dependent" else ""
        self.say(f"{rows.label(suite_row)}, {row['implementation']}{chain}: {what}")

    def lacking(self, before=""):
        """What is said of rows that need modules of FlashInfer which are not compiled; "" where there are none."""
        if not self.uncompiled:
            return ""
        return (f"{before}{terminal.count(sum(self.uncompiled.values()), 'row')} refused, since modules of FlashInfer are not "
                f"compiled: {', '.join(self.uncompiled)}; --compile compiles them, and so does peers.prebuild those of the "
                "default shapes")

    def end(self):
        """Says what was measured. Returns the exit code."""
        self.say(f"{self.measured} rows measured, {self.refused} refused")
        if self.uncompiled:
            raise Stop(self.lacking())
        if self.missing:
            raise Stop(f"{', '.join(self.missing)} could not be loaded, so rows beside them are refused; --peers leaves out "
                       "what you do not want")
        return 0 if self.measured else command.FAILED


def main(arguments):
    options = parse(arguments)
    os.environ.setdefault("FLASHINFER_LOGGING_LEVEL", "error")
    if not options.compile:
        os.environ.setdefault("FLASHINFER_DISABLE_JIT", "1")

    work = plan(records.read(options.beside, terminal.say), options)
    if not work:
        raise Stop(f"no row of {', '.join(options.beside)} is one of the suite on a GPU that a peer can stand beside, or "
                   "--only and --peers leave none", command.MISUSE)
    try:
        import torch
    except ImportError as error:
        raise Stop(f"{sys.executable} has no PyTorch: {error}", command.MISUSE) from None
    if not torch.cuda.is_available():
        raise Stop("no GPU that PyTorch can use: peers not run", NO_GPU_EXIT)

    from peers.gpu import CudaDevice
    from peers.libraries import open_libraries
    warnings.filterwarnings("ignore")  # PyTorch and FlashInfer warn if a backend does not take a shape
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    progress = Progress()
    libraries, missing = open_libraries(torch, options.peers, options.fa3_version)
    for peer, reason in missing.items():
        progress.say(f"{peer} is missing: {reason}")
    try:
        record = rows.RecordFile(options.record)
        session = Session(torch, CudaDevice(torch), libraries, missing, options, record,
                          ["scripts/peers", *arguments], progress)
        for suite_run, chosen in work:
            session.run(suite_run, chosen)
    except OSError as error:
        raise Stop(f"cannot write {options.record}: {error.strerror or error}") from None
    except KeyboardInterrupt:
        raise Stop("interrupted; what was measured until then is recorded as such", command.INTERRUPTED) from None
    return session.end()


if __name__ == "__main__":
    sys.exit(command.ended("scripts/peers", lambda: main(sys.argv[1:])))
