"""Finds the method for each message: `handles` marks a method, `handlers` collects the marked ones of some objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .codec import Message

F = TypeVar("F", bound=Callable[..., Any])


def handles(kind: type[Message]) -> Callable[[F], F]:
    """Mark a method as the one that acts upon messages of ``kind``; the message is its last argument."""

    def marked(method: F) -> F:
        method.handled = kind  # type: ignore[attr-defined]
        return method

    return marked


def handled_by(*parts: type[Any]) -> list[type[Message]]:
    """The messages that methods of these classes handle, one entry per method."""
    methods = [getattr(part, name) for part in parts for name in dir(part)]
    return [method.handled for method in methods if hasattr(method, "handled")]


def handlers(*parts: object) -> dict[type[Message], Callable[..., Any]]:
    """The handler of every message that one of ``parts`` handles. No message may have two."""
    found: dict[type[Message], Callable[..., Any]] = {}
    for part in parts:
        for name in dir(type(part)):
            if (kind := getattr(getattr(type(part), name), "handled", None)) is not None:
                assert kind not in found, f"{kind.__name__} has two handlers"
                found[kind] = getattr(part, name)
    return found
