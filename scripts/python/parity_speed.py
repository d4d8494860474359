"""Decode tok/s of transformers at batch 1, as its users can get it: eagerly, and compiled with a static cache.

A repeat is a prefill and new_tokens - 1 decode steps. The first repeat, which includes compilation, is the
warm-up. Every step ends with an argmax on the device, so nothing is synchronised within a decode.
"""

import statistics
import time

import torch
import transformers

import logit_error
import parity_checkpoint

METHODS = ("eager", "compiled")
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


def repeats(method, model, prompt, new_tokens):
    """A function that runs a repeat."""
    def decode(token, cache):
        logits = model(token, past_key_values=cache, use_cache=True).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    if method == "eager":
        return lambda: run_steps(model, transformers.DynamicCache(config=model.config), prompt, new_tokens, decode)
    cache = transformers.StaticCache(config=model.config, max_cache_len=prompt.shape[1] + new_tokens)
    mode = "reduce-overhead" if model.device.type == "cuda" else "default"
    step = torch.compile(decode, mode=mode, dynamic=False)

    def replay(token, cache):
        torch.compiler.cudagraph_mark_step_begin()
        return step(token, cache).clone()  # the next replay of the graph overwrites its output

    def repeat():
        cache.reset()
        return run_steps(model, cache, prompt, new_tokens, replay)
    return repeat


@torch.no_grad()
def measure_method(method, model, prompt, new_tokens, expected):
    """The row of one method, and its tokens. What transformers or the compiler throw becomes the row's "error"."""
    row = {"implementation": f"transformers_{method}"}
    try:
        start = time.perf_counter()
        repeat = repeats(method, model, prompt, new_tokens)
        repeat()
        warm_up = time.perf_counter() - start
        runs = [repeat() for _ in range(REPEATS)]
    except Exception as error:  # a method that cannot run is a row that says so
        first_line = str(error).strip().partition("\n")[0]
        return row | {"error": f"{type(error).__name__}: {first_line[:300]}"}, None
    prefills, decodes, tokens = zip(*runs)
    decode, steps = statistics.median(decodes), max(new_tokens - 1, 1)
    return row | {"warm_up_s": warm_up, "prefill_ms": 1e3 * statistics.median(prefills), "decode_s": decodes,
                  "decode_tokps": steps / decode, "ms_per_token": 1e3 * decode / steps,
                  "equal_tokens": logit_error.common_prefix(tokens[-1], expected or tokens[-1])}, tokens[-1]


def measure(arguments):
    """The record's body: one row per method."""
    model = parity_checkpoint.load_bf16(arguments.model, arguments.device, "sdpa")
    prompt = torch.tensor([parity_checkpoint.random_prompt(
        arguments.prompt_tokens, model.config.vocab_size, PROMPT_SEED)], device=model.device)
    rows, expected = [], None
    for method in METHODS:
        row, tokens = measure_method(method, model, prompt, arguments.new_tokens, expected)
        expected = expected or tokens
        rows.append(row)
    return {"model": parity_checkpoint.describe(arguments.model, model.config),
            "environment": parity_checkpoint.environment(arguments.device), "batch": 1,
            "prompt_tokens": arguments.prompt_tokens, "new_tokens": arguments.new_tokens, "rows": rows}
