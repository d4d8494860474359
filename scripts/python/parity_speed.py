"""Decode tok/s of transformers at batch 1, the way its users can get it, each way a row.

A repeat is a prefill and new_tokens - 1 decode steps; the cache is reset between repeats, and the
first repeat, compilation included, is the warm-up. Every step ends in an argmax on the device, so
nothing is synchronised within a decode.
"""

import statistics
import time

import torch
import transformers

import logit_error
import parity_checkpoint

REPEATS = 3
PROMPT_SEED = 5


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def run_steps(model, cache, prompt, new_tokens, decode):
    """One repeat: (prefill seconds, decode seconds, tokens)."""
    synchronize(model.device)
    start = time.perf_counter()
    token = model(prompt, past_key_values=cache, use_cache=True,
                  logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
    synchronize(model.device)
    middle = time.perf_counter()
    tokens = [token]
    for _ in range(new_tokens - 1):
        tokens.append(decode(tokens[-1], cache))
    synchronize(model.device)
    return middle - start, time.perf_counter() - middle, torch.cat(tokens, 1)[0].tolist()


def decode_step(model):
    def decode(token, cache):
        logits = model(token, past_key_values=cache, use_cache=True).logits
        return logits[:, -1].argmax(-1, keepdim=True)
    return decode


def eager(model, prompt, new_tokens):
    def repeat():
        cache = transformers.DynamicCache(config=model.config)
        return run_steps(model, cache, prompt, new_tokens, decode_step(model))
    return repeat


def static_cache(model, prompt, new_tokens, wrap=lambda decode: decode):
    cache = transformers.StaticCache(config=model.config, max_cache_len=prompt.shape[1] + new_tokens)
    decode = wrap(decode_step(model))

    def repeat():
        cache.reset()
        return run_steps(model, cache, prompt, new_tokens, decode)
    return repeat


def compiled(model, prompt, new_tokens):
    def wrap(decode):
        mode = "reduce-overhead" if model.device.type == "cuda" else "default"
        step = torch.compile(decode, mode=mode, dynamic=False)

        def replay(token, cache):
            torch.compiler.cudagraph_mark_step_begin()
            # The graph's output is overwritten by its next replay.
            return step(token, cache).clone()
        return replay
    return static_cache(model, prompt, new_tokens, wrap)


METHODS = {"eager": eager, "static": static_cache, "compiled": compiled}


@torch.no_grad()
def measure_method(name, model, prompt, new_tokens, expected):
    """The row of one method. What transformers or the compiler throw becomes its "error"."""
    row = {"implementation": f"transformers_{name}"}
    try:
        start = time.perf_counter()
        repeat = METHODS[name](model, prompt, new_tokens)
        repeat()
        warm_up = time.perf_counter() - start
        runs = [repeat() for _ in range(REPEATS)]
    except Exception as error:  # A peer that cannot run is a row that says so.
        first_line = str(error).strip().partition("\n")[0]
        return row | {"error": f"{type(error).__name__}: {first_line[:300]}"}
    steps = max(new_tokens - 1, 1)
    decode = statistics.median(run[1] for run in runs)
    return row | {
        "warm_up_s": warm_up,
        "prefill_ms": 1e3 * statistics.median(run[0] for run in runs),
        "decode_s": [run[1] for run in runs],
        "decode_tokps": steps / decode,
        "ms_per_token": 1e3 * decode / steps,
        "equal_tokens": logit_error.common_prefix(runs[-1][2], expected or runs[-1][2]),
        "tokens": runs[-1][2],
    }


def tokline_bench(arguments):
    """What `tokline bench` writes for the same work, as it is."""
    try:
        return parity_checkpoint.tokline_report(
            arguments.tokline, "bench", "--model", arguments.model, "--batch", 1, "--device", arguments.device,
            "--prompt-tokens", arguments.prompt_tokens, "--new-tokens", arguments.new_tokens)
    except (parity_checkpoint.ToklineError, OSError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def measure(arguments, methods):
    """The record's body: one row a method, in the order given."""
    model = parity_checkpoint.load_bf16(arguments.model, arguments.device, "sdpa")
    prompt = torch.tensor([parity_checkpoint.random_prompt(
        arguments.prompt_tokens, model.config.vocab_size, PROMPT_SEED)], device=model.device)
    rows, expected = [], None
    for name in methods:
        row = measure_method(name, model, prompt, arguments.new_tokens, expected)
        tokens = row.pop("tokens", None)
        if name == "eager":
            expected = tokens
        rows.append(row)
    record = {
        "model": parity_checkpoint.describe(arguments.model, model.config),
        "environment": parity_checkpoint.environment(arguments.device), "batch": 1,
        "prompt_tokens": arguments.prompt_tokens, "new_tokens": arguments.new_tokens, "rows": rows,}
    if arguments.tokline:
        del model, prompt
        if arguments.device == "cuda":
            torch._dynamo.reset()
            torch.cuda.empty_cache()
        record["tokline"] = tokline_bench(arguments)
    return record
