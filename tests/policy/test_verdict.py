"""Verdicts about silent corruption: the culprit is named, nobody else is, and nobody is believed without proof."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.policy.verdict import Statement, judge, next_execution, of_executions

SOUND = "aa"


def member(rank: int, step: int = 6, **found: object) -> Statement:
    return Statement(f"m{rank}", f"rank {rank}", step, **({"sealed": SOUND, "state": SOUND} | found))  # type: ignore[arg-type]


def named(statements: list[Statement]) -> set[str]:
    return {charge.member for charge in judge(statements).value}


def test_nothing_found_is_no_word() -> None:
    assert judge([]) == judge([member(0), member(1)]) == judge([member(0), member(1, step=7, sealed="bb", state="bb")])
    assert judge([member(0)]).reason == ""


@given(world=st.integers(1, 8), culprit=st.integers(0, 7))
def test_a_state_that_changed_by_itself_convicts(world: int, culprit: int) -> None:
    culprit %= world
    found = [member(rank, tensors={f"m{culprit}": "head.weight"}) for rank in range(world)]
    found[culprit] = member(culprit, state="bb")
    if world > 1:
        assert "(head.weight)" in judge(found).reason
    assert named(found) == {f"m{culprit}"}
    assert f"the state of rank {culprit} changed during step 7" in judge(found).reason


@given(wrong=st.lists(st.booleans(), min_size=2, max_size=8))
def test_two_that_agree_prove_each_other_right(wrong: list[bool]) -> None:
    """Corrupt states are all different; each is self-consistent, as after a wrong multiplication."""
    found = [
        member(rank, sealed=f"b{rank}", state=f"b{rank}") if bad else member(rank) for rank, bad in enumerate(wrong)
    ]
    expected = {f"m{rank}" for rank, bad in enumerate(wrong) if bad}
    if wrong.count(False) < 2 and expected:
        expected = {f"m{rank}" for rank in range(len(wrong))}
        assert "none can be proven right" in judge(found).reason
    assert named(found) == expected


@given(changed=st.lists(st.sampled_from(["sound", "changed", "other"]), min_size=1, max_size=6))
def test_a_sound_pair_is_never_charged(changed: list[str]) -> None:
    found = []
    for rank, what in enumerate(changed):
        sealed, state = {"sound": (SOUND, SOUND), "changed": (SOUND, f"c{rank}"), "other": (f"o{rank}", f"o{rank}")}[
            what
        ]
        found.append(member(rank, sealed=sealed, state=state))
    guilty = named(found)
    assert guilty >= {f"m{rank}" for rank, what in enumerate(changed) if what == "changed"}
    if changed.count("sound") >= 2:
        assert guilty == {f"m{rank}" for rank, what in enumerate(changed) if what != "sound"}


def test_members_at_different_steps_are_not_compared() -> None:
    assert named([member(0), member(1, step=7, sealed="bb", state="bb"), member(2, state="cc")]) == {"m2"}


def test_a_gradient_that_differs_is_reduced_again_by_two_and_outvoted_by_three() -> None:
    pair = [member(0, gradient="01"), member(1, gradient="02")]
    assert judge(pair).value == () and "reduced again" in judge(pair).reason
    assert named([*pair, member(2, gradient="01")]) == {"m1"}
    again = [member(0, gradient="01", again="02"), member(1, gradient="02", again="02")]
    assert named(again) == {"m0"}
    never = [member(0, gradient="01", again="03"), member(1, gradient="02", again="04")]
    assert named(never) == {"m0", "m1"} and "twice" in judge(never).reason


@given(world=st.integers(1, 6), owner=st.integers(0, 5), draw=st.integers(0, 2**64 - 1), wrong=st.integers(0, 3))
def test_one_wrong_execution_is_named(world: int, owner: int, draw: int, wrong: int) -> None:
    owner %= world
    done: list[tuple[int, str]] = []
    while (rank := next_execution(done, owner, world, draw)) is not None:
        assert 0 <= rank < world and len(done) < 4
        done.append((rank, "bad" if len(done) == wrong else "good"))
    checksums = [checksum for _, checksum in done]
    assert done[0][0] == owner
    assert world < 2 or done[1][0] != owner
    if wrong > 1:
        assert len(done) == 2 and of_executions(checksums).value is None
        return
    assert of_executions(checksums).value == wrong
    executions = tuple((f"m{rank}", checksum) for rank, checksum in done)
    assert named([member(rank, executions=executions) for rank in range(world)]) == {f"m{done[wrong][0]}"}


@given(checksums=st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
def test_executions_without_a_majority_prove_nothing(checksums: list[str]) -> None:
    counts = sorted(Counter(checksums).values())
    decision = of_executions(checksums)
    assert (decision.value is None) == (len(counts) == 1 or counts[-1] == counts[-2])
    assert decision.reason
