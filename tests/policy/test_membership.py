"""Who is in, who is lost; each decision with its sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.policy.membership import (
    BEATS_LOST_S,
    LEASE_S,
    PARTITION,
    SETTLE_S,
    SHORT_LEASE_S,
    SILENT_S,
    STOP_S,
    STOPPED_S,
    UNCONFIRMED_S,
    Candidate,
    MemberHeartbeat,
    beat_interval_s,
    first_timeout_s,
    hang_timeout_s,
    lease_s,
    leave_after,
    leavers,
    longest_gap_s,
    lost,
    next_members,
    start,
)

small = st.integers(0, 8)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    ranks = draw(st.lists(st.integers(0, 20), unique=True, max_size=8))
    members = [Candidate(f"m{rank}", f"node-{rank}", rank, True) for rank in ranks]
    new = [Candidate(f"n{i}", f"spare-{i}", None, draw(st.booleans())) for i in range(draw(small))]
    return draw(st.permutations(members + new))


@given(small, st.integers(1, 8), st.integers(1, 8), st.floats(0, 60))
def test_a_job_starts_with_all_or_after_a_while_with_enough(
    ready: int, target: int, minimum: int, waited_s: float
) -> None:
    decision = start(ready, target, minimum, waited_s)
    assert decision.reason
    assert decision.value in (0, min(ready, target))
    if ready >= target:
        assert decision.value == target
    elif decision.value:
        assert ready >= minimum and waited_s >= 2.0


@given(candidates(), st.integers(1, 8), st.integers(1, 8))
def test_members_keep_their_order_and_newcomers_follow(found: list[Candidate], target: int, minimum: int) -> None:
    decision = next_members(found, target, minimum)
    assert decision.reason
    by_name = {c.member: c for c in found}
    usable = [c for c in found if c.rank is not None or c.ready]
    if decision.value is None:
        assert min(len(usable), target) < minimum
        return
    chosen = [by_name[name] for name in decision.value]
    assert len(set(decision.value)) == len(chosen) == min(len(usable), target) >= minimum
    ranks = [c.rank for c in chosen if c.rank is not None]
    assert ranks == sorted(ranks)
    assert chosen[: len(ranks)] == [c for c in chosen if c.rank is not None], "survivors first"
    assert all(c.ready for c in chosen if c.rank is None)
    for rank, candidate in enumerate(chosen):
        assert candidate.rank is None or rank <= candidate.rank, "a survivor's rank only ever shrinks"


def test_the_sentence_names_who_joined_and_how_many_left() -> None:
    found = [Candidate("a", "node-1", 0, True), Candidate("b", "node-5", None, True)]
    assert next_members(found, 2, 1).reason == "2 of 2 members; node-5 joined"
    found = [Candidate("a", "node-1", 0, True), Candidate("b", "node-2", 1, True)]
    assert next_members(found, 1, 1).reason == "1 of 1 members; 1 released"
    assert "at least 3 are needed" in next_members(found, 3, 3).reason


@given(st.none() | st.floats(1e-4, 100), st.floats(0.1, 60))
def test_hang_timeouts_never_fall_below_the_floor(step_s: float | None, floor_s: float) -> None:
    assert hang_timeout_s(step_s, floor_s) >= floor_s


@given(st.none() | st.floats(1e-4, 100), st.floats(0.1, 60), st.floats(0, 100))
def test_a_first_micro_batch_may_take_longer(step_s: float | None, floor_s: float, longest_s: float) -> None:
    limit_s = first_timeout_s(step_s, floor_s, longest_s)
    assert limit_s >= max(hang_timeout_s(step_s, floor_s), 20 * floor_s, longest_s)
    waiting = MemberHeartbeat("b", 0.0, 1e6, "exchange")
    for age_s, value in ((0.99 * limit_s, None), (1.01 * limit_s, ("a", "process hung"))):
        assert (
            lost([MemberHeartbeat("a", 0.0, age_s, "warm-up"), waiting], hang_timeout_s(step_s, floor_s), limit_s).value
            == value
        )
    found = lost([MemberHeartbeat("a", 0.0, 1.01 * limit_s, "warm-up"), waiting], floor_s, limit_s)
    assert "in the first micro-batch of its process" in found.reason


@st.composite
def pulses(draw: st.DrawFn) -> list[MemberHeartbeat]:
    ages = st.floats(0, 10)
    phases = st.sampled_from(["idle", "user", "compute", "warm-up", "exchange", "closing", "done"])
    return [
        MemberHeartbeat(
            f"m{i}",
            draw(ages) / 3,
            draw(ages),
            draw(phases),
            draw(st.sampled_from([0.0, 0.0, 0.4, 0.6])),
            draw(st.none() | st.floats(0, 2)),
            draw(st.floats(SHORT_LEASE_S, LEASE_S)),
        )
        for i in range(draw(st.integers(0, 6)))
    ]


@given(pulses(), st.floats(0.1, 5))
def test_only_those_that_show_a_symptom_are_fenced(found: list[MemberHeartbeat], timeout_s: float) -> None:
    decision = lost(found, timeout_s)
    assert decision.reason
    if decision.value is None:
        assert all(p.beat_age_s <= BEATS_LOST_S and p.stopped_s <= STOPPED_S for p in found)
        return
    name, cause = decision.value
    pulse = next(p for p in found if p.member == name)
    assert name in decision.reason
    stuck = pulse.phase in ("compute", "warm-up") and pulse.progress_age_s > timeout_s
    if pulse.unconfirmed_s is not None and cause != "process stopped":
        assert cause == PARTITION and pulse.beat_age_s >= pulse.lease_s + STOP_S, "it stops before it is fenced"
        assert pulse.beat_age_s > BEATS_LOST_S or pulse.unconfirmed_s >= UNCONFIRMED_S
    elif cause == "heartbeat lost":
        assert pulse.beat_age_s > BEATS_LOST_S or (stuck and pulse.beat_age_s > SILENT_S)
    elif cause == "process stopped":
        assert pulse.stopped_s > STOPPED_S
    else:
        assert cause == "process hung" and stuck
        assert any(p.phase == "exchange" and p.progress_age_s > timeout_s for p in found), "nobody waits, nobody hangs"


def test_a_long_step_on_one_member_is_no_hang() -> None:
    alone = [MemberHeartbeat("a", 0.0, 100.0, "compute")]
    assert lost(alone, 1.0).value is None
    outside = [MemberHeartbeat("a", 0.0, 100.0, "user"), MemberHeartbeat("b", 0.0, 100.0, "exchange")]
    assert lost(outside, 1.0).value is None


SIZES = ElasticRange.parse("1,2,4,8")


def gang(members: int, newcomers: int = 0) -> list[Candidate]:
    found = [Candidate(f"m{i}", f"node-{i + 1}", i, True) for i in range(members)]
    return found + [Candidate(f"n{i}", f"node-{members + i + 1}", None, True) for i in range(newcomers)]


def test_newcomers_join_only_up_to_an_allowed_size() -> None:
    sizes = [len(next_members(gang(2, n), 8, 1, SIZES).value or ()) for n in range(7)]
    assert sizes == [2, 2, 4, 4, 4, 4, 8]


def test_after_a_loss_the_job_goes_on_with_what_it_has() -> None:
    assert len(next_members(gang(3), 4, 1, SIZES).value or ()) == 3
    assert leavers(gang(3), (), 4, SIZES, unsettled_s=1.0).value == ()
    decision = leavers(gang(3), (), 4, SIZES, unsettled_s=SETTLE_S)
    assert decision.value == ("m2",)
    assert decision.reason == "nobody came for 5 s, and 3 is none of the sizes 1,2,4,8: rank 2 leaves"


def test_the_preempted_leave_first_and_then_the_highest_ranks() -> None:
    decision = leavers(gang(4), {"m0"}, 2, ElasticRange(1, 4))
    assert decision.value == ("m0", "m3")
    assert decision.reason == "node-1 is preempted; the job is to run on 2: rank 0, 3 leaves"
    assert leavers(gang(2), {"m0", "m1"}, 2, ElasticRange(1, 4)).value == ("m1",), "somebody has to keep the state"


@given(
    st.integers(1, 9), st.sets(st.integers(0, 8)), st.integers(1, 8), st.sampled_from([None, "2,4,8", "1:8:7", "3:8"]),
    st.floats(0, 60),
)  # fmt: skip
def test_whoever_leaves_somebody_stays(members: int, doomed: set[int], target: int, text: str, age_s: float) -> None:
    allowed = ElasticRange.parse(text or "1:8")
    preempted = {f"m{i}" for i in doomed}
    decision = leavers(gang(members), preempted, target, allowed, age_s)
    staying = [c for c in gang(members) if c.member not in decision.value]
    assert staying and decision.reason
    survivors = [c for c in gang(members) if c.member not in preempted]
    assert not survivors or len(staying) <= min(target, len(survivors))
    assert not {c.member for c in staying} & preempted or len(staying) == 1
    if age_s >= SETTLE_S and len(staying) >= allowed.minimum:
        assert allowed.allows(len(staying)), "what a loss left between two sizes is settled"
    again = leavers(staying, preempted, target, allowed, age_s).value
    assert again == (), "asking again changes nothing"


@given(st.integers(2, 8), st.integers(0, 8), st.integers(1, 8), st.sampled_from(["2,4,8", "1:8:7", "1:8"]))
def test_no_newcomer_joins_to_a_size_that_is_not_allowed(members: int, ready: int, target: int, text: str) -> None:
    allowed = ElasticRange.parse(text)
    chosen = next_members(gang(members, ready), allowed.clamp(target), 1, allowed).value
    assert chosen is not None
    kept = min(members, allowed.clamp(target))
    assert len(chosen) == kept or allowed.allows(len(chosen)), "between two sizes only what is left of a loss"


def test_those_who_leave_together_leave_after_a_step_that_nobody_has_passed() -> None:
    assert leave_after(7, None) == 8
    assert leave_after(7, 1.0) == 8
    assert leave_after(7, 0.01) == 13


def test_who_stood_still_when_last_heard_is_hung_and_who_fell_silent_later_is_not() -> None:
    others = [MemberHeartbeat("b", 0.0, 5.0, "exchange")]
    assert lost([MemberHeartbeat("a", 0.1, 1.2, "compute"), *others], 1.0).value == ("a", "process hung")
    assert lost([MemberHeartbeat("a", 0.4, 1.2, "compute"), *others], 1.0).value is None
    assert lost([MemberHeartbeat("a", 1.2, 1.2, "compute"), *others], 1.0).value == ("a", "heartbeat lost")
    assert lost([MemberHeartbeat("a", 1.2, 1.2, "compute", 0.0, 0.9), *others], 1.0).value is None


@pytest.mark.parametrize(("members", "interval_s"), [(1, 0.1), (250, 0.1), (500, 0.2), (1250, 0.5), (10_000, 0.5)])
def test_members_of_large_jobs_beat_less_often(members: int, interval_s: float) -> None:
    assert beat_interval_s(members) == pytest.approx(interval_s)
    assert beat_interval_s(members) < min(lease_s(interval_s, 0.0), BEATS_LOST_S) / 2


def cut_off(beat_age_s: float, *others_s: float, unconfirmed_s: float | None = 0.5, lease: float = 0.5) -> object:
    """Whom the coordinator fences where one member is silent and its host, and the others were heard so long ago."""
    silent = MemberHeartbeat("a", beat_age_s, 0.0, "user", 0.0, unconfirmed_s, lease)
    return lost(
        [silent, *(MemberHeartbeat(f"o{i}", age_s, 0.0, "user") for i, age_s in enumerate(others_s))], 1.0
    ).value


def test_a_host_that_confirms_nothing_is_lost_sooner_than_one_that_is_busy() -> None:
    assert cut_off(0.74, 0.1) is None
    assert cut_off(0.76, 0.1) == ("a", PARTITION)
    assert cut_off(1.9, 0.1, unconfirmed_s=None) is None
    assert cut_off(2.1, 0.1, unconfirmed_s=None) == ("a", "heartbeat lost")
    assert cut_off(0.76, 0.1, unconfirmed_s=0.3) is None, "it was asked a moment ago"
    assert cut_off(1.74, 0.1, lease=LEASE_S) is None and cut_off(1.76, 0.1, lease=LEASE_S) == ("a", PARTITION)


def test_where_most_are_silent_it_may_be_the_coordinator_that_is_cut_off() -> None:
    assert cut_off(0.8) is None and cut_off(2.1) == ("a", PARTITION)
    assert cut_off(0.8, 0.8) is None
    assert cut_off(0.8, 0.7, 0.1) == ("a", PARTITION)
    assert cut_off(0.8, 0.7, 0.7, 0.1) is None


@given(st.lists(st.tuples(st.floats(0, 4), st.floats(0, 600)), max_size=30), st.floats(0.1, 0.5))
def test_a_lease_follows_the_gaps_that_were_seen(gaps: list[tuple[float, float]], interval_s: float) -> None:
    seen_s = 0.0
    for gap_s, passed_s in gaps:
        before_s, seen_s = seen_s, longest_gap_s(seen_s, gap_s, passed_s)
        assert seen_s <= before_s or gap_s <= BEATS_LOST_S, "a cut is no delay"
        length_s = lease_s(interval_s, seen_s)
        assert SHORT_LEASE_S <= length_s <= LEASE_S < BEATS_LOST_S
        assert length_s == LEASE_S or length_s >= 2.4 * min(gap_s, BEATS_LOST_S) or gap_s > BEATS_LOST_S
        assert length_s == LEASE_S or length_s > 2 * interval_s
    forgotten = lease_s(0.1, longest_gap_s(seen_s, 0.1, 1800.0))
    assert forgotten == pytest.approx(SHORT_LEASE_S), "what was long is forgotten"
