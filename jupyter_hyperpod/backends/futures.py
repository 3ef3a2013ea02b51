"""Helpers for the futures that backends return: an answer known at once, and one that only reports success."""

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


def converted(order: Future[Any], convert: Any) -> Future[Any]:
    """The answer to ``order`` as ``convert`` makes it; its refusal as it is."""
    future: Future[Any] = Future()

    def tell(done: Future[Any]) -> None:
        if error := done.exception():
            future.set_exception(error)
        else:
            future.set_result(convert(done.result()))

    order.add_done_callback(tell)
    return future
