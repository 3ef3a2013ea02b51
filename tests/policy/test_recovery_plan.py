"""Whatever mix of reports arrives, all members end at the newest step, and nothing held is computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.policy.batching import cover, leaves_of
from jupyter_hyperpod.policy.recovery import (
    MemberState,
    NewcomerCheck,
    at_once,
    left_alone,
    newcomer_checks,
    newest_step,
    ordinary,
    pair_checks,
    plan,
)


@st.composite
def reports(draw: st.DrawFn) -> tuple[int, list[MemberState]]:
    """Members, newcomers with an older snapshot or with none, and anything they may hold."""
    count, world = draw(st.integers(1, 40)), draw(st.integers(1, 8))
    newest = draw(st.integers(1, 100))
    owners = draw(st.lists(st.integers(-1, world - 1), min_size=count, max_size=count))
    found = []
    for rank in range(world):
        step = draw(st.sampled_from([newest, newest, newest - 1, max(0, newest - 2), None]))
        leaves = [(leaf, leaf + 1) for leaf in range(count) if owners[leaf] == rank] if step is not None else []
        found.append(MemberState(step, cover(leaves, count), draw(st.integers(0, 3)) if step is not None else 0, "d"))
    return count, found


@given(reports())
def test_everybody_ends_at_the_newest_step(case: tuple[int, list[MemberState]]) -> None:
    count, found = case
    decision = plan(found, count)
    assert decision.value is not None and decision.reason
    chosen = decision.value
    newest = max((r.step for r in found if r.step is not None), default=None)
    if newest is None:
        assert chosen.step == 0 and chosen.donors == (0,)
        return
    assert chosen.step == newest
    for rank, report in enumerate(found):
        ways = [rank in chosen.donors, rank in dict(chosen.replay), rank in chosen.fresh]
        assert sum(ways) == 1, "each has exactly one way to the newest step"
        if rank in chosen.donors:
            assert report.step == newest
        if steps := dict(chosen.replay).get(rank):
            assert report.step == newest - steps
            assert found[chosen.donors[0]].history >= steps
    assert chosen.donors


@given(reports())
def test_nothing_held_for_the_step_is_computed_again(case: tuple[int, list[MemberState]]) -> None:
    count, found = case
    chosen = plan(found, count).value
    assert chosen is not None
    kept = [leaf for nodes in chosen.held for leaf in leaves_of(nodes)]
    computed = [leaf for share in chosen.shares for leaf in share]
    assert sorted(kept + computed) == list(range(count))
    for rank, nodes in enumerate(chosen.held):
        if nodes:
            assert nodes == found[rank].nodes and found[rank].step == chosen.step
    for rank in chosen.donors:
        if found[rank].step is not None:
            assert chosen.held[rank] == found[rank].nodes, "what a member at the newest step has finished is kept"


@given(st.integers(1, 40), st.lists(st.sampled_from("ab"), min_size=1, max_size=8))
def test_a_run_begins_from_one_state(count: int, digests: list[str]) -> None:
    decision = plan([MemberState(None, digest=digest) for digest in digests], count)
    assert decision.value is not None
    assert decision.value.fresh == tuple(rank for rank, digest in enumerate(digests) if digest != digests[0])
    assert decision.value.replay == ()
    assert ("different initial state" in decision.reason) == bool(decision.value.fresh)


def test_the_sentence_counts_what_was_kept_and_who_is_behind() -> None:
    found = [
        MemberState(5, ((0, 2),), 1),
        MemberState(4, ((2, 4),), 1),
        MemberState(None),
    ]
    assert plan(found, 8).reason == (
        "step 6 goes on with 2 of 8 micro-batches kept; the reduced gradient for 1 member behind; "
        "the state for 1 newcomer from 1 peer"
    )


def test_a_snapshot_that_is_a_little_old_is_brought_up_to_date() -> None:
    decision = plan([MemberState(7, (), 1), MemberState(7, (), 3), MemberState(5)], 4)
    assert (decision.value.replay, decision.value.fresh, decision.value.donors) == (((2, 2),), (), (1, 0))
    assert "the last 2 reduced gradients for 1 member behind" in decision.reason


def test_without_a_gradient_to_replay_those_behind_get_the_whole_state() -> None:
    chosen = plan([MemberState(5, (), 0), MemberState(4, (), 1)], 4).value
    assert chosen is not None
    assert (chosen.replay, chosen.fresh) == ((), (1,))


@pytest.mark.parametrize(
    ("vacancies", "state_bytes", "step_time_s", "now"),
    [
        (1, 10**9, 2.0, True),
        (1, 10**9, 1.9, False),
        (1, 10**12, None, True),
        (0, 0, None, False),
        (0, 0, 10.0, False),
        (1, 1_000, 0.005, True),
    ],
    ids=["half a step", "longer", "no step yet", "nobody is missing", "nobody is missing, later", "short steps"],
)
def test_newcomers_enter_at_once_where_the_pause_is_short(
    vacancies: int, state_bytes: int, step_time_s: float | None, now: bool
) -> None:
    assert at_once(vacancies, state_bytes, step_time_s).value is now


def test_nobody_goes_on_from_a_snapshot_alone() -> None:
    snapshot, nothing = MemberState(5, waiting=True, partial=True), MemberState(None, waiting=True)
    assert left_alone([snapshot, nothing, snapshot]).value == (0, 2)
    assert left_alone([snapshot, MemberState(5)]).value == () == left_alone([nothing]).value
    ahead = plan([snapshot, MemberState(4), nothing], 4).value
    assert (ahead.step, ahead.donors, ahead.fresh, ahead.joining) == (4, (1,), (0, 2), (0, 2))


def test_a_snapshot_of_the_present_step_gets_what_the_cells_carry() -> None:
    snapshot = MemberState(5, waiting=True, partial=True)
    found = plan([MemberState(5, history=1, repeatable=1), snapshot], 4).value
    assert (found.donors, found.fresh, found.replay, found.joining) == ((0,), (), (), (1,))


def test_who_evaluates_gives_newcomers_nothing_where_another_can() -> None:
    aside, settled, newcomer = MemberState(7, aside=True), MemberState(7), MemberState(None, waiting=True)
    found = plan([aside, settled, newcomer], 4).value
    assert found.donors == (1,) and found.fresh == (2,) and found.replay == ()
    assert plan([aside, aside, newcomer], 4).value.donors == (0, 1)


def test_newcomers_are_compared_with_a_member_that_has_trained() -> None:
    old, new = MemberState(4, (), 1), MemberState(None, unproven=True)
    assert plan([old, new, old], 4).value.proving == (1,)
    assert plan([new, new], 4).value.proving == (), "nobody is left to compare with"
    assert ordinary(plan([old, new], 4).value, 4).proving == ()


def test_what_a_newcomer_computes_is_compared_with_an_earlier_member_less_often_with_time() -> None:
    old, new = MemberState(6, (), 1), MemberState(None, unproven=True)
    first = plan([old, new, old, new], 8).value
    assert first.joined == (None, 6, None, 6)
    held = ordinary(first, 8)
    checks = (NewcomerCheck(1, 0, 2), NewcomerCheck(3, 2, 6))
    assert newcomer_checks(held, 6) == checks, "of their own micro-batches"
    due = [step - 6 for step in range(6, 100) if newcomer_checks(held, step)]
    assert due == [0, 1, 4, 16, 64]
    due = [step for step in range(6, 30) if newcomer_checks(held, step, runs=3)]
    assert due == [6, 7, 8, 9, 10, 11, 18, 19, 20], "all runs of a step"
    assert not newcomer_checks(held, 5), "the cell went back to a checkpoint"


def test_members_repeat_each_others_micro_batches_now_and_then() -> None:
    alone = ordinary(plan([MemberState(0)], 8).value, 8)
    assert not any(pair_checks(alone, step) for step in range(50))
    begun = plan([MemberState(0), MemberState(0), MemberState(0)], 8).value
    assert not pair_checks(begun, 3), "a step that was interrupted, or is the first"
    held = ordinary(begun, 8)
    due = [step + 1 for step in range(3000) if pair_checks(held, step)]
    assert due[:24] == [4, 5, 6, 7, 8, 10, 12, 13, 15, 16, 20, 24, 25, 30, 31, 32, 48, 49, 50, 63, 64, 96, 97, 100]
    assert len([turn for turn in due if turn <= 1024]) == 43 and due[-3:] == [2500, 2555, 3000]
    assert all(any(turn % every == 0 for turn in due if turn <= 3 * every + 6) for every in (2, 3, 5, 10, 50, 100, 500))
    assert all(any(turn % 2 for turn in due if turn >= begin) for begin in (5, 50, 500, 2000)), "in odd turns, too"
    assert not pair_checks(held, 16) and pair_checks(held, 16, at_end=True), "the last step of a loop"
    assert not pair_checks(held, 2, at_end=True)
    assert [step + 1 for step in range(12) if pair_checks(held, step, runs=3)] == [*range(10, 13)]
    seen = set()
    for step in due:
        checks = pair_checks(held, step - 1)
        assert [(check.newcomer, check.peer) for check in checks] == [(0, 1), (1, 2), (2, 0)]
        assert all(check.is_pair for check in checks)
        assert all(check.micro_batch in leaves_of(held.holdings[check.newcomer]) for check in checks)
        seen |= {check.micro_batch for check in checks}
    assert seen == set(range(8)), "each micro-batch comes some time"


def test_a_newcomer_is_compared_where_it_computes_nothing_and_where_the_first_members_are_gone() -> None:
    later = plan([MemberState(9, joined=6), MemberState(None, unproven=True)], 4).value
    assert later.joined == (6, 9) and newcomer_checks(later, 9)[0].peer == 0
    idle = replace(later, holdings=(((0, 4),), ()))
    assert newcomer_checks(idle, 9) == (), "nobody waits for it in the step that was interrupted"
    assert newcomer_checks(idle, 10) == (NewcomerCheck(1, 0, 0),)
    assert not newcomer_checks(plan([MemberState(9, joined=6)], 4).value, 9), "nobody was there before"
    assert plan([MemberState(9), MemberState(9)], 4).value.joined == ()


def test_newcomers_do_not_lead_a_cell_that_goes_back_to_a_later_checkpoint() -> None:
    early, late = (50, "a"), (100, "b")
    old = MemberState(None, checkpoints=(early,))
    new = MemberState(None, checkpoints=(early, late), waiting=True)
    chosen = plan([old, new, replace(old, checkpoints=())], 4).value
    assert (chosen.load, chosen.step, chosen.loaders, chosen.fresh) == (early, 50, (0, 1), (2,))
    assert newest_step([old, new]) == 50
    assert plan([replace(old, checkpoints=()), new], 4).value.load is None, "there is none to go back to"
    assert plan([new, new], 4).value.load == late, "all were lost"
