"""Transfers state and gradients to members that lack them: by shared memory on one host, else by sockets."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from ...core.units import plural
from ...policy.recovery import RecoveryPlan
from ...system.addresses import SOCKETS_ONLY_VARIABLE
from ..protocol import facts, orders
from ..session.gradients import Gradients
from ..session.state import TrainingState
from ..worker.elastic_group import ElasticGroup
from ..worker.replica_sync import Group
from . import state_codec
from .mesh import PeerLost, Transfer
from .pair_transfer import StripeServer, fetch, source_of
from .reduction import as_bytes
from .shards import local
from .shared_memory import TOKEN_BYTES, Token
from .snapshot import PreparedMemory, StripeMemory, fill, gathered, parse, read

HISTORY = 4  # reduced gradients kept while a newcomer loads a snapshot
NOTHING = -1


class StateTransfer:
    """Sends or receives state and gradients for one member."""

    def __init__(self, group: Group, state: TrainingState, gradients: Gradients) -> None:
        self._group = group
        self._state = state
        self._gradients = gradients
        self._stripe = StripeMemory()  # for members of the generation, which read it before its next step
        self._offer = StripeMemory()  # for newcomers outside: an order to offer may come while members still read
        self._prepared = PreparedMemory()
        self._server: StripeServer | None = None
        self._taking = 0  # snapshots that were to be loaded so far
        self._offered = False  # newcomers outside the generation may be reading it

    def expect_state(self) -> None:
        """Prepare memory: this member is a newcomer that will get the state, and compute gradients at once then."""
        self._gradients.finished.prepare()
        copies = max(1, round(self._state.expected_bytes() / max(1, self._state.parameter_bytes())))
        self._prepared = PreparedMemory([local(parameter) for parameter in self._gradients.parameters], copies)

    def newcomers_arrived(self) -> None:
        """The readers of a snapshot are members now, or get another one; a late reader may still be reading it."""
        self._offer.release()
        self._stop_serving()
        self._offered, self._gradients.depth = False, 1

    def release(self) -> None:
        """Free the memory at the end of the session."""
        self._stop_serving()
        self._stripe.release()
        self._offer.release()

    @property
    def offers(self) -> bool:
        """Whether newcomers may be reading a snapshot, and will need the gradients of the steps after it."""
        return self._offered

    def step_done(self) -> None:
        """All members have taken part in a step, so they have read everything that was given to them."""
        self._stripe.reuse()

    # ---- while the others train ---------------------------------------------------------------------------

    def offer(self, order: orders.OfferState) -> None:
        """Offer a stripe of the state between two steps to newcomers: in shared memory, or from the device."""
        self._gradients.depth, self._offered = HISTORY, True
        self._stop_serving()
        pair = self._gradients.collectives.pair if self._group.replica == 1 else None
        on_device = pair is not None and pair.device.type != "cpu"
        skeleton, tensors = self._state.pack(on_device=on_device)
        token = ""
        if pair is not None and on_device:
            stripe = gathered(tensors, order.part, order.parts, pair.device)
        else:
            self._offer.write(tensors, order.part, order.parts)
            token, stripe = self._offer.token_text(), self._offer.content()
        if pair is not None:
            self._server = StripeServer(pair, self._group.host, self._group.secret, order.generation, stripe)
            token = f"{token} {self._server.source.text()}"
        step = NOTHING if self._state.step is None else self._state.step
        text = state_codec.encode(skeleton).decode() if order.part == 0 else ""
        self._group.send(facts.StateOffered(order.generation, step, (token,), (text,)))

    def _stop_serving(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def take(self, order: orders.TakeSnapshot) -> str:
        """Load a snapshot; returns a sentence about it, or "" where it was out of reach, or another one overtook it.

        Raises Regroup, with nothing loaded.
        """
        began_s = time.monotonic()
        self._taking += 1
        mine = self._taking
        skeleton = state_codec.decode(order.skeleton[self._group.shard].encode())
        texts = [token[self._group.shard] for token in order.tokens]
        tensors = self._read(skeleton, [text.partition(" ")[0] for text in texts])
        how = ""
        if tensors is None and (tensors := self._fetch(skeleton, [text.partition(" ")[2] for text in texts])):
            how = ", by process groups of two"
        if self._taking != mine:
            return ""
        within_reach = tensors is not None
        if not all(self._group.gather(within_reach)):
            self._group.send(facts.SnapshotLoaded(None))
            return ""
        assert tensors is not None
        self._load(skeleton, tensors, order.step)
        self._group.send(facts.SnapshotLoaded(order.step))
        return f"{_how(tensors, len(order.tokens), began_s)}{how}, while they trained"

    def _read(self, skeleton: state_codec.Skeleton, tokens: list[str]) -> list[torch.Tensor] | None:
        """The tensors of a snapshot in shared memory; None where that is out of reach."""
        if os.environ.get(SOCKETS_ONLY_VARIABLE):
            return None
        try:
            parsed = [parse(token) for token in tokens]
            tensors = state_codec.blank(skeleton, self._prepared.take)
            read(tensors, parsed)
        except OSError:
            return None
        return tensors

    def _fetch(self, skeleton: state_codec.Skeleton, sources: list[str]) -> list[torch.Tensor] | None:
        """The tensors of a snapshot, which donors send from their devices; None where they cannot. Raises Regroup."""
        pair, group, mine = self._gradients.collectives.pair, self._group, self._taking
        if pair is None or group.replica > 1 or not all(sources) or not isinstance(group, ElasticGroup):
            return None
        try:
            stripes = fetch(pair, group.host, group.secret, [source_of(text) for text in sources], group.wait_outside)
        except OSError as error:
            if mine == self._taking:  # else it is another snapshot's turn
                group.warn(f"{error}; this newcomer gets the state when it joins")
            return None
        tensors = state_codec.blank(skeleton, self._prepared.take)
        for part, stripe in enumerate(stripes):
            fill(tensors, as_bytes(stripe.cpu()), part, len(stripes))
        return tensors

    # ---- when a generation resyncs ------------------------------------------------------------------------

    def replay(self, plan: RecoveryPlan) -> bool:
        """Send the last reduced gradients to members that missed them, oldest first; True where this is one of them."""
        donor, gradients = plan.donors[0], self._gradients
        if plan.rank == donor:
            for rank, steps in plan.replay:
                for result in reversed(gradients.history[:steps]):
                    gradients.collectives.send(result, rank)
        steps = dict(plan.replay).get(plan.rank, 0)
        for _ in range(steps):
            result = gradients.collectives.receive(donor, gradients.kept)
            if self._state.sizes is not None:
                self._state.sizes.learn(self._state.applied, gradients.count(result))
            reading = self._group.agree(gradients.reading(result, self._state.applied + 1))
            gradients.set_gradients(result)
            gradients.keep(result)
            rejected, overflow = self._state.judge(reading, None)
            self._state.apply(reading, skipped=bool(rejected or overflow))
            gradients.apply_left(result, bool(rejected))
            self._state.run_done()
            gradients.finished.clear()
        return steps > 0

    def share(self, plan: RecoveryPlan) -> str:
        """Send the whole state to newcomers, striped over all donors; a newcomer returns a sentence about it."""
        if plan.rank in plan.donors:
            self._give(plan)
        return self._get(plan) if plan.rank in plan.fresh else ""

    def hand_over(self, plan: RecoveryPlan) -> None:
        """Send what the cell carries to members whose cells have not run what belongs to the steps so far.

        One donor sends all: parts of several would not fit together where a cell keeps something on one member only.
        """
        receivers = sorted({*plan.fresh, *plan.joining})
        donor = plan.donors[0]
        if plan.rank == donor and receivers:
            skeleton, tensors = state_codec.pack(self._state.carried.at(plan.step))
            text = state_codec.encode(skeleton)
            for view in (memoryview(len(text).to_bytes(8, "big")), memoryview(text), *map(as_bytes, tensors)):
                self._group.exchange([(rank, view) for rank in receivers], [])
        elif plan.rank in receivers:
            skeleton = self._receive_skeleton(donor)
            tensors = state_codec.blank(skeleton)
            self._group.exchange([], [(donor, as_bytes(tensor)) for tensor in tensors])
            self._state.carried.load(state_codec.unpack(skeleton, tensors, self._state.mesh), plan.step)

    def _receive_skeleton(self, donor: int) -> state_codec.Skeleton:
        header = bytearray(8)
        self._group.exchange([], [(donor, memoryview(header))])
        encoded = bytearray(int.from_bytes(header, "big"))
        self._group.exchange([], [(donor, memoryview(encoded))])
        return state_codec.decode(encoded)

    def _give(self, plan: RecoveryPlan) -> None:
        skeleton, tensors = self._state.pack()
        part, parts = plan.donors.index(plan.rank), len(plan.donors)
        near = [rank for rank in plan.fresh if rank in self._group.near]
        far = [rank for rank in plan.fresh if rank not in self._group.near]
        if part == 0:
            text = state_codec.encode(skeleton)
            self._group.exchange([(r, memoryview(len(text).to_bytes(8, "big"))) for r in plan.fresh], [])
            self._group.exchange([(r, memoryview(text)) for r in plan.fresh], [])
        sends = [(rank, view) for rank in far for view in state_codec.stripe(tensors, part, parts)]
        if near:
            token = memoryview(self._stripe.write(tensors, part, parts).pack())
            sends += [(rank, token) for rank in near]
        self._group.exchange(sends, [])

    def _get(self, plan: RecoveryPlan) -> str:
        began_s = time.monotonic()
        skeleton = self._receive_skeleton(plan.donors[0])
        tensors = state_codec.blank(skeleton, self._prepared.take)
        tokens: dict[int, memoryview] = {}
        receives: list[Transfer] = []
        for part, donor in enumerate(plan.donors):
            if donor in self._group.near:
                tokens[part] = memoryview(bytearray(TOKEN_BYTES))
            else:
                receives += [(donor, view) for view in state_codec.stripe(tensors, part, len(plan.donors))]
        self._group.exchange([], receives)
        for part, token in tokens.items():  # each stripe as soon as it is ready
            self._group.exchange([], [(plan.donors[part], token)])
            try:
                read(tensors, [Token.unpack(bytes(token))], part, len(plan.donors))
            except OSError as error:
                self._group.lost(PeerLost(plan.donors[part]), error)
        self._group.gather(None)
        self._load(skeleton, tensors, plan.step)
        return _how(tensors, len(plan.donors), began_s)

    def _load(self, skeleton: state_codec.Skeleton, tensors: Any, step: int) -> None:
        self._state.unpack(skeleton, tensors, step)
        self._gradients.forget()
        self._prepared = PreparedMemory()


def _how(tensors: Any, donors: int, began_s: float) -> str:
    took_s = time.monotonic() - began_s
    return f"{state_codec.size_bytes(tensors) / 1e6:.1f} MB from {plural(donors, 'peer')} in {took_s * 1000:.0f} ms"
