"""The shape of a decoder, in the names of published ``config.json`` files, and what follows from it. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context a model began with.

    ``rope_type`` is "llama3" (uses the ``*_freq_factor``) or "yarn" (uses the ``beta_*``, in turns of the original
    context). Raises ValueError for another one.
    """

    rope_type: str
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        if self.rope_type not in ("llama3", "yarn"):
            raise ValueError(f"rope_type is {self.rope_type!r}; expected 'llama3' or 'yarn'")

    def settings(self) -> dict[str, str | float]:
        """The fields that ``rope_type`` makes use of, by name."""
        unused = "beta_" if self.rope_type == "llama3" else ("low_freq_", "high_freq_")
        return {name: value for name, value in asdict(self).items() if not name.startswith(unused)}

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied with: YaRN sharpens attention with the stretch, llama3 does not."""
        return 0.1 * math.log(self.factor) + 1.0 if self.rope_type == "yarn" and self.factor > 1 else 1.0

    def stretched(self, frequencies: list[float], theta: float) -> list[float]:
        """Return `frequencies` (radians a position, falling) stretched by the rule of ``rope_type``."""
        if self.rope_type == "llama3":
            return [self._llama3(frequency) for frequency in frequencies]
        half = len(frequencies)
        low, high = (self._turns_at(beta, half, theta) for beta in (self.beta_fast, self.beta_slow))
        low, high = max(low, 0.0), min(high, 2.0 * half - 1.0)
        kept = [1.0 - min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0) for i in range(half)]
        return [f / self.factor * (1 - keep) + f * keep for f, keep in zip(frequencies, kept, strict=True)]

    def _turns_at(self, turns: float, half: int, theta: float) -> float:
        """The (fractional) index of the frequency that turns so often in the original context."""
        return half * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / math.log(theta)

    def _llama3(self, frequency: float) -> float:
        turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = min(max(keep, 0.0), 1.0)
        return frequency / self.factor * (1 - keep) + frequency * keep


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder: pre-norm, rotary positions, grouped-query attention, gated feed-forward, dense or mixture of experts.

    ``sliding_window`` (0: none) holds for every other layer, from the first. ``num_local_experts`` 0 means one dense
    feed-forward; else a router picks ``num_experts_per_tok`` of them. ``swiglu_limit`` clamps the gated unit of the
    experts. Raises ValueError for a shape that cannot be built.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_sinks: bool = False
    sliding_window: int = 0
    num_local_experts: int = 0
    num_experts_per_tok: int = 0
    swiglu_limit: float = 0.0
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.num_attention_heads} attention heads cannot share {self.num_key_value_heads} key-value heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary positions turn pairs, so it must be even")
        if not 0 <= self.num_experts_per_tok <= self.num_local_experts or (
            self.num_local_experts and not self.num_experts_per_tok
        ):
            raise ValueError(
                f"{self.num_experts_per_tok} experts a token of {self.num_local_experts}; expected 1 to all of them"
            )

    def frequencies(self) -> list[float]:
        """Radians a position of each rotary pair, ``head_dim / 2`` of them."""
        plain = [self.rope_theta ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2)]
        return self.rope_scaling.stretched(plain, self.rope_theta) if self.rope_scaling else plain

    def window(self, layer: int) -> int:
        """How many positions, itself included, a token of this layer sees; 0 for all before it."""
        return self.sliding_window if layer % 2 == 0 else 0

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return embeddings + self._body(max(self.num_local_experts, 1))

    @property
    def active_parameters(self) -> int:
        """Parameters that take part in one token: its experts and the output layer, but not the look-up of its row."""
        return self.vocab_size * self.hidden_size + self._body(max(self.num_experts_per_tok, 1))

    def _body(self, experts: int) -> int:
        """Parameters of all layers with so many experts each, and of the last norm."""
        width, inner = self.hidden_size, self.intermediate_size
        query, key = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        attention = width * (2 * query + 2 * key)
        attention += (query + 2 * key + width) * self.attention_bias
        attention += self.num_attention_heads * self.attention_sinks
        feed_forward = 3 * width * inner
        if self.num_local_experts:
            feed_forward = experts * (feed_forward + 2 * inner + width) + self.num_local_experts * (width + 1)
        return self.num_hidden_layers * (attention + feed_forward + 2 * width) + width
