"""Who gets which nodes: examples a person would name, and what must hold for any cluster and any jobs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.policy.cluster.capacity import lacks
from jupyter_hyperpod.policy.decision import Decision
from jupyter_hyperpod.policy.scaling import Claim, Grant, ScalableNode, allot

SIZES = ElasticRange.parse("1,2,4,8")


def cluster(nodes: int, spares: int = 0, busy: tuple[str, ...] = ()) -> list[ScalableNode]:
    names = [f"node-{i + 1}" for i in range(nodes + spares)]
    return [ScalableNode(name, i >= nodes, name not in busy) for i, name in enumerate(names)]


def by_job(decisions: tuple[Decision[Grant], ...]) -> dict[str, Decision[Grant]]:
    return {decision.value.job_id: decision for decision in decisions}


def test_a_job_takes_its_nodes_and_the_spare_stands_by() -> None:
    (decision,) = allot([Claim("a", 0, 1, minimum=4, target=4, spares=1)], cluster(4, 1))
    assert decision.value.start == ("node-1", "node-2", "node-3", "node-4", "node-5")
    assert "node-5 as spare" in decision.reason


def test_node_10_comes_after_node_9() -> None:
    (decision,) = allot([Claim("a", 0, 1, minimum=11, target=11)], cluster(11))
    assert decision.value.start[-2:] == ("node-10", "node-11")


def test_a_job_that_never_fits_is_told_what_to_do() -> None:
    (decision,) = allot([Claim("a", 0, 1, minimum=5, target=5)], cluster(4, 1))
    assert not decision.value.possible
    assert "needs at least 5 nodes, this cluster has 4 (and 1 held back as spare)" in decision.reason


def test_a_job_that_never_fits_does_not_block_others() -> None:
    decisions = by_job(allot([Claim("big", 9, 1, 9, 9), Claim("a", 0, 2, 1, 1)], cluster(4)))
    assert decisions["a"].value.start == ("node-1",)


def test_two_jobs_queue_and_nobody_overtakes() -> None:
    running = Claim("a", 0, 1, 3, 3, running=True, commanded=3, held=("node-1", "node-2", "node-3"))
    decisions = by_job(
        allot(
            [running, Claim("b", 0, 2, 2, 2), Claim("c", 0, 3, 1, 1)], cluster(4, busy=("node-1", "node-2", "node-3"))
        )
    )
    assert decisions["b"].value.start == () and "waits for 1 node more" in decisions["b"].reason
    assert decisions["c"].value.start == () and "waits behind b" in decisions["c"].reason


def test_a_higher_priority_borrows_from_an_elastic_job_and_gives_back() -> None:
    held = ("node-1", "node-2", "node-3", "node-4")
    low = Claim("low", 0, 1, 2, 4, running=True, commanded=4, held=held)
    high = Claim("high", 5, 2, 2, 2)
    decisions = by_job(allot([low, high], cluster(4, busy=held)))
    assert decisions["low"].value.target == 2 and "lends 2 nodes" in decisions["low"].reason
    assert decisions["high"].value.start == ()

    low = Claim("low", 0, 1, 2, 4, running=True, commanded=2, held=held[:2])
    decisions = by_job(allot([low, high], cluster(4, busy=held[:2])))
    assert decisions["low"].value.target == 2
    assert decisions["high"].value.start == ("node-3", "node-4")

    decisions = by_job(allot([low], cluster(4, busy=held[:2])))
    assert decisions["low"].value.target == 4 and "gets 2 nodes back" in decisions["low"].reason
    assert decisions["low"].value.start == ("node-3", "node-4")


def test_an_equal_priority_does_not_borrow() -> None:
    held = ("node-1", "node-2", "node-3", "node-4")
    low = Claim("first", 0, 1, 2, 4, running=True, commanded=4, held=held)
    decisions = by_job(allot([low, Claim("second", 0, 2, 2, 2)], cluster(4, busy=held)))
    assert decisions["first"].value.target == 4


def test_an_elastic_trial_lends_to_those_of_its_sweep_that_wait_and_to_no_other() -> None:
    held = ("node-1", "node-2", "node-3", "node-4")
    first = Claim("first", -1, 1, 1, 4, running=True, commanded=4, held=held, sweep="s")
    second, third = (Claim(name, -1, order, 1, 4, sweep="s") for name, order in (("second", 2), ("third", 3)))
    decisions = by_job(allot([first, second, third], cluster(4, busy=held)))
    assert decisions["first"].value.target == 2
    assert decisions["first"].reason == "lends 2 nodes to another trial of its sweep and goes on with 2"
    assert (
        by_job(allot([first, Claim("other", -1, 2, 1, 4, sweep="t")], cluster(4, busy=held)))["first"].value.target == 4
    )
    assert by_job(allot([first], cluster(4, busy=held)))["first"].value.target == 4

    shrunk = Claim("first", -1, 1, 1, 4, running=True, commanded=2, held=held[:2], sweep="s")
    begun = by_job(allot([shrunk, second, third], cluster(4, busy=held[:2])))
    assert begun["second"].value.start == ("node-3",) and begun["third"].value.start == ("node-4",)
    last = Claim("third", -1, 3, 1, 4, running=True, commanded=1, held=("node-4",), sweep="s")
    assert by_job(allot([last], cluster(4, busy=("node-4",))))["third"].value.target == 4, "the last ones grow again"


def test_a_lost_node_goes_back_to_the_job_that_had_it() -> None:
    busy = ("node-1", "node-3", "node-4", "node-5")
    low = Claim("low", 0, 1, 4, 4, spares=1, running=True, commanded=4, held=busy)
    decisions = by_job(allot([low, Claim("high", 9, 2, 1, 1)], cluster(4, 1, busy=busy)))
    assert decisions["low"].value.start == ("node-2",)
    assert decisions["low"].reason == "takes node-2 as spare"
    assert decisions["high"].value.start == ()


def test_a_running_job_gets_its_minimum_back_before_a_waiting_one_of_higher_priority_starts() -> None:
    lender = Claim("lender", 0, 1, 1, 3, running=True, commanded=1, held=("node-1", "node-2", "node-3"))
    fixed = Claim("fixed", 0, 2, 1, 1, running=True, commanded=1)
    decisions = by_job(
        allot([lender, fixed, Claim("high", 9, 3, 2, 2)], cluster(4, busy=("node-1", "node-2", "node-3")))
    )
    assert decisions["fixed"].value.start == ("node-4",)
    assert decisions["high"].value.start == ()


def test_a_job_grows_only_to_an_allowed_size() -> None:
    claim = Claim("a", 0, 1, 1, 4, running=True, commanded=2, held=("node-1", "node-2"), allowed=SIZES)
    (decision,) = allot([claim], cluster(3, busy=claim.held))
    assert (decision.value.target, decision.value.start) == (2, ())
    (decision,) = allot([claim], cluster(4, busy=claim.held))
    assert (decision.value.target, decision.value.start) == (4, ("node-3", "node-4"))


def test_a_lender_goes_down_to_an_allowed_size() -> None:
    held = ("node-1", "node-2", "node-3", "node-4")
    low = Claim("low", 0, 1, 1, 4, running=True, commanded=4, held=held, allowed=SIZES)
    decisions = by_job(allot([low, Claim("high", 5, 2, 1, 1)], cluster(4, busy=held)))
    assert decisions["low"].value.target == 2


def test_what_a_loss_left_between_two_sizes_is_not_taken_away() -> None:
    claim = Claim("a", 0, 1, 1, 4, running=True, commanded=4, held=("node-1", "node-2", "node-3"), allowed=SIZES)
    (decision,) = allot([claim], cluster(3, busy=claim.held))
    assert (decision.value.target, decision.value.start) == (4, ())


def test_what_keeps_a_running_job_from_growing_is_named() -> None:
    held, wide = ("node-1", "node-2"), ("node-1", "node-2", "node-3", "node-4")
    small = Claim("a", 0, 1, 1, 3, running=True, commanded=3, held=held)
    other = Claim("b", 0, 2, 1, 2, running=True, commanded=2, held=wide[2:])
    assert lacks(small, [small, other], cluster(4, busy=wide)) == "none is free, held by b"
    spare = lacks(small, [small, other], cluster(4, 1, busy=wide))
    assert spare == "only spares are free, the others are held by b"
    assert lacks(small, [small], cluster(2, busy=held)) == "none is free; this cluster has 2"
    assert lacks(small, [small], cluster(3, busy=held)) == "", "a node is free: it is on its way"
    starting = [*cluster(2, busy=held), ScalableNode("node-3", False, False, up=False)]
    assert lacks(small, [small], starting) == "", "so it is here"
    assert lacks(other, [small, other], cluster(4, busy=wide)) == "", "it has what it wants"


def test_growing_waits_until_the_nodes_have_been_free_for_long_enough() -> None:
    held = ("node-1", "node-2")
    claim = Claim("a", 0, 1, 1, 4, running=True, commanded=2, held=held, scale_up_delay_s=30)

    def grant(idle_s: float) -> Decision[Grant]:
        machines = [ScalableNode(m.name, m.spare, m.free, idle_s=idle_s) for m in cluster(4, busy=held)]
        (decision,) = allot([claim], machines)
        return decision

    assert (grant(29.9).value.target, grant(29.9).value.start) == (2, ())
    assert (grant(30).value.target, grant(30).value.start) == (4, ("node-3", "node-4"))
    assert grant(30).reason == "gets 2 nodes back after 30 s and goes on with 4"


def test_neither_a_start_nor_shrinking_nor_the_minimum_waits() -> None:
    young = [ScalableNode(m.name, m.spare, m.free, idle_s=0.0) for m in cluster(4, busy=("node-1", "node-2"))]
    begins = Claim("begins", 0, 1, 1, 2, scale_up_delay_s=30)
    assert allot([begins], cluster(2))[0].value.start == ("node-1", "node-2")
    needy = Claim("needy", 0, 1, 3, 4, running=True, commanded=3, held=("node-1", "node-2"), scale_up_delay_s=30)
    assert allot([needy], young)[0].value.start == ("node-3",)
    held = ("node-1", "node-2", "node-3", "node-4")
    low = Claim("low", 0, 1, 1, 4, running=True, commanded=4, held=held, scale_up_delay_s=30)
    assert by_job(allot([low, Claim("high", 5, 2, 1, 1)], cluster(4, busy=held)))["low"].value.target == 3


def test_a_queue_borrows_idle_nodes_and_gives_them_back_first() -> None:
    queues = {"research": 3, "product": 1}
    held = ("node-1", "node-2", "node-3", "node-4")
    borrower = Claim("borrower", 9, 1, 1, 4, running=True, commanded=4, held=held, queue="product")
    (alone,) = allot([borrower], cluster(4, busy=held), queues)
    assert alone.value.target == 4, "idle nodes are borrowed"
    owner = Claim("owner", 0, 2, 1, 3, queue="research")
    decisions = by_job(allot([borrower, owner], cluster(4, busy=held), queues))
    assert decisions["borrower"].value.target == 1, "whatever its priority"
    assert decisions["borrower"].reason == (
        "lends 3 nodes to queue research, which is guaranteed them, and goes on with 1"
    )
    shrunk = Claim("borrower", 9, 1, 1, 4, running=True, commanded=1, held=held[:1], queue="product")
    decisions = by_job(allot([shrunk, owner], cluster(4, busy=held[:1]), queues))
    assert decisions["owner"].value.start == held[1:] and decisions["borrower"].value.target == 1


def test_a_node_that_comes_back_goes_first_to_a_job_that_has_less_than_it_is_guaranteed() -> None:
    """Nodes that are out of service count as those that are still to come."""
    plain = Claim("plain", 0, 1, 1, 4, running=True, commanded=4, held=("node-1", "node-2"), queue="teaching")
    wide = Claim("wide", 0, 2, 2, 5, running=True, commanded=5, held=("node-5", "node-6", "node-7"), queue="research")
    queues, busy = (
        {"research": 4, "teaching": 2},
        ("node-1", "node-2", "node-4", "node-5", "node-6", "node-7", "node-8"),
    )
    found = by_job(allot([plain, wide], cluster(8, busy=busy), queues))
    assert (found["plain"].value.start, found["wide"].value.start) == ((), ("node-3",))
    waiting = Claim("new", 0, 3, 1, 1, queue="research")
    wide = replace(wide, target=3, commanded=3)
    found = by_job(allot([plain, wide, waiting], cluster(8, busy=busy), queues))
    assert (found["plain"].value.start, found["new"].value.start) == ((), ("node-3",))


def test_a_borrower_gives_its_nodes_to_a_job_whose_guaranteed_node_is_out_of_service() -> None:
    queues = {"research": 3}
    mine = Claim("mine", 0, 2, 1, 3, 0, True, 3, ("node-1", "node-2"), queue="research")
    borrower = Claim("borrower", 0, 1, 1, 3, 0, True, 3, ("node-4", "node-5", "node-6"))
    machines = cluster(6, busy=(*mine.held, *borrower.held, "node-3"))
    starting = [*machines[:2], ScalableNode("node-3", False, False, up=False), *machines[3:]]
    assert by_job(allot([mine, borrower], starting, queues))["borrower"].value.target == 3, "it comes in a moment"
    drained = [*machines[:2], ScalableNode("node-3", False, False, up=False, away=True), *machines[3:]]
    lends = by_job(allot([mine, borrower], drained, queues))["borrower"]
    assert lends.value.target == 2 and "lends 1 node to queue research" in lends.reason
    leaves = replace(borrower, commanded=2)
    assert by_job(allot([mine, leaves], drained, queues))["borrower"].value.target == 2, "one is enough, and comes soon"
    shrunk = replace(leaves, held=("node-4", "node-5"))
    freed = [replace(machine, free=machine.free or machine.name == "node-6") for machine in drained]
    found = by_job(allot([mine, shrunk], freed, queues))
    assert found["mine"].value.start == ("node-6",) and found["borrower"].value.target == 2
    whole = replace(mine, held=(*mine.held, "node-6"))
    assert by_job(allot([whole, shrunk], drained, queues))["borrower"].value.target == 2, "there is none to get back"
    back = [replace(machine, free=machine.name == "node-3", up=True, away=False) for machine in drained]
    found = by_job(allot([whole, shrunk], back, queues))
    assert found["borrower"].value.start == ("node-3",) and found["borrower"].value.target == 3


def test_a_borrower_lends_what_can_be_used_while_a_node_is_out_of_service() -> None:
    queues = {"research": 4}
    owner = Claim("owner", 0, 2, 2, 4, 0, True, 4, ("node-1", "node-2"), ElasticRange.parse("2,4"), queue="research")
    borrower = Claim("borrower", 0, 1, 1, 2, 0, True, 2, ("node-5", "node-6"))
    away = [ScalableNode(f"node-{i}", False, False, up=i not in (3, 4), away=i in (3, 4)) for i in range(1, 7)]
    assert by_job(allot([owner, borrower], away, queues))["borrower"].value.target == 2, "3 are no use to the owner"
    two = replace(borrower, minimum=1, held=("node-5", "node-6", "node-7"), target=3, commanded=3)
    more = [*away, ScalableNode("node-7", False, False)]
    assert by_job(allot([owner, two], more, queues))["borrower"].value.target == 1
    waiting = Claim("waiting", 0, 3, 2, 2, queue="research")
    large = Claim("large", 9, 1, 1, 5, 0, True, 5, tuple(f"node-{i}" for i in range(1, 6)))
    drained = [ScalableNode(f"node-{i}", False, False, up=i != 6, away=i == 6) for i in range(1, 7)]
    told = by_job(allot([large, waiting], drained, queues))["large"].value.target
    assert told == 3, "a job that waits gets its minimum"
    asked = replace(large, commanded=told)
    assert by_job(allot([asked, waiting], drained, queues))["large"].value.target == told, "and no more, asked again"


def test_what_a_queue_is_guaranteed_is_not_lent_to_a_higher_priority() -> None:
    queues = {"research": 2}
    held = ("node-1", "node-2", "node-3", "node-4")
    owner = Claim("owner", 0, 1, 1, 4, running=True, commanded=4, held=held, queue="research")
    decisions = by_job(allot([owner, Claim("high", 9, 2, 3, 3)], cluster(4, busy=held), queues))
    assert decisions["owner"].value.target == 4 and "waits for 1 node more" in decisions["high"].reason
    decisions = by_job(allot([owner, Claim("high", 9, 2, 2, 2)], cluster(4, busy=held), queues))
    assert decisions["owner"].value.target == 2


def test_a_queue_that_is_not_there_is_named() -> None:
    (decision,) = allot([Claim("a", 0, 1, 1, 1, queue="reserch")], cluster(4), {"research": 2})
    assert not decision.value.possible
    assert "this cluster has no queue 'reserch'; its queues are research" in decision.reason


Situation = tuple[list[Claim], list[ScalableNode], dict[str, int]]


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    nodes, spares = draw(st.integers(1, 12)), draw(st.integers(0, 3))
    names = [f"node-{i + 1}" for i in range(nodes + spares)]
    free = draw(st.permutations(names))
    claims: list[Claim] = []
    for index in range(draw(st.integers(0, 6))):
        minimum = draw(st.integers(1, 6))
        target = draw(st.integers(minimum, 8))
        running = draw(st.booleans())
        take = draw(st.integers(0, min(len(free), target + 1))) if running else 0
        if running and sum(c.minimum for c in claims if c.running) + minimum > nodes:
            running, take = False, 0
        held, free = tuple(free[:take]), free[take:]
        allowed = draw(
            st.none() | st.builds(sizes_between, st.just(minimum), st.just(target), st.sets(st.integers(1, 8)))
        )
        commanded = draw(st.integers(minimum, target)) if running else 0
        claims.append(
            Claim(
                f"job-{index}", draw(st.integers(-2, 2)), float(draw(st.integers(0, 3))), minimum, target,
                draw(st.integers(0, 2)), running, allowed.clamp(commanded) if allowed and running else commanded, held,
                allowed, draw(st.sampled_from([0.0, 30.0])), draw(st.sampled_from(["", "a", "b"])),
                draw(st.sampled_from(["", "", "sweep"])),
            )
        )  # fmt: skip
    down = draw(st.sets(st.sampled_from(names)))
    ages = st.sampled_from([0.0, 30.0])
    away = draw(st.sets(st.sampled_from(names))) - {name for claim in claims for name in claim.held}
    machines = [
        ScalableNode(n, i >= nodes, n in free and n not in down | away, n not in away, draw(ages), away=n in away)
        for i, n in enumerate(names)
    ]
    guaranteed = draw(st.integers(0, nodes))
    return claims, machines, {"a": guaranteed, "b": draw(st.integers(0, nodes - guaranteed))}


def sizes_between(low: int, high: int, others: set[int]) -> ElasticRange:
    return ElasticRange(low, high, tuple(sorted({low, high, *(size for size in others if low < size < high)})))


@given(situations())
def test_what_holds_for_any_cluster_and_any_jobs(situation: Situation) -> None:
    claims, machines, queues = situation
    decisions = by_job(allot(claims, machines, queues))
    started = [name for decision in decisions.values() for name in decision.value.start]
    free = {machine.name for machine in machines if machine.free}
    assert len(decisions) == len(claims)
    assert len(started) == len(set(started)), "a node is given once"
    assert set(started) <= free, "only free nodes are given"
    for claim in claims:
        grant, reason = decisions[claim.job_id].value, decisions[claim.job_id].reason
        assert reason and "  " not in reason
        assert grant.target >= claim.minimum and grant.target <= claim.target
        assert claim.running or not grant.start or len(grant.start) >= claim.minimum, "a job starts with its minimum"
        assert len(claim.held) + len(grant.start) <= max(claim.target + claim.spares, len(claim.held))
        assert grant.possible or not claim.running
        if claim.running and grant.target != claim.commanded:
            assert claim.allowed is None or claim.allowed.allows(grant.target), "a job is told an allowed size"
        if claim.running and grant.target > claim.commanded and claim.scale_up_delay_s and not claim.queue:
            rested = sum(m.free and m.idle_s >= claim.scale_up_delay_s for m in machines)
            assert grant.target <= max(claim.minimum, claim.base + rested), "growing waits"


@given(situations(), st.randoms())
def test_the_order_in_which_jobs_are_named_does_not_matter(situation: Situation, random: object) -> None:
    claims, machines, queues = situation
    shuffled = list(claims)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert allot(claims, machines, queues) == allot(shuffled, machines, queues)


@given(situations())
def test_nodes_in_use_are_lent_only_to_a_higher_priority_or_its_own_sweep_or_given_back_to_a_queue(
    situation: Situation,
) -> None:
    claims, machines, queues = situation
    assume(sum(max(c.base, c.minimum) for c in claims if c.running) <= sum(not machine.spare for machine in machines))
    decisions = by_job(allot(claims, machines, queues))
    for claim in claims:
        if claim.running and decisions[claim.job_id].value.target < min(claim.base, claim.target):
            higher = any(not other.running and other.priority > claim.priority for other in claims)
            owner = any(other.queue and other.base < min(queues[other.queue], other.target) for other in claims)
            sibling = any(not other.running and other.sweep == claim.sweep != "" for other in claims)
            assert higher or owner or sibling


@given(situations())
def test_nobody_is_shrunk_below_what_its_queue_guarantees(situation: Situation) -> None:
    claims, machines, queues = situation
    assume(sum(max(c.base, c.minimum) for c in claims if c.running) <= sum(not machine.spare for machine in machines))
    decisions = by_job(allot(claims, machines, queues))
    for claim in claims:
        alone = [other for other in claims if other.queue == claim.queue] == [claim]
        others = sum(
            max(c.minimum, min(queues.get(c.queue, 0), c.target)) for c in claims if c is not claim and c.running
        )
        fits = others + queues.get(claim.queue, 0) <= sum(not machine.spare for machine in machines)
        if claim.running and alone and claim.queue and fits and claim.allowed is None:
            assert decisions[claim.job_id].value.target >= min(claim.base, queues[claim.queue], claim.target)


@given(situations())
def test_nobody_lends_again_while_its_nodes_are_still_being_released(situation: Situation) -> None:
    claims, machines, queues = situation
    first = by_job(allot(claims, machines, queues))
    told = [replace(c, commanded=first[c.job_id].value.target) if c.running else c for c in claims]
    again = by_job(allot(told, machines, queues))
    for claim in claims:
        if claim.running:
            assert again[claim.job_id].value.target >= min(first[claim.job_id].value.target, claim.base)


def test_a_borrower_with_a_spare_is_told_once() -> None:
    owner = Claim("owner", 0, 2, 1, 2, 0, True, 2, ("node-1",), queue="research")
    borrower = Claim("borrower", 0, 1, 1, 2, 1, True, 2, ("node-3", "node-4", "node-5"))
    machines = [ScalableNode(f"node-{i}", i == 5, False, up=i != 2, away=i == 2) for i in range(1, 6)]
    told = []
    for _ in range(4):
        target = by_job(allot([owner, borrower], machines, {"research": 2}))["borrower"].value.target
        told.append(target)
        borrower = replace(borrower, commanded=target)
    assert told == [1, 1, 1, 1]
