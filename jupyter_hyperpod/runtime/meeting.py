"""How the members of a new generation meet at one step: who sends what to whom, as policy.recovery planned it."""

from __future__ import annotations

import time

from ..policy.batching import leaves_of
from . import replicate
from .commits import Commits
from .gradients import Gradients
from .inprocess import Go, Group, Held, Regroup, Solo
from .reduction import as_bytes
from .state import TrainingState
from .wire import Message


class Meeting:
    """One member's part in every generation of a session. ``go`` is the plan of the present one."""

    def __init__(self, group: Group | Solo, state: TrainingState, gradients: Gradients, commits: Commits) -> None:
        self._group = group
        self._state = state
        self._gradients = gradients
        self._commits = commits
        self.go: Go | None = None
        self.redone = 0

    def join(self, opened: Message) -> None:
        """Tell of the session and begin where the others are."""
        self._adopt(self._group.join(opened, self.held, self._gradients.micro_batches))

    def regroup(self, call: Regroup) -> None:
        """Form the generation that was called and do what it takes to go on."""
        self._adopt(self._group.form(call.message, self.held(), self._gradients.micro_batches))

    def held(self) -> Held:
        """What this member holds: see policy.recovery.Report."""
        nodes = tuple(self._gradients.ledger.nodes)
        fresh = self._state.digest() if self._state.step is None else ""
        return Held(self._state.step, nodes, self._gradients.replayable, fresh)

    def _adopt(self, go: Go) -> None:
        """Do what the plan says until nobody lacks anything; a call in between starts over with the newer plan."""
        while True:
            try:
                self._catch_up(go)
                break
            except Regroup as newer:
                go = self._group.form(newer.message, self.held(), self._gradients.micro_batches)
        self._group.touch("compute", self._state.applied)

    def _catch_up(self, go: Go) -> None:
        self.redone += _lost_with_members(self.go, go)
        if self.go is not None:
            self._gradients.reduction.renew(self._gradients.last)
        self.go = go
        self._group.touch("exchange", self._state.applied)
        self._gradients.reduction.attachments.forget_all_but(self._group.near_pids)
        if go.rank == go.donors[0]:
            self._commits.journal()  # the rank 0 that should have may be gone
        if go.replay:
            self._replay(go)
        if go.fresh:
            self._share_state(go)
        if self._state.step is None:
            self._state.step = go.step

    def _replay(self, go: Go) -> None:
        """Give the last reduced gradient to members that missed the end of its exchange."""
        donor, gradients = go.donors[0], self._gradients
        if go.rank == donor:
            assert gradients.last is not None
            self._group.exchange([(r, as_bytes(f)) for r in go.replay for f in gradients.last.flats], [])
        elif go.rank in go.replay:
            result = gradients.reduction.room(gradients.last)
            self._group.exchange([], [(donor, as_bytes(flat)) for flat in result.flats])
            gradients.show(result)
            gradients.keep(result)
            self._state.apply(gradients.loss_of(result))
            gradients.ledger.clear()
            self._commits.drop()

    def _share_state(self, go: Go) -> None:
        """Send the whole state to newcomers, striped over all donors."""
        began_s = time.monotonic()
        head = go.donors[0]
        if go.rank in go.donors:
            skeleton, tensors = replicate.pack(self._state.as_dict() | {"loss": self._state.loss})
            if go.rank == head:
                text = replicate.encode(skeleton)
                self._group.exchange([(r, replicate.length(text)) for r in go.fresh], [])
                self._group.exchange([(r, memoryview(text)) for r in go.fresh], [])
            part = go.donors.index(go.rank)
            self._group.exchange(replicate.transfers(tensors, part, len(go.donors), go.fresh), [])
        elif go.rank in go.fresh:
            header = bytearray(8)
            self._group.exchange([], [(head, memoryview(header))])
            encoded = bytearray(int.from_bytes(header, "big"))
            self._group.exchange([], [(head, memoryview(encoded))])
            skeleton = replicate.decode(encoded)
            tensors = replicate.blank(skeleton)
            parts = [(d, v) for i, d in enumerate(go.donors) for v in replicate.stripe(tensors, i, len(go.donors))]
            self._group.exchange([], parts)
            received = replicate.unpack(skeleton, tensors)
            self._state.load(received, go.step, received["loss"])
            self._gradients.ledger.clear()
            self._gradients.last = None
            self._commits.drop()
            took_s = time.monotonic() - began_s
            text_line = (
                f"{replicate.size_bytes(tensors) / 1e6:.1f} MB from {len(go.donors)} peers in {took_s * 1000:.0f} ms"
            )
            self._group.say({"type": "synced", "generation": go.generation, "text": text_line})


def _lost_with_members(before: Go | None, go: Go) -> int:
    """How many micro-batches were given to members that are gone, and now to others: at most so many are redone."""
    if before is None:
        return 0
    gone = [nodes for owner, nodes in zip(before.owners, before.holdings, strict=True) if owner not in go.owners]
    given = {leaf for share in go.shares for leaf in share}
    return len(given & leaves_of(node for nodes in gone for node in nodes))
