"""Predicts what a kernel takes, and fits the constants of that to records."""

import json
import math
import os
from dataclasses import asdict, dataclass, fields

from tokline import command, cost_model, kernels, records, sweep, terminal
from tokline.files import write_whole
from tokline.kernels import ROOT
from tokline.standing import put_between_marks
from tokline.stop import Stop

MISSED = 0.25  # a prediction that is further off is listed
FEWEST = 6  # shapes that a fit needs: twice its constants

EPILOG = """\
examples:
  scripts/maintain/fit_cost_models results/h200/kernels.jsonl
  scripts/maintain/fit_cost_models results/h200/sweep.jsonl      shapes that nobody chose make better constants

Of each shape the fastest row of ours counts, of the variant that the kernel takes by itself. Writes
kernels/KERNEL/cost_model.json, and the lines of kernels/KERNEL/README.md between its marks <!-- cost model --> and
<!-- /cost model -->, of the kernels with at least six shapes in the records. Others keep what they have.

exit codes: 0 written, 1 no kernel has enough shapes or a file that cannot be used or written, 2 misuse, 130 interrupted
"""


@dataclass(frozen=True)
class CostModel:
    """t = launch_us + ramp * sqrt(f) + slope * f, where f is the floor in microseconds."""
    device: str
    records: str
    shapes: int
    launch_us: float  # what the smallest launch takes
    ramp: float  # until all multiprocessors are busy, and from when the first is not: uneven tiles, merges
    slope: float  # a long launch over its floor

    def predicted_us(self, floor_us):
        return self.launch_us + self.ramp * math.sqrt(floor_us) + self.slope * floor_us


def path_of(kernel, name="cost_model.json"):
    return os.path.join(ROOT, "kernels", kernel, name)


def of_kernel(kernel):
    """The kernel's CostModel, or None."""
    try:
        with open(path_of(kernel), encoding="utf-8") as file:
            return CostModel(**json.load(file))
    except FileNotFoundError:
        return None


def ratios(found, models):
    """[(Point, time / prediction)] of the points on the device that their kernel's model is of."""
    return [(point, point.entry.median_us / model.predicted_us(point.entry.floor_us))
            for kernel, points in found.items() if (model := models.get(kernel))
            for point in points if point.entry.row["device"] == model.device]


def missed(pairs):
    """Those that are off by more than a quarter, worst first."""
    return sorted((pair for pair in pairs if abs(pair[1] - 1) > MISSED), key=lambda pair: -abs(math.log(pair[1])))


def fitted(points, source):
    """The CostModel of a kernel's points: least squares of the relative error, in which single rows count less."""
    import numpy as np
    from scipy.optimize import least_squares
    floors = np.array([point.entry.floor_us for point in points])
    times = np.array([point.entry.median_us for point in points])
    terms = np.stack([np.ones_like(floors), np.sqrt(floors), floors])
    node_us = min(point.floor_us - point.entry.floor_us for point in points)
    # Nothing is launched in less than an empty kernel, and no long launch is faster than its floor.
    least = (node_us, 0, 1)
    fits = (least_squares(lambda constants: np.log(constants @ terms / times), (max(launch, node_us), ramp, 1.1),
                          bounds=(least, math.inf), loss="soft_l1", f_scale=0.1)
            for launch in (1.0, 3.0, 10.0) for ramp in (0.1, 1.0, 3.0))
    constants = [float(f"{value:.3g}") for value in np.round(min(fits, key=lambda fit: fit.cost).x, 3)]
    return CostModel(points[0].entry.row["device"], source, len(points), *constants)


def sentence(model, pairs):
    """What a README says of its model."""
    off = sorted(abs(ratio - 1) for _, ratio in pairs)
    far = missed(pairs)
    words = ", ".join(f"{point.entry.name} ({ratio:.2f} times)" for point, ratio in far[:4])
    more = f" and {len(far) - 4} more" if len(far) > 4 else ""
    return terminal.wrapped(
        f"`t = {model.launch_us:g} + {model.ramp:g} sqrt(f) + {model.slope:g} f` µs on {model.device}. Fitted to "
        f"{model.shapes} shapes of `{model.records}`: half of them are within {100 * off[(len(off) - 1) // 2]:.0f} %, and "
        + (f"{len(far)} {'misses' if len(far) == 1 else 'miss'} it by more than {100 * MISSED:.0f} %: {words}{more}." if far else
           f"none misses it by more than {100 * MISSED:.0f} %."))


def main(arguments):
    parser = command.parser(cost_model.__doc__, EPILOG)
    parser.add_argument("results", nargs="+", metavar="RECORDS.jsonl", help="record files or folders, of one device")
    options = parser.parse_args(arguments)
    from tokline.report.evidence import Evidence
    found = sweep.points(Evidence(records.read(options.results, terminal.say)))
    fits = {kernel: fitted(points, " ".join(os.path.relpath(path, ROOT) for path in options.results))
            for kernel, points in found.items() if kernel in kernels.names() and len(points) >= FEWEST}
    if not fits:
        raise Stop(f"no kernel has {FEWEST} shapes with measured peaks in {' '.join(options.results)}")
    for kernel, model in fits.items():
        write_whole(path_of(kernel), json.dumps(asdict(model), indent=2) + "\n")
        put_between_marks(path_of(kernel, "README.md"), "cost model",
                          sentence(model, ratios({kernel: found[kernel]}, fits)))
        terminal.write_out(f"{kernel}: {', '.join(f'{each.name} {getattr(model, each.name):g}' for each in fields(model)[3:])}")
    for kernel in found.keys() - fits.keys():
        terminal.say(f"{kernel}: {terminal.count(len(found[kernel]), 'shape')}, which is too few")
    return 0
