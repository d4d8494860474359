"""scripts/peers nano-vllm with a program that stands for nano-vllm: its requests, what it is asked, and its row."""
import os
import pathlib
import subprocess
import sys
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benches"))

from folder_case import FolderTest  # noqa: E402
from peers import nano_vllm, rows  # noqa: E402
from synthetic import Machine, write  # noqa: E402
from synthetic_workload import NEW_TOKENS, PROMPT_TOKENS, workload_run  # noqa: E402
from tokline import records  # noqa: E402
from tokline.stop import Stop  # noqa: E402

LIBRARY = {"name": "nano-vllm", "version": "0123abc"}
CONFIG = types.SimpleNamespace(max_num_seqs=512, max_num_batched_tokens=16384, kvcache_block_size=256)
# A package of the names that nano-vllm has. It needs flash_attn and the tokenizer that take the others' places.
PACKAGE = {
    "nanovllm/__init__.py": "from nanovllm.engine.llm_engine import LLM, SamplingParams\n",
    "nanovllm/engine/__init__.py": "",
    "nanovllm/engine/llm_engine.py": """
from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

AutoTokenizer = None

class SamplingParams:
    def __init__(self, temperature, ignore_eos, max_tokens):
        self.temperature, self.ignore_eos, self.max_tokens = temperature, ignore_eos, max_tokens

class LLM:
    def __init__(self, model, enforce_eager, max_model_len):
        self.tokenizer = AutoTokenizer.from_pretrained(model, use_fast=True)
        self.asked = []

    def generate(self, prompts, rules, use_tqdm):
        self.asked.append((prompts, rules))
        return [{"text": self.tokenizer.decode([]), "token_ids": [7] * rule.max_tokens} for rule in rules]
"""}


class Tensor:
    """Has the shape of a tensor, and remembers what was done to it."""
    device = "cuda"

    def __init__(self, *shape, of=""):
        self.shape, self.of = shape, of

    def squeeze(self, axis):
        return Tensor(*self.shape[:axis], *self.shape[axis + 1:], of=self.of)

    def unsqueeze(self, axis):
        return Tensor(*self.shape[:axis], 1, *self.shape[axis:], of=self.of)

    def diff(self):
        return Tensor(self.shape[0] - 1, of=f"lengths of {self.of}")


class NanoVllmTest(FolderTest):
    def setUp(self):
        super().setUp()
        for name, text in PACKAGE.items():
            path = self.folder / "checkout" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.folder / "qwen3-0.6b").mkdir()
        (self.folder / "qwen3-0.6b/config.json").write_text("{}")
        self.lines = workload_run(Machine(seed=1))
        self.beside = write(self.folder / "workloads.jsonl", self.lines)
        self.ours = self.lines[1]

    def row(self, **changes):
        given = {"config": CONFIG, "seconds": [7.0, 6.9, 7.1], "written": [NEW_TOKENS] * 3, "complete": True,
                 "failure": "", "disturbed": ""} | changes
        return nano_vllm.peer_row("run", self.ours, LIBRARY, "NVIDIA H200", *given.values())

    def written(self, row):
        """The file of a run with this row, as records are read."""
        header = rows.header_line("run", self.lines[0]["fingerprint"], None, None)
        path = write(self.folder / "peers.jsonl", [header, row, rows.end_line("run", [row], False, None)])
        return records.read([path])[0].rows[0]

    def test_requests_are_those_of_its_benchmark_and_no_repeat_has_another_ones_prompts(self):
        prompts, new_tokens = nano_vllm.requests(0)
        self.assertEqual((len(prompts), sum(map(len, prompts)), sum(new_tokens)), (256, PROMPT_TOKENS, NEW_TOKENS))
        self.assertEqual(prompts[0][:2], [6311, 6890])
        others, same = nano_vllm.requests(1)
        self.assertEqual((same, [len(prompt) for prompt in others]), (new_tokens, [len(prompt) for prompt in prompts]))
        self.assertTrue(all(a != b for one, other in zip(prompts, others) for a, b in zip(one, other)))
        self.assertLess(max(map(max, others)), 10001)

    def test_one_repeat_does_not_count_and_each_is_asked_as_its_benchmark_asks(self):
        self.addCleanup(lambda modules=dict(sys.modules), path=list(sys.path): (
            sys.modules.clear(), sys.modules.update(modules), sys.path.__setitem__(slice(None), path)))
        attention = nano_vllm.flash_attn(None, None)
        sampling, engine = nano_vllm.load(self.folder / "checkout", self.folder / "qwen3-0.6b", attention)
        now = iter([0, 50, 60, 67, 70, 78])
        seconds, written, complete = nano_vllm.measure(sampling, engine, 2, lambda: None, lambda words: None,
                                                       clock=lambda: next(now))
        self.assertEqual((seconds, written, complete), ([7, 8], [NEW_TOKENS] * 2, True))
        self.assertEqual(len(engine.asked), 3)
        rules = engine.asked[2][1]
        self.assertTrue(all(rule.ignore_eos and rule.temperature == 0.6 for rule in rules))
        self.assertNotEqual(engine.asked[1][0], engine.asked[2][0])

    def test_its_row_is_valid_and_has_no_figure_that_was_not_measured(self):
        row = self.written(self.row())
        self.assertAlmostEqual(row["output_tok_s"], NEW_TOKENS / 7.0)
        self.assertEqual((row["implementation"], row["library"], row["verified"]), ("nano-vllm", LIBRARY, {"new_tokens": True}))
        self.assertEqual((row["shape"]["hash"], row["shape"]["max_batch"]), (self.ours["shape"]["hash"], 512))
        self.assertNotIn("first_token_ms", row)

    def test_figures_that_do_not_follow_from_the_samples_are_refused(self):
        for name in ("output_tok_s", "total_tok_s", "total_s", "median_us"):
            with self.assertRaises(records.BadRecords, msg=name):
                self.written(self.row() | {name: 1.0})

    def test_too_few_tokens_and_errors_refuse_the_row(self):
        self.assertIn("another number of new tokens", self.written(self.row(complete=False))["reason"])
        failed = self.written(self.row(failure="OutOfMemoryError: 3 GB", config=None, seconds=[], written=[]))
        self.assertEqual((failed["status"], failed["reason"]), ("refused", "OutOfMemoryError: 3 GB"))

    def test_it_stands_beside_ours_in_the_table(self):
        self.written(self.row())
        done = subprocess.run([ROOT / "scripts/records", "table", self.beside, self.folder / "peers.jsonl"], text=True,
                              capture_output=True, check=True)
        self.assertRegex(done.stdout, r"peer nano-vllm .* 19,138 ")
        self.assertRegex(done.stdout, r"nano-vllm, page 256, batch 256 +cuda ")

    def test_a_checkout_in_another_repository_has_the_version_of_its_project(self):
        inside = self.folder / "outer" / "checkout"
        inside.mkdir(parents=True)
        for command in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "a", "--allow-empty"]):
            subprocess.run(["git", "-C", inside.parent, *command], check=True)
        self.assertEqual(nano_vllm.version_of(inside), "unknown")
        (inside / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
        self.assertEqual(nano_vllm.version_of(inside), "0.2.0")
        self.assertRegex(nano_vllm.version_of(inside.parent), "^[0-9a-f]{12}$")

    def test_flash_attention_3_gets_what_nano_vllm_passes(self):
        calls = []
        attention = types.SimpleNamespace(forward=lambda q, k, v, out, **keywords: calls.append(keywords) or out)
        torch = types.SimpleNamespace(int32="int32", empty_like=lambda q: Tensor(*q.shape, of="out"),
                                      arange=lambda end, **_: Tensor(end, of="arange"))
        module = nano_vllm.flash_attn(torch, attention)
        q, keys = Tensor(40, 16, 128), Tensor(40, 8, 128)
        indptr = Tensor(4, of="indptr")
        usual = {"max_seqlen_q": 20, "cu_seqlens_q": indptr, "max_seqlen_k": 30, "cu_seqlens_k": indptr,
                 "softmax_scale": 128**-0.5, "causal": True}
        module.flash_attn_varlen_func(q, keys, keys, **usual, block_table=None)
        self.assertIs(calls[0]["kv_indptr"], indptr)
        self.assertIsNone(calls[0]["kv_lengths"])
        module.flash_attn_varlen_func(q, keys, keys, **usual, block_table=Tensor(3, 2))
        self.assertIsNone(calls[1]["kv_indptr"])
        self.assertEqual(calls[1]["kv_lengths"].of, "lengths of indptr")
        lengths = Tensor(3, of="contexts")
        out = module.flash_attn_with_kvcache(Tensor(3, 1, 16, 128), Tensor(9, 256, 8, 128), Tensor(9, 256, 8, 128),
                                             cache_seqlens=lengths, block_table=Tensor(3, 16), softmax_scale=128**-0.5,
                                             causal=True)
        self.assertEqual(out.shape, (3, 1, 16, 128))
        self.assertEqual((calls[2]["longest_q"], calls[2]["longest_kv"], calls[2]["q_indptr"].shape), (1, 4096, (4,)))
        self.assertIs(calls[2]["kv_lengths"], lengths)
        with self.assertRaisesRegex(ValueError, "softmax_scale is 1"):
            module.flash_attn_varlen_func(q, keys, keys, **usual | {"softmax_scale": 1})

    def test_the_row_of_another_model_is_refused(self):
        with self.assertRaisesRegex(Stop, "--model is qwen3-4b, but the newest row .* is of qwen3-0.6b"):
            nano_vllm.suite_row([self.beside], "qwen3-4b")
        self.assertEqual(nano_vllm.suite_row([self.beside], "qwen3-0.6b")["shape"]["name"], "nano-vllm")

    def test_what_is_missing_is_named(self):
        def refused(changes, words):
            arguments = {"--checkout": self.folder / "checkout", "--model": self.folder / "qwen3-0.6b", "--beside": self.beside,
                         "--record": self.folder / "out.jsonl"} | changes
            done = subprocess.run([ROOT / "scripts/peers", "nano-vllm", *(str(each) for pair in arguments.items() for each in pair)],
                                  text=True, capture_output=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)

        refused({"--checkout": self.folder}, "has no nanovllm/__init__.py")
        refused({"--model": self.folder}, "has no config.json")
        refused({"--repeats": 0}, "--repeats is 0; it must be at least 1")
        refused({}, "--python PATH is missing")
        refused({"--python": "/no/such"}, "--python is '/no/such'; there is no such program")
        refused({"--python": sys.executable}, "nano-vllm needs torch, triton, transformers, xxhash, tqdm")


if __name__ == "__main__":
    unittest.main()
