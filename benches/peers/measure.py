"""How a peer is timed and verified: as docs/measuring.md says, on any device that captures and replays graphs.

Nothing here needs PyTorch. A subject is one operation over rotating buffer sets; a device captures its launches
into a graph and says how long replays take.
"""
import dataclasses
import math
import time
from typing import Protocol

from tokline.samples import interval, middle
from tokline.schema import MIN_SAMPLES, RULES

MAX_SAMPLES = 60
# As the suite's own rows: where the power cap was met, a rest first, and after each sample of so many times its time,
# more the second time. A row beside one that rested rests from its first sample.
FIRST_REST_US, REST_SHARES = RULES["cooling_us"], RULES["rest_shares"]
MIN_SAMPLE_US = 1000.0  # a graph holds as many launches as that takes
MAX_LAUNCHES = 4096
WARM_UP_US = 5e3
PRECISE = RULES["precision"]  # half the interval of the median, as a share of it
COLD_L2_MULTIPLE = RULES["cold_l2_multiple"]
AUDITS = 2
WRONG = RULES["wrong"]  # error over bound where no bound is defined: NaN, or inexact bits


class Unsupported(Exception):
    """The peer does not do this work, or not on this shape; the message says why."""


class Subject(Protocol):
    sets: int
    in_place: bool  # a launch overwrites inputs, so that only the first after a refill can be compared
    memory_bytes: int

    def launch(self, index):
        """One launch on a buffer set; returns what it wrote."""

    def refill(self, seed):
        """Fresh random inputs in all sets."""

    def error(self, index, outputs):
        """The largest error of `outputs`, from buffer set `index`, in units of its bound."""


class Graph(Protocol):
    launches: int
    outputs: dict  # of each buffer set, what the last launch on it writes

    def poison(self):
        """Overwrites all outputs with NaN, or -1 where they are whole numbers."""


class Device(Protocol):
    l2_bytes: int

    def warm_up(self, subject):
        """Launches outside of any capture: libraries choose and load their kernels."""

    def capture(self, subject, launches) -> Graph:
        """`launches` launches that rotate over the buffer sets."""

    def replay(self, graph, count) -> list:
        """Microseconds of each of `count` replays, queued back to back."""

    def disturbance(self) -> str:
        """What slowed the device since this was last asked, replays included, or slows it now, in words, or ""."""

    def peaks_again(self, peaks) -> dict:
        """The peaks, those replaced that the device reaches better now."""


@dataclasses.dataclass
class Measurement:
    launches: int = 1
    samples_us: list = dataclasses.field(default_factory=list)
    stopped: str = ""
    fresh_us: float | None = None
    before: bool = False
    after: bool = False
    error: float = 0.0
    audits: int = 0
    disturbed: str = ""
    rested: bool = False
    failure: str = ""
    memory_bytes: int | None = None

    def note(self, error):
        """Takes an error over its bound into account. Returns whether the output is right."""
        right = error <= 1  # false for NaN
        self.error = max(self.error, error if error <= WRONG else WRONG)
        return right


def median(values):
    return middle(sorted(values))


def median_interval(values):
    """(low, high): the median's 95 % confidence interval by order statistics."""
    return interval(sorted(values))


def is_precise(samples):
    low, high = median_interval(samples)
    return high - low <= 2 * PRECISE * median(samples)


def require_cold(sets, bytes_a_launch, l2_bytes):
    touched = sets * bytes_a_launch
    if touched <= COLD_L2_MULTIPLE * l2_bytes:
        raise Unsupported(f"would not be cold: {sets} buffer sets of {bytes_a_launch:.0f} touched bytes are "
                          f"{touched / l2_bytes:.1f}x the L2; more than {COLD_L2_MULTIPLE}x is needed")


def replays_of(device, graph, rest):
    """As many replays as a row has at least; after each `rest`, if any, is called with its microseconds."""
    if rest is None:
        return device.replay(graph, MIN_SAMPLES)
    replays = []
    for _ in range(MIN_SAMPLES):
        replays += device.replay(graph, 1)
        rest(replays[-1])
    return replays


def sample(device, graph, row_seconds, clock, rest=None):
    """Microseconds of replays until the median is precise or the time is spent, and which of them it was."""
    begin = clock()
    replays = replays_of(device, graph, rest)
    while not is_precise(replays):
        if len(replays) >= MAX_SAMPLES or clock() - begin >= row_seconds:
            return replays, "time"
        replays += replays_of(device, graph, rest)
    return replays, "precise"


def fill(subject, graph, seed):
    """Fresh inputs, and outputs that no launch has written. Of an in-place operation they are the same."""
    subject.refill(seed)
    if not subject.in_place:
        graph.poison()


def sleep_us(us):
    time.sleep(us / 1e6)


def measure(device, subject, row_seconds=0.1, seed=1, rests=False, clock=time.monotonic, rest=sleep_us):
    """Verifies, times, with rests from the first sample if asked to, and verifies again. Stops at the first wrong output."""
    result = Measurement(memory_bytes=subject.memory_bytes)
    last = subject.sets - 1
    subject.refill(seed)
    device.warm_up(subject)
    rotation = device.capture(subject, subject.sets)

    fill(subject, rotation, seed + 1)
    device.replay(rotation, 1)
    result.before = result.note(subject.error(0, rotation.outputs[0]))
    if not result.before:
        return result

    rotation_us = max(device.replay(rotation, 2)[-1], 1e-3)
    most = max(1, MAX_LAUNCHES // subject.sets)
    rotations = min(max(1, math.ceil(MIN_SAMPLE_US / rotation_us)), most)
    graph = rotation if rotations == 1 else device.capture(subject, rotations * subject.sets)
    result.launches = graph.launches
    replay_us = rotations * rotation_us

    fill(subject, graph, seed + 2)
    device.replay(graph, min(max(1, int(WARM_UP_US / replay_us)), 20))
    times_met_cap = 0
    met_cap = rests
    for _ in range(rests, 1 + len(REST_SHARES)):  # a disturbed row is repeated
        times_met_cap += met_cap
        result.rested = times_met_cap > 0
        if met_cap:
            rest(FIRST_REST_US)
        pause = (lambda us, share=REST_SHARES[times_met_cap - 1]: rest(share * us)) if result.rested else None
        disturbed = device.disturbance()
        replays, result.stopped = sample(device, graph, row_seconds, clock, pause)
        result.disturbed = disturbed or device.disturbance()
        if not result.disturbed:
            break
        met_cap = "power cap" in result.disturbed
    result.samples_us = [us / graph.launches for us in replays]

    if subject.in_place:  # what the timed launches wrote followed from what launches before them wrote
        fill(subject, rotation, seed + 3)
        device.replay(rotation, 1)
    result.after = result.note(subject.error(last, (rotation if subject.in_place else graph).outputs[last]))
    fresh = []
    while result.after and result.audits < AUDITS:
        result.audits += 1
        fill(subject, graph, seed + 2 + 2 * result.audits)
        fresh.append(device.replay(graph, 1)[0] / graph.launches)
        compared = graph
        if subject.in_place:
            compared = rotation
            fill(subject, rotation, seed + 3 + 2 * result.audits)
            device.replay(rotation, 1)
        index = result.audits * subject.sets // (AUDITS + 1)
        result.after = result.note(subject.error(index, compared.outputs[index]))
    if fresh:
        result.fresh_us = median(fresh)
    return result
