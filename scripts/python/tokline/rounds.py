"""Runs the programs of two builds in turn, in rounds of shuffled order, and records what they measure."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tokline import terminal
from tokline.stop import Stop
from tokline.terminal import count

DECODER_PROGRAM = "tokline"
SIDES = ("a", "b")


class Misuse(Stop):
    """What was asked for cannot be run; the message says why."""
    exit_code = 2


class Interrupted(Stop):
    """Ctrl-C, or a program that was interrupted. The message says what was measured until then."""
    exit_code = 130


@contextlib.contextmanager
def scratch(prefix):
    """A folder for records that nobody asked to keep. If something fails after they were measured, it stays and is
    named."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    except BaseException as error:
        if isinstance(error, Misuse) or not any(folder.glob("*.jsonl")):
            shutil.rmtree(folder)
        elif not isinstance(error, Interrupted):  # which names the files
            terminal.say(f"what was measured is in {folder}")
        raise
    shutil.rmtree(folder)


def end(process):
    """Ends a program that measures, so that it completes its record. The terminal's Ctrl-C reached it too; a signal to
    this process alone did not."""
    try:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()  # not for its output, which a child of its own may keep open


@dataclass
class Plan:
    """What runs: the programs of each side by name, and their arguments."""
    programs: dict  # side -> {name: path}
    model: str | None = None
    bench_arguments: list = field(default_factory=list)
    decoder_arguments: list = field(default_factory=list)
    device: str = "cuda"
    rounds: int = 5
    seed: int = 1

    @property
    def names(self):
        """The programs that both sides have, in order."""
        return sorted(self.programs["a"].keys() & self.programs["b"].keys())

    def only_on(self, side):
        other = self.programs["b" if side == "a" else "a"]
        return sorted(self.programs[side].keys() - other.keys())

    def order(self):
        """(round from 1, name, side) of every process. A round runs each program on both sides, one right after the
        other. The order of programs and of sides is drawn, but a bench program opens the round: it measures the peaks
        that the others take over, of which the decoder measures only some."""
        drawn = random.Random(self.seed)
        for number in range(1, self.rounds + 1):
            names = drawn.sample(self.names, len(self.names))
            opening = next((name for name in names if name != DECODER_PROGRAM), names[0])
            for name in sorted(names, key=lambda name: name != opening):
                for side in drawn.sample(SIDES, 2):
                    yield number, name, side


@dataclass
class Failure:
    """A process that did not end well."""
    name: str
    side: str
    words: str
    empty: bool  # no row was recorded
    killed: bool = False  # by a signal


def program_name(wanted):
    """What the program of a kernel, or of `decoder`, is called."""
    return DECODER_PROGRAM if wanted == "decoder" else f"bench_{wanted}"


def find_programs(path, model=None, wanted=None):
    """{name: path} of a program, or of a build's bin folder: all bench_* in it, and `tokline` if there is a model.
    `wanted` are kernels, and `decoder`."""
    path = Path(path)
    if path.is_dir():
        files = [*sorted(path.glob("bench_*")), *([path / DECODER_PROGRAM] if model is not None else [])]
        found = {file.name: file for file in files if file.is_file() and os.access(file, os.X_OK)}
        if not found:
            raise Misuse(f"{path}: no bench_* program in this folder; name a build's bin folder or a program")
    elif not path.exists():
        raise Misuse(f"{path}: no such file or folder")
    elif not os.access(path, os.X_OK):
        raise Misuse(f"{path}: cannot be executed; name a program or a build's bin folder")
    elif path.name == DECODER_PROGRAM and model is None:
        raise Misuse(f"{path}: needs --model DIR, the checkpoint to decode")
    else:
        found = {path.name: path}
    names = found if wanted is None else set(map(program_name, wanted))
    return {name: file.absolute() for name, file in found.items() if name in names}


def refusal_of_model(program, model):
    """Why `tokline` cannot use the checkpoint, in its words; "" if it can."""
    command = [str(program), "inspect", "--model", model, "--device", "cpu"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    except OSError as error:
        raise Misuse(f"{program}: cannot be run: {error.strerror}") from None
    return _last_line(done.stderr).removeprefix("tokline: ") if done.returncode else ""


def gpu_present():
    """Whether this machine has a GPU that CUDA could use."""
    if any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists():
        return True
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=60).stdout.startswith(b"GPU")
    except (OSError, subprocess.TimeoutExpired):
        return False


class Experiment:
    """Runs a Plan and appends the records to folder/a.jsonl and folder/b.jsonl."""
    def __init__(self, plan, folder, progress, say):
        self._plan, self._progress, self._say = plan, progress, say
        self.files = {side: Path(folder) / f"{side}.jsonl" for side in SIDES}
        self._log = Path(folder) / "output.log"
        # Each run starts with an empty record of one name. Programs read their record first, and what a program has
        # read before it measures decides where its operands lie: on a CPU that was worth 7 %.
        self._record = Path(folder) / "run.jsonl"
        self._takes_peaks = {}
        self._order = list(plan.order())
        self._done = 0
        self._started = 0.0
        self.failures = []
        self._silent = set()  # the programs that measured nothing on either side

    def run(self):
        """Raises Interrupted, and Misuse for arguments that the programs do not know."""
        self._started = time.monotonic()
        peaks_of_round = {}
        try:
            for number, name, side in self._order:
                self._show(number, name, side)
                if name not in self._silent:
                    self._run_one(number, name, side, peaks_of_round)
                self._done += 1
        except KeyboardInterrupt:
            raise Interrupted(self._measured(number)) from None
        finally:
            self._progress.clear()

    def _show(self, number, name, side):
        left = ""
        if self._done:
            seconds = (time.monotonic() - self._started) / self._done * (len(self._order) - self._done)
            left = f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"
        self._progress.show(f"round {number} of {self._plan.rounds}: {name}, side {side.upper()}  "
                            f"[{self._done} of {len(self._order)} runs{left}]")

    def _command(self, name, side, peaks):
        base, arguments = [str(self._plan.programs[side][name])], self._plan.bench_arguments
        if name == DECODER_PROGRAM:
            base, arguments = [*base, "bench"], ["--model", self._plan.model, *self._plan.decoder_arguments]
        command = [*base, *arguments, "--device", self._plan.device, "--record", str(self._record)]
        if peaks and self._plan.device == "cuda" and self._knows_peaks(base):
            command += ["--peaks", str(peaks)]
        return command

    def _knows_peaks(self, base):
        """Whether this build of the program has the flag: an older one measures its own peaks."""
        if base[0] not in self._takes_peaks:
            shown = subprocess.run([*base, "--help"], capture_output=True, stdin=subprocess.DEVNULL).stdout
            self._takes_peaks[base[0]] = b"--peaks" in shown
        return self._takes_peaks[base[0]]

    def _run_one(self, number, name, side, peaks_of_round):
        try:
            command = self._command(name, side, peaks_of_round.get(number))
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:
            raise Misuse(f"{self._plan.programs[side][name]}: cannot be run: {error.strerror}") from None
        try:
            output = process.communicate()[0].decode("utf-8", "replace")
        except KeyboardInterrupt:
            end(process)
            self._keep(side)
            raise
        written = self._keep(side)  # a header, rows, and an end that a killed program lacks
        self._append(self._log, f"== round {number}, side {side.upper()}: {' '.join(command)}\n{output}"
                     f"== exit code {process.returncode}\n".encode())
        if process.returncode == 130:
            raise KeyboardInterrupt
        if process.returncode == 2:
            raise Misuse(f"{name} ({side.upper()}) does not take its arguments: {_last_line(output)}")
        all_peaks = name != DECODER_PROGRAM or self._plan.names == [DECODER_PROGRAM]
        if process.returncode == 0 and written and all_peaks:
            peaks_of_round.setdefault(number, self.files[side])
        if process.returncode != 0:
            self._failed(number, name, side, process.returncode, output, written)

    def _failed(self, number, name, side, code, output, written):
        killed = code < 0
        words = f"was killed by {signal.Signals(-code).name}" if killed else f"exited with {code}: {_last_line(output)}"
        self.failures.append(Failure(name, side, words, written <= (1 if killed else 2), killed))
        self._progress.clear()
        self._say(f"round {number}: {name} ({side.upper()}) {words}")
        # A filter that matches nothing in a program fails it on both sides: it is not run again. A crash is none.
        empty = {failure.side for failure in self.failures
                 if failure.name == name and failure.empty and not failure.killed}
        if number == 1 and empty == set(SIDES):
            self._silent.add(name)
            self._say(f"{name} measured nothing on either side; it is left out of the other rounds")

    def _keep(self, side):
        """Moves what the run recorded to its side's file. Returns how many lines that are."""
        if not self._record.exists():
            return 0
        recorded = self._record.read_bytes()
        self._record.unlink()
        self._append(self.files[side], recorded)
        return recorded.count(b"\n")

    def _append(self, path, what):
        try:
            with open(path, "ab") as file:
                file.write(what)
        except OSError as error:
            raise Stop(f"{path}: cannot be written: {error.strerror}{self._where()}") from None

    def _measured(self, number):
        return (f"interrupted in round {number} of {self._plan.rounds}, after {count(self._done, 'run')} of "
                f"{len(self._order)}{self._where()}")

    def _where(self):
        kept = [str(path) for path in self.files.values() if path.exists()]
        return f"; what was measured is in {' and '.join(kept)}" if kept else "; nothing was measured"


def _last_line(output):
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
