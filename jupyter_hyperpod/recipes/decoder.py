"""The decoder that a `DecoderConfig` describes, in plain PyTorch: to read, to train, to change.

Every operation depends on its inputs alone, so a micro-batch gives the same bits on whichever member computes it.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .config import DecoderConfig

INITIAL_DEVIATION = 0.02
SWIGLU_ALPHA = 1.702  # x * sigmoid(1.702 x) approximates GELU
SINK_WIDTH = 8  # attention kernels want head dimensions in multiples of eight


def rotary(config: DecoderConfig, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position, float32 ``(length, head_dim / 2)``."""
    frequencies = torch.tensor(config.frequencies(), dtype=torch.float32, device=device)
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies
    magnitude = config.rope_scaling.magnitude if config.rope_scaling else 1.0
    return angles.cos() * magnitude, angles.sin() * magnitude


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + head_dim / 2) of ``(…, length, head_dim)`` by their position."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def windowed(length: int, window: int, sink: bool, device: torch.device) -> torch.Tensor:
    """What may be seen, bool ``(length, length)``: the last `window` positions, and the sink at 0."""
    at = torch.arange(length, device=device)
    behind = at[:, None] - at
    seen = (behind >= 0) & (behind < window)
    return seen | (at == 0) if sink else seen


class Attention(nn.Module):
    """Causal grouped-query attention, over everything before or a sliding window, with a learned sink or without.

    A sink is a key of no content with a learned score a head: what is not worth attending to goes there. It is put
    before the sequence as one more key, whose score comes out of an extra dimension of the queries.
    """

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.head_dim, self.window = config.head_dim, config.window(layer)
        width, bias = config.hidden_size, config.attention_bias
        query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.query, self.key, self.value = (nn.Linear(width, out, bias=bias) for out in (query, key, key))
        self.output = nn.Linear(query, width, bias=bias)
        self.sinks = nn.Parameter(torch.empty(config.num_attention_heads)) if config.attention_sinks else None

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """``(batch, length, width)`` to the same."""
        query, key, value = (
            part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        if self.sinks is not None:
            query, key, value = self._with_sink(query, key, value, self.sinks)
        length, mask = query.shape[2], None
        if self.window and self.window < x.shape[1]:
            mask = windowed(length, self.window, self.sinks is not None, x.device)
        mixed = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, scale=self.head_dim**-0.5, enable_gqa=True
        )
        if self.sinks is not None:
            mixed = mixed[:, :, 1:, : self.head_dim]
        out: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out

    def _with_sink(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Widen all by `SINK_WIDTH` and put the sink before them; its score with every query is the head's."""
        query, key, value = (F.pad(part, (0, SINK_WIDTH, 1, 0)) for part in (query, key, value))
        score = F.pad(sinks[:, None, None] * math.sqrt(self.head_dim), (self.head_dim, SINK_WIDTH - 1))
        sink = torch.zeros_like(key[:, :, :1])
        sink[..., self.head_dim] = 1.0
        return query + score, torch.cat((sink, key[:, :, 1:]), dim=2), value


class FeedForward(nn.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(…, width)`` to the same."""
        out: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class MixtureOfExperts(nn.Module):
    """A router scores every expert, the best few compute, weighted by the softmax of their scores.

    All experts are one parameter each for their weights and biases, as published; one that got no token in a step
    has a gradient of zeros. Gate and up projection of an expert lie interleaved in ``gate_up``.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        experts, width, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.chosen, self.limit = config.num_experts_per_tok, config.swiglu_limit or math.inf
        self.router = nn.Linear(width, experts)
        self.gate_up = nn.Parameter(torch.empty(experts, width, 2 * inner))
        self.gate_up_bias = nn.Parameter(torch.empty(experts, 2 * inner))
        self.down = nn.Parameter(torch.empty(experts, inner, width))
        self.down_bias = nn.Parameter(torch.empty(experts, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(…, width)`` to the same."""
        tokens = x.flatten(0, -2)
        scores, experts = self.router(tokens).topk(self.chosen, dim=-1)
        weights = scores.softmax(dim=-1)
        out = torch.zeros_like(tokens)
        stacked = (self.gate_up, self.gate_up_bias, self.down, self.down_bias)
        for expert, parts in enumerate(zip(*(part.unbind(0) for part in stacked), strict=True)):
            token, choice = (experts == expert).nonzero(as_tuple=True)
            if token.numel():
                computed = self._expert(tokens.index_select(0, token), *parts)
                out = out.index_add(0, token, computed * weights[token, choice, None])
        return out.view_as(x)

    def _expert(
        self, x: torch.Tensor, gate_up: torch.Tensor, gate_up_bias: torch.Tensor, down: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        both = torch.addmm(gate_up_bias, x, gate_up)
        gate, up = both[:, 0::2].clamp(max=self.limit), both[:, 1::2].clamp(-self.limit, self.limit)
        return torch.addmm(bias, gate * torch.sigmoid(SWIGLU_ALPHA * gate) * (up + 1), down)


class Block(nn.Module):
    """One layer: attention, then feed-forward, each behind a norm and beside a residual."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention = Attention(config, layer)
        self.feed_forward_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.feed_forward = MixtureOfExperts(config) if config.num_local_experts else FeedForward(config)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """``(batch, length, width)`` to the same."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        out: torch.Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Decoder(nn.Module):
    """Tokens in, scores of the next token out.

    ``recompute`` keeps only the input of every block for the backward pass and computes the rest again: the same
    bits, less memory, a third more time.
    """

    def __init__(self, config: DecoderConfig, *, recompute: bool = False) -> None:
        super().__init__()
        self.config, self.recompute = config, recompute
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.head = None if config.tie_word_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.initialize()

    def initialize(self) -> None:
        """Norms are one, biases and sinks zero, everything else normal; call it again after ``to_empty``."""
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                nn.init.ones_(parameter)
            elif name.endswith(("bias", "sinks")):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=INITIAL_DEVIATION)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Int64 ``(batch, length)`` to ``(batch, length, vocab_size)``."""
        x = self.embedding(tokens)
        cosine, sine = rotary(self.config, tokens.shape[1], tokens.device)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, cosine, sine, use_reentrant=False)
            else:
                x = block(x, cosine, sine)
        head = self.embedding.weight if self.head is None else self.head.weight
        return F.linear(self.norm(x), head)
