"""Logits of Tokline and of transformers in bf16, both against transformers in fp32.

All three are fed the greedy text of fp32 (teacher forcing), so every step is comparable. The fp32 weights
are those of the bf16 model: arithmetic is compared, not weights. The ratio is that to transformers with
SDPA, its default, which rounds less than its eager attention.
"""

import copy
import pathlib
import tempfile
import time

import torch
import transformers

import logit_error
import parity_checkpoint
import parity_layers
from tokline.stop import Stop

# Of transformers in bf16 with fp32, on random weights: where it is less, small errors drown in those of bf16.
LEAST_TOP1 = 0.97
# The largest error over that of transformers in bf16, and the same of each attention and MLP alone, from Tokline's own
# input. The second was 1.006 at most of 554 places of six models, in two collections with other weights; an error of
# 1 % in V, o or a projection of the MLP makes it larger than the limit in every layer.
MAX_RATIO, MAX_LAYER_RATIO = 1.25, 1.03
IMPLEMENTATIONS = ("tokline", "transformers_bf16", "transformers_bf16_eager")


@torch.no_grad()
def step_logits(model, prompt, new_tokens, forced=None):
    """(tokens chosen, logits [new_tokens, vocab] f32 on the CPU), step by step with a cache."""
    cache = transformers.DynamicCache(config=model.config)
    step = torch.tensor([prompt], device=model.device)
    chosen, rows = [], []
    for index in range(new_tokens):
        row = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
        choice = row.argmax().view(1, 1)
        chosen.append(choice)
        rows.append(row)
        step = choice if forced is None else choice.new_tensor([[forced[index]]])
    return torch.cat(chosen).flatten().tolist(), torch.stack(rows).float().cpu()


@torch.no_grad()
def pass_logits(model, prompt, forced):
    """What step_logits returns for a forced continuation, in one pass without a cache, which is much quicker."""
    ids = torch.tensor([prompt + forced[:-1]], device=model.device)
    rows = model(ids, use_cache=False, logits_to_keep=len(forced)).logits[0].float().cpu()
    return rows.argmax(-1).tolist(), rows


def run_tokline(arguments, prompt, forced=None, config=None, with_states=False):
    """(tokens, logits, parity_layers.Outputs) of `tokline generate`. The logits, if tokens are forced, and the outputs,
    if asked for, come by way of files."""
    def joined(ids):
        return ",".join(map(str, ids))

    wanted = arguments.new_tokens
    with tempfile.TemporaryDirectory() as folder:
        logits, hidden, heads = (pathlib.Path(folder) / f"{name}.f32" for name in ("logits", "hidden", "heads"))
        more = [] if forced is None else ["--logits", logits, "--force-ids", joined(forced)]
        if with_states:
            more += ["--hidden", hidden, "--heads", heads]
        tokens = parity_checkpoint.tokline_report(
            arguments.tokline, "generate", "--model", arguments.model, "--prompt-ids", joined(prompt),
            "--max-new-tokens", wanted, "--ignore-eos", "--device", arguments.device, "--dtype", "bf16",
            *more)["tokens"]
        if len(tokens) != wanted:
            raise Stop(f"tokline gave {len(tokens)} tokens, not {wanted}")
        if forced is None:
            return tokens, None, None
        values = torch.frombuffer(bytearray(logits.read_bytes()), dtype=torch.float32)
        if values.numel() != wanted * config.vocab_size:
            raise Stop(f"tokline wrote {values.numel()} logits, not {wanted} x {config.vocab_size}")
        values = values.view(wanted, config.vocab_size)
        outputs = (parity_layers.read_outputs(hidden, heads, values, len(prompt) + wanted - 1, config)
                   if with_states else None)
    return tokens, values, outputs


def measures(runs, name):
    """The measures of an implementation over some prompts together."""
    logits, fp32 = (torch.cat([run["logits"][key] for run in runs]) for key in (name, "fp32"))
    first = [torch.stack([run["logits"][key][0] for run in runs]) for key in (name, "fp32")]
    return {
        "relative_l2": logit_error.relative_l2(logits, fp32),
        "relative_l2_step0": logit_error.relative_l2(*first),
        "top1_agreement": logit_error.top1_agreement(logits, fp32),
        "greedy_prefix": min(logit_error.common_prefix(run["tokens"][name], run["tokens"]["fp32"]) for run in runs),
    }


def transformers_runs(arguments, model, lengths):
    """One run per prompt, with the fp32 and bf16 logits on the CPU."""
    fp32_model = copy.deepcopy(model).float()
    fp32_model.set_attn_implementation("eager")
    runs = []
    for length in lengths:
        prompt = parity_checkpoint.random_prompt(length, model.config.vocab_size, arguments.seed + length)
        tokens, logits = step_logits(fp32_model, prompt, arguments.new_tokens)
        runs.append({"prompt": prompt, "tokens": {"fp32": tokens}, "logits": {"fp32": logits}})
    del fp32_model
    # Forced tokens agree with free ones until the first difference, which is all that the common prefix needs.
    for run in runs:
        run["tokens"]["transformers_bf16"], run["logits"]["transformers_bf16"] = step_logits(
            model, run["prompt"], arguments.new_tokens, run["tokens"]["fp32"])
    model.set_attn_implementation("eager")
    for run in runs:
        run["tokens"]["transformers_bf16_eager"], run["logits"]["transformers_bf16_eager"] = (
            pass_logits(model, run["prompt"], run["tokens"]["fp32"]))
    return runs


def add_tokline(arguments, run, config):
    """Adds Tokline's tokens, logits and outputs to a run. Returns whether it decodes the same freely and when it is
    forced, up to the first token that fp32 would not choose: until then both are the same work. States are of other
    kernels where a step is one kernel otherwise, so they come from a run of their own, with its logits."""
    expected = run["tokens"]["fp32"]
    free, _, _ = run_tokline(arguments, run["prompt"])
    _, run["logits"]["tokline"], _ = run_tokline(arguments, run["prompt"], expected, config)
    _, _, run["outputs"] = run_tokline(arguments, run["prompt"], expected, config, with_states=True)
    run["tokens"]["tokline"] = free
    forced = run["logits"]["tokline"].argmax(-1).tolist()
    same = logit_error.common_prefix(forced, expected)
    return free[:same + 1] == forced[:same + 1]


def compare_layers(arguments, runs):
    model = parity_checkpoint.load_bf16(arguments.model, arguments.device, "sdpa")
    fp32_model = copy.deepcopy(model).float()
    fp32_model.set_attn_implementation("eager")
    return parity_layers.compare(fp32_model, model, runs, MAX_LAYER_RATIO)


def compare(arguments, lengths):
    """The record's body."""
    start = time.perf_counter()
    # fp32 has to be fp32: TF32 has the mantissa of fp16.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = parity_checkpoint.load_bf16(arguments.model, arguments.device, "sdpa")
    config, positions = model.config, model.config.max_position_embeddings
    fitting = [length for length in lengths if length + arguments.new_tokens <= positions]
    if not fitting:
        raise Stop(f"no prompt of {lengths} tokens and {arguments.new_tokens} new ones fits into {positions} positions")
    runs = transformers_runs(arguments, model, fitting)
    transformers_s, start = time.perf_counter() - start, time.perf_counter()
    del model
    if arguments.device == "cuda":
        torch.cuda.empty_cache()  # Tokline runs next and needs the memory
    free_run_agrees = [add_tokline(arguments, run, config) for run in runs]
    tokline_s, start = time.perf_counter() - start, time.perf_counter()
    layers = compare_layers(arguments, runs)
    total = {name: measures(runs, name) for name in IMPLEMENTATIONS}
    baseline = total["transformers_bf16"]["relative_l2"]
    ratio = total["tokline"]["relative_l2"] / baseline if baseline else float("inf")
    described = parity_checkpoint.describe(arguments.model, config)
    top1 = total["transformers_bf16"]["top1_agreement"]
    peaked = "shape" not in described or top1 >= LEAST_TOP1
    return {
        "model": described,
        "environment": parity_checkpoint.environment(arguments.device) | {
            "program_commit": parity_checkpoint.program_commit(arguments.tokline)},
        "prompt_seed": arguments.seed,
        "prompts_left_out": [length for length in lengths if length not in fitting],
        "new_tokens": arguments.new_tokens,
        "limit": f"ratio <= {MAX_RATIO}",
        "transformers_s": transformers_s,
        "tokline_s": tokline_s,
        "layers_s": time.perf_counter() - start,
        "logit_std": torch.cat([run["logits"]["fp32"] for run in runs]).std().item(),
        "cases": [{"prompt_tokens": len(run["prompt"]),
                   "min_margin_over_std": logit_error.margins_over_std(run["logits"]["fp32"]).min().item(),
                   "implementations": {name: measures([run], name) for name in IMPLEMENTATIONS}} for run in runs],
        "total": {"prompt_tokens": "all", "implementations": total},
        "ratio": ratio,
        "layers": layers,
        "peaked": peaked,
        "free_run_agrees": free_run_agrees,
        "pass": ratio <= MAX_RATIO and all(free_run_agrees) and layers["pass"] and peaked,  # False for NaN
    }
