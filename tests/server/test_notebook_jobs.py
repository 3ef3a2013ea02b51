"""Notebook jobs of a real jupyter-scheduler, in a real Jupyter server, run as jobs on a real cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_hyperpod.control import housekeeping, jobs
from jupyter_hyperpod.storage.store import Store
from tests.cells import train
from tests.support import free_port
from tests.test_foreign_environments import TREE, make_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

# its own requirements that are not there anyway; a part of JupyterLab's page that no other test is to see
REQUIRED = ("jupyter-scheduler==2.12.1", "croniter==1.4.1", "pytz==2024.2")
WAITS = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.1)"
SCHEDULER = "jupyter_hyperpod.server.notebook_jobs"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with jupyter-scheduler: this one, or that of an environment beside it."""
    if importlib.util.find_spec("jupyter_scheduler"):
        return sys.executable
    shared = [folder for folder in sys.path if folder.endswith("site-packages")]
    python = make_environment(tmp_path_factory.mktemp("environment") / "venv", [str(TREE), *shared])
    (packages,) = Path(python).parents[1].glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--target", packages, *REQUIRED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return python


class Server:
    """A Jupyter server with jupyter-scheduler, configured as docs/schedules.md says."""

    def __init__(self, python: str, place: Path) -> None:
        self.python, self.place, self.port = python, place, 0
        self.process: subprocess.Popen[bytes] | None = None
        self.root = place / "notebooks"
        self.root.mkdir()

    def start(self) -> None:
        self.port = free_port()
        extensions = {"jupyter_scheduler": True, "jupyter_hyperpod": True}
        configuration = {
            "ServerApp": {"jpserver_extensions": extensions, "allow_root": True, "open_browser": False},
            "IdentityProvider": {"token": ""},
            "SchedulerApp": {
                "scheduler_class": f"{SCHEDULER}.HyperpodScheduler",
                "environment_manager_class": f"{SCHEDULER}.HyperpodEnvironments",
            },
        }
        configuration["ServerApp"] |= {"disable_check_xsrf": True, "port": self.port, "root_dir": str(self.root)}
        path = self.place / "config.json"
        path.write_text(json.dumps(configuration))
        own = {f"JUPYTER_{kind}_DIR": str(self.place / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
        own["JUPYTER_PATH"] = f"{sys.prefix}/share/jupyter"  # templates of nbconvert
        with open(self.place / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "jupyter_server", f"--config={path}"],
                env=os.environ | own, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.root,
            )  # fmt: skip

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/scheduler/{path}", content, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()
        try:
            return bool(self.ask("GET", "runtime_environments"))
        except OSError:
            return False

    def log(self) -> str:
        return (self.place / "server.log").read_text()[-4000:]

    def submit(self, name: str, *cells: str, size: str = "1 node", options: str = "", **parameters: str) -> str:
        notebook = nbformat.v4.new_notebook(
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        )
        nbformat.write(notebook, self.root / f"{name}.ipynb")
        body = {"name": name, "input_uri": f"{name}.ipynb", "runtime_environment_name": "hyperpod"}
        body |= {"output_formats": ["ipynb", "html"], "compute_type": size, "parameters": parameters}
        if options:
            body["runtime_environment_parameters"] = {"options": options}
        return str(self.ask("POST", "jobs", body)["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"jobs/{job_id}"))

    def children(self) -> list[str]:
        """The followers, by their process ids."""
        assert self.process is not None
        found = subprocess.run(
            ["pgrep", "-f", "-P", str(self.process.pid), "spawn_main"], capture_output=True, text=True
        )
        return found.stdout.split()

    def end(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(30)


@pytest.fixture
def server(python: str, tmp_path: Path, cluster: Store, eventually: Callable[..., Any]) -> Iterator[Server]:
    server = Server(python, tmp_path)
    server.start()
    try:
        eventually(server.answers, 60)
        yield server
    finally:
        server.end(signal.SIGTERM)


def test_notebook_jobs_run_on_the_cluster(server: Server, cluster: Store, eventually: Callable[..., Any]) -> None:
    environments = {one["name"]: one for one in server.ask("GET", "runtime_environments")}
    assert "2 nodes" in environments["hyperpod"]["compute_types"] and len(environments) > 1

    with pytest.raises(urllib.error.HTTPError) as refused:
        server.submit("refused", "1", options="--nodes none")
    assert "--nodes" in refused.value.read().decode()

    def ended(job: str) -> dict[str, Any]:
        states = ("COMPLETED", "FAILED", "STOPPED")
        return eventually(
            lambda: (at := server.job(job))["end_time"] and at["status"] in states and at, 60, server.log()
        )

    flag = server.root / "fail"
    forever = "import time\nwhile True: time.sleep(0.1)"
    trained = server.submit("trained", train(30), "print('rate is', rate)", size="2 nodes", rate="0.5")
    broken = server.submit("broken", f"{WAITS.format(str(flag))}\nraise ValueError('no such data')")
    long = server.submit("long", "print('begun')", forever)
    lost = server.submit("lost", forever)

    # each is one job on the cluster, also where the server ends meanwhile: it waits for none, and leaves no follower
    eventually(lambda: len(cluster.job_ids()) == 4, 60)
    ids = {jobs.job_view(cluster, job)["name"]: job for job in cluster.job_ids()}
    jobs.wait(cluster, ids["long"], {"running"})
    marks = cluster.root / "notebook-jobs"
    assert (marks.stat().st_mode & 0o777, (marks / f"{long}.lock").stat().st_mode & 0o777) == (0o700, 0o600)
    server.ask("PATCH", f"jobs/{long}", {"name": "renamed"})
    followers = server.children()
    server.end(signal.SIGTERM)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in followers), 30)
    jobs.stop(cluster, ids["lost"])
    jobs.wait(cluster, ids["lost"])
    housekeeping.delete(cluster, ids["lost"])
    flag.touch()
    server.start()
    eventually(server.answers, 60)
    assert server.job(long)["status"] == "IN_PROGRESS"

    done = ended(trained)
    assert done["status"] == "COMPLETED", done
    assert done["status_message"] == f"{ids['trained']} succeeded"
    server.ask("GET", f"jobs/{trained}/download_files")
    eventually(lambda: all(file["file_path"] for file in server.job(trained)["job_files"]), 30)
    files = {file["file_format"]: server.root / file["file_path"] for file in server.job(trained)["job_files"]}
    notebook = nbformat.read(files["ipynb"], as_version=4)
    assert "injected-parameters" in notebook.cells[0].metadata["tags"]
    assert notebook.cells[-1].outputs[0].text == "rate is 0.5\n"
    assert "rate is 0.5" in files["html"].read_text()
    assert cluster.job(ids["trained"]).spec().nodes == 2

    failed = ended(broken)
    assert failed["status"] == "FAILED" and "no such data" in failed["status_message"]
    failed = ended(lost)
    assert failed["status"] == "FAILED" and "not submitted a second time" in failed["status_message"]

    server.ask("PATCH", f"jobs/{long}", {"status": "STOPPED"})
    stopped = ended(long)
    assert stopped["status"] == "STOPPED" and "Notebook Jobs" in stopped["status_message"]
    assert jobs.job_view(cluster, ids["long"])["state"] == "stopped"

    again = server.submit("deleted", forever)
    eventually(lambda: len(cluster.job_ids()) == 4, 60)
    server.ask("DELETE", f"jobs/{again}")
    (job,) = set(cluster.job_ids()) - set(ids.values())
    assert jobs.wait(cluster, job)["state"] == "stopped"
    eventually(lambda: not server.children() and not list(marks.iterdir()), 30)
