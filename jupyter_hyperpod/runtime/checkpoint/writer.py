"""Writes one checkpoint in a background thread while training continues.

Every rank of a replica writes its part to its own file. The leader (shard 0) creates the draft, and commits it once all
ranks have reported their parts. The ranks exchange these reports between steps, see `manager`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...core.errors import HyperpodError
from .store import CheckpointManifest, Directory, Files

WAIT_S = 0.01


@dataclass(frozen=True, slots=True)
class Order:
    """The order to write: ``session`` identifies the session, ``keep`` is how many checkpoints stay."""

    token: str
    step: int
    session: Mapping[str, Any]
    keep: int


@dataclass(frozen=True, slots=True)
class Holding:
    """This rank's part: shard ``shard`` of ``shards``."""

    skeleton: Any
    tensors: Sequence[torch.Tensor]
    shard: int = 0
    shards: int = 1


class Writing(threading.Thread):
    """A rank's part of one checkpoint. ``manifest`` and ``path``: on the leader, after the commit."""

    def __init__(self, directory: Directory, order: Order, holding: Holding, began_s: float) -> None:
        """``began_s``: when training stopped for the copy (monotonic clock); it continues now."""
        super().__init__(name=f"checkpoint-{order.step}", daemon=True)
        self.order = order
        self.paused_s = time.monotonic() - began_s
        self.took_s = 0.0
        self.path = ""
        self.manifest: CheckpointManifest | None = None
        self.cancelled = threading.Event()
        self._error = ""
        self._directory = directory
        self._holding = holding
        self._began_s = began_s
        self._parts: dict[int, tuple[Any, Files]] = {}
        self._told = False

    def report(self) -> dict[str, Any]:
        """This rank's progress, as JSON; its written files are reported once."""
        alive = self.is_alive()  # read first: a thread that has ended has set its result
        part = None
        if not self._told and self._holding.shard and self._holding.shard in self._parts:
            self._told, part = True, list(self._parts[self._holding.shard])
        return {"alive": alive, "error": self._error, "part": part, "committed": self.manifest is not None}

    def hear(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Take the progress of all ranks, by shard. If one has failed, all stop."""
        for shard, report in enumerate(reports):
            if report["part"] is not None:
                skeleton, files = report["part"]
                self._parts[shard] = (skeleton, {name: (size, sha) for name, (size, sha) in files.items()})
            if report["error"]:
                self.cancelled.set()

    def run(self) -> None:
        """Write the part; the leader commits, and removes older checkpoints."""
        try:
            with suppress(_GivenUp):
                self._write_part()
        except OSError as error:
            self._error = f"{error.strerror or error} ({error.filename or self._directory.path})"
        except (HyperpodError, RuntimeError, ValueError) as error:
            self._error = str(error)

    def _write_part(self) -> None:
        if self._holding.shard:
            self._follow()
        else:
            self._lead()
            self._directory.prune(self.order.keep)

    def _lead(self) -> None:
        draft = self._directory.draft(self.order.token)
        try:
            self._write(draft.path)
            while len(self._parts) < self._holding.shards:
                self._go_on()
                time.sleep(WAIT_S)
            skeletons, written = zip(*(part for _, part in sorted(self._parts.items())), strict=True)
            files = {name: about for part in written for name, about in part.items()}
            manifest = CheckpointManifest(self.order.step, self.order.token, self.order.session, skeletons, files)
            self.path = str(self._directory.commit(draft, manifest))
        except BaseException:
            self._directory.discard(draft)
            raise
        self.took_s = time.monotonic() - self._began_s
        self.manifest = manifest

    def _follow(self) -> None:
        path = self._directory.drafted(self.order.token)
        while not path.is_dir():
            self._go_on()
            time.sleep(WAIT_S)
        self._write(path)

    def _write(self, path: Path) -> None:
        from . import dcp  # half a second to import: only whoever needs it pays, on first use

        holding = self._holding
        tensors = dict(zip(names(holding.skeleton), holding.tensors, strict=True))
        files = dcp.save(path / file_of(holding.shard, holding.shards), tensors, self._go_on)
        self._parts[holding.shard] = (holding.skeleton, files)

    def _go_on(self) -> None:
        if self.cancelled.is_set():
            raise _GivenUp


class _GivenUp(Exception):
    """This checkpoint is not needed any more."""


def file_of(shard: int, shards: int) -> str:
    """The file of a shard's tensors, named like other sharded safetensors files."""
    return "state.safetensors" if shards == 1 else f"state-{shard + 1:05d}-of-{shards:05d}.safetensors"


def names(skeleton: Any) -> list[str]:
    """A name for every tensor of a packed state, in order: its path, such as ``model.0.weight``."""
    found: dict[str, None] = {}

    def walk(part: Any, path: str) -> Iterator[str]:
        ((kind, content),) = part.items()
        if kind in "ts":
            yield path
        elif kind == "d":
            for key, item in content:
                yield from walk(item, f"{path}.{key}" if path else str(key))
        elif kind in "lu":
            for index, item in enumerate(content):
                yield from walk(item, f"{path}.{index}")

    for name in walk(skeleton, ""):
        while name in found:
            name += "'"
        found[name] = None
    return list(found)
