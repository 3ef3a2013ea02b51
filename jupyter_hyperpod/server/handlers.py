"""The REST handlers: each reads its request, runs `control` in a thread, and answers with JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from ..control import cluster, jobs, nodes
from ..control.clusters.standing import standing
from ..control.metrics import CONTENT_TYPE
from ..core.views import summary
from ..mounts import probe
from ..storage.store import Store
from .base import ROOT, ApiHandler
from .drive import ContentsHandler, DownloadHandler
from .errors import RequestRefused
from .output_pages import OutputHandler
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
)
from .schedule_handlers import SchedulesHandler
from .services import CLUSTER, FAULTS, FILES, JOBS
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
    """A handler that calls ``change(store, **body)`` and answers POST with the cluster. ``named``: it gets by whom."""

    class Changer(ApiHandler):
        auth_resource = CLUSTER

        @web.authenticated
        @authorized
        async def post(self) -> None:
            who = {"by": jobs.person(self.identity())} if named else {}
            await self.call(change, **self.body(operation), **who)
            self.finish(json.dumps(await self.call(cluster.status)))

    return Changer


class ClusterNodeHandler(ApiHandler):
    """Drain, reboot, replace or resume one node by hand."""

    auth_resource = CLUSTER

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body("askNode")
        node, action = body["node"], body["action"]
        by = jobs.person(self.identity())
        said = await self.call(nodes.act, node, action, body.get("reason") or f"asked for by {by}")
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
        self.finish(json.dumps(await self.call(lambda _: standing(context))))


class MetricsHandler(ApiHandler):
    """Nodes and jobs for Prometheus, which sends Jupyter's token."""

    auth_resource = CLUSTER

    @web.authenticated
    @authorized
    async def get(self) -> None:
        content = await self.call(lambda store: self.services.metrics.render())
        self.finish(content, set_content_type=CONTENT_TYPE)


class PlanHandler(ApiHandler):
    """A plan of what failures cost and what faster recovery saves; reads nothing of the store."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body("makePlan")
        self.finish(json.dumps(await self.call(lambda _: _planned(body))))


def _planned(body: dict[str, Any]) -> Any:
    from ..planner import face  # the start of a server does not pay for it

    return face.answer_body(body).view()


class StopHandler(ApiHandler):
    """Ask a job to stop."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        await self.command(jobs.stop, job_id, **self.body("stopJob"))


class ScaleHandler(ApiHandler):
    """Ask a job to run on another number of nodes."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        await self.command(jobs.scale, job_id, self.body("scaleJob")["target"])


class FaultHandler(ApiHandler):
    """Break a rank, a node, the coordinator or the supervisor on purpose, unless an administrator forbids it."""

    auth_resource = FAULTS

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        if not self.services.allow_faults:
            raise RequestRefused(403, FAULTS_REFUSED, FAULTS_HINT)
        body = self.body("injectFault")
        await self.command(jobs.fault, job_id, body.pop("fault"), **body)


def _mounts(store: Store) -> dict[str, Any]:
    """List the mounts. One that hangs is reported within seconds and does not block the answer."""
    return {"mounts": probe.survey(store)}


class JobsHandler(ApiHandler):
    """The jobs, or one page of them."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self) -> None:
        asked = self.query("listJobs")
        self.finish(await self.call(_jobs, asked.get("before", ""), asked["limit"]))


def _jobs(store: Store, before: str, limit: int) -> str:
    views, older = jobs.page(store, before, limit) if before else (jobs.list_jobs(store), 0)
    return json.dumps({"jobs": [summary(view) for view in views], "older": older})


def _cell(store: Store, job_id: str) -> dict[str, str]:
    return {"source": store.cell(store.job(job_id).spec().cell_digest)}


_JOB = "([^/]+)"
ROUTES: list[tuple[str, type[web.RequestHandler]]] = [
    (f"{ROOT}/settings", SettingsHandler),
    (f"{ROOT}/cluster", reader(cluster.status, CLUSTER)),
    (f"{ROOT}/cluster/start", cluster_changer("startCluster", cluster.ensure_started)),
    (f"{ROOT}/cluster/stop", cluster_changer("stopCluster", cluster.stop, named=True)),
    (f"{ROOT}/cluster/keep", cluster_changer("keepCluster", cluster.keep)),
    (f"{ROOT}/cluster/heal", cluster_changer("healCluster", cluster.heal)),
    (f"{ROOT}/cluster/node", ClusterNodeHandler),
    (f"{ROOT}/backends", reader(lambda _: nodes.offers(), CLUSTER)),
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
    (f"{ROOT}/schedules", SchedulesHandler),
    (f"{ROOT}/jobs", JobsHandler),
    (f"{ROOT}/jobs/{_JOB}", reader(jobs.job_view, JOBS)),
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
