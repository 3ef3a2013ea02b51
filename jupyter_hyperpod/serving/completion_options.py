"""Reads the options of a request for a completion.

What the project's decoder cannot do is refused: an option that is ignored gives another answer than was asked for. The
names, defaults and formulas are OpenAI's, and vLLM's for options that OpenAI does not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..core.errors import UserError
from ..core.options import near_matches
from .context import SHOWN, shown
from .generate import Sampling

OBEYED = (
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stream",
    "stream_options",
)
# they change no token: who asks, and for whom. The decoder knows no token that ends a text, so it never ends at one.
WITHOUT_EFFECT = ("model", "user", "metadata", "store", "safety_identifier", "service_tier", "ignore_eos")
# what a client may say because it is the default; anything else would need what this endpoint does not have
ONLY_PLAIN: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "logprobs": False,
    "top_logprobs": 0,
    "prompt_logprobs": False,
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "min_tokens": 0,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "bad_words": [],
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "add_special_tokens": True,
}
MAX_TOKENS, DEFAULT_TOKENS = 4096, 16
ALL_OF_THEM = -1  # vLLM's word for a top_k that leaves out nothing, as 0 is


class InvalidRequest(UserError):
    """A request that cannot be answered."""


def check_known(body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest where a request has an option that this endpoint would have to ignore.

    An option that is null counts as left out.
    """
    for name, value in body.items():
        if value is None or name in OBEYED or name in WITHOUT_EFFECT:
            continue
        if name not in ONLY_PLAIN:
            raise InvalidRequest(
                f"{name[:SHOWN]} is no option of this endpoint{near_matches(name[:SHOWN], list(OBEYED))}, and nothing "
                f"is ignored here: leave it out. It has {', '.join(OBEYED)}"
            )
        plain = ONLY_PLAIN[name]
        if value != plain or isinstance(value, bool) is not isinstance(plain, bool):
            raise InvalidRequest(
                f"{name} is {shown(value)}; this endpoint only knows {json.dumps(plain)}: leave it out, or serve the "
                "model with an engine that has this option (--engine)"
            )


def number(body: Mapping[str, Any], name: str, default: Any, low: float, high: float, kind: type = float) -> Any:
    """A number of a request, within bounds. Raises InvalidRequest."""
    value = body.get(name)
    if value is None:
        return default
    fits = isinstance(value, int) if kind is int else isinstance(value, (int, float))
    if isinstance(value, bool) or not fits or not low <= value <= high:
        what = "a whole number" if kind is int else "a number"
        text = ", a text" if isinstance(value, str) else ""
        raise InvalidRequest(f"{name} is {shown(value)}{text}; expected {what} from {low} to {high}")
    return value


def length(body: Mapping[str, Any], prompt: int, positions: int) -> int:
    """How many tokens to say at most after a prompt of so many. Raises InvalidRequest with what limits them."""
    room = positions - prompt
    most = min(room, MAX_TOKENS)
    try:
        found: int = number(body, "max_tokens", min(most, DEFAULT_TOKENS), 1, most, int)
    except InvalidRequest as error:
        why = "which is the most for one request"
        if room < MAX_TOKENS:
            why = f"because the model reads and says at most {positions} tokens in all, and the prompt has {prompt}"
        raise InvalidRequest(f"{error}, {why}") from None
    return found


def sampling(body: Mapping[str, Any], vocabulary: int, seed: int) -> Sampling:
    """How to draw the tokens; ``seed`` where the request has none. Raises InvalidRequest."""
    repetition = number(body, "repetition_penalty", 1.0, 0, 100)
    if not repetition:
        raise InvalidRequest("repetition_penalty is 0; expected a number above it, 1 for none")
    return Sampling(
        temperature=number(body, "temperature", 1.0, 0, 100),
        top_p=number(body, "top_p", 1.0, 0, 1),
        seed=number(body, "seed", seed, 0, 2**63 - 1, int),
        top_k=max(0, number(body, "top_k", 0, ALL_OF_THEM, 2**31, int)),
        min_p=number(body, "min_p", 0.0, 0, 1),
        presence_penalty=number(body, "presence_penalty", 0.0, -2, 2),
        frequency_penalty=number(body, "frequency_penalty", 0.0, -2, 2),
        repetition_penalty=repetition,
        logit_bias=_biases(body.get("logit_bias"), vocabulary),
    )


def _biases(given: Any, vocabulary: int) -> tuple[tuple[int, float], ...]:
    if given is None:
        return ()
    if not isinstance(given, dict):
        raise InvalidRequest(f"logit_bias is {shown(given)}; expected an object of token ids and numbers")
    found = {}
    for token in given:
        if not (token.isascii() and token.isdecimal() and len(token) < 20) or int(token) >= vocabulary:
            raise InvalidRequest(
                f"logit_bias names the token {token[:40]!r}; expected the id of one, 0 to {vocabulary - 1}"
            )
        if int(token) in found:
            raise InvalidRequest(f"logit_bias names the token {int(token)} twice")
        found[int(token)] = number({f"logit_bias of {token}": given[token]}, f"logit_bias of {token}", 0.0, -100, 100)
    return tuple(found.items())


def stops(body: Mapping[str, Any]) -> list[str]:
    """The texts before which the answer ends. Raises InvalidRequest."""
    stop = body.get("stop") or []
    found = [stop] if isinstance(stop, str) else stop
    if not isinstance(found, list) or not all(isinstance(text, str) and text for text in found):
        raise InvalidRequest("stop must be text or a list of texts")
    return found


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream ends with a piece that counts the tokens. Raises InvalidRequest for bad options of a stream."""
    stream, options = body.get("stream"), body.get("stream_options")
    if stream not in (None, True, False) or isinstance(stream, (int, float)) is not isinstance(stream, bool):
        raise InvalidRequest(f"stream is {shown(stream)}; expected true or false")
    if options is None:
        return False
    if not stream:
        raise InvalidRequest("stream_options belong to a stream; leave them out, or ask with stream true")
    found = options.get("include_usage") if isinstance(options, dict) else None
    more = {name: value for name, value in options.items() if value} if isinstance(options, dict) else {"": options}
    if {*more} - {"include_usage"} or found not in (None, True, False):
        raise InvalidRequest(
            f'stream_options is {shown(options)}; expected {{"include_usage": true}} or {{"include_usage": false}}'
        )
    return found is True
