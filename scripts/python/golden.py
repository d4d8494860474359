"""Makes the tiny checkpoints of every family and their golden outputs.

The weights come from a seed and are exact in bf16; tokens and logits are those of transformers in fp32
on the CPU. harness/tests/golden/README.md describes the formats.
"""

import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile

import safetensors.torch
import torch
import transformers

import logit_error
import maker_arguments
import random_checkpoint

GOLDEN_DIR = pathlib.Path("harness/tests/golden")
FORMAT = 1
NEW_TOKENS = 64
# One token, exactly one page of 16, and two lengths that end inside a page.
PROMPT_LENGTHS = (1, 16, 37, 70)
LOGIT_STEPS = (0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 62, 63)
MAX_TOTAL_BYTES = 3_700_000
# What a seed must give: no greedy choice that rounding in fp32 could flip, and no text that repeats itself.
MIN_MARGIN_OVER_STD = 5e-3
MIN_DISTINCT_TOKENS = 16
# The largest disagreement that is allowed between ways of running transformers in fp32 (eager, SDPA, KV cache).
MAX_FP32_NOISE = 2e-5


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    name: str
    seed: int
    config: dict
    config_class: type = transformers.Qwen3Config
    stored_dtype: torch.dtype = torch.bfloat16
    hub_config: bool = True  # with the keys of the published repositories instead of those of transformers 5
    max_shard_size: str = "1GB"
    without_keys: tuple = ()  # of config.json, as some published ones lack them
    without_prefix: str = ""  # which the names of the tensors lose

    @property
    def path(self):
        return GOLDEN_DIR / self.name


CHECKPOINTS = (
    Checkpoint("qwen3_tiny", 21, config=dict(
        vocab_size=384, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, attention_bias=False, tie_word_embeddings=True, rms_norm_eps=1e-6,
        max_position_embeddings=4096, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    Checkpoint("qwen3_untied_group3", 119, stored_dtype=torch.float32, config=dict(
        vocab_size=211, hidden_size=24, intermediate_size=56, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=128, attention_bias=False, tie_word_embeddings=False, rms_norm_eps=1e-5,
        max_position_embeddings=256, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    Checkpoint("qwen3_sharded", 36, hub_config=False, max_shard_size="130KB", config=dict(
        vocab_size=272, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=10,
        num_key_value_heads=2, head_dim=64, attention_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-6,
        max_position_embeddings=40960, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    Checkpoint("llama3_scaled", 9, max_shard_size="60KB", config_class=transformers.LlamaConfig, config=dict(
        vocab_size=203, hidden_size=40, intermediate_size=72, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=1, head_dim=64, attention_bias=False, mlp_bias=False, tie_word_embeddings=False,
        rms_norm_eps=1e-5, max_position_embeddings=256,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 32})),
    Checkpoint("llama_biased", 143, hub_config=False, config_class=transformers.LlamaConfig, config=dict(
        vocab_size=223, hidden_size=24, intermediate_size=72, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=64, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        rms_norm_eps=1e-6, max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    Checkpoint("qwen2_group3", 0, config_class=transformers.Qwen2Config, without_keys=("head_dim",), config=dict(
        vocab_size=151, hidden_size=192, intermediate_size=24, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, tie_word_embeddings=True, rms_norm_eps=1e-6, max_position_embeddings=32768,
        use_sliding_window=False, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    Checkpoint("ernie4_5_group7", 28, config_class=transformers.Ernie4_5Config, config=dict(
        vocab_size=199, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=7,
        num_key_value_heads=1, head_dim=128, use_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-5,
        max_position_embeddings=131072, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})),
    Checkpoint("gpt2_tiny", 234, hub_config=False, config_class=transformers.GPT2Config, config=dict(
        vocab_size=131, n_embd=128, n_inner=40, n_layer=2, n_head=2, n_positions=160, layer_norm_epsilon=1e-5)),
    Checkpoint("gpt2_bare", 210, stored_dtype=torch.float32, config_class=transformers.GPT2Config,
               without_keys=("torch_dtype", "n_inner", "tie_word_embeddings"), without_prefix="transformer.",
               config=dict(
                   vocab_size=181, n_embd=64, n_layer=1, n_head=1, n_positions=160, layer_norm_epsilon=1e-5)),
)


def prompts(eos, seed):
    draw = random_checkpoint.PortableDraw(seed + 1)
    return [[int(value * eos) for value in draw.uniform((length,))] for length in PROMPT_LENGTHS]


def make_model(checkpoint, seed):
    eos = checkpoint.config["vocab_size"] - 1
    config = checkpoint.config_class(**checkpoint.config, bos_token_id=eos - 1, eos_token_id=eos, dtype=torch.float32)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    random_checkpoint.fill(model, random_checkpoint.PortableDraw(seed))
    return model


def save(model, checkpoint, directory):
    model.to(checkpoint.stored_dtype).save_pretrained(directory, max_shard_size=checkpoint.max_shard_size)
    (directory / "generation_config.json").unlink()
    if checkpoint.hub_config:
        random_checkpoint.to_hub_config(directory, checkpoint.without_keys)
    if checkpoint.without_prefix:
        path = directory / "model.safetensors"
        tensors = {name.removeprefix(checkpoint.without_prefix): tensor
                   for name, tensor in safetensors.torch.load_file(path).items()}
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def load(directory, dtype, attention="eager"):
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation=attention).eval()


@torch.inference_mode()
def greedy_tokens(model, prompt):
    """NEW_TOKENS greedy tokens, which an end-of-sequence token does not end, and their logits."""
    cache = transformers.DynamicCache(config=model.config)
    step = torch.tensor([prompt])
    tokens, rows = [], []
    for _ in range(NEW_TOKENS):
        row = model(step, past_key_values=cache, use_cache=True).logits[0, -1].float()
        tokens.append(int(row.argmax()))
        rows.append(row)
        step = torch.tensor([[tokens[-1]]])
    return tokens, torch.stack(rows)


@torch.inference_mode()
def forced_logits(model, prompt, tokens):
    """The logits of every step when the continuation is `tokens`, in one pass without a cache."""
    ids = torch.tensor([prompt + tokens[:-1]])
    return model(ids, use_cache=False).logits[0, len(prompt) - 1:].float()


def require(condition, text):
    if not condition:
        sys.exit(f"golden: {text}")


def smallest_margin(rows):
    return logit_error.margins_over_std(rows).min().item()


def is_usable(tokens, rows, eos):
    """Whether a greedy text, of which `rows` are the logits, can be golden."""
    return (smallest_margin(rows) >= MIN_MARGIN_OVER_STD and eos not in tokens
            and len(set(tokens)) >= MIN_DISTINCT_TOKENS)


def make_golden(checkpoint, directory):
    """(JSON document, fp32 logits [rows, vocab]) of the checkpoint that is saved in `directory`."""
    eager = load(directory, torch.float32)
    sdpa = load(directory, torch.float32, "sdpa")
    half = load(directory, torch.bfloat16)
    eos = eager.config.eos_token_id
    cases, steps, all_fp32, all_bf16 = [], list(LOGIT_STEPS), [], []
    sdpa_noise = cache_noise = 0.0
    for prompt in prompts(eos, checkpoint.seed):
        tokens, cached_rows = greedy_tokens(eager, prompt)
        fp32 = forced_logits(eager, prompt, tokens)
        bf16 = forced_logits(half, prompt, tokens)
        cache_noise = max(cache_noise, logit_error.relative_l2(cached_rows, fp32))
        sdpa_noise = max(sdpa_noise, logit_error.relative_l2(forced_logits(sdpa, prompt, tokens), fp32))
        margin = smallest_margin(fp32)
        require(fp32.argmax(-1).tolist() == tokens, f"{checkpoint.name}: the greedy text is a near-tie")
        require(is_usable(tokens, fp32, eos),
                f"{checkpoint.name}: seed {checkpoint.seed} gives a margin of {margin:.2g} and {len(set(tokens))} "
                "distinct tokens, or ends early; look for another seed with --find-seed")
        cases.append({"prompt_ids": prompt, "tokens": tokens, "first_row": len(cases) * len(steps),
                      "min_margin_over_std": margin,
                      "bf16_relative_l2": logit_error.relative_l2(bf16[steps], fp32[steps])})
        all_fp32.append(fp32)
        all_bf16.append(bf16)
    noise = max(sdpa_noise, cache_noise)
    require(noise <= MAX_FP32_NOISE, f"{checkpoint.name}: the fp32 noise is {noise:.2g}, over {MAX_FP32_NOISE:.2g}")
    logits = torch.cat([rows[steps] for rows in all_fp32])
    bf16_logits = torch.cat([rows[steps] for rows in all_bf16])
    every_fp32, every_bf16 = torch.cat(all_fp32), torch.cat(all_bf16)
    document = {"format": FORMAT,
                "checkpoint": str(checkpoint.path),
                "seed": checkpoint.seed,
                "versions": {"torch": torch.__version__.split("+")[0],
                             "transformers": transformers.__version__},
                "vocab_size": eager.config.vocab_size,
                "logits_file": f"{checkpoint.name}.f32",
                "logits_rows": logits.shape[0],
                "logit_steps": steps,
                "fp32": {"logit_std": every_fp32.std().item(),
                         "sdpa_relative_l2": sdpa_noise,
                         "kv_cache_relative_l2": cache_noise},
                "bf16": {"relative_l2": logit_error.relative_l2(bf16_logits, logits),
                         "relative_l2_all_steps": logit_error.relative_l2(every_bf16, every_fp32),
                         "top1_agreement_all_steps": logit_error.top1_agreement(every_bf16, every_fp32)},
                "cases": cases}
    return document, logits


def to_text(document):
    """JSON with one line per key, also of each case: diffs are readable, and ids take no page."""
    def block(mapping, indent):
        pad = " " * indent
        lines = [f"{pad}  {json.dumps(key)}: {json.dumps(value)}" for key, value in mapping.items()]
        return pad + "{\n" + ",\n".join(lines) + "\n" + pad + "}"

    head = block({key: value for key, value in document.items() if key != "cases"}, 0)
    cases = ",\n".join(block(case, 4) for case in document["cases"])
    return head[:-2] + ',\n  "cases": [\n' + cases + "\n  ]\n}\n"


def generate(checkpoint, root):
    """Writes the checkpoint and the golden files under `root`, laid out as in the repository."""
    directory = root / checkpoint.path
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    save(make_model(checkpoint, checkpoint.seed), checkpoint, directory)
    document, logits = make_golden(checkpoint, directory)
    directory.with_suffix(".json").write_text(to_text(document))
    directory.with_suffix(".f32").write_bytes(logits.numpy().astype("<f4").tobytes())
    distinct = min(len(set(case["tokens"])) for case in document["cases"])
    margin = min(case["min_margin_over_std"] for case in document["cases"])
    print(f"{checkpoint.name:22} seed {checkpoint.seed:4}  logit std "
          f"{document['fp32']['logit_std']:.2f}  min margin/std {margin:.4f}  distinct {distinct}  "
          f"sdpa {document['fp32']['sdpa_relative_l2']:.1e}  "
          f"bf16 {document['bf16']['relative_l2']:.4f}")


def total_bytes(root):
    files = [path for checkpoint in CHECKPOINTS for path in (root / checkpoint.path).iterdir()]
    files += [path for path in (root / GOLDEN_DIR).iterdir() if path.is_file()]
    return sum(path.stat().st_size for path in files)


def check(root):
    """Makes everything in `root` and compares it with the repository. Returns the exit code."""
    differences = []
    for checkpoint in CHECKPOINTS:
        generate(checkpoint, root)
        for fresh in sorted((root / checkpoint.path).iterdir()):
            committed = maker_arguments.ROOT / checkpoint.path / fresh.name
            if not committed.exists() or committed.read_bytes() != fresh.read_bytes():
                differences.append(f"{checkpoint.path / fresh.name} differs")
        roots = (maker_arguments.ROOT, root)
        ours, made = (json.loads((base / GOLDEN_DIR / f"{checkpoint.name}.json").read_text()) for base in roots)
        for index, (case, fresh) in enumerate(zip(ours["cases"], made["cases"])):
            if [case["prompt_ids"], case["tokens"]] != [fresh["prompt_ids"], fresh["tokens"]]:
                differences.append(f"{checkpoint.name}: prompt or tokens of case {index} differ")
        rows = [torch.frombuffer(bytearray((base / GOLDEN_DIR / ours["logits_file"]).read_bytes()),
                                 dtype=torch.float32) for base in roots]
        if rows[0].shape != rows[1].shape:
            differences.append(f"{ours['logits_file']}: sizes differ")
        elif (error := logit_error.relative_l2(*rows)) > MAX_FP32_NOISE:
            differences.append(f"{ours['logits_file']}: the relative error is {error:.2g}")
    print("\n".join(differences) or "golden: the committed files are what this machine makes")
    return 1 if differences else 0


def find_seed(checkpoint, count):
    """Prints the seeds of 0..count-1 that make_golden accepts."""
    found = 0
    for seed in range(count):
        model = make_model(checkpoint, seed)
        eos = model.config.eos_token_id
        texts = (greedy_tokens(model, prompt) for prompt in prompts(eos, seed))
        if all(is_usable(*text, eos) for text in texts):
            found += 1
            print(f"{checkpoint.name}: seed {seed}")
    return 0 if found else 1


def main():
    arguments = maker_arguments.golden()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.find_seed:
        name, count = arguments.find_seed
        by_name = {checkpoint.name: checkpoint for checkpoint in CHECKPOINTS}
        require(name in by_name and count.isdigit(),
                f"--find-seed {name} {count}: NAME must be one of {', '.join(by_name)} and COUNT a number")
        return find_seed(by_name[name], int(count))
    if arguments.check:
        with tempfile.TemporaryDirectory() as root:
            return check(pathlib.Path(root))
    for checkpoint in CHECKPOINTS:
        generate(checkpoint, maker_arguments.ROOT)
    size = total_bytes(maker_arguments.ROOT)
    print(f"golden: {size:,} of at most {MAX_TOTAL_BYTES:,} bytes")
    require(size <= MAX_TOTAL_BYTES, "the files are too large")
    return 0


if __name__ == "__main__":
    sys.exit(main())
