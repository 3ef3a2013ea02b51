"""One thread that computes: requests take turns, a piece each, so that a long one does not hold up the short ones."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_END = object()


class _Work:
    def __init__(self, pieces: Iterator[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.pieces = pieces
        self.loop = loop
        self.out: asyncio.Queue[Any] = asyncio.Queue()
        self.left = False

    def put(self, piece: Any) -> None:
        """Hand a piece to whoever waits for it; it may have gone, and its loop with it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.out.put_nowait, piece)


class Engine:
    """Runs iterators in a thread of its own."""

    def __init__(self) -> None:
        self._ready: deque[_Work] = deque()
        self._wake = threading.Condition()
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    async def run(self, pieces: Iterator[Any]) -> AsyncIterator[Any]:
        """Yield what `pieces` yields, computed in the thread; leaving early ends it. Raises what it raises."""
        work = _Work(pieces, asyncio.get_running_loop())
        with self._wake:
            self._ready.append(work)
            self._wake.notify()
        try:
            while (piece := await work.out.get()) is not _END:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            work.left = True

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._ready:
                    self._wake.wait()
                work = self._ready.popleft()
            if not work.left and self._turn(work):
                with self._wake:
                    self._ready.append(work)

    def _turn(self, work: _Work) -> bool:
        """Compute one piece; False where that was the last."""
        try:
            work.put(next(work.pieces))
        except StopIteration:
            work.put(_END)
            return False
        except BaseException as error:  # this thread goes on, whatever a model raises
            work.put(_told(error))
            return False
        return True


async def aside(work: Callable[[], T]) -> T:
    """Return what ``work()`` returns, computed in a daemon thread: unlike an executor's, nobody waits for its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(act: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            act(value)

    def run() -> None:
        try:
            settled: tuple[Callable[[Any], None], Any] = done.set_result, work()
        except BaseException as error:
            settled = done.set_exception, _told(error)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, *settled)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await done


def _told(error: BaseException) -> Exception:
    """An error that can be raised where others are served too: sys.exit() in a model's code ends no server."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told
