"""Full-size Qwen3 checkpoints with random weights, and what parity runs share."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import torch
import transformers

import qwen3_checkpoint

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# What a checkpoint made here says of itself; other programs ignore the file.
ORIGIN_FILE = "parity_model.json"
# Qwen3-4B becomes two shards, Qwen3-0.6B one file.
MAX_SHARD_SIZE = "5GB"

COMMON = dict(
    vocab_size=151936, head_dim=128, num_key_value_heads=8, attention_bias=False,
    tie_word_embeddings=True, rms_norm_eps=1e-6, max_position_embeddings=40960,
    bos_token_id=151643, eos_token_id=151645, dtype=torch.bfloat16,
    rope_parameters={"rope_type": "default", "rope_theta": 1000000})
SHAPES = {
    "qwen3-0.6b": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                       num_attention_heads=16),
    "qwen3-4b": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
                     num_attention_heads=32),
}


def make(shape, seed, device, out):
    """Writes the checkpoint to the new folder `out`; returns (seconds, bytes)."""
    start = time.perf_counter()
    quiet()
    config = transformers.Qwen3Config(**COMMON, **SHAPES[shape])
    # Made on the meta device first, so that transformers' own initialisation costs nothing.
    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device=device)
    model.tie_weights()
    qwen3_checkpoint.fill(model, qwen3_checkpoint.DeviceDraw(seed, device))
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = pathlib.Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        model.save_pretrained(unfinished, max_shard_size=MAX_SHARD_SIZE)
        path = unfinished / "config.json"
        config = qwen3_checkpoint.to_hub_config(json.loads(path.read_text()))
        path.write_text(json.dumps(config, indent=2) + "\n")
        (unfinished / "generation_config.json").unlink()
        (unfinished / ORIGIN_FILE).write_text(
            json.dumps({"shape": shape, "seed": seed, "made_on": device}) + "\n")
        unfinished.chmod(0o755)
        os.replace(unfinished, out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    size = sum(file.stat().st_size for file in out.iterdir())
    return time.perf_counter() - start, size


def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def load_bf16(directory, device, attention):
    quiet()
    model = transformers.Qwen3ForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, attn_implementation=attention)
    return model.to(device).eval()


def describe(directory, config):
    """What a record says of the model."""
    origin = directory / ORIGIN_FILE
    return {
        "name": directory.name,
        **(json.loads(origin.read_text()) if origin.is_file() else {}),
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "q_heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "positions": config.max_position_embeddings,
    }


def commit():
    """(commit, whether the tree has changes) of the repository, or nulls outside a checkout."""
    def git(*arguments):
        return subprocess.run(["git", "-C", REPOSITORY, *arguments], check=True, text=True,
                              capture_output=True).stdout.strip()
    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def environment(device):
    revision, dirty = commit()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cuda": torch.version.cuda if device == "cuda" else None,
        "commit": revision,
        "dirty": dirty,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def random_prompt(length, vocab_size, seed):
    draw = qwen3_checkpoint.PortableDraw(seed)
    return [int(value * vocab_size) for value in draw.uniform((length,))]
