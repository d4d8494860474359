"""Turns the tiny golden checkpoints of every family into GGUF files, as llama.cpp's converter does, and back."""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import gguf
import numpy as np

from gguf_model import __main__ as program
from gguf_model import tokenizer
from gguf_model.weights import Refused, Tensor, rounded

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "harness" / "tests" / "golden"
ARCHITECTURES = {"qwen3_tiny": "qwen3", "qwen3_untied_group3": "qwen3", "qwen3_sharded": "qwen3", "llama3_scaled": "llama",
                 "llama_biased": "llama", "qwen2_group3": "qwen2", "ernie4_5_group7": "ernie4_5", "gpt2_tiny": "gpt2"}


def read_safetensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a checkpoint as float32."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            raw = np.frombuffer(data[begin:end], np.uint16 if entry["dtype"] == "BF16" else np.float32)
            if entry["dtype"] == "BF16":
                raw = (raw.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = raw.reshape(entry["shape"])
    return tensors


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Q and K of the architecture `llama`."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def rope_factors(scaling: dict, theta: float, head_dim: int) -> np.ndarray:
    """What the converter stores of the RoPE scaling of Llama 3.1, by its own formula."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta**(i / head_dim)
        positions, low, high = (scaling[key] for key in ("original_max_position_embeddings", "low_freq_factor",
                                                         "high_freq_factor"))
        if wavelength < positions / high:
            factors.append(1.0)
        elif wavelength > positions / low:
            factors.append(scaling["factor"])
        else:
            smooth = (positions / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def write_vocabulary(writer: gguf.GGUFWriter, size: int, model: str) -> None:
    """Tokens that a tokenizer can be rebuilt from: single characters, some longer ones, and special ones."""
    tokens = ["<unk>", "<s>", "</s>"] + [chr(0x21 + i) for i in range(size - 7)] + ["ab", "abc", "bc", "zz"]
    types = [2, 3, 3] + [1] * (size - 3)
    writer.add_tokenizer_model(model)
    if model == "gpt2":
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_merges(["a b", "ab c"])
    else:
        writer.add_token_scores([0.0] * (size - 4) + [-1.0, -2.0, -3.0, -4.0])
        writer.add_unk_token_id(0)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}\n")


def write_gguf(path: Path, name: str, model: str = "gpt2", change=lambda writer: None) -> dict:
    """A golden checkpoint as GGUF; returns its config."""
    config = json.loads((GOLDEN / name / "config.json").read_text())
    arch = ARCHITECTURES[name]
    writer = gguf.GGUFWriter(path, arch)
    heads = config.get("num_attention_heads", config.get("n_head"))
    hidden = config.get("hidden_size", config.get("n_embd"))
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    writer.add_block_count(layers)
    writer.add_context_length(config.get("max_position_embeddings", config.get("n_positions")))
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config.get("intermediate_size") or config.get("n_inner") or 4 * hidden)
    writer.add_head_count(heads)
    if arch == "gpt2":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = config.get("rope_theta") or rope["rope_theta"]
        head_dim = config.get("head_dim") or hidden // heads
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(head_dim)
        writer.add_rope_freq_base(theta)
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        if "factor" in rope:
            writer.add_tensor("rope_freqs.weight", rope_factors(rope, theta, head_dim))
    names = gguf.get_tensor_name_map({name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[arch], layers)
    for tensor, values in read_safetensors(GOLDEN / name).items():
        if arch == "llama" and "self_attn.q_proj" in tensor:
            values = permuted(values, heads)
        if arch == "llama" and "self_attn.k_proj" in tensor:
            values = permuted(values, config["num_key_value_heads"])
        if arch == "gpt2" and values.ndim == 2 and (".attn." in tensor or ".mlp." in tensor):
            values = values.T
        writer.add_tensor(names.get_name(tensor, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(values))
    write_vocabulary(writer, config["vocab_size"], model)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config


class GgufModelTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)

    def run_program(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of scripts/model."""
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(sys, "argv", ["model", *arguments]), contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(err):
            code = program.main()
        return code, out.getvalue(), err.getvalue()

    def make(self, name: str, dtype: str = "f32", **options) -> Path:
        write_gguf(self.scratch / f"{name}.gguf", name, **options)
        folder = self.scratch / name
        code, out, err = self.run_program("--gguf", str(self.scratch / f"{name}.gguf"), "--out", str(folder), "--dtype",
                                          dtype)
        self.assertEqual((code, out), (0, f"{folder}\n"), err)
        return folder

    def refused(self, name: str, change, model: str = "gpt2") -> str:
        path = self.scratch / "bad.gguf"
        write_gguf(path, name, model, change)
        code, out, err = self.run_program("--gguf", str(path), "--out", str(self.scratch / "bad"))
        self.assertEqual((code, out), (1, ""))
        self.assertEqual(err.count("\n"), 1, err)
        self.assertFalse((self.scratch / "bad").exists())
        self.assertEqual(list(self.scratch.glob(".making-*")), [])
        return err

    def test_every_family_comes_back_bit_for_bit(self):
        for name in ARCHITECTURES:
            with self.subTest(name):
                made, wanted = read_safetensors(self.make(name)), read_safetensors(GOLDEN / name)
                prefix = "transformer." if name == "gpt2_tiny" else ""
                self.assertEqual(set(made), {prefix + tensor.removeprefix(prefix) for tensor in wanted})
                for tensor, values in wanted.items():
                    np.testing.assert_array_equal(made[prefix + tensor.removeprefix(prefix)], values, tensor)

    def test_configurations_say_the_same(self):
        for name in ARCHITECTURES:
            with self.subTest(name):
                made = json.loads((self.make(name) / "config.json").read_text())
                wanted = json.loads((GOLDEN / name / "config.json").read_text())
                rope = wanted.get("rope_parameters") or wanted.get("rope_scaling") or {}
                wanted = {"rope_theta": rope.get("rope_theta"), **wanted}
                for key in ("architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "rope_theta",
                            "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
                            "max_position_embeddings", "attention_bias", "mlp_bias", "use_bias", "n_embd", "n_layer",
                            "n_head", "n_positions", "layer_norm_epsilon"):
                    if key in made:
                        self.assertEqual(made[key], wanted.get(key, made[key]), key)
                self.assertEqual(made["tie_word_embeddings"], wanted.get("tie_word_embeddings", True))
                if "factor" in rope:
                    self.assertEqual({key: rope[key] for key in made["rope_scaling"]}, made["rope_scaling"])

    def test_weights_are_rounded_to_the_nearest_and_ties_to_even(self):
        made = read_safetensors(self.make("qwen3_tiny", "bf16"))
        for tensor, values in read_safetensors(GOLDEN / "qwen3_tiny").items():
            np.testing.assert_array_equal(made[tensor], values, tensor)
        values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20, 3.4e38 / 2], np.float32)
        bits = np.frombuffer(rounded(Tensor("x", values.shape, lambda: values), "bf16"), np.uint16)
        self.assertEqual(bits[:4].tolist(), [0x3F80, 0x3F80, 0x3F82, 0xBF81])
        for dtype, bad in (("bf16", np.nan), ("f16", 1e6), ("f32", np.inf)):
            with self.assertRaisesRegex(Refused, f"x has values that are not finite in {dtype}"):
                rounded(Tensor("x", (1,), lambda bad=bad: np.array([bad], np.float32)), dtype)

    def test_tokenizers_are_rebuilt_from_merges_and_from_scores(self):
        merged = json.loads((self.make("qwen3_tiny") / "tokenizer.json").read_text())
        self.assertEqual(merged["model"]["merges"], [["a", "b"], ["ab", "c"]])
        self.assertEqual(merged["normalizer"], {"type": "NFC"})
        self.assertEqual([token["content"] for token in merged["added_tokens"]], ["<unk>", "<s>", "</s>"])
        scored = json.loads((self.make("llama_biased", model="llama") / "tokenizer.json").read_text())
        self.assertEqual(scored["model"]["merges"], [["a", "b"], ["ab", "c"], ["a", "bc"], ["b", "c"], ["z", "z"]])
        self.assertTrue(scored["model"]["byte_fallback"])
        self.assertEqual(scored["post_processor"]["single"][0], {"SpecialToken": {"id": "<s>", "type_id": 0}})
        self.assertEqual((self.scratch / "llama_biased" / "chat_template.jinja").read_text(),
                         "{{ messages[0].content }}\n")
        self.assertEqual(json.loads((self.scratch / "llama_biased" / "config.json").read_text())["eos_token_id"], [2])

    def test_words_are_split_as_by_the_golden_tokenizers(self):
        golden = ROOT / "harness" / "tests" / "text" / "golden"
        for name, folder in (("gpt-2", "gpt2"), ("smollm", "smollm"), ("llama-bpe", "llama3"), ("qwen2", "qwen")):
            wanted = json.loads((golden / folder / "tokenizer.json").read_text())
            made = [dict(part) for part in tokenizer.WORDS[name].pre_tokenizers]
            steps = wanted["pre_tokenizer"].get("pretokenizers", [wanted["pre_tokenizer"]])
            for part in steps:  # what the files leave out is the default
                if part["type"] == "ByteLevel":
                    part.setdefault("use_regex", True)
            for part in made + steps:
                part.pop("trim_offsets", None)
            self.assertEqual(made, steps, name)
            self.assertEqual(tokenizer.WORDS[name].normalizer, wanted["normalizer"], name)
        expressions = [one[0] for one in json.loads((golden / "splits.json").read_text())]
        self.assertIn(tokenizer.TEKKEN, expressions)

    def test_what_is_made_is_not_made_again_unless_it_changes(self):
        folder = self.make("qwen3_tiny")
        command = [sys.executable, "-m", "gguf_model.arguments", "--gguf", str(self.scratch / "qwen3_tiny.gguf"), "--out",
                   str(folder)]
        same = subprocess.run([*command, "--dtype", "f32"], capture_output=True, text=True, check=True)
        self.assertEqual(same.stdout, f"{folder}\n")
        other = subprocess.run([*command, "--dtype", "bf16"], capture_output=True, text=True, check=True)
        self.assertEqual(other.stdout, "")

    def test_what_is_not_supported_is_named(self):
        self.assertIn("tokenizer.ggml.pre is 'viking', which is not supported; allowed: gpt-2, smollm",
                      self.refused("qwen3_tiny", lambda writer: writer.add_tokenizer_pre("viking")))
        self.assertIn("llama.rope.scaling.type is 'yarn', which is not supported; allowed: 'none'",
                      self.refused("llama_biased", lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)))
        self.assertIn("llama.expert_count is 8", self.refused("llama_biased", lambda writer: writer.add_expert_count(8)))
        self.assertIn("qwen3.attention.sliding_window is 128",
                      self.refused("qwen3_tiny", lambda writer: writer.add_sliding_window(128)))
        self.assertIn("the tensor blk.0.ffn_gate_inp.weight is not one of a Qwen3ForCausalLM", self.refused(
            "qwen3_tiny", lambda writer: writer.add_tensor("blk.0.ffn_gate_inp.weight", np.ones((2, 2), np.float32))))
        self.assertIn("rope_freqs.weight scales RoPE in a way that is not supported", self.refused(
            "llama_biased", lambda writer: writer.add_tensor("rope_freqs.weight", np.arange(1, 33, dtype=np.float32))))
        self.assertIn("tokenizer.ggml.eos_token_id is 999999",
                      self.refused("qwen3_tiny", lambda writer: writer.add_eos_token_id(999999)))
        text = self.scratch / "text.gguf"
        text.write_text("no gguf")
        self.assertIn("this is no whole GGUF file", self.run_program("--gguf", str(text), "--out", str(text) + ".d")[2])

    def test_a_truncated_file_is_refused(self):
        write_gguf(self.scratch / "whole.gguf", "qwen3_tiny")
        data = (self.scratch / "whole.gguf").read_bytes()
        cut = self.scratch / "cut.gguf"
        for size in (3, 20, 200, 3000, len(data) - 100):
            cut.write_bytes(data[:size])
            code, out, err = self.run_program("--gguf", str(cut), "--out", str(self.scratch / "cut"))
            self.assertEqual((code, out), (1, ""), size)
            self.assertEqual(err.count("\n"), 1, err)

    def test_scores_make_the_merges_that_transformers_makes(self):
        tokens, scores = ["a", "b", "ab", "abab", "aba"], [0.0, 0.0, -1.0, -3.0, -2.0]
        self.assertEqual(tokenizer.merges_of_scores(tokens, scores),
                         [["a", "b"], ["ab", "a"], ["aba", "b"], ["ab", "ab"]])


if __name__ == "__main__":
    unittest.main(verbosity=1)
