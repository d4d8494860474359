"""scripts/records sweep and the report: drawn shapes are held against their floors, apart from chosen ones."""

import re
import unittest

from command_case import CommandTest, run_here, run_unwrapped
from synthetic import KernelCase, Machine

GRAPH_NODE_US = 0.7  # of the simulated machine


def drawn_case(kernel, number, us, **more):
    return KernelCase(kernel, (("name", f"sweep:1:{number}"), ("batch", 3), ("len", 7), ("order", "nhd")), us, **more)


def with_ratio(line, ratio, bytes_=1e8):
    """Makes the row take that many times its floor with a launch, and move so many bytes."""
    floor = line["median_us"] / ratio - GRAPH_NODE_US
    line |= {"floor_us": floor, "percent_of_measured_peak": 100 * floor / line["median_us"],
             "cost": {"read_bytes": bytes_, "write_bytes": 0.0, "flops": 1.0},
             "gbps": bytes_ / line["median_us"] / 1e3, "tflops": 1 / line["median_us"] / 1e6}


class SweepTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.machine = Machine(seed=1, run_noise=0)

    def drawn(self, kernel, ratios, bytes_=1e8, us=100.0):
        lines = self.machine.run(f"bench_{kernel}", [drawn_case(kernel, i, us) for i in range(len(ratios))])
        for line, ratio in zip(lines[1:], ratios):
            with_ratio(line, ratio, bytes_)
        return lines

    def sweep(self, lines, *more):
        return run_here("sweep", self.write("sweep.jsonl", lines), *more)

    def test_says_the_distribution_of_each_kernel(self):
        ratios = [1 + i / 10 for i in range(1, 21)]  # 1.1 to 3.0
        code, out, _ = self.sweep(self.drawn("linear", ratios) + self.drawn("norm", [4.0, 6.0], bytes_=1e5))
        self.assertEqual(code, 0)
        self.assertIn("22 drawn shapes verified, 0 rows refused", out)
        self.assertRegex(out, r"linear +20 +2\.00 +2\.80 +3\.00 +20 +2\.00 +3\.00\n")
        self.assertRegex(out, r"norm +2 +4\.00 +6\.00 +6\.00 +0\n")

    def test_names_the_worst_ten_with_their_dimensions(self):
        _, out, _ = self.sweep(self.drawn("linear", [1.1] * 5 + [5.0]) + self.drawn("norm", [2.0 + i for i in range(9)]))
        worst = out[out.index("the worst 10"):].splitlines()[2:12]
        self.assertEqual([float(line.split(" sweep:")[0].split()[-1]) for line in worst],
                         [10, 9, 8, 7, 6, 5, 5, 4, 3, 2])
        self.assertRegex(worst[0], r"norm +cuda +100\.\d µs +10\.0\d µs +10\.00 +sweep:1:8, batch 3 len 7 order nhd, bf16")

    def test_of_the_rows_of_a_shape_the_fastest_counts(self):
        slow, fast = self.drawn("linear", [4.0]), self.drawn("linear", [1.5], us=50.0)
        slow[1]["implementation"] = "other"
        for lines in (slow + fast, fast + slow):
            _, out, _ = self.sweep(lines)
            self.assertIn("1 drawn shape verified", out)
            self.assertRegex(out, r"linear +1 +1\.50")

    def test_another_launch_makes_another_floor(self):
        lines = self.drawn("linear", [2.0])  # 100 us, of which 50 are the floor
        _, out, _ = self.sweep(lines, "--launch-us", "10.7")
        self.assertRegex(out, r"linear +1 +1\.67")
        for bad in ("0", "-1", "x", "inf"):
            code, _, error = self.sweep(lines, "--launch-us", bad)
            self.assertEqual(code, 2)
            self.assertIn(f"is '{bad}'; it must be a number above 0", error)

    def test_refused_rows_are_named(self):
        case = drawn_case("norm", 0, 10.0)
        _, out, _ = self.sweep(self.machine.run("bench_norm", [case], refused={case: "unverified before: x"}))
        self.assertIn("0 drawn shapes verified, 1 row refused", out)
        self.assertIn("refused: norm sweep:1:0, batch 3 len 7 order nhd, cuda: unverified before: x", out)

    def test_a_sweep_of_peers_is_held_against_ours(self):
        peers = self.machine.run("peers", [drawn_case("linear", i, 50.0, implementation="quick", library=("quick", "1"))
                                           for i in range(2)])
        _, out, _ = self.sweep(self.drawn("linear", [2.0, 3.0]) + peers)
        self.assertRegex(out, r"faster by more than 2 % on 2 of 2 shapes \(ours of aaaaaaa\); at worst 2\.0\d times, quick 1 on linear sweep")
        self.assertRegex(out, r"geometric mean, our kernels take 2\.0\d times as long as the best peer")

    def test_what_a_kernel_would_not_take_shows_how_good_its_choice_is(self):
        cases = [drawn_case("linear", i, us, implementation=variant, chosen=variant == "wgmma")
                 for i, times in enumerate(({"wgmma": 60.0, "tile": 40.0}, {"wgmma": 40.0, "tile": 60.0}))
                 for variant, us in times.items()]
        peers = self.machine.run("peers", [drawn_case("linear", i, 50.0, implementation="quick", library=("quick", "1"))
                                           for i in range(2)])
        lines = self.machine.run("bench_linear", cases)
        _, out, _ = self.sweep(lines + peers)
        self.assertRegex(out, r"linear +2 +1\.2\d+ +1 +1\.5\d +wgmma +[\d.]+ µs +tile +[\d.]+ µs +sweep:1:0")
        self.assertRegex(out, r"faster by more than 2 % on 1 of 2 shapes \(ours of aaaaaaa\); at worst 1\.2\d times")
        for line in lines[1:]:
            line.pop("chosen", None)  # of older records the fastest counts
        _, out, _ = self.sweep(lines + peers)
        self.assertNotIn("takes by itself", out)
        self.assertIn("No peer is faster by more than 2 % on any of 2 shapes", out)

    def test_the_reference_has_no_floor(self):
        lines = self.drawn("norm", [2.0])
        lines[0]["peaks"] = lines[0]["fingerprint"]["gpu"] = None
        for name in ("limit", "floor_us", "percent_of_measured_peak"):
            lines[1][name] = None
        lines[1]["device"] = "cpu"
        code, out, _ = self.sweep(lines)
        self.assertEqual(code, 0)
        self.assertIn("No floor is known without a GPU", out)

    def test_records_without_a_sweep_are_refused(self):
        code, _, error = self.sweep(self.machine.run("bench_x", self.cases))
        self.assertEqual(code, 1)
        self.assertIn("no row of a sweep in", error)

    def report(self, lines):
        page = self.folder / "report.html"
        code, _, error = run_here("report", self.write("all.jsonl", lines), "-o", page)
        self.assertEqual(code, 0, error)
        return page.read_text()

    def test_the_report_shows_a_plot_per_kernel_and_keeps_drawn_shapes_apart(self):
        chosen = self.machine.run("bench_all", self.cases)
        page = self.report(chosen + self.drawn("linear", [1.5, 2.5]) + self.drawn("norm", [3.0]))
        section = re.search(r'<section id="sweep">.*?</section>', page, re.DOTALL)[0]
        others = re.sub(r'<section id="(sweep|model)">.*?</section>', "", page, flags=re.DOTALL)
        for words in ("linear, time / floor", "norm, time / floor", "sweep:1:1, batch 3 len 7 order nhd, bf16: 100 µs, "
                      "2.50× its floor"):
            self.assertIn(words, section)
        self.assertNotIn("sweep:1", others)
        self.assertIn(f"ALL ROWS STAND: {len(self.cases)} verified", page)

    def test_a_report_of_a_sweep_alone_is_whole(self):
        page = self.report(self.drawn("linear", [1.5, 2.5]))
        self.assertIn('<section id="sweep">', page)

    def test_standing_counts_drawn_shapes_apart(self):
        peers = self.machine.run("peers", [drawn_case("linear", 0, 50.0, implementation="quick", library=("quick", "1"))])
        code, out, _ = run_unwrapped("standing", self.write("sweep.jsonl", self.drawn("linear", [2.0]) + peers))
        self.assertEqual(code, 0)
        self.assertRegex(out, r"^\*\*Shapes drawn at random\. Beside peers of the same .*\*\* A peer is faster by more than 2 % on "
                              r"1 of 1 shape \(ours of aaaaaaa\); .* In the geometric mean, our kernels take 2\.0\d times as long as "
                              r"the best peer\.\n$")


if __name__ == "__main__":
    unittest.main()
