"""The families: how a GGUF architecture's metadata and tensors become a config.json and named weights."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from gguf_model.reader import File
from gguf_model.weights import Refused, Tensor

# GGUF's name of a module: Hugging Face's, in which {} is the layer.
LLAMA_MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "model.layers.{}.input_layernorm",
    "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj",
    "attn_v": "model.layers.{}.self_attn.v_proj",
    "attn_output": "model.layers.{}.self_attn.o_proj",
    "attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "attn_k_norm": "model.layers.{}.self_attn.k_norm",
    "ffn_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_down": "model.layers.{}.mlp.down_proj",
}
GPT2_MODULES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attn_norm": "transformer.h.{}.ln_1",
    "attn_qkv": "transformer.h.{}.attn.c_attn",
    "attn_output": "transformer.h.{}.attn.c_proj",
    "ffn_norm": "transformer.h.{}.ln_2",
    "ffn_up": "transformer.h.{}.mlp.c_fc",
    "ffn_down": "transformer.h.{}.mlp.c_proj",
}
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class Family:
    """What distinguishes an architecture."""
    architecture: str  # Hugging Face's
    model_type: str
    modules: dict[str, str] = field(default_factory=lambda: LLAMA_MODULES)
    config: Callable[[File], dict] = lambda file: llama_config(file)
    biases: tuple[str, ...] = ()  # the keys of config.json that say whether there are biases
    rows_permuted: bool = False  # Q and K have the rows of a head's two halves interleaved
    transposed: tuple[str, ...] = ()  # modules whose weights have the inputs first in Hugging Face


def llama3_scaling(file: File, head_dim: int, theta: float) -> dict | None:
    """The RoPE scaling of Llama 3.1 and later. GGUF only stores its effect, one divisor for each frequency, so
    the parameters are searched that have this effect."""
    if ROPE_FACTORS not in file.names():
        return None
    stored = file.values(ROPE_FACTORS).astype(np.float64)
    factor, low, high = float(stored.max()), 1.0, 4.0
    wavelengths = 2 * math.pi * theta**(np.arange(0, head_dim, 2) / head_dim)
    for exponent in range(4, 21):
        positions = 2**exponent
        smooth = np.clip((positions / wavelengths - low) / (high - low), 0, 1)
        if stored.shape == smooth.shape and np.allclose(1 / ((1 - smooth) / factor + smooth), stored, rtol=1e-4):
            return {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                    "original_max_position_embeddings": positions}
    raise Refused(f"{ROPE_FACTORS} scales RoPE in a way that is not supported; allowed: that of Llama 3.1")


def llama_config(file: File) -> dict:
    """The sizes of a model with RoPE and RMSNorm."""
    file.require(".rope.scaling.type", "none")
    file.require(".attention.sliding_window", 0)
    file.require(".expert_count", 0)
    heads, hidden = file.size(".attention.head_count"), file.size(".embedding_length")
    head_dim = file.find(".attention.key_length") or hidden // heads
    for key in (".attention.value_length", ".rope.dimension_count"):
        file.require(key, head_dim)
    theta = file.real(".rope.freq_base") if file.find(".rope.freq_base") is not None else 10000.0
    config = {"hidden_size": hidden, "intermediate_size": file.size(".feed_forward_length"),
              "num_hidden_layers": file.size(".block_count"), "num_attention_heads": heads,
              "num_key_value_heads": file.find(".attention.head_count_kv") or heads, "head_dim": head_dim,
              "max_position_embeddings": file.size(".context_length"),
              "rms_norm_eps": file.real(".attention.layer_norm_rms_epsilon"), "rope_theta": theta,
              "hidden_act": "silu"}
    if (scaling := llama3_scaling(file, head_dim, theta)) is not None:
        config["rope_scaling"] = scaling
    return config


def gpt2_config(file: File) -> dict:
    """The sizes of a GPT-2."""
    return {"n_embd": file.size(".embedding_length"), "n_inner": file.size(".feed_forward_length"),
            "n_layer": file.size(".block_count"), "n_head": file.size(".attention.head_count"),
            "n_positions": file.size(".context_length"), "layer_norm_epsilon": file.real(".attention.layer_norm_epsilon"),
            "activation_function": "gelu_new"}


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "llama", biases=("attention_bias", "mlp_bias"), rows_permuted=True),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", biases=("attention_bias",)),
    "ernie4_5": Family("Ernie4_5ForCausalLM", "ernie4_5", biases=("use_bias",)),
    "gpt2": Family("GPT2LMHeadModel", "gpt2", modules=GPT2_MODULES, config=gpt2_config,
                   transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down")),
}


def family_of(file: File) -> Family:
    """The file's family."""
    if file.architecture not in FAMILIES:
        raise Refused(f"general.architecture is '{file.architecture}', which is not supported; allowed: "
                      f"{', '.join(FAMILIES)}")
    return FAMILIES[file.architecture]


def config_of(file: File, family: Family, dtype: str) -> dict:
    """The contents of config.json, without what the tokenizer knows."""
    biased = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_down.bias", "use_bias": "attn_q.bias"}
    names = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
    return {"architectures": [family.architecture], "model_type": family.model_type, "torch_dtype": names[dtype],
            "vocab_size": file.shape("token_embd.weight")[0], **family.config(file),
            "tie_word_embeddings": "output.weight" not in file.names(),
            **{key: f"blk.0.{biased[key]}" in file.names() for key in family.biases}}


def hugging_face_name(name: str, family: Family) -> tuple[str, str]:
    """A tensor's module in GGUF, and its name in Hugging Face."""
    head, _, kind = name.rpartition(".")
    layer, module = "", head
    if head.startswith("blk."):
        _, layer, module = head.split(".", 2)
    target = family.modules.get(module)
    if target is None or ("{}" in target) != (layer != "") or kind not in ("weight", "bias"):
        raise Refused(f"the tensor {name} is not one of a {family.architecture}")
    return module, f"{target.format(layer)}.{kind}"


def interleaved_rows_undone(values: np.ndarray, heads: int) -> np.ndarray:
    """GGUF stores a head's rows of Q and K as 0, d/2, 1, d/2 + 1, ... for the architecture `llama`."""
    rows = values.shape[0]
    return values.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)


def tensors_of(file: File, family: Family, config: dict) -> Iterator[Tensor]:
    """The weights under Hugging Face's names."""
    heads = {"attn_q": config.get("num_attention_heads"), "attn_k": config.get("num_key_value_heads")}
    for name in sorted(file.names() - {ROPE_FACTORS}):
        module, target = hugging_face_name(name, family)
        shape = file.shape(name)
        if family.rows_permuted and module in heads:
            if shape[0] % (2 * heads[module]) != 0:
                raise Refused(f"{name} has {shape[0]} rows, which are not those of {heads[module]} heads")
            yield Tensor(target, shape,
                         lambda name=name, heads=heads[module]: interleaved_rows_undone(file.values(name), heads))
        elif module in family.transposed and len(shape) == 2:
            yield Tensor(target, shape[::-1], lambda name=name: file.values(name).T)
        else:
            yield Tensor(target, shape, lambda name=name: file.values(name))
