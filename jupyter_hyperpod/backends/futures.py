"""Futures of answers that a backend knows at once."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def settled(value: T) -> Future[T]:
    """An answer that is known already."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def refused(error: Exception) -> Future[Any]:
    """A refusal that is known already."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
