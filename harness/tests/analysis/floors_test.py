"""scripts/maintain/floors on the records of a simulated machine."""

import json
import shutil
import subprocess
import unittest
from dataclasses import replace
from pathlib import Path

from command_case import CommandTest
from scratch_repository import git
from synthetic import DecoderCase, Effect, KernelCase, Machine
from synthetic_workload import workload_run

ROOT = Path(__file__).resolve().parents[3]
FLOORS = """[
  {"work": "decoder, batch 1", "unit": "tok/s", "at_least": 1000, "decoder": {"model": "qwen3-0.6b", "implementation": "cuda", "batch": 1}, "value": "decode_tok_s"},
  {"work": "decode, long", "unit": "% of measured read peak", "at_least": 20, "kernel": "chunk_decode", "shape": {"name": "b32_s8192_h32-8", "page_size": 256}, "value": "percent_of_measured_peak"},
  {"work": "decode, short", "unit": "us", "at_most": 20, "kernel": "chunk_decode", "shape": {"name": "b1_s4096_h16-8", "page_size": 256}, "value": "median_us"},
  {"work": "prefill", "unit": "TFLOP/s", "at_least": 250, "kernel": "paged_prefill", "shape": {"name": "b1_s16384_h32-8", "page_size": 256}, "value": "tflops"},
  {"work": "workload", "unit": "tok/s", "at_least": 19300, "model": "qwen3-0.6b", "workload": {"name": "nano-vllm", "max_batch": 256, "reuse": false, "kv_limit": null}, "value": "output_tok_s"},
  {"work": "start", "unit": "s", "at_most": 3, "load": "wall_s"},
  {"work": "host memory", "unit": "MiB", "at_most": 512, "load": "beyond_mapped_file_mib"},
  {"work": "parity", "unit": "ratio", "at_most": 1.25, "parity": "parity_qwen3-0.6b.json"},
  {"work": "parity of another", "unit": "ratio", "at_most": 1.25, "parity": "parity_gpt2.json"}
]"""  # as wide as the tests of everything but the ratchet need them
LONG = (("name", "b32_s8192_h32-8"), ("page_size", 256))
LONG_OTHER_PAGES = (("name", "b32_s8192_h32-8"), ("page_size", 64))
SHORT = (("name", "b1_s4096_h16-8"), ("page_size", 256))


class FloorsTest(CommandTest):
    def record(self, name, cases, **how):
        self.write(name, self.machine.run("bench_x", cases, **how))

    def decoder(self, *cases):
        self.write("decoder.jsonl", self.machine.decoder_run(cases))

    def lines(self, expect, *options, noise_percent=90):
        """The table's lines by their work. With the noise of 90 % the ratchet asks for nothing."""
        floors = self.folder / "floors.json"
        if not floors.exists():
            floors.write_text(json.dumps([floor | {"noise_percent": noise_percent} for floor in json.loads(FLOORS)]))
        done = subprocess.run([ROOT / "scripts/maintain/floors", self.folder, "--floors", floors, *options], text=True,
                              capture_output=True)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        self.errors = done.stderr
        table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
        return {line[0]: dict(zip(table[0], line)) for line in table[2:]}

    def test_a_row_that_was_refused_last_has_no_figure(self):
        case = KernelCase("chunk_decode", SHORT, 13.0)
        self.record("old.jsonl", [case])
        self.record("new.jsonl", [case], refused={case: "unverified: wrong"})
        self.assertEqual(self.lines(expect=1)["decode, short"]["measured"], "no record")

    def test_the_suites_figure_stands_beside_the_fastest_peer_on_the_same_shape(self):
        self.record(
            "kernels.jsonl",
            [
                KernelCase("chunk_decode", SHORT, 13.0),
                KernelCase("chunk_decode", SHORT, 12.0, chain="dependent"),
                KernelCase("chunk_decode", LONG, 250.0),
                KernelCase("chunk_decode", LONG_OTHER_PAGES, 2.0),
            ],
        )
        self.record(
            "peers.jsonl",
            [
                KernelCase("chunk_decode", SHORT, 11.0, "fast", library=("a", "1")),
                KernelCase("chunk_decode", SHORT, 11.5, "slow", library=("b", "1")),
                KernelCase("chunk_decode", LONG_OTHER_PAGES, 1.0, "other", library=("a", "1")),
            ],
        )
        self.decoder(DecoderCase(batch=1))
        lines = self.lines(expect=1)
        short = lines["decode, short"]
        self.assertAlmostEqual(float(short["measured"]), 13, delta=0.5)
        self.assertAlmostEqual(float(short["in a dependent chain"]), 12, delta=0.5)
        self.assertRegex(short["best peer"], r"^1[01](\.\d+)? us fast$")
        self.assertEqual(short["met"], "yes")
        long = lines["decode, long"]
        self.assertRegex(long["measured"], r"^[\d.]+ \(2[45]\d(\.\d)? us\)$")
        self.assertEqual(long["best peer"], "no record")
        missing = lines["prefill"]
        self.assertEqual((missing["measured"], missing["met"]), ("no record", "NO"))

    def test_a_peer_that_ran_on_another_gpu_is_said_to_have(self):
        self.record("kernels.jsonl", [KernelCase("chunk_decode", SHORT, 13.0)])
        peer = [KernelCase("chunk_decode", SHORT, 11.0, "fast", library=("a", "1"))]
        self.write("peers.jsonl", Machine(seed=9, gpu={"name": "NVIDIA H200", "uuid_hash": "1"}).run("peers", peer))
        best = self.lines(expect=1)["decode, short"]["best peer"]
        self.assertRegex(best, r"^1[01](\.\d+)? us fast, on another GPU$")

    def test_slowed_ablated_and_older_rows_do_not_count(self):
        self.record("kernels.jsonl", [KernelCase("chunk_decode", SHORT, 40.0)])
        with open(self.folder / "kernels.jsonl", "a", encoding="utf-8") as file:
            for us, injected in ((15.0, None), (30.0, {"slowdown_percent": 100})):
                for line in self.machine.run("bench_x", [KernelCase("chunk_decode", SHORT, us)], injected=injected):
                    file.write(json.dumps(line) + "\n")
        self.decoder(DecoderCase(batch=1, implementation="cuda without graphs"))
        lines = self.lines(expect=1)
        self.assertEqual(lines["decode, short"]["met"], "yes")
        self.assertEqual(lines["decoder, batch 1"]["measured"], "no record")

    def test_figures_beside_the_records_are_held_against_their_floors(self):
        self.record("kernels.jsonl", [KernelCase("chunk_decode", SHORT, 40.0)])
        self.decoder(DecoderCase(batch=1))
        (self.folder / "load.json").write_text('{"wall_s": 3.5, "beyond_mapped_file_mib": 400}')
        (self.folder / "parity_qwen3-0.6b.json").write_text('{"ratio": 1.2, "peaked": true, "layers": {"ratio": 1}}')
        (self.folder / "parity_gpt2.json").write_text('{"ratio": 1.2}')
        (self.folder / "transformers_tokps.json").write_text(
            '{"rows": [{"implementation": "transformers_compiled", "decode_tokps": 452.1}]}'
        )
        met = {name: line["met"] for name, line in self.lines(expect=1).items()}
        self.assertEqual(met["host memory"], "yes")
        self.assertEqual(
            [line for name, line in met.items() if name.startswith(("start", "decode, short"))],
            ["NO", "NO"],
        )
        parity = [line for name, line in met.items() if name.startswith("parity")]
        self.assertEqual(parity, ["yes", "not judged: flat logits"])
        (self.folder / "parity_gpt2.json").unlink()
        self.assertEqual(self.lines(expect=1)["parity of another"]["met"], "NO")

    def test_workload_of_the_floors_model_and_settings_counts(self):
        work = "workload"
        self.write("workloads.jsonl", workload_run(self.machine, 50.0))
        line = self.lines(expect=1)[work]
        self.assertAlmostEqual(float(line["measured"].replace(",", "")), 20000, delta=400)
        self.assertEqual(line["met"], "yes")
        self.write("workloads.jsonl", workload_run(self.machine, 60.0))
        self.assertEqual(self.lines(expect=1)[work]["met"], "NO")
        self.write("workloads.jsonl", workload_run(self.machine, 50.0, model="qwen3-4b"))
        self.assertEqual(self.lines(expect=1)[work]["measured"], "no record")

    def test_a_floor_without_a_depth_or_page_size_is_of_none_and_of_256(self):
        case = DecoderCase(batch=1)
        for fields, met in (({}, "yes"), ({"page_size": 256, "depth": 0}, "yes"), ({"page_size": 64}, "NO"),
                            ({"depth": 4096}, "NO")):
            run = self.machine.decoder_run([case])
            run[1] |= fields
            self.write("decoder.jsonl", run)
            self.assertEqual(self.lines(1)["decoder, batch 1"]["met"], met, fields)
        slow = self.machine.decoder_run([case], effects=[Effect(percent=300)])
        slow[1]["page_size"] = 64
        self.machine.wait(days=1)
        self.write("decoder.jsonl", slow + self.machine.decoder_run([case]))
        self.assertEqual(self.lines(1)["decoder, batch 1"]["met"], "yes")
        slow = workload_run(self.machine, 500.0)
        slow[1]["shape"] |= {"page_size": 64}
        self.write("workloads.jsonl", slow + workload_run(self.machine, 50.0))
        self.assertEqual(self.lines(1)["workload"]["met"], "yes")

    def test_a_floor_that_fits_several_rows_is_misuse(self):
        self.decoder(DecoderCase(batch=1), DecoderCase(batch=1, prompt_tokens=4096))
        self.lines(expect=2)
        self.assertRegex(self.errors, r"'decoder, batch 1' fits 2 rows, .* 128\+128 tokens .* 4096\+128 tokens .*: it "
                                      "must name what tells them apart")
        self.decoder(DecoderCase(batch=1))
        other = workload_run(self.machine, 50.0)
        other[1]["shape"] |= {"rate": 2}
        self.write("workloads.jsonl", workload_run(self.machine, 50.0) + other)
        self.lines(expect=2)
        self.assertRegex(self.errors, r"'workload' fits 2 rows, .* rate 2 cuda .* and .*: it must")

    def test_a_floor_may_be_of_a_dependent_chain(self):
        floor = {"work": "dependent", "unit": "us", "at_most": 7, "kernel": "chunk_decode", "shape": dict(SHORT),
                 "chain": "dependent", "value": "median_us"}
        (self.folder / "floors.json").write_text(json.dumps([floor]))
        plain = KernelCase("chunk_decode", SHORT, 6.0)
        dependent = replace(plain, us=8.0, chain="dependent")
        self.record("kernels.jsonl", [plain])
        self.assertEqual(self.lines(1)["dependent"]["measured"], "no record")
        self.record("kernels.jsonl", [plain, dependent])
        line = self.lines(1)["dependent"]
        self.assertAlmostEqual(float(line["measured"]), 8, delta=0.5)
        self.assertEqual((line["floor"], line["met"]), ("<= 7 us, dependent", "NO"))
        self.record("kernels.jsonl", [replace(plain, us=20.0), replace(dependent, us=4.0)])
        self.assertEqual(self.lines(0, "--ratchet")["dependent"]["met"], "yes")
        self.assertAlmostEqual(json.loads((self.folder / "floors.json").read_text())[0]["at_most"], 4.12, delta=0.2)

    def test_a_faster_variant_that_the_kernel_would_not_take_does_not_meet_a_floor(self):
        taken = KernelCase("chunk_decode", SHORT, 30.0, chosen=True)
        self.record("kernels.jsonl", [taken, replace(taken, us=10.0, implementation="cuda_warps", chosen=False)])
        line = self.lines(1)["decode, short"]
        self.assertAlmostEqual(float(line["measured"].split()[0]), 30, delta=1)
        self.assertEqual(line["met"], "NO")

    def test_a_floor_that_is_lower_than_the_ratchet_allows_is_not_met_until_it_is_raised(self):
        self.record("kernels.jsonl", [KernelCase("chunk_decode", SHORT, 10.0), KernelCase("chunk_decode", LONG, 250.0)])
        self.decoder(DecoderCase(batch=1))
        (self.folder / "load.json").write_text('{"wall_s": 2.95, "beyond_mapped_file_mib": 600}')
        before = self.lines(1, noise_percent=3)
        self.assertRegex(before["decode, short"]["met"], r"^NO: the floor must be <= 10\.\d+ by now \(--ratchet\)$")
        self.assertRegex(before["decoder, batch 1"]["met"], r"^NO: the floor must be >= 1,\d+ by now")
        self.assertEqual(before["start"]["met"], "yes")  # 3 is within 3 % of 2.95
        after = self.lines(1, "--ratchet")
        self.assertEqual({after[work]["met"] for work in ("decode, short", "decode, long", "decoder, batch 1")}, {"yes"})
        self.assertEqual(after["start"]["floor"], "<= 3 s")
        self.assertEqual(after["host memory"]["floor"], "<= 512 MiB", "a missed floor stays")
        raised = json.loads((self.folder / "floors.json").read_text())
        self.record("kernels.jsonl", [KernelCase("chunk_decode", SHORT, 12.0)])
        self.assertEqual(self.lines(1, "--ratchet")["decode, short"]["met"], "NO")
        self.assertEqual(json.loads((self.folder / "floors.json").read_text()), raised, "none is lowered")

    def test_the_ratchet_looks_at_what_git_has_of_the_records(self):
        def commit():
            for words in (["add", "."], ["commit", "-q", "-m", "records"]):
                git(self.folder, *words)

        git(self.folder, "init", "-q")
        self.lines(2, noise_percent=3)
        for us, wall_s in ((10.0, 2.0), (14.0, 2.8)):
            self.record("kernels.jsonl", [KernelCase("chunk_decode", SHORT, us)])
            (self.folder / "load.json").write_text(json.dumps({"wall_s": wall_s, "beyond_mapped_file_mib": 400}))
            commit()
        after = self.lines(1, "--ratchet")
        self.assertRegex(after["decode, short"]["floor"], r"^<= 10\.\d+ us$")
        self.assertEqual((after["start"]["floor"], after["start"]["met"]), ("<= 2.06 s", "NO"))

    def test_the_committed_floors_are_as_high_as_the_committed_records_allow(self):
        committed, raised = ROOT / "results/floors.json", self.folder / "floors.json"
        shutil.copy(committed, raised)
        done = subprocess.run([ROOT / "scripts/maintain/floors", ROOT / "results/h200", "--floors", raised, "--ratchet"],
                              text=True, capture_output=True)
        self.assertIn("nano-vllm's workload", done.stdout)
        self.assertEqual(raised.read_text(), committed.read_text(),
                         "scripts/maintain/floors results/h200 --ratchet raises them")

    def test_a_peer_that_was_refused_as_too_fast_is_not_passed_over(self):
        peers = [KernelCase("chunk_decode", SHORT, us, name, library=(name, "1")) for us, name in ((9.0, "a"), (11.0, "b"))]
        self.record("kernels.jsonl", [KernelCase("chunk_decode", SHORT, 13.0)])
        self.record("peers.jsonl", peers, refused={peers[0]: "above the roofline: it is"})
        self.assertEqual(self.lines(1)["decode, short"]["best peer"], "a faster one was refused")

    def test_broken_files_are_misuse(self):
        self.lines(expect=2)  # no records
        self.decoder(DecoderCase(batch=1))
        self.lines(expect=1)
        (self.folder / "load.json").write_text("{")
        self.lines(expect=2)


if __name__ == "__main__":
    unittest.main()
