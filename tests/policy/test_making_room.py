"""Which job leaves nodes to which other one, and that some job begins wherever one can."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.policy.cluster.gifts import PATIENCE_S, YOUNGER_S, Gang, Gift, gifts


def gang(name: str, needs: int, holds: int, order: float = 0.0, waits_s: float = PATIENCE_S) -> Gang:
    return Gang(name, "gpu", False, 0, order, needs, needs - holds, holds, waits_s)


A, B = gang("a", 2, 1), gang("b", 2, 1, order=1)


def given_away(*gangs: Gang) -> list[Gift]:
    return [decision.value for decision in gifts(gangs)]


def test_of_two_jobs_that_wait_for_each_other_the_older_begins() -> None:
    (decision,) = gifts([B, A])
    assert decision.value == Gift("b", "a", 1)
    assert decision.reason == "leaves 1 node to a, which can begin then; this job has 1 of the 2 nodes that it needs"


def test_one_of_a_higher_priority_comes_first_and_one_that_has_begun_before_all() -> None:
    assert given_away(A, replace(B, priority=1)) == [Gift("a", "b", 1)]
    begun = replace(B, begun=True, holds=0)
    (decision,) = gifts([replace(A, priority=1), begun])
    assert decision.value == Gift("a", "b", 1)
    assert "leaves 1 node to b, which can go on then; " in decision.reason


def test_nothing_is_left_before_the_scheduler_had_time_or_where_it_is_about_to_start_one() -> None:
    assert given_away(replace(A, waits_s=PATIENCE_S - 1), B) == []
    assert given_away(A, replace(B, waits_s=0)) == [], "it may have what it needs in a moment"


def test_a_job_whose_nodes_hold_its_state_leaves_nothing() -> None:
    assert given_away(replace(A, begun=True, holds=0), replace(B, begun=True, holds=0)) == []
    assert given_away(replace(A, begun=True), replace(B, begun=True)) == [Gift("b", "a", 1)], "all were lost"


def test_a_job_that_waits_for_something_else_than_a_node_is_left_none_and_leaves_its_own() -> None:
    assert (
        given_away(replace(A, takes=False), B) == [] and given_away(B, replace(gang("c", 2, 1, 2), takes=False)) != []
    )
    assert given_away(replace(A, takes=False), replace(B, waits_s=YOUNGER_S)) == [Gift("a", "b", 1)]


def test_nothing_is_left_where_it_would_not_do_or_cannot_be_used() -> None:
    assert given_away(gang("a", 4, 1), B) == []
    assert given_away(A, replace(B, kind="cpu")) == []


def test_only_as_many_are_left_as_are_missing_and_by_the_youngest_first() -> None:
    assert given_away(gang("a", 4, 2), gang("b", 9, 3, 1), gang("c", 9, 1, 2)) == [Gift("c", "a", 1), Gift("b", "a", 1)]


def test_a_job_that_waits_for_nodes_that_do_not_come_makes_room_for_younger_ones_in_the_end() -> None:
    large, small = gang("a", 10, 8, waits_s=9e9), gang("b", 2, 0, order=1, waits_s=YOUNGER_S)
    assert given_away(large, small) == [Gift("a", "b", 2)]
    assert given_away(large, replace(small, waits_s=YOUNGER_S - 1)) == []


@st.composite
def situations(draw: st.DrawFn) -> list[Gang]:
    found = []
    for number in range(draw(st.integers(1, 6))):
        needs = draw(st.integers(1, 6))
        found.append(
            Gang(
                job_id=f"job-{number}",
                kind=draw(st.sampled_from(["gpu", "cpu"])),
                begun=draw(st.booleans()),
                priority=draw(st.integers(-1, 1)),
                order=draw(st.floats(0, 9)),
                needs=needs,
                missing=draw(st.integers(1, needs)),
                holds=draw(st.integers(0, needs)),
                waits_s=draw(st.sampled_from([0.0, PATIENCE_S, YOUNGER_S])),
                takes=draw(st.booleans()),
            )
        )
    return found


@given(situations())
def test_nobody_leaves_more_than_it_has_and_every_taker_gets_all_that_it_lacks(gangs: list[Gang]) -> None:
    known = {one.job_id: one for one in gangs}
    found = given_away(*gangs)
    for name in {gift.giver for gift in found}:
        assert sum(gift.nodes for gift in found if gift.giver == name) <= known[name].holds
    for name in {gift.taker for gift in found}:
        mine = [gift for gift in found if gift.taker == name]
        assert sum(gift.nodes for gift in mine) == known[name].missing
        assert known[name].takes
        assert {known[gift.giver].kind for gift in mine} == {known[name].kind}
    assert not {gift.giver for gift in found} & {gift.taker for gift in found}


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.integers(2, 8), st.randoms())
def test_whatever_a_scheduler_gives_to_whom_all_jobs_run_in_the_end(needs: list[int], nodes: int, dice: object) -> None:
    """A cluster on which each job alone would fit, and a scheduler that gives each free node to anybody."""
    needs = [min(one, nodes) for one in needs]
    holds, free, done = [0] * len(needs), nodes, set[int]()
    for _ in range(200):
        waiting = [at for at in range(len(needs)) if at not in done and holds[at] < needs[at]]
        while free and (wanting := [at for at in waiting if holds[at] < needs[at]]):
            holds[dice.choice(wanting)] += 1  # type: ignore[attr-defined]
            free -= 1
        for at in [at for at in waiting if holds[at] == needs[at]]:
            done.add(at)
            free, holds[at] = free + holds[at], 0
        stuck = [
            gang(str(at), needs[at], holds[at], order=at, waits_s=YOUNGER_S)
            for at in range(len(needs))
            if at not in done and holds[at] < needs[at]
        ]
        if free or not stuck:
            continue
        for gift in given_away(*stuck):
            holds[int(gift.giver)] -= gift.nodes
            holds[int(gift.taker)] += gift.nodes
        for at in [at for at in range(len(needs)) if at not in done and holds[at] == needs[at]]:
            done.add(at)
            free, holds[at] = free + holds[at], 0
    assert done == set(range(len(needs)))
