"""Lets tensor-parallel ranks of one host read whole rows once, and each copy its own columns.

The pieces of a column are all over a tensor. Requesting each takes many thousands of requests per model; reading all
rows on every rank multiplies the bytes. So the rows are cut into blocks. Each rank reads its share of the blocks into a
memory file that all ranks map, and copies its own columns from every block. The file vanishes when the last rank has
finished.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from ...core.errors import StoreError
from ..read import pace
from ..read.http_connection import Cancel
from ..read.model_files import Files
from ..read.plan import BLOCK_BYTES, Chunk, LoadPlan
from .board import Board
from .discovery import HERE, Notice, attach_or_create, name_of
from .shared_buffer import SharedBuffer


class Exchange:
    """The blocks of one model, for one rank. Thread-safe."""

    def __init__(self, directory: Path, files: Files, load_plan: LoadPlan, node: str | None) -> None:
        """``node``: only its ranks share; None: all ranks of this host.

        Raises MemoryError, StoreError, and OSError where ranks cannot reach each other.
        """
        self._sources = files.sources
        self._rank, self._size = load_plan.tp
        blocks = sorted({chunk.block for chunk in load_plan.chunks if chunk.across is not None})
        self._numbers = {block: number for number, block in enumerate(blocks)}
        self._taken_since: dict[int, float] = {}
        self._settled: set[int] = set()
        self._board = Board(directory / f"rows-{name_of(files, self._size, blocks)}")
        with self._board.locked():
            size = len(blocks) * BLOCK_BYTES
            self._buffer: SharedBuffer | None = attach_or_create(self._board, len(blocks), (size,), node)
            notice = Notice(self._buffer.place, node or "")
            self._name = notice.name
            self._board.put(self._name, notice.encode())

    def take(self, chunk: Chunk, view: memoryview, late: bool, cancel: Cancel) -> bool:
        """Fill `view` with this rank's columns; False while another rank, unless `late`, has to read the rows."""
        buffer = self._buffer
        number = self._numbers[chunk.block]
        if buffer is None or not (buffer.seconds[number] or self._bring(buffer, number, chunk, late, cancel)):
            return False
        rows = np.frombuffer(buffer.view(0, number * BLOCK_BYTES, chunk.rows * chunk.stride), np.uint8)
        across = chunk.across or 0
        mine = rows.reshape(chunk.rows, chunk.stride)[:, across : across + chunk.length]
        np.copyto(np.frombuffer(view, np.uint8).reshape(chunk.rows, chunk.length), mine)
        buffer.written(0, number * BLOCK_BYTES, len(rows))
        return True

    def settle(self, chunk: Chunk) -> None:
        """This rank has its columns of a block, perhaps from another host, and will not read its rows."""
        self._settled.add(self._numbers[chunk.block])

    def close(self) -> None:
        """Release the memory; nothing more is taken."""
        self._board.leave(self._name, HERE)
        self._buffer = None

    def _bring(self, buffer: SharedBuffer, number: int, chunk: Chunk, late: bool, cancel: Cancel) -> bool:
        """Read a block that is this rank's, or that another rank should have read by now."""
        if number % self._size != self._rank and not (late and self._done(buffer)):
            return False
        again = False
        if not buffer.claim(number):
            since_s = self._taken_since.setdefault(number, time.monotonic())
            again = pace.should_hedge(time.monotonic() - since_s, buffer.usual_s() or since_s)
            if not again or not buffer.claim(number, again=True):
                return False
        try:
            if not buffer.seconds[number]:
                began_s = time.monotonic()
                file, begin, length = chunk.block
                buffer.reserve(0, number * BLOCK_BYTES, length)
                self._sources[file].read_into(begin, buffer.view(0, number * BLOCK_BYTES, length), cancel)
                buffer.arrived(number, began_s)
        finally:
            buffer.release(number, again)
        return True

    def _done(self, buffer: SharedBuffer) -> bool:
        """Whether this rank has read its whole share."""
        mine = range(self._rank, len(self._numbers), self._size)
        return all(buffer.seconds[number] or number in self._settled for number in mine)


def exchange_of(directory: Path, files: Files, load_plan: LoadPlan, node: str | None) -> Exchange | None:
    """Return the exchange, None where there is nothing to exchange or ranks cannot reach each other."""
    if load_plan.tp[1] > 1 and any(chunk.across is not None for chunk in load_plan.chunks):
        with suppress(OSError, StoreError):
            return Exchange(directory, files, load_plan, node)
    return None
