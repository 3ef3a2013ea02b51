"""Exports nodes and jobs to Prometheus: a collector over the journals, and an endpoint on loopback.

Names follow Prometheus' conventions: base units, ``_total`` for counters.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import SpecError, StoreError
from ..core.events import JOB_STATES, NODE_STATES, TERMINAL_STATES
from ..core.health import SCHEDULABLE, STATUS
from ..core.views import View
from ..storage.folded import FoldedJournal
from ..storage.store import JobStore, Store, write_private
from . import cluster

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TOKEN = "metrics.token"
JOBS_LISTED = 200
MAX_PORT = 65_535
MOST_CALLERS = 64
REQUEST_S = 10.0  # a caller without a request holds a thread at most this long
ENDED_S = 3600.0  # jobs that ended longer ago are left out


class Metrics:
    """Reads new events of the journals at every `render`. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: dict[str, FoldedJournal] = {}
        self._over: set[str] = set()
        self._lock = threading.Lock()

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        with self._lock:
            registry = CollectorRegistry(auto_describe=False)
            registry.register(self)
            return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Called by a registry of prometheus_client."""
        view = cluster.status(self._store)
        yield from _cluster(view)
        yield from _health(view["health"])
        yield from _jobs(list(self._views()))

    def _views(self) -> Iterator[View]:
        ids = self._store.job_ids()
        self._over.intersection_update(ids)
        newest = sorted((i for i in ids if i not in self._over), key=self._began_s)[-JOBS_LISTED:]
        self._jobs = {job_id: self._jobs[job_id] for job_id in newest if job_id in self._jobs}
        for job_id in newest:
            if job_id not in self._jobs:
                self._jobs[job_id] = FoldedJournal(JobStore(self._store.jobs / job_id))
            view = self._jobs[job_id].catch_up()
            if view["ended_s"] is not None and time.time() - view["ended_s"] > ENDED_S:
                self._over.add(job_id)
                del self._jobs[job_id]
            else:
                yield view

    def _began_s(self, job_id: str) -> float:
        try:
            return os.stat(self._store.jobs / job_id).st_mtime
        except OSError:
            return 0.0


Rows = Iterable[tuple[list[str], float | int | None]]


def _gauge(name: str, text: str, labels: list[str], rows: Rows) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"hyperpod_{name}", text, labels=labels), rows)


def _counter(name: str, text: str, labels: list[str], rows: Rows) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"hyperpod_{name}", text, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> Metric:
    for values, number in rows:
        if number is not None:
            family.add_metric(values, float(number))
    return family


def _cluster(view: View) -> Iterator[Metric]:
    nodes = view["nodes"]
    yield _gauge("cluster_up", "Whether the supervisor answers.", [], [([], view["state"] == "running")])
    states = [([n["node"], state], n["state"] == state) for n in nodes for state in NODE_STATES]
    yield _gauge("node_state", "1 for the state that a node is in.", ["node", "state"], states)
    yield _gauge("node_slots", "Places for jobs.", ["node"], [([n["node"]], n["slots"]) for n in nodes])
    yield _gauge("node_slots_used", "Places that jobs have.", ["node"], [([n["node"]], n["used"]) for n in nodes])
    starts = [([n["node"]], n["incarnation"]) for n in nodes]
    yield _counter("node_starts", "How often a node was started.", ["node"], starts)


def _health(found: Mapping[str, View]) -> Iterator[Metric]:
    status = [([name, health["labels"].get(STATUS, SCHEDULABLE)], 1) for name, health in found.items()]
    yield _gauge("node_health", "1 for the node-health-status that a node has.", ["node", "status"], status)
    kinds = ("expected", "found", "busy", "efa_expected", "efa_found")
    devices = [([name, kind], health["devices"].get(kind)) for name, health in found.items() for kind in kinds]
    yield _gauge("node_devices", "Accelerators and EFA devices of a node.", ["node", "kind"], devices)
    outcomes = {(name, f["probe"], f["outcome"]) for name, health in found.items() for f in health["findings"]}
    rows = [([*key], 1) for key in sorted(outcomes)]
    yield _gauge("node_probe", "1 for how a probe ended: pass, fail or skipped.", ["node", "probe", "outcome"], rows)
    asked = [(name, remedy["action"]) for name, health in found.items() for remedy in health["remedies"]]
    counts = [([*key], asked.count(key)) for key in sorted(set(asked)) if key[1] != "watch"]
    yield _gauge("node_remedies", "Remedies that are still remembered.", ["node", "action"], counts)


def _jobs(views: list[View]) -> Iterator[Metric]:
    def each(field: str, chosen: list[View] = views) -> list[tuple[list[str], float | int | None]]:
        return [([view["id"], view["name"]], view[field]) for view in chosen]

    labels = ["job", "name"]
    states = [([v["id"], v["name"], state], v["state"] == state) for v in views for state in JOB_STATES]
    yield _gauge("job_state", "1 for the state that a job is in.", [*labels, "state"], states)
    yield _gauge("job_step", "Newest committed step.", labels, each("step"))
    yield _gauge("job_loss", "Loss of the newest step.", labels, each("loss"))
    yield _gauge(
        "job_step_seconds",
        "Wall time from commit to commit, the median of the last steps.",
        labels,
        each("step_time_s"),
    )
    alive = [view for view in views if view["state"] not in TERMINAL_STATES]
    yield _gauge("job_members", "Nodes that the job trains on.", labels, each("world_size", alive))
    yield _gauge("job_members_wanted", "Nodes that the job should train on.", labels, each("target", alive))
    for name, field, text in (
        ("job_samples", "samples", "Samples of committed steps."),
        ("job_micro_batches_redone", "redone", "Micro-batches that were computed again."),
    ):
        yield _counter(name, text, labels, [(key, number or 0) for key, number in each(field)])
    causes = [(v["id"], v["name"], i["cause"]) for v in views for i in v["incidents"]]
    rows = [([*key], causes.count(key)) for key in sorted(set(causes))]
    yield _counter("job_incidents", "Incidents by their cause.", [*labels, "cause"], rows)
    over = {
        (v["id"], v["name"], i["cause"]): i
        for v in views
        for i in v["incidents"]
        if i["recovery_s"] is not None and i["detection_s"] is not None
    }
    for name, text in (
        ("recovery", "From the fault to the next commit, detection included: newest incident by cause."),
        ("detection", "From the fault to its detection, a part of the recovery: newest incident by cause."),
    ):
        seconds = [([*key], incident[f"{name}_s"]) for key, incident in over.items()]
        yield _gauge(f"job_{name}_seconds", text, [*labels, "cause"], seconds)
    rules = [([v["id"], v["name"], r["rule"], str(r["rank"]), r["state"]], 1) for v in views for r in v["rules"]]
    yield _gauge("job_rule", "1 for how a rank stands with a log rule.", [*labels, "rule", "rank", "state"], rules)


class _Server(ThreadingHTTPServer):
    """Runs one thread per caller, up to a limit. Where all are busy, the oldest caller is disconnected."""

    daemon_threads = True
    request_queue_size = MOST_CALLERS

    def __init__(self, *arguments: Any) -> None:
        self._callers: dict[Any, None] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._callers) >= MOST_CALLERS:
                oldest = next(iter(self._callers))
                del self._callers[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._callers[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._callers.pop(request, None)
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up is not worth a line."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def token(store: Store) -> Path:
    """The file with the endpoint's token; created where missing. Raises StoreError."""
    path = store.prepare().cluster / TOKEN
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32).encode())
    return path


def endpoint(store: Store, port: int) -> ThreadingHTTPServer:
    """A server of ``/metrics`` on loopback, for clients with the token. Raises SpecError, StoreError."""
    if not 0 <= port <= MAX_PORT:
        raise SpecError(f"port {port} is impossible; expected 0 (any that is free) to {MAX_PORT}")
    metrics, wanted = Metrics(store), b"Bearer " + token(store).read_bytes()

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(given, wanted):
                self._answer(401, b"the token is in the job store: cluster/metrics.token\n")
            elif self.path.partition("?")[0] != "/metrics":
                self._answer(404, b"expected /metrics\n")
            else:
                self._answer(200, metrics.render())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Scrapes are not worth a line each."""

    try:
        return _Server(("127.0.0.1", port), Handler)
    except OSError as error:
        raise StoreError(f"port {port} of 127.0.0.1 is not available: {error.strerror}") from error


def scrape_config(store: Store, port: int) -> str:
    """The configuration for Prometheus, as YAML."""
    return (
        "scrape_configs:\n"
        "  - job_name: hyperpod\n"
        "    authorization:\n"
        f"      credentials_file: {token(store)}\n"
        "    static_configs:\n"
        f"      - targets: ['127.0.0.1:{port}']\n"
    )
