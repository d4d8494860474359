"""scripts/records report on records of a simulated machine: what the page says, and what is refused."""
import datetime
import json
import os
import re
import time
import unittest
import xml.etree.ElementTree as xml
from unittest import mock

from report_case import HOSTILE, ReportCase, history, report_of_history, run_main
from synthetic import START, DecoderCase, Effect, KernelCase, Machine, decoder_cases, kernel_cases, write

from tokline import records
from tokline.report.canvas import draw
from tokline.report.evidence import Evidence
from tokline.report.page import Table
from tokline.report.wording import command_words

SECTIONS = ["standing", "roofline", "share", "throughput", "workloads", "history", "step", "blame", "ablation", "tables", "machine"]


def stretch(row, factor):
    """Makes a row slower, with all figures that follow."""
    row["samples_us"] = [sample * factor for sample in row["samples_us"]]
    row["ci95_us"] = [bound * factor for bound in row["ci95_us"]]
    for name in ("median_us", "mad_us", "fresh_us"):
        row[name] *= factor
    for name in ("gbps", "tflops", "percent_of_measured_peak", "percent_of_datasheet_peak"):
        row[name] /= factor


class ReportTest(ReportCase):
    def test_page_of_everything_is_whole_and_needs_no_network(self):
        text, page, _ = self.read(report_of_history())
        for anchor in SECTIONS:
            self.assertIn(anchor, page.ids)
        self.assertEqual(len(page.ids), len(set(page.ids)))
        self.assertFalse({"script", "img", "iframe", "object", "form"} & page.tags)
        for address in page.addresses:
            self.assertTrue(address.startswith("#") or address == "data:,", address)
            if address.startswith("#"):
                self.assertIn(address[1:], page.ids)
        self.assertIsNone(re.search(r"@import|url\((?!#)", text))
        self.says(page.text, "Title & more")
        self.assertNotIn("<b>output", text)
        self.assertNotIn("<script>", text)
        drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        self.assertEqual(len(drawings), 2 * 7)
        for drawing in drawings:
            xml.fromstring(drawing.replace("xlink:href", "href"))
        self.assertNotIn("#0102", text, "a colour that does not follow the theme")
        for variable in set(re.findall(r"var\((--[\w-]+)\)", text)):
            self.assertGreaterEqual(text.count(f"{variable}:"), 1, variable)

    def test_every_row_is_in_the_tables(self):
        lines = history(commits=1)
        text, page, _ = self.report_of(lines)
        rows = sum(line["kind"] == "row" for line in lines)
        for name in {line["shape"]["name"] for line in lines if line["kind"] == "row" and "shape" in line}:
            self.says(page.text, name)
        section = re.search(r'<section id="tables">.*?</section>', text, re.DOTALL)[0]
        self.assertEqual(section.count("<details class=\"table\""), 11)
        lines = section.count("<tr") - section.count("<thead>") - section.count('<tr class="more"')
        shapes = len(re.findall(r"<td><details><summary>", section))
        self.assertEqual(lines - shapes, rows, "the decoder's, and what the shapes of kernels fold out to")

    def test_a_shape_is_one_line_that_folds_out_and_the_worst_comes_first(self):
        cases = kernel_cases(3, ["linear"])
        peers = [KernelCase(case.kernel, case.shape, factor * case.us, name, library=(name, "1"))
                 for case, factors in zip(cases, ((1.5, 2.0), (0.5, 3.0), (0.9, 0.8))) for name, factor in
                 zip(("quick", "slow"), factors)]
        text, page, _ = self.report_of(Machine(seed=7).run("bench_x", cases + peers))
        self.says(page.text, "linear: 3 shapes, 9 rows, a peer is faster on 2 shapes")
        section = re.search(r'<section id="tables">.*?</section>', text, re.DOTALL)[0]
        shapes = re.findall(r"<td><details><summary>(.*?)</summary>", section)
        self.assertEqual(shapes, [dict(case.shape)["name"] for case in (cases[1], cases[2], cases[0])])
        folded = re.findall(r'<tr class="more">(.*?)</table>', section, re.DOTALL)
        for fold, order in zip(folded, (("quick", "slow"), ("slow", "quick"), ("quick", "slow"))):
            self.assertRegex(fold, "(?s)>cuda.*>{} 1: .*>{} 1: ".format(*order))
        self.assertEqual(len(re.findall('<tr class="behind">', section)), 2)

    def test_the_model_of_the_most_batches_has_the_first_large_figures(self):
        cases = [DecoderCase(model="a-model")] + [DecoderCase(model="b-model", batch=batch) for batch in (1, 8, 64)]
        text, _, _ = self.report_of(Machine(seed=7).decoder_run(cases))
        figures = re.findall(r'<span class="of">(\S+) \S+, batch (\d+)', text)
        self.assertEqual(figures[:3], [("b-model", "1"), ("b-model", "64"), ("a-model", "1")])

    def test_a_column_that_says_the_same_in_every_line_is_said_once(self):
        table = Table(["a", "b", "c", "d"], [["1", "x", "", "3"], ["1", "x", "", "4"]], {1, 3}, title="rows")
        self.assertEqual((table.header, table.lines, table.numeric, table.title),
                         (["a", "d"], [["1", "3"], ["1", "4"]], {1}, "rows; b x"))
        self.assertEqual(Table(["a", "b", "c"], [["1", "x", ""]]).header, ["a", "b"])

    def test_refused_and_disturbed_rows_are_said_first_and_shown(self):
        text, page, markdown = self.read(report_of_history())
        self.says(page.text, "INCOMPLETE: 1 row refused and 1 row disturbed")
        self.says(page.text, f"output is wrong: {HOSTILE}")
        self.says(page.text, "throttled: power cap")
        self.says(text, '<tr class="refused">')
        self.says(markdown, "**refused**")
        self.assertNotIn("<script>", markdown)

    def test_rows_that_rested_are_not_called_disturbed_for_the_power_cap(self):
        cases = kernel_cases(6)
        lines = Machine(seed=3).run("bench_x", cases, disturbed={case: "throttled: power cap" for case in cases[:3]})
        _, page, _ = self.report_of(lines)
        self.says(page.text, "READ WITH CARE: 3 rows disturbed", "disturbed 3 rows, of ")
        for line in lines:
            if line["kind"] == "row":
                line["rested"] = line["shape"] == lines[1]["shape"]
        rested = sum(bool(line["rested"] and line["disturbed"]) for line in lines if line["kind"] == "row")
        self.assertIn(rested, (1, 2))
        _, page, _ = self.report_of(lines)
        rows = "row" if rested == 1 else "rows"
        self.says(page.text, f"{rested} {rows} met the power cap although the GPU rested")
        self.assertRegex(page.text, f"READ WITH CARE: {3 - rested} rows? disturbed .* disturbed {3 - rested} row")

    def test_plots_over_commits_leave_out_commits_without_rows_of_their_kind(self):
        machine = Machine(seed=3)
        lines = machine.run("bench_x", kernel_cases(6))
        machine.commit = "b" * 40
        machine.wait(days=1)
        _, page, _ = self.report_of(lines + machine.decoder_run(decoder_cases((2, 8, 32))))
        self.says(page.text, "Decoder: over the batch", "No row of a kernel was measured at more than one commit",
                  "bf16, batch 2", "bf16, batch 32")

    def test_killed_interrupted_and_slowed_runs_are_named(self):
        machine = Machine(seed=3)
        killed = machine.run("bench_killed", kernel_cases(12), killed=True)
        interrupted = machine.run("bench_interrupted", kernel_cases(24)[12:])
        interrupted[-1]["interrupted"] = True
        slowed = machine.decoder_run(injected={"host_delay_us": 500})
        _, page, markdown = self.report_of(killed + interrupted + slowed)
        for words in ("bench_killed", "was killed", "bench_interrupted", "was interrupted", "was slowed on purpose",
                      "host_delay_us"):
            self.says(page.text, words)
            self.says(markdown, words)

    def test_throttled_crowded_and_shared_gpu_are_told(self):
        lines = Machine(seed=3, gpu={"mig": True}).run("bench_x", kernel_cases(12))
        lines[0]["fingerprint"]["gpu"]["before"] |= {"throttled": True, "throttle_reasons": "power cap"}
        lines[-1]["gpu_after"] = lines[0]["fingerprint"]["gpu"]["before"] | {"other_processes": 2}
        _, page, markdown = self.report_of(lines)
        for words in ("READ WITH CARE: 1 run throttled and 2 runs crowded", "throttled before and after a run of bench_x",
                      "2 other processes on the GPU after", "had MIG on"):
            self.says(page.text, words)
            self.says(markdown, words)

    def test_the_page_begins_with_the_shapes_that_a_peer_is_faster_on(self):
        case = KernelCase("linear", (("name", "a"),), 10.0)
        peers = [KernelCase("linear", (("name", "a"),), us, name, library=(name, "1"))
                 for us, name in ((8.0, "quick"), (4.0, "quicker"))]
        machine = Machine(seed=4)
        other = Machine(seed=5, gpu={"uuid_hash": "0the0the0the0the"}).run("peers", peers[1:])
        _, page, markdown = self.report_of(machine.run("bench_x", [case]) + machine.run("peers", peers[:1]) + other)
        alike, elsewhere = ("A peer is faster by more than 2 % on 1 of 1 shape (ours of aaaaaaa); at worst " + times for times in ("1.2", "2."))
        for text in (page.text, markdown):
            self.says(text, "Beside peers of the same NVIDIA H200: " + alike, "of another GPU of the same kind")
            places = [text.index(words) for words in ("ALL ROWS STAND: 3 verified", alike, elsewhere)]
            self.assertEqual(places, sorted(places))

    def test_headline_names_tokens_a_second_and_the_kernel_furthest_from_its_limit(self):
        machine = Machine(seed=4)
        lines = machine.run("bench_all", kernel_cases(60)) + machine.decoder_run(decoder_cases((1, 8, 64)))
        slow = [line for line in lines if line.get("kernel") == "activation" and line["cache"] == "cold"
                and line["chain"] == "plain" and line["floor_us"] > 5][0]
        stretch(slow, 9 * slow["floor_us"] / slow["median_us"])
        # Neither a warm, nor a dependent, nor a short row may take its place.
        for wanted in ({"cache": "warm"}, {"chain": "dependent"}):
            other = next(line for line in lines if line.get("kernel") == "linear"
                         and all(line[name] == value for name, value in wanted.items()))
            stretch(other, 50)
        _, page, markdown = self.report_of(lines)
        rates = {line["batch"]: f"{line['decode_tok_s']:,.0f}" for line in lines if line.get("kernel") == "decoder"}
        for batch in (1, 64):
            self.says(page.text, f"{rates[batch]} tok/s qwen3-0.6b bf16, batch {batch}")
            self.assertRegex(markdown, rf"\| qwen3-0.6b \| bf16 \| {batch} .*\| {rates[batch]} \|")
        self.assertRegex(page.text, r"11 % of the \S+ limit: activation, the furthest")
        self.assertRegex(markdown, rf"### Furthest from the limit\n(\n.*){{3}}\| activation \| {slow['shape']['name']}")
        self.says(page.text, "Furthest from its limit: activation, at 11 % of the", "ALL ROWS STAND: 63 verified")

    def test_newest_row_stands_and_older_ones_make_the_history(self):
        lines = history(commits=3)
        write(self.folder / "records.jsonl", lines)
        evidence = Evidence(records.read(self.folder / "records.jsonl"))
        self.assertEqual([label[:7] for label in evidence.commits], ["1c0ffee", "2c0ffee", "3c0ffee"])
        self.assertTrue(all(entry.run.commit.startswith("3c0ffee") for entry in evidence.entries))
        series = evidence.kernel_history("linear")
        self.assertTrue(series)
        for line in series.values():
            self.assertEqual(line[0][1], 1.0)
            self.assertAlmostEqual(line[-1][1], 0.92, delta=0.02)

    def test_slowed_run_never_replaces_an_honest_one(self):
        machine = Machine(seed=6)
        lines = machine.decoder_run() + machine.decoder_run(effects=[Effect(50)], injected={"host_delay_us": 500})
        write(self.folder / "records.jsonl", lines)
        evidence = Evidence(records.read(self.folder / "records.jsonl"))
        self.assertEqual([entry.run.injected for entry in evidence.entries], [None])
        self.assertEqual([len(points) for points in evidence.history.values()], [1])

    def test_best_peer_is_the_fastest_on_the_same_work(self):
        machine = Machine(seed=7)
        case = kernel_cases(1)[0]
        peers = [KernelCase(case.kernel, case.shape, factor * case.us, implementation=name, library=(name, "1"))
                 for name, factor in (("slow", 1.4), ("quick", 0.8))]
        other = KernelCase(case.kernel, (("name", "elsewhere"),), 0.1 * case.us, implementation="other",
                           library=("other", "1"))
        write(self.folder / "records.jsonl", machine.run("bench_all", [case, *peers, other]))
        evidence = Evidence(records.read(self.folder / "records.jsonl"))
        entry = evidence.ours(case.kernel)[0]
        self.assertEqual(evidence.peer(entry).peer, "quick 1")

    def test_one_commit_says_that_there_is_no_history(self):
        machine = Machine(seed=8)
        _, page, _ = self.report_of(machine.run("bench_all", kernel_cases(20)) + machine.decoder_run(profile=None))
        for words in ("Decoder: over the batch", "No row of a kernel was measured at more than one commit",
                      "No decoder row has a profile. To make one: tokline bench", "There is one run to look at",
                      "No ablation. To make one: scripts/records ablate"):
            self.says(page.text, words)

    def test_cpu_rows_alone_make_a_page_that_says_so(self):
        machine = Machine(seed=9)
        lines = machine.run("bench_all", [KernelCase("norm", (("name", "d64"),), 40, "reference", "none", "cpu")])
        lines[0]["peaks"] = lines[0]["datasheet"] = lines[0]["fingerprint"]["gpu"] = None
        lines[1]["device"] = "cpu"
        for name in ("limit", "floor_us", "percent_of_measured_peak", "percent_of_datasheet_peak"):
            lines[1][name] = None
        text, page, markdown = self.report_of(lines)
        self.assertNotIn("<svg", text)
        for words in ("every row is the CPU reference", "not known", "ALL ROWS STAND: 1 verified"):
            self.says(page.text, words)
        empty = re.search(r'<details class="empty">.*', text, re.DOTALL)[0]
        self.says(empty, "Not in these records: Beside other libraries, Roofline, How near the limit, "
                  "Shapes that nobody chose, What the cost models miss, Decoder",
                  "No decoder row with figures")
        self.assertEqual(re.findall(r'<section id="(\w+)"', text), ["tables", "machine"])

    def test_a_run_that_ended_early_counts_until_a_later_one_of_its_program_is_complete(self):
        machine = Machine(seed=1)
        early = machine.decoder_run([])
        early[-1]["interrupted"] = True
        machine.wait(days=1)
        others = machine.run("bench_all", kernel_cases(5))
        _, page, _ = self.report_of(early + others)
        self.says(page.text, "tokline bench", "was interrupted: rows are missing")
        self.assertNotIn("ALL ROWS STAND", page.text)
        _, page, _ = self.report_of(early + others + machine.decoder_run([DecoderCase()]))
        self.says(page.text, "ALL ROWS STAND", "1 older run ended early, and newer rows replace theirs")

    def test_all_rounds_of_a_file_are_held_against_the_baseline(self):
        machine = Machine(seed=4, run_noise=0.001)
        cases = kernel_cases(3)
        base, ours = [], []
        for number in range(5):
            base += machine.run("bench_all", cases)
            ours += machine.run("bench_all", cases, [Effect(20)] if number < 4 else [])  # the newest round is an outlier
        write(self.folder / "base.jsonl", base)
        _, page, _ = self.report_of(ours, "--baseline", self.folder / "base.jsonl")
        self.says(page.text, "SLOWER: 3 of 3 rows")

    def test_commands_are_those_that_one_can_run_again(self):
        for line, words in (
                (["/home/a/build/cuda/bin/bench_activation", "--record", "results/x/.running.aB3/k.jsonl"],
                 "build/cuda/bin/bench_activation --record results/x/k.jsonl"),
                (["/opt/bin/tokline", "bench", "--model", "my model"], "/opt/bin/tokline bench --model 'my model'"),
                (["build/a/bin/tokline", "inspect"], "build/a/bin/tokline inspect"), ([], "")):
            self.assertEqual(command_words(line), words)

    def test_ablation_says_where_alone_and_decoder_disagree(self):
        _, page, markdown = self.read(report_of_history())
        for text in (page.text, markdown):
            self.assertRegex(text, r"fused_down wins alone \(1\.[23]\d×\) and loses in the decoder at batch 1 "
                                   r"\(0\.9\d×\)")
            self.assertNotRegex(text, r"chunk_decode wins alone \(\S+\) and (loses|makes)")

    def test_ablations_of_other_lengths_and_dtypes_stand_beside_each_other(self):
        machine = Machine(seed=3)
        header = machine.header("tokline ablate")
        cases = [DecoderCase(), DecoderCase(prompt_tokens=4096), DecoderCase(dtype="fp32"), DecoderCase(batch=8)]
        lines = [machine.ablation(header, case, "down", f"plain {number}", 50, (10, 20))
                 for number, case in enumerate(cases)]
        _, page, _ = self.report_of([header, *lines])
        self.says(page.text, "down 1, 128+128 tokens, bf16 plain 0", "down 1, 4096+128 tokens, bf16 plain 1",
                  "down 1, 128+128 tokens, fp32 plain 2", "down 8, 128+128 tokens, bf16 plain 3")
        _, page, _ = self.report_of([header, lines[0], lines[2]])
        self.says(page.text, "down 1, bf16 plain 0", "down 1, fp32 plain 2")
        _, page, _ = self.report_of([header, lines[0], lines[3]])
        self.says(page.text, "down 1 plain 0", "down 8 plain 3")

    def test_ablation_of_few_rounds_is_not_called_agreement(self):
        machine = Machine(seed=3)
        header = machine.header("tokline ablate")
        line = machine.ablation(header, DecoderCase(), "down", "plain down", 50, (10, 20), rounds=2)
        _, page, markdown = self.report_of([header, line])
        self.says(page.text, "1 ablation had too few rounds to say", "too few rounds to say")
        for text in (page.text, markdown):
            self.assertNotIn("agree for every op", text)
            self.assertNotIn("wins in the decoder", text)

    def test_waterfall_blames_what_was_slowed_between_the_last_two_commits(self):
        _, page, markdown = self.read(report_of_history())
        # The op is slowed by as many microseconds in all rows: the shortest step changed most.
        self.assertRegex(page.text, r"qwen3-\S+ batch 1, .*? % slower \(.*?\): down \+(5|6)\d")
        self.says(markdown, "`down` +")

    def test_baseline_gives_verdicts_and_a_waterfall(self):
        machine = Machine(seed=10, run_noise=0.001)
        cases = kernel_cases(20)
        base = machine.run("bench_all", cases) + machine.decoder_run()
        write(self.folder / "base.jsonl", base)
        _, page, markdown = self.report_of(
            machine.run("bench_all", cases, [Effect(30, kernel="paged_gather")])
            + machine.decoder_run(effects=[Effect(us=80, op="host_gap")]), "--baseline", self.folder / "base.jsonl")
        for text in (page.text, markdown):
            self.assertRegex(text, r"paged_gather \S+.*? slower")
            self.says(text, "the host gap +")
        self.says(page.text, "Rows against the baseline")

    def test_what_is_missing_or_slower_than_the_baseline_comes_first_whatever_its_batch(self):
        machine = Machine(seed=10, run_noise=0.001)
        batches = [DecoderCase(batch=batch) for batch in (1, 8, 64)]
        base = machine.run("bench_all", kernel_cases(30)) + machine.decoder_run(batches)
        write(self.folder / "base.jsonl", base)
        ours = machine.run("bench_all", kernel_cases(30)[:3])
        for case, effects in zip(batches, ([], [Effect(us=700, op="down")], [])):
            run = machine.decoder_run([case], effects)
            run[0]["fingerprint"]["command_line"] += ["--batch", str(case.batch)]
            ours += run
        _, page, markdown = self.report_of(ours, "--baseline", self.folder / "base.jsonl")
        first = ("MISSING: 27 of 33 rows of the baseline, of ", "SLOWER, BUT UNDECIDED: 1 of 6 rows; batch 8 −")
        for text in (page.text, markdown):
            self.says(text, *first)
            self.assertRegex(text, r"batch 8 −4\d\.\d % tok/s: down \(too few samples for the U test; measure in rounds\)")
            places = [text.index(words) for words in (*first, "ALL ROWS STAND: 6 verified")]
            self.assertEqual(places, sorted(places))
        self.assertRegex(markdown.splitlines()[2], "^⚠️ " + re.escape("**" + first[0]))
        self.assertEqual(page.ids[0], "blame", "what a difference comes from is the first section")
        for text in (page.text, markdown):
            self.assertRegex(text, r"batch 8, .*? slower \(.*?down`? \+")
        self.assertRegex(markdown, r"\| decoder .*? batch 8 .*?\| undecided")


    def test_a_difference_that_the_profile_does_not_explain_is_said_in_the_comment_too(self):
        machine = Machine(seed=10, run_noise=0.001)
        write(self.folder / "base.jsonl", machine.decoder_run([DecoderCase()]))
        ours = machine.decoder_run([DecoderCase()], [Effect(us=400, op="down")])
        for line in ours:
            if line.get("profile"):
                profile = line["profile"]
                profile["unexplained_us"] = sum(op["us"] for op in profile["ops"]) / 2
                profile["ops"] = [op | {"us": op["us"] / 2} for op in profile["ops"]]
        _, page, markdown = self.report_of(ours, "--baseline", self.folder / "base.jsonl")
        for text in (page.text, markdown):
            self.says(text, "THE PARTS DO NOT ADD UP")

    def test_baseline_of_another_machine_is_not_compared(self):
        cases = kernel_cases(5)
        write(self.folder / "base.jsonl", Machine(seed=1, gpu={"name": "NVIDIA A100"}).run("bench_all", cases))
        text, page, markdown = self.report_of(Machine(seed=2).run("bench_all", cases), "--baseline",
                                              self.folder / "base.jsonl")
        self.says(page.text, "NOT COMPARED with the baseline: ")
        self.says(markdown, "Not compared")
        self.assertFalse("Rows against the baseline" in text)

    def test_rows_that_cannot_be_judged_are_not_called_not_slower(self):
        machine = Machine(seed=10, run_noise=0.001)
        cases = kernel_cases(4)
        wrong = {case: "unverified: wrong" for case in cases}
        one_wrong = {cases[0]: wrong[cases[0]]}
        ours = [line for _ in range(3) for line in machine.run("bench_all", cases)]
        write(self.folder / "base.jsonl", machine.run("bench_all", cases, refused=wrong))
        _, page, markdown = self.report_of(ours, "--baseline", self.folder / "base.jsonl")
        for text in (page.text, markdown):
            self.says(text, "NOT COMPARED with the baseline: 4 not comparable")
            self.assertNotIn("NOT SLOWER", text)
        base = [line for _ in range(3) for line in machine.run("bench_all", cases, refused=one_wrong)]
        write(self.folder / "base.jsonl", base)
        _, page, _ = self.report_of(ours, "--baseline", self.folder / "base.jsonl")
        self.says(page.text, "NOT SLOWER than the baseline: 3 rows, 0 of them faster, none missing")

    def test_a_baseline_that_was_slowed_on_purpose_is_told(self):
        machine, cases = Machine(seed=10, run_noise=0.001), kernel_cases(4)
        write(self.folder / "base.jsonl", machine.run("bench_all", cases, injected={"slowdown_percent": 50}))
        _, page, markdown = self.report_of(machine.run("bench_all", cases), "--baseline", self.folder / "base.jsonl")
        for text in (page.text, markdown):
            self.says(text, "A: slowed on purpose, to test the tools: slowdown_percent 50")

    def test_a_step_is_not_blamed_across_machines(self):
        runs = []
        for number, driver in enumerate(("570.1", "580.2")):
            machine = Machine(seed=number, gpu={"driver": driver, "uuid_hash": f"{number:016x}"})
            machine.commit = "ab"[number] * 40
            machine.wait(days=number)
            runs.append(machine.decoder_run([DecoderCase()], [Effect(us=60 * number, op="down")]))
        words = r"not of the same machine and build tools, so no part of a step is blamed: .*driver: 570\.1 and 580\.2"
        text, page, markdown = self.report_of(sum(runs, []))
        for said in (page.text, markdown):
            self.assertRegex(said, words)
            self.assertNotRegex(said, r"B is \S+ % (slower|faster)")
        self.assertNotIn('<section id="blame">', text)
        write(self.folder / "base.jsonl", runs[0])
        _, page, markdown = self.report_of(runs[1], "--baseline", self.folder / "base.jsonl")
        for said in (page.text, markdown):
            self.assertRegex(said, words)

    def test_verdict_names_the_rows_that_became_slower_and_the_part_to_blame(self):
        machine = Machine(seed=10, run_noise=0.001)
        batches = [DecoderCase(batch=batch) for batch in (1, 8)]
        base, ours = [], []
        for _ in range(4):
            base += machine.run("bench_all", kernel_cases(4)) + machine.decoder_run(batches[1:])
            base += machine.decoder_run(batches[:1], [Effect(us=2000, op="down")])  # it changes by more, for the better
            ours += machine.run("bench_all", kernel_cases(4)) + machine.decoder_run(batches[:1])
            ours += machine.decoder_run(batches[1:], [Effect(us=930, op="chunk_decode")])
        write(self.folder / "base.jsonl", base)
        _, page, markdown = self.report_of(ours, "--baseline", self.folder / "base.jsonl")
        for text in (page.text, markdown):
            self.assertRegex(text, r"SLOWER: 1 of 6 rows; batch 8 −5\d\.\d % tok/s: chunk_decode")
        _, page, _ = self.report_of(base, "--baseline", self.folder / "base.jsonl")
        self.says(page.text, "NOT SLOWER than the baseline: 6 rows, 0 of them faster, none missing")

    def test_decoder_is_held_against_its_best_peer(self):
        lines = Machine(seed=1).decoder_run([DecoderCase(), DecoderCase(implementation="compiled")],
                                            [Effect(100, after=START + datetime.timedelta(seconds=5))])
        lines[2]["library"] = {"name": "transformers", "version": "5.17"}
        _, page, _ = self.report_of(lines)
        self.assertRegex(page.text, r"Tokline 1,2\d\d tok/s, the best peer, transformers 5\.17, 6\d\d: "
                                    r"1\.9\d× its speed")

    def test_ranks_are_held_against_the_fewest_and_say_what_they_exchange(self):
        machine = Machine(seed=3, sample_noise=0, run_noise=0)
        lines = machine.decoder_run([DecoderCase(batch=8)])
        lines += machine.decoder_run([DecoderCase(batch=8, implementation="cuda with 2 ranks"),
                                      DecoderCase(batch=64, implementation="cuda with 4 processes")], [Effect(-40)])
        whole, two, four = (line for line in lines if line["kind"] == "row")
        for row, ranks in (two, 2), (four, 4):
            row.update(ranks=ranks, link_bytes=1e6)
            _, sums, gather, *_ = row["profile"]["ops"]
            sums["op"], gather["op"] = "all_reduce", "gather_logits"
        times = two["decode_tok_s"] / whole["decode_tok_s"]
        exchange = [op["us"] / two["profile"]["step_us"] for op in two["profile"]["ops"][1:3]]
        text = self.report_of(lines)[1].text
        self.says(text, "ranks: 3 rows; model qwen3-0.6b", f"{times:.2f}× {50 * times:.0f} %", "1.00× 50 % "
                  + " ".join(f"{100 * share:.0f} %" for share in exchange), "batch 8, 2 ranks", "4 processes")
        self.assertEqual(text.count("1.00× "), 1)  # 4 ranks have nothing to be held against
        page = self.report_of(Machine(seed=3).decoder_run([DecoderCase()]))[1]
        self.says(page.text[page.text.index("Not in these records"):], "Decoder: more ranks")

    def test_commands_can_be_pasted(self):
        _, page, _ = self.read(report_of_history())
        self.says(page.text, "bench --shapes 'my shapes.json' '--filter=b(1|8)'")
        self.says(page.text, f"scripts/records report {report_of_history()}/records.jsonl -o")

    def test_markdown_is_short_and_names_the_page(self):
        _, _, markdown = self.read(report_of_history())
        self.assertLess(len(markdown), 8000)
        self.says(markdown, "`report.html`")
        self.says(markdown, "### Furthest from the limit")

    def test_two_thousand_rows_take_less_than_twenty_seconds(self):
        machine = Machine(seed=11)
        lines = []
        for number in range(8):
            machine.commit = f"{number:040x}"
            lines += machine.run("bench_all", kernel_cases(250)) + machine.decoder_run(decoder_cases((1, 8, 64)))
            machine.wait(days=1)
        self.assertGreater(sum(line["kind"] == "row" for line in lines), 2000)
        started = time.process_time()
        self.report_of(lines)
        self.assertLess(time.process_time() - started, 20)


class CanvasTest(unittest.TestCase):
    def test_texts_keep_their_digits_and_coordinates_do_not(self):
        def paint(canvas):
            canvas.figure.text(1 / 3, 1 / 7, "0.001234")

        drawing = draw("x", "words", lambda narrow: 100, paint)
        for svg in (drawing.wide, drawing.narrow):
            self.assertIn(">0.001234<", svg)
            self.assertNotRegex(re.sub(">[^<]*<", "><", svg), r"\.\d{3}")


class MisuseTest(ReportCase):
    def fails(self, *arguments, code=1):
        got, err = run_main(*arguments)
        self.assertEqual(got, code, err)
        return err

    def test_bad_input_is_one_line_and_exit_code_1(self):
        good = Machine(seed=1).run("bench_all", kernel_cases(3))
        texts = {"empty": "", "foreign": '{"a": 1}\n',
                 "broken": json.dumps(good[0]) + "\n{\n" + json.dumps(good[1]) + "\n",
                 "nan": json.dumps(good[0]) + "\n" + json.dumps(good[1]).replace("[", "[NaN, ", 1) + "\n",
                 "future": json.dumps(good[0] | {"schema": 99}) + "\n", "no row": json.dumps(good[0]) + "\n"}
        for name, text in texts.items():
            with self.subTest(name):
                with open(self.folder / name, "w", encoding="utf-8") as file:
                    file.write(text)
                err = self.fails(self.folder / name, "-o", self.folder / "report.html")
                self.assertRegex(err, rf"^scripts/records report: .*{name}.*\n$")
                self.assertFalse(os.path.exists(self.folder / "report.html"))
        self.assertIn("nowhere", self.fails(self.folder / "nowhere", "-o", self.folder / "report.html"))

    def test_unfinished_last_line_is_left_out_with_a_warning(self):
        lines = Machine(seed=1).run("bench_all", kernel_cases(3), killed=True)
        write(self.folder / "records.jsonl", lines)
        with open(self.folder / "records.jsonl", "a", encoding="utf-8") as file:
            file.write('{"schema": 2, "kind": "ro')
        code, err = run_main(self.folder / "records.jsonl", "-o", self.folder / "report.html")
        self.assertEqual(code, 0)
        self.assertIn("unfinished", err)
        self.assertTrue(os.path.exists(self.folder / "report.html"))

    def test_misuse_is_exit_code_2(self):
        self.fails(code=2)
        self.fails(self.folder / "x", code=2)
        self.fails(self.folder / "x", "-o", self.folder / "y", "--no-such-flag", code=2)

    def test_what_cannot_be_written_is_said_and_the_old_report_stays(self):
        write(self.folder / "records.jsonl", Machine(seed=1).run("bench_all", kernel_cases(3)))
        self.assertIn("No such file", self.fails(self.folder / "records.jsonl", "-o", self.folder / "no/report.html"))
        self.assertIn("/dev/full", self.fails(self.folder / "records.jsonl", "-o", "/dev/full"))
        with open(self.folder / "report.html", "w", encoding="utf-8") as file:
            file.write("the old one")
        with mock.patch("os.fsync", side_effect=OSError(28, "No space left on device")):
            self.assertIn("No space", self.fails(self.folder / "records.jsonl", "-o", self.folder / "report.html"))
        with open(self.folder / "report.html", encoding="utf-8") as file:
            self.assertEqual(file.read(), "the old one")
        self.assertEqual(sorted(os.listdir(self.folder)), ["records.jsonl", "report.html"])


if __name__ == "__main__":
    unittest.main()
