"""What Chromium draws of the pages of scripts/records report."""
import glob
import io
import os
import re
import unittest

import numpy as np
from browser import Browser
from matplotlib.image import imread
from report_case import ReportCase, report_of_history, run_main
from synthetic import KernelCase, Machine, decoder_cases, kernel_cases
from synthetic_workload import rate_sweep

from tokline.report.command import chromium

PHONE, DESKTOP = 390, 1400


def holds_records(path):
    with open(path, encoding="utf-8") as file:
        return '"kind"' in file.readline()

# Of each visible plot: pairs of texts that lie on one another, and texts that leave their plot. A box is as high as
# a line; what of it is ink is less, so a little is allowed.
FAULTS = """
(() => {
  const faults = [];
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    if (frame.width === 0) continue;
    const texts = [...svg.querySelectorAll('text')].filter(text => text.textContent.trim())
      .map(text => [text.textContent.trim(), text.getBoundingClientRect()]);
    for (const [words, box] of texts)
      if (box.left < frame.left - 1.5 || box.right > frame.right + 1.5 || box.top < frame.top - 1.5
          || box.bottom > frame.bottom + 1.5)
        faults.push(`${svg.getAttribute('aria-label')}: "${words}" leaves the plot`);
    texts.forEach(([words, a], i) => {
      for (const [others, b] of texts.slice(i + 1)) {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 4)
          faults.push(`${svg.getAttribute('aria-label')}: "${words}" lies on "${others}"`);
      }
    });
  }
  return faults;
})()
"""
PLOTS = """
[...document.querySelectorAll('svg')].map(svg => [svg.getAttribute('aria-label'), svg.getBoundingClientRect()])
  .filter(([_, box]) => box.width > 0)
  .map(([label, box]) => [label, box.left + scrollX, box.top + scrollY, box.width, box.height])
"""
HEIGHT = "document.documentElement.scrollHeight"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OFF_SCREEN = """
[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth)
  .map(each => each.getAttribute('aria-label'))
"""
FOLDED_OUT = "[...document.querySelectorAll('tr.more')].filter(each => each.getBoundingClientRect().height > 0).length"
BACKGROUND = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
INK = "getComputedStyle(document.body).color.match(/\\d+/g).map(Number)"


@unittest.skipUnless(chromium(), "no Chromium: nothing was drawn, so nothing is known of how the report looks")
class DrawnTest(ReportCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser().__enter__()
        cls.addClassCleanup(cls.browser.__exit__)

    def check(self, path, plots, views=((DESKTOP, False), (PHONE, True))):
        """In each view: a width, and whether the theme is dark."""
        for width, dark in views:
            with self.subTest(width=width, dark=dark):
                self.browser.requests.clear()
                self.browser.open(path, width, 900, dark)
                self.check_view(path, plots, width, dark)

    def check_view(self, path, plots, width, dark):
        self.assertEqual([address for address in self.browser.requests if not address.startswith("data:")],
                         ["file://" + os.path.realpath(path)])
        self.assertEqual(self.browser.evaluate(OVERFLOW), 0)
        self.assertEqual(self.browser.evaluate(FAULTS), [])
        background, ink = self.browser.evaluate(BACKGROUND)[:3], self.browser.evaluate(INK)[:3]
        self.assertTrue(max(background) < 48 and min(ink) > 200 if dark else
                        min(background) > 240 and max(ink) < 64, (background, ink))
        found = self.browser.evaluate(PLOTS)
        self.assertEqual(len(found), plots)
        page = imread(io.BytesIO(self.browser.screenshot((0, 0, width, self.browser.evaluate(HEIGHT)))))[..., :3]
        for label, *box in found:
            self.assertGreater(box[2], 0.8 * min(width - 40, 860), label)
            left, top, right, bottom = map(round, (box[0], box[1], box[0] + box[2], box[1] + box[3]))
            picture = page[top:bottom, left:right]
            marked = np.abs(picture - np.array(background) / 255).max(axis=2) > 0.2
            self.assertGreater(marked.mean(), 0.01, f"{label}: is empty")
            self.assertLess(marked.mean(), 0.5, f"{label}: is covered")
        self.assertEqual(self.browser.evaluate(FOLDED_OUT), 0)
        self.browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        self.assertEqual(self.browser.evaluate(OVERFLOW), 0, "with all tables open")
        self.assertEqual(self.browser.evaluate(FOLDED_OUT),
                         self.browser.evaluate("document.querySelectorAll('td > details').length"))
        if width == DESKTOP:
            self.assertEqual(self.browser.evaluate(OFF_SCREEN), [], "tables with a column off the screen")

    def test_everything_is_drawn_well_in_both_themes_and_at_both_sizes(self):
        views = [(width, dark) for width in (DESKTOP, PHONE) for dark in (False, True)]
        self.check(os.path.join(report_of_history(), "report.html"), 7, views)

    def test_many_commits_and_rows_are_drawn_well(self):
        machine = Machine(seed=12, sample_noise=0.01, run_noise=0.03)
        lines = []
        for number in range(16):
            machine.commit = f"{number * 7919 % 65536:04x}{number:036x}"
            lines += machine.run("bench_all", kernel_cases(230 if number == 15 else 30))
            lines += machine.decoder_run(decoder_cases((1, 2, 4, 8, 16, 32, 64, 128)))
            machine.wait(days=1)
        self.report_of(lines)
        self.check(self.folder / "report.html", 6)

    def test_a_sweep_of_rates_is_drawn_well(self):
        machine = Machine(seed=14)
        self.report_of(rate_sweep(machine) + rate_sweep(machine, implementation="cuda, without graphs"))
        self.check(self.folder / "report.html", 1)

    def test_one_commit_is_drawn_well(self):
        machine = Machine(seed=13)
        self.report_of(machine.run("bench_all", kernel_cases(40))
                       + machine.decoder_run(decoder_cases((1, 2, 4, 64, 65))))
        self.check(self.folder / "report.html", 4)

    def test_drawn_shapes_are_drawn_well(self):
        machine = Machine(seed=14)
        dimensions = (("batch", 256), ("q_lens", (1, 8192)), ("kv_lens", (1, 131072)), ("hq", 512), ("hk", 32),
                      ("head_dim", 128), ("order", "nhd"), ("causal", True), ("page_size", 256))
        cases = [KernelCase(case.kernel, (("name", f"sweep:18446744073709551615:{number}"), *dimensions), case.us)
                 for number, case in enumerate(kernel_cases(120))]
        self.report_of(machine.run("bench_all", kernel_cases(40)) + machine.run("bench_sweep", cases))
        self.check(self.folder / "report.html", 3)

    def test_recorded_run_of_a_gpu_is_drawn_well(self):
        root = os.path.normpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
        recorded = [path for path in glob.glob(os.path.join(root, "results/*/*.jsonl")) if holds_records(path)]
        self.assertTrue(recorded)
        code, err = run_main(*recorded, "-o", self.folder / "report.html")
        self.assertEqual(code, 0, err)
        with open(self.folder / "report.html", encoding="utf-8") as file:
            self.check(self.folder / "report.html", len(re.findall(r'<svg class="wide"', file.read())))

    def test_check_finds_overlap_overflow_and_text_that_leaves_its_plot(self):
        with open(self.folder / "bad.html", "w", encoding="utf-8") as file:
            file.write('<!DOCTYPE html><meta name="viewport" content="width=device-width"><svg width="900" height="60" '
                       'aria-label="bad"><text x="10" y="30">one</text><text x="14" y="32">two</text>'
                       '<text x="890" y="30">outside</text></svg>')
        self.browser.open(self.folder / "bad.html", PHONE, 844, False)
        self.assertGreater(self.browser.evaluate(OVERFLOW), 0)
        self.assertEqual(self.browser.evaluate(FAULTS), ['bad: "outside" leaves the plot', 'bad: "one" lies on "two"'])

    def test_screenshot_is_a_picture_of_the_page(self):
        self.report_of(Machine(seed=1).decoder_run(), "--screenshot", self.folder / "report.png")
        self.assertEqual(imread(self.folder / "report.png").shape[:2], (1100, 1400))


if __name__ == "__main__":
    unittest.main()
