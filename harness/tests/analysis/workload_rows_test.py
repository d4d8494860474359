"""Workload rows: what is read and refused, what gates, and what the tools show of them."""

import csv
import io
import json
import subprocess
import unittest
from pathlib import Path

import synthetic
from command_case import CommandTest
from synthetic_workload import NEW_TOKENS, rate_sweep, workload_run
from tokline import records
from tokline.records import BadRecords
from tokline.report.evidence import Evidence

TABLE = [Path(__file__).parents[3] / "scripts/records", "table"]


class WorkloadRowsTest(CommandTest):
    def rounds(self, name, count, us=50.0, repeats=3, **changes):
        return self.write(
            name, [line for _ in range(count) for line in workload_run(self.machine, us, repeats, **changes)]
        )

    def gate(self, b, *, a=None, expect):
        a = a or self.rounds("a.jsonl", 5)
        return self.run_command("gate", "--baseline", a, "--candidate", b, expect=expect).stdout

    def refuses(self, expression, **changes):
        with self.assertRaisesRegex(BadRecords, expression):
            records.read(self.write("bad.jsonl", workload_run(self.machine, **changes)))

    def test_row_is_read_and_its_samples_are_microseconds_a_token(self):
        (run,) = records.read(self.rounds("a.jsonl", 1))
        (row,) = run.rows
        self.assertEqual(len(records.samples_us(row)), 3)
        self.assertAlmostEqual(records.samples_us(row)[0], 1e6 * row["samples_s"][0] / NEW_TOKENS)
        self.assertEqual(str(records.key(row)), "workload qwen3-0.6b nano-vllm page 256 batch 256 cuda bf16")

    def test_other_requests_or_another_way_to_run_them_are_another_row(self):
        shape = workload_run(self.machine)[1]["shape"]
        keys = set()
        for change in (
            {}, {"hash": "f" * 16}, {"max_batch": 64}, {"token_budget": 512}, {"reuse": True},
            {"reuse": True, "sharing": "never"}, {"kv_limit": {"fraction": 0.5}},):
            row = workload_run(self.machine, shape=shape | change)[1]
            keys.add(records.key(row))
        self.assertEqual(len(keys), 7)
        unshared = workload_run(self.machine, shape=shape | {"reuse": True, "sharing": "never"})[1]
        self.assertIn("sharing never", str(records.key(unshared)))
        self.assertIn("reuse", str(records.key(workload_run(self.machine, shape=shape | {"reuse": True})[1])))
        limited = workload_run(self.machine, shape=shape | {"kv_limit": {"fraction": 0.5}})[1]
        self.assertIn("kv fraction 0.5", str(records.key(limited)))

    def test_figures_that_do_not_follow_are_refused(self):
        self.refuses("output_tok_s is", output_tok_s=30000.0)
        self.refuses("total_tok_s is", total_tok_s=1.0)
        self.refuses("total_s is", total_s=1.0)
        self.refuses("median_us is", median_us=1.0)
        self.refuses("a round or a repeat gives one of each", samples_new_tokens=[NEW_TOKENS])
        self.refuses("memory_bytes is 5, but its parts", memory_bytes=5)
        self.refuses("does not ascend", first_token_ms={"median": 5.0, "p90": 3.0, "p99": 9.0})
        self.refuses("first_token_ms.p99 is 9.0 of 99 latencies; it is stated of 100",
                     first_token_ms={"count": 99, "median": 5.0, "p90": 7.0, "p99": 9.0})
        self.refuses("good_requests, shape.requests does not ascend", good_requests=257,
                     slo={"first_token_ms": 200.0, "mean_between_ms": None})
        self.refuses("has no field 'good_requests'", slo={"first_token_ms": 200.0, "mean_between_ms": None})
        self.refuses("end_to_end_ms.p90 is null of 10 latencies",
                     end_to_end_ms={"count": 10, "median": 5.0, "p90": None, "p99": None})
        self.refuses("no field 'hash'", shape={"name": "x"})
        self.refuses("row.median_us is .*; it must be absent", status="refused", reason="interrupted")
        self.refuses("kv_pages is 0", kv_pages=0)

    def test_older_rows_and_those_of_few_requests_are_read_and_shown(self):
        few = {"count": 5, "median": 480.0, "p90": None, "p99": None}
        row = workload_run(self.machine, first_token_ms=few, between_tokens_ms=None)
        del row[1]["end_to_end_ms"]
        path = self.write("few.jsonl", row)
        shown = subprocess.run([*TABLE, path], capture_output=True, text=True, check=True).stdout
        self.assertRegex(shown, r" 480, -, - +23 / 37 %")
        page = self.folder / "few.html"
        self.run_command("report", path, "-o", page, expect=0)
        self.assertIn("480, -, -", page.read_text())
        self.run_command("export", path, "--format", "csv", expect=0)

    def test_rates_of_one_workload_are_rows_that_the_report_draws_together(self):
        path = self.write("sweep.jsonl", rate_sweep(self.machine))
        rows = [row for run in records.read(path) for row in run.rows]
        self.assertEqual(str(records.key(rows[0])), "workload qwen3-0.6b nano-vllm page 256 batch 256 rate 0.5 cuda bf16")
        ((name, entries),) = Evidence(records.read(path)).rate_sweeps.items()
        self.assertEqual(name, "qwen3-0.6b, bf16, cuda, nano-vllm, page 256, batch 256")
        self.assertEqual([entry.row["shape"]["rate"] for entry in entries], [0.5, 1, 2, 4, "inf"])
        page = self.folder / "sweep.html"
        self.run_command("report", path, "-o", page, expect=0)
        text = page.read_text()
        best = max(rows, key=lambda row: row["goodput_req_s"])
        for words in ("Workloads over the request rate", 'aria-label="Output tokens per second, latencies and goodput',
                      f"at most {best['goodput_req_s']:.1f} requests per second met 200 ms to the first token and 20.0 ms "
                      f"between tokens, where {best['shape']['rate']:g} arrived."):
            self.assertIn(words, text)
        self.assertNotIn('aria-label="Output tokens per second and latencies', text)
        one = self.write("one.jsonl", rate_sweep(self.machine, rates=(2,)))
        self.assertEqual(Evidence(records.read(one)).rate_sweeps, {})

    def test_gate_sees_slower_throughput(self):
        said = self.gate(self.rounds("b.jsonl", 5, us=54.0), expect=1)
        self.assertRegex(said, "gate: worse: workload qwen3-0.6b nano-vllm .*slower by [78]")

    def test_gate_passes_equal_and_faster_throughput(self):
        self.assertIn("same or faster", self.gate(self.rounds("b.jsonl", 5), expect=0))
        self.assertIn(" faster", self.gate(self.rounds("b.jsonl", 5, us=45.0), expect=0))

    def test_one_run_of_three_repeats_is_undecided_not_the_same(self):
        a, b = self.rounds("a.jsonl", 1), self.rounds("b.jsonl", 1, us=60.0)
        self.assertIn("gate: undecided: 1 row", self.gate(b, a=a, expect=3))

    def test_gate_sees_memory_but_not_a_pool_that_takes_what_is_free(self):
        memory = workload_run(self.machine)[1]["memory"]
        larger = memory | {"kv_cache": 2 * memory["kv_cache"]}
        pool = self.rounds("b.jsonl", 5, memory=larger, memory_bytes=sum(larger.values()))
        self.assertIn("same or faster", self.gate(pool, expect=0))
        more = memory | {"workspaces": 3 * memory["workspaces"]}
        grown = self.rounds("b.jsonl", 5, memory=more, memory_bytes=sum(more.values()))
        self.assertIn("memory grew", self.gate(grown, expect=1))

    def test_gate_takes_the_rows_of_another_program(self):
        committed = Path(__file__).parents[3] / "results/h200/workloads.jsonl"  # has a row of nano-vllm
        lines = [json.loads(line) for line in committed.read_text().splitlines() if line]
        headers = {line["run_id"]: line for line in lines if line["kind"] == "run"}
        newest = max(headers.values(), key=lambda header: header["fingerprint"]["time_utc"])["fingerprint"]["commit"]
        both = self.write("both.jsonl", [line for line in lines for header in (headers[line["run_id"]],)
                                         if header["program"] == "peers" or header["fingerprint"]["commit"] == newest])
        self.assertIn("same or faster", self.gate(both, a=both, expect=0))

    def test_gate_sees_texts_that_are_no_longer_the_models(self):
        worse = self.rounds("b.jsonl", 5, verified={"tokens": 256, "mean_regret": 0.012})
        self.assertIn("mean regret grew", self.gate(worse, expect=1))
        drawn = self.rounds("b.jsonl", 5, verified={"tokens": 256, "mean_regret": 0.006})
        self.assertIn("same or faster", self.gate(drawn, expect=0))
        b = []
        for _ in range(5):
            lines = workload_run(self.machine)
            row = lines[1]
            for name in set(row) - set(_REFUSED_FIELDS):
                del row[name]
            row |= {"status": "refused", "reason": "unverified: the mean regret of 256 tokens is 0.4"}
            lines[-1]["refused"] = 1
            b += lines
        self.assertIn("unverified", self.gate(self.write("b.jsonl", b), expect=1))

    def test_table_shows_figures_and_refusals(self):
        refused = {name: value for name, value in workload_run(self.machine)[1].items() if name in _REFUSED_FIELDS}
        refused |= {"status": "refused", "reason": "interrupted", "shape": refused["shape"] | {"reuse": True}}
        header, row, end = workload_run(self.machine)
        refused["run_id"] = header["run_id"]
        path = self.write("a.jsonl", [header, row, refused, end | {"rows": 2, "refused": 1}])
        shown = subprocess.run([*TABLE, path], capture_output=True, text=True, check=True).stdout
        self.assertRegex(shown, r"nano-vllm, page 256, batch 256 .* 480, 900, 1,100 .* 23 / 37 % +3 ")
        self.assertRegex(shown, "refused: workload nano-vllm, page 256, batch 256, reuse, cuda: interrupted")

    def test_report_has_a_section_with_the_numbers(self):
        page = self.folder / "report.html"
        path = self.write(
            "a.jsonl",
            workload_run(self.machine)
            + self.machine.run("bench_x", self.cases)
            + self.machine.decoder_run(synthetic.decoder_cases()),
        )
        self.run_command("report", path, "-o", page, expect=0)
        text = page.read_text()
        rate = f"{records.read(path)[0].rows[0]['output_tok_s']:,.0f}"
        for words in ("Workloads: continuous batching", f"{rate}</span> <span class=\"unit\">tok/s</span><br><span class=\"of\">nano-vllm",
                      "480, 900, 1,100", "142,827 + 133,966", "700 / 1,100 / 3,000", "yes, regret 0.0004"):
            self.assertIn(words, text)
        self.assertIn('aria-label="Output tokens per second and latencies', text)
        evidence = Evidence(records.read(path))
        self.assertNotIn("workload", evidence.kernels)
        self.assertNotIn("workload", {entry.kernel for entry in evidence.ours()})

    def test_export_has_a_line_a_row_in_microseconds_a_token(self):
        path = self.rounds("a.jsonl", 1)
        (line,) = csv.DictReader(io.StringIO(self.run_command("export", path, "--format", "csv", expect=0).stdout))
        (row,) = records.read(path)[0].rows
        self.assertAlmostEqual(float(line["median_us"]), row["median_us"])
        self.assertAlmostEqual(float(line["output_tok_s"]), row["output_tok_s"])
        self.assertEqual(
            (line["first_token_p90_ms"], line["between_tokens_median_ms"], line["preemptions"]), ("900.0", "10.5", "3"))


_REFUSED_FIELDS = ("schema", "kind", "run_id", "kernel", "implementation", "model", "shape", "dtype", "device",
                   "status", "reason", "interrupted", "disturbed", "library", "verified", "memory", "memory_bytes")

if __name__ == "__main__":
    unittest.main()
