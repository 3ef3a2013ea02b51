"""What a health agent shows at a node, as data; a real API gets it in tests/kubernetes/test_health.py."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from jupyter_hyperpod.backends.kubernetes import parse
from jupyter_hyperpod.backends.kubernetes.client import Api, ApiError
from jupyter_hyperpod.backends.kubernetes.health.health_board import (
    CONDITION,
    TAINT,
    condition,
    is_returned,
    label_value,
    marks,
    unmark,
)
from jupyter_hyperpod.core.health import DETAILS, REASONS, STATUS, TYPES, HealthRecord, failed, passed

XID = failed("kernel-log", "isolate", "NvidiaXid74", "Xid 74 on 00:1e.0", "00:1e.0")
WATCH = HealthRecord("watch", reason="the health agent watches this node", boot="1", findings=(passed("memory", "ok"),))
REPLACE = HealthRecord("replace", "NvidiaXid74", "NvidiaXid74: Xid 74; no reboot mends that", boot="1", causes=(XID,))
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


def node(**spec: Any) -> dict[str, Any]:
    about = {"name": "n1", "resourceVersion": "7", "labels": {}, "annotations": {}}
    return {"metadata": about, "spec": spec, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def merged(found: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """What the API makes of a merge patch."""
    made = dict(found)
    for name, value in change.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name, {}), value) if isinstance(value, dict) else value
    return made


def after(*records: HealthRecord, start: dict[str, Any] | None = None) -> dict[str, Any]:
    found = start or node()
    for record in records:
        found = merged(found, marks(found, record))
    return found


def test_a_node_that_is_to_be_replaced_is_labelled_tainted_and_cordoned_and_says_why() -> None:
    found = after(WATCH, REPLACE, start=node(taints=[OTHER]))
    marked, noted = found["metadata"]["labels"], found["metadata"]["annotations"]
    assert marked == {STATUS: "UnschedulablePendingReplacement", TYPES: "kernel-log", REASONS: "NvidiaXid74"}
    assert json.loads(noted[DETAILS])[0]["text"] == XID.text
    assert found["spec"] == {"unschedulable": True, "taints": [OTHER, TAINT]}
    assert TAINT == {"key": STATUS, "value": "Unschedulable", "effect": "NoSchedule"}
    assert parse.state(found) == ("cordoned", REPLACE.reason) and parse.shown_health(found) == REPLACE
    assert parse.nodes([found])["n1"].health == REPLACE


def test_what_is_over_leaves_nothing_but_the_label_of_a_sound_node() -> None:
    found = after(WATCH, REPLACE, WATCH, start=node(taints=[OTHER]))
    assert found["spec"] == {"taints": [OTHER]} and found["metadata"]["labels"] == {STATUS: "Schedulable"}
    assert found["metadata"]["annotations"].keys() == {parse.AGENT} and parse.state(found) == ("ready", "")


def test_with_node_recovery_none_a_node_is_labelled_only_and_serves() -> None:
    found = after(WATCH, HealthRecord("replace", "NvidiaXid74", "labelled only", "None", causes=(XID,)))
    assert found["metadata"]["labels"][STATUS] == "UnschedulablePendingReplacement" and found["spec"] == {}
    assert parse.state(found) == ("ready", "") and not is_returned(found)


def test_what_others_have_cordoned_stays_cordoned() -> None:
    by_hand = node(unschedulable=True)
    by_hand["metadata"]["annotations"][parse.REASON] = "hyperpod: asked for by ann"
    by_hand["metadata"]["labels"][STATUS] = "UnschedulablePendingReboot"
    watched = after(WATCH, start=by_hand)
    assert watched["metadata"]["labels"][STATUS] == "UnschedulablePendingReboot"
    found = after(REPLACE, WATCH, start=node(unschedulable=True))
    assert found["spec"] == {"unschedulable": True} and parse.drained(found) == "it is cordoned"
    assert found["metadata"]["labels"][STATUS] == "Schedulable"
    drained = HealthRecord("drain", "MemoryPressure", "no memory is left")
    assert after(WATCH, drained, start=by_hand)["metadata"]["labels"][STATUS] == "UnschedulablePendingReboot"
    assert after(WATCH, REPLACE, start=by_hand)["metadata"]["labels"][STATUS] == "UnschedulablePendingReplacement"


@pytest.mark.parametrize("spec", [{"taints": None}, {"unschedulable": None}])
def test_who_takes_taint_or_cordon_away_has_returned_the_node(spec: dict[str, Any]) -> None:
    found = after(WATCH, REPLACE)
    assert not is_returned(found)
    returned = merged(found, {"spec": spec})
    assert is_returned(returned)
    again = after(HealthRecord(**{**REPLACE.to_json(), "causes": (XID,), "boot": "2"}), start=returned)
    assert again["spec"] == returned["spec"], "nobody is overruled"


def test_a_label_of_hyperpods_own_agent_counts_before_ours() -> None:
    found = after(WATCH)
    found["metadata"]["labels"][STATUS] = "UnschedulablePendingReboot"
    assert parse.drained(found) == "UnschedulablePendingReboot" and parse.shown_health(found) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"action": "explode", "recovery": "None"}', "[" * 100_000])
def test_an_annotation_that_is_none_of_ours_is_no_record(text: str) -> None:
    found = node()
    found["metadata"]["annotations"][parse.AGENT] = text
    assert parse.agent_health(found) is None and parse.state(found) == ("ready", "")


def test_a_condition_tells_since_when() -> None:
    early, late = datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC)
    found = node()
    told = condition(found, REPLACE, early)
    assert (told["type"], told["status"], told["reason"]) == (CONDITION, "False", "NvidiaXid74")
    found["status"]["conditions"].append(told)
    assert condition(found, REPLACE, late)["lastTransitionTime"] == "2030-01-01T00:00:00Z"
    assert condition(found, WATCH, late)["lastTransitionTime"] == "2030-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("NvidiaXid74", "NvidiaXid74"),
        ("a_b", "a_b"),
        ("mount:/fsx team_x", "mount-fsx-team_x"),
        ("_".join(["Fault" * 5] * 4), "_".join(["Fault" * 5] * 2)),
        ("x" * 80, ""),
    ],
)
def test_names_fit_into_a_label(text: str, label: str) -> None:
    assert label_value(text) == label


class Busy:
    """An API server on which somebody else writes to the node between each of ``conflicts`` readings and writings."""

    def __init__(self, conflicts: int) -> None:
        self.conflicts, self.taken = conflicts, list[str]()

    def get(self, path: str) -> dict[str, Any]:
        return node()

    def patch(self, path: str, body: dict[str, Any], kind: str = "merge") -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise ApiError(409, "Conflict", "the object has been modified")
        self.taken.append(path)


def test_a_node_is_unmarked_though_its_kubelet_writes_at_the_same_moment() -> None:
    busy = Busy(2)
    unmark(cast("Api", busy), "n1")
    assert busy.taken == ["/api/v1/nodes/n1", "/api/v1/nodes/n1/status"]
    with pytest.raises(ApiError, match="modified"):
        unmark(cast("Api", Busy(100)), "n1")
