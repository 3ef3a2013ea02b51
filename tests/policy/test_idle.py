"""When a local cluster that nobody uses ends by itself."""

from __future__ import annotations

import math

import pytest

from jupyter_hyperpod.policy.cluster.idle import ClusterUse, ending, kept_by

UNUSED = ClusterUse()


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (ClusterUse(jobs=("train-a",)), "jobs that have not ended: train-a"),
        (ClusterUse(jobs=("a", "b", "c", "d")), "jobs that have not ended: a, b, c and 1 more"),
        (ClusterUse(schedules=("nightly",)), "schedules with a time to come: nightly"),
        (ClusterUse(nodes=("node-2",)), "nodes out of service: node-2"),
        (ClusterUse(starting=("node-1",)), "nodes that are starting: node-1"),
        (ClusterUse(nodes_there=False), "it has no local nodes"),
        (ClusterUse(shared=True), "another host shares the store, and may stand by for this one"),
    ],
)
def test_what_keeps_a_cluster(use: ClusterUse, said: str) -> None:
    decision = ending(use, 1e9, 1.0)
    assert decision.value is None and decision.reason == said == kept_by(use)


def test_one_that_nobody_uses_ends_when_its_time_has_come() -> None:
    soon = ending(UNUSED, 3600.0, 4 * 3600.0)
    assert soon.value == 3 * 3600.0
    assert soon.reason == "it ends by itself after 4 h without a job, a schedule or a request"
    now = ending(UNUSED, 4 * 3600.0, 4 * 3600.0)
    assert now.value == 0.0
    assert now.reason == (
        "it ended by itself after 4 h without a job, a schedule or a request; the next job starts it again as it was"
    )


def test_it_goes_on_where_it_is_told_so() -> None:
    assert ending(UNUSED, 1e9, math.inf).value is None
