"""The REST handler of schedules: the list, and what the verb ``schedule`` does to one of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from ..core.errors import Conflict
from ..storage.store import Store
from ..system.users import own_name
from .base import ApiHandler
from .run_handlers import send
from .services import RUNS

if TYPE_CHECKING:
    from ..control.runs.run_table import RunTable

COMMAND = "jupyter hyperpod"


class SchedulesHandler(ApiHandler):
    """All schedules; pause, resume or delete one, or run it at once. As on the command line, for the store's owner."""

    auth_resource = RUNS

    @web.authenticated
    @authorized
    async def get(self) -> None:
        await send(self, lambda store: _listed(store, self.services.run_table()))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body("askSchedule")
        name, action = body["schedule"], body["action"]
        told = await self.call(_done, name, action)
        self.log.info("%s asked to %s the schedule %s", self.identity() or own_name(), action, name)
        self.finish(json.dumps(told))


# The start of a server does not pay for what is imported here.


def _listed(store: Store, table: RunTable) -> Any:
    from ..control.schedules import schedule_table

    return schedule_table.for_browser(store, table.states)


def _done(store: Store, name: str, action: str) -> dict[str, str]:
    from ..control.schedules import verbs

    answer = verbs.act(store, action, name, COMMAND)
    if not answer.ok:
        raise Conflict(answer.lines[0])
    return {"schedule": name, "action": action, "job": str(answer.record.get("job", "")), "said": answer.lines[0]}
