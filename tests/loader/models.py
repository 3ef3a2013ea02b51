"""Small models as files, written by the format's own library."""

from __future__ import annotations

import torch
from safetensors.torch import save
from torch import nn

BLOCKS = 12


def decoder(
    seed: int = 0, width: int = 64, inner: int = 96, words: int = 101, blocks: int = BLOCKS
) -> dict[str, torch.Tensor]:
    """Tensors under the names of a Llama-style decoder; sizes that neither 3 nor 8 divides."""
    make = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=make).bfloat16()

    state = {"lm_head.weight": some(words, width), "model.embed_tokens.weight": some(words, width)}
    for block in range(blocks):
        name = f"model.layers.{block}"
        state |= {f"{name}.self_attn.{kind}_proj.weight": some(width, width) for kind in "qkvo"}
        state |= {f"{name}.mlp.{kind}_proj.weight": some(inner, width) for kind in ("gate", "up")}
        state |= {f"{name}.mlp.down_proj.weight": some(width, inner), f"{name}.input_layernorm.weight": some(width)}
    return state | {"model.norm.weight": some(width)}


def encoded(state: dict[str, torch.Tensor]) -> bytes:
    """As a file."""
    content: bytes = save(state, metadata={"format": "pt"})
    return content


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Names, dtypes, shapes and every byte."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


class Net(nn.Module):
    """Two layers, one of which is tied to the other, and a buffer."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.embed.weight
