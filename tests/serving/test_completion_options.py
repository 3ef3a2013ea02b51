"""Options of a completion: what is obeyed does what OpenAI and vLLM say, what is not is refused by its name."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from jupyter_hyperpod.serving import completion_options
from jupyter_hyperpod.serving.completion_options import InvalidRequest
from jupyter_hyperpod.serving.generate import Adjustment, Sampling, draw
from jupyter_hyperpod.serving.models import as_json

VOCABULARY = 8


def read(body: dict[str, Any]) -> Sampling:
    """What a replica reads of a request."""
    completion_options.check_known(body)
    completion_options.wants_usage(body)
    completion_options.stops(body)
    return completion_options.sampling(body, VOCABULARY, 7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("n", True),
        ("best_of", 3),
        ("echo", True),
        ("suffix", "end"),
        ("logprobs", 0),
        ("logprobs", 5),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"),
        ("guided_json", {"type": "object"}),
        ("stop_token_ids", [3]),
        ("min_tokens", 4),
        ("messages", []),
        ("max_completion_tokens", 5),
        ("temprature", 0.5),
        ("stream", "yes"),
        ("stream", 1),
        ("stream_options", {"include_usage": True}),
        ("top_k", 1.5),
        ("top_k", -2),
        ("min_p", 2),
        ("presence_penalty", 2.5),
        ("frequency_penalty", "high"),
        ("frequency_penalty", math.nan),
        ("repetition_penalty", 0),
        ("logit_bias", [1]),
        ("logit_bias", {"8": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"ab": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": 1, "01": 2}),
        ("logit_bias", {"0" * 19 + "99": 1}),
        ("stop", [1]),
    ],
)
def test_what_is_not_obeyed_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read({"prompt": "x", name: value})
    assert name in str(refused.value)


def test_a_wrong_spelling_is_told_the_right_one() -> None:
    with pytest.raises(InvalidRequest, match=r"temprature is no option .*did you mean temperature\?"):
        read({"temprature": 1})


def test_null_and_defaults_are_accepted() -> None:
    plain = read({"prompt": "x"})
    names = (*completion_options.OBEYED, *completion_options.WITHOUT_EFFECT, *completion_options.ONLY_PLAIN, "else")
    assert read(dict.fromkeys(names)) == plain
    assert read(completion_options.ONLY_PLAIN) == plain
    defaults = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0}
    defaults |= {"repetition_penalty": 1, "logit_bias": {}, "stream": False, "n": 1.0, "user": "me", "model": "chat"}
    assert read(defaults) == plain and not plain.adjusts


def test_scores_are_adjusted_by_the_formulas_of_openai_and_vllm() -> None:
    body = {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 2,
        "logit_bias": {"1": 3, "6": -9},
    }
    adjustment = Adjustment(read(body), [0, 2], VOCABULARY, torch.device("cpu"))
    for token in (1, 3, 3):
        adjustment.drew(token)
    scores = torch.tensor([1.0, -4.0, -1.0, 2.0, 1.5, 0.0, 1.0, -2.0])
    # 0 and 2 are in the prompt; 1 was drawn once, its bias makes it -1; 3 was drawn twice
    expected = [0.5, -1.0 * 2 - 0.25 - 0.5, -2.0, 2.0 / 2 - 2 * 0.25 - 0.5, 1.5, 0.0, -8.0, -2.0]
    assert adjustment.of(scores).tolist() == expected
    assert Sampling(presence_penalty=0.1).adjusts and Sampling(logit_bias=((1, 0.0),)).adjusts


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"min_p": 0.5}, {0, 1}),
        ({"min_p": 0.6}, {0}),
        ({"top_p": 0}, {0}),
        ({"top_p": 0.5}, {0}),  # which has exactly that much
        ({"top_p": 0.51}, {0, 1}),
        ({"top_k": 2, "top_p": 0.6}, {0}),  # two thirds of what the first two have
        ({"temperature": 1e-40}, {0}),
    ],
)
def test_only_the_likeliest_are_drawn(options: dict[str, Any], drawn: set[int]) -> None:
    scores, generator = torch.tensor([0.5, 0.25, 0.125, 0.125]).log(), torch.Generator().manual_seed(0)
    assert {draw(scores, read(options), generator) for _ in range(200)} == drawn


@pytest.mark.parametrize(
    ("asked", "prompt", "positions", "problem"),
    [
        (5000, 3, 9000, "from 1 to 4096, which is the most for one request"),
        (4096, 3, 4096, "to 4093, because the model reads and says at most 4096 tokens in all, and the prompt has 3"),
        (0, 3, 9000, "max_tokens is 0; expected a whole number from 1"),
    ],
)
def test_more_tokens_than_there_can_be_are_refused_with_what_limits_them(
    asked: int, prompt: int, positions: int, problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        completion_options.length({"max_tokens": asked}, prompt, positions)


def test_without_a_number_the_answer_is_as_long_as_the_model_has_room() -> None:
    assert completion_options.length({}, 3, 4096) == completion_options.DEFAULT_TOKENS
    assert completion_options.length({}, 4090, 4096) == 6
    assert completion_options.length({"max_tokens": 4093}, 3, 4096) == 4093


def test_a_number_that_came_as_text_is_named_as_text() -> None:
    with pytest.raises(InvalidRequest, match='^top_k is "5", a text; expected a whole number from -1 to'):
        read({"top_k": "5"})


@pytest.mark.parametrize(("value", "name"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_numbers_that_json_does_not_have_are_named_with_their_place(value: float, name: str) -> None:
    with pytest.raises(ValueError) as refused:
        as_json({"outputs": {"y": [1.0, (2, value)]}})
    assert f"outputs['y'][1][1] is {name}, which JSON cannot hold" in str(refused.value)
    assert json.loads(as_json({"outputs": {"y": [1.0, (2, None)]}})) == {"outputs": {"y": [1.0, [2, None]]}}
