"""The gateway: one a deployment, the head of its job. People ask it, it asks the replicas, and it follows the load.

It may die at any moment: the supervisor starts it again, at the same port where that is still free, the replicas find
it by its endpoint file, and what it has to know it reads from the journal. Requests that were under way are lost to
their clients then; those who repeat them get the same answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tornado.netutil import bind_sockets

from ..core.errors import StoreError
from ..core.views import View, fold_all, new_job_view
from ..storage.environment import adopt, begin_with
from ..storage.journal import follow_commands, read_events
from ..storage.journal_writer import JournalWriter
from ..storage.store import write_private
from . import commands, routes
from .context import Site, bearer, read_token, shows
from .counters import Ledger
from .http_server import Door
from .pool import Pool, Replica
from .relay import Relay, Request
from .replica_manager import WRITER, Crew

TICK_S = 0.1
TOUCH_S = 0.5
SAMPLE_S, LOADING_SAMPLE_S = 2.0, 0.5
DRAIN_S = 10.0
FAREWELL_S = 1.0
POLL_S = 0.01
PROBE = b'{"prompt": [0], "max_tokens": 1, "temperature": 0}'


class Gateway:
    """The state of a deployment's gateway; `run` is its whole life."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.pen = JournalWriter(site.job.events, WRITER)
        events = read_events(site.job.events)
        view = fold_all(new_job_view(site.job.id), events)
        self.pool = Pool(site.serve.slots, site.serve.queue)
        self.ledger = Ledger()
        self.key = site.pass_between()
        self.crew = Crew(site, self.pool, self.pen, view)
        self.token = bearer(_token(site))
        self.relay = Relay(self.pool, self.ledger, self.key, site.serve.request_timeout_s, self.crew.answered)
        self.state: str = view["state"]
        self.opened_s = int(time.time())
        self.ending: tuple[str, str] | None = None
        self.commands = follow_commands(site.job.commands)
        self.handled = {
            (e.data["command"]["writer"], e.data["command"]["seq"]) for e in events if e.kind == "command.done"
        }
        self._incident = _open_incident(view)
        self._sampled: dict[str, Any] = {}
        self._samples = 0
        self._probes: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until the deployment has ended; returns the exit status."""
        sockets = self._bind()
        server = Door(routes.application(self), knows=self._knows)
        server.add_sockets(sockets)
        self._announce(sockets[0].getsockname())
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.end, "stopped", "the gateway was told to terminate")
        commands.recall(self)
        touched_s = sampled_s = time.monotonic()
        while self.ending is None:
            await asyncio.sleep(TICK_S)
            commands.obey_all(self)
            self.crew.look()
            self._judge()
            self.pen.flush()
            now_s = time.monotonic()
            if now_s - touched_s > TOUCH_S:
                touched_s = now_s
                with suppress(OSError):
                    os.utime(self.site.endpoint_file)
            loading = any(replica.state == "loading" for replica in self.pool)
            if now_s - sampled_s > (LOADING_SAMPLE_S if loading else SAMPLE_S):
                sampled_s = now_s
                self._sample()
        await self._leave()
        server.stop()
        return 0

    def _knows(self, header: str | None) -> bool:
        return shows(header, self.token) or shows(header, self.key)

    def end(self, state: str, reason: str) -> None:
        """End the deployment once what is under way is answered."""
        self.ending = self.ending or (state, reason)

    def welcome(self, replica: Replica) -> None:
        """A replica has become ready: where nobody asks it anything, it is asked for one token, so that it is warm."""
        if self.site.serve.task == "completions" and not replica.outstanding:
            request = Request(replica.path, PROBE, secrets.token_hex(12))
            probe = asyncio.create_task(self.relay.probe(replica, request))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    # -- how it is reached -------------------------------------------------------------------------------------

    def _bind(self) -> list[socket.socket]:
        """Listen where the gateway before this one did, else where the person wants it, else anywhere."""
        before = self.site.endpoint().get("port", 0)
        if before:
            with suppress(OSError):
                return bind_sockets(before, self.site.host, family=socket.AF_INET)
        return bind_sockets(self.site.serve.port, self.site.host, family=socket.AF_INET)

    def _announce(self, address: tuple[str, int]) -> None:
        host, port = address
        record = {"host": host, "port": port, "pid": os.getpid()}
        write_private(self.site.endpoint_file, json.dumps(record).encode())
        serve = self.site.serve
        opened = {"url": f"http://{host}:{port}", "model": serve.model, "task": serve.task}
        self.pen.write("deployment.opened", opened)
        if self._incident:
            text = f"process {os.getpid()} took over at {opened['url']}"
            self._say_incident("repaired", text)

    # -- how it stands -----------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Journal what the deployment has become."""
        ready, target = len(self.pool.ready()), self.crew.target
        if not self.crew.ever_ready:
            if self.crew.failure is not None:
                self.pen.write("user.error", _user_error(self.crew.failure))
                self.end("failed", f"the model cannot be served: {self.crew.failure['message']}")
            return
        if ready and self._incident:
            self._say_incident("resumed", f"{ready} of {target} replicas answer")
            self._incident = {}
        if ready:
            self._become("running", f"{ready} of {target} replicas answer" if self.state != "running" else "")
        elif target:
            self._become("recovering", "no replica answers; requests wait")
        else:
            self._become("running", "no replica; the next request starts one")

    def _become(self, state: str, reason: str) -> None:
        if state != self.state:
            self.state = state
            self.pen.write("job.state", {"state": state, "reason": reason})

    def _say_incident(self, stage: str, text: str) -> None:
        record = {**self._incident, "stage": stage, "rank": None, "rung": None, "text": text}
        self.pen.write("incident.stage", record)

    def facts(self) -> dict[str, Any]:
        """How the deployment stands, for people and their monitoring."""
        rate, median_s, most_s = self.ledger.recent()
        load: dict[str, Any] = {
            "ready": len(self.pool.ready()),
            "target": self.crew.target,
            "queued": self.pool.waiting,
        }
        load |= {"outstanding": self.pool.outstanding, "requests_per_s": rate, "p50_s": median_s, "p99_s": most_s}
        done, whole = (sum(r.progress[at] for r in self.pool if r.state == "loading") for at in (0, 1))
        return load | {"loaded_bytes": done, "loading_bytes": whole} | self.ledger.counts()

    def _sample(self) -> None:
        facts = {name: value for name, value in self.facts().items() if value is not None}
        if facts != self._sampled:
            self._sampled = facts
            self._samples += 1
            self.pen.write("metric.logged", {"step": self._samples, "values": facts})

    # -- the end -----------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Answer what is under way, end the replicas, say how it ended."""
        assert self.ending is not None
        state, reason = self.ending
        await _until(lambda: not (self.pool.outstanding and self.pool.replicas), DRAIN_S)
        for replica in self.pool:
            replica.retired = replica.ending = True
            replica.say("end")
        self._sample()
        await _until(lambda: not self.pool.replicas, FAREWELL_S)
        self.pen.write("job.state", {"state": state, "reason": reason})
        try:
            write_private(self.site.endpoint_file, json.dumps({"ended": state}).encode())
        except StoreError:
            self.site.endpoint_file.unlink(missing_ok=True)
        self.pen.close()


async def _until(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait for a condition, not longer than so many seconds."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if condition():
            return
        await asyncio.sleep(POLL_S)


def _token(site: Site) -> str:
    """The token of those who ask, made by the first gateway."""
    try:
        return read_token(site.job)
    except StoreError:
        token = secrets.token_urlsafe(32)
        write_private(site.job.path / "token", token.encode())
        return token


def _open_incident(view: View) -> dict[str, Any]:
    """What the supervisor said of the loss of the gateway before this one, where that is not over."""
    for incident in reversed(view["incidents"]):
        if incident["cause"].startswith("coordinator") and incident["resumed_s"] is None:
            return {name: incident[name] for name in ("incident", "cause", "node")}
    return {}


def _user_error(failure: Any) -> dict[str, Any]:
    told = {"type": failure["type"], "message": failure["message"], "traceback": failure["traceback"]}
    return {"member": "", "node": "", "rank": None} | told


async def _main() -> int:
    site = Site.from_environment()
    adopt(site.job)
    return await Gateway(site).run()


def main() -> int:
    """Entry point of the head's process."""
    return asyncio.run(_main())


if __name__ == "__main__":
    begin_with(Site.from_environment().job)
    sys.exit(main())
