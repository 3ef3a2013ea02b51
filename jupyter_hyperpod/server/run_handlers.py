"""The REST handlers of the run table: rows, search in sources, labels, deletion."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from ..control.housekeeping import delete_jobs
from ..control.runs import labels
from .base import ApiHandler
from .errors import RequestRefused
from .services import JOBS, RUNS

WORDS = 8
WORTH_BYTES = 2048  # a shorter answer is sent as it is


class TableHandler(ApiHandler):
    """A base that sends long answers compressed."""

    async def answer(self, make: Callable[..., Any], *arguments: Any) -> None:
        """Run ``make(store, …)`` in a thread and send what it returns as JSON."""
        zipped = "gzip" in self.request.headers.get("Accept-Encoding", "")

        def encoded(*given: Any) -> tuple[bytes, bool]:
            content = json.dumps(make(*given), separators=(",", ":"), allow_nan=False).encode()
            worth = zipped and len(content) > WORTH_BYTES
            return (gzip.compress(content, 2), True) if worth else (content, False)

        content, is_zipped = await self.call(encoded, *arguments)
        if is_zipped:
            self.set_header("Content-Encoding", "gzip")
        self.set_header("Vary", "Accept-Encoding")
        self.finish(content)


class RunsHandler(TableHandler):
    """The rows of the run table that have changed."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self) -> None:
        since, instance = self.get_query_argument("since", "0"), self.get_query_argument("instance", "")
        if not since.isdecimal() or len(since) > 15:
            raise RequestRefused(400, f"since is {since[:80]!r}; expected the version of an earlier answer")
        await self.answer(lambda store: self.services.run_table.changes(int(since), instance))


class RunSourcesHandler(TableHandler):
    """Which sources of jobs contain words."""

    auth_resource = JOBS

    @web.authenticated
    @authorized
    async def get(self) -> None:
        words = list(dict.fromkeys(word[:200] for word in self.get_query_arguments("word") if word))[:WORDS]
        await self.answer(lambda store: {"found": self.services.run_table.sources_with(words)})


class RunLabelsHandler(TableHandler):
    """Tags, the note and the archive of some jobs."""

    auth_resource = RUNS

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body("labelRuns")
        changed = await self.call(labels.label_all, body.pop("jobs"), identity=self.identity(), **body)
        self.finish(json.dumps({"jobs": changed}))


class RunDeletionHandler(TableHandler):
    """Delete jobs that have ended, all or none."""

    auth_resource = RUNS

    @web.authenticated
    @authorized
    async def post(self) -> None:
        found = await self.call(delete_jobs, self.body("deleteRuns")["jobs"])
        said = found.lines[0]
        self.log.info("%s, as %s asked", said, self.identity() or "the only user")
        self.finish(json.dumps({"jobs": [job["id"] for job in found.record], "said": said}))
