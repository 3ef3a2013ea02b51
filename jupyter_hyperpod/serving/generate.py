"""Generates tokens with the project's decoder, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ..recipes.config import DecoderConfig
from ..recipes.decoder import Attention, Block, Decoder, rotary, rotate


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw a token: ``temperature`` 0 takes the likeliest; ``top_p`` draws from the likeliest that sum to it."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(slots=True)
class Cache:
    """Keys and values of every layer, ``(1, key-value heads, capacity, head_dim)``; the first ``length`` are filled."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    cosine: torch.Tensor
    sine: torch.Tensor
    length: int = 0

    @classmethod
    def of(cls, model: Decoder, capacity: int) -> Cache:
        """An empty cache for at most `capacity` tokens."""
        config, weight = model.config, model.embedding.weight
        shape = (1, config.num_key_value_heads, capacity, config.head_dim)
        keys, values = ([weight.new_empty(shape) for _ in range(config.num_hidden_layers)] for _ in range(2))
        return cls(keys, values, *rotary(config, capacity, weight.device))


@torch.inference_mode()
def read(model: Decoder, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
    """Append int64 ``(length,)`` to `cache` and return the scores of the next token, ``(vocab_size,)``."""
    begin, end = cache.length, cache.length + tokens.shape[0]
    x = model.embedding(tokens[None])
    cosine, sine = cache.cosine[begin:end], cache.sine[begin:end]
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        mixed = _attend(block.attention, block.attention_norm(x), cosine, sine, cache, layer)
        x = x + mixed
        x = x + block.feed_forward(block.feed_forward_norm(x))
    cache.length = end
    head = model.embedding.weight if model.head is None else model.head.weight
    scores: torch.Tensor = F.linear(model.norm(x[:, -1]), head)[0]
    return scores


def _attend(
    attention: Attention, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, cache: Cache, layer: int
) -> torch.Tensor:
    """``(1, new, width)`` to the same: new positions attend to everything that the layer's window allows."""
    query, key, value = (
        part(x).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for part in (attention.query, attention.key, attention.value)
    )
    begin, end = cache.length, cache.length + x.shape[1]
    cache.keys[layer][:, :, begin:end] = rotate(key, cosine, sine)
    cache.values[layer][:, :, begin:end] = value
    shared = query.shape[1] // key.shape[1]
    keys, values = (kept[layer][:, :, :end].repeat_interleave(shared, dim=1) for kept in (cache.keys, cache.values))
    scores = rotate(query, cosine, sine) @ keys.transpose(-1, -2) * attention.head_dim**-0.5
    behind = torch.arange(begin, end, device=x.device)[:, None] - torch.arange(end, device=x.device)
    seen = behind >= 0
    if attention.window:
        seen &= behind < attention.window
    scores = scores.masked_fill(~seen, -torch.inf)
    if attention.sinks is not None:
        sink = attention.sinks[None, :, None, None].expand(-1, -1, scores.shape[2], -1)
        scores = torch.cat((scores, sink), dim=-1)
    weights = scores.softmax(dim=-1)[..., :end]
    out: torch.Tensor = attention.output((weights @ values).transpose(1, 2).flatten(2))
    return out


@torch.inference_mode()
def draw(scores: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Draw a token from its scores ``(vocab_size,)``."""
    if sampling.temperature <= 0:
        return int(scores.argmax())
    chances = (scores.float() / sampling.temperature).softmax(dim=-1)
    if sampling.top_p < 1:
        ordered, names = chances.sort(descending=True)
        ordered[ordered.cumsum(0) - ordered > sampling.top_p] = 0.0
        chances = torch.zeros_like(chances).scatter_(0, names, ordered)
    return int(torch.multinomial(chances, 1, generator=generator))


def generate(model: Decoder, prompt: list[int], most: int, sampling: Sampling) -> Iterator[int]:
    """Yield up to ``most`` tokens after the prompt (at least one token). The same arguments give the same tokens."""
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(sampling.seed)
    cache = Cache.of(model, len(prompt) + most)
    tokens = torch.tensor(prompt, dtype=torch.int64, device=device)
    for _ in range(most):
        token = draw(read(model, tokens, cache), sampling, generator)
        yield token
        tokens = torch.tensor([token], dtype=torch.int64, device=device)


def check_prompt(config: DecoderConfig, prompt: list[int], most: int) -> str:
    """The error of a prompt, or ""."""
    if not prompt:
        return "the prompt is empty; expected at least one token"
    if wrong := [token for token in prompt if not 0 <= token < config.vocab_size]:
        return f"token {wrong[0]} is not in the vocabulary; expected 0 to {config.vocab_size - 1}"
    if len(prompt) + most > config.max_position_embeddings:
        return (
            f"{len(prompt)} tokens of prompt and {most} to come are more than the {config.max_position_embeddings} "
            "positions of the model; shorten the prompt or max_tokens"
        )
    return ""
