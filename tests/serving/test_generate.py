"""Generating with kept keys and values gives what reading everything again would; drawing, stops, prompts."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.recipes import catalogue
from jupyter_hyperpod.recipes.decoder import Decoder
from jupyter_hyperpod.serving.generate import Cache, Sampling, check_prompt, draw, generate, read
from jupyter_hyperpod.serving.models import Until, config_from_json

RECIPES = ("llama-tiny", "gpt-oss-tiny")


@pytest.fixture(scope="module", params=RECIPES)
def model(request: pytest.FixtureRequest) -> Decoder:
    torch.manual_seed(0)
    made = Decoder(catalogue.load(request.param).config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.2)  # sinks and biases too, and attention that is not flat
    return made.requires_grad_(False).eval()


@pytest.mark.parametrize("pieces", [(60,), (1, 1, 58), (50, *[1] * 10), (7, 23, 30)])
def test_reading_in_pieces_gives_the_scores_of_reading_it_all(model: Decoder, pieces: tuple[int, ...]) -> None:
    tokens = torch.randint(model.config.vocab_size, (sum(pieces),), generator=torch.Generator().manual_seed(1))
    cache, scores = Cache.of(model, len(tokens)), torch.empty(0)
    for piece in torch.split(tokens, list(pieces)):
        scores = read(model, piece, cache)
    torch.testing.assert_close(scores, model(tokens[None])[0, -1], rtol=2e-3, atol=2e-3)


def test_the_same_request_gives_the_same_tokens_and_another_seed_others(model: Decoder) -> None:
    first, again, other = (list(generate(model, [1, 2, 3], 12, Sampling(seed=seed))) for seed in (5, 5, 6))
    assert first == again != other
    assert len(first) == 12


def test_likeliest_only() -> None:
    scores = torch.tensor([0.0, 5.0, 4.9, -3.0])
    generator = torch.Generator().manual_seed(0)
    assert {draw(scores, Sampling(temperature=0), generator) for _ in range(5)} == {1}
    assert {draw(scores, Sampling(top_p=0.3), generator) for _ in range(50)} == {1}
    assert {draw(scores, Sampling(top_p=0.9), generator) for _ in range(200)} == {1, 2}


def test_prompts_that_cannot_be_read_are_told_why() -> None:
    config = catalogue.load("llama-tiny").config
    assert check_prompt(config, [1, 2]) == ""
    assert "at least one token" in check_prompt(config, [])
    assert f"expected 0 to {config.vocab_size - 1}" in check_prompt(config, [config.vocab_size])
    assert "shorten the prompt" in check_prompt(config, [1] * config.max_position_embeddings)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_configuration_survives_its_file(recipe: str) -> None:
    config = catalogue.load(recipe).config
    assert config_from_json(asdict(config)) == config


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.lists(st.text("ab", min_size=1, max_size=3), max_size=2))
def test_text_ends_before_the_first_stop_however_it_is_cut(pieces: list[str], stops: list[str]) -> None:
    spoken, said = Until(stops), ""
    for number, piece in enumerate(pieces, 1):
        said += spoken.say(piece, number == len(pieces))
        if spoken.stopped:
            break
    whole = "".join(pieces)
    ends = [at for stop in stops if (at := whole.find(stop)) >= 0]
    if ends:
        assert spoken.stopped
        assert whole.startswith(said)
        assert any(whole[len(said) :].startswith(stop) for stop in stops)
    else:
        assert said == whole
