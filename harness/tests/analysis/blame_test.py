"""scripts/records blame on records whose difference was put in: it must be found, add up, and not be invented."""
import functools
import json
import os
import re
import unittest

from command_case import run_here
from folder_case import FolderTest
from synthetic import OPS, DecoderCase, Effect, Machine, decoder_cases, write

from tokline import blame

run_main = functools.partial(run_here, "blame")


class BlameTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.machine = Machine(seed=5, run_noise=0.0005)

    def side(self, name, effects=(), runs=1, cases=None, **more):
        """A folder of runs."""
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        for index in range(runs):
            lines = self.machine.decoder_run(cases or decoder_cases((1, 8)), effects, **more)
            write(os.path.join(folder, f"{index}.jsonl"), lines)
        return folder

    def rows(self, a, b, *more):
        code, out, err = run_main(a, b, "--format", "json", *more)
        self.assertEqual(code, 0, err)
        return json.loads(out)["rows"]

    def test_slowed_op_is_blamed_on_itself(self):
        base = self.side("a")
        for op, kernel, _, us in OPS:
            if us < 50:
                continue
            rows = self.rows(base, self.side("b_" + op, [Effect(us=40, op=op)]))
            self.assertEqual([row["blamed"] for row in rows], [op, op], kernel)

    def test_host_delay_is_blamed_on_the_host_gap(self):
        rows = self.rows(self.side("a"), self.side("b", [Effect(us=50, op="host_gap")]))
        self.assertEqual([row["blamed"] for row in rows], ["host_gap", "host_gap"])

    def test_faster_op_is_named_too(self):
        code, out, _ = run_main(self.side("a"), self.side("b", [Effect(us=-60, op="gate_up")]), "--batch", "1")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"B is \d\.\d % faster .*`gate_up` -\d+\.\d us \((9\d|1\d\d) % of it\)")

    def test_same_machine_twice_is_no_difference(self):
        rows = self.rows(self.side("a"), self.side("b"))
        for row in rows:
            self.assertIsNone(row["blamed"])
            self.assertIn("no difference beyond noise", row["verdict"])

    def test_several_runs_show_the_noise_of_each_part(self):
        rows = self.rows(self.side("a", runs=4), self.side("b", [Effect(us=6, op="down")], runs=4))
        for row in rows:
            # 0.7 % of the step: above the runs' spread, below nothing else.
            self.assertEqual(row["blamed"], "down")
            down = next(part for part in row["parts"] if part["part"] == "down")
            self.assertLess(down["noise_us"], 3)
        self.assertTrue(all(part["noise_us"] is not None for row in rows for part in row["parts"]))

    def test_noisy_runs_hide_what_a_single_pair_would_show(self):
        self.machine = Machine(seed=7, run_noise=0.03)
        rows = self.rows(self.side("a", runs=4), self.side("b", [Effect(us=6, op="down")], runs=4))
        self.assertEqual([row["blamed"] for row in rows], [None, None])

    def test_parts_add_up_in_time_and_in_tokens(self):
        effects = [Effect(us=30, op="down"), Effect(us=-12, op="qkv"), Effect(us=9, op="device_gap")]
        for row in self.rows(self.side("a", runs=3), self.side("b", effects, runs=3)):
            self.assertAlmostEqual(sum(part["change_us"] for part in row["parts"]), row["change_us"], places=6)
            self.assertAlmostEqual(sum(part["change_tok_s"] for part in row["parts"]), row["change_tok_s"], places=6)
            self.assertTrue(row["adds_up"])
            self.assertEqual(row["open_sides"], [])
            self.assertLess(row["unexplained_percent"], 2)

    def with_fault(self, fault, sides, effects):
        """The output, and its row, where `fault` spoiled the profiles of some sides."""
        paths = {}
        for name, change in (("A", []), ("B", effects)):
            lines = self.machine.decoder_run(decoder_cases((1,)), change)
            if name in sides:
                fault(next(line for line in lines if line["kind"] == "row")["profile"])
            profile = next(line for line in lines if line["kind"] == "row")["profile"]
            parts = [op["us"] for op in profile["ops"]] + [profile["device_gap_us"], profile["host_gap_us"]]
            profile["unexplained_us"] = profile["step_us"] - sum(parts)
            paths[name] = write(os.path.join(self.folder, name + ".jsonl"), lines)
        code, out, err = run_main(paths["A"], paths["B"])
        self.assertEqual(code, 0, err)
        return out, self.rows(paths["A"], paths["B"])[0]

    @staticmethod
    def leave_out(op):
        def fault(profile):
            profile["ops"] = [entry for entry in profile["ops"] if entry["op"] != op]
        return fault

    def test_op_that_profiles_lack_cannot_be_slowed_unnoticed(self):
        slowed = [Effect(us=40, op="down")]
        out, row = self.with_fault(self.leave_out("down"), "AB", slowed)
        self.assertIn("THE PARTS DO NOT ADD UP", out)
        self.assertEqual(row["blamed"], "unexplained")
        self.assertEqual(self.with_fault(self.leave_out("qkv"), "", slowed)[1]["adds_up"], True)

    def test_op_that_both_profiles_lack_shows_in_each_step(self):
        out, row = self.with_fault(self.leave_out("down"), "AB", [Effect(us=40, op="qkv")])
        self.assertTrue(row["adds_up"])
        self.assertEqual(row["open_sides"], ["A", "B"])
        self.assertRegex(out, r"THE PARTS OF A ARE NOT ITS STEP: \+\d+\.\d % of its")

    def test_mistimed_gap_is_noticed_on_its_side(self):
        def fault(profile):
            profile["host_gap_us"] *= 0.5
        delay = [Effect(us=50, op="host_gap")]
        out, row = self.with_fault(fault, "B", delay)
        self.assertIn("THE PARTS DO NOT ADD UP", out)
        self.assertEqual((row["adds_up"], row["open_sides"]), (False, ["B"]))
        self.assertEqual(self.with_fault(fault, "", delay)[1]["open_sides"], [])

    def test_what_the_trace_adds_is_a_part_that_is_not_blamed(self):
        # The op's delay hides behind others while the trace holds them up: it adds 60 to one step and 30 to the other.
        paths = {}
        for name, change, traced_us in (("A", [], 60), ("B", [Effect(us=40, op="down")], 30)):
            lines = self.machine.decoder_run(decoder_cases((1,)), change)
            profile = next(line for line in lines if line["kind"] == "row")["profile"]
            profile["tracing_us"] = -traced_us
            next(op for op in profile["ops"] if op["op"] == "qkv")["us"] += traced_us
            paths[name] = write(os.path.join(self.folder, name + ".jsonl"), lines)
        code, out, err = run_main(paths["A"], paths["B"])
        self.assertEqual(code, 0, err)
        row = self.rows(paths["A"], paths["B"])[0]
        self.assertEqual((row["blamed"], row["adds_up"], row["open_sides"]), ("down", True, []))
        tracing = next(part for part in row["parts"] if part["part"] == "tracing")
        self.assertAlmostEqual(tracing["change_us"], 30)
        self.assertIn("B is", out)

    def one_kernel(self, name, effects=(), phases=True):
        """A run whose step is decode_step and sampling; the smallest ops are in the phases beside them."""
        lines = self.machine.decoder_run(decoder_cases((1,)), effects)
        profile = next(line for line in lines if line["kind"] == "row")["profile"]
        us = {op["op"]: op["us"] for op in profile["ops"]}
        sampling = profile["ops"][-1]
        us["qkv"] += us.pop("embedding")
        us["lm_head"] += us.pop("final_norm")
        del us["sampling"]
        step = {"op": "decode_step", "kernel": "decode_step", "launches": 1, "us": sum(us.values())}
        if phases:
            step["phases"] = [{"phase": phase, "us": time} for phase, time in us.items()]
        profile["ops"] = [step, sampling]
        return write(os.path.join(self.folder, name), lines)

    def test_difference_of_one_kernel_is_blamed_on_its_phase(self):
        base = self.one_kernel("a.jsonl")
        for op in ("qkv", "chunk_decode", "attention_output", "gate_up", "down", "lm_head"):
            other = self.one_kernel(op + ".jsonl", [Effect(us=40, op=op)])
            row = self.rows(base, other)[0]
            self.assertEqual(row["blamed"], "decode_step")
            self.assertRegex(row["verdict"], r"`decode_step` \+\d+\.\d us \(\d+ % of it, of which "
                             rf"`{op}` \+(3[5-9]|4[0-5])\.\d us\)$")
            part = next(part for part in row["parts"] if part["part"] == "decode_step")
            self.assertEqual(len(part["phases"]), 6)
            self.assertEqual(part["phases"][0]["phase"], op)
            self.assertAlmostEqual(sum(phase["change_us"] for phase in part["phases"]), part["change_us"], places=6)
            self.assertTrue(row["adds_up"])
            self.assertRegex(run_main(base, other)[1], rf"\n +of which {op} +\d+\.\d +\d+\.\d +\+(3|4)\d\.\d ")

    def test_phases_of_one_side_alone_split_nothing(self):
        base = self.one_kernel("a.jsonl", phases=False)
        row = self.rows(base, self.one_kernel("b.jsonl", [Effect(us=40, op="down")]))[0]
        self.assertEqual(row["blamed"], "decode_step")
        self.assertNotIn("of which", row["verdict"])
        self.assertNotIn("phases", row["parts"][0])

    def test_parts_need_not_agree_better_than_runs_do(self):
        def fault(profile):
            profile["host_gap_us"] += 0.005 * profile["step_us"]
        out, row = self.with_fault(fault, "B", [Effect(us=40, op="down")])
        self.assertGreater(row["unexplained_percent"], 2)
        self.assertTrue(row["adds_up"])
        self.assertNotIn("DO NOT ADD UP", out)

    def test_time_outside_the_profile_is_said_loudly(self):
        lines = self.machine.decoder_run(decoder_cases((1,)))
        slow = self.machine.decoder_run(decoder_cases((1,)))
        row = next(line for line in slow if line["kind"] == "row")
        row["samples_ms"] = [sample * 1.1 for sample in row["samples_ms"]]
        for name in ("ms_per_token", "mad_ms"):
            row[name] *= 1.1
        row["ci95_ms"] = [bound * 1.1 for bound in row["ci95_ms"]]
        row["decode_tok_s"] /= 1.1
        row["percent_of_measured_peak"] /= 1.1
        a = write(os.path.join(self.folder, "a.jsonl"), lines)
        b = write(os.path.join(self.folder, "b.jsonl"), slow)
        code, out, _ = run_main(a, b)
        self.assertEqual(code, 0)
        self.assertIn("THE PARTS DO NOT ADD UP", out)
        self.assertEqual(self.rows(a, b)[0]["blamed"], "unexplained")

    def test_op_of_one_side_only_counts_as_new(self):
        lines = self.machine.decoder_run(decoder_cases((1,)))
        profile = next(line for line in lines if line["kind"] == "row")["profile"]
        profile["ops"][-1]["op"] = "kv_append"
        a, b = self.side("a", cases=decoder_cases((1,))), write(os.path.join(self.folder, "b.jsonl"), lines)
        parts = {part["part"]: part for part in self.rows(a, b)[0]["parts"]}
        self.assertEqual(parts["kv_append"]["a_us"], 0)
        self.assertEqual(parts["sampling"]["b_us"], 0)

    def test_bars_are_a_waterfall_that_ends_where_b_is(self):
        self.assertEqual(blame.waterfall(100, [10, -5, 5], width=10), [(0, 10), (5, 10), (5, 10)])
        first, last = blame.waterfall(100, [50, 0.001], width=10)[1]
        self.assertEqual(last - first, 1)
        _, out, _ = run_main(self.side("a"), self.side("b", [Effect(us=40, op="down")]), "--batch", "1")
        bar = next(line for line in out.splitlines() if re.match(r"\s+down ", line))
        self.assertRegex(bar, "[█#]{20}")

    def test_without_profiles_the_step_is_compared_and_not_split(self):
        rows = self.rows(self.side("a", profile=None), self.side("b", [Effect(10, op="down")], profile=None))
        self.assertIsNone(rows[0]["blamed"])
        self.assertEqual(rows[0]["parts"], [])
        self.assertIn("no profile", self.rows(self.side("c", profile=None),
                                              self.side("d", [Effect(60, op="down")], profile=None))[0]["verdict"])

    def test_injected_delay_of_a_run_is_shown(self):
        _, out, _ = run_main(self.side("a"), self.side("b", injected={"host_delay_us": 500}))
        self.assertIn('INJECTED {"host_delay_us": 500}', out)

    def test_other_devices_need_across(self):
        base = self.side("a")
        self.machine = Machine(seed=6, gpu={"name": "NVIDIA H100", "uuid_hash": "0123456789abcdef"})
        other = self.side("b")
        code, _, err = run_main(base, other)
        self.assertEqual(code, 3)
        self.assertIn("GPU: NVIDIA H200 and NVIDIA H100", err)
        code, out, _ = run_main(base, other, "--across")
        self.assertEqual(code, 0)
        self.assertIn("compared across", out)
        self.assertIn("NVIDIA H200 -> NVIDIA H100", out)

    def test_exit_codes(self):
        base = self.side("a")
        bad = os.path.join(self.folder, "bad.jsonl")
        with open(bad, "w", encoding="utf-8") as file:
            file.write("{}\n")
        self.assertEqual(run_main(base, bad)[0], 1)
        self.assertEqual(run_main(base, os.path.join(self.folder, "none.jsonl"))[0], 1)
        self.assertEqual(run_main(base)[0], 2)
        self.assertEqual(run_main(base, base, "--batch", "0")[0], 2)
        self.assertEqual(run_main(base, base, "--batch", "64")[0], 3)
        kernels = os.path.join(self.folder, "kernels.jsonl")
        write(kernels, self.machine.run("bench_linear", []))
        self.assertEqual(run_main(base, kernels)[0], 3)
        self.assertEqual(run_main(base, self.side("b", cases=[DecoderCase(model="other")]))[0], 3)

    def test_disturbed_runs_are_left_out_where_others_remain(self):
        lines = self.machine.decoder_run(decoder_cases((1,)), [Effect(50, op="down")])
        next(line for line in lines if line["kind"] == "row")["disturbed"] = "throttled: power cap"
        folder = self.side("b", runs=2, cases=decoder_cases((1,)))
        write(os.path.join(folder, "disturbed.jsonl"), lines)
        rows = self.rows(self.side("a", cases=decoder_cases((1,))), folder)
        self.assertEqual(rows[0]["b"]["runs"], 2)
        self.assertIsNone(rows[0]["blamed"])

    def test_other_implementations_need_across(self):
        base = self.side("a")
        ablated = [DecoderCase(batch=batch, implementation="cuda without fused_mlp") for batch in (1, 8)]
        other = self.side("b", [Effect(25, op="gate_up")], cases=ablated)
        code, _, err = run_main(base, other)
        self.assertEqual(code, 3)
        self.assertIn("--across", err)
        self.assertEqual([row["blamed"] for row in self.rows(base, other, "--across")], ["gate_up", "gate_up"])


if __name__ == "__main__":
    unittest.main()
