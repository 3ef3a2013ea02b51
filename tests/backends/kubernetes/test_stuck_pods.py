"""Why a pod that has its node does not start, from events as the API of Kubernetes 1.20 and 1.29 told them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from jupyter_hyperpod.backends.kubernetes import parse
from jupyter_hyperpod.backends.kubernetes.client import Api, ApiError
from jupyter_hyperpod.backends.kubernetes.heads.remote_head import KubernetesHead
from jupyter_hyperpod.backends.kubernetes.reasons import stuck_pods
from jupyter_hyperpod.backends.kubernetes.reasons.stuck_pods import StuckPods, why
from jupyter_hyperpod.backends.types import HeadPhase
from tests.backends.kubernetes.test_doorbell import Cluster, opened
from tests.backends.kubernetes.test_parse import job, pod, waits

CREATING = pod("Pending", containerStatuses=waits("ContainerCreating"))
NAME = CREATING["metadata"]["name"]


def event(at: str, kind: str, reason: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "reason": reason, "message": message, "lastTimestamp": f"2026-01-01T00:{at}Z", **more}


PLACED = event("00:01", "Normal", "Scheduled", "Successfully assigned team/x to n1")
MOUNT = event("00:02", "Warning", "FailedMount", 'MountVolume.SetUp failed for volume "data" : no such directory')
LATER = event("02:05", "Warning", "FailedMount", "Unable to attach or mount volumes: unmounted volumes=[data]")
PULLING = event("02:06", "Normal", "Pulling", 'Pulling image "team/train:3"')
ATTACH = {
    **event("", "Warning", "FailedAttachVolume", "Multi-Attach error for volume"),
    "lastTimestamp": None,
    "series": {"count": 3, "lastObservedTime": "2026-01-01T00:03:00.123456Z"},
}
SAYS = 'FailedMount: MountVolume.SetUp failed for volume "data" : no such directory'


@pytest.mark.parametrize(
    ("events", "early", "slow"),
    [
        ([], "", ""),
        ([PLACED], "", ""),
        ([PLACED, MOUNT], SAYS, SAYS),
        ([LATER, MOUNT, PLACED], SAYS, SAYS),
        ([PLACED, LATER], f"FailedMount: {LATER['message']}", f"FailedMount: {LATER['message']}"),
        ([MOUNT, PULLING, LATER], "", f"Pulling: {PULLING['message']}"),
        (
            [PULLING, ATTACH],
            "FailedAttachVolume: Multi-Attach error for volume",
            "FailedAttachVolume: Multi-Attach error",
        ),
    ],
)
def test_the_newest_event_counts_and_a_warning_at_once(events: list[dict[str, Any]], early: str, slow: str) -> None:
    assert why(events, slow=False) == early
    assert why(events, slow=True).startswith(slow) and bool(why(events, slow=True)) == bool(slow)


class Events:
    """An API that has these events, and notes for which pods it was asked, and when."""

    namespace = "team"

    def __init__(self, *items: dict[str, Any], status: int = 0, lists: Mapping[str, list[Any]] | None = None) -> None:
        self.items, self.status, self.now_s, self.lists = list(items), status, 100.0, lists or {}
        self.asked: list[tuple[float, str]] = []

    def get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """The events of a pod."""
        assert path == "/api/v1/namespaces/team/events"
        self.asked.append((self.now_s, query["fieldSelector"]))
        if self.status:
            raise ApiError(self.status, "Forbidden", "you may not list events")
        return {"items": self.items}

    def list(self, path: str, labels: str = "") -> tuple[list[Any], str]:
        """What it has of a kind."""
        return self.lists.get(path.rpartition("/")[2], []), "7"

    def told(self, stuck: StuckPods, *pods: dict[str, Any]) -> dict[str, str]:
        return stuck.told(cast("Api", self), pods)


def looked(api: Events, pods: list[dict[str, Any]], until_s: float, every_s: float = 1.0) -> list[tuple[float, str]]:
    """At which seconds what was said changed, and to what."""
    stuck, start_s, found = StuckPods(lambda: api.now_s), api.now_s, [(-1.0, "")]
    while api.now_s <= start_s + until_s:
        said = "; ".join(api.told(stuck, *pods).values())
        if said != found[-1][1]:
            found.append((api.now_s - start_s, said))
        api.now_s += every_s
    return found[1:]


def test_a_pod_that_is_created_for_long_is_asked_about_every_ten_seconds() -> None:
    api = Events(PLACED, MOUNT)
    assert looked(api, [CREATING], 35) == [(10.0, SAYS)]
    assert api.asked == [
        (100.0 + at, f"involvedObject.kind=Pod,involvedObject.name={NAME}") for at in (10.0, 20.0, 30.0)
    ]


def test_why_there_is_no_pod_is_told_by_what_makes_it() -> None:
    refused = event("00:02", "Warning", "FailedCreate", 'pods "x" is forbidden: service account heads was not found')
    api, stuck = Events(refused), StuckPods(lambda: api.now_s)
    maker, other, over = (
        job(),
        {**job(), "metadata": {"name": "with-pod"}},
        {**job("Complete"), "metadata": {"name": "o"}},
    )
    made = {**pod("Running"), "metadata": {"name": "y", "labels": {"job-name": "with-pod"}}}

    def told() -> dict[str, str]:
        return stuck.told(cast("Api", api), [made], [maker, other, over])

    assert told() == {}
    api.now_s += 4
    (said,) = told().values()
    assert said == f"FailedCreate: {refused['message']}"
    assert api.asked == [(104.0, f"involvedObject.kind=Job,involvedObject.name={maker['metadata']['name']}")]
    assert parse.job_state(maker, None, told()) == (parse.PENDING, f"it has no pod yet: {said}")


def test_what_is_done_for_a_pod_is_said_where_it_lasts() -> None:
    assert looked(Events(PLACED, PULLING), [CREATING], 35) == [(20.0, f"Pulling: {PULLING['message']}")]


def test_pods_that_are_not_being_created_are_not_asked_about() -> None:
    others = [
        pod("Running"),
        pod("Pending", ""),
        pod("Pending", leaving=True),
        pod("Pending", containerStatuses=waits("ImagePullBackOff")),
    ]
    api = Events(MOUNT)
    assert looked(api, others, 60) == [] and api.asked == []


def test_who_may_not_read_events_is_told_nothing_and_asks_seldom() -> None:
    api = Events(status=403)
    assert looked(api, [CREATING], 300) == [] and len(api.asked) == 1
    busy = Events(status=503)
    assert looked(busy, [CREATING], 35) == [] and len(busy.asked) == 3


def test_of_many_pods_only_some_are_asked_about_at_once() -> None:
    many = [pod("Pending", born=str(number)) for number in range(20)]
    api = Events(MOUNT)
    looked(api, many, 14)
    assert [sum(at == 100.0 + second for at, _ in api.asked) for second in (10, 11, 12, 13)] == [
        stuck_pods.MOST,
        stuck_pods.MOST,
        20 - 2 * stuck_pods.MOST,
        0,
    ]


def test_what_events_say_is_the_reason_and_the_node_is_not_about_to_run() -> None:
    ((plain,),) = parse.elements([job()], [CREATING]).values()
    ((told,),) = parse.elements([job()], [CREATING], {NAME: SAYS}).values()
    assert plain.reason == "ContainerCreating" and parse.is_being_created(plain)
    assert (told.state, told.reason) == (parse.STARTING, SAYS) and not parse.is_being_created(told)
    ((runs,),) = parse.elements([job()], [pod("Running")], {NAME: SAYS}).values()
    assert runs.reason == ""


def test_a_head_whose_volume_cannot_be_mounted_says_so() -> None:
    api = Events(PLACED, MOUNT, lists={"jobs": [job()], "pods": [CREATING]})
    head = KubernetesHead(cast("Api", api), {"head": "pod"}, "train-abcdefgh")
    head._stuck = StuckPods(lambda: api.now_s)
    assert head.state().reason == "Starting: ContainerCreating"
    api.now_s += stuck_pods.EARLY_S
    state = head.state()
    assert (state.phase, state.reason) == (HeadPhase.WAITING, f"Starting: {SAYS}")


def test_the_runner_says_what_the_events_of_its_pods_say(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Events(MOUNT)
    cluster = Cluster(has={"jobs": [job()], "pods": [CREATING]})
    monkeypatch.setattr(cluster, "get", api.get, raising=False)
    runner = opened(cluster)
    runner._stuck = StuckPods(lambda: api.now_s)
    try:
        for reason in ("ContainerCreating", SAYS):
            ((element,),) = runner._read_elements().values()
            assert element.reason == reason
            api.now_s, runner._stale = api.now_s + stuck_pods.EARLY_S, True
    finally:
        runner.close()
