"""scripts/records standing: losses are counted and come first, and no row of another GPU is mixed in."""
import dataclasses
import datetime
import functools
import json
import os
import re
import unittest
from pathlib import Path

from command_case import run_here, run_unwrapped, unwrapped
from folder_case import FolderTest
from synthetic import START, KernelCase, Machine, kernel_cases, write
from synthetic_workload import workload_run

run_main = functools.partial(run_unwrapped, "standing")


class StandingTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.cases = kernel_cases(3, ["linear"])

    def records(self, factors, gpu=None):
        """A file with rows of ours, and of a peer that takes so many times as long, on a GPU of its own if it is named."""
        path = os.path.join(self.folder, "records.jsonl")
        peers = [KernelCase(case.kernel, case.shape, factor * case.us, implementation="quick", library=("quick", "1"))
                 for case, factor in zip(self.cases, factors)]
        ours = Machine(seed=1)
        theirs = Machine(seed=2, gpu=gpu) if gpu else ours
        write(path, ours.run("bench_all", self.cases) + theirs.run("peers", peers))
        return path

    def test_counts_the_shapes_that_a_peer_is_faster_on_and_names_the_worst(self):
        code, out, _ = run_main(self.records([0.9, 0.5, 1.2]))
        self.assertEqual(code, 0)
        first = out.splitlines()[0]
        self.assertRegex(first, r"^\*\*Beside peers of the same NVIDIA H200\.\*\* A peer is faster by more than 2 % on 2 of 3 shapes \(ours of aaaaaaa\); at worst (1\.9|2\.0)\d times, quick 1 on ")
        self.assertRegex(out, r"\| `linear` \| 3 \| 2 \|")

    def test_a_peer_within_two_percent_is_not_called_faster(self):
        _, out, _ = run_main(self.records([1.1, 1.3, 1.2]))
        self.assertIn("No peer is faster by more than 2 % on any of 3 shapes (ours of aaaaaaa).", out)

    def test_a_faster_variant_that_the_kernel_would_not_take_hides_no_loss(self):
        self.cases += [dataclasses.replace(case, us=case.us / 2, implementation="other", chosen=False)
                       for case in self.cases]
        out = run_main(self.records([0.9, 0.9, 0.9]))[1]
        self.assertRegex(out, r"^\*\*.* faster by more than 2 % on 3 of 3 shapes .* 1\.1\d times")

    def test_a_peer_of_another_gpu_stands_apart(self):
        _, out, _ = run_main(self.records([0.5, 0.5, 0.5], gpu={"uuid_hash": "0the0the0the0the"}))
        self.assertIn("Beside peers of another GPU of the same kind", out.splitlines()[0])
        self.assertNotIn("of the same NVIDIA H200", out)

    def test_a_peer_that_rested_otherwise_stands_apart_and_hides_none_that_did_not(self):
        path = self.records([0.9, 0.9, 0.9])
        machine = Machine(seed=3)
        rested = machine.run("peers", [KernelCase(case.kernel, case.shape, case.us / 2, implementation="rested",
                                                  library=("quick", "1")) for case in self.cases[:1]])
        rested[1]["rested"] = True
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in rested)
        out = run_main(path)[1].splitlines()
        self.assertRegex(out[0], r"faster by more than 2 % on 3 of 3 shapes \(ours of aaaaaaa\); at worst 1\.1\d times")
        self.assertRegex("\n".join(out), r"\n\*\*Beside peers of another GPU .* on 1 of 1 shape \(ours of aaaaaaa\); at worst [12]\.\d\d times")

    def test_the_larger_group_has_the_table(self):
        path = self.records([0.9, 0.9, 0.9], gpu={"uuid_hash": "0the0the0the0the"})
        near = [KernelCase(case.kernel, case.shape, case.us / 2, implementation="near", library=("quick", "1"))
                for case in self.cases[:1]]
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in Machine(seed=3).run("peers", near))
        out = run_main(path)[1]
        self.assertRegex(out, r"^\*\*Beside peers of the same NVIDIA H200\.\*\* .* In the geometric mean")
        self.assertRegex(out, r"\| `linear` \| [23] \|")

    def test_a_limit_that_a_row_is_faster_than_is_marked(self):
        path = self.records([0.9, 1.2, 1.2])
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        for factor, mark in ((0.9, ""), (1.1, ", wrong")):
            for line in lines:
                if line["kind"] == "row":
                    line["floor_us"] = factor * line["median_us"]
                    line |= {"percent_of_measured_peak": 100 * factor, "limit_is_wrong": factor > 1}
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            self.assertRegex(run_main(path)[1], rf"\| [0-9.,]+ µs{mark} \| [01]\.\d\d \|\n")

    def refused_later(self, **verified):
        """Records of which a newer run refuses the peer's row on the first shape, of three that were faster."""
        path = self.records([0.5, 0.9, 0.9])
        later = Machine(seed=4, start=START + datetime.timedelta(days=1))
        peer = KernelCase(self.cases[0].kernel, self.cases[0].shape, 1.0, implementation="quick", library=("quick", "1"))
        lines = later.run("peers", [peer], refused={peer: "a reason"})
        lines[1]["verified"] = {"before": False, "after": False, "audits": 0} | verified
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return path

    def test_a_peer_that_was_not_measured_replaces_no_figure(self):
        path = self.refused_later(max_error_over_bound=0.0)
        self.assertRegex(run_main(path)[1], r"^\*\*Beside .* faster by more than 2 % on 3 of 3 shapes \(ours of aaaaaaa\); at worst (1\.9|2\.0)\d times")
        self.assertIn("1 other rows of the same measurements", run_here("table", path)[1])
        self.assertNotIn("a reason", run_here("table", path)[1])

    def test_a_peer_whose_output_was_found_wrong_replaces_its_figure(self):
        path = self.refused_later(max_error_over_bound=3.0)
        self.assertRegex(run_main(path)[1], r"on 2 of 2 shapes \(ours of aaaaaaa\); at worst 1\.[01]\d times")
        self.assertIn("a reason", run_here("table", path)[1])

    def test_a_workloads_peer_stands_beside_the_newest_run_of_its_own_gpu(self):
        peer_gpu = Machine(seed=1)
        peer = workload_run(peer_gpu, 50.0, implementation="quick", library={"name": "quick", "version": "1"},
                            verified={"new_tokens": True})
        later = Machine(seed=2, start=START + datetime.timedelta(days=1), gpu={"uuid_hash": "0the0the0the0the"})
        ours = {"older": workload_run(peer_gpu, 100.0), "beside": workload_run(peer_gpu, 25.0),
                "elsewhere": workload_run(later, 20.0)}
        path = os.path.join(self.folder, "workloads.jsonl")
        write(path, [*peer, *ours["older"], *ours["beside"], *ours["elsewhere"]])
        words = r"^\*\*Workloads\.\*\* On the workload nano-vllm, quick 1 generates [12]\d,\d+ tok/s, and Tokline "
        self.assertRegex(run_main(path)[1], words + r"on the same GPU [34]\d,\d+ \(\w+\), (1\.9|2\.0)\d times as many\.")
        self.assertRegex(run_here("table", path)[1], r"(?m)^.* cuda .* (5\d|49),\d\d\d ")
        write(path, [*peer, *ours["elsewhere"]])
        self.assertRegex(run_main(path)[1], words + r"[45]\d,\d+, but on another GPU\.")

    def test_the_readme_names_ptx_whose_record_has_no_failure(self):
        root = Path(__file__).resolve().parents[3]
        link = re.search(r"\[PTX\]\((\S+?)\)", (root / "README.md").read_text(encoding="utf-8"))[1]
        lines = [json.loads(line) for line in (root / link).read_text(encoding="utf-8").splitlines()]
        for code in ("80-virtual", "90-virtual"):
            exits = {line["program"]: line["exit"] for line in lines if line["code"] == code}
            self.assertEqual(exits.pop("sharded_decode_cuda_test"), 77, "it takes two GPUs")
            self.assertEqual((len(exits) > 20, set(exits.values())), (True, {0}), code)

    def test_the_committed_pages_say_what_the_committed_records_say(self):
        root = Path(__file__).resolve().parents[3]
        for folder, pages in (("results/h200", ("README.md", "results/h200/README.md")),
                              ("results/h100", ("results/h100/README.md", "results/h100/notes.md"))):
            _, out, _ = run_main(str(root / folder))
            for page in pages:
                self.assertIn(out.strip(), unwrapped((root / page).read_text(encoding="utf-8")),
                              f"{page}: scripts/maintain/record results/h200 --only page, and scripts/records standing "
                              f"{folder} --into {page}")

    def test_a_page_is_rewritten_between_its_marks_alone(self):
        page = os.path.join(self.folder, "page.md")
        with open(page, "w") as file:
            file.write("before\n<!-- standing -->\nold\n<!-- /standing -->\nafter\n")
        self.assertEqual(run_main(self.records([0.5, 1.5, 1.5]), "--into", page)[0], 0)
        with open(page) as file:
            text = file.read()
        self.assertRegex(text, r"(?s)^before\n<!-- standing -->\n\*\*Beside .* A peer is faster .*\n<!-- /standing -->\nafter\n$")
        self.assertNotIn("old", text)

    def test_a_page_without_marks_is_refused_and_stays(self):
        page = os.path.join(self.folder, "page.md")
        with open(page, "w") as file:
            file.write("text\n")
        code, _, err = run_main(self.records([1.0, 1.0, 1.0]), "--into", page)
        self.assertEqual(code, 1)
        self.assertIn("has 0 pairs of the lines", err)
        with open(page) as file:
            self.assertEqual(file.read(), "text\n")


if __name__ == "__main__":
    unittest.main()
