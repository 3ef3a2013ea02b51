"""Two jobs of which each has one of the two pods that it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.conftest import Submit
from tests.kubernetes.test_health import running
from tests.kubernetes.test_jobs import START_S
from tests.runtime.conftest import Run
from tests.support.kubernetes import IMAGE, TEAM, Testbed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
WAITS, DISPLACES, BLOCKER = "waits", "displaces-the-blocker", "blocker"
OBJECTS = f"""
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: {WAITS}}}
value: 10
preemptionPolicy: Never
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: {DISPLACES}}}
value: 10
---
apiVersion: v1
kind: Pod
metadata: {{name: {BLOCKER}, namespace: {TEAM}}}
spec:
  nodeName: n2
  terminationGracePeriodSeconds: 0
  containers:
  - name: blocker
    image: {IMAGE}
    command: [/bin/sleep, "900"]
    resources: {{requests: {{cpu: 1500m}}}}
"""


@pytest.fixture
def busy(kubernetes: Testbed) -> Iterator[None]:
    """A pod holds the second node, which only the younger job may displace."""
    kubernetes.kubectl("apply", "-f", "-", text=OBJECTS)
    yield
    kubernetes.kubectl("delete", "--ignore-not-found", "-f", "-", text=OBJECTS)


@pytest.mark.usefixtures("busy")
def test_of_two_jobs_that_wait_for_each_other_the_older_begins(
    kubernetes: Testbed, job: Submit, reference: Run
) -> None:
    bed = kubernetes
    asks = ["--nodes", "2", "--spares", "0", "--kubernetes", "resources=cpu=1500m"]
    older = job(*asks, "--kubernetes", f"priority-class={WAITS}")
    bed.until(lambda: len(running(bed, older, "n1")) == 1, "the older job has a pod")
    younger = job(*asks, "--kubernetes", f"priority-class={DISPLACES}")
    bed.until(lambda: len(running(bed, younger, "n2")) == 1, "the younger job has the other node")
    older.until_world(2, START_S)
    leaves = f"leaves 1 node to {older.job_id}, which can begin then; this job has 1 of the 2 nodes that it needs"
    younger.until(lambda: any(event.data["reason"] == leaves for event in younger.of_kind("decision.made")), START_S)
    for run in (older, younger):
        run.full_speed()
        run.finish(timeout_s=START_S)
        run.same_as(reference)
        assert not run.view["incidents"] and not run.of_kind("warning.raised"), run.story()
