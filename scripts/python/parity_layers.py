"""What each half of a layer of Tokline makes of its own input, beside what transformers makes of the same input.

Tokline's residual stream before an attention or an MLP replaces that of transformers, so that what Tokline has after it
differs from fp32 by the error of this half alone; likewise for the final norm with the LM head. The queries and the keys
that attention reads are compared apart from what it makes of them: they only move weights between values, which in the
last layers of a random model, where the values of all tokens are much alike, changes little. No error must be larger
than that of transformers in bf16 by more than a limit. How small an error the limit catches is measured in every run:
the outputs of one projection of fp32 are made wrong by a percentage, each feature up or down, which must make Tokline
fail in every layer, both for prompt tokens and for generated ones.
"""

import contextlib
import dataclasses
import sys
from unittest import mock

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import parity_checkpoint
import random_checkpoint
from tokline.stop import Stop

# The first must be caught; the smallest that is caught is recorded.
SEEDED_ERRORS = (0.01, 0.005, 0.0025, 0.00125)
# Where the error of a projection shows first; those of the others do in the MLP.
SHOWS_IN = {"q": "q", "k": "k", "v": "attention", "o": "attention", "lm_head": "lm_head"}


@dataclasses.dataclass
class Outputs:
    """What is compared of one run."""
    states: torch.Tensor  # [2 * layers + 1, tokens, hidden size]: the residual stream after the embedding and each half
    queries: torch.Tensor  # [layers, tokens, query heads * head dim], as attention reads them
    keys: torch.Tensor  # [layers, tokens, KV heads * head dim]
    logits: torch.Tensor  # [steps, vocabulary]


def read_outputs(hidden, heads, logits, tokens, config):
    """The Outputs that Tokline left in these files."""
    layers, (head_dim, query_heads, kv_heads) = config.num_hidden_layers, parity_checkpoint.head_sizes(config)

    def read(path, parts, width):
        values = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32)
        if values.numel() != tokens * parts * width:
            raise Stop(f"tokline wrote {values.numel()} values into {path.name}, not {tokens} x {parts} x {width}")
        return values.view(tokens, parts, width).transpose(0, 1).contiguous()

    of_heads = read(heads, layers, (query_heads + kv_heads) * head_dim)
    return Outputs(read(hidden, 2 * layers + 1, config.hidden_size), of_heads[..., :query_heads * head_dim],
                   of_heads[..., query_heads * head_dim:], logits)


@contextlib.contextmanager
def kept_heads(model, kept):
    """Appends the queries and the keys, [tokens, features], that each attention of the model reads."""
    def keeping(attention):
        def keep(module, query, key, *arguments, **named):
            kept.append(tuple(in_halves(model.config, each[0]).transpose(0, 1).flatten(1).float().cpu()
                              for each in (query, key)))
            return attention(module, query, key, *arguments, **named)
        return keep

    body = sys.modules[type(model).__module__]
    if model.config._attn_implementation == "eager":
        patched = mock.patch.object(body, "eager_attention_forward", keeping(body.eager_attention_forward))
    else:
        name = model.config._attn_implementation
        patched = mock.patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping,
                                  {name: keeping(ALL_ATTENTION_FUNCTIONS[name])})
    with patched:
        yield


def in_halves(config, heads):
    """[heads, tokens, head dim] with the features in Tokline's order, which rotates the first half with the second:
    of a model that rotates neighbours, these are the even and the odd ones."""
    if not config.model_type.startswith("ernie"):
        return heads
    return torch.cat([heads[..., 0::2], heads[..., 1::2]], -1)


@torch.no_grad()
def outputs_of(model, run):
    """The Outputs of the model where every attention, every MLP and the final norm have Tokline's input."""
    parts, states, outputs, heads = random_checkpoint.parts_of(model), run["outputs"].states, [], []

    def replace_input(state):
        """Keeps what an attention, or the embedding, has put out."""
        def hook(_, inputs):
            outputs.append(inputs[0][0])
            return (state[None].to(inputs[0]), *inputs[1:])
        return hook

    def add_to(state):
        def hook(_, __, output):
            outputs.append(state.to(output) + output[0])
        return hook

    with contextlib.ExitStack() as hooks:
        for index, layer in enumerate(parts.layers):
            first, middle = states[2 * index], states[2 * index + 1]
            hooks.callback(layer.block.register_forward_pre_hook(replace_input(first)).remove)
            hooks.callback(layer.norms[1].register_forward_pre_hook(replace_input(middle)).remove)
            hooks.callback(layer.block.mlp.register_forward_hook(add_to(middle)).remove)
        hooks.callback(parts.final_norm.register_forward_pre_hook(replace_input(states[-1])).remove)
        hooks.enter_context(kept_heads(model, heads))
        forced = run["tokens"]["fp32"]
        ids = torch.tensor([run["prompt"] + forced[:-1]], device=model.device)
        logits = model(ids, use_cache=False, logits_to_keep=len(forced)).logits[0].float()
    # Blocks after the first, and the final norm, are handed what the halves have put out before.
    kept = outputs[:1] + [output for index, output in enumerate(outputs[1:]) if index % 3 != 2]
    return Outputs(torch.stack(kept).float().cpu(), *map(torch.stack, zip(*heads)), logits.cpu())


@contextlib.contextmanager
def seeded_error(projections, size):
    """Makes the outputs of these projections wrong by the relative size."""
    def hook_of(features):
        def hook(_, __, output):
            count = output[..., features].shape[-1]
            signs = random_checkpoint.PortableDraw(count).uniform((count,)).sub(0.5).sign()
            wrong = output.clone()
            wrong[..., features] *= (1 + size * signs).to(output)
            return wrong
        return hook

    with contextlib.ExitStack() as hooks:
        for module, features in projections:
            hooks.callback(module.register_forward_hook(hook_of(features)).remove)
        yield


def places(config):
    """What is compared: (after what, of which tokens)."""
    layers = range(config.num_hidden_layers)
    names = ["embedding", *(f"{half} {index}" for index in layers for half in ("attention", "mlp")),
             *(f"{heads} {index}" for heads in ("q", "k") for index in layers)]
    return [(name, tokens) for name in names for tokens in ("prompt", "generated")] + [("lm_head", "generated")]


def norms(runs, outputs, expected):
    """The norm of outputs - expected at every place, over all runs."""
    squares = 0
    for run, found, wanted in zip(runs, outputs, expected):
        prompt, parts = len(run["prompt"]), []
        for name in ("states", "queries", "keys"):
            square = (getattr(found, name).double() - getattr(wanted, name)).square().sum(-1)
            parts.append(torch.stack([square[:, :prompt].sum(-1), square[:, prompt:].sum(-1)], -1).flatten())
        squares = squares + torch.cat([*parts, (found.logits.double() - wanted.logits).square().sum()[None]])
    return squares.sqrt()


def divided(errors, baseline):
    """The ratios, where nothing over nothing is 1."""
    return torch.where(errors == baseline, torch.ones_like(errors), errors / baseline)


def compare(fp32_model, bf16_model, runs, limit):
    """The record's part. A run has its prompt, the tokens of fp32, and Tokline's Outputs."""
    tokline = [run["outputs"] for run in runs]
    expected = [outputs_of(fp32_model, run) for run in runs]
    baseline = norms(runs, [outputs_of(bf16_model, run) for run in runs], expected)
    found = norms(runs, tokline, expected)
    parts, where = random_checkpoint.parts_of(fp32_model), places(fp32_model.config)
    seeds = {name: [layer.projections[name] for layer in parts.layers] for name in parts.layers[0].projections}
    seeds["lm_head"] = [(parts.lm_head, slice(None))]
    caught = {}
    for name, projections in seeds.items():
        at = [i for i, (place, _) in enumerate(where) if place.split()[0] == SHOWS_IN.get(name, "mlp")]
        caught[name] = {"smallest": None}
        for size in SEEDED_ERRORS:
            with seeded_error(projections, size):
                wrong = norms(runs, tokline, [outputs_of(fp32_model, run) for run in runs])
            least, place = divided(wrong, baseline)[at].min(0)
            if least > limit:
                caught[name]["smallest"] = size
            caught[name]["least"] = {"error": size, "ratio": least.item(), "after": where[at[place]][0],
                                     "tokens": where[at[place]][1]}
            if least <= limit:
                break
    # Each error as a part of what is added to the input.
    before = [Outputs(torch.cat([torch.zeros_like(each.states[:1]), each.states[:-1]]), *torch.zeros(3)) for each in tokline]
    scale, ratio = norms(runs, before, expected), divided(found, baseline)
    return {
        "limit": limit,
        "ratio": ratio.max().item(),
        "caught": caught,
        "places": [{"after": name, "tokens": tokens, "tokline": (found[i] / scale[i]).item(),
                    "transformers_bf16": (baseline[i] / scale[i]).item(), "ratio": ratio[i].item()}
                   for i, (name, tokens) in enumerate(where) if scale[i] > 0],
        "pass": bool((ratio <= limit).all()) and all(seed["smallest"] is not None for seed in caught.values()),
    }
