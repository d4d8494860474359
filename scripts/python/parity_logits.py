"""Logits of Tokline and of transformers in bf16, both against transformers in fp32.

All three are fed the greedy text of fp32 (teacher forcing), so every step is comparable. The fp32
weights are those of the bf16 model: the comparison is of arithmetic, not of weights. The ratio is
taken to transformers with SDPA, its default, which rounds less than its eager attention.
"""

import copy
import pathlib
import tempfile
import time

import torch
import transformers

import logit_error
import parity_checkpoint
from parity_checkpoint import ToklineError


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
    """step_logits with a forced continuation as one pass without a cache: much sooner done."""
    ids = torch.tensor([prompt + forced[:-1]], device=model.device)
    rows = model(ids, use_cache=False, logits_to_keep=len(forced)).logits[0].float().cpu()
    return rows.argmax(-1).tolist(), rows


def run_tokline(program, directory, device, prompt, new_tokens, logits, forced=None, vocab=None):
    """(tokens, logits or None) of `tokline generate`; logits, by way of the file `logits`, when `forced` is given."""
    def joined(ids):
        return ",".join(map(str, ids))

    more = [] if forced is None else ["--logits", logits, "--force-ids", joined(forced)]
    tokens = parity_checkpoint.tokline_report(
        program, "generate", "--model", directory, "--prompt-ids", joined(prompt), "--max-new-tokens", new_tokens,
        "--ignore-eos", "--device", device, *more)["tokens"]
    if len(tokens) != new_tokens:
        raise ToklineError(f"tokline gave {len(tokens)} tokens of {new_tokens}")
    if forced is None:
        return tokens, None
    values = torch.frombuffer(bytearray(logits.read_bytes()), dtype=torch.float32)
    if values.numel() != new_tokens * vocab:
        raise ToklineError(f"tokline wrote {values.numel()} logits, not {new_tokens} x {vocab}")
    return tokens, values.view(new_tokens, vocab)


def measures(logits, fp32, tokens, expected):
    return {
        "relative_l2": logit_error.relative_l2(logits, fp32),
        "relative_l2_step0": logit_error.relative_l2(logits[:1], fp32[:1]),
        "top1_agreement": logit_error.top1_agreement(logits, fp32),
        "greedy_prefix": logit_error.common_prefix(tokens, expected),
    }


def pooled(runs, name):
    """The measures of an implementation over all prompts together."""
    logits = torch.cat([run["logits"][name] for run in runs])
    fp32 = torch.cat([run["logits"]["fp32"] for run in runs])
    first = [torch.stack([run["logits"][key][0] for run in runs]) for key in (name, "fp32")]
    return {
        "relative_l2": logit_error.relative_l2(logits, fp32),
        "relative_l2_step0": logit_error.relative_l2(*first),
        "top1_agreement": logit_error.top1_agreement(logits, fp32),
        "greedy_prefix": min(run["greedy_prefix"][name] for run in runs),
    }


def transformers_runs(arguments, lengths):
    """(model config, one run a prompt) with the fp32 and bf16 logits on the CPU."""
    model = parity_checkpoint.load_bf16(arguments.model, arguments.device, "sdpa")
    config = model.config
    runs = []
    for length in lengths:
        total = length + arguments.new_tokens
        if total > config.max_position_embeddings:
            continue
        runs.append({
            "prompt": parity_checkpoint.random_prompt(
                length, config.vocab_size, arguments.seed + length),
            "logits": {}, "tokens": {}, "greedy_prefix": {}})
    if not runs:
        return config, runs
    fp32_model = copy.deepcopy(model).float()
    fp32_model.set_attn_implementation("eager")
    for run in runs:
        run["tokens"]["fp32"], run["logits"]["fp32"] = step_logits(fp32_model, run["prompt"], arguments.new_tokens)
    del fp32_model
    # Forced tokens agree with free ones until the first difference, which is all that the common prefix needs.
    for run in runs:
        run["tokens"]["transformers_bf16"], run["logits"]["transformers_bf16"] = step_logits(
            model, run["prompt"], arguments.new_tokens, run["tokens"]["fp32"])
    model.set_attn_implementation("eager")
    for run in runs:
        run["tokens"]["transformers_bf16_eager"], run["logits"]["transformers_bf16_eager"] = (
            pass_logits(model, run["prompt"], run["tokens"]["fp32"]))
    return config, runs


def compare(arguments, lengths):
    """The record's body. Tokline's failure is an "error" in it, not an exception."""
    start = time.perf_counter()
    # fp32 has to be fp32: TF32 has the mantissa of fp16.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    config, runs = transformers_runs(arguments, lengths)
    if arguments.device == "cuda":
        torch.cuda.empty_cache()  # Tokline runs next and wants the memory.
    record = {
        "model": parity_checkpoint.describe(arguments.model, config),
        "environment": parity_checkpoint.environment(arguments.device),
        "prompt_seed": arguments.seed,
        "prompts_left_out": [length for length in lengths if length not in
                             [len(run["prompt"]) for run in runs]],
        "new_tokens": arguments.new_tokens,
        "limit": (f"ratio <= {arguments.max_ratio}" if arguments.max_error is None
                  else f"relative L2 <= {arguments.max_error}"),
        "transformers_s": time.perf_counter() - start,
        "pass": False,
    }
    if not runs:
        return record | {
            "error": f"no prompt of {lengths} tokens with {arguments.new_tokens} new ones fits "
                     f"into {config.max_position_embeddings} positions"}
    start = time.perf_counter()
    free_run_agrees = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for run in runs:
                tokline = (arguments.tokline, arguments.model, arguments.device, run["prompt"],
                           arguments.new_tokens, pathlib.Path(folder) / "tokline.f32")
                free, _ = run_tokline(*tokline)
                _, run["logits"]["tokline"] = run_tokline(*tokline, run["tokens"]["fp32"], config.vocab_size)
                run["tokens"]["tokline"] = free
                # Up to the first token that fp32 would not choose, decoding freely and being forced are the same work.
                forced = run["logits"]["tokline"].argmax(-1).tolist()
                same = logit_error.common_prefix(forced, run["tokens"]["fp32"])
                free_run_agrees.append(free[:same + 1] == forced[:same + 1])
    except (ToklineError, OSError, ValueError, KeyError) as error:
        return record | {"error": f"{type(error).__name__}: {error}"}
    names = ("tokline", "transformers_bf16", "transformers_bf16_eager")
    cases = []
    for run in runs:
        expected = run["tokens"]["fp32"]
        implementations = {name: measures(run["logits"][name], run["logits"]["fp32"],
                                          run["tokens"][name], expected) for name in names}
        run["greedy_prefix"] = {name: row["greedy_prefix"] for name, row in implementations.items()}
        cases.append({"prompt_tokens": len(run["prompt"]),
                      "min_margin_over_std": logit_error.margins_over_std(
                          run["logits"]["fp32"]).min().item(),
                      "implementations": implementations})
    total = {name: pooled(runs, name) for name in names}
    error = total["tokline"]["relative_l2"]
    baseline = total["transformers_bf16"]["relative_l2"]
    ratio = error / baseline if baseline else float("inf")
    # Written so that NaN fails.
    within = (ratio <= arguments.max_ratio if arguments.max_error is None else error <= arguments.max_error)
    return record | {
        "tokline_s": time.perf_counter() - start,
        "logit_std": torch.cat([run["logits"]["fp32"] for run in runs]).std().item(),
        "cases": cases,
        "total": {"prompt_tokens": "all", "implementations": total},
        "ratio": ratio,
        "free_run_agrees": free_run_agrees,
        "pass": within and all(free_run_agrees),
    }
