"""What a scheduler is asked for, and what is no longer counted on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.policy.allocation import DEADLINE_S, PATIENCE_S, AllocationStep, RequestedNode, decide

WISH = {"base": 2, "elastic": 2}
WHOLE = [
    RequestedNode("1_0", "base", True, "n1"),
    RequestedNode("1_1", "base", True, "n2"),
    RequestedNode("2_0", "elastic", True, "n3"),
    RequestedNode("2_1", "elastic", False),
]


def test_nothing_is_done_where_nothing_is_missing() -> None:
    decision = decide(WISH, WHOLE, minimum=2)
    assert decision.value == AllocationStep({})
    assert decision.reason == "nothing is missing"


def test_what_is_missing_is_asked_for_by_part() -> None:
    decision = decide(WISH, WHOLE[1:], minimum=2)
    assert decision.value == AllocationStep({"base": 1})
    assert decision.reason == "asks SLURM for 1 base node, 4 in all"


def test_nothing_is_asked_for_while_the_job_rests() -> None:
    assert decide(WISH, WHOLE[1:], minimum=2, rests=True).value == AllocationStep({})
    lost = [replace(WHOLE[0], lost_s=PATIENCE_S), *WHOLE[1:]]
    assert decide(WISH, lost, minimum=2, rests=True).value == AllocationStep({}, give_up=("1_0",))


def test_only_what_waits_is_given_back() -> None:
    assert decide({"base": 2, "elastic": 0}, WHOLE, minimum=2).value == AllocationStep({}, give_back=("2_1",))


def test_a_node_that_was_lost_is_given_up_after_a_while_and_replaced() -> None:
    cut = [replace(WHOLE[0], lost_s=PATIENCE_S - 0.1), *WHOLE[1:]]
    assert decide(WISH, cut, minimum=2).value == AllocationStep({}), "it may be back in a moment"
    decision = decide(WISH, [replace(WHOLE[0], lost_s=PATIENCE_S), *WHOLE[1:]], minimum=2)
    assert decision.value == AllocationStep({"base": 1}, give_up=("1_0",))
    assert decision.reason.startswith("n1 has not been heard for 3 s and is given up; asks SLURM for 1 base")


def test_a_node_that_goes_out_of_service_is_replaced_and_then_leaves() -> None:
    drained = [replace(WHOLE[0], drain="bad disk"), *WHOLE[1:]]
    decision = decide(WISH, drained, minimum=3)
    assert decision.value == AllocationStep({"base": 1}), "the job could not go on without it"
    assert "n1 goes out of service: bad disk" in decision.reason
    assert decide(WISH, drained, minimum=2).value == AllocationStep({"base": 1}, send_away=("1_0",))
    new = RequestedNode("3_0", "base", True, "n5")
    assert decide(WISH, [*drained, new], minimum=3).value == AllocationStep({}, send_away=("1_0",))
    left = replace(drained[0], leaving=True)
    assert decide(WISH, [left, *WHOLE[1:], new], minimum=3).value == AllocationStep({}), "it is told once"
    told = replace(drained[0], told=True)
    assert decide(WISH, [told, *WHOLE[1:]], minimum=2).value == AllocationStep({"base": 1}), "the job itself lets it go"


def test_a_place_that_is_held_is_given_up_and_asked_for_again() -> None:
    held = replace(WHOLE[3], held="launch failed requeued held")
    decision = decide(WISH, [*WHOLE[:3], held], minimum=2)
    assert decision.value == AllocationStep({"elastic": 1}, give_up=("2_1",))
    assert decision.reason.startswith("2_1 is given up: launch failed requeued held; asks SLURM for 1 elastic")


def test_a_node_that_runs_and_never_joins_is_given_up_at_its_deadline() -> None:
    late = [replace(WHOLE[0], silent_s=DEADLINE_S - 1), *WHOLE[1:]]
    assert decide(WISH, late, minimum=2).value == AllocationStep({}), "its libraries may still be on their way"
    decision = decide(WISH, late, minimum=2, deadline_s=60)
    assert decision.value == AllocationStep({"base": 1}, give_up=("1_0",), avoid=("n1",))
    assert decision.reason.endswith("; n1 is avoided")
    sentence = "1_0 has run on n1 for 299 s without joining the job, limit 60 s, and is given up; asks SLURM for 1 base"
    assert decision.reason.startswith(sentence)
    waits = [*WHOLE[:3], replace(WHOLE[3], silent_s=DEADLINE_S)]
    assert decide(WISH, waits, minimum=2).value == AllocationStep({}), "who waits has had no time yet"
    nobody = decide({"base": 1}, late[:1], minimum=1, deadline_s=60).value
    assert nobody == AllocationStep({"base": 1}, give_up=("1_0",)), "nobody has joined: it need not be the node"


places = st.lists(
    st.builds(
        RequestedNode,
        name=st.uuids().map(str),
        part=st.sampled_from(("base", "elastic")),
        running=st.booleans(),
        node=st.sampled_from(("n1", "n2", "n3")),
        lost_s=st.none() | st.floats(0, 10),
        drain=st.sampled_from(("", "bad disk")),
        leaving=st.booleans(),
        silent_s=st.none() | st.floats(0, 2 * DEADLINE_S),
    ),
    max_size=8,
)


@given(st.fixed_dictionaries({"base": st.integers(0, 4), "elastic": st.integers(0, 4)}), places, st.integers(0, 4))
def test_afterwards_each_part_has_what_it_wants(
    wish: Mapping[str, int], found: list[RequestedNode], minimum: int
) -> None:
    step = decide(wish, found, minimum).value
    kept = [p for p in found if p.name not in (*step.give_back, *step.give_up) and not (p.running and p.drain)]
    for part, count in wish.items():
        waiting = sum(p.part == part and not p.running for p in kept)
        running = sum(p.part == part and p.running for p in kept)
        assert running + waiting + step.submit.get(part, 0) == max(count, running)
    new = [RequestedNode(f"{part}-{i}", part, False) for part, count in step.submit.items() for i in range(count)]
    done = [replace(p, leaving=p.leaving or p.name in step.send_away) for p in found]
    done = [p for p in done if p.name not in (*step.give_back, *step.give_up)]
    assert decide(wish, [*done, *new], minimum).value == AllocationStep({}), "asked again, it has nothing more to say"


def test_nodes_of_a_deployment_stand_for_each_other() -> None:
    """Whoever releases nodes does not know their parts: a base node is not requested where an elastic one is over."""
    left = [WHOLE[2], replace(WHOLE[2], name="2_2", node="n4")]
    wish = {"base": 1, "elastic": 1}
    assert decide(wish, left, minimum=1).value == AllocationStep({"base": 1})
    assert decide(wish, left, minimum=1, alike=True).value == AllocationStep({})
    assert decide({"base": 2, "elastic": 1}, left, minimum=1, alike=True).value == AllocationStep({"base": 1})
    waits = [WHOLE[2], replace(WHOLE[3], name="2_2")]
    assert decide(wish, waits, minimum=1, alike=True).value == AllocationStep({"base": 1}, give_back=("2_2",))


def test_a_node_out_of_service_waits_for_others_that_are_ready() -> None:
    alone = replace(WHOLE[0], drain="bad disk", announced=False)
    found = decide({"base": 1}, [alone], minimum=1).value
    assert found == AllocationStep({"base": 1}, announce=("1_0",)), "or its replacement would be one too many"
    places = [replace(alone, announced=True), replace(WHOLE[1], ready=False)]
    assert decide({"base": 1}, places, minimum=1).value == AllocationStep({})
    assert decide({"base": 1}, [places[0], WHOLE[1]], minimum=1).value == AllocationStep({}, send_away=("1_0",))
