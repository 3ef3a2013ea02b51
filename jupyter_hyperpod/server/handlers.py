"""REST: each verb reads the request, lets `control` do it away from the event loop, and answers with JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from ..control import cluster, jobs
from ..control.metrics import CONTENT_TYPE
from ..core.errors import HyperpodError, UserError
from ..core.views import summary
from ..planner import face
from ..storage import probe
from .errors import JsonErrors, Refused, refusal
from .stream import AUTH_RESOURCE, StreamHandler

if TYPE_CHECKING:
    from .extension import HyperpodExtension

ROOT = "/jupyter_hyperpod/api/v1"
FAULTS_REFUSED = "this server does not allow faults to be injected"
FAULTS_HINT = "Start it with --HyperpodExtension.allow_faults=True."
Result = TypeVar("Result")


@web.stream_request_body
class Handler(JsonErrors, APIHandler):
    """Authentication, a bounded body, JSON in and out, and errors as ``{"message", "hint"?}``."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, extension: HyperpodExtension) -> None:
        self.extension = extension
        self.store = extension.job_store
        self._body = bytearray()

    async def prepare(self) -> None:  # type: ignore[override]
        """Refuse strangers, and bodies that are too large before a byte of them is read."""
        limit = self.extension.max_body_bytes
        self.request.connection.set_max_body_size(limit)  # type: ignore[union-attr]
        await super().prepare()
        if int(self.request.headers.get("Content-Length", 0)) > limit:
            raise Refused(413, f"the body is larger than {limit} bytes")

    def data_received(self, chunk: bytes) -> None:
        """Collect the body; `prepare` has bounded it."""
        self._body += chunk

    def body(self, operation: str) -> dict[str, Any]:
        """The request's JSON, checked against the OpenAPI file; an empty body is ``{}``. Raises Refused."""
        try:
            value = json.loads(bytes(self._body) or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is not JSON: {error}") from error
        try:
            return self.extension.contract.check_body(operation, value)
        except UserError as error:
            raise refusal(error) from error

    async def call(self, function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Run ``function(store, …)`` in a thread; raises Refused for what it raises on purpose."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self.extension.requests, lambda: function(self.store, *arguments, **named)
            )
        except (HyperpodError, OSError) as error:
            raise refusal(error) from error


class SettingsHandler(Handler):
    """What this server is and allows."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.finish(json.dumps(self.extension.public_settings()))


class ClusterHandler(Handler):
    """The cluster and its nodes."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.finish(json.dumps(await self.call(cluster.status)))


class ClusterStartHandler(Handler):
    """Start the local cluster."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        await self.call(cluster.ensure_started, **self.body("startCluster"))
        self.finish(json.dumps(await self.call(cluster.status)))


class ClusterStopHandler(Handler):
    """Stop the local cluster and what runs on it."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        self.body("stopCluster")
        await self.call(cluster.stop)
        self.finish(json.dumps(await self.call(cluster.status)))


class ClusterHealHandler(Handler):
    """Bring nodes that a fault cut off back to the network."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        await self.call(cluster.heal, **self.body("healCluster"))
        self.finish(json.dumps(await self.call(cluster.status)))


class MountsHandler(Handler):
    """The mounts and how each is; one that hangs is told within seconds and holds nobody."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.finish(json.dumps({"mounts": await self.call(probe.survey)}))


class MetricsHandler(Handler):
    """Nodes and jobs for Prometheus, which sends Jupyter's token."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        content = await self.call(lambda store: self.extension.metrics.render())
        self.finish(content, set_content_type=CONTENT_TYPE)


class PlanHandler(Handler):
    """What failures cost and what faster recovery saves; nothing of the store is read."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body("makePlan")
        found = await self.call(lambda _: face.answer_body(body))
        self.finish(json.dumps(found.view()))


class JobsHandler(Handler):
    """The list of jobs."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        views = await self.call(jobs.list_jobs)
        self.finish(json.dumps({"jobs": [summary(view) for view in views]}))


class JobHandler(Handler):
    """One job."""

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        self.finish(json.dumps(await self.call(jobs.job_view, job_id)))


class CellHandler(Handler):
    """The source a job was submitted with."""

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        source = await self.call(lambda store: store.cell(store.job(job_id).spec().cell_digest))
        self.finish(json.dumps({"source": source}))


class _CommandHandler(Handler):
    """A request to a running job: it is written down now, its effect arrives as events."""

    async def ask(self, command: Callable[..., None], job_id: str, *arguments: Any, **named: Any) -> None:
        """Give the command and answer that it was given."""
        await self.call(command, job_id, *arguments, **named)
        self.log.info("%s asked %s to %s", self.current_user.username, job_id, command.__name__)
        self.set_status(202)
        self.finish(json.dumps({"id": job_id, "command": command.__name__}))


class StopHandler(_CommandHandler):
    """Ask a job to stop."""

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        await self.ask(jobs.stop, job_id, **self.body("stopJob"))


class ScaleHandler(_CommandHandler):
    """Ask a job to run on another number of nodes."""

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        await self.ask(jobs.scale, job_id, self.body("scaleJob")["target"])


class FaultHandler(_CommandHandler):
    """Break a rank, a node, the coordinator or the supervisor on purpose, where the server allows it."""

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        if not self.extension.allow_faults:
            raise Refused(403, FAULTS_REFUSED, FAULTS_HINT)
        body = self.body("injectFault")
        await self.ask(jobs.fault, job_id, body.pop("fault"), **body)


_JOB = "([^/]+)"
ROUTES: list[tuple[str, type[web.RequestHandler]]] = [
    (f"{ROOT}/settings", SettingsHandler),
    (f"{ROOT}/cluster", ClusterHandler),
    (f"{ROOT}/cluster/start", ClusterStartHandler),
    (f"{ROOT}/cluster/stop", ClusterStopHandler),
    (f"{ROOT}/cluster/heal", ClusterHealHandler),
    (f"{ROOT}/mounts", MountsHandler),
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
