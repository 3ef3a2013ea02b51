"""A real JupyterHub whose servers are pods, with the values of docs/jupyterhub.md: a job outlives its server."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_hyperpod.backends.kubernetes import rights
from jupyter_hyperpod.storage.store import Store
from tests.kubernetes.conftest import TREE
from tests.kubernetes.test_jobs import jobs_of
from tests.runtime.conftest import Run
from tests.server.jupyter_hub import PAGE, PASSWORD, PROXY, Browser, Hub, example
from tests.slurm.conftest import Gated
from tests.support.kubernetes import ADMIN, CONTROLLER, IMAGE, TEAM, Testbed
from tests.support.kubernetes.settings import address

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
START_S = 240.0
PERSON, HUB = 1000, address(0)
PUBLIC, OF_HUB, OF_PROXY = 8000, 8081, 8001
# what the chart makes of its values, as its jupyterhub_config.py does, and the test's own places
FOR_THE_TEST = """
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.JupyterHub.bind_url = "http://{hub}:{public}"
c.JupyterHub.hub_ip = c.JupyterHub.hub_connect_ip = "{hub}"
c.JupyterHub.hub_port = {of_hub}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{of_proxy}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.pid_file = {place!r} + "/proxy.pid"
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.JupyterHub.db_url = "sqlite:///" + {place!r} + "/hub.sqlite"
c.JupyterHub.cookie_secret_file = {place!r} + "/cookie_secret"
c.KubeSpawner.namespace = {namespace!r}
c.KubeSpawner.image = {image!r}
c.KubeSpawner.service_account = {account!r}
c.KubeSpawner.uid, c.KubeSpawner.fs_gid = {person}, 100
c.KubeSpawner.start_timeout = c.KubeSpawner.http_timeout = 240
c.KubeSpawner.cmd = [{command!r}]
c.KubeSpawner.environment = {environment!r}
c.KubeSpawner.volumes = {volumes!r}
c.KubeSpawner.volume_mounts = {mounts!r}
"""


def values() -> dict[str, Any]:
    """The chart's values of the administrator's page."""
    (found,) = re.findall(r"```yaml\n# values.yaml.*?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    told: dict[str, Any] = yaml.safe_load(found)["singleuser"]
    return told


class PodHub(Hub):
    """The Hub on the testbed's controller. ``home``: the home of all servers, which are ada's."""

    def __init__(self, bed: Testbed, place: Path, home: Path, account: str) -> None:
        self.bed, self.place, self.home, self.account = bed, place, home, account
        self.url = f"http://{HUB}:{PUBLIC}"

    def begin(self) -> None:
        """Returns when the Hub answers."""
        config = self.place / "jupyterhub_config.py"
        config.write_text(example() + self._own())
        command = [str(Path(sys.executable).with_name("jupyterhub")), "--config", str(config)]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {"KUBECONFIG": str(self.bed.kubeconfig(ADMIN)), "PATH": path}
        self.process = self.bed.hosts.start(CONTROLLER, command, self.place / "hub.log", env)
        self.wait(self._answers, START_S)

    def _own(self) -> str:
        told, places = values(), {"home": self.home, "tree": TREE, "python": Path(sys.prefix)}
        assert told["serviceAccountName"] == self.account and told["image"]["name"]
        volumes = [{"name": name, "hostPath": {"path": str(path)}} for name, path in places.items()]
        mounts = [{"name": n, "mountPath": str(p), "readOnly": n != "home"} for n, p in places.items()]
        return FOR_THE_TEST.format(
            hub=HUB,
            public=PUBLIC,
            of_hub=OF_HUB,
            of_proxy=OF_PROXY,
            proxy=str(PROXY),
            place=str(self.place),
            password=PASSWORD,
            namespace=TEAM,
            image=IMAGE,
            account=told["serviceAccountName"],
            person=PERSON,
            command=str(Path(sys.executable).with_name("jupyterhub-singleuser")),
            environment={"HOME": str(self.home), "PYTHONPATH": str(TREE), "USER": "ada"},
            volumes=volumes,
            mounts=mounts,
        )

    def processes(self, name: str) -> list[str]:  # type: ignore[override]
        """The pods of a person's servers."""
        found = self.bed.get("pods", "-n", TEAM, "-l", f"hub.jupyter.org/username={name}")
        return [one["metadata"]["name"] for one in found["items"]]

    def typed(self, *words: str) -> str:
        """The output of `jupyter hyperpod` in a terminal of ada's server."""
        (pod,) = self.processes("ada")
        command = ["exec", "-n", TEAM, pod, "--", sys.executable, "-m", "jupyter_hyperpod", *words]
        return self.bed.kubectl(*command, timeout_s=120).stdout

    def end(self) -> None:
        """End the Hub, with it the proxy; pods are deleted by the testbed."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@pytest.fixture
def hub(kubernetes: Testbed, tmp_path: Path) -> Iterator[PodHub]:
    account = values()["serviceAccountName"]
    kubernetes.kubectl("create", "serviceaccount", account, "-n", TEAM)
    roles = rights.as_yaml(rights.manifests(TEAM, rights.subject(TEAM, account)))
    kubernetes.kubectl("apply", "-f", "-", text=roles)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, PERSON, PERSON)
    hub = PodHub(kubernetes, tmp_path, home, account)
    with kubernetes.network():
        try:
            hub.begin()
            yield hub
        finally:
            hub.end()
            kubernetes.kubectl("delete", "-f", "-", text=roles)
            kubernetes.kubectl("delete", "serviceaccount", account, "-n", TEAM)


def test_a_job_of_a_server_in_a_pod_goes_on_while_the_hub_stops_it(
    hub: PodHub, kubernetes: Testbed, reference: Run, tmp_path: Path
) -> None:
    ada = Browser(hub, "ada")
    ada.start()
    status, settings = ada.api("GET", "ada", "/settings")
    store = hub.home / ".local" / "state" / "jupyter_hyperpod"
    assert (status, settings["store"]) == (200, str(store))
    assert ada.open("ada") == 200

    gate = Gated(hub.home)
    gate.let(1)
    (hub.home / "cell.py").write_text(gate.source)
    places = f"{sys.prefix}:ro,{TREE}:ro,{hub.home}"
    options = ["head=pod", f"account={hub.account}", f"image={IMAGE}", f"host-path={places}", f"user={PERSON}"]
    words = ["--backend", "kubernetes", "--spares", "0", "--nodes", "2", "--elastic", "1:2"]
    words += [word for option in options for word in ("--kubernetes", option)]
    told = hub.typed("submit", str(hub.home / "cell.py"), *words, "--env", f"GATE={gate.path}", "--json")
    run = Run(Store(store), json.loads(told)["id"])
    gate.until_whole(run, 2, START_S)
    assert [job["id"] for job in ada.api("GET", "ada", "/jobs")[1]["jobs"]] == [run.job_id]

    ada.stop()
    before = run.view["step"]
    gate.let(24)
    kubernetes.until(lambda: jobs_of(kubernetes, run) == [], "the job ends without its server", START_S)
    assert run.view["step"] == before, "nobody fetches"

    ada.start()
    hub.wait(lambda: ada.api("GET", "ada", f"/jobs/{run.job_id}")[1].get("state") == "succeeded", START_S)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
