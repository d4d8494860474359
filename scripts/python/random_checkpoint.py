"""Random checkpoints of every family whose logits are worth comparing.

The weights that transformers would draw (every norm weight 1, every bias 0, std 0.02) hide the bugs that
matter. Real Qwen3 checkpoints have K-norm weights up to 96.5. The recipe here therefore spreads every
norm weight over orders of magnitude. It keeps the rest in the range where attention is neither uniform
nor one-hot and where the logits depend on every layer.
"""

import dataclasses
import json
import math

import torch

# The spread of the K-norm weights; a few in each layer are exactly the largest.
K_NORM_RANGE = (0.5, 96.5)
K_NORM_AT_TOP = 3
Q_NORM_RATIO = 16.0
# The standard deviations of an attention score before the softmax, and of a logit.
SCORE_STD = 3.0
LOGIT_STD = 2.5
LAYER_NORM_RANGE = (0.25, 4.0)
FINAL_NORM_RATIO = 20.0
# Small, so that rms_norm_eps is visible in the first layer and the layers outweigh the embedding.
EMBEDDING_STD = 0.02
BIAS_STD = 0.3


class PortableDraw:
    """Seeded draws that are bitwise the same on every machine: integers only until the last step."""
    def __init__(self, seed):
        self._generator = torch.Generator().manual_seed(seed)

    def uniform(self, shape):
        bits = torch.randint(0, 1 << 24, shape, generator=self._generator)
        return (bits.double() + 0.5) / (1 << 24)

    def normal(self, shape):
        """Sum of 12 uniforms: variance 1, tails to 6, no transcendental function."""
        total = torch.randint(0, 1 << 24, (12, *shape), generator=self._generator).sum(0)
        return total.double() / (1 << 24) - 6.0


class DeviceDraw:
    """Seeded draws made on the device itself, which gives billions of weights in seconds."""
    def __init__(self, seed, device):
        self._device = device
        self._generator = torch.Generator(device=device).manual_seed(seed)

    def uniform(self, shape):
        return torch.rand(shape, generator=self._generator, device=self._device)

    def normal(self, shape):
        return torch.randn(shape, generator=self._generator, device=self._device)


def _log_uniform(draw, size, low, high):
    return torch.exp(draw.uniform((size,)) * math.log(high / low) + math.log(low))


def _root_mean_square(values):
    return values.square().mean().sqrt()


def _head_norms(draw, head_dim):
    """(q_norm, k_norm): K is spread, and Q is scaled so that scores have SCORE_STD."""
    k_norm = _log_uniform(draw, head_dim, *K_NORM_RANGE)
    top = draw.uniform((head_dim,)).argsort()[:K_NORM_AT_TOP]
    k_norm[top] = K_NORM_RANGE[1]
    q_norm = _log_uniform(draw, head_dim, 1.0, Q_NORM_RATIO)
    return q_norm * (SCORE_STD / _root_mean_square(q_norm * k_norm)), k_norm


@dataclasses.dataclass
class Layer:
    """The modules of one layer, in the order in which they are drawn."""
    norms: tuple
    linears: tuple
    head_norms: tuple = ()  # those of Q and of K


@dataclasses.dataclass
class Parts:
    """The modules of a model by their role."""
    embeddings: tuple
    layers: list
    final_norm: torch.nn.Module
    lm_head: torch.nn.Module


def _parts_of(model):
    if hasattr(model, "transformer"):  # GPT-2
        body = model.transformer
        layers = [Layer((block.ln_1, block.ln_2),
                        (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj))
                  for block in body.h]
        return Parts((body.wte, body.wpe), layers, body.ln_f, model.lm_head)
    layers = []
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        head_norms = ((attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else ())
        layers.append(Layer((layer.input_layernorm, layer.post_attention_layernorm),
                            (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
                             mlp.gate_proj, mlp.up_proj, mlp.down_proj), head_norms))
    return Parts((model.model.embed_tokens,), layers, model.model.norm, model.lm_head)


@torch.no_grad()
def fill(model, draw):
    """Overwrites every parameter of a model of any family with values that bf16 represents exactly."""
    def assign(parameter, values):
        parameter.copy_(values.to(torch.bfloat16))

    def assign_bias(module, size, std):
        if getattr(module, "bias", None) is not None:
            assign(module.bias, draw.normal((size,)) * std)

    def assign_linear(linear):
        inputs_first = not isinstance(linear, torch.nn.Linear)  # GPT-2's Conv1D
        shape = tuple(linear.weight.shape)
        in_features, out_features = shape if inputs_first else shape[::-1]
        assign(linear.weight, draw.normal(shape) / math.sqrt(in_features))
        assign_bias(linear, out_features, BIAS_STD)

    config, parts = model.config, _parts_of(model)
    for embedding in parts.embeddings:
        assign(embedding.weight, draw.normal(tuple(embedding.weight.shape)) * EMBEDDING_STD)
    for layer in parts.layers:
        for norm in layer.norms:
            assign(norm.weight, _log_uniform(draw, config.hidden_size, *LAYER_NORM_RANGE))
            assign_bias(norm, config.hidden_size, BIAS_STD)
        if layer.head_norms:
            for norm, values in zip(layer.head_norms, _head_norms(draw, config.head_dim)):
                assign(norm.weight, values)
        for linear in layer.linears:
            assign_linear(linear)
    head_std = EMBEDDING_STD
    if not config.tie_word_embeddings:
        assign_linear(parts.lm_head)
        head_std = 1.0 / math.sqrt(config.hidden_size)
    final_norm = _log_uniform(draw, config.hidden_size, 1.0, FINAL_NORM_RATIO)
    unit_std = math.sqrt(config.hidden_size) * head_std * _root_mean_square(final_norm)
    final_norm = final_norm * (LOGIT_STD / unit_std)
    assign(parts.final_norm.weight, final_norm)
    assign_bias(parts.final_norm, config.hidden_size, BIAS_STD * _root_mean_square(final_norm))


def to_hub_config(directory, without_keys=()):
    """Rewrites a config.json that transformers 5 saved to the keys of the published repositories."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["torch_dtype"] = config.pop("dtype")
    if "rope_parameters" in config:
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    kept = {key: value for key, value in sorted(config.items()) if key not in ("layer_types", *without_keys)}
    path.write_text(json.dumps(kept, indent=2) + "\n")
