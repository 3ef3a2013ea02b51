"""Prometheus itself scrapes nodes and jobs; who has no token gets nothing."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from jupyter_hyperpod.control import jobs, metrics
from jupyter_hyperpod.core.events import EVENT_FIELDS
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import Store

Eventually = Callable[..., Any]


@pytest.fixture
def served(shared_cluster: Store) -> Iterator[str]:
    """The address of an endpoint over the shared cluster."""
    with metrics.endpoint(shared_cluster, 0) as server:
        thread = threading.Thread(target=server.serve_forever, name="metrics")
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def fetch(url: str, token: str = "") -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        found: str = answer.read().decode()
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="NOT SCRAPED BY PROMETHEUS: it is not installed here")
def test_prometheus_scrapes_nodes_and_jobs(
    shared_cluster: Store, served: str, tmp_path: Path, eventually: Eventually
) -> None:
    job_id = jobs.submit(shared_cluster, "print('hello')", {"name": "scraped", "nodes": 1})
    assert jobs.wait(shared_cluster, job_id)["state"] == "succeeded"
    config = tmp_path / "prometheus.yml"
    text = metrics.scrape_config(shared_cluster, int(served.rpartition(":")[2]))
    config.write_text("global: {scrape_interval: 2s, scrape_timeout: 2s}\n" + text)
    listen = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={listen}"], stdout=log, stderr=log)

    def ask(query: str) -> list[dict[str, Any]]:
        try:
            answer = fetch(f"http://{listen}/api/v1/query?{urlencode({'query': query})}")
        except (urllib.error.URLError, OSError):
            return []
        found: list[dict[str, Any]] = json.loads(answer)["data"]["result"]
        return found

    try:
        eventually(lambda: len(ask("hyperpod_node_slots")) == 5, 60, (tmp_path / "log").read_text())
        eventually(lambda: ask('hyperpod_job_state{name="scraped",state="succeeded"}==1'))
        eventually(lambda: {row["value"][1] for row in ask("up")} == {"1"})
        states = ask("sum by (node) (hyperpod_node_state)")
        assert {row["value"][1] for row in states} == {"1"} and len(states) == 5
    finally:
        process.terminate()
        process.wait(30)


def test_strangers_get_nothing(shared_cluster: Store, served: str) -> None:
    token = metrics.token(shared_cluster)
    assert token.stat().st_mode & 0o777 == 0o600
    for given in ("", "wrong", token.read_text() + "x"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetch(f"http://{served}/metrics", given)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(f"http://{served}/other", token.read_text())
    text = fetch(f"http://{served}/metrics", token.read_text())
    assert "hyperpod_cluster_up 1.0" in text and text.endswith("\n")


def test_health_incidents_and_rules_are_told(store: Store) -> None:
    labels = {"sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReboot"}
    health: dict[str, Any] = dict.fromkeys(EVENT_FIELDS["node.health"], "")
    finding = {"probe": "efa", "outcome": "skipped", "text": "none", "severity": "monitor", "fault": "", "device": ""}
    with event_writer(store.cluster_events, "health-n1") as journal:
        journal.append("node.findings", {"nodes": ["n1"], "findings": [finding]})
        more = {
            "node": "n1",
            "action": "reboot",
            "labels": labels,
            "devices": {"expected": 8, "found": 7, "busy": None},
        }
        journal.append("node.health", health | more)
    text = metrics.Metrics(store).render().decode()
    for line in (
        'hyperpod_node_health{node="n1",status="UnschedulablePendingReboot"} 1.0',
        'hyperpod_node_devices{kind="found",node="n1"} 7.0',
        'hyperpod_node_probe{node="n1",outcome="skipped",probe="efa"} 1.0',
        'hyperpod_node_remedies{action="reboot",node="n1"} 1.0',
        "hyperpod_cluster_up 0.0",
    ):
        assert line in text, text


def test_what_was_read_of_a_deleted_job_is_forgotten(store: Store) -> None:
    made = [store.create_job(JobSpec("metered", store.put_cell("train()"))) for _ in range(4)]
    for number, job in enumerate(made):
        at_s = 1e9 if number < 2 else time.time()
        with event_writer(job.events, "coordinator", clock=iter([at_s]).__next__) as said:
            said.append("job.state", {"state": "succeeded", "reason": ""})
    found = metrics.Metrics(store)
    found.render()
    assert (found._over, set(found._jobs)) == ({made[0].id, made[1].id}, {made[2].id, made[3].id})
    for job in (made[0], made[2]):
        store.remove_job(job.id)
    found.render()
    assert (found._over, set(found._jobs)) == ({made[1].id}, {made[3].id})


def test_the_command_prints_and_serves(store: Store) -> None:
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(store.root), "metrics"]
    assert "hyperpod_cluster_up 0.0" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = ""
        while "targets" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        target = said.split("'")[1]
        assert "hyperpod_cluster_up" in fetch(f"http://{target}/metrics", metrics.token(store).read_text())
        process.terminate()
        process.wait(30)
