"""Objects are listed when a watch has told of a change, after an order, and now and then; without a watch, as before.

That few requests reach a real API server is measured by `bench kubernetes`, which tests/kubernetes runs.
"""

from __future__ import annotations

import queue
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest

from jupyter_hyperpod.backends.kubernetes import manifests
from jupyter_hyperpod.backends.kubernetes import runner as runner_module
from jupyter_hyperpod.backends.kubernetes.client import Api, ApiError
from jupyter_hyperpod.backends.kubernetes.runner import KubernetesRunner
from jupyter_hyperpod.backends.kubernetes.workloads.workload import JOB_NAME
from jupyter_hyperpod.backends.types import BASE
from jupyter_hyperpod.backends.wakeup import Wakeup

Wait = Callable[..., None]


class Watch:
    """A watch that tells what a test puts in."""

    def __init__(self, refused: bool) -> None:
        self.changes: queue.Queue[bool] = queue.Queue()
        self.connected = not refused
        self._refused = refused

    def __iter__(self) -> Iterator[bool]:
        if self._refused:
            raise ApiError(403, "Forbidden", "you may not watch")
        yield from iter(self.changes.get, False)
        self.connected = False

    def close(self) -> None:
        """End it."""
        self.changes.put(False)


class Cluster:
    """An API that counts what is listed."""

    namespace = "team"

    def __init__(self, refused: bool = False, has: Mapping[str, list[dict[str, Any]]] | None = None) -> None:
        self.listed: Counter[str] = Counter()
        self._has = has or {}
        self.watches: dict[str, Watch] = {}
        self._refused = refused

    def list(self, path: str, labels: str = "") -> tuple[list[dict[str, Any]], str]:
        """What it has of a kind, at version 7."""
        kind = path.rpartition("/")[2]
        self.listed[kind] += 1
        return self._has.get(kind, []), "7"

    def watch(self, path: str, labels: str, since: str) -> Watch:
        """From the version that was listed on."""
        assert since == "7"
        return self.watches.setdefault(path.rpartition("/")[2], Watch(self._refused))

    def close(self) -> None:
        """Nothing is open."""


def opened(cluster: Cluster) -> KubernetesRunner:
    runner = KubernetesRunner({}, connect=lambda options: cast("Api", cluster))
    runner.query_every_s = 0.01
    return runner


@pytest.fixture
def read_again(eventually: Wait) -> Callable[[KubernetesRunner], None]:
    """Wait until the runner has read anew, from now on."""

    def wait(runner: KubernetesRunner) -> None:
        since_s = time.monotonic()

        def anew() -> bool:
            runner.tick()
            return runner.observe("job", since_s) is not None

        eventually(anew)

    return wait


def test_nothing_is_listed_again_until_a_watch_tells_of_a_change(
    eventually: Wait, read_again: Callable[[KubernetesRunner], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "LISTED_EVERY_S", 1e9)
    runner = opened(cluster := Cluster())
    try:
        for _ in range(5):
            read_again(runner)
        assert cluster.listed["jobs"] == cluster.listed["pods"] == 1
        cluster.watches["pods"].changes.put(True)
        eventually(lambda: (runner.tick(), cluster.listed["pods"] == 2)[1])
        read_again(runner)
        assert cluster.listed["jobs"] == cluster.listed["pods"] == 2
        cluster.watches["jobs"].connected = False  # cut off: nobody would tell of a change
        for _ in range(2):
            read_again(runner)
        assert cluster.listed["pods"] >= 4
    finally:
        runner.close()


@pytest.mark.parametrize(("reason", "expected"), [("ContainerCreating", True), ("ErrImagePull", False)])
def test_a_job_whose_pod_is_being_created_is_about_to_run(
    read_again: Callable[[KubernetesRunner], None], reason: str, expected: bool
) -> None:
    about = {
        "name": manifests.element_name(1764163651000000, 0),
        "labels": manifests.labels("job", BASE, 1764163651000000),
    }
    made = {"metadata": about, "spec": {}, "status": {}}
    waiting = [{"name": "main", "state": {"waiting": {"reason": reason}}}]
    pod = {
        "metadata": {"name": "pod", "labels": {JOB_NAME: about["name"]}},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Pending", "containerStatuses": waiting},
    }
    runner = opened(Cluster(has={"jobs": [made], "pods": [pod]}))
    try:
        runner.observe("job")
        read_again(runner)
        assert [one.node for one in runner.observe("job") or ()] == ["n1"]
        assert runner.expects("job", time.monotonic()) is expected
        assert not runner.expects("other", 0.0)
    finally:
        runner.close()


def test_an_order_is_followed_by_a_list_and_a_silent_watch_is_not_trusted_for_long(
    eventually: Wait, read_again: Callable[[KubernetesRunner], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "LISTED_EVERY_S", 1e9)
    runner = opened(cluster := Cluster())
    try:
        read_again(runner)
        before = cluster.listed["jobs"]
        asked = runner.release("job")  # lists both kinds itself
        eventually(asked.done)
        read_again(runner)
        assert cluster.listed["jobs"] == before + 2
        monkeypatch.setattr(runner_module, "LISTED_EVERY_S", 0.0)
        cluster.watches["pods"].changes.put(True)
        eventually(lambda: (runner.tick(), cluster.listed["pods"] > before + 5)[1])
    finally:
        runner.close()


def test_who_may_not_watch_lists_as_often_as_before(read_again: Callable[[KubernetesRunner], None]) -> None:
    runner = opened(cluster := Cluster(refused=True))
    try:
        for _ in range(5):
            read_again(runner)
        assert cluster.listed["jobs"] >= 5 and list(cluster.watches) == ["jobs", "pods"]
    finally:
        runner.close()


def test_a_wait_of_a_selector_ends_when_a_thread_has_news() -> None:
    with selectors.DefaultSelector() as selector:
        wake = Wakeup(selector)
        assert selector.select(0) == []
        for _ in range(100_000):
            wake()  # more often than it is heard
        for key, _ in selector.select(50):
            key.data()
        assert selector.select(0) == []
        wake.close()
        wake()
        assert not selector.get_map()
