"""zero_checkpoint.py CONFIG OUT: a checkpoint of the shape in CONFIG/config.json, in bf16, all of whose weights are 0.

Its file has a hole where the weights are, so it takes no room on the disk however large it is. What it takes to load it
does not depend on the weights. Qwen3 only.
"""

import json
import math
import pathlib
import shutil
import struct
import sys


def tensors(config):
    """Yields the name and shape of every tensor."""
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    layer = {
        "input_layernorm": [hidden], "post_attention_layernorm": [hidden],
        "self_attn.q_proj": [query, hidden], "self_attn.k_proj": [key, hidden], "self_attn.v_proj": [key, hidden],
        "self_attn.o_proj": [hidden, query], "self_attn.q_norm": [head_dim], "self_attn.k_norm": [head_dim],
        "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner]}
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    yield "model.norm.weight", [hidden]
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", [config["vocab_size"], hidden]
    for index in range(config["num_hidden_layers"]):
        for name, shape in layer.items():
            yield f"model.layers.{index}.{name}.weight", shape


def main(source, out):
    source, out = pathlib.Path(source), pathlib.Path(out)
    config = json.loads((source / "config.json").read_text())
    out.mkdir(parents=True)
    shutil.copy(source / "config.json", out)
    header, size = {}, 0
    for name, shape in tensors(config):
        end = size + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, end]}
        size = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)


main(*sys.argv[1:])
