"""Checks clients' messages against the OpenAPI file that documents them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from ..core.errors import SpecError

try:  # libyaml, where PyYAML was built with it, takes a tenth of the time at the start of a server
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader

_NUMBER = re.compile("0|[1-9][0-9]{0,14}")
# what is written into a file, and may hold any character that UTF-8 has: operation -> field
CONTENTS = {"saveContents": "content"}


class Contract:
    """The schemas of one OpenAPI 3.1 file, which is read for the first check: a server starts without it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = yaml.load(self._path.read_text(encoding="utf-8"), SafeLoader)
        return document

    @cached_property
    def _operations(self) -> dict[str, dict[str, Any]]:
        found = [one for item in self._document["paths"].values() for one in item.values() if isinstance(one, dict)]
        return {one["operationId"]: one for one in found if "operationId" in one}

    @cached_property
    def _bodies(self) -> dict[str, Draft202012Validator]:
        return {
            name: self._validator(operation["requestBody"]["content"]["application/json"]["schema"])
            for name, operation in self._operations.items()
            if "requestBody" in operation
        }

    @cached_property
    def _queries(self) -> dict[str, Draft202012Validator]:
        asked = {name: one["parameters"] for name, one in self._operations.items() if "parameters" in one}
        return {name: self._query(parameters) for name, parameters in asked.items()}

    @cached_property
    def _messages(self) -> dict[str, Draft202012Validator]:
        kinds = ("subscribe", "unsubscribe")
        return {kind: self._validator({"$ref": f"#/components/schemas/{kind.title()}"}) for kind in kinds}

    def _validator(self, schema: dict[str, Any]) -> Draft202012Validator:
        return Draft202012Validator(schema | {"components": self._document["components"]})

    def _query(self, parameters: list[dict[str, Any]]) -> Draft202012Validator:
        """The parameters of an operation as one object."""
        asked = [one for one in parameters if one["in"] == "query"]
        required = [one["name"] for one in asked if one.get("required")]
        properties = {one["name"]: one["schema"] for one in asked}
        return self._validator({"type": "object", "properties": properties, "required": required})

    def check_query(self, operation: str, given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Return the parameters of an operation, with their defaults, if they match its schemas; raises SpecError.

        ``given``: every text of each parameter; unknown ones are left out.
        """
        validator, found = self._queries[operation], {}
        for name, schema in validator.schema["properties"].items():
            if texts := given.get(name):
                found[name] = list(texts) if schema.get("type") == "array" else _typed(name, texts[-1], schema)
            elif "default" in schema:
                found[name] = schema["default"]
        return _checked(validator, found, "the query")

    def check_body(self, operation: str, body: Any) -> dict[str, Any]:
        """Return the body of an operation if it matches its schema; raises SpecError."""
        return _checked(self._bodies[operation], body, "the body", CONTENTS.get(operation))

    def check_message(self, message: Any) -> dict[str, Any]:
        """Return a client's websocket message if it matches its schema; raises SpecError."""
        kind = message.get("type") if isinstance(message, dict) else None
        if not isinstance(kind, str) or kind not in self._messages:
            raise SpecError(f"message type {str(kind)[:80]!r} is unknown; expected {' or '.join(self._messages)}")
        return _checked(self._messages[kind], message, "the message")


def _typed(name: str, text: str, schema: dict[str, Any]) -> str | int:
    """A parameter's text as what its schema wants. Raises SpecError for what is no number there."""
    if schema.get("type") != "integer":
        return text
    least, most = schema["minimum"], schema["maximum"]
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise SpecError(f"{name} is {text[:80]!r}; expected a number from {least} to {most}")
    return int(text)


def _checked(validator: Draft202012Validator, value: Any, what: str, contents: str | None = None) -> dict[str, Any]:
    error = next(validator.iter_errors(value), None)
    if error is not None:
        where = ".".join(str(part) for part in error.absolute_path)
        raise SpecError(f"{where or what}: {error.message[:300]}")
    for where, text in _texts(value, ""):
        if found := _unsayable(text, nul=where.partition(".")[0] == contents):
            raise SpecError(
                f"{where or what} holds the character U+{ord(found):04X}; expected text without NUL characters "
                "and without unpaired surrogates; remove it"
            )
    checked: dict[str, Any] = value
    return checked


def _unsayable(text: str, nul: bool) -> str:
    """The character of a text that UTF-8 has not: half of a pair of surrogates; or a NUL, which no path and no argument
    can hold, unless ``nul``. "" where there is none."""
    if not nul and "\0" in text:
        return "\0"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return text[error.start]
    return ""


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, keys included, with its place."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield where, key
            yield from _texts(item, f"{where}.{key}".lstrip("."))
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            yield from _texts(item, f"{where}.{index}".lstrip("."))
