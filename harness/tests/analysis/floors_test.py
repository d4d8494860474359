"""scripts/maintain/floors on the records of a simulated machine."""

import json
import subprocess
import unittest
from pathlib import Path

from command_case import CommandTest
from synthetic import DecoderCase, KernelCase, Machine
from synthetic_workload import workload_run

ROOT = Path(__file__).resolve().parents[3]
LONG = (("name", "b32_s8192_h32-8"), ("page_size", 256))
LONG_OTHER_PAGES = (("name", "b32_s8192_h32-8"), ("page_size", 64))
SHORT = (("name", "b1_s4096_h16-8"), ("page_size", 256))


class FloorsTest(CommandTest):
    def record(self, name, cases, **how):
        self.write(name, self.machine.run("bench_x", cases, **how))

    def decoder(self, *cases):
        self.write("decoder.jsonl", self.machine.decoder_run(cases))

    def lines(self, expect):
        done = subprocess.run([ROOT / "scripts/maintain/floors", self.folder], text=True, capture_output=True)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
        return {line[0]: dict(zip(table[0], line)) for line in table[2:]}

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
        short = lines["chunk_decode 1 x 4,096, 16/8 heads"]
        self.assertAlmostEqual(float(short["measured"]), 13, delta=0.5)
        self.assertAlmostEqual(float(short["in a dependent chain"]), 12, delta=0.5)
        self.assertRegex(short["best peer"], r"^1[01](\.\d+)? us fast$")
        self.assertEqual(short["met"], "yes")
        long = lines["chunk_decode 32 x 8,192, 32/8 heads"]
        self.assertRegex(long["measured"], r"^[\d.]+ \(2[45]\d(\.\d)? us\)$")
        self.assertEqual(long["best peer"], "no record")
        missing = lines["paged_prefill 1 x 16,384, 32/8 heads, causal"]
        self.assertEqual((missing["measured"], missing["met"]), ("no record", "NO"))

    def test_a_peer_that_ran_on_another_gpu_is_said_to_have(self):
        self.record("kernels.jsonl", [KernelCase("chunk_decode", SHORT, 13.0)])
        peer = [KernelCase("chunk_decode", SHORT, 11.0, "fast", library=("a", "1"))]
        self.write("peers.jsonl", Machine(seed=9, gpu={"name": "NVIDIA H200", "uuid_hash": "1"}).run("peers", peer))
        best = self.lines(expect=1)["chunk_decode 1 x 4,096, 16/8 heads"]["best peer"]
        self.assertRegex(best, r"^1[01](\.\d+)? us fast, on another GPU$")

    def test_slowed_ablated_and_older_rows_do_not_count(self):
        self.record("kernels.jsonl", [KernelCase("chunk_decode", SHORT, 40.0)])
        with open(self.folder / "kernels.jsonl", "a", encoding="utf-8") as file:
            for us, injected in ((15.0, None), (30.0, {"slowdown_percent": 100})):
                for line in self.machine.run("bench_x", [KernelCase("chunk_decode", SHORT, us)], injected=injected):
                    file.write(json.dumps(line) + "\n")
        self.decoder(DecoderCase(batch=1, implementation="cuda without graphs"))
        lines = self.lines(expect=1)
        self.assertEqual(lines["chunk_decode 1 x 4,096, 16/8 heads"]["met"], "yes")
        self.assertEqual(lines["decoder, Qwen3-0.6B shape, batch 1, 128 in / 128 out"]["measured"], "no record")

    def test_figures_beside_the_records_are_held_against_their_floors(self):
        self.record("kernels.jsonl", [KernelCase("chunk_decode", SHORT, 40.0)])
        self.decoder(DecoderCase(batch=1))
        (self.folder / "load.json").write_text('{"wall_s": 3.5, "beyond_mapped_file_mib": 100}')
        (self.folder / "parity_qwen3-0.6b.json").write_text('{"ratio": 1.2}')
        (self.folder / "transformers_tokps.json").write_text(
            '{"rows": [{"implementation": "transformers_compiled", "decode_tokps": 452.1}]}'
        )
        met = {name: line["met"] for name, line in self.lines(expect=1).items()}
        self.assertEqual(met["loading: peak host memory beyond the mapped file"], "yes")
        self.assertEqual(
            [line for name, line in met.items() if name.startswith(("loading: start", "chunk_decode 1"))],
            ["NO", "NO"],
        )
        parity = [line for name, line in met.items() if name.startswith("parity")]
        self.assertEqual(parity, ["yes"] + ["NO"] * 5)  # no record of the other models

    def test_workload_of_the_floors_model_and_settings_counts(self):
        work = "nano-vllm's workload, Qwen3-0.6B shape, 256 at a time, output"
        self.write("workloads.jsonl", workload_run(self.machine, 50.0))
        line = self.lines(expect=1)[work]
        self.assertAlmostEqual(float(line["measured"].replace(",", "")), 20000, delta=400)
        self.assertEqual(line["met"], "yes")
        self.write("workloads.jsonl", workload_run(self.machine, 60.0))
        self.assertEqual(self.lines(expect=1)[work]["met"], "NO")
        self.write("workloads.jsonl", workload_run(self.machine, 50.0, model="qwen3-4b"))
        self.assertEqual(self.lines(expect=1)[work]["measured"], "no record")

    def test_broken_files_are_misuse(self):
        self.lines(expect=2)  # no records
        self.decoder(DecoderCase(batch=1))
        self.lines(expect=1)
        (self.folder / "load.json").write_text("{")
        self.lines(expect=2)


if __name__ == "__main__":
    unittest.main()
