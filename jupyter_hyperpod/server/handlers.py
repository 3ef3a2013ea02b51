"""The REST handlers: each reads its request, runs `control` in a thread, and answers with JSON."""

from __future__ import annotations

import json

from jupyter_server.auth.decorator import authorized
from tornado import web

from ..control import cluster, jobs, nodes
from ..control.metrics import CONTENT_TYPE
from ..core.views import summary
from ..mounts import probe
from ..planner import face
from .base import ROOT, ApiHandler
from .drive import ContentsHandler, DownloadHandler
from .errors import RequestRefused
from .stream import StreamHandler

FAULTS_REFUSED = "the administrator of this server has switched faults off"
FAULTS_HINT = "They are allowed where HyperpodExtension.allow_faults is left at its default, True."


class SettingsHandler(ApiHandler):
    """The version and the settings of this server."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.finish(json.dumps(self.services.public_settings()))


class ClusterHandler(ApiHandler):
    """The cluster and its nodes."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.finish(json.dumps(await self.call(cluster.status)))


class ClusterStartHandler(ApiHandler):
    """Start the local cluster."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        await self.call(cluster.ensure_started, **self.body("startCluster"))
        self.finish(json.dumps(await self.call(cluster.status)))


class ClusterStopHandler(ApiHandler):
    """Stop the local cluster and its jobs."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        self.body("stopCluster")
        await self.call(cluster.stop)
        self.finish(json.dumps(await self.call(cluster.status)))


class ClusterHealHandler(ApiHandler):
    """Reconnect nodes that a fault cut off from the network."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        await self.call(cluster.heal, **self.body("healCluster"))
        self.finish(json.dumps(await self.call(cluster.status)))


class ClusterNodeHandler(ApiHandler):
    """Drain, reboot, replace or resume one node by hand."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body("askNode")
        node, action = body["node"], body["action"]
        reason = body.get("reason") or f"asked for by {self.current_user.username}"
        said = await self.call(nodes.act, node, action, reason)
        self.log.info("%s asked to %s %s", self.current_user.username, action, node)
        self.set_status(202)
        self.finish(json.dumps({"node": node, "action": action, "said": said}))


class MountsHandler(ApiHandler):
    """The mounts and their health. A mount that hangs is reported within seconds and blocks nothing."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.finish(json.dumps({"mounts": await self.call(probe.survey)}))


class MetricsHandler(ApiHandler):
    """Nodes and jobs for Prometheus, which sends Jupyter's token."""

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
        found = await self.call(lambda _: face.answer_body(body))
        self.finish(json.dumps(found.view()))


class JobsHandler(ApiHandler):
    """The list of jobs."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        views = await self.call(jobs.list_jobs)
        self.finish(json.dumps({"jobs": [summary(view) for view in views]}))


class JobHandler(ApiHandler):
    """One job."""

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        self.finish(json.dumps(await self.call(jobs.job_view, job_id)))


class CellHandler(ApiHandler):
    """The source a job was submitted with."""

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        source = await self.call(lambda store: store.cell(store.job(job_id).spec().cell_digest))
        self.finish(json.dumps({"source": source}))


class StopHandler(ApiHandler):
    """Ask a job to stop."""

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        await self.command(jobs.stop, job_id, **self.body("stopJob"))


class ScaleHandler(ApiHandler):
    """Ask a job to run on another number of nodes."""

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        await self.command(jobs.scale, job_id, self.body("scaleJob")["target"])


class FaultHandler(ApiHandler):
    """Break a rank, a node, the coordinator or the supervisor on purpose, unless an administrator forbids it."""

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        if not self.services.allow_faults:
            raise RequestRefused(403, FAULTS_REFUSED, FAULTS_HINT)
        body = self.body("injectFault")
        await self.command(jobs.fault, job_id, body.pop("fault"), **body)


_JOB = "([^/]+)"
ROUTES: list[tuple[str, type[web.RequestHandler]]] = [
    (f"{ROOT}/settings", SettingsHandler),
    (f"{ROOT}/cluster", ClusterHandler),
    (f"{ROOT}/cluster/start", ClusterStartHandler),
    (f"{ROOT}/cluster/stop", ClusterStopHandler),
    (f"{ROOT}/cluster/heal", ClusterHealHandler),
    (f"{ROOT}/cluster/node", ClusterNodeHandler),
    (f"{ROOT}/mounts", MountsHandler),
    (f"{ROOT}/contents((?:/.*)?)", ContentsHandler),
    (f"{ROOT}/files(/.*)", DownloadHandler),
    (f"{ROOT}/metrics", MetricsHandler),
    (f"{ROOT}/plan", PlanHandler),
    (f"{ROOT}/jobs", JobsHandler),
    (f"{ROOT}/jobs/{_JOB}", JobHandler),
    (f"{ROOT}/jobs/{_JOB}/cell", CellHandler),
    (f"{ROOT}/jobs/{_JOB}/stop", StopHandler),
    (f"{ROOT}/jobs/{_JOB}/scale", ScaleHandler),
    (f"{ROOT}/jobs/{_JOB}/fault", FaultHandler),
    (f"{ROOT}/stream", StreamHandler),
]
