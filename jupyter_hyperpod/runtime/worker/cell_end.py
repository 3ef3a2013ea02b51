"""What is done when a cell ends, well or by an error: sessions end that the cell has not opened in a with block."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

End = Callable[[BaseException | None], None]
_waiting: list[End] = []


def at_end(function: End) -> None:
    """Call ``function(error)`` when the cell ends; outside a job, when the process does."""
    if not _waiting:
        atexit.register(_at_exit)
    _waiting.append(function)


def run(error: BaseException | None) -> None:
    """The cell has ended, by ``error`` if there is one."""
    while _waiting:
        _waiting.pop()(error)


@contextmanager
def ending() -> Iterator[None]:
    """Around a cell."""
    try:
        yield
    except BaseException as error:
        run(None if isinstance(error, SystemExit) and error.code in (None, 0) else error)
        raise
    run(None)


def _at_exit() -> None:
    with suppress(Exception):
        run(None)
