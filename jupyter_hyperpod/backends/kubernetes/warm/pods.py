"""Keeps pods for the next job, and lets a job take them: the requests to the API server, for a runner."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ....core.errors import ClusterError
from ....system import portable
from .. import parse
from ..client import Api, ApiError
from ..manifests import SELECTOR
from . import doorway, fitting, making_room
from .fitting import FREE, OWNER, FreePod, Object
from .pod_order import PodOrder

AT_ONCE = 8  # requests to the API server
ANSWERS_S = 10.0  # a pod whose job has just ended is still being cleaned
LEAVES_S = 5
GONE, CONFLICT = 404, 409


class KeptPods:
    """What a runner knows of the pods that are kept in its namespace. On the runner's thread alone, except ``free``."""

    def __init__(self) -> None:
        self.free: list[FreePod] | None = None  # None: not listed yet
        self._jobs: dict[str, str] = {}  # element -> its Job, where that has another name
        self._waits_s: dict[str, float] = {}  # element -> since when it waits for room, on the monotonic clock
        self._ending: set[str] = set()  # pods that were let go for room, and are not gone yet

    def seen(self, jobs: Sequence[Object], pods: Sequence[Object]) -> None:
        """Both kinds have been listed."""
        self.free = fitting.free_pods(jobs, pods)
        self._jobs |= {name: job["metadata"]["name"] for job in jobs if (name := parse.element_of(job))}

    def job(self, element: str) -> str:
        """The name of an element's Job."""
        return self._jobs.get(element, element)

    def forget(self, elements: Iterable[str]) -> None:
        """They are over."""
        for name in elements:
            self._jobs.pop(name, None)

    def keep(self, api: Api, jobs: Sequence[Object]) -> set[str]:
        """Let these Jobs belong to nobody as far as their pods may stay; the names of those."""
        asked = {job["metadata"]["name"]: job for job in jobs if fitting.keeps_s(job)}
        if not asked:
            return set()
        pods, found = fitting.by_job(api.list(path(api, "pods"), SELECTOR)[0]), set()
        for name, job in asked.items():
            current = parse.current(pods.get(name, []))
            if current is None or not fitting.may_stay(job, current):
                continue
            with suppress(ApiError):  # who may not change them has them ended as ever
                api.patch(path(api, "pods", current["metadata"]["name"]), fitting.of_nobody())
                api.patch(path(api, "jobs", name), fitting.freed(job, time.time()))
                found.add(name)
        return found

    def make_room(
        self, api: Api, jobs: Sequence[Object], pods: Sequence[Object], mine: Collection[str], owner: str
    ) -> list[tuple[str, str]]:
        """Let kept pods go where a job of ``mine`` has waited for their room for a while; jobs, with sentences."""
        now_s, names = time.monotonic(), {pod["metadata"]["name"] for pod in pods}
        waits = {one.element: one for one in making_room.waiting(jobs, pods, mine)} if self.free else {}
        self._ending &= names
        if self._ending:
            waits = {}  # what they give back may be enough
        self._waits_s = {name: self._waits_s.get(name, now_s) for name in waits}
        late = [one for name, one in waits.items() if now_s - self._waits_s[name] >= making_room.PATIENCE_S]
        found = []
        for pod, one in making_room.held_by(late, jobs, pods, owner):
            if let_go(api, [pod]):
                self._ending.add(pod.pod)
                found.append((one.of, making_room.sentence(pod, one)))
        return found

    @property
    def watched(self) -> bool:
        """Whether a job waits, and kept pods might have to go."""
        return bool(self._waits_s or self._ending)

    def take(
        self,
        api: Api,
        orders: Sequence[PodOrder],
        labels: Mapping[str, str],
        digest: str,
        avoid: Collection[str],
        serving: Collection[str],
    ) -> dict[int, FreePod]:
        """Give these orders to free pods that fit, as far as there are some: number of the order -> its pod."""
        if self.free is None:
            self.free = listed(api)
        chosen = fitting.choose(self.free, digest, len(orders), time.time(), avoid, serving)
        if not chosen:
            return {}
        gone = {pod.job for pod in chosen}
        self.free = [pod for pod in self.free if pod.job not in gone]
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="take") as pool:
            asked = [pool.submit(_take, api, pod, orders[i], labels, i) for i, pod in enumerate(chosen)]
            found = {i: pod for i, pod in enumerate(chosen) if asked[i].result()}
        self._jobs |= {orders[i].name: pod.job for i, pod in found.items()}
        return found


def owner(store: str) -> str:
    """A label for who uses a store: a pod is kept for jobs of the same person, with the same store."""
    return hashlib.sha256(f"{portable.user_id()} {store}".encode()).hexdigest()[: fitting.DIGEST]


def listed(api: Api, whose: str = "") -> list[FreePod]:
    """The free pods of the namespace, or of one owner there. Raises ClusterError."""
    jobs, _ = api.list(path(api, "jobs"), f"{SELECTOR},{FREE}" + (f",{OWNER}={whose}" if whose else ""))
    return fitting.free_pods(jobs, api.list(path(api, "pods"), SELECTOR)[0]) if jobs else []


def let_go(api: Api, pods: Sequence[FreePod]) -> list[str]:
    """End free pods; those that a job has taken meanwhile stay. The names of the Jobs that are gone."""
    found = []
    for pod in pods:
        try:  # first it is claimed, for nobody
            claim = {"metadata": {"resourceVersion": pod.version, "labels": {FREE: None}}}
            api.patch(path(api, "jobs", pod.job), claim)
        except ApiError as error:
            if error.status not in (CONFLICT, GONE):
                raise
            continue
        _end(api, pod)
        found.append(pod.job)
    return found


def path(api: Api, kind: str, name: str = "") -> str:
    """Where the API has the Jobs or pods of the namespace, or one of them."""
    group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
    return f"{group}/namespaces/{api.namespace}/{kind}{f'/{name}' if name else ''}"


def _take(api: Api, pod: FreePod, order: PodOrder, labels: Mapping[str, str], index: int) -> bool:
    """Take one pod. One that was taken by another job, or does not answer as it should, is left alone or ended."""
    try:
        api.patch(path(api, "jobs", pod.job), fitting.taken(labels, index, pod.version, order.keep_s))
        api.patch(path(api, "pods", pod.pod), fitting.of_job(labels, index))
        if _answer(api, pod, order) == doorway.TAKEN:
            return True
    except ClusterError:
        pass
    with suppress(ClusterError):
        marks = api.get(path(api, "jobs", pod.job))["metadata"].get("labels", {})
        if all(marks.get(name) == value for name, value in labels.items()):
            _end(api, pod)
    return False


def _answer(api: Api, pod: FreePod, order: PodOrder) -> str:
    """Bring an order to a keeper; its answer. The end of the command is told up to a second later."""
    said = b""
    for piece in api.follow(pod.pod, doorway.command(), f"{order.line()}\n".encode(), ANSWERS_S):
        said += piece
        if said.endswith(b"\n"):
            break
    return said.decode(errors="replace").strip()


def _end(api: Api, pod: FreePod) -> None:
    api.delete(path(api, "jobs", pod.job))
    api.delete(path(api, "pods", pod.pod), grace_s=LEAVES_S)
