"""Full-size checkpoints of every family with random weights, and what the parity runs share."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import torch
import transformers
from transformers.models.auto import modeling_auto

import random_checkpoint
from tokline import revision
from tokline.kernels import ROOT
from tokline.stop import Stop

# What a checkpoint that was made here says of itself; other programs ignore the file.
ORIGIN_FILE = "parity_model.json"
# Qwen3-4B becomes two shards, Qwen3-0.6B one file.
MAX_SHARD_SIZE = "5GB"
TOKLINE_TIMEOUT_S = 300

QWEN3 = dict(
    vocab_size=151936, head_dim=128, num_key_value_heads=8, attention_bias=False, tie_word_embeddings=True,
    rms_norm_eps=1e-6, max_position_embeddings=40960, bos_token_id=151643, eos_token_id=151645,
    rope_parameters={"rope_type": "default", "rope_theta": 1000000})
# The published sizes: (class of the config, what it holds).
SHAPES = {
    "qwen3-0.6b": (transformers.Qwen3Config, QWEN3 | dict(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16)),
    "qwen3-4b": (transformers.Qwen3Config, QWEN3 | dict(
        hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32)),
    "qwen3-32b": (transformers.Qwen3Config, QWEN3 | dict(
        hidden_size=5120, intermediate_size=25600, num_hidden_layers=64, num_attention_heads=64,
        tie_word_embeddings=False)),
    "llama-3.2-1b": (transformers.LlamaConfig, dict(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, attention_bias=False,
        mlp_bias=False, tie_word_embeddings=True, rms_norm_eps=1e-5,
        max_position_embeddings=131072, bos_token_id=128000, eos_token_id=128001,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
                         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192})),
    "qwen2.5-0.5b": (transformers.Qwen2Config, dict(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True,
        rms_norm_eps=1e-6, max_position_embeddings=32768, use_sliding_window=False,
        bos_token_id=151643, eos_token_id=151643,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    "ernie-4.5-0.3b": (transformers.Ernie4_5Config, dict(
        vocab_size=103424, hidden_size=1024, intermediate_size=3072, num_hidden_layers=18,
        num_attention_heads=16, num_key_value_heads=2, head_dim=128, use_bias=False,
        tie_word_embeddings=True, rms_norm_eps=1e-5, max_position_embeddings=131072,
        bos_token_id=1, eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0})),
    "gpt2": (transformers.GPT2Config, dict(
        vocab_size=50257, n_embd=768, n_layer=12, n_head=12, n_positions=1024,
        layer_norm_epsilon=1e-5, bos_token_id=50256, eos_token_id=50256)),
}


def make(shape, seed, device, out):
    """Writes the checkpoint to the new folder `out`; returns (seconds, bytes)."""
    start = time.perf_counter()
    quiet()
    config_class, values = SHAPES[shape]
    config = config_class(**values, dtype=torch.bfloat16)
    # On the meta device first, so that transformers' own initialisation costs nothing.
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model = model.to(torch.bfloat16).to_empty(device=device)
    model.tie_weights()
    random_checkpoint.fill(model, random_checkpoint.DeviceDraw(seed, device), random_checkpoint.PEAKED)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = pathlib.Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        model.save_pretrained(unfinished, max_shard_size=MAX_SHARD_SIZE)
        random_checkpoint.to_hub_config(unfinished)
        (unfinished / "generation_config.json").unlink()
        (unfinished / ORIGIN_FILE).write_text(json.dumps({"shape": shape, "seed": seed, "made_on": device}) + "\n")
        unfinished.chmod(0o755)
        os.replace(unfinished, out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    size = sum(file.stat().st_size for file in out.iterdir())
    return time.perf_counter() - start, size


def make_config(shape, out):
    """Writes the config.json of the checkpoint alone to the new folder `out`."""
    config_class, values = SHAPES[shape]
    out.mkdir(parents=True)
    config = config_class(**values, dtype=torch.bfloat16)
    # A model writes the name of its class when it is saved; a config that no model has must be told.
    config.architectures = [modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.save_pretrained(out)
    random_checkpoint.to_hub_config(out)


def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def load_bf16(directory, device, attention):
    quiet()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, attn_implementation=attention)
    return model.to(device).eval()


def head_sizes(config):
    """(head dim, query heads, KV heads)"""
    heads = config.num_attention_heads
    return (getattr(config, "head_dim", None) or config.hidden_size // heads, heads,
            getattr(config, "num_key_value_heads", None) or heads)


def describe(directory, config):
    """What a record says about the model."""
    origin = directory / ORIGIN_FILE
    head_dim, query_heads, kv_heads = head_sizes(config)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    return {
        "name": directory.name,
        **(json.loads(origin.read_text()) if origin.is_file() else {}),
        "family": config.model_type,
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "q_heads": query_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": inner or 4 * config.hidden_size,  # as GPT-2 has it
        "vocab_size": config.vocab_size,
        "positions": config.max_position_embeddings,
    }


def environment(device):
    commit, dirty = revision.of_tree(ROOT)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__,
        "transformers": transformers.__version__, "cuda": torch.version.cuda if device == "cuda" else None,
        "commit": commit, "dirty": dirty, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),}


def program_commit(program):
    """The commit that the tokline program was built from, with a mark if its tree had changes."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    commit, changes = revision.of_version(said)
    return commit + (" with changes" if changes else "")


def tokline_report(program, *arguments):
    """The JSON that a command of the tokline program writes. Raises Stop if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        try:
            result = subprocess.run([program, *map(str, arguments), "--json", report], capture_output=True, text=True,
                                    timeout=TOKLINE_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise Stop(f"tokline took longer than {TOKLINE_TIMEOUT_S} s") from error
        if result.returncode != 0:
            raise Stop(f"tokline exited with {result.returncode}: {result.stderr.strip()[-500:]}")
        return json.loads(report.read_text())


def random_prompt(length, vocab_size, seed):
    draw = random_checkpoint.PortableDraw(seed)
    return [int(value * vocab_size) for value in draw.uniform((length,))]
