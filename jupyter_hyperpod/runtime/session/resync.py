"""Brings the members of a new generation to the same step, by the plan of policy.recovery."""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import TrainingError
from ...policy.batching import leaves_of
from ...policy.recovery import MemberState, RecoveryPlan, Saved
from ..checkpoint import ended
from ..checkpoint.ended import SessionEnd
from ..checkpoint.manager import CheckpointManager
from ..checkpoint.store import Refused
from ..comm.transfer import StateTransfer
from ..program.between import Between
from ..protocol import facts, orders
from ..worker.elastic_group import ElasticGroup
from ..worker.group_base import Regroup
from ..worker.main import current, switched_on
from ..worker.replica_sync import Group
from .gradients import Gradients
from .integrity import Integrity
from .state import TrainingState
from .step_record import Commits

TOKEN_BYTES = 16


class Resync:
    """One member's part in every generation of a session. ``plan`` is the present generation's plan."""

    def __init__(
        self,
        group: Group,
        state: TrainingState,
        gradients: Gradients,
        commits: Commits,
        integrity: Integrity,
        checkpoints: CheckpointManager,
        between: Between,
    ) -> None:
        self._group = group
        self._checkpoints = checkpoints
        self._between = between
        self._waiting = True  # the cell waits for its first step
        self._state = state
        self._gradients = gradients
        self._commits = commits
        self._integrity = integrity
        self.plan: RecoveryPlan | None = None
        self.redone = 0
        self.over: SessionEnd | None = None  # this session was over when this member came
        self.transfer = StateTransfer(group, state, gradients)
        self._initial = ""  # fingerprint of the state that the cell built
        self._received = ""  # a sentence about the state that this newcomer got
        self._restoring = False  # the state is neither the initial one nor that of a step
        self._partial = False  # the state is a snapshot, without what the cells of members carry
        self.on_newcomers: Callable[[], object] = _nothing  # called on the others where newcomers come
        self._unproven = isinstance(group, ElasticGroup) and group.newcomer
        self._joined: int | None = None  # see policy.recovery.MemberState
        self.on_formed: Callable[[RecoveryPlan], None] = _ignore  # called on all members of each generation
        if isinstance(group, ElasticGroup):  # elsewhere, a reference from the group would only delay freeing memory
            group.on_offer, group.on_snapshot = self._offer, self._take

    def join(self, opened: facts.SessionOpened) -> None:
        """Register the session and begin at the others' step."""
        if isinstance(self._group, ElasticGroup):
            ended.next_begins(self._group.warn, self._group.newcomer)
            if self._group.newcomer and (end := ended.passed_over()) is not None:
                self._pass(end)
                return
        if self._group.newcomer:
            self.transfer.expect_state()
        self._follow(self._group.join(opened, self.held))
        self._waiting = False

    def _pass(self, end: SessionEnd) -> None:
        """The session is over: this newcomer takes its end, and trains in a later one."""
        self.over, self._waiting = end, False
        self._state.unpack(end.skeleton, end.tensors, end.step)
        self._state.stopped = end.stopped
        end.tensors = []

    def regroup(self, call: Regroup) -> None:
        """Form the announced generation and resync to continue."""
        self._follow(self._group.form(call.order, self.held()))

    def restore(self, no_later_than: int | None = None) -> int:
        """Go back to the newest durable checkpoint, together with all members, which call this at the same step.
        Returns its step.

        Raises TrainingError where there is none.
        """
        if self._checkpoints.public is None:
            raise TrainingError("this session keeps no durable checkpoints: give it a path, hp.Session(checkpoint=...)")
        try:
            self._go_back(no_later_than)
        finally:
            self._group.stand_aside(False)
        return self._state.applied

    def _go_back(self, no_later_than: int | None) -> None:
        self._aside(self._checkpoints.close)
        self._aside(lambda: self._group.come_back(self._state.applied))
        self._checkpoints.no_later_than = no_later_than
        if not self._checkpoints.found():
            newest = "" if no_later_than is None else f" of step {no_later_than} or before"
            raise TrainingError(f"there is no durable checkpoint{newest} to go back to")
        self._gradients.forget()
        self._commits.drop()
        self._state.step, self._restoring = None, True
        self._group.stand_aside(True, answers_calls=True)
        try:
            self._group.again(facts.RestoreAsked(self._group.generation))
        except Regroup as call:
            self.regroup(call)

    def _aside(self, act: Callable[[], None]) -> None:
        """Act once no generation is called meanwhile. No member joins here, because it would miss what follows."""
        while True:
            self._group.stand_aside(True, answers_calls=True)
            try:
                act()
                return
            except Regroup as call:
                self.regroup(call)

    def held(self) -> MemberState:
        """What this member has computed: see policy.recovery.MemberState."""
        nodes = tuple(self._gradients.finished.nodes)
        if self._state.step is None:
            self._initial = self._initial or self._state.fingerprint()
        aside = self._group.aside
        found, kept = None if aside else self._integrity.statement(), len(self._gradients.history)
        repeatable, waiting = self._between.repeatable, self._waiting
        step, first, sizes = self._state.step, self._initial, self._state.sizes
        begun = 0 if sizes is None else sizes.begun(step)
        unproven, joined = self._unproven, self._joined
        return MemberState(
            step, nodes, kept, first, (), found, repeatable, waiting, aside, begun, self._partial, unproven, joined
        )

    def _follow(self, plan: RecoveryPlan) -> None:
        """Carry out the plan until all members are complete. A new generation meanwhile starts over with its plan."""
        while True:
            try:
                self._catch_up(plan)
                break
            except Regroup as newer:
                plan = self._group.form(newer.order, self.held())
        self._group.touch("compute", self._state.applied)

    def _catch_up(self, plan: RecoveryPlan) -> None:
        self.redone += _lost_with_members(self.plan, plan)
        self._state.carried.other_rank |= plan.rank != (0 if self.plan is None else self.plan.rank)
        if self.plan is not None:
            if set(plan.owners) - set(self.plan.owners):
                self.transfer.newcomers_arrived()
            if plan.rank == 0 != self.plan.rank and self._group.shard == 0:
                self._group.journal("decision.made", _became_first())
        self.plan = plan
        self._joined = plan.joined[plan.rank] if plan.joined else None
        self._group.touch("exchange", self._state.applied)
        self._gradients.collectives.begin(self._gradients.kept)
        if plan.rank == plan.donors[0]:
            self._commits.journal_for()  # the earlier rank 0 may be lost before it could journal this
        if plan.load is not None and plan.rank in plan.loaders and self._state.step is None:
            self._load(plan.load)
        if plan.proving and plan.rank not in plan.proving:
            self.on_newcomers()
        self.transfer.hand_over(plan)  # first: a member that has the step has this, too
        if plan.replay and self.transfer.replay(plan):
            self._commits.drop()
        if plan.fresh and not self._through_storage(plan) and (received := self.transfer.share(plan)):
            self._commits.drop()
            self._between.forget()
            self._received = received
        if self._state.step == plan.step:
            self._partial = False  # with the state it has what the cells carry: see `hand_over`
        self._group.gather(None)
        if self._state.step is None and self._restoring:
            raise TrainingError("no durable checkpoint that can be read is left to go back to")
        self._restoring = False
        if self._state.step is None:
            self._state.step = plan.step
        if self._state.sizes is not None:
            self._state.sizes.follow(plan.batches, plan.step)
        self.on_formed(plan)
        if self._received:
            self._group.send(facts.StateReceived(plan.generation, self._received))
            self._received = ""

    def step_done(self) -> None:
        """All members have taken part in a step: free memory that is not needed any more, while no member waits."""
        self._unproven = False
        self.transfer.step_done()
        self._gradients.collectives.step_done()

    def _offer(self, order: orders.OfferState) -> None:
        """Offer a stripe of the state to newcomers, unless it is corrupt."""
        self._integrity.check_unchanged(self.plan)
        self.transfer.offer(order)

    def _through_storage(self, plan: RecoveryPlan) -> bool:
        """Without the component ``peers``: one member writes a checkpoint of this step, and newcomers load it.

        False where the state comes from peers: the component is on, the run begins, or nothing can be written.
        """
        if switched_on("peers") or plan.step == 0 or plan.load is not None:
            return False
        view = memoryview(bytearray(TOKEN_BYTES))
        donor = plan.donors[0]
        if plan.rank == donor:
            saved = self._checkpoints.save()
            view[:] = (saved[1] if saved is not None else "").ljust(TOKEN_BYTES).encode()
            self._group.exchange([(rank, view) for rank in range(plan.world_size) if rank != donor], [])
        else:
            self._group.exchange([], [(donor, view)])
        token = bytes(view).decode().strip()
        if token and plan.rank in plan.fresh:
            self._load((plan.step, token))
        return bool(token)

    def _load(self, saved: Saved) -> None:
        """Load a durable checkpoint. A damaged one is not tried again. Raises Regroup."""
        try:
            self._checkpoints.load(*saved, asked=self._restoring)
        except Refused:
            self._group.again(facts.CheckpointUnreadable(self._group.generation, saved[0]))
        self._partial = False
        if self._restoring:  # the cell goes back by its own decision, and its variables say so
            self._state.carried.leave_variables()
        self._between.forget()
        self._gradients.forget()
        self._commits.drop()

    def _take(self, order: orders.TakeSnapshot) -> None:
        """Load the snapshot that is offered to this newcomer."""
        if taken := self.transfer.take(order):
            self._received, self._partial = taken, True


def _nothing() -> None:
    """Nothing is carried."""


def _ignore(plan: RecoveryPlan) -> None:
    """Nothing else belongs to a generation."""


def _became_first() -> dict[str, str]:
    worker = current()
    node = "this process" if worker is None else worker.context.node
    return {"policy": "ranks", "value": node, "reason": f"{node} is rank 0 now: session.is_main is true there"}


def _lost_with_members(before: RecoveryPlan | None, plan: RecoveryPlan) -> int:
    """The number of micro-batches of lost members that others now compute: an upper bound of redone ones."""
    if before is None:
        return 0
    here = {*plan.owners, *plan.parted}  # members that left had computed nothing of this step
    gone = [nodes for owner, nodes in zip(before.owners, before.holdings, strict=True) if owner not in here]
    given = {leaf for share in plan.shares for leaf in share}
    return len(given & leaves_of(node for nodes in gone for node in nodes))
