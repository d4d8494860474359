"""How a peer is timed and verified: as docs/measuring.md says, on any device that captures and replays graphs.

Nothing here needs PyTorch.
- A subject (operations.Operation) is one operation over `sets` rotating buffer sets. launch(index) launches it on one
  of them and returns what it writes; refill(seed) fills all sets with fresh random inputs; error(index, outputs) is the
  largest error of outputs in units of its bound. A launch of an `in_place` subject overwrites its inputs, so that only
  the first one after a refill can be compared.
- A device (gpu.CudaDevice): warm_up(subject) launches outside of any capture, so that libraries choose and load their
  kernels; capture(subject, launches) returns a graph whose launches rotate over the sets; replay(graph, count) returns
  the microseconds of each replay, queued back to back; disturbance() says in words what slowed the device since it was
  last asked, or slows it now, and "" for nothing; peaks_again(peaks) returns the peaks, with those replaced that the
  device reaches better now.
- A graph has its number of `launches` and `outputs`, which has for each set what the last launch on it writes. poison()
  overwrites all outputs with NaN, or with -1 if they are whole numbers.
"""
import dataclasses
import math
import time

from tokline.samples import interval, middle
from tokline.schema import MIN_SAMPLES, RULES

MAX_SAMPLES = 60
# As for the suite's own rows: a row that reaches the power cap rests first, and then after each sample for so many
# times its length, longer the second time. A row beside one that rested does so from its first sample.
FIRST_REST_US, REST_SHARES = RULES["cooling_us"], RULES["rest_shares"]
MIN_SAMPLE_US = 1000.0  # a graph has as many launches as that takes, and takes at least half of it or has MAX_LAUNCHES
MAX_LAUNCHES = 4096
WARM_UP_US = 5e3
PRECISE = RULES["precision"]  # half the interval of the median, as a share of it
COLD_L2_MULTIPLE = RULES["cold_l2_multiple"]
AUDITS = 2
WRONG = RULES["wrong"]  # the error over its bound if no bound is defined: for NaN, or inexact bits


class Unsupported(Exception):
    """The peer does not do this work, or not on this shape; the message says why."""


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
        """Takes an error, in units of its bound, into account. Returns whether the output is right."""
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
    """As many replays as a row has at least; `rest`, if any, is called with the microseconds of each."""
    if rest is None:
        return device.replay(graph, MIN_SAMPLES)
    replays = []
    for _ in range(MIN_SAMPLES):
        replays += device.replay(graph, 1)
        rest(replays[-1])
    return replays


def sample(device, graph, row_seconds, clock, rest=None):
    """Microseconds of replays until the median is precise or the time is spent, and which of the two it was."""
    begin = clock()
    replays = replays_of(device, graph, rest)
    while not is_precise(replays):
        if len(replays) >= MAX_SAMPLES or clock() - begin >= row_seconds:
            return replays, "time"
        replays += replays_of(device, graph, rest)
    return replays, "precise"


def fill(subject, graph, seed):
    """Fresh inputs, and outputs that no launch has written. In-place operations have the same tensors for both."""
    subject.refill(seed)
    if not subject.in_place:
        graph.poison()


def sleep_us(us):
    time.sleep(us / 1e6)


def measure(device, subject, row_seconds=0.1, seed=1, rests=False, clock=time.monotonic, rest=sleep_us):
    """Verifies, times (if asked to, with rests from the first sample), and verifies again. Stops at the first wrong
    output."""
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

    graph, rotations, replay_us = rotation, 1, max(device.replay(rotation, 2)[-1], 1e-3)
    most = max(1, MAX_LAUNCHES // subject.sets)
    while True:  # a rotation alone takes longer than one in a graph, by the graph's start and while the clocks rise
        rotations = min(max(1, math.ceil(MIN_SAMPLE_US * rotations / replay_us)), most)
        graph = rotation if rotations == 1 else device.capture(subject, rotations * subject.sets)
        replay_us = max(device.replay(graph, 2)[-1], 1e-3)
        if replay_us >= MIN_SAMPLE_US / 2 or rotations == most:
            break
    result.launches = graph.launches

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
