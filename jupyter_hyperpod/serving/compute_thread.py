"""Computes all requests in one thread, in turns of one piece each, so that long requests do not block short ones."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
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
        """Hand a piece to the waiting request; the request and its event loop may have ended."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.out.put_nowait, piece)


class ComputeThread:
    """Runs iterators in a thread of its own."""

    def __init__(self) -> None:
        self._ready: deque[_Work] = deque()
        self._wake = threading.Condition()
        threading.Thread(target=self._run, name="compute", daemon=True).start()

    async def run(self, pieces: Iterator[Any]) -> AsyncIterator[Any]:
        """Yield the items of `pieces`, computed in the thread. Leaving early ends it; its errors are raised here."""
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
        """Compute one piece; False after the last one."""
        try:
            work.put(next(work.pieces))
        except StopIteration:
            work.put(_END)
            return False
        except BaseException as error:  # this thread continues after every error of a model
            work.put(_told(error))
            return False
        return True


async def aside(work: Callable[[], T]) -> T:
    """Return the result of ``work()``, computed in a daemon thread, which does not delay the process's exit."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # the work goes on where nothing waits for it any more

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(_told(error))

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await asyncio.wrap_future(done)


def _told(error: BaseException) -> Exception:
    """Convert an error so that sys.exit() in a model's code does not end the server."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told
