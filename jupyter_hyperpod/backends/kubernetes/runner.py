"""Creates, reads, signals and deletes the Jobs of elements, in one namespace of one cluster, for a supervisor.

Where jobs ask for HyperPod's training operator, the same with its objects: "Jobs" here are objects of `Workload`.
"""

from __future__ import annotations

import math
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from selectors import BaseSelector
from typing import Any

from ...core.backend_options import KEEP_WARM
from ...core.errors import ClusterError, HyperpodError
from ...core.spec import LaunchPlan
from ...core.units import parse_duration
from ..futures import settled
from ..polled import TRIES, PolledRunner, T
from ..types import Element, LaunchRequest, ReportedNode
from ..wakeup import Wakeup
from . import manifests, parse
from .client import Api, ApiError
from .doorbell import Doorbell
from .kubeconfig import read_access
from .pod_sharing import not_shared, person
from .reasons.stuck_pods import StuckPods
from .warm import pods as kept_pods
from .warm.fitting import Object, choose, fits, kept
from .warm.pod_order import PodOrder
from .workloads.workload import JOB, JOB_NAME, workload

FORBIDDEN, EXISTS = 403, 409
BUSY = (429, 500, 502, 503, 504)
NAMES_TRIES = 5
LEAVES_S = 5  # time to end for a pod that is cancelled
FORBIDDEN_S = 300.0  # who may not read nodes is not told so every few seconds
LISTED_EVERY_S = 5.0  # even if no watch has told of a change: a connection may be dead without a sign
NODES = "/api/v1/nodes"
STORE_VARIABLE = "JUPYTER_HYPERPOD_STORE"


def connect(options: Mapping[str, str]) -> Api:
    """The API at the place of jobs with these options. Raises ClusterError."""
    access = read_access(options.get("context", ""))
    return Api(replace(access, namespace=options.get("namespace") or access.namespace))


@dataclass
class _Job:
    """What the runner knows of one of its jobs beside the elements that were listed."""

    hopes: set[object] = field(default_factory=set)  # requests for which kept pods were free when they came
    taken_s: float = -math.inf  # when it was given kept pods, on the monotonic clock
    news: list[str] = field(default_factory=list)
    over: dict[str, Element] = field(default_factory=dict)  # elements that were cancelled, by name: their Jobs are gone


class KubernetesRunner(PolledRunner):
    """See `backends.base.Scheduler`."""

    name = "kubernetes"
    query_every_s = 1.0

    def __init__(
        self,
        options: Mapping[str, str],
        store: str = "",
        selector: BaseSelector | None = None,
        preload: Sequence[str] = (),
        connect: Callable[[Mapping[str, str]], Api] = connect,
    ) -> None:
        super().__init__()
        self._preload, self._kept, self._keeps = tuple(preload), kept_pods.KeptPods(), True
        self._owner = kept_pods.owner(store)
        self._mine: defaultdict[str, _Job] = defaultdict(_Job)  # jobs of this supervisor
        self._bell, self._stuck = Doorbell(self._hasten), StuckPods()
        self._stale, self._list_again_s = True, 0.0  # whether an order has changed something since the last list
        self._wakeup = Wakeup(selector) if selector is not None else None
        self._wake = self._wakeup or self._wake
        self._options, self._connect, self._kind = dict(options), connect, workload(options)
        self._connected: Api | None = None
        self._batch = 0
        self._nodes_again_s = 0.0
        self._node_items: list[dict[str, Any]] = []

    # -- what is known -----------------------------------------------------------------------------------------

    def names(self, batch: int, count: int) -> list[str]:
        return [manifests.element_name(batch, index) for index in range(count)]

    def element(self, name: str, state: str, node: str, reason: str, job: str, part: str) -> Element | None:
        return parse.element(name, state, node, reason, job, part)

    def held(self, element: Element, requeued: bool) -> str:
        return ""

    def serving(self, options: Mapping[str, str], part: str) -> set[str]:
        return parse.serving(self._node_items, options)

    def shares_nodes(self, options: Mapping[str, str]) -> bool:
        return False

    def log(self, name: str) -> str:
        return name

    def observe(self, job_id: str, since_s: float = -1.0) -> list[Element] | None:
        self._mine[job_id]  # it is this supervisor's from now on
        return super().observe(job_id, since_s)

    def expects(self, job_id: str, since_s: float) -> bool:
        job = self._mine.get(job_id)
        if job is None:
            return False
        created = any(map(parse.is_being_created, self._elements.get(job_id, ())))
        return created or bool(job.hopes) or job.taken_s >= since_s

    def news(self, job_id: str) -> Sequence[str]:
        job = self._mine.get(job_id)
        if job is None:
            return ()
        news, job.news = job.news, []
        return news

    # -- what is asked for -------------------------------------------------------------------------------------

    def launch(self, plan: LaunchPlan, request: LaunchRequest) -> Future[int]:
        job, hope = self._mine[plan.job_id], object()
        if self._kept.free and self._kind == JOB and self._may_take(plan, request):
            job.hopes.add(hope)

        def create() -> int:
            try:
                return self._create(plan, request)
            finally:
                job.hopes.discard(hope)

        return self._order(create)

    def cancel(self, job_id: str, names: Collection[str]) -> Future[None]:
        return self._order(lambda: self._end(job_id, names), TRIES) if names else settled(None)

    def withdraw(self, job_id: str, names: Collection[str]) -> Future[None]:
        def end() -> None:
            pods, _ = self._api().list(self._pods(), f"{manifests.JOB}={job_id}")
            begun = {pod["metadata"]["labels"].get(JOB_NAME) for pod in pods if pod["spec"].get("nodeName")}
            self._end(job_id, [name for name in names if self._kept.job(name) not in begun])

        return self._order(end, TRIES) if names else settled(None)

    def lacks_node(self, element: Element) -> bool:
        return parse.lacks_node(element)

    def release(self, job_id: str) -> Future[None]:
        return self._order(lambda: self._forget(job_id), TRIES)

    def keep_nothing(self) -> None:
        self._keeps = False
        self._order(lambda: kept_pods.let_go(self._api(), kept_pods.listed(self._api(), self._owner)))

    def release_command(self, job_id: str) -> str:
        where = [f"--{name}={self._options[name]}" for name in ("context", "namespace") if name in self._options]
        return " ".join(["kubectl", *where, "delete", self._kind.resource, "-l", f"{manifests.JOB}={job_id}"])

    def signal(self, job_id: str, name: str, number: int) -> Future[None]:
        return self._order(lambda: self._send(name, number))

    def close(self, timeout_s: float = 3.0) -> None:
        super().close(timeout_s)
        self._bell.close()
        self._wake = lambda: None
        if self._wakeup is not None:
            self._wakeup.close()
        if self._connected is not None:
            self._connected.close()

    def _order(self, act: Callable[[], T], tries: int = 1) -> Future[T]:
        def change() -> T:
            try:
                return act()
            finally:
                self._stale = True
                self._hasten()

        return super()._order(change, tries)

    # -- orders, on the thread -----------------------------------------------------------------------------------

    def _may_take(self, plan: LaunchPlan, request: LaunchRequest) -> bool:
        """Whether a kept pod seems to be free that fits. It is looked for anew before it is asked."""
        with suppress(HyperpodError):
            one = manifests.job(plan, request.options, request.part, 0, 0, person(request.options), request.avoid)
            serving = self.serving(request.options, request.part)
            free = self._kept.free or ()
            return bool(choose(free, fits(one, plan, self._owner), 1, time.time(), request.avoid, serving))
        return False

    def _create(self, plan: LaunchPlan, request: LaunchRequest) -> int:
        """Create the Jobs of a batch, all or none; the batch's number."""
        wanted = [place for place in (plan.env.get(STORE_VARIABLE, ""), plan.log_directory) if place]
        if problem := not_shared(request.options, wanted):
            raise ClusterError(problem)
        api, who = self._api(), person(request.options)
        for _ in range(NAMES_TRIES):
            batch = self._number()
            try:
                self._create_batch(api, plan, request, batch, who)
            except ClusterError as error:
                self._take_back(batch, request.count, plan.job_id)
                if not isinstance(error, ApiError) or error.status != EXISTS:
                    raise
            else:
                return batch
        raise ClusterError(f"Kubernetes has objects of all {NAMES_TRIES} names that were tried for {plan.job_id}")

    def _create_batch(
        self, api: Api, plan: LaunchPlan, request: LaunchRequest, batch: int, who: manifests.PodUser
    ) -> None:
        """Pods that are kept first, then new ones."""
        keep_s = parse_duration(request.options.get(KEEP_WARM, "0"))
        made = [
            manifests.job(plan, request.options, request.part, batch, index, who, request.avoid)
            for index in range(request.count)
        ]
        orders = [PodOrder(one["metadata"]["name"], plan, keep_s) for one in made]
        there: Collection[int] = ()
        if self._kind == JOB:
            found = manifests.labels(plan.job_id, request.part, batch)
            there = self._take(api, orders, found, fits(made[0], plan, self._owner), request)
        for index, one in enumerate(made):
            if index not in there:
                api.create(self._jobs(), kept(one, orders[index], self._preload, self._owner) if keep_s else one)

    def _take(
        self, api: Api, orders: Sequence[PodOrder], labels: Mapping[str, str], digest: str, request: LaunchRequest
    ) -> Collection[int]:
        """Kept pods take these orders, as far as there are some that fit; the numbers of the orders."""
        serving = self.serving(request.options, request.part)
        there = self._kept.take(api, orders, labels, digest, request.avoid, serving)
        if there:
            self._mine[orders[0].plan.job_id].taken_s = time.monotonic()
            self._soon()  # their nodes run, and only a list says so
        return there

    def _number(self) -> int:
        """A batch's number, which nobody else is likely to take: the time in microseconds."""
        self._batch = max(self._batch + 1, time.time_ns() // 1000)
        return self._batch

    def _take_back(self, batch: int, count: int, job_id: str) -> None:
        """Delete what was created of a batch; a Job of the same name that is another's stays."""
        with suppress(ClusterError):
            found, _ = self._api().list(self._jobs(), f"{manifests.BATCH}={batch},{manifests.JOB}={job_id}")
            for job in found:
                self._api().delete(f"{self._jobs()}/{job['metadata']['name']}")

    def _end(self, job_id: str, names: Collection[str]) -> None:
        """Delete Jobs first, which would make other pods, then their pods, which have little time to end."""
        known = {element.name: element for element in self._elements.get(job_id, ())}
        mine = [name for name in names if name not in known or known[name].active]
        for name in mine:
            self._api().delete(f"{self._jobs()}/{self._kept.job(name)}")
        self._end_pods(job_id, {self._kept.job(name) for name in mine})
        for name in mine:
            before = known.get(name)
            told = parse.CANCELLED, before.node if before else "", "", job_id, before.part if before else ""
            over = parse.element(name, *told)
            if over is not None:
                self._mine[job_id].over[name] = over

    def _end_pods(self, job_id: str, names: Collection[str] | None) -> None:
        pods, _ = self._api().list(self._pods(), f"{manifests.JOB}={job_id}")
        for pod in pods:
            if names is None or pod["metadata"]["labels"].get(JOB_NAME) in names:
                self._api().delete(f"{self._pods()}/{pod['metadata']['name']}", grace_s=LEAVES_S)

    def _forget(self, job_id: str) -> None:
        found, _ = self._api().list(self._jobs(), f"{manifests.JOB}={job_id}")
        stay = self._kept.keep(self._api(), found) if self._keeps else ()
        for job in found:
            if job["metadata"]["name"] not in stay:
                self._api().delete(f"{self._jobs()}/{job['metadata']['name']}")
        self._end_pods(job_id, None)
        self._kept.forget(map(parse.element_of, found))
        self._mine.pop(job_id, None)

    def _send(self, name: str, number: int) -> None:
        pods, _ = self._api().list(self._pods(), f"{JOB_NAME}={self._kept.job(name)}")
        pod = parse.current(pods)
        if pod is None or parse.is_leaving(pod) or pod.get("status", {}).get("phase") != parse.RUNNING:
            raise ClusterError(f"{name} has no pod that runs, so nothing can be sent to it")
        what = signal.Signals(number).name
        status, _, said = self._api().execute(pod["metadata"]["name"], manifests.signal_command(number))
        if status:
            raise ClusterError(f"{what} did not reach {name}: {said.decode(errors='replace').strip()[:300]}")

    # -- what the thread asks ------------------------------------------------------------------------------------

    def _read_elements(self) -> dict[str, list[Element]]:
        """What was listed last, where nothing has changed since. Jobs before pods: then a Job that has ended has a pod
        that has, too."""
        if self._bell.quiet() and not self._stale and time.monotonic() < self._list_again_s:
            return dict(self._elements)
        self._stale = True  # until the lists are here: one that fails must not take the change with it
        self._bell.heard()
        api, jobs_path, pods_path = self._api(), self._jobs(), self._pods()
        jobs, jobs_version = api.list(jobs_path, manifests.SELECTOR)
        pods, pods_version = api.list(pods_path, manifests.SELECTOR)
        self._stale, self._list_again_s = False, time.monotonic() + LISTED_EVERY_S
        self._bell.hang(api, manifests.SELECTOR, {jobs_path: jobs_version, pods_path: pods_version})
        self._kept.seen(jobs, pods)
        self._make_room(api, jobs, pods)
        found = parse.elements(jobs, pods, self._stuck.told(api, pods, jobs))
        for job_id, job in list(self._mine.items()):
            if over := job.over:
                found[job_id] = [one for one in found.get(job_id, ()) if one.name not in over] + list(over.values())
        return found

    def _make_room(self, api: Api, jobs: Sequence[Object], pods: Sequence[Object]) -> None:
        with suppress(ClusterError):  # it is tried again
            for job_id, sentence in self._kept.make_room(api, jobs, pods, set(self._mine), self._owner):
                self._mine[job_id].news.append(sentence)
        if self._kept.watched:
            self._list_again_s = 0.0  # it is a matter of time, of which no watch tells

    def _read_nodes(self) -> dict[str, ReportedNode]:
        if time.monotonic() < self._nodes_again_s:
            return self.nodes
        try:
            self._node_items, _ = self._api().list(NODES)
        except ApiError as error:
            if error.status == FORBIDDEN:  # jobs run all the same
                self._nodes_again_s = time.monotonic() + FORBIDDEN_S
            raise
        return parse.nodes(self._node_items)

    def _read_ends(self, elements: Sequence[Element]) -> dict[str, Element]:
        """Jobs that are gone were deleted: by somebody else, or an hour after their end."""
        found = {}
        for one in elements:
            over = self._mine[one.job].over.get(one.name) if one.job in self._mine else None
            gone = f"its {self._kind.kind} is gone: it was deleted, or ended long ago"
            told = parse.DELETED, one.node, gone, one.job, one.part
            found[one.name] = over or parse.element(one.name, *told) or one
        return found

    def _is_away(self, error: ClusterError) -> bool:
        return not isinstance(error, ApiError) or error.status in BUSY

    # -- how -----------------------------------------------------------------------------------------------------

    def _api(self) -> Api:
        if self._connected is None:
            self._connected = self._connect(self._options)
        return self._connected

    def _jobs(self) -> str:
        return self._kind.path(self._api().namespace)

    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self._api().namespace}/pods"
