"""The REST handlers of the run table: rows, search in sources, labels, deletion."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from tornado import web

from ..storage.store import Store
from ..system.users import own_name
from .base import ApiHandler
from .services import JOBS, RUNS

WORTH_BYTES = 2048  # a shorter answer is sent as it is


async def send(handler: ApiHandler, make: Callable[[Store], Any]) -> None:
    """Answer with what ``make(store)`` returns in a thread, as JSON; a long answer is sent compressed."""
    zipped = "gzip" in handler.request.headers.get("Accept-Encoding", "")

    def encoded(store: Store) -> tuple[bytes, bool]:
        content = _encoded(make(store))
        worth = zipped and len(content) > WORTH_BYTES
        return (gzip.compress(content, 2), True) if worth else (content, False)

    content, is_zipped = await handler.call(encoded)
    if is_zipped:
        handler.set_header("Content-Encoding", "gzip")
    handler.set_header("Vary", "Accept-Encoding")
    handler.finish(content)


def _encoded(answer: Any) -> bytes:
    """JSON; ``rows`` one by one, because an encoder of thousands at once would hold the event loop up."""
    if not isinstance(answer, dict) or not isinstance(answer.get("rows"), list):
        return _dumps(answer).encode()
    others = {name: value for name, value in answer.items() if name != "rows"}
    rows = ",".join(map(_dumps, answer["rows"]))
    return f'{_dumps(others)[:-1]}{"," if others else ""}"rows":[{rows}]}}'.encode()


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


async def _may_read_environments(handler: ApiHandler) -> bool:
    """Whether who asks may read everything about runs."""
    return bool(await ensure_async(handler.authorizer.is_authorized(handler, handler.current_user, "read", RUNS)))


class RunsHandler(ApiHandler):
    """The rows of the run table that have changed."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self) -> None:
        asked = self.query("listRuns")
        since, instance = asked.get("since", 0), asked.get("instance", "")
        await send(self, lambda store: self.services.run_table().changes(since, instance))


class RunSourcesHandler(ApiHandler):
    """Which sources of jobs contain words."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self) -> None:
        words = [word for word in dict.fromkeys(self.query("findSources").get("word", ())) if word]
        await send(self, lambda store: {"found": self.services.run_table().sources_with(words)})


class RunLabelsHandler(ApiHandler):
    """Tags, the note and the archive of some jobs."""

    auth_resource = RUNS

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body("labelRuns")
        named = body.pop("jobs")
        try:
            changed = await self.call(_labelled, named, identity=self.identity(), **body)
        finally:
            self.services.tailer.look_at(named)  # some are changed, too, where a later one is refused
        self.finish(json.dumps({"jobs": changed}))


class RunDeletionHandler(ApiHandler):
    """Delete jobs that have ended, all or none."""

    auth_resource = RUNS

    @web.authenticated
    @authorized
    async def post(self) -> None:
        found = await self.call(_deleted, self.body("deleteRuns")["jobs"])
        said = found.lines[0]
        self.log.info("%s, as %s asked", said, self.identity() or own_name())
        self.finish(json.dumps({"jobs": [job["id"] for job in found.record], "said": said}))


class ComparisonHandler(ApiHandler):
    """Some jobs side by side; of their environments only for those who may read everything about runs."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self) -> None:
        names = self.query("compareJobs")["job"]
        whole = await _may_read_environments(self)
        await send(self, lambda store: _compared(store, names, whole))


class TrialsHandler(ApiHandler):
    """The trials of a sweep, or some jobs, for parallel coordinates."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self) -> None:
        asked = self.query("drawTrials")
        sweep, jobs, metric = asked.get("sweep", ""), asked.get("job", []), asked.get("metric", "")
        large = bool(asked["maximize"])

        def drawn(_: Store) -> Any:
            pictures = self.services.sweep_pictures()
            return pictures.of_sweep(sweep) if sweep else pictures.of_jobs(jobs, metric, large)

        await send(self, drawn)


class SharingHandler(ApiHandler):
    """Whose the store is, with whom it is shared, and what the person who asks may do."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.finish(json.dumps(await _for_this_person(self, await self.call(_sharing))))


class SharingChangeHandler(ApiHandler):
    """Share the store with a group, or with nobody."""

    auth_resource = RUNS

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body("changeSharing")
        found = await self.call(_share, body["read"], body["operate"])
        told = (
            "private" if not found["read"] else f"read by {found['read']}, operated by {found['operate'] or 'nobody'}"
        )
        self.log.info("%s made the store %s: %s", self.identity() or own_name(), found["store"], told)
        self.finish(json.dumps(await _for_this_person(self, found)))


async def _for_this_person(handler: ApiHandler, found: dict[str, Any]) -> dict[str, Any]:
    """What this server's user may do, cut down to what the authorizer lets the person do who asks."""

    async def may(resource: str) -> bool:
        asked = handler.authorizer.is_authorized(handler, handler.current_user, "write", resource)
        return bool(await ensure_async(asked))

    owns = found.pop("own") and await may(RUNS)
    operates = found.pop("operates") and await may(JOBS)
    role = "owner" if owns else "operate" if operates else "read"
    shown = found if owns else found | {"groups": [], "notes": []}
    return shown | {"role": role, "person": handler.identity() or own_name()}


class AccountHandler(ApiHandler):
    """Where the time of a job's nodes went, and its curves."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        await send(self, lambda store: _account(store, job_id))


class ResourcesHandler(ApiHandler):
    """What the nodes of a job have used."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        await send(self, lambda store: _resources(store, job_id))


class ReportHandler(ApiHandler):
    """The report of a job, which the browser saves; of its environment only for those who may read it."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        whole = await _may_read_environments(self)
        await send(self, lambda store: {"id": job_id, "page": _report(store, job_id, whole)})


class ExecutedHandler(ApiHandler):
    """The notebook of a job with its outputs; the browser saves it where its person may write."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self, job_id: str) -> None:
        await send(self, lambda store: _executed(store, job_id))


class PromotionHandler(ApiHandler):
    """What a job would be on another backend; nothing is submitted."""

    auth_resource = RUNS

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        found = await self.call(_promotion, job_id, self.body("planPromotion"))
        self.finish(json.dumps(found.to_json()))


class PromoteHandler(ApiHandler):
    """Submit a job to another backend."""

    auth_resource = RUNS

    @web.authenticated
    @authorized
    async def post(self, job_id: str) -> None:
        body = self.body("promoteJob")
        accept = body.pop("accept", False)
        new = await self.call(_promoted, job_id, body, accept)
        self.log.info("%s promoted %s to %s: %s", self.identity() or own_name(), job_id, body["backend"], new)
        self.set_status(201)
        self.finish(json.dumps({"id": new}))


# What requests need is imported by the first of them, in its thread: the start of a server does not wait for it.


def _labelled(store: Store, names: list[str], **change: Any) -> Any:
    from ..control.runs import labels

    return labels.label_all(store, names, **change)


def _deleted(store: Store, names: list[str]) -> Any:
    from ..control.housekeeping import delete_jobs

    return delete_jobs(store, names)


def _compared(store: Store, names: list[str], whole: bool) -> Any:
    from ..control.runs.verbs import compared_for_browser

    return compared_for_browser(store, names, whole)


def _account(store: Store, job_id: str) -> Any:
    from ..control.runs.verbs import account_for_browser

    return account_for_browser(store, job_id)


def _resources(store: Store, job_id: str) -> Any:
    from ..control.runs.resources import resources_for_browser

    return resources_for_browser(store, job_id)


def _sharing(store: Store) -> dict[str, Any]:
    from ..control.teams import share

    return share.told(store)


def _share(store: Store, read: str, operate: str) -> dict[str, Any]:
    from ..control.teams import share

    return share.change(store, read, operate)


def _report(store: Store, job_id: str, whole: bool) -> str:
    from ..control.runs.verbs import report_for_browser

    return report_for_browser(store, job_id, whole)


def _executed(store: Store, job_id: str) -> Any:
    from ..control.executed import executed_notebook

    notebook = executed_notebook.executed(store, job_id)
    return {"id": job_id, "origin": executed_notebook.origin(store, job_id), "notebook": notebook}


def _promotion(store: Store, job_id: str, body: dict[str, Any]) -> Any:
    from ..control.runs import promote

    return promote.plan(store, job_id, body)


def _promoted(store: Store, job_id: str, body: dict[str, Any], accept: bool) -> str:
    from ..control.runs import promote

    return promote.submit(store, promote.plan(store, job_id, body), accept=accept)
