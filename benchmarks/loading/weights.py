"""A model to load: random weights of a decoder in one safetensors file, named and ordered as published ones are."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

WIDTH, INNER, VOCABULARY, KEY_WIDTH = 1024, 4096, 8192, 256
ITEM_BYTES = 2  # bfloat16
BLOCK = 16 * 2**20


def tensor_shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes, sorted by name as safetensors writes tensors of one type."""
    found: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (VOCABULARY, WIDTH),
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    for layer in range(layers):
        block = f"model.layers.{layer}"
        found |= {
            f"{block}.input_layernorm.weight": (WIDTH,),
            f"{block}.mlp.down_proj.weight": (WIDTH, INNER),
            f"{block}.mlp.gate_proj.weight": (INNER, WIDTH),
            f"{block}.mlp.up_proj.weight": (INNER, WIDTH),
            f"{block}.post_attention_layernorm.weight": (WIDTH,),
            f"{block}.self_attn.k_proj.weight": (KEY_WIDTH, WIDTH),
            f"{block}.self_attn.o_proj.weight": (WIDTH, WIDTH),
            f"{block}.self_attn.q_proj.weight": (WIDTH, WIDTH),
            f"{block}.self_attn.v_proj.weight": (KEY_WIDTH, WIDTH),
        }
    return dict(sorted(found.items()))


def layers_for(data_bytes: float) -> int:
    """How many layers make a model of about this size, at least one."""
    rest, one = (ITEM_BYTES * sum(map(math.prod, tensor_shapes(n).values())) for n in (0, 1))
    return max(1, round((data_bytes - rest) / (one - rest)))


def write_decoder(path: Path, data_bytes: float) -> int:
    """Write a model of about ``data_bytes`` with random content; returns the exact number of bytes of its tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensor_shapes(layers_for(data_bytes)).items():
        begin, end = end, end + ITEM_BYTES * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, BLOCK):
            file.write(os.urandom(min(BLOCK, end - begin)))
    return end
