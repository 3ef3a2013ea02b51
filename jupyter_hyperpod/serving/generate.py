"""Generates tokens with the project's decoder, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ..recipes.config import DecoderConfig
from ..recipes.decoder import Attention, Block, Decoder, rotary, rotate

COLD = 1e-5  # a temperature below this takes the likeliest: divided by less, scores leave the numbers that there are


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw a token: ``temperature`` 0 takes the likeliest. ``top_k`` (0: all) of the likeliest, then those
    that sum to ``top_p``, none that is less likely than ``min_p`` times the likeliest.

    ``logit_bias`` is added to the scores of its tokens. The penalties lower those of tokens that were drawn before:
    once, by how often, and by a factor, which is for tokens of the prompt, too.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def adjusts(self) -> bool:
        """Whether scores are changed before a token is drawn."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return bool(self.logit_bias) or penalties != (0, 0, 1)


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


class Adjustment:
    """What a request adds to the scores of tokens: its bias, then the penalties, in the order of vLLM.

    With c times that a token was drawn, OpenAI's formula takes ``c * frequency_penalty`` from its score, and
    ``presence_penalty`` where c is not 0.
    """

    def __init__(self, sampling: Sampling, prompt: list[int], vocabulary: int, device: torch.device) -> None:
        self._sampling = sampling
        self._drawn = torch.zeros(vocabulary, device=device)
        self._said = torch.zeros(vocabulary, dtype=torch.bool, device=device)  # in the prompt, or drawn
        self._said[torch.tensor(prompt, dtype=torch.int64, device=device)] = True
        self._bias = torch.zeros(vocabulary, device=device)
        for token, bias in sampling.logit_bias:
            self._bias[token] = bias

    @torch.inference_mode()
    def of(self, scores: torch.Tensor) -> torch.Tensor:
        """The scores ``(vocab_size,)`` from which the next token is drawn."""
        scores, factor = scores.float() + self._bias, self._sampling.repetition_penalty
        if factor != 1:
            scores = torch.where(self._said, torch.where(scores > 0, scores / factor, scores * factor), scores)
        scores = scores - self._sampling.frequency_penalty * self._drawn
        return scores - self._sampling.presence_penalty * (self._drawn > 0)

    def drew(self, token: int) -> None:
        """Count a token."""
        self._drawn[token] += 1
        self._said[token] = True


@torch.inference_mode()
def draw(scores: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Draw a token from its scores ``(vocab_size,)``, as they are after `Adjustment`."""
    if sampling.temperature < COLD:
        return int(scores.argmax())
    scores = scores.float() / sampling.temperature
    if sampling.min_p:
        chances = scores.softmax(dim=-1)
        scores = scores.masked_fill(chances < sampling.min_p * chances.max(), -torch.inf)
    if 0 < sampling.top_k < scores.shape[0]:
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[-1], -torch.inf)
    chances = scores.softmax(dim=-1)
    if sampling.top_p < 1:
        ordered, names = chances.sort(descending=True)
        before = ordered.cumsum(0) - ordered
        ordered[1:][before[1:] >= sampling.top_p] = 0.0
        chances = torch.zeros_like(chances).scatter_(0, names, ordered)
    return int(torch.multinomial(chances, 1, generator=generator))


def generate(model: Decoder, prompt: list[int], most: int, sampling: Sampling) -> Iterator[int]:
    """Yield up to ``most`` tokens after the prompt (at least one token). The same arguments give the same tokens."""
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(sampling.seed)
    cache = Cache.of(model, len(prompt) + most)
    tokens = torch.tensor(prompt, dtype=torch.int64, device=device)
    adjustment = Adjustment(sampling, prompt, model.config.vocab_size, device) if sampling.adjusts else None
    for _ in range(most):
        scores = read(model, tokens, cache)
        token = draw(scores if adjustment is None else adjustment.of(scores), sampling, generator)
        if adjustment is not None:
            adjustment.drew(token)
        yield token
        tokens = torch.tensor([token], dtype=torch.int64, device=device)


def check_prompt(config: DecoderConfig, prompt: list[int]) -> str:
    """The error of a prompt, or ""."""
    if not prompt:
        return "the prompt is empty; expected at least one token"
    if wrong := [token for token in prompt if not 0 <= token < config.vocab_size]:
        return f"token {wrong[0]} is not in the vocabulary; expected 0 to {config.vocab_size - 1}"
    if len(prompt) >= config.max_position_embeddings:
        return (
            f"the prompt has {len(prompt)} tokens, and the model reads and says at most "
            f"{config.max_position_embeddings} in all; shorten the prompt"
        )
    return ""
