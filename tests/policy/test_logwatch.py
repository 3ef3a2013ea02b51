"""Rules about output: every field, each way from state to state, and any order of lines and looks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.rules import OPERATORS, SECTION, LogRule, parse
from jupyter_hyperpod.core.vocabulary import CHOICES
from jupyter_hyperpod.policy import logwatch
from jupyter_hyperpod.policy.logwatch import Standing

# the examples of HyperPod's own documentation, with a threshold that it would cut off
HYPERPOD = {
    SECTION: [
        {"name": "JobStart", "logPattern": ".*Experiment configuration.*", "expectedStartCutOffInSeconds": 120},
        {
            "name": "JobHangingDetection",
            "logPattern": r".*\[Epoch 0 Batch \d+.*'training_loss_step': (\d+(\.\d+)?).*",
            "expectedRecurringFrequencyInSeconds": 300,
            "expectedStartCutOffInSeconds": 600,
        },
        {
            "name": "TFLOPs",
            "logPattern": ".*TFLOPS: ([0-9.]+).*",
            "metricThreshold": 80.5,
            "operator": "lt",
            "metricEvaluationDataPoints": 25,
            "stopPattern": ".*Training done.*",
        },
        {"name": "EccError", "logPattern": ".*uncorrectable ECC error.*", "faultOnMatch": True},
    ]
}


def rule(**fields: object) -> LogRule:
    (found,) = parse([{"name": "loss", "logPattern": "loss=([0-9.]+)", **fields}])
    return found


def test_every_field_is_understood() -> None:
    rules = parse(HYPERPOD)
    assert [one.name for one in rules] == ["JobStart", "JobHangingDetection", "TFLOPs", "EccError"]
    assert (rules[2].threshold, rules[2].operator, rules[2].data_points) == (80.5, "lt", 25)
    assert rules[3].fault_on_match and rules[1].frequency_s == 300 and rules[0].start_cutoff_s == 120


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logPattern": "("}, "is no regular expression"),
        ({"logPattern": ""}, "no text of 1 to"),
        ({"operator": "lt"}, "needs both"),
        ({"operator": "less", "metricThreshold": 1}, "is unknown; expected gt"),
        ({"operator": "lt", "metricThreshold": True}, "expected a number"),
        ({"operator": "lt", "metricThreshold": 1, "logPattern": "loss"}, "needs a group"),
        ({"expectedStartCutOffInSeconds": 0}, "expected more than 0"),
        ({"metricEvaluationDataPoints": 0}, "expected 1 or more"),
        ({"faultOnMatch": "yes"}, "expected true or false"),
        ({"logpattern": "x"}, "has no field 'logpattern'"),
        ({"name": "a/b"}, "is not allowed"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        rule(**fields)


@pytest.mark.parametrize("content", [{}, [], "x", [1], [{"name": "a"}], 7, [{"name": "a", "logPattern": "b"}] * 2])
def test_what_is_no_list_of_rules(content: object) -> None:
    with pytest.raises(SpecError):
        parse(content)


@pytest.mark.parametrize(
    ("operator", "bad", "good"),
    [("gt", "2.6", "2.5"), ("gteq", "2.5", "2.4"), ("lt", "2.4", "2.5"), ("lteq", "2.5", "2.6"), ("eq", "2.5", "2.4")],
)
def test_fractional_thresholds(operator: str, bad: str, good: str) -> None:
    one = rule(metricThreshold=2.5, operator=operator, metricEvaluationDataPoints=2)
    first = logwatch.matched(one, Standing(), bad, 1.0).value
    assert (first.state, first.bad_points) == ("HEALTHY", 1), "one point is not enough"
    second = logwatch.matched(one, first, bad, 2.0)
    assert second.value.state == "SLOW" and "2 lines in a row" in second.reason
    assert logwatch.matched(one, second.value, good, 3.0).value == Standing("HEALTHY", 3.0, 0, float(good))
    assert logwatch.matched(one, first, "nan", 2.0).value.bad_points == 0, "what is no number is no point"


def test_waiting_healthy_hanging() -> None:
    one = rule(expectedStartCutOffInSeconds=10, expectedRecurringFrequencyInSeconds=3)
    start = Standing(since_s=100.0)
    assert logwatch.looked(one, start, 110.0).value.state == "WAITING"
    late = logwatch.looked(one, start, 110.1)
    assert late.value.state == "HANGING" and late.reason == "loss was not printed within 10 s"
    seen = logwatch.matched(one, start, "1.0", 105.0).value
    assert logwatch.looked(one, seen, 108.0).value.state == "HEALTHY"
    assert logwatch.looked(one, seen, 108.1).reason == "loss was not printed again within 3 s"
    over = logwatch.stopped(one, seen).value
    assert logwatch.looked(one, over, 1e9).value == over == logwatch.matched(one, over, "1", 5.0).value


def test_a_fault_on_match() -> None:
    assert logwatch.matched(rule(faultOnMatch=True), Standing(), None, 1.0).value.state == "FAULTED"


RULES = st.builds(
    LogRule,
    name=st.just("r"),
    pattern=st.just("(.*)"),
    start_cutoff_s=st.none() | st.floats(0.1, 10),
    frequency_s=st.none() | st.floats(0.1, 10),
    threshold=st.just(1.5),
    operator=st.sampled_from(sorted(OPERATORS)),
    data_points=st.integers(1, 3),
    fault_on_match=st.booleans(),
)
STEPS = st.lists(st.tuples(st.sampled_from(["line", "look", "stop"]), st.floats(0, 5), st.text(max_size=3) | st.none()))


@given(RULES, STEPS)
def test_always_in_one_of_the_states(one: LogRule, steps: list[tuple[str, float, str | None]]) -> None:
    standing, now_s = Standing(), 0.0
    for what, after_s, text in steps:
        now_s += after_s
        if what == "line":
            standing = logwatch.matched(one, standing, text, now_s).value
        elif what == "look":
            standing = logwatch.looked(one, standing, now_s).value
        else:
            standing = logwatch.stopped(one, standing).value
        assert standing.state in CHOICES["RuleState"] and standing.since_s <= now_s
