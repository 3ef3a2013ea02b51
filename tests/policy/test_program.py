"""Whom to fence, and when the program is to blame: whole runs are simulated, whose members differ where it says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.policy import program
from jupyter_hyperpod.policy.program import FEW_STEPS, LATE_STEPS, NEWCOMER_STEPS, ChargedVerdict, Seat, is_to_blame
from jupyter_hyperpod.policy.verdict import (
    CHANGED,
    EXECUTION,
    FROZEN,
    STATE,
    Charge,
    Statement,
    judge,
    next_execution,
    of_executions,
)

STEPS, SCHEDULES = 90, 250


@dataclass
class Process:
    """A member with what it keeps in its process: ``turns`` of the loop, and how late its clock is."""

    name: str
    state: tuple[object, ...] = ()
    rate: int = 0
    joined: int | None = None
    turns: int = 0
    clock: int = 0
    flipped: bool = False


Update = Callable[["Run", Process, int], tuple[object, ...]]


def _pure(run: Run, process: Process, rank: int) -> tuple[object, ...]:
    return ()


def _scheduler(run: Run, process: Process, rank: int) -> tuple[object, ...]:
    """The loop steps a StepLR: the rate travels with the optimizer, how many turns it has counted does not."""
    if process.turns % run.period == 0:
        process.rate += 1
    return (process.rate,)


def _unfrozen(run: Run, process: Process, rank: int) -> tuple[object, ...]:
    """From a step on, parameters that are not reduced: those without a micro-batch keep them as they are."""
    return (process.name,) if run.step >= run.change and rank < run.micro_batches else ()


def _clock(run: Run, process: Process, rank: int) -> tuple[object, ...]:
    return (run.step + process.clock >= run.change,)


PROGRAMS: dict[str, Update] = {
    "pure": _pure, "scheduler": _scheduler, "unfrozen": _unfrozen, "clock": _clock,
    "counter": _pure, "behind torch": _pure, "behind torch on rank 0": _pure,
}  # fmt: skip


@dataclass
class Run:
    """Members take steps together; whoever is killed or fenced is replaced, as far as ``room`` goes."""

    program: str
    world: int
    random: Random
    period: int = 7
    change: int = 30
    micro_batches: int = 4
    step: int = 0
    members: list[Process] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)  # when somebody comes
    earlier: list[ChargedVerdict] = field(default_factory=list)
    fenced: list[Process] = field(default_factory=list)
    again: int = 0  # nobody with state was left
    stopped: str = ""
    count: int = 0

    def begin(self) -> None:
        self.members = [self.process() for _ in range(self.world)]

    def process(self) -> Process:
        self.count += 1
        return Process(f"m{self.count}", clock=self.random.randrange(3))

    def seats(self) -> tuple[Seat, ...]:
        return tuple(Seat(p.name, f"rank {rank} on node", p.joined) for rank, p in enumerate(self.members))

    def look(self) -> None:
        """What `runtime.session.integrity` finds before a step is applied, until nobody is found wrong any more."""
        while not self.stopped:
            charges = judge([*map(self.statement, range(len(self.members)), self.members)])
            if not charges.value:
                return
            self.act(charges.value)

    def statement(self, rank: int, process: Process) -> Statement:
        sealed = repr((process.state, process.rate))
        state = sealed
        if process.flipped or self.program == "behind torch" or (self.program.endswith("rank 0") and rank == 0):
            due = process.flipped or (self.step >= self.change and self.step % self.period == 0)
            state = f"{sealed} changed on {process.name}" if due else sealed
        return Statement(process.name, f"rank {rank}", self.step, sealed, state)

    def act(self, charges: tuple[Charge, ...]) -> None:
        found = ChargedVerdict(charges, self.seats())
        judgement = is_to_blame(self.earlier, found)
        if judgement.value:
            self.stopped = judgement.reason
            return
        self.earlier.append(found)
        self.lose([p for p in self.members if p.name in found.accused], fenced=True)

    def lose(self, lost: list[Process], fenced: bool = False) -> None:
        self.fenced += lost if fenced else []
        self.members = [p for p in self.members if p not in lost]
        self.absent += [self.step + self.random.randrange(4) for _ in lost]
        if not self.members:
            self.again += 1
            self.step, self.absent = 0, []
            self.begin()

    def admit(self) -> None:
        coming = [at for at in self.absent if at <= self.step]
        self.absent = [at for at in self.absent if at > self.step]
        for _ in coming:
            newcomer, donor = self.process(), self.members[0]
            newcomer.state, newcomer.rate, newcomer.joined = donor.state, donor.rate, self.step
            self.members.append(newcomer)

    def execute_again(self) -> None:
        """A micro-batch is drawn; in the program ``counter`` it depends on how often the process has turned."""
        owner = self.random.randrange(len(self.members))
        draw = self.random.getrandbits(64)  # one per audit, as in `integrity`
        done: list[tuple[int, str]] = []
        while (rank := next_execution(done, owner, len(self.members), draw)) is not None:
            done.append((rank, str(self.members[rank].turns if self.program == "counter" else 0)))
        found = of_executions([checksum for _, checksum in done])
        if found.value is not None:
            accused = self.members[done[found.value][0]].name
            self.act((Charge(accused, found.reason, EXECUTION, self.step),))
        elif len({checksum for _, checksum in done}) > 1:
            self.stopped = found.reason  # integrity raises TrainingError, which names the program

    def turn(self, kill: bool = False, flip: int | None = None, wrong: bool = False, draw: bool = False) -> None:
        if flip is not None:
            self.members[flip % len(self.members)].flipped = True
        if kill and len(self.members) > 1:
            self.lose([self.random.choice([p for p in self.members if not p.flipped])])
        self.look()
        if draw and not self.stopped:
            self.execute_again()
        if self.stopped:
            return
        for rank, process in enumerate(self.members):
            process.turns += 1
            seen = PROGRAMS[self.program](self, process, rank)
            process.state = (hash((process.state, self.step, seen)),)
        if wrong:
            self.random.choice(self.members).state += ("wrong",)
        self.step += 1
        self.admit()


@st.composite
def kills(draw: st.DrawFn) -> set[int]:
    return draw(st.sets(st.integers(3, STEPS - 1), max_size=8))


@given(
    world=st.integers(1, 6), seed=st.integers(0), kills=kills(), first=st.integers(0, 60), gap=st.integers(11, 40)
)  # fmt: skip
@settings(max_examples=SCHEDULES)
def test_single_flips_are_fenced_and_nobody_else(world: int, seed: int, kills: set[int], first: int, gap: int) -> None:
    """As they come in `bench corruption`: any member, newcomers too, more than a few steps apart."""
    run = Run("pure", world, Random(seed))
    run.begin()
    flips = set(range(first, STEPS, gap))
    done = 0
    turns = 0
    while run.step < STEPS and turns < 10 * STEPS:
        turns += 1
        due = run.step in flips and run.step not in kills
        flips -= {run.step}
        done += due
        run.turn(kill=run.step in kills and turns <= STEPS, flip=run.random.randrange(9) if due else None)
        assert not run.stopped
    assert len(run.fenced) == done and all(p.flipped for p in run.fenced)
    assert len({p.state for p in run.members}) == 1


@given(world=st.integers(3, 6), seed=st.integers(0), at=st.integers(0, 60), kills=kills())
@settings(max_examples=SCHEDULES)
def test_one_wrong_update_is_fenced(world: int, seed: int, at: int, kills: set[int]) -> None:
    """Where nobody has joined just before: that is not told from a program that newcomers cannot go on with."""
    run = Run("pure", world, Random(seed))
    run.begin()
    while run.step < STEPS:
        run.turn(kill=run.step in kills and run.step > at + 2, wrong=run.step == at)
        assert not run.stopped
    assert len(run.fenced) == 1 and run.fenced[0].state[-1] == "wrong"


IMPURE = [name for name in PROGRAMS if name not in ("pure", "counter")]


@given(
    name=st.sampled_from(IMPURE), world=st.integers(2, 6), seed=st.integers(0), kills=kills(),
    period=st.integers(1, 10), change=st.integers(0, 60), flip=st.none() | st.integers(0, 60),
)  # fmt: skip
@settings(max_examples=SCHEDULES)
def test_a_program_fences_no_second_node_and_restarts_nothing(
    name: str, world: int, seed: int, kills: set[int], period: int, change: int, flip: int | None
) -> None:
    run = Run(name, world, Random(seed), period, change)
    run.begin()
    differed = False
    while run.step < STEPS and not run.stopped:
        many = len(run.members) > 2 or name in ("scheduler", "unfrozen", "clock")
        flips = run.step == flip and len(run.members) > 1
        run.turn(kill=run.step in kills and many and not flips, flip=run.random.randrange(9) if flips else None)
        if run.step < STEPS:  # what the last step makes differ is found by the digests at the session's end
            differed = differed or len({(p.state, p.rate) for p in run.members}) > 1
    healthy = [p for p in run.fenced if not p.flipped]
    event(f"{name}: {'stopped' if run.stopped else 'went on'}, {len(healthy)} fenced")
    assert len(healthy) <= 1 and not run.again
    assert not differed or run.stopped or run.fenced or kills  # a member that differed may have been killed first
    if run.stopped:
        assert run.stopped.startswith("the likely cause is the program, not a node: ")
        assert run.stopped.endswith("no node is fenced and nothing starts again")


@given(world=st.integers(2, 6), seed=st.integers(0), kills=kills(), rate=st.floats(0.02, 1.0))
@settings(max_examples=SCHEDULES)
def test_a_counter_in_the_cell_fences_no_second_node(world: int, seed: int, kills: set[int], rate: float) -> None:
    run = Run("counter", world, Random(seed))
    run.begin()
    while run.step < STEPS and not run.stopped:
        run.turn(kill=run.step in kills, draw=run.random.random() < rate)
    event(f"{'stopped' if run.stopped else 'went on'}, {len(run.fenced)} fenced")
    assert len(run.fenced) <= 1 and not run.again


# ---- one finding after the other ----------------------------------------------------------------------------------


def found(step: int, *accused: int, world: int = 3, evidence: str = STATE, **joined: int) -> ChargedVerdict:
    seats = tuple(Seat(f"m{i}", f"rank {i} on node-{i}", joined.get(f"m{i}")) for i in range(world))
    return ChargedVerdict(tuple(Charge(f"m{i}", "differs", evidence, step) for i in accused), seats)


def test_one_member_for_the_first_time_is_fenced() -> None:
    for evidence in (STATE, CHANGED, EXECUTION):
        assert not is_to_blame([], found(9, 1, evidence=evidence)).value
    assert not is_to_blame([], found(9, 0, world=1, evidence=CHANGED)).value


@pytest.mark.parametrize("evidence", [STATE, CHANGED, EXECUTION])
def test_the_same_twice_within_a_few_steps_is_the_program(evidence: str) -> None:
    first = found(9, 1, evidence=evidence)
    second = is_to_blame([first], found(9 + FEW_STEPS, 2, evidence=evidence))
    assert second.value
    assert "found before, after step 9 and after step 19 (rank 1 on node-1 and rank 2 on node-2)" in second.reason
    assert not is_to_blame([first], found(10 + FEW_STEPS, 2, evidence=evidence)).value
    other = {STATE: CHANGED, CHANGED: STATE, EXECUTION: STATE}[evidence]
    assert not is_to_blame([found(9, 1, evidence=other)], found(10, 2, evidence=evidence)).value


def test_a_newcomer_that_differs_lacks_history() -> None:
    for later in range(NEWCOMER_STEPS + 1):
        decision = is_to_blame([], found(8 + later, 2, m2=8))
        assert decision.value
        assert "rank 2 on node-2 joined after step 8 and has not run the loop before that" in decision.reason
        assert "hp.Session(..., scheduler=scheduler)" in decision.reason
    assert not is_to_blame([], found(9 + NEWCOMER_STEPS, 2, m2=8)).value
    pair = is_to_blame([], found(9, 0, 1, world=2, m1=8))
    assert "rank 1 on node-1 joined after step 8" in pair.reason
    outvoted = is_to_blame([], found(9, 0, m1=8, m2=8))
    assert "rank 1 on node-1 joined after step 8, rank 2 on node-2 joined after step 8" in outvoted.reason
    assert not is_to_blame([], found(8, 2, evidence=CHANGED, m2=8)).value, "its memory changed by itself"


def test_no_node_is_fenced_for_what_only_a_program_sets() -> None:
    assert "only a program sets requires_grad" in is_to_blame([], found(9, 1, evidence=FROZEN)).reason
    late = is_to_blame([], found(30, 2, evidence=FROZEN, m2=8)).reason
    assert "rank 2 on node-2 joined after step 8 and has not run the loop before that" in late
    statements = [Statement(f"m{i}", f"rank {i}", 4, frozen="bb" if i == 1 else "aa") for i in range(3)]
    assert [(c.member, c.evidence, c.step) for c in judge(statements).value] == [("m1", FROZEN, 4)]


def test_members_that_are_accused_at_once() -> None:
    for world in (2, 3, 8):
        decision = is_to_blame([], found(5, *range(world), world=world))
        assert decision.value and f"{world} of {world} members at once" in decision.reason
        assert "requires_grad" in decision.reason
    assert "through .data or numpy" in is_to_blame([], found(5, 0, 1, 2, evidence=CHANGED)).reason


def test_late_members_at_the_same_distance() -> None:
    """A schedule of the loop changes the rate every 30 steps: each newcomer differs when the others come to that."""
    first = found(30, 2, m2=12)
    assert not is_to_blame([], first).value
    assert is_to_blame([first], found(60, 2, m2=33)).value
    assert not is_to_blame([first], found(31 + LATE_STEPS, 2, m2=33)).value
    assert not is_to_blame([first], found(60, 1)).value, "this one was there from the beginning"


def test_juniors_do_not_outvote_who_was_there_before() -> None:
    assert "joined later than the one that differs" in is_to_blame([], found(30, 0, m1=12, m2=12)).reason
    assert not is_to_blame([], found(30, 0, world=4, m1=12, m2=12)).value


def test_charges_carry_their_evidence() -> None:
    statements = [Statement(f"m{i}", f"rank {i}", 4, "aa", "bb" if i == 1 else "aa") for i in range(3)]
    assert [(c.member, c.evidence, c.step) for c in judge(statements).value] == [("m1", CHANGED, 4)]
    statements = [Statement(f"m{i}", f"rank {i}", 4, *("bb", "bb") if i == 1 else ("aa", "aa")) for i in range(3)]
    assert [(c.member, c.evidence) for c in judge(statements).value] == [("m1", STATE)]
    assert Counter(c.evidence for c in judge(statements[:2]).value) == {STATE: 2}
    assert program.is_to_blame([], ChargedVerdict(judge(statements[:2]).value, ())).value
