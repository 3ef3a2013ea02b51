"""Manages a session's durable checkpoints: copies the state at a step boundary, writes it in the background, loads it.

Rank 0 of the generation writes; all members hold the same bits, so any member would do. In a replica of several ranks
each rank copies and writes its shards. Between steps they exchange their progress, so that all of them decide alike.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ...core.errors import LoaderError, SpecError, TrainingError
from ...core.units import plural
from ...policy import interval
from ..comm import state_codec
from ..protocol import facts, orders
from ..session.state import TrainingState
from ..worker.group_base import Regroup
from ..worker.local_group import LocalGroup
from ..worker.main import switched_on
from ..worker.replica_sync import Group
from .store import Checkpoint, CheckpointManifest, Refused, name_of, new_token
from .writer import WAIT_S, CheckpointWriter, StateCopy, file_of, names


class CheckpointManager:
    """Writes and loads the checkpoints of a session. Without settings it does nothing."""

    def __init__(
        self,
        settings: Checkpoint | None,
        group: Group,
        state: TrainingState,
        session: Mapping[str, Any],
        state_bytes: int,
    ) -> None:
        """``session``: the session that a checkpoint has to match. Raises SpecError for an unsafe directory."""
        self._settings = settings
        self._group = group
        self._state = state
        self._about = dict(session)
        self._state_bytes = state_bytes
        self._directory = settings.directory if settings is not None else None
        self._writer: CheckpointWriter | None = None
        self._staging: list[torch.Tensor] = []  # the copy that is written; reused for each checkpoint
        self._refused: set[str] = set()
        self._saved: tuple[int, str] | None = None  # step and token of the newest checkpoint written or loaded here
        self._last_error = ""
        self._tidied = False
        self._began_s = self._opened_s = time.monotonic()
        self._begun_at = self._looked_at = -1  # the steps of the newest checkpoint begun here, and of the newest look
        self._every_s = interval.decide(0, 0.0, None, None, state_bytes).value
        self.on_copy: Callable[[], object] = _nothing  # called before the state is copied
        self.no_later_than: int | None = None  # the newest step that may be loaded, None for any
        if self._directory is not None:
            self._directory.check()
        group.on_interval = self._set_interval
        group.checkpoints = self.found

    @property
    def public(self) -> facts.CheckpointPlace | None:
        """The path of the checkpoints, as given to the session, and their interval."""
        if self._settings is None:
            return None
        steps, seconds = self._settings.every_steps, self._settings.every_s
        every = plural(steps, "step") if steps else f"{seconds:g} s" if seconds else interval.AUTOMATIC
        return facts.CheckpointPlace(os.fspath(self._settings.path), every)

    @property
    def _session(self) -> dict[str, Any]:
        """The session that a checkpoint has to match; known once the session has its number in the cell."""
        return {"session": self._group.session} | self._about

    # ---- writing ------------------------------------------------------------------------------------------

    def step_done(self) -> None:
        """At a step boundary, begin a checkpoint where one is due. Training waits only while the state is copied.

        Raises Regroup where this member is a replica of several ranks.
        """
        if self._settings is None:
            return
        due = self._group.rank == 0 and self._due(self._settings)
        if self._writer is not None:
            self._proceed()
        if self._writer is None and self._group.rank == 0:
            self._proceed(begin=due)

    def save(self) -> tuple[int, str] | None:
        """Write the present state and wait for it: step and token, or None where it cannot be written.

        Raises Regroup; the checkpoint is still completed in the background.
        """
        self._wait(self._group.poll)
        if self._saved is None or self._saved[0] != self._state.applied:
            self._proceed(begin=True)
            self._wait(self._group.poll)
        return self._saved if self._saved is not None and self._saved[0] == self._state.applied else None

    def finish(self) -> None:
        """Write a final checkpoint, if wanted, after all steps. Raises Regroup."""
        if self._settings is None:
            return
        self._group.touch("closing", self._state.applied)
        if self._group.rank == 0 and self._settings.at_end:
            self.save()
        self._wait(self._group.poll)

    def close(self) -> None:
        """Wait for the checkpoint in progress; an interrupt discards it. Raises Regroup as `step_done` does."""
        try:
            self._wait(lambda: None)
        except Regroup:
            raise
        except BaseException:
            self._abandon()
            raise

    def leave(self) -> None:
        """At the end of a session, even after an error, wait for the checkpoint in progress if no other rank is needed.

        A rank that leaves with an error leaves alone, and waiting for the other ranks of its replica would be in vain.
        """
        if self._group.replica == 1:
            self.close()
        else:
            self._abandon()

    def _abandon(self) -> None:
        if self._writer is not None:
            self._writer.cancelled.set()
            self._writer.join()

    def _due(self, settings: Checkpoint) -> bool:
        if settings.every_steps is not None:
            step, every = self._state.applied, settings.every_steps
            if self._looked_at != step - 1:  # it was not rank 0, or has gone back
                self._begun_at = step - 1
            self._looked_at = step
            # one that was due may have met a new generation, or an earlier one that was still written
            return step // every > self._begun_at // every
        every_s = settings.every_s if settings.every_s is not None else self._every_s
        return time.monotonic() - self._began_s >= every_s

    def _wait(self, check: Callable[[], None]) -> None:
        while self._writer is not None:
            self._writer.join(WAIT_S)
            self._proceed()
            check()

    def _proceed(self, begin: bool = False) -> None:
        """Exchange the progress of all ranks of the replica and act alike on it. Raises Regroup."""
        if self._writer is None:
            token = self._group.gather(new_token() if begin else "")[0]  # the leader decides whether, and its token
            if token:
                self._begin(token)
            return
        reports = self._group.gather(self._writer.report())
        self._writer.update(reports)
        if not any(report["alive"] for report in reports):
            writer, self._writer = self._writer, None
            error = next((report["error"] for report in reports if report["error"]), "it was given up")
            self._ended(writer, reports[0]["committed"], error)

    def _begin(self, token: str) -> None:
        assert self._settings is not None and self._directory is not None
        began_s = self._began_s = time.monotonic()
        self._begun_at = self._state.applied
        if not self._tidied and self._group.shard == 0:
            self._directory.tidy()
            self._tidied = True
        self.on_copy()
        skeleton, tensors = self._state.pack(carried=True)
        self._stage(tensors)
        step, keep = self._state.applied, self._settings.keep
        shard, shards = self._group.shard, self._group.replica
        copy = StateCopy(token, step, self._session, keep, skeleton, self._staging, shard, shards)
        self._writer = CheckpointWriter(self._directory, copy, began_s)
        self._writer.start()

    def _stage(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy into memory that is reused for each checkpoint, because fresh memory costs more than the copy."""
        if [(t.shape, t.dtype) for t in self._staging] != [(t.shape, t.dtype) for t in tensors]:
            self._staging = [torch.empty_like(tensor) for tensor in tensors]
        for copy, tensor in zip(self._staging, tensors, strict=True):
            copy.copy_(tensor)

    def _ended(self, writer: CheckpointWriter, committed: bool, error: str) -> None:
        """Report a written checkpoint, or why it could not be written."""
        step = writer.copy.step
        if not committed:
            if error != self._last_error:
                self._last_error = error
                self._group.warn(f"the checkpoint of step {step} could not be written: {error}; training goes on")
            return
        self._last_error = ""
        self._saved = (step, writer.copy.token)
        if writer.manifest is None:
            return  # the leader reports it
        saved = facts.CheckpointSaved(step, writer.took_s, writer.paused_s)
        place = {"path": writer.path, "bytes": writer.manifest.size_bytes}
        self._group.journal("checkpoint.saved", asdict(saved) | place)
        self._group.send(saved)
        if isinstance(self._group, LocalGroup):
            observed_s = time.monotonic() - self._opened_s
            self._every_s = interval.decide(0, observed_s, writer.paused_s, writer.took_s, self._state_bytes).value

    def _set_interval(self, order: orders.CheckpointInterval) -> None:
        """Take the interval, and the age of the newest checkpoint, from the coordinator."""
        self._every_s = order.every_s
        self._began_s = time.monotonic() - order.age_s

    # ---- taking up ----------------------------------------------------------------------------------------

    def found(self) -> list[tuple[int, str]]:
        """``(step, token)`` of every candidate, newest first; their bytes are not checked yet.

        Raises SpecError where they belong to another session.
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
                self._refuse(error)
                continue
            self._must_fit(manifest)
            usable.append((step, manifest.token))
        return usable

    def load(self, step: int, token: str, asked: bool = False) -> None:
        """Load the state after `step`, on all ranks of this replica or on none; ``asked``: the cell goes back to it.

        Raises Refused, after reporting it, and Regroup.
        """
        assert self._directory is not None
        began_s = time.monotonic()
        path = self._directory.path / name_of(step, token)
        try:
            skeleton, tensors, size = self._read(path)
            reason = ""
        except Refused as error:
            reason = error.reason
        except (OSError, ValueError, KeyError, LoaderError, TrainingError) as error:
            reason = f"it cannot be read: {error}"
        if reason := next(filter(None, self._group.gather(reason)), ""):
            refusal = Refused(path, reason)
            self._refuse(refusal)
            raise refusal
        self._state.unpack(skeleton, tensors, step)
        self._saved = (step, token)
        self.no_later_than = None
        took_s = time.monotonic() - began_s
        text = f"{size / 1e6:.1f} MB of step {step} from its checkpoint in {took_s * 1000:.0f} ms"
        self._group.send(facts.CheckpointLoaded(step, str(path), took_s, text, asked))

    def _read(self, directory: Path) -> tuple[Any, list[torch.Tensor], int]:
        """This rank's part: skeleton, tensors, and the bytes of the whole checkpoint."""
        from . import dcp  # half a second to import, so only on first use

        assert self._directory is not None
        manifest = self._directory.manifest(directory)
        shard, shards = self._group.shard, self._group.replica
        if len(manifest.skeletons) != shards:
            raise ValueError(f"it has {plural(len(manifest.skeletons), 'shard')}, expected {shards}")
        path = self._directory.verify(manifest, file_of(shard, shards), self._group.poll)
        skeleton = manifest.skeletons[shard]
        tensors = state_codec.blank(skeleton)
        dcp.load(path, dict(zip(names(skeleton), tensors, strict=True)), self._group.poll)
        return skeleton, tensors, manifest.size_bytes

    def _refuse(self, error: Refused) -> None:
        self._refused.add(os.path.basename(error.path))
        self._group.send(facts.CheckpointRefused(error.path, error.reason))
        if isinstance(self._group, LocalGroup):
            self._group.warn(str(error))

    def _must_fit(self, manifest: CheckpointManifest) -> None:
        """Raise SpecError where a checkpoint belongs to another session, which has another trajectory."""
        found: dict[str, Any] = {"replica": 1, "order": "shuffled"} | dict(manifest.session)
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
            refusal = Refused(self._directory.path / manifest.name, f"it is of another session: {'; '.join(parts)}")
            self._refuse(refusal)
            raise SpecError(f"{refusal}. Give this session a path of its own, or remove the old checkpoints")


def _nothing() -> None:
    """Nothing is shown in a checkpoint."""


def shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Name -> ``float32 [8, 16]`` of a model's state."""
    return {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in tensors.items()}


def settings_of(checkpoint: str | Checkpoint | None) -> Checkpoint | None:
    """The settings that a session was given. Raises SpecError where newcomers need checkpoints and there are none."""
    if checkpoint is None and not switched_on("peers"):
        raise SpecError(
            "the component peers is switched off, so newcomers get their state through a durable checkpoint; "
            "give the session a path: hp.Session(..., checkpoint='shared://runs/x')"
        )
    return Checkpoint(checkpoint) if isinstance(checkpoint, str) else checkpoint
