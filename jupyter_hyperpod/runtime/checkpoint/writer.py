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
class StateCopy:
    """What one rank, ``shard`` of ``shards``, writes: its copy of the state after ``step``.

    ``session`` identifies the session, ``keep`` is how many checkpoints stay.
    """

    token: str
    step: int
    session: Mapping[str, Any]
    keep: int
    skeleton: Any
    tensors: Sequence[torch.Tensor]
    shard: int
    shards: int


class CheckpointWriter(threading.Thread):
    """Writes a rank's part of one checkpoint. ``manifest`` and ``path``: on the leader, after the commit."""

    def __init__(self, directory: Directory, copy: StateCopy, began_s: float) -> None:
        """``began_s``: when training stopped for the copy (monotonic clock); it continues now."""
        super().__init__(name=f"checkpoint-{copy.step}", daemon=True)
        self.copy = copy
        self.paused_s = time.monotonic() - began_s
        self.took_s = 0.0
        self.path = ""
        self.manifest: CheckpointManifest | None = None
        self.cancelled = threading.Event()
        self._error = ""
        self._directory = directory
        self._began_s = began_s
        self._parts: dict[int, tuple[Any, Files]] = {}
        self._reported = False

    def report(self) -> dict[str, Any]:
        """This rank's progress, as JSON; its written files are reported until `update` shows that all have them."""
        alive = self.is_alive()  # read first: a thread that has ended has set its result
        shard = self.copy.shard
        part = list(self._parts[shard]) if shard and shard in self._parts and not self._reported else None
        return {"alive": alive, "error": self._error, "part": part, "committed": self.manifest is not None}

    def update(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Take the reports of all ranks, by shard. If one has failed, all stop."""
        for shard, report in enumerate(reports):
            if report["part"] is not None:
                self._reported = self._reported or shard == self.copy.shard
                skeleton, files = report["part"]
                self._parts[shard] = (skeleton, {name: (size, sha) for name, (size, sha) in files.items()})
            if report["error"]:
                self.cancelled.set()

    def run(self) -> None:
        """Write the part; the leader commits, and removes older checkpoints."""
        try:
            with suppress(_Cancelled):
                self._write_part()
        except OSError as error:
            self._error = f"{error.strerror or error} ({error.filename or self._directory.path})"
        except (HyperpodError, RuntimeError, ValueError) as error:
            self._error = str(error)

    def _write_part(self) -> None:
        if self.copy.shard:
            self._follow()
        else:
            self._lead()
            self._directory.prune(self.copy.keep)

    def _lead(self) -> None:
        copy = self.copy
        draft = self._directory.draft(copy.token)
        try:
            self._write(draft.path)
            while len(self._parts) < copy.shards:
                self._check_cancelled()
                time.sleep(WAIT_S)
            skeletons, written = zip(*(part for _, part in sorted(self._parts.items())), strict=True)
            files = {name: about for part in written for name, about in part.items()}
            manifest = CheckpointManifest(copy.step, copy.token, copy.session, skeletons, files)
            self.path = str(self._directory.commit(draft, manifest))
        except BaseException:
            self._directory.discard(draft)
            raise
        self.took_s = time.monotonic() - self._began_s
        self.manifest = manifest

    def _follow(self) -> None:
        path = self._directory.drafted(self.copy.token)
        while not path.is_dir():
            self._check_cancelled()
            time.sleep(WAIT_S)
        self._write(path)

    def _write(self, path: Path) -> None:
        from . import dcp  # half a second to import, so only on first use

        copy = self.copy
        tensors = dict(zip(names(copy.skeleton), copy.tensors, strict=True))
        files = dcp.save(path / file_of(copy.shard, copy.shards), tensors, self._check_cancelled)
        self._parts[copy.shard] = (copy.skeleton, files)

    def _check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise _Cancelled


class _Cancelled(Exception):
    """This checkpoint is not needed any more."""


def file_of(shard: int, shards: int) -> str:
    """The file of a shard's tensors, named like other sharded safetensors files."""
    return "state.safetensors" if shards == 1 else f"state-{shard + 1:05d}-of-{shards:05d}.safetensors"


def names(skeleton: Any) -> list[str]:
    """A name for every tensor of a packed state, in order: its path, such as ``model.0.weight``."""
    found: dict[str, None] = {}

    def walk(part: Any, path: str) -> Iterator[str]:
        ((kind, content),) = part.items()
        if kind in "tsn":
            yield path
        elif kind == "d":
            for key, item in content:
                yield from walk(item, f"{path}.{key}" if path else str(key))
        elif kind in "luqef":
            for index, item in enumerate(content[1] if kind == "q" else content):
                yield from walk(item, f"{path}.{index}")

    for name in walk(skeleton, ""):
        while name in found:
            name += "'"
        found[name] = None
    return list(found)
