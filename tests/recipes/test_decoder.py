"""The decoder against its definitions, written out the slow way."""

from __future__ import annotations

import cmath
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from jupyter_hyperpod.recipes import catalogue
from jupyter_hyperpod.recipes.config import DecoderConfig, RopeScaling
from jupyter_hyperpod.recipes.decoder import Attention, Decoder, MixtureOfExperts, rotary, rotate

LLAMA, MIXTURE = (catalogue.load(name).config for name in ("llama-tiny", "gpt-oss-tiny"))
CPU = torch.device("cpu")


def tokens(length: int = 48, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(1))


def made(config: DecoderConfig, seed: int = 0) -> Decoder:
    """A decoder whose biases, sinks and norms are not at their dull initial values."""
    torch.manual_seed(seed)
    model = Decoder(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3 if parameter.ndim == 1 else 0.1)
    return model


def test_rotation_is_multiplication_by_a_complex_number() -> None:
    config = replace(LLAMA, rope_scaling=None)
    x = torch.randn(2, 3, 20, config.head_dim)
    turned = rotate(x, *rotary(config, 20, CPU))
    half = config.head_dim // 2
    for position in (0, 1, 19):
        for pair in range(half):
            z = complex(x[0, 0, position, pair], x[0, 0, position, pair + half])
            z *= cmath.exp(1j * position * config.rope_theta ** (-2 * pair / config.head_dim))
            assert turned[0, 0, position, pair].item() == pytest.approx(z.real, abs=1e-5)
            assert turned[0, 0, position, pair + half].item() == pytest.approx(z.imag, abs=1e-5)


def test_only_the_distance_of_two_positions_counts() -> None:
    query, key = torch.randn(2, MIXTURE.head_dim)
    cosine, sine = rotary(MIXTURE, 40, CPU)
    scores = [rotate(query, cosine[m], sine[m]) @ rotate(key, cosine[n], sine[n]) for m, n in ((9, 2), (39, 32))]
    assert scores[0].item() == pytest.approx(scores[1].item(), rel=1e-4)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "llama-3.2-1b"])
def test_llama_stretches_long_waves_and_keeps_short_ones(name: str) -> None:
    config = catalogue.load(name).config
    scaling = config.rope_scaling
    assert scaling is not None
    for pair, found in enumerate(config.frequencies()):
        plain = config.rope_theta ** (-2 * pair / config.head_dim)
        wave = 2 * math.pi / plain
        if wave < 8192 / 4:
            wanted = plain
        elif wave > 8192:
            wanted = plain / scaling.factor
        else:
            smooth = (8192 / wave - 1) / 3
            wanted = (1 - smooth) * plain / scaling.factor + smooth * plain
        assert found == pytest.approx(wanted, rel=1e-9)
    assert scaling.magnitude == 1.0


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_yarn_ramps_between_32_turns_and_one(name: str) -> None:
    config = catalogue.load(name).config
    theta, half = 150_000.0, 32
    low, high = (half * math.log(4096 / (turns * 2 * math.pi)) / math.log(theta) for turns in (32, 1))
    assert 0 < low < high < half - 1
    for pair, found in enumerate(config.frequencies()):
        plain = theta ** (-pair / half)
        ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
        assert found == pytest.approx(plain * (1 - ramp) + plain / 32 * ramp, rel=1e-9)
    assert config.rope_scaling is not None
    assert config.rope_scaling.magnitude == pytest.approx(0.1 * math.log(32) + 1)
    assert rotary(config, 1, CPU)[0].tolist() == [[pytest.approx(config.rope_scaling.magnitude)] * half]


def slow_attention(layer: Attention, x: torch.Tensor, config: DecoderConfig) -> torch.Tensor:
    """One head and one position at a time."""
    cosine, sine = rotary(config, x.shape[1], CPU)
    query, key, value = (part(x).unflatten(-1, (-1, config.head_dim)) for part in (layer.query, layer.key, layer.value))
    outs = []
    for at in range(x.shape[1]):
        first = max(0, at - layer.window + 1) if layer.window else 0
        heads = []
        for head in range(config.num_attention_heads):
            shared = head * config.num_key_value_heads // config.num_attention_heads
            turned = rotate(query[:, at, head], cosine[at], sine[at])
            keys = rotate(key[:, first : at + 1, shared], cosine[first : at + 1], sine[first : at + 1])
            scores = torch.einsum("bd,bkd->bk", turned, keys) / math.sqrt(config.head_dim)
            if layer.sinks is not None:
                scores = torch.cat((scores, layer.sinks[head].expand(len(x), 1)), dim=1)
            weights = scores.softmax(-1)[:, : at + 1 - first]
            heads.append(torch.einsum("bk,bkd->bd", weights, value[:, first : at + 1, shared]))
        outs.append(torch.cat(heads, dim=-1))
    out: torch.Tensor = layer.output(torch.stack(outs, dim=1))
    return out


@pytest.mark.parametrize("config", [LLAMA, MIXTURE], ids=["llama", "gpt-oss"])
@pytest.mark.parametrize("layer", [0, 1])
def test_attention_is_what_it_is_defined_to_be(config: DecoderConfig, layer: int) -> None:
    attention = made(config).blocks[layer].attention
    x = torch.randn(2, 20, config.hidden_size)
    cosine, sine = rotary(config, 20, CPU)
    fast, slow = attention(x, cosine, sine), slow_attention(attention, x, config)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(slow.square().sum(), list(attention.parameters()))
    found = torch.autograd.grad(fast.square().sum(), list(attention.parameters()))
    for one, other in zip(found, wanted, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("config", [LLAMA, MIXTURE], ids=["llama", "gpt-oss"])
def test_the_future_changes_nothing_in_the_past(config: DecoderConfig) -> None:
    model, before = made(config), tokens()
    after = before.clone()
    after[:, 30] = (after[:, 30] + 1) % 256
    one, other = model(before), model(after)
    torch.testing.assert_close(one[:, :30], other[:, :30], rtol=0, atol=1e-6)
    assert (one[:, 30:] - other[:, 30:]).abs().amax(dim=(0, 2)).min() > 1e-6


@pytest.mark.parametrize("at", [0, 7, 15, 16, 47])
def test_a_window_ends_where_it_says(at: int) -> None:
    config = replace(MIXTURE, num_hidden_layers=1)
    attention = made(config).blocks[0].attention
    x = torch.randn(1, 48, config.hidden_size, requires_grad=True)
    attention(x, *rotary(config, 48, CPU))[0, at].sum().backward()
    assert x.grad is not None
    seen = x.grad[0].abs().amax(dim=-1).nonzero().flatten().tolist()
    assert seen == list(range(max(0, at - config.sliding_window + 1), at + 1))


def slow_mixture(layer: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    """One token and one expert at a time."""
    outs = []
    for token in x.flatten(0, -2):
        scores = layer.router(token)
        best = sorted(range(len(scores)), key=lambda expert: -scores[expert].item())[: layer.chosen]
        weights = scores[best].softmax(0)
        out = torch.zeros_like(token)
        for weight, expert in zip(weights, best, strict=True):
            both = token @ layer.gate_up[expert] + layer.gate_up_bias[expert]
            gate, up = both[0::2].clamp(max=layer.limit), both[1::2].clamp(min=-layer.limit, max=layer.limit)
            inner = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            out = out + weight * (inner @ layer.down[expert] + layer.down_bias[expert])
        outs.append(out)
    return torch.stack(outs).view_as(x)


@pytest.mark.parametrize("limit", [7.0, 0.5])
def test_a_mixture_is_the_weighted_sum_of_its_experts(limit: float) -> None:
    layer = made(replace(MIXTURE, swiglu_limit=limit)).blocks[0].feed_forward
    x = torch.randn(2, 9, MIXTURE.hidden_size)
    fast, slow = layer(x), slow_mixture(layer, x)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(slow.square().sum(), list(layer.parameters()))
    found = torch.autograd.grad(fast.square().sum(), list(layer.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_an_expert_without_tokens_has_a_gradient_of_zeros() -> None:
    layer = made(MIXTURE).blocks[0].feed_forward
    x = torch.randn(1, 1, MIXTURE.hidden_size)
    layer(x).sum().backward()
    used = set(layer.router(x).topk(4).indices.flatten().tolist())
    for parameter in (layer.gate_up, layer.gate_up_bias, layer.down, layer.down_bias):
        nonzero = parameter.grad.flatten(1).abs().amax(dim=1).nonzero().flatten().tolist()
        assert set(nonzero) == used


@pytest.mark.parametrize("config", [LLAMA, MIXTURE], ids=["llama", "gpt-oss"])
def test_recomputing_and_repeating_change_no_bit(config: DecoderConfig) -> None:
    model = made(config)

    def gradients() -> list[torch.Tensor]:
        loss = F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten())
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    plain = gradients()
    assert all(map(torch.equal, plain, gradients()))
    model.recompute = True
    assert all(map(torch.equal, plain, gradients()))


def test_tied_embeddings_are_one_parameter() -> None:
    model = made(replace(LLAMA, tie_word_embeddings=True))
    assert model.head is None
    assert sum(p.numel() for p in model.parameters()) == replace(LLAMA, tie_word_embeddings=True).parameters
    model(tokens()).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_decoder_made_on_no_device_can_be_given_one() -> None:
    with torch.device("meta"):
        model = Decoder(MIXTURE)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.initialize()
    loss = F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten())
    assert loss.item() == pytest.approx(math.log(256), rel=0.02), "an untrained model knows nothing"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"head_dim": 15}, "must be even"),
        ({"num_experts_per_tok": 99}, "expected 1 to all"),
        ({"num_experts_per_tok": 0}, "expected 1 to all"),
    ],
)
def test_shapes_that_cannot_be_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(MIXTURE, **wrong)
    with pytest.raises(ValueError, match="expected 'llama3' or 'yarn'"):
        RopeScaling("linear", 2.0, 128)
