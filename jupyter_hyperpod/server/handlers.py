"""The REST handlers: each reads its request, runs `control` in a thread, and answers with JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from ..core.views import summary
from ..storage.store import Store
from .base import ROOT, ApiHandler
from .drive import ContentsHandler, DownloadHandler
from .errors import RequestRefused
from .run_handlers import (
    AccountHandler,
    ComparisonHandler,
    ExecutedHandler,
    PromoteHandler,
    PromotionHandler,
    ReportHandler,
    ResourcesHandler,
    RunDeletionHandler,
    RunLabelsHandler,
    RunsHandler,
    RunSourcesHandler,
    SharingChangeHandler,
    SharingHandler,
    TrialsHandler,
)
from .schedule_handlers import SchedulesHandler
from .services import CLUSTER, FAULTS, FILES, JOBS, Services
from .stream import StreamHandler

FAULTS_REFUSED = "the administrator of this server has switched faults off"
FAULTS_HINT = "They are allowed where HyperpodExtension.allow_faults is left at its default, True."


class SettingsHandler(ApiHandler):
    """The version and the settings of this server."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.finish(json.dumps(self.services.public_settings()))


def reader(read: Callable[..., Any], resource: str) -> type[ApiHandler]:
    """A handler that answers GET with what ``read(store, *parts of the path)`` returns."""

    class Reader(ApiHandler):
        auth_resource = resource

        @web.authenticated
        @authorized
        async def get(self, *parts: str) -> None:
            self.finish(await self.call(lambda store: json.dumps(read(store, *parts))))

    return Reader


def cluster_changer(operation: str, change: Callable[..., Any], *, named: bool = False) -> type[ApiHandler]:
    """A handler that calls ``change(store, **body)`` and answers POST with the cluster. ``named``: it gets who asks."""

    class Changer(ApiHandler):
        auth_resource = CLUSTER

        @web.authenticated
        @authorized
        async def post(self) -> None:
            who = {"identity": self.identity()} if named else {}
            await self.call(change, **self.body(operation), **who)
            self.finish(json.dumps(await self.call(_cluster)))

    return Changer


class ClusterNodeHandler(ApiHandler):
    """Drain, reboot, replace or resume one node by hand."""

    auth_resource = CLUSTER

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body("askNode")
        node, action = body["node"], body["action"]
        by, said = await self.call(_act, node, action, body.get("reason"), self.identity())
        self.log.info("%s asked to %s %s", by, action, node)
        self.set_status(202)
        self.finish(json.dumps({"node": node, "action": action, "said": said}))


class ClustersHandler(ApiHandler):
    """The clusters that jobs can be sent to, or one of them by its context."""

    auth_resource = CLUSTER

    @web.authenticated
    @authorized
    async def get(self) -> None:
        context = str(self.query("listClusters").get("context", ""))
        self.finish(json.dumps(await self.call(lambda _: _standing(context))))


class MetricsHandler(ApiHandler):
    """Nodes and jobs for Prometheus, which sends Jupyter's token."""

    auth_resource = CLUSTER

    @web.authenticated
    @authorized
    async def get(self) -> None:
        content, kind = await self.call(lambda _: _rendered(self.services))
        self.finish(content, set_content_type=kind)


class PlanHandler(ApiHandler):
    """A plan of what failures cost and what faster recovery saves; reads nothing of the store."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body("makePlan")
        self.finish(json.dumps(await self.call(lambda _: _planned(body))))


class StopHandler(ApiHandler):
    """Ask a job to stop."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        await self.command("stop", job_id, **self.body("stopJob"))


class ScaleHandler(ApiHandler):
    """Ask a job to run on another number of nodes."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        await self.command("scale", job_id, self.body("scaleJob")["target"])


class FaultHandler(ApiHandler):
    """Break a rank, a node, the coordinator or the supervisor on purpose, unless an administrator forbids it."""

    auth_resource = FAULTS

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        if not self.services.allow_faults:
            raise RequestRefused(403, FAULTS_REFUSED, FAULTS_HINT)
        body = self.body("injectFault")
        await self.command("fault", job_id, body.pop("fault"), **body)


class JobsHandler(ApiHandler):
    """The jobs, or one page of them."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self) -> None:
        asked = self.query("listJobs")
        self.finish(await self.call(_jobs, asked.get("before", ""), asked["limit"]))


class OutputHandler(ApiHandler):
    """One page of a job's output."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        asked = {name: str(value) for name, value in self.query("getOutput").items()}
        self.finish(await self.call(_output, job_id, asked))


# What requests need is imported by the first of them, in its thread: the start of a server does not wait for it.


def _cluster(store: Store) -> dict[str, Any]:
    from ..control import cluster

    return cluster.status(store)


def _start_cluster(store: Store, **shape: Any) -> None:
    from ..control import cluster

    cluster.ensure_started(store, **shape)


def _stop_cluster(store: Store, identity: str) -> None:
    from ..control import cluster, jobs

    cluster.stop(store, by=jobs.person(identity))


def _keep_cluster(store: Store) -> None:
    from ..control import cluster

    cluster.keep(store)


def _heal(store: Store, **asked: Any) -> None:
    from ..control import cluster

    cluster.heal(store, **asked)


def _act(store: Store, node: str, action: str, reason: str | None, identity: str) -> tuple[str, str]:
    """Who asked, and what came of it."""
    from ..control import jobs, nodes

    by = str(jobs.person(identity))
    return by, nodes.act(store, node, action, reason or f"asked for by {by}")


def _backends(store: Store) -> Any:
    from ..control import nodes

    return nodes.offers()


def _standing(context: str) -> Any:
    from ..control.clusters.standing import standing

    return standing(context)


def _mounts(store: Store) -> dict[str, Any]:
    """List the mounts. One that hangs is reported within seconds and does not block the answer."""
    from ..mounts import probe

    return {"mounts": probe.survey(store)}


def _rendered(services: Services) -> tuple[bytes, str]:
    from ..control.metrics import CONTENT_TYPE

    return services.metrics().render(), CONTENT_TYPE


def _planned(body: dict[str, Any]) -> Any:
    from ..planner import face

    return face.answer_body(body).view()


def _output(store: Store, job_id: str, asked: dict[str, str]) -> str:
    from .output_pages import OutputQuery, page

    return json.dumps(page(store, job_id, OutputQuery(**asked)))


def _job(store: Store, job_id: str) -> Any:
    from ..control import jobs

    return jobs.job_view(store, job_id)


def _jobs(store: Store, before: str, limit: int) -> str:
    from ..control import jobs

    views, older = jobs.page(store, before, limit) if before else (jobs.list_jobs(store), 0)
    return json.dumps({"jobs": [summary(view) for view in views], "older": older})


def _cell(store: Store, job_id: str) -> dict[str, str]:
    return {"source": store.cell(store.job(job_id).spec().cell_digest)}


_JOB = "([^/]+)"
ROUTES: list[tuple[str, type[web.RequestHandler]]] = [
    (f"{ROOT}/settings", SettingsHandler),
    (f"{ROOT}/cluster", reader(_cluster, CLUSTER)),
    (f"{ROOT}/cluster/start", cluster_changer("startCluster", _start_cluster)),
    (f"{ROOT}/cluster/stop", cluster_changer("stopCluster", _stop_cluster, named=True)),
    (f"{ROOT}/cluster/keep", cluster_changer("keepCluster", _keep_cluster)),
    (f"{ROOT}/cluster/heal", cluster_changer("healCluster", _heal)),
    (f"{ROOT}/cluster/node", ClusterNodeHandler),
    (f"{ROOT}/backends", reader(_backends, CLUSTER)),
    (f"{ROOT}/clusters", ClustersHandler),
    (f"{ROOT}/mounts", reader(_mounts, FILES)),
    (f"{ROOT}/contents((?:/.*)?)", ContentsHandler),
    (f"{ROOT}/files(/.*)", DownloadHandler),
    (f"{ROOT}/metrics", MetricsHandler),
    (f"{ROOT}/plan", PlanHandler),
    (f"{ROOT}/runs", RunsHandler),
    (f"{ROOT}/runs/sources", RunSourcesHandler),
    (f"{ROOT}/runs/labels", RunLabelsHandler),
    (f"{ROOT}/runs/delete", RunDeletionHandler),
    (f"{ROOT}/comparison", ComparisonHandler),
    (f"{ROOT}/trials", TrialsHandler),
    (f"{ROOT}/sharing", SharingHandler),
    (f"{ROOT}/sharing/change", SharingChangeHandler),
    (f"{ROOT}/schedules", SchedulesHandler),
    (f"{ROOT}/jobs", JobsHandler),
    (f"{ROOT}/jobs/{_JOB}", reader(_job, JOBS)),
    (f"{ROOT}/jobs/{_JOB}/cell", reader(_cell, JOBS)),
    (f"{ROOT}/jobs/{_JOB}/output", OutputHandler),
    (f"{ROOT}/jobs/{_JOB}/notebook", ExecutedHandler),
    (f"{ROOT}/jobs/{_JOB}/account", AccountHandler),
    (f"{ROOT}/jobs/{_JOB}/report", ReportHandler),
    (f"{ROOT}/jobs/{_JOB}/resources", ResourcesHandler),
    (f"{ROOT}/jobs/{_JOB}/promotion", PromotionHandler),
    (f"{ROOT}/jobs/{_JOB}/promote", PromoteHandler),
    (f"{ROOT}/jobs/{_JOB}/stop", StopHandler),
    (f"{ROOT}/jobs/{_JOB}/scale", ScaleHandler),
    (f"{ROOT}/jobs/{_JOB}/fault", FaultHandler),
    (f"{ROOT}/stream", StreamHandler),
]
