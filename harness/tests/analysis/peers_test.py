"""benches/peers on a simulated device, without PyTorch: shapes, timing, verification, rows and their validity."""
import contextlib
import importlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benches"))

from folder_case import FolderTest  # noqa: E402
from peers import inputs, measure, operations, prebuild, rows, shapes  # noqa: E402
from tokline import records  # noqa: E402
from tokline.command import ended  # noqa: E402
from tokline.stop import Stop  # noqa: E402

program = importlib.import_module("peers.__main__")

HASH = "897555227be1fb66"
L2_BYTES = 60 << 20
DECODE = {"name": "b1_s1024", "batch": 1, "len": 1024, "hq": 16, "hk": 8, "head_dim": 128, "page_size": 64}
RAGGED = {"name": "ragged", "batch": 3, "lens": [100, 64, 1], "hq": 16, "hk": 8, "head_dim": 128, "page_size": 64}
CASCADE = {"name": "shared", "batch": 2, "shared": 128, "unique": 70, "hq": 16, "hk": 8, "head_dim": 128,
           "page_size": 64}
STATE = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_cap_w": 700.0, "power_w": 100.0,
         "temperature_c": 40, "throttle_reasons": "none", "throttled": False, "other_processes": 0}


class FakeSubject:
    """Writes right outputs unless told otherwise; a launch takes `us`."""
    memory_bytes = 1000

    def __init__(self, sets=4, us=10.0, in_place=False, wrong=()):
        self.sets, self.us, self.in_place, self.wrong = sets, us, in_place, wrong
        self.seeds, self.compared = [], []

    def launch(self, index):
        return (f"output {index}",)

    def refill(self, seed):
        self.seeds.append(seed)

    def error(self, index, outputs):
        assert outputs == (f"output {index}",)
        self.compared.append(index)
        return 2.0 if len(self.compared) - 1 in self.wrong else 0.25


class FakeGraph:
    def __init__(self, subject, launches):
        self.subject, self.launches, self.poisoned = subject, launches, 0
        self.outputs = {index: subject.launch(index) for index in range(subject.sets)}

    def poison(self):
        self.poisoned += 1


class FakeDevice:
    """Replays take `start` and what their launches take, with noise of up to `spread` that goes round."""
    name, l2_bytes = "Fake GPU", L2_BYTES
    identity = {"name": "Fake GPU", "uuid_hash": HASH, "compute_capability": "9.0", "max_sm_clock_mhz": 1980,
                "mig": False, "mps": None}
    nvml = types.SimpleNamespace(state=lambda: STATE)

    def __init__(self, spread=0.0, disturbances=(), start=0.0):
        self.spread, self.disturbances, self.start = spread, list(disturbances), start
        self.graphs, self.replays = [], 0

    def warm_up(self, subject):
        subject.launch(0)

    def capture(self, subject, launches):
        self.graphs.append(FakeGraph(subject, launches))
        return self.graphs[-1]

    def replay(self, graph, count):
        times = []
        for _ in range(count):
            self.replays += 1
            noise = 1 + self.spread * (-1, -0.5, 0.5, 1)[self.replays % 4]
            times.append(self.start + graph.launches * graph.subject.us * noise)
        return times

    def disturbance(self):
        return self.disturbances.pop(0) if self.disturbances else ""

    def fingerprint(self, command_line, libraries):
        return {"time_utc": rows.utc_now(), "command_line": command_line, "commit": "unknown", "dirty": "unknown",
                "compiler": "unknown", "flags": "unknown", "cpu": "fake", "os": "fake", "libraries": libraries,
                "gpu": self.identity | {"before": STATE}}


def suite_records(path, uuid_hash=HASH, kernel="chunk_decode", shape=None, times=("2026-01-01T00:00:00Z",),
                  injected=None):
    """Records of the suite, a run for each of `times`, of two implementations each."""
    cost = {"read_bytes": 4e6, "write_bytes": 4096.0, "flops": 8e6}
    with open(path, "a", encoding="utf-8") as file:
        for number, time in enumerate(times):
            run_id = f"suite{number}{kernel}"
            lines = [{"schema": 2, "kind": "run", "run_id": run_id, "program": "bench", "injected": injected,
                      "fingerprint": {"time_utc": time, "commit": "c", "dirty": "false", "compiler": "gcc", "flags": "-O3",
                                      "cpu": "fake", "os": "fake", "gpu": FakeDevice.identity | {"uuid_hash": uuid_hash}},
                      "peaks": {"read_gbps": 4000.0, "copy_gbps": 3900.0, "matmul_tflops": 700.0, "launch_us": 3.0,
                                "graph_node_us": 0.7, "from_run": None},
                      "datasheet": {"memory_gbps": 4800.0, "bf16_tflops": 989.0}}]
            floor_us = 4004096 / 4000e3
            limits = types.SimpleNamespace(figures=lambda _, us: {
                "limit": "read", "floor_us": floor_us, "percent_of_measured_peak": 100 * floor_us / us,
                "percent_of_datasheet_peak": 100 * 4004096 / 4800e3 / us, "limit_is_wrong": False})
            for implementation, chain in (("cuda", "plain"), ("cuda", "dependent"), ("other", "plain")):
                samples = [8.0 + 0.01 * i for i in range(15)]
                measured = measure.Measurement(150, samples, "precise", 8.0, True, True, 0.5, 2)
                lines.append(rows.peer_row(run_id, {"kernel": kernel, "shape": shape or DECODE, "dtype": "bf16",
                                                    "cache": "cold", "cost": cost, "buffer_sets": 80},
                                           implementation, chain, None, "Fake GPU", measured, limits))
            for line in lines:
                file.write(json.dumps(line) + "\n")
    return path


class ShapesTest(unittest.TestCase):
    def test_a_page_belongs_to_one_sequence_or_to_all(self):
        batch = shapes.attention_batch("chunk_decode", CASCADE)
        self.assertEqual(batch.lengths, [198, 198])
        self.assertEqual(len(batch.shared_pages), 2)
        self.assertEqual([len(batch.pages(i)) for i in range(2)], [4, 4])
        used = batch.shared_pages + batch.own_pages[0] + batch.own_pages[1]
        self.assertEqual(sorted(used), list(range(batch.num_pages)))
        self.assertIsNone(batch.uniform)
        self.assertEqual(batch.last_page_length(70), 6)

    def test_ragged_lengths_are_those_of_the_row(self):
        batch = shapes.attention_batch("chunk_decode", RAGGED)
        self.assertEqual(batch.lengths, [100, 64, 1])
        self.assertEqual([len(batch.pages(i)) for i in range(3)], [2, 1, 1])
        self.assertEqual([batch.last_page_length(length) for length in batch.lengths], [36, 64, 1])

    def test_prefill_has_new_tokens_and_contexts(self):
        shape = {"name": "p", "batch": 2, "q_lens": [3, 5], "kv_lens": [30, 5], "page_size": 16}
        batch = shapes.attention_batch("paged_prefill", shape)
        self.assertEqual((batch.q_lengths, batch.lengths), ([3, 5], [30, 5]))
        uniform = shapes.attention_batch("paged_prefill", {"name": "p", "batch": 2, "q_len": 4, "kv_len": 9,
                                                           "page_size": 16})
        self.assertEqual(uniform.uniform, (4, 9))

    def test_appended_tokens_go_to_different_slots(self):
        for sequences in (1, 40):
            batch = shapes.append_batch(40, sequences, 16)
            slots = set(zip(batch.pages, batch.rows))
            self.assertEqual(len(slots), 40)
            self.assertEqual(sum(len(batch.tokens_of(page)) for page in range(batch.num_pages)), 40)
            self.assertEqual(batch.positions, list(range(40)))  # each token has its own row of angles
            self.assertEqual(batch.rows, [position % 16 for position in batch.positions])

    def test_ids_repeat_only_where_the_vocabulary_is_too_small(self):
        self.assertEqual(len(set(shapes.distinct_ids(64, 64))), 64)
        self.assertEqual(len(set(shapes.distinct_ids(10, 64))), 10)
        self.assertEqual(sorted(shapes.distinct_ids(6, 3)), [0, 0, 1, 1, 2, 2])

    def test_picks_have_the_first_and_the_last(self):
        for seed in range(20):
            picked = shapes.pick(100, 4, seed)
            self.assertEqual((picked[0], picked[-1], len(set(picked))), (0, 99, 4))
        self.assertEqual(shapes.pick(3, 4, 0), [0, 1, 2])


class MeasureTest(unittest.TestCase):
    def test_a_graph_takes_a_millisecond_and_whole_rotations(self):
        device = FakeDevice()
        result = measure.measure(device, FakeSubject(sets=7, us=10.0))
        self.assertEqual(result.launches % 7, 0)
        self.assertGreaterEqual(result.launches * 10.0, measure.MIN_SAMPLE_US)
        self.assertEqual(len(result.samples_us), measure.MIN_SAMPLES)
        self.assertAlmostEqual(measure.median(result.samples_us), 10.0)
        self.assertEqual((result.stopped, result.fresh_us), ("precise", 10.0))

    def test_a_graph_is_long_enough_where_one_rotation_takes_mostly_its_start(self):
        result = measure.measure(FakeDevice(start=36.0), FakeSubject(sets=4, us=1.0))
        self.assertGreaterEqual(result.launches * 1.0, measure.MIN_SAMPLE_US / 2)
        most = measure.measure(FakeDevice(), FakeSubject(sets=4, us=0.01))
        self.assertEqual(most.launches, measure.MAX_LAUNCHES)

    def test_inputs_are_fresh_and_outputs_poisoned_before_each_comparison(self):
        device, subject = FakeDevice(), FakeSubject()
        result = measure.measure(device, subject)
        self.assertEqual(len(set(subject.seeds)), len(subject.seeds))
        self.assertEqual(sum(graph.poisoned for graph in device.graphs), len(subject.seeds) - 1)
        self.assertEqual(len(subject.compared), 2 + result.audits)
        self.assertEqual(subject.compared[:2], [0, 3])
        self.assertEqual(result.audits, measure.AUDITS)

    def test_an_in_place_operation_is_compared_after_one_launch_and_never_poisoned(self):
        device, subject = FakeDevice(), FakeSubject(in_place=True)
        result = measure.measure(device, subject)
        self.assertTrue(result.before and result.after)
        self.assertEqual(sum(graph.poisoned for graph in device.graphs), 0)
        self.assertEqual(len(subject.compared), 2 + measure.AUDITS)

    def test_wide_samples_are_taken_until_the_time_is_spent(self):
        clock = mock.Mock(side_effect=[0.0, 0.01, 0.02, 9.0])
        result = measure.measure(FakeDevice(spread=0.1), FakeSubject(), row_seconds=0.05, clock=clock)
        self.assertEqual((result.stopped, len(result.samples_us)), ("time", 4 * measure.MIN_SAMPLES - 15))

    def test_a_disturbed_row_is_repeated_and_then_says_so(self):
        rests = []
        passing = measure.measure(FakeDevice(disturbances=["throttled: power cap"]), FakeSubject(), rest=rests.append)
        self.assertEqual((passing.disturbed, passing.rested), ("", True))
        self.assertEqual(rests[0], measure.FIRST_REST_US)
        self.assertEqual(len(rests), 1 + len(passing.samples_us))
        for us, rest in zip(passing.samples_us, rests[1:]):
            self.assertAlmostEqual(rest, measure.REST_SHARES[0] * us * passing.launches)
        rests.clear()
        staying = measure.measure(FakeDevice(disturbances=["throttled: power cap"] * 6), FakeSubject(), rest=rests.append)
        self.assertEqual((staying.disturbed, staying.rested), ("throttled: power cap", True))
        self.assertEqual(rests.count(measure.FIRST_REST_US), 2)
        self.assertAlmostEqual(rests[-1], measure.REST_SHARES[1] * staying.samples_us[-1] * staying.launches)
        mixed = measure.measure(FakeDevice(disturbances=["throttled: power cap", "1 other process on the GPU"]),
                                FakeSubject(), rest=lambda us: None)
        self.assertEqual((mixed.disturbed, mixed.rested), ("", True))
        others = measure.measure(FakeDevice(disturbances=["1 other process on the GPU"]), FakeSubject(), rest=self.fail)
        self.assertFalse(others.rested)
        rests.clear()
        beside = measure.measure(FakeDevice(), FakeSubject(), rests=True, rest=rests.append)
        self.assertTrue(beside.rested)
        self.assertEqual(rests[0], measure.FIRST_REST_US)
        self.assertEqual(len(rests), 1 + len(beside.samples_us))
        rests.clear()
        hot = measure.measure(FakeDevice(disturbances=["throttled: power cap"] * 6), FakeSubject(), rests=True,
                              rest=rests.append)
        self.assertEqual(hot.disturbed, "throttled: power cap")
        self.assertAlmostEqual(rests[-1], measure.REST_SHARES[1] * hot.samples_us[-1] * hot.launches)
        self.assertEqual(len(staying.samples_us), measure.MIN_SAMPLES)

    def test_a_wrong_output_at_any_comparison_is_found(self):
        for wrong in range(2 + measure.AUDITS):
            result = measure.measure(FakeDevice(), FakeSubject(wrong=(wrong,)))
            self.assertFalse(result.before and result.after, wrong)
            self.assertEqual(result.error, 2.0)
        nan = measure.Measurement()
        self.assertFalse(nan.note(float("nan")))
        self.assertEqual(nan.error, measure.WRONG)

    def test_the_interval_is_that_of_the_suite(self):
        self.assertEqual(measure.median_interval(list(range(15))), (3, 11))
        self.assertEqual(measure.median_interval([3.0, 1.0, 2.0]), (1.0, 3.0))
        self.assertEqual(measure.median_interval(list(range(60))), (21, 38))

    def test_too_few_bytes_are_not_cold(self):
        measure.require_cold(80, 4e6, L2_BYTES)
        with self.assertRaisesRegex(measure.Unsupported, "would not be cold: 2 buffer sets"):
            measure.require_cold(2, 4e6, L2_BYTES)


class DrawnRowsTest(unittest.TestCase):
    def test_rows_of_either_type_and_order_of_pages_have_inputs(self):
        torch = types.SimpleNamespace(bfloat16="bfloat16", float16="float16")
        for dtype, name in (("bf16", "bfloat16"), ("f16", "float16")):
            bench = operations.Bench(torch, {}, {"shape": RAGGED, "dtype": dtype, "buffer_sets": 2}, L2_BYTES, {})
            self.assertEqual(bench.dtype, name)
            self.assertIn(dtype, inputs.EPSILON)
        nhd = shapes.attention_batch("chunk_decode", RAGGED | {"order": "nhd"})
        self.assertEqual(nhd, shapes.attention_batch("chunk_decode", RAGGED))  # each library has a layout of its own


class Tensor(np.ndarray):
    """As much of a PyTorch tensor as Inputs.compare() takes."""
    def float(self):
        return self.astype(np.float32)

    def square(self):
        return self * self

    def sqrt(self):
        return np.sqrt(self)

    def abs(self):
        return np.abs(self)

    def numel(self):
        return self.size

    def clamp_min(self, least):
        return np.maximum(self, np.float32(least))

    def nan_to_num(self, **replaced):
        return np.nan_to_num(self, **replaced)

    def mean(self, axis, keepdim=False):
        return super().mean(axis, keepdims=keepdim)


def to_bf16(values):
    """The nearest values of bf16."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(mantissa, 8)), exponent - 8).astype(np.float32)


class ComparisonTest(unittest.TestCase):
    """Attention of 16 queries and 4,096 tokens with heads of 128, against float32."""
    def setUp(self):
        random = np.random.default_rng(1)
        scores = random.normal(size=(16, 4096))
        self.weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        self.v = to_bf16(random.uniform(-2, 2, (4096, 128)))
        self.expected = self.weights @ self.v
        self.inputs = inputs.Inputs.__new__(inputs.Inputs)
        self.inputs.torch = types.SimpleNamespace(frexp=np.frexp, ldexp=np.ldexp, full_like=np.full_like)
        self.inputs.epsilon = inputs.EPSILON["bf16"]

    def over(self, actual):
        """compare(), and the largest error alone."""
        pair = [array.astype(np.float32).view(Tensor) for array in (actual, self.expected)]
        with mock.patch.object(inputs, "LEAST_COLUMNS", 1 << 30):
            alone = self.inputs.compare(*pair)
        return self.inputs.compare(*pair), alone

    def test_roundings_of_weights_and_outputs_are_no_error(self):
        self.assertLess(self.over(to_bf16(to_bf16(self.weights) @ self.v))[0], 0.6)

    def test_a_tail_that_shifts_every_element_within_its_bound_is_an_error(self):
        tail = self.v.copy()
        tail[-128:] += 0.007  # 3 % of the tokens
        whole, alone = self.over(to_bf16(self.weights @ tail))
        self.assertLess(alone, 1)
        self.assertGreater(whole, 1)

    def test_one_row_in_many_is_enough_and_nan_is_wrong(self):
        tail = self.v.copy()
        tail[-128:] += 0.007
        actual = to_bf16(self.expected)
        actual[3] = to_bf16(self.weights @ tail)[3]
        self.assertGreater(self.over(actual)[0], 1)
        actual[3, 5] = float("nan")
        self.assertEqual(self.over(actual)[0], measure.WRONG)


class AttemptsTest(unittest.TestCase):
    def names(self, kernel, shape, wanted=program.LIBRARIES):
        return operations.attempts({"kernel": kernel, "shape": shape}, wanted)

    def test_only_the_libraries_asked_for_are_tried(self):
        self.assertEqual({attempt.peer for attempt in self.names("chunk_decode", DECODE, ["fa3"])}, {"fa3"})
        self.assertEqual(self.names("no_such_kernel", DECODE), [])

    def test_attempts_of_one_layout_are_next_to_each_other(self):
        layouts = [attempt.layout for attempt in self.names("chunk_decode", CASCADE)]
        changes = sum(a != b for a, b in zip(layouts, layouts[1:]))
        self.assertEqual(changes, len(set(layouts)) - 1)

    def test_what_a_library_cannot_run_is_tried_with_its_reason(self):
        reasons = {attempt.implementation: attempt.reason for attempt in self.names("chunk_decode", RAGGED)}
        self.assertIn("one length", reasons["cudnn-contiguous"])
        self.assertEqual(reasons["flashinfer-tc"], "")
        self.assertNotIn("flashinfer-cascade", reasons)
        shared = {attempt.implementation: attempt.reason for attempt in self.names("chunk_decode", CASCADE)}
        self.assertIn("cannot share", shared["torch-contiguous"])
        self.assertEqual(shared["flashinfer-cascade"], "")
        past = {"name": "p", "batch": 2, "q_len": 4, "kv_len": 9, "page_size": 16}
        prefill = {attempt.implementation: attempt.reason for attempt in self.names("paged_prefill", past)}
        self.assertIn("past", prefill["cudnn-contiguous"])
        self.assertEqual(prefill["torch-contiguous"], "")

    def test_every_default_shape_has_a_peer_that_may_run_it_but_sums_with_positions_layernorm_and_gelu(self):
        recorded = records.read(ROOT / "results" / "h200" / "kernels.jsonl")
        seen, without_peers = set(), set()
        for run in recorded:
            for row in run.rows:
                if row["kernel"] not in operations.PEERS:
                    without_peers.add(row["kernel"])
                    continue
                tried = operations.attempts(row, program.LIBRARIES)
                can_run = any(not attempt.reason for attempt in tried)
                alone = row["shape"].get("positions") or row["shape"].get("kind") in ("layernorm", "gelu_tanh")
                self.assertEqual(can_run, not alone, rows.label(row))
                seen.add(row["kernel"])
        self.assertEqual(seen, set(operations.PEERS))
        # No library has a whole step, and bench_all_reduce_norm measures NCCL itself, beside its own ranks.
        self.assertEqual(without_peers, {"decode_step", "all_reduce_norm"})

    def test_every_recorded_shape_that_xqa_takes_has_a_module_in_the_prebuild(self):
        recorded = [row["shape"] for run in records.read(ROOT / "results" / "h200" / "kernels.jsonl") for row in run.rows
                    if row["kernel"] == "chunk_decode"]
        needed = {(shape["page_size"], shape["hq"] // shape["hk"]) for shape in recorded
                  if not operations.xqa_unless(shape)}
        self.assertEqual(set(prebuild.xqa_variants()), needed)


class RowsTest(FolderTest):
    def session(self, suite, subjects, device=None, time_limit=100.0, missing=None, clock=lambda: 0.0):
        """Runs a session whose subjects come from `subjects` in turn; an exception is raised. Returns its runs."""
        subjects = iter(subjects)

        def make(_bench, _inputs, _chain):
            subject = next(subjects)
            if isinstance(subject, BaseException):
                raise subject
            return subject
        out = self.folder / "out.jsonl"
        torch = types.SimpleNamespace(bfloat16=None, float16=None, cuda=types.SimpleNamespace(empty_cache=lambda: None))
        libraries = {"flashinfer": types.SimpleNamespace(name="flashinfer", version="0.7.2"),
                     "fa3": types.SimpleNamespace(name="flash-attention-3", version="vllm 0.33.0")}
        options = program.parse(["--beside", str(suite), "--record", str(out), "--peers", "flashinfer,fa3",
                                 "--time-limit", str(time_limit)])
        work = [(run, [(row, [attempt._replace(make=make) for attempt in tried]) for row, tried in chosen])
                for run, chosen in program.plan(records.read([suite]), options)]
        record = rows.RecordFile(out)
        self.addCleanup(record.close)
        self.done = session = program.Session(torch, device or FakeDevice(), libraries, missing or {}, options, record,
                                  ["scripts/peers"], clock=clock)
        kernels = {kernel: lambda *_: None for kernel in operations.INPUTS}
        with mock.patch.dict(operations.INPUTS, kernels):
            try:
                for run, chosen in work:
                    session.run(run, chosen)
            finally:
                self.runs = records.read([out])
        return self.runs

    def test_rows_are_valid_records_beside_those_of_the_suite(self):
        suite = suite_records(self.folder / "suite.jsonl")
        run, = self.session(suite, [FakeSubject(sets=80, us=9.0 + i) for i in range(20)])
        self.assertEqual((run.program, run.header["peaks"]["from_run"]), ("peers", "suite0chunk_decode"))
        self.assertEqual(run.fingerprint["libraries"]["flashinfer"], "0.7.2")
        own = records.read([suite])[0].rows[0]
        tried = operations.attempts(own, ["flashinfer", "fa3"])
        self.assertEqual([(row["implementation"], row["chain"]) for row in run.rows],
                         [(attempt.implementation, attempt.chain) for attempt in tried])
        for row in run.rows:
            for field in ("kernel", "shape", "cost", "cache", "dtype", "buffer_sets"):
                self.assertEqual(row[field], own[field])
            self.assertEqual((row["status"], row["limit"]), ("ok", "read"))
            self.assertAlmostEqual(row["floor_us"], 4004096 / 4000 / 1e3)
            self.assertEqual(len(row["ci95_us"]), 2)
        self.assertEqual(run.rows[0]["library"], {"name": "flashinfer", "version": "0.7.2"})
        self.assertEqual((run.end["rows"], run.end["refused"]), (len(run.rows), 0))
        self.assertEqual(len({records.key(row) for row in run.rows + [own]}), len(run.rows) + 1)

    def test_a_librarys_error_costs_its_row_alone(self):
        suite = suite_records(self.folder / "suite.jsonl")
        subjects = [RuntimeError("no kernel\n for this"), FakeSubject(sets=80, wrong=(1,)),
                    FakeSubject(sets=80, us=4004096 / 4800e3 / 1.021)] + [FakeSubject(sets=80) for _ in range(20)]
        run, = self.session(suite, subjects)
        self.assertEqual(run.rows[0]["reason"], "RuntimeError: no kernel for this")
        self.assertIn("unverified: before timing yes, after timing no", run.rows[1]["reason"])
        self.assertRegex(run.rows[2]["reason"], "above the roofline: .* us is 102.1 % of what the datasheet allows")
        self.assertEqual([row["status"] for row in run.rows[3:]], ["ok"] * (len(run.rows) - 3))
        self.assertEqual(run.end["refused"], 3)

    def test_a_module_that_is_not_compiled_is_named_at_the_end_and_fails(self):
        suite = suite_records(self.folder / "suite.jsonl")
        uncompiled = RuntimeError("a paragraph")
        uncompiled.spec = types.SimpleNamespace(name="topk")
        run, = self.session(suite, [uncompiled, uncompiled] + [FakeSubject(sets=80) for _ in range(20)])
        self.assertIn("FlashInfer's module topk is not compiled", run.rows[0]["reason"])
        self.assertEqual(run.rows[-1]["status"], "ok")
        with self.assertRaisesRegex(Stop, "^2 rows refused, since modules of FlashInfer are not compiled: topk;"):
            self.done.end()
        with self.assertRaisesRegex(Stop, "^the time limit of 1 s was reached; .*; 1 row refused, since modules"):
            self.session(suite, [uncompiled, uncompiled], time_limit=1, clock=iter((0, 0, 9)).__next__)
        self.session(suite, [FakeSubject(sets=80) for _ in range(20)])
        self.assertEqual(self.done.end(), 0)

    def test_a_right_row_above_the_peak_has_the_peak_measured_again_and_stands(self):
        suite = suite_records(self.folder / "suite.jsonl")
        quick_us = 4004096 / 4700e3  # between the measured peak, 4,000 GB/s, and the datasheet's 4,800
        for again, wrong in ((4650.0, False), (4100.0, True)):
            device = FakeDevice()
            device.peaks_again = mock.Mock(side_effect=lambda peaks, again=again: peaks | {"read_gbps": again})
            subjects = [FakeSubject(sets=80, us=quick_us), FakeSubject(sets=80, us=quick_us / 2)]
            run, = self.session(suite, subjects + [FakeSubject(sets=80) for _ in range(20)], device=device)
            table = subprocess.run([ROOT / "scripts/records", "table", self.folder / "out.jsonl"], text=True,
                                   capture_output=True, check=True).stdout
            self.assertEqual("% read, a wrong limit" in table, wrong, table)
            (self.folder / "out.jsonl").unlink()
            device.peaks_again.assert_called_once()
            row, impossible = run.rows[:2]
            self.assertEqual((row["status"], row["limit_is_wrong"]), ("ok", wrong))
            self.assertAlmostEqual(row["percent_of_measured_peak"], 100 * 4700 / again)
            self.assertIn("what the datasheet allows", impossible["reason"])

    def test_the_floor_changes_as_its_peak_when_that_is_measured_again(self):
        header = {"peaks": {"read_gbps": 4000.0, "copy_gbps": 2000.0, "matmul_tflops": 700.0}, "datasheet": {}}
        run = types.SimpleNamespace(gpu={"uuid_hash": HASH}, run_id="r", header=header)
        row = {"limit": "copy", "floor_us": 3.0, "cache": "cold", "median_us": 6.0, "percent_of_datasheet_peak": 40.0}
        limits = rows.Limits(run, HASH)
        self.assertEqual(limits.figures(row, 4.0)["percent_of_measured_peak"], 75.0)
        limits.peaks = limits.peaks | {"read_gbps": 8000.0, "copy_gbps": 2500.0}
        figures = limits.figures(row, 4.0)
        self.assertAlmostEqual(figures["floor_us"], 2.4)
        self.assertAlmostEqual(figures["percent_of_measured_peak"], 60.0)
        self.assertTrue(limits.figures(row, 2.0)["limit_is_wrong"])
        self.assertIsNone(rows.Limits(run, "another").figures(row, 4.0)["floor_us"])

    def test_no_ratio_is_stated_past_a_row_that_was_refused_as_too_fast(self):
        suite = suite_records(self.folder / "suite.jsonl")
        quick_us = 4004096 / 4800e3 / 1.021
        self.session(suite, [FakeSubject(sets=80, us=quick_us)] + [FakeSubject(sets=80) for _ in range(20)])
        files = [suite, self.folder / "out.jsonl"]
        table, standing = (subprocess.run([ROOT / "scripts/records", verb, *files], text=True, capture_output=True,
                                          check=True).stdout for verb in ("table", "standing"))
        self.assertNotRegex(table, r"\d\.\d\dx")
        self.assertIn("a faster one was refused", table)
        self.assertEqual(standing.count("|"), 0)
        self.assertIn("On 1 more shape no ratio is stated", standing)

    def test_a_launch_that_is_quick_only_when_inputs_repeat_is_refused(self):
        class Remembering(FakeDevice):
            def replay(self, graph, count):
                return [us * (2 if count == 1 else 1) for us in super().replay(graph, count)]
        suite = suite_records(self.folder / "suite.jsonl")
        run, = self.session(suite, [FakeSubject(sets=80) for _ in range(20)], device=Remembering())
        self.assertIn("work is left out when inputs repeat", run.rows[0]["reason"])

    def test_a_missing_library_is_said_in_the_rows(self):
        suite = suite_records(self.folder / "suite.jsonl")
        run, = self.session(suite, [FakeSubject(sets=80) for _ in range(20)], missing={"fa3": "no such file"})
        self.assertIsNone(run.rows[0]["reason"])
        self.assertIn("fa3 is missing: no such file", run.rows[-1]["reason"])
        with self.assertRaisesRegex(Stop, "^fa3 could not be loaded"):
            self.done.end()

    def test_a_spent_limit_leaves_a_run_that_is_marked_as_unfinished(self):
        suite = suite_records(self.folder / "suite.jsonl")
        ticks = iter([0.0] * 4 + [99.0])
        with self.assertRaisesRegex(Stop, "time limit of 50 s was reached; the run is marked as unfinished"):
            self.session(suite, [FakeSubject(sets=80) for _ in range(20)], time_limit=50.0, clock=lambda: next(ticks))
        run, = self.runs
        self.assertTrue(run.interrupted)
        self.assertEqual([row["status"] for row in run.rows], ["ok"] * 3)

    def test_peaks_of_another_gpu_are_not_taken_over(self):
        suite = suite_records(self.folder / "suite.jsonl", uuid_hash="0000000000000000")
        run, = self.session(suite, [FakeSubject(sets=80) for _ in range(20)])
        self.assertIsNone(run.header["peaks"])
        self.assertTrue(all(row["percent_of_measured_peak"] is None for row in run.rows))

    def test_the_table_shows_peers_beside_ours_and_why_others_are_not(self):
        suite = suite_records(self.folder / "suite.jsonl")
        subjects = [FakeSubject(sets=80, us=6.0 + i) for i in range(5)] + [RuntimeError("no kernel")] * 20
        self.session(suite, subjects)
        table = subprocess.run([ROOT / "scripts/records", "table", suite, self.folder / "out.jsonl"], text=True,
                               capture_output=True, check=True).stdout
        lines = [line.split() for line in table.splitlines()]
        ours = next(line for line in lines if line[:4] == ["b1_s1024,", "page", "64", "cuda"])
        self.assertEqual(ours[-2:], ["yes", "1.34x"])  # 8.07 us beside 6 us
        peers = [line for line in lines if line[3:4] == ["peer"]]
        self.assertEqual([line[-1] for line in peers], ["1.00x", "1.17x", "1.33x", "1.50x", "1.67x"])
        self.assertEqual(peers[0][4], "flashinfer-tc")
        self.assertIn("peer refused: fa3, 1 row of chunk_decode: RuntimeError: no kernel", table)

    def test_an_interrupt_ends_the_run_with_what_was_measured(self):
        suite = suite_records(self.folder / "suite.jsonl")
        with self.assertRaises(KeyboardInterrupt):
            self.session(suite, [FakeSubject(sets=80), KeyboardInterrupt()])
        run, = self.runs
        self.assertTrue(run.interrupted)
        self.assertEqual(run.end["rows"], 1)

    def test_a_shape_is_measured_once_beside_its_newest_run(self):
        suite = self.folder / "suite.jsonl"
        suite_records(suite, times=("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"))
        suite_records(suite, kernel="activation",
                      shape={"name": "i8", "kind": "gated_silu", "tokens": 1, "intermediate": 8})
        suite_records(suite, kernel="norm", injected={"slowdown_percent": 3},
                      shape={"name": "n", "kind": "rmsnorm", "tokens": 1, "hidden": 8, "add": False})
        found = [(run.run_id, [row["kernel"] for row in chosen]) for run, chosen in rows.work_of(records.read([suite]))]
        self.assertEqual(sorted(found), [("suite0activation", ["activation"]), ("suite0chunk_decode", ["chunk_decode"])])

    def test_peers_rows_are_not_measured_beside(self):
        suite = suite_records(self.folder / "suite.jsonl")
        self.session(suite, [FakeSubject(sets=80) for _ in range(20)])
        both = rows.work_of(records.read([suite, self.folder / "out.jsonl"]))
        self.assertEqual([run.program for run, _ in both], ["bench"])

    def test_an_unfinished_line_is_cut_off_before_the_next(self):
        path = self.folder / "killed.jsonl"
        path.write_text('{"whole": 1}\n{"unfin')
        record = rows.RecordFile(path)
        record.append({"next": 2})
        record.close()
        self.assertEqual(path.read_text(), '{"whole": 1}\n{"next": 2}\n')
        with self.assertRaises(ValueError):
            rows.RecordFile(self.folder / "nan.jsonl").append({"us": float("nan")})


class ProgramTest(unittest.TestCase):
    def call(self, *arguments):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), mock.patch.dict(os.environ):
            try:
                code = ended("scripts/peers", lambda: program.main(list(arguments)))
            except SystemExit as stop:
                code = stop.code
        return code, errors.getvalue()

    def test_misuse_and_bad_files_have_a_line_and_their_codes(self):
        with tempfile.TemporaryDirectory() as folder:
            suite = suite_records(os.path.join(folder, "suite.jsonl"))
            out = os.path.join(folder, "out.jsonl")
            code, words = self.call("--beside", suite, "--record", out, "--peers", "nobody")
            self.assertEqual(code, 2)
            self.assertIn("--peers names 'nobody'; allowed: flashinfer, fa3, cudnn, torch", words)
            code, words = self.call("--beside", os.path.join(folder, "none.jsonl"), "--record", out)
            self.assertEqual((code, words.count("\n")), (1, 1))
            code, words = self.call("--beside", suite, "--record", out, "--only", "no such shape")
            self.assertEqual((code, words.count("\n")), (2, 1))
            self.assertFalse(os.path.exists(out))

    def test_without_a_gpu_it_exits_77(self):
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: False))
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(sys.modules, torch=torch):
            suite = suite_records(os.path.join(folder, "suite.jsonl"))
            code, words = self.call("--beside", suite, "--record", os.path.join(folder, "out.jsonl"))
        self.assertEqual(code, 77)
        self.assertIn("no GPU", words)


class GpuTest(unittest.TestCase):
    def test_the_hash_is_the_fingerprints(self):
        from peers import gpu
        self.assertEqual(gpu.uuid_hash(b""), "cbf29ce484222325")
        self.assertEqual(gpu.uuid_hash(b"foobar"), "85944171f73967e8")  # FNV-1a's published test vector

    def test_the_command_line_names_no_folders(self):  # as FingerprintTest.TheCommandLineNamesNoFolders
        from peers import gpu
        words = ["/home/me/build/cuda/bin/bench_y", "/models/x/", "/tmp/b/bench_x", "--record=/home/me/out.jsonl",
                 "--shapes", "/a/b.json", "benches/shapes.json", "--x=1/2"]
        self.assertEqual(gpu.without_folders(words), [
            "build/cuda/bin/bench_y", "x/", "bench_x", "--record=out.jsonl", "--shapes", "b.json",
            "benches/shapes.json", "--x=1/2"])

    def test_throttling_is_said_in_words(self):
        from peers import gpu
        self.assertEqual(gpu.throttle_text(0), "none")
        self.assertEqual(gpu.throttle_text(0x1004), "power cap, unknown reason")
        self.assertTrue(gpu.is_throttled(0x4))
        self.assertFalse(gpu.is_throttled(0x3))

    def test_a_version_number_is_read(self):
        from peers import libraries
        self.assertEqual(libraries.version_text(91900), "9.19.0")

    def test_stand_ins_take_the_place_of_what_an_import_mentions(self):
        from peers import libraries
        finder = libraries.StandInFinder()
        module = finder.create_module(finder.find_spec("cutlass.cute"))
        self.assertIsNone(finder.find_spec("numpy"))

        class Derived(module.Base):
            field: module.Type | None = None

            @module.jit
            def method(self):
                return 1
        self.assertEqual(Derived().method(), 1)


if __name__ == "__main__":
    unittest.main()
