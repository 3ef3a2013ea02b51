"""Findings and history to a remedy: every row of the table, and what holds whatever is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.health import ACTIONS, SEVERITIES, Finding, failed, passed, skipped
from jupyter_hyperpod.policy.healing import OFFENCES, REBOOTS, WINDOW_S, Past, avoid, heal

NOW_S = 1_000_000.0
FINDINGS = st.lists(
    st.builds(
        Finding,
        probe=st.sampled_from(["kernel-log", "memory"]),
        outcome=st.sampled_from(["pass", "fail", "skipped"]),
        text=st.text(max_size=20),
        severity=st.sampled_from(SEVERITIES),
        fault=st.sampled_from(["NvidiaXid74", "NvidiaXid73"]),
    )
)
HISTORY = st.lists(st.builds(Past, st.sampled_from(ACTIONS), st.just("NvidiaXid73"), st.floats(0, NOW_S)))


@pytest.mark.parametrize(
    ("severity", "action"),
    [("monitor", "watch"), ("drain", "drain"), ("reset", "reboot"), ("reboot", "reboot"), ("isolate", "replace")],
)
def test_each_severity_has_its_remedy(severity: str, action: str) -> None:
    decision = heal([passed("memory", "fine"), failed("kernel-log", severity, "NvidiaXid0", "it says so")], (), NOW_S)
    assert decision.value.action == action
    assert decision.reason.startswith("NvidiaXid0: it says so; ")


def test_nothing_found_and_skipped_is_watched() -> None:
    remedy = heal([skipped("efa", "there is none"), passed("memory", "fine")], (), NOW_S).value
    assert remedy.action == "watch" and remedy.automatic


def test_the_worst_counts() -> None:
    found = [failed("a", "isolate", "Worst", "x"), failed("b", "monitor", "Mild", "y")]
    assert heal(found, (), NOW_S).value.fault == "Worst"


def test_a_reboot_that_did_not_help_is_not_tried_for_ever() -> None:
    found = [failed("kernel-log", "reboot", "NvidiaXid73", "x")]
    tried = [Past("reboot", "NvidiaXid73", NOW_S - 60.0 * i) for i in range(REBOOTS)]
    assert heal(found, tried[:-1], NOW_S).value.action == "reboot"
    assert heal(found, tried, NOW_S).value.action == "replace"
    assert heal(found, [Past("reboot", "Other", NOW_S)] * 9, NOW_S).value.action == "reboot"
    assert heal(found, [Past("reboot", "NvidiaXid73", NOW_S - WINDOW_S - 1)] * 9, NOW_S).value.action == "reboot"


def test_without_automatic_recovery_a_node_is_only_labelled() -> None:
    decision = heal([failed("kernel-log", "isolate", "NvidiaXid74", "x")], (), NOW_S, recovery="None")
    assert decision.value.action == "replace" and not decision.value.automatic
    assert "labelled only" in decision.reason


def test_not_all_nodes_are_repaired_at_once() -> None:
    found = [failed("kernel-log", "isolate", "NvidiaXid74", "x")]
    assert heal(found, (), NOW_S, under_repair=0, nodes=2).value.action == "replace"
    assert heal(found, (), NOW_S, under_repair=1, nodes=4).value.action == "drain"
    assert heal(found, (), NOW_S, under_repair=1, nodes=6).value.action == "replace"


@given(FINDINGS, HISTORY, st.sampled_from(["Automatic", "None"]), st.integers(0, 5), st.integers(0, 9))
def test_always_one_remedy_and_a_sentence(
    found: list[Finding], history: list[Past], recovery: str, under_repair: int, nodes: int
) -> None:
    decision = heal(found, history, NOW_S, recovery, under_repair, nodes)
    assert decision.value.action in ACTIONS and decision.reason
    if not any(finding.failed and finding.severity != "monitor" for finding in found):
        assert decision.value.action == "watch"


def test_repeat_offenders_are_avoided() -> None:
    often = [Past("reboot", "NvidiaXid73", NOW_S - i) for i in range(OFFENCES)]
    decision = avoid({"n1": often, "n2": often[1:], "n3": [Past("drain", "x", NOW_S)] * 9}, NOW_S)
    assert decision.value == ("n1",) and "n1" in decision.reason
    assert avoid({"n1": often[:3], "n2": often[:2]}, NOW_S).value == ("n1",), (
        "three remedies are as many as the guide says"
    )
    assert avoid({"n1": often}, NOW_S + 2 * WINDOW_S).value == ()
