"""Until which step two runs are the same to the last bit: a fact about what both journals have, and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.policy.identity import DIFFERENT, SAME, UNKNOWN, KnownSteps, same_until


def known(name: str, losses: dict[int, int], closed: int | None = None, digest: str = "") -> KnownSteps:
    steps = sorted(losses)
    return KnownSteps(name, steps, [losses[step] for step in steps], closed, digest)


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, int]]:
    """Two runs that are the same until some step, of which journals have kept some steps."""
    length = draw(st.integers(0, 30))
    same = draw(st.integers(0, length))
    whole = {step: 1000 + step for step in range(1, length + 1)}
    other = {step: loss if step <= same else loss + 500 for step, loss in whole.items()}
    if draw(st.booleans()):
        return whole, other
    kept = st.sets(st.integers(1, max(1, length)))
    return tuple({step: run[step] for step in draw(kept) if step in run} for run in (whole, other))  # type: ignore[return-value]


@given(runs(), st.sampled_from([None, "same", "other"]))
def test_it_says_what_is_known_and_no_more(pair: tuple[dict[int, int], dict[int, int]], end: str | None) -> None:
    one, other = pair
    last = max(one.keys() | other.keys(), default=7)
    ends = {None: ("", ""), "same": ("ab", "ab"), "other": ("ab", "cd")}[end]
    first, second = (
        known(name, run, last if end else None, digest)
        for name, run, digest in zip(("a", "b"), (one, other), ends, strict=True)
    )
    decision = same_until(first, second)
    found, told = decision.value, decision.reason
    common = sorted(one.keys() & other.keys())
    different = [step for step in common if one[step] != other[step]]
    assert found.compared == len(common)
    assert found.differs_at == (different[0] if different else None)
    assert found.state == (None if end is None else end == "same")
    equal = [step for step in common if not different or step < different[0]]
    if common:
        assert found.step == (equal[-1] if equal else None)
        assert (found.verdict == SAME) == (not different and end != "other")
    elif end is None:
        assert found.verdict == UNKNOWN and "nothing to compare" in told
    if equal:
        span = set(range(equal[0], equal[-1] + 1))
        assert found.exact == (span <= one.keys() and span <= other.keys())
        assert ("both journals still have" in told) == (not found.exact)
        assert f"until step {equal[-1]}" in told
    if different:
        assert found.verdict == DIFFERENT and str(different[0]) in told
    if end == "other":
        assert found.verdict == DIFFERENT
    assert same_until(second, first).value.step == found.step, "it does not depend on the order"


def test_the_sentences() -> None:
    whole = {step: step for step in range(1, 6)}
    later = whole | {4: 40, 5: 50}
    assert same_until(known("a", whole, 5, "x"), known("b", whole, 5, "x")).reason == (
        "a and b are bit-identical until step 5; their states after step 5 have the same digest"
    )
    assert same_until(known("a", whole, 5, "x"), known("b", later, 5, "y")).reason == (
        "a and b are bit-identical until step 3; the loss of step 4 differs"
    )
    assert same_until(known("a", whole, 5, "x"), known("b", whole, 5, "y")).reason == (
        "a and b are bit-identical until step 5, by their losses; but their states after step 5 have different digests"
    )
    assert same_until(known("a", whole), known("b", {1: 1, 2: 2})).reason == (
        "a and b are bit-identical until step 2, by their losses; what a computed later has nothing to be compared with"
    )
    assert same_until(known("a", {1: 1, 8: 8, 16: 17}), known("b", {1: 1, 8: 8, 12: 12, 16: 16})).reason == (
        "all steps until step 8 that both journals still have are bit-identical in a and b; the loss of step 16 "
        "differs, and of the 7 steps between, the journals keep none in common"
    )
    assert same_until(known("a", {1: 2}), known("b", {1: 1})).reason == (
        "a and b differ from the first step that both journals have, step 1"
    )
    assert same_until(known("a", {}), known("b", {1: 1})).reason == (
        "a committed no step that the journal still has: there is nothing to compare"
    )
    assert same_until(known("a", {}, 9, "x"), known("b", {}, 9, "x")).reason == (
        "a and b have no step in common in their journals; their states after step 9 have the same digest"
    )


def test_a_run_that_began_later_is_compared_from_there() -> None:
    whole = {step: step for step in range(1, 6)}
    found = same_until(known("a", whole), known("b", {4: 4, 5: 5}))
    assert found.reason.startswith("a and b are bit-identical from step 4 until step 5")
