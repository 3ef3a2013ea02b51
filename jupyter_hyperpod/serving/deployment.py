"""The state of a deployment: its replicas, requests, journal and phase."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from ..core.events import GATEWAY
from ..core.views import View
from ..storage.folded import FoldedJournal
from ..storage.host_lease import this_host
from ..storage.journal import follow_commands
from ..storage.journal_search import read_kinds
from ..storage.journal_writer import JournalWriter
from ..storage.store import write_private
from ..system.addresses import this_loopback
from .context import Site, bearer
from .counters import RequestCounts
from .pool import PooledReplica, ReplicaPool
from .relay import ClientRequest, Relay
from .replica_manager import ReplicaManager

OTHER_MODEL = (
    "{replica} has loaded another model than {first}: what is at {model} has changed since the deployment began, so "
    "an answer depends on the replica that gives it. End this deployment and serve the new model, or put the old files "
    "back and drain the node"
)
PROBE = b'{"prompt": [0], "max_tokens": 1, "temperature": 0}'


class Deployment:
    """The deployment on which the gateway's routes and commands work."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.journal = JournalWriter(site.job.events, GATEWAY)
        view = FoldedJournal(site.job).catch_up()
        self.pool = ReplicaPool(site.serve.slots, site.serve.queue)
        self.ledger = RequestCounts()
        self.key = site.pass_between()
        self.replicas = ReplicaManager(site, self.pool, self.journal, view)
        self.token = bearer(_token(site))
        self.relay = Relay(
            self.pool, self.ledger, self.key, site.serve.request_timeout_s, self.replicas.answered, self.warn
        )
        self.state: str = view["state"]
        self.opened_s = int(time.time())
        self.ending: tuple[str, str] | None = None
        self.handed_over = False  # another gateway goes on: a replica whose connection ends here is not lost
        self.commands = follow_commands(site.job.commands)
        self.handled = {
            (e.data["command"]["writer"], e.data["command"]["seq"])
            for e in read_kinds(site.job.events, ("command.done",), without=("agent-",))
        }
        self._incident = _open_incident(view)
        self._sampled: dict[str, Any] = {}
        self._samples = 0
        self._models: dict[str, str] = {}  # by replica, in the order in which they became ready: which model it has
        self._probes: set[asyncio.Task[None]] = set()

    def end(self, state: str, reason: str) -> None:
        """End the deployment once the requests in progress are answered."""
        self.ending = self.ending or (state, reason)

    def welcome(self, replica: PooledReplica) -> None:
        """A replica has become ready. Without requests, ask it for one token to warm it up."""
        self._look_at_model(replica)
        if self.site.serve.task == "completions" and not replica.outstanding:
            request = ClientRequest(replica.path, PROBE, secrets.token_hex(12))
            probe = asyncio.create_task(self.relay.probe(replica, request))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    def _look_at_model(self, replica: PooledReplica) -> None:
        """Say it, once per replica, where one has loaded another model than the first one."""
        if replica.model and replica.name not in self._models:
            self._models[replica.name] = replica.model
            first, model = next(iter(self._models.items()))
            if model != replica.model:
                self.warn(OTHER_MODEL.format(replica=replica.name, first=first, model=self.site.serve.model))

    def warn(self, text: str) -> None:
        """Journal a warning of the deployment."""
        self.journal.write("warning.raised", {"text": text})

    def judge(self) -> None:
        """Journal the state of the deployment where it has changed."""
        ready, target = len(self.pool.ready()), self.replicas.target
        if not self.replicas.ever_ready:
            if self.replicas.failure is not None:
                nowhere = {"member": "", "node": "", "rank": None}
                self.journal.write("user.error", nowhere | self.replicas.failure)
                self.end("failed", f"the model cannot be served: {self.replicas.failure['message']}")
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
            self.journal.write("job.state", {"state": state, "reason": reason})

    def _say_incident(self, stage: str, text: str) -> None:
        record = {**self._incident, "stage": stage, "rank": None, "rung": None, "text": text}
        self.journal.write("incident.stage", record)

    def facts(self) -> dict[str, Any]:
        """The figures of the deployment, for people and their monitoring."""
        rate, median_s, most_s = self.ledger.recent()
        load: dict[str, Any] = {
            "ready": len(self.pool.ready()),
            "target": self.replicas.target,
            "queued": self.pool.waiting,
        }
        load |= {"outstanding": self.pool.outstanding, "requests_per_s": rate, "p50_s": median_s, "p99_s": most_s}
        done, whole = (sum(r.progress[at] for r in self.pool if r.state == "loading") for at in (0, 1))
        said = [replica.load for replica in self.pool]
        for what in {name for one in said for name in one}:
            load[f"engine_{what}"] = sum(one.get(what, 0.0) for one in said)
        return load | {"loaded_bytes": done, "loading_bytes": whole} | self.ledger.counts()

    def sample(self) -> None:
        facts = {name: value for name, value in self.facts().items() if value is not None}
        if facts != self._sampled:
            self._sampled = facts
            self._samples += 1
            self.journal.write("metric.logged", {"step": self._samples, "values": facts})

    def take_over(self, url: str, pid: int) -> None:
        """Journal that this gateway answers on this host, and whether it replaces a lost one."""
        serve, host = self.site.serve, this_host()
        where = {"host": host, "loopback": this_loopback()}
        self.journal.write("deployment.opened", {"url": url, "model": serve.model, "task": serve.task} | where)
        if self._incident:
            self._say_incident("repaired", f"process {pid} took over at {url} on {host}")


def _token(site: Site) -> str:
    """The clients' token; the first gateway creates it."""
    path = site.job.path / "token"
    try:
        return path.read_text().strip()
    except OSError:
        token = secrets.token_urlsafe(32)
        write_private(path, token.encode())
        return token


def _open_incident(view: View) -> dict[str, Any]:
    """The open incident, journaled by the supervisor, of the loss of the earlier gateway."""
    for incident in reversed(view["incidents"]):
        if incident["cause"].startswith("coordinator") and incident["resumed_s"] is None:
            return {name: incident[name] for name in ("incident", "cause", "node")}
    return {}
