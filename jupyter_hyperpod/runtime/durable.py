"""The durable rung of one session: state is copied at a step boundary, written behind training's back, and taken up.

One member writes: rank 0 of the generation. All members hold the same bits, so it does not matter who.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..core.errors import HyperpodError, SpecError, TrainingError
from ..policy import interval
from . import replicate
from .checkpoint import Checkpoint, Directory, Manifest, Refused
from .inprocess import Group, Solo
from .state import TrainingState
from .wire import Message

WAIT_S = 0.01


class Durable:
    """Keeps the checkpoints of a session and takes them up. Without settings there are none."""

    def __init__(
        self,
        settings: Checkpoint | None,
        group: Group | Solo,
        state: TrainingState,
        session: Mapping[str, Any],
        state_bytes: int,
    ) -> None:
        """``session``: what a checkpoint must be of, to be of use. Raises SpecError for an unsafe directory."""
        self._settings = settings
        self._group = group
        self._state = state
        self._about = dict(session)
        self._state_bytes = state_bytes
        self._directory = settings.directory if settings is not None else None
        self._writing: _Writing | None = None
        self._room: list[torch.Tensor] = []
        self._refused: set[str] = set()
        self._saved: tuple[int, str] | None = None  # step and token of the newest one written or loaded here
        self._trouble = ""
        self._tidied = False
        self._began_s = self._opened_s = time.monotonic()
        self._every_s = interval.decide(0, 0.0, None, None, state_bytes).value
        self.no_later_than: int | None = None  # the newest step that may be taken up, where not just any
        if self._directory is not None:
            self._directory.check()
        group.on_interval = self._hear_interval
        group.checkpoints = self.found

    @property
    def public(self) -> dict[str, str] | None:
        """Where the checkpoints lie, as the session was told, and how often one is written."""
        if self._settings is None:
            return None
        steps, seconds = self._settings.every_steps, self._settings.every_s
        every = f"{steps} steps" if steps else f"{seconds:g} s" if seconds else interval.AUTOMATIC
        return {"path": os.fspath(self._settings.path), "every": every}

    @property
    def _session(self) -> dict[str, Any]:
        """What a checkpoint must be of: known when the session has joined its cell's sequence of sessions."""
        return {"session": self._group.session} | self._about

    # ---- writing ------------------------------------------------------------------------------------------

    def step_done(self) -> None:
        """A step boundary: begin a checkpoint where one is due. Training waits only while the state is copied."""
        if self._settings is None:
            return
        self._collect()
        if self._group.rank == 0 and self._writing is None and self._due(self._settings):
            self._begin()

    def save(self, check: Callable[[], None] = lambda: None) -> tuple[int, str] | None:
        """Write the present state and wait for it: step and token, or None where it cannot be written.

        `check` is called meanwhile and may raise; the checkpoint is finished behind it nevertheless.
        """
        self._wait(check)
        if self._saved is None or self._saved[0] != self._state.applied:
            self._begin()
            self._wait(check)
        return self._saved if self._saved is not None and self._saved[0] == self._state.applied else None

    def finish(self) -> None:
        """All steps are done: one more checkpoint, where that is wished. Raises Regroup."""
        if self._settings is None:
            return
        self._group.touch("closing", self._state.applied)
        if self._group.rank == 0 and self._settings.at_end:
            self.save(self._group.poll)
        self._wait(self._group.poll)

    def close(self) -> None:
        """Wait for what is being written; whoever interrupts that discards it."""
        try:
            self._wait(lambda: None)
        except BaseException:
            assert self._writing is not None
            self._writing.cancelled.set()
            self._writing.join()
            raise

    def _due(self, settings: Checkpoint) -> bool:
        if settings.every_steps is not None:
            return self._state.applied % settings.every_steps == 0
        every_s = settings.every_s if settings.every_s is not None else self._every_s
        return time.monotonic() - self._began_s >= every_s

    def _begin(self) -> None:
        assert self._settings is not None and self._directory is not None
        if not self._tidied:
            self._directory.tidy()
            self._tidied = True
        self._began_s = time.monotonic()
        skeleton, tensors = replicate.pack(self._state.as_dict() | {"loss": self._state.loss})
        self._stage(tensors)
        paused_s = time.monotonic() - self._began_s
        self._writing = _Writing(
            self._directory, self._settings.keep, self._state.applied, self._session, skeleton, self._room,
            self._began_s, paused_s,
        )  # fmt: skip
        self._writing.start()

    def _stage(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy into memory that is kept from one checkpoint to the next: fresh memory costs more than the copy."""
        same = len(self._room) == len(tensors) and all(
            a.shape == b.shape and a.dtype == b.dtype for a, b in zip(self._room, tensors, strict=True)
        )
        if not same:
            self._room = [torch.empty_like(tensor) for tensor in tensors]
        for room, tensor in zip(self._room, tensors, strict=True):
            room.copy_(tensor)

    def _wait(self, check: Callable[[], None]) -> None:
        while self._writing is not None:
            self._writing.join(WAIT_S)
            self._collect()
            check()

    def _collect(self) -> None:
        """Tell of a checkpoint that has been written, or of why it could not be."""
        done = self._writing
        if done is None or done.is_alive():
            return
        self._writing = None
        if done.manifest is None:
            text = f"the checkpoint of step {done.step} could not be written: {done.error}; training goes on"
            if text.partition(":")[2] != self._trouble:
                self._trouble = text.partition(":")[2]
                self._group.warn(text)
            return
        self._trouble = ""
        self._saved = (done.step, done.manifest.token)
        about = {"step": done.step, "took_s": done.took_s, "paused_s": done.paused_s}
        place = {"path": done.path, "bytes": done.manifest.size_bytes}
        self._group.journal("checkpoint.saved", about | place)
        self._group.say({"type": "saved"} | about)
        if isinstance(self._group, Solo):
            observed_s = time.monotonic() - self._opened_s
            self._every_s = interval.decide(0, observed_s, done.paused_s, done.took_s, self._state_bytes).value

    def _hear_interval(self, message: Message) -> None:
        """The coordinator has decided how often, and knows how old the newest checkpoint is."""
        self._every_s = message["every_s"]
        self._began_s = time.monotonic() - message["age_s"]

    # ---- taking up ----------------------------------------------------------------------------------------

    def found(self) -> list[tuple[int, str]]:
        """``(step, token)`` of every checkpoint that could be loaded, newest first; their bytes are not checked yet.

        Raises SpecError where they are of another session.
        """
        if self._directory is None:
            return []
        usable = []
        for step, path in self._directory.committed():
            if path.name in self._refused or (self.no_later_than is not None and step > self.no_later_than):
                continue
            try:
                manifest = self._directory.manifest(path)
            except Refused as error:
                self._refuse(path.name, error)
                continue
            self._must_fit(manifest)
            usable.append((step, manifest.token))
        return usable

    def load(self, step: int, token: str, check: Callable[[], None]) -> None:
        """Become what the run was after `step`. Raises Refused, after telling of it, and what `check` raises."""
        assert self._directory is not None
        began_s = time.monotonic()
        name = f"step-{step:012d}-{token}"
        try:
            manifest = self._directory.manifest(self._directory.path / name)
            path = self._directory.verify(manifest, check)
            tensors = replicate.blank(manifest.skeleton)
            _dcp().load(path, dict(zip(names(manifest.skeleton), tensors, strict=True)), check)
            state = replicate.unpack(manifest.skeleton, tensors)
        except Refused as error:
            self._refuse(name, error)
            raise
        except (OSError, ValueError, KeyError, TrainingError) as error:
            refusal = Refused(self._directory.path / name, f"it cannot be read: {error}")
            self._refuse(name, refusal)
            raise refusal from error
        self._state.load(state, step, state["loss"])
        self._saved = (step, token)
        self.no_later_than = None
        took_s = time.monotonic() - began_s
        size = replicate.size_bytes(tensors)
        text = f"{size / 1e6:.1f} MB of step {step} from its checkpoint in {took_s * 1000:.0f} ms"
        self._group.say({"type": "loaded", "step": step, "path": str(path), "took_s": took_s, "text": text})

    def _refuse(self, name: str, error: Refused) -> None:
        self._refused.add(name)
        self._group.say({"type": "refused", "path": error.path, "reason": error.reason})
        if isinstance(self._group, Solo):
            self._group.warn(str(error))

    def _must_fit(self, manifest: Manifest) -> None:
        """Raise SpecError where a checkpoint is of another session: it would not be the same trajectory."""
        found = dict(manifest.session)
        expected = json.loads(json.dumps(self._session))
        parts = [
            f"{key} {found.get(key)}, expected {expected.get(key)}"
            for key in (*expected, *(found.keys() - expected.keys()))
            if key != "model" and found.get(key) != expected.get(key)
        ]
        theirs, ours = found.get("model", {}), expected["model"]
        for name in [*ours, *(theirs.keys() - ours.keys())]:
            if theirs.get(name) != ours.get(name) and len(parts) < 3:
                parts.append(f"{name} {theirs.get(name, 'missing')}, expected {ours.get(name, 'no such tensor')}")
        if parts:
            assert self._directory is not None
            reason = f"it is of another session: {'; '.join(parts)}"
            self._refuse(manifest.name, Refused(self._directory.path / manifest.name, reason))
            raise SpecError(
                f"{self._directory.path / manifest.name} is not loaded: {reason}. "
                "Give this session a path of its own, or remove the old checkpoints"
            )


class _Writing(threading.Thread):
    """One checkpoint on its way to storage."""

    def __init__(
        self,
        directory: Directory,
        keep: int,
        step: int,
        session: Mapping[str, Any],
        skeleton: Any,
        tensors: Sequence[torch.Tensor],
        began_s: float,
        paused_s: float,
    ) -> None:
        super().__init__(name=f"checkpoint-{step}", daemon=True)
        self.step = step
        self.paused_s = paused_s
        self.took_s = 0.0
        self.path = ""
        self.manifest: Manifest | None = None
        self.error = "it was given up"
        self.cancelled = threading.Event()
        self._directory = directory
        self._keep = keep
        self._session = session
        self._skeleton = skeleton
        self._tensors = tensors
        self._began_s = began_s

    def run(self) -> None:
        """Write, commit, and remove what is older than those to keep."""
        try:
            self._write()
            self._directory.prune(self._keep)
        except _GivenUp:
            pass
        except OSError as error:
            self.error = f"{error.strerror or error} ({error.filename or self._directory.path})"
        except (HyperpodError, RuntimeError, ValueError) as error:
            self.error = str(error)

    def _write(self) -> None:
        draft = self._directory.draft()
        try:
            tensors = dict(zip(names(self._skeleton), self._tensors, strict=True))
            files = _dcp().save(draft.path, tensors, self._go_on)
            manifest = Manifest(self.step, draft.token, self._session, self._skeleton, files)
            self.path = str(self._directory.commit(draft, manifest))
        except BaseException:
            self._directory.discard(draft)
            raise
        self.took_s = time.monotonic() - self._began_s
        self.manifest = manifest

    def _go_on(self) -> None:
        if self.cancelled.is_set():
            raise _GivenUp


class _GivenUp(Exception):
    """Nobody waits for this checkpoint any more."""


def names(skeleton: Any) -> list[str]:
    """A name for every tensor of a packed state, in order: where it lies, such as ``model.0.weight``."""
    found: dict[str, None] = {}

    def walk(part: Any, path: str) -> Iterator[str]:
        ((kind, content),) = part.items()
        if kind == "t":
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


def shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Name -> ``float32 [8, 16]`` of a model's state."""
    return {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in tensors.items()}


def _dcp() -> Any:
    """torch.distributed.checkpoint costs half a second to import: only whoever needs it pays, on first use."""
    from . import dcp

    return dcp
