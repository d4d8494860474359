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
LAYER_NORM_RANGE = (0.25, 4.0)
FINAL_NORM_RATIO = 20.0
# Small, so that rms_norm_eps is visible in the first layer and the layers outweigh the embedding.
EMBEDDING_STD = 0.02
BIAS_STD = 0.3


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How far a model carries an error, and how far its largest logit lies above the others."""
    score_std: float = 3.0  # of an attention score before the softmax, in models with QK-norm
    scales_plain_scores: bool = False  # in models without, too, where it is about 3 otherwise
    first_attention: float = 1.0  # factors of what attention and the MLP add to the residual stream
    attention: float = 1.0
    mlp: float = 1.0
    growth: float = 1.0  # of the same from layer to layer
    embedding_tail: float | None = None  # the exponent of the tail of an embedding's elements; None: normal
    logit_std: float = 2.5


# For golden files of few layers: attention is sharp, and a layer carries an error on enlarged.
GOLDEN = Recipe()
# For models of full depth, in which such errors would grow until bf16 chooses other tokens than fp32 in 40 % of all
# steps; with these values in 1 to 2 %. Layers after the first add little to the residual stream, but for bf16's
# rounding of it enough to show an error of 1 % in a projection; that grows with the stream. Attention carries errors
# on with the spread of its scores. Outliers in the embedding set few logits apart.
PEAKED = Recipe(score_std=1.2, scales_plain_scores=True, first_attention=0.5, attention=0.6, mlp=0.22, growth=1.035,
                embedding_tail=0.9, logit_std=1.0)
# The smallest uniform draw that an element of the tail is made from.
TAIL_FLOOR = 1e-6


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


def _head_norms(draw, head_dim, score_std):
    """(q_norm, k_norm): K is spread, and Q is scaled so that scores have score_std."""
    k_norm = _log_uniform(draw, head_dim, *K_NORM_RANGE)
    top = draw.uniform((head_dim,)).argsort()[:K_NORM_AT_TOP]
    k_norm[top] = K_NORM_RANGE[1]
    q_norm = _log_uniform(draw, head_dim, 1.0, Q_NORM_RATIO)
    return q_norm * (score_std / _root_mean_square(q_norm * k_norm)), k_norm


@dataclasses.dataclass
class Layer:
    """The modules of one layer, in the order in which they are drawn."""
    block: torch.nn.Module
    norms: tuple
    projections: dict  # name: (module, the features of its outputs that are this projection)
    head_norms: tuple = ()  # those of Q and of K

    @property
    def linears(self):
        return tuple(dict.fromkeys(module for module, _ in self.projections.values()))


@dataclasses.dataclass
class Parts:
    """The modules of a model by their role."""
    embeddings: tuple
    layers: list
    final_norm: torch.nn.Module
    lm_head: torch.nn.Module


def parts_of(model):
    every = slice(None)
    layers = []
    if hasattr(model, "transformer"):  # GPT-2
        body, width = model.transformer, model.config.n_embd
        for block in body.h:
            fused, mlp = block.attn.c_attn, block.mlp
            layers.append(Layer(block, (block.ln_1, block.ln_2), {
                "q": (fused, slice(0, width)), "k": (fused, slice(width, 2 * width)),
                "v": (fused, slice(2 * width, None)),
                "o": (block.attn.c_proj, every), "up": (mlp.c_fc, every), "down": (mlp.c_proj, every)}))
        return Parts((body.wte, body.wpe), layers, body.ln_f, model.lm_head)
    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        head_norms = ((attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else ())
        layers.append(Layer(block, (block.input_layernorm, block.post_attention_layernorm), {
            "q": (attention.q_proj, every), "k": (attention.k_proj, every), "v": (attention.v_proj, every),
            "o": (attention.o_proj, every), "gate": (mlp.gate_proj, every), "up": (mlp.up_proj, every),
            "down": (mlp.down_proj, every)}, head_norms))
    return Parts((model.model.embed_tokens,), layers, model.model.norm, model.lm_head)


@torch.no_grad()
def fill(model, draw, recipe=GOLDEN):
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

    def draw_embedding(shape):
        values = draw.normal(shape)
        if recipe.embedding_tail is not None:
            values *= draw.uniform(shape).clamp_min(TAIL_FLOOR) ** (-1 / recipe.embedding_tail)
            values /= _root_mean_square(values)
        return values * EMBEDDING_STD

    config, parts = model.config, parts_of(model)
    for embedding in parts.embeddings:
        assign(embedding.weight, draw_embedding(tuple(embedding.weight.shape)))
    for index, layer in enumerate(parts.layers):
        for norm in layer.norms:
            assign(norm.weight, _log_uniform(draw, config.hidden_size, *LAYER_NORM_RANGE))
            assign_bias(norm, config.hidden_size, BIAS_STD)
        if layer.head_norms:
            for norm, values in zip(layer.head_norms, _head_norms(draw, config.head_dim, recipe.score_std)):
                assign(norm.weight, values)
        for linear in layer.linears:
            assign_linear(linear)
        if recipe.scales_plain_scores and not layer.head_norms:
            # The norm gives Q and K a variance of its weights' mean square, and their product that of a score.
            module, queries = layer.projections["q"]
            weight = module.weight[queries] if isinstance(module, torch.nn.Linear) else module.weight[:, queries]
            assign(weight, weight.float() * (recipe.score_std / layer.norms[0].weight.float().square().mean()))
        parts_added = (recipe.attention, recipe.mlp) if index > 0 else (recipe.first_attention, 1.0)
        for name, part in zip(("o", "down"), parts_added):
            for parameter in layer.projections[name][0].parameters():
                assign(parameter, parameter.float() * part * recipe.growth ** index)
    head_std = EMBEDDING_STD
    if not config.tie_word_embeddings:
        assign_linear(parts.lm_head)
        head_std = 1.0 / math.sqrt(config.hidden_size)
    final_norm = _log_uniform(draw, config.hidden_size, 1.0, FINAL_NORM_RATIO)
    unit_std = math.sqrt(config.hidden_size) * head_std * _root_mean_square(final_norm)
    final_norm = final_norm * (recipe.logit_std / unit_std)
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
