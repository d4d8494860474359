"""What each half of a layer of Tokline makes of its own input, beside what transformers makes of the same input.

Tokline's residual stream before an attention or an MLP replaces that of transformers, so that what Tokline has after it
differs from fp32 by the error of this half alone; likewise for the final norm with the LM head. It must not be larger
than that of transformers in bf16 by more than a limit. How small an error the limit catches is measured in every run:
the outputs of one projection of fp32 are made wrong by a percentage, each feature up or down, which must make Tokline
fail in every layer, both for prompt tokens and for generated ones.
"""

import contextlib

import torch

import random_checkpoint
from tokline.stop import Stop

# The first must be caught; the smallest that is caught is recorded.
SEEDED_ERRORS = (0.01, 0.005, 0.0025, 0.00125)
# Those of Q and K only move weights between values. In the last layers of a random model, in which the values of all
# tokens are much alike, that changes little.
SEEDED_SCORE_ERRORS = (0.08, 0.04, 0.02, *SEEDED_ERRORS)


def read_states(path, tokens, config):
    """Tokline's residual stream, [2 * layers + 1, tokens, hidden size]: after the embedding, each attention and MLP."""
    shape = (tokens, 2 * config.num_hidden_layers + 1, config.hidden_size)
    values = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32)
    if values.numel() != shape[0] * shape[1] * shape[2]:
        raise Stop(f"tokline wrote {values.numel()} hidden values, not {' x '.join(map(str, shape))}")
    return values.view(shape).transpose(0, 1).contiguous()


@torch.no_grad()
def outputs_of(model, run):
    """The states that the model makes, [2 * layers + 1, tokens, hidden size], and the logits of each step, where every
    attention, every MLP and the final norm have Tokline's input."""
    parts, states, outputs = random_checkpoint.parts_of(model), run["states"], []

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
        forced = run["tokens"]["fp32"]
        ids = torch.tensor([run["prompt"] + forced[:-1]], device=model.device)
        logits = model(ids, use_cache=False, logits_to_keep=len(forced)).logits[0].float()
    # Blocks after the first, and the final norm, are handed what the halves have put out before.
    kept = outputs[:1] + [output for index, output in enumerate(outputs[1:]) if index % 3 != 2]
    return torch.stack(kept).float().cpu(), logits.cpu()


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
    halves = [f"{half} {index}" for index in range(config.num_hidden_layers) for half in ("attention", "mlp")]
    return ([(name, tokens) for name in ("embedding", *halves) for tokens in ("prompt", "generated")]
            + [("lm_head", "generated")])


def norms(runs, outputs, expected):
    """The norm of outputs - expected at every place, over all runs."""
    squares = 0
    for run, (states, logits), (wanted, wanted_logits) in zip(runs, outputs, expected):
        square, prompt = (states.double() - wanted).square().sum(-1), len(run["prompt"])
        parts = torch.stack([square[:, :prompt].sum(-1), square[:, prompt:].sum(-1)], -1).flatten()
        squares = squares + torch.cat([parts, (logits.double() - wanted_logits).square().sum()[None]])
    return squares.sqrt()


def divided(errors, baseline):
    """The ratios, where nothing over nothing is 1."""
    return torch.where(errors == baseline, torch.ones_like(errors), errors / baseline)


def compare(fp32_model, bf16_model, runs, limit):
    """The record's part. A run has its prompt, the tokens of fp32, and Tokline's states with the logits that it made
    of them."""
    tokline = [(run["states"], run["state_logits"]) for run in runs]
    expected = [outputs_of(fp32_model, run) for run in runs]
    baseline = norms(runs, [outputs_of(bf16_model, run) for run in runs], expected)
    found = norms(runs, tokline, expected)
    parts, where = random_checkpoint.parts_of(fp32_model), places(fp32_model.config)
    seeds = {name: [layer.projections[name] for layer in parts.layers] for name in parts.layers[0].projections}
    seeds["lm_head"] = [(parts.lm_head, slice(None))]
    caught = {}
    for name, projections in seeds.items():
        half = "lm_head" if name == "lm_head" else "mlp" if name in ("gate", "up", "down") else "attention"
        at = [i for i, (place, _) in enumerate(where) if place.startswith(half)]
        caught[name] = {"smallest": None}
        for size in SEEDED_SCORE_ERRORS if name in ("q", "k") else SEEDED_ERRORS:
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
    before = [(torch.cat([torch.zeros_like(run["states"][:1]), run["states"][:-1]]), torch.zeros(())) for run in runs]
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
