"""Cost models: constants are found again, what they miss is listed, and the committed ones are those of the READMEs."""

import json
import os
import shutil
import tempfile
import unittest
from dataclasses import replace
from unittest import mock

from command_case import CommandTest, run_here
from sweep_test import GRAPH_NODE_US, drawn_case
from tokline import cost_model, kernels, records, sweep
from tokline.cost_model import CostModel
from tokline.report.evidence import Evidence

MODEL = CostModel("NVIDIA H200", "some.jsonl", 12, 2.0, 1.5, 1.1)


def with_floor(line, floor_us):
    line |= {"floor_us": floor_us, "percent_of_measured_peak": 100 * floor_us / line["median_us"]}


class CostModelTest(CommandTest):
    def lines_of(self, model, floors, kernel="linear", off=None):
        """Rows that take what the model says, but `off` times as long the one of that number."""
        cases = [drawn_case(kernel, i, model.predicted_us(floor) * (off or {}).get(i, 1)) for i, floor in enumerate(floors)]
        lines = self.machine.run(f"bench_{kernel}", cases)
        for line, floor in zip(lines[1:], floors):
            with_floor(line, floor)
        return lines

    def points_of(self, lines):
        return sweep.points(Evidence(records.read(self.write("rows.jsonl", lines))))

    def test_constants_are_found_again_beside_rows_that_fit_no_model(self):
        floors = [0.1 * 2**i for i in range(14)]
        found = cost_model.fitted(self.points_of(self.lines_of(MODEL, floors, off={3: 3, 9: 2.5}))["linear"], "x.jsonl")
        for name, tolerance in (("launch_us", 0.1), ("ramp", 0.15), ("slope", 0.03)):
            expected = getattr(MODEL, name)
            self.assertLess(abs(getattr(found, name) - expected), tolerance * expected, found)
        self.assertEqual((found.device, found.records, found.shapes), ("NVIDIA H200", "x.jsonl", 14))

    def test_nothing_is_predicted_below_a_launch_or_below_the_floor(self):
        too_fast = replace(MODEL, launch_us=0.2, ramp=0.0, slope=0.99)
        found = cost_model.fitted(self.points_of(self.lines_of(too_fast, [0.01 * 3**i for i in range(10)]))["linear"], "x")
        self.assertGreaterEqual(found.launch_us, GRAPH_NODE_US)
        self.assertGreaterEqual(found.slope, 1)

    def test_an_empty_kernel_may_take_longer_than_the_first_guesses(self):
        slow = replace(MODEL, launch_us=12.0)
        lines = self.lines_of(slow, [0.1 * 2**i for i in range(14)])
        lines[0]["peaks"]["graph_node_us"] = 11.0
        found = cost_model.fitted(self.points_of(lines)["linear"], "x")
        self.assertLess(abs(found.launch_us - slow.launch_us), 1.2, found)

    def test_rows_that_are_off_by_more_than_a_quarter_are_missed(self):
        found = self.points_of(self.lines_of(MODEL, [10.0] * 4, off={0: 1.2, 1: 1.4, 2: 0.7, 3: 0.85}))
        far = cost_model.missed(cost_model.ratios(found, {"linear": MODEL}))
        self.assertEqual([point.entry.row["shape"]["name"] for point, _ in far], ["sweep:1:2", "sweep:1:1"])
        elsewhere = replace(MODEL, device="another")
        self.assertEqual(cost_model.ratios(found, {"linear": elsewhere, "norm": MODEL}), [])

    def test_the_report_lists_them(self):
        page = self.folder / "page.html"
        path = self.write("all.jsonl", self.lines_of(MODEL, [10.0] * 4, off={1: 1.4}))
        with mock.patch.object(cost_model, "of_kernel", lambda kernel: MODEL):
            code, _, error = run_here("report", path, "-o", page)
        self.assertEqual(code, 0, error)
        section = page.read_text().split('<section id="model">')[1].split("</section>")[0]
        self.assertIn("Of 4 shapes, 1 miss", section)
        self.assertIn("sweep:1:1", section)
        self.assertNotIn("sweep:1:2", section)

    def fit(self, lines):
        """Runs the script on a copy of the READMEs; returns (code, output, errors)."""
        root = tempfile.mkdtemp(dir=self.folder)
        for kernel in kernels.names():
            os.makedirs(os.path.join(root, "kernels", kernel))
            shutil.copy(cost_model.path_of(kernel, "README.md"), os.path.join(root, "kernels", kernel))
        with mock.patch.object(cost_model, "ROOT", root):
            done = run_here("cost_model", self.write("rows.jsonl", lines))
            self.models = {kernel: cost_model.of_kernel(kernel) for kernel in kernels.names()}
            with open(cost_model.path_of("linear", "README.md"), encoding="utf-8") as file:
                self.readme = file.read()
        return done

    def test_the_script_writes_what_suffices_and_keeps_the_rest(self):
        code, out, error = self.fit(self.lines_of(MODEL, [0.1 * 4**i for i in range(8)], off={5: 2})
                                    + self.lines_of(MODEL, [1.0, 2.0], kernel="norm"))
        self.assertEqual(code, 0, error)
        self.assertRegex(out, r"^linear: launch_us [12]\.")
        self.assertIn("norm: 2 shapes, which is too few", error)
        self.assertEqual([kernel for kernel, model in self.models.items() if model], ["linear"])
        said = self.readme.split("<!-- cost model -->")[1].split("<!-- /cost model -->")[0]
        self.assertRegex(" ".join(said.split()), r"Fitted to 8 shapes of .* 1 misses it by more than 25 %: sweep:1:5, .* \(1\.9")

    def test_records_that_suffice_for_no_kernel_are_refused(self):
        code, _, error = self.fit(self.lines_of(MODEL, [1.0, 2.0]))
        self.assertEqual(code, 1)
        self.assertIn("no kernel has 6 shapes with measured peaks", error)

    def test_readmes_have_the_committed_constants(self):
        for kernel in kernels.names():
            with open(cost_model.path_of(kernel, "README.md"), encoding="utf-8") as file:
                readme = file.read()
            model = cost_model.of_kernel(kernel)
            formula = model and f"`t = {model.launch_us:g} + {model.ramp:g} sqrt(f) + {model.slope:g} f`"
            self.assertIn(formula or "No constants yet", readme, kernel)
            if model:
                with open(os.path.join(cost_model.ROOT, model.records), encoding="utf-8") as file:
                    self.assertEqual(json.loads(next(file))["kind"], "run")


if __name__ == "__main__":
    unittest.main()
