"""The models that a replica serves: the project's decoder, or a handler with ``load`` and ``predict``."""

from __future__ import annotations

import codecs
import hashlib
import json
import linecache
import math
import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from ..core.errors import LoaderError, SpecError
from ..core.spec import MODEL_VARIABLE
from ..loader.model import load_model
from ..loader.read.sources import Opener
from ..mounts import remote
from ..mounts.table import known_mounts, resolve_url
from ..recipes import catalogue
from ..recipes.config import DecoderConfig, RopeScaling
from ..recipes.decoder import Decoder
from . import completion_options, model_identity
from .completion_options import InvalidRequest
from .context import Site
from .generate import Sampling, check_prompt, generate

CONFIG = "config.json"
CONFIG_LIMIT_BYTES = 1 << 20
BYTES = 256  # a decoder with fewer entries in its vocabulary cannot read bytes
Report = Callable[[int, int], None]
Enter = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A request in a replica. ``created`` and ``request_id`` come from the gateway, so that a repeated request gets
    the same answer."""

    body: Mapping[str, Any]
    request_id: str
    created: int

    @property
    def streamed(self) -> bool:
        """Whether the client wants the answer in pieces."""
        return self.body.get("stream") is True


class Served(Protocol):
    """``path``: its HTTP path; ``identity``: which model it is (`model_identity`); ``answer`` yields the pieces of an
    answer, each of which may take long.
    """

    path: str
    identity: str

    def answer(self, task: Task) -> Iterator[dict[str, Any]]: ...

    def whole(self, pieces: list[dict[str, Any]]) -> dict[str, Any]: ...


def load(site: Site, report: Report, enter: Enter) -> Served:
    """Load the deployment's model; ``report(bytes_done, bytes_total)`` is called meanwhile.

    ``enter("loading")`` and ``enter("loaded")`` are called when the first weights arrive, and when all have arrived.

    Raises SpecError for a model that cannot be served, LoaderError for one that cannot be loaded, and a handler's own
    errors.
    """
    mounts = known_mounts()
    url = resolve_url(os.environ.get(MODEL_VARIABLE, site.serve.model), mounts)
    os.environ.update(remote.environment(url, mounts.specs))  # this process reads no other model
    if site.serve.task == "predict":
        enter("loading")
        handler = PythonModel(site.cell, site.spec.filename, url)
        enter("loaded")
        return handler
    config = _config(url, site.serve.recipe)
    with torch.device("meta"), _Unfilled():
        model = Decoder(config)
    enter("loading")
    tensors = load_model(url, progress=lambda done: report(done.bytes_done, done.bytes_total))
    enter("loaded")
    _check(tensors, model)
    model.load_state_dict(tensors, assign=True)
    return Completions(model.requires_grad_(False).eval(), site.spec.name, model_identity.of_tensors(tensors))


class _Unfilled(TorchFunctionMode):
    """Skips initialization, which on the meta device would take longer than loading a gigabyte."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _config(url: str, recipe: str) -> DecoderConfig:
    if recipe:
        return catalogue.load(recipe).config
    folder = url.rpartition("/")[0] if url.endswith((".safetensors", ".json")) else url.rstrip("/")
    place = f"{folder}/{CONFIG}"
    try:
        with closing(Opener()) as opener:
            return config_from_json(json.loads(opener.read(place, CONFIG_LIMIT_BYTES)[1]))
    except (LoaderError, ValueError, TypeError) as error:
        raise SpecError(
            f"the shape of the decoder cannot be read from {place}: {error}; expected the fields of DecoderConfig, "
            "or choose one with --recipe NAME, or serve another model with --handler FILE.py"
        ) from error


def config_from_json(record: Mapping[str, Any]) -> DecoderConfig:
    """Read ``config.json`` beside a decoder's weights: `DecoderConfig` as JSON. Raises TypeError or ValueError."""
    scaling = record.get("rope_scaling")
    return DecoderConfig(**{**record, "rope_scaling": RopeScaling(**scaling) if scaling else None})


def _check(tensors: Mapping[str, torch.Tensor], model: Decoder) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found == wanted:
        return
    name = min(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    raise SpecError(
        f"the weights are not those of the decoder: {name} is {found.get(name, 'missing')}, expected "
        f"{wanted.get(name, 'no such tensor')} from its configuration"
    )


class Completions:
    """OpenAI's ``/v1/completions`` for the decoder. A prompt is text, read as UTF-8 bytes, or a list of token ids."""

    path = "/v1/completions"

    def __init__(self, model: Decoder, name: str, identity: str = "") -> None:
        self._model, self._name, self.identity = model, name, identity

    def answer(self, task: Task) -> Iterator[dict[str, Any]]:
        """Yield one piece per token; the last one has a ``finish_reason``. Raises InvalidRequest."""
        return self._generate(task, *self._read(task))

    def whole(self, pieces: list[dict[str, Any]]) -> dict[str, Any]:
        """All pieces as one answer."""
        choices = [piece["choices"][0] for piece in pieces]
        text, tokens = "".join(c["text"] for c in choices), [t for c in choices for t in c["token_ids"]]
        choice = choices[-1] | {"text": text, "token_ids": tokens}
        return pieces[-1] | {"choices": [choice]}

    def _read(self, task: Task) -> tuple[list[int], int, Sampling, list[str]]:
        body = task.body
        completion_options.check_known(body)
        completion_options.wants_usage(body)
        prompt, vocabulary = body.get("prompt"), self._model.config.vocab_size
        if isinstance(prompt, str):
            if vocabulary < BYTES:
                raise InvalidRequest(
                    f"this model knows {vocabulary} tokens, not all bytes; send the prompt as token ids"
                )
            prompt = list(prompt.encode())
        if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
            raise InvalidRequest("prompt must be text or a list of token ids")
        if problem := check_prompt(self._model.config, prompt):
            raise InvalidRequest(problem)
        most = completion_options.length(body, len(prompt), self._model.config.max_position_embeddings)
        sampling = completion_options.sampling(body, vocabulary, _seed(task.request_id))
        return prompt, most, sampling, completion_options.stops(body)

    def _generate(
        self, task: Task, prompt: list[int], most: int, sampling: Sampling, stops: list[str]
    ) -> Iterator[dict[str, Any]]:
        text, spoken = codecs.getincrementaldecoder("utf-8")("replace"), Until(stops)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": 0, "total_tokens": len(prompt)}
        apart = completion_options.wants_usage(task.body)
        for count, token in enumerate(generate(self._model, prompt, most, sampling), 1):
            last = count == most
            said = spoken.say(text.decode(bytes([token]) if token < BYTES else b"", last), last)
            reason = "stop" if spoken.stopped else "length" if last else None
            usage = usage | {"completion_tokens": count, "total_tokens": len(prompt) + count}
            choice = {"text": said, "token_ids": [token], "index": 0, "logprobs": None, "finish_reason": reason}
            facts = {"id": f"cmpl-{task.request_id}", "object": "text_completion", "created": task.created}
            facts |= {"model": self._name}
            yield facts | {"choices": [choice]} | ({"usage": None} if apart else {"usage": usage} if reason else {})
            if reason:
                if apart:
                    yield facts | {"choices": [], "usage": usage}
                return


class Until:
    """Cuts text at the first of some stops, piece by piece. It holds back a possible beginning of a stop."""

    def __init__(self, stops: list[str]) -> None:
        self._stops, self._held, self.stopped = stops, "", False

    def say(self, text: str, last: bool) -> str:
        """Add `text` and return the text that is safe to send now."""
        held = self._held + text
        ends = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return held[: min(ends)]
        keep = 0 if last else max((self._begun(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    @staticmethod
    def _begun(text: str, stop: str) -> int:
        return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


class PythonModel:
    """A Python file with ``load(model)`` and ``predict(model, inputs)``, served at ``/predict``.

    ``source`` and ``filename`` are the file's content and path when it was deployed.
    """

    path = "/predict"

    def __init__(self, source: Path, filename: str, url: str) -> None:
        module = types.ModuleType("handler")
        module.__file__ = filename
        sys.modules[module.__name__] = module  # dataclasses look up their module here
        code = source.read_text(encoding="utf-8")
        # tracebacks, inspect.getsource and torch.jit.script read the source there
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        exec(compile(code, filename, "exec", dont_inherit=True), module.__dict__)
        for name in ("load", "predict"):
            if not callable(getattr(module, name, None)):
                raise SpecError(f"the handler has no function {name}; expected load(model) and predict(model, inputs)")
        self._predict = module.predict
        self._model, self.identity = model_identity.around(url, lambda: module.load(url))

    def answer(self, task: Task) -> Iterator[dict[str, Any]]:
        """Yield the one answer. Raises InvalidRequest."""
        if "inputs" not in task.body:
            raise InvalidRequest('a request is {"inputs": …}; it has no inputs')
        return self._once(task)

    def _once(self, task: Task) -> Iterator[dict[str, Any]]:
        yield {"outputs": _plain(self._predict(self._model, task.body["inputs"]))}

    def whole(self, pieces: list[dict[str, Any]]) -> dict[str, Any]:
        return pieces[0]


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists, at any depth."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def as_json(answer: Mapping[str, Any]) -> str:
    """An answer as JSON, in ASCII. Raises ValueError, which names the place, for a number that JSON does not have."""
    try:
        return json.dumps(answer, allow_nan=False)
    except ValueError:
        found = next(_not_finite(answer, ""), None)
        if found is None:
            raise
    place, value = found
    name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    raise ValueError(f"{place} is {name}, which JSON cannot hold; return None, or a text, in its place")


def _not_finite(value: Any, place: str) -> Iterator[tuple[str, float]]:
    """Where there are numbers that JSON does not have: ``outputs['y'][3]``."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _not_finite(item, f"{place}[{key!r}]" if place else str(key))
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            yield from _not_finite(item, f"{place}[{at}]")


def _seed(request_id: str) -> int:
    """A seed from the request's id, so that another replica gives the same answer to the same request."""
    return int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:7])


def new_task(content: bytes, request_id: str, created: str | None) -> Task:
    """Read a request. Raises InvalidRequest where it is not a JSON object."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f"the request is a {type(body).__name__}; expected a JSON object")
    return Task(body, request_id, int(created) if created and created.isdecimal() else int(time.time()))
