"""Notebook jobs of a real jupyter-scheduler, in a real Jupyter server, run as jobs on a real cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_hyperpod.control import housekeeping, jobs
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.processes import is_stopped
from tests.cells import TRAIN
from tests.support import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TREE = Path(__file__).resolve().parents[2]
# what it requires and is not there anyway; a part of JupyterLab's page that no other test is to see
REQUIRED = ("jupyter-scheduler", "croniter", "pytz")
FOREVER = "import time\nwhile True: time.sleep(0.1)"
SCHEDULER = "jupyter_hyperpod.server.notebook_jobs"
ENDED = ("COMPLETED", "FAILED", "STOPPED")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder with jupyter-scheduler for the server alone; empty where it is installed."""
    if importlib.util.find_spec("jupyter_scheduler"):
        return ""
    folder = tmp_path_factory.mktemp("jupyter-scheduler")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    command = [*pip, "-c", str(TREE / "constraints.txt"), "--target", str(folder), *REQUIRED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return str(folder)


class Server:
    """A Jupyter server with jupyter-scheduler, configured as docs/schedules.md says."""

    def __init__(self, packages: str, place: Path) -> None:
        self.packages, self.place, self.port = packages, place, 0
        self.process: subprocess.Popen[bytes] | None = None
        self.root = place / "notebooks"
        self.root.mkdir()

    def start(self, **more: bool) -> None:
        self.port = free_port()
        left_out = ("jupyterlab", "jupyter_lsp", "notebook_shim", "jupyter_server_terminals")
        extensions = {"jupyter_scheduler": True, "jupyter_hyperpod": True} | dict.fromkeys(left_out, False) | more
        configuration = {
            "ServerApp": {"jpserver_extensions": extensions, "allow_root": True, "open_browser": False},
            "IdentityProvider": {"token": ""},
            "SchedulerApp": {
                "scheduler_class": f"{SCHEDULER}.HyperpodScheduler",
                "environment_manager_class": f"{SCHEDULER}.HyperpodEnvironments",
            },
            "TaskRunner": {"poll_interval": 1},
        }
        configuration["ServerApp"] |= {"disable_check_xsrf": True, "port": self.port, "root_dir": str(self.root)}
        path = self.place / "config.json"
        path.write_text(json.dumps(configuration))
        own = {f"JUPYTER_{kind}_DIR": str(self.place / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
        own["JUPYTER_PATH"] = f"{sys.prefix}/share/jupyter"  # kernels, and templates of nbconvert
        own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TREE), self.packages]))
        with open(self.place / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyter_server", f"--config={path}"],
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

    def create(self, name: str, *cells: str, size: str = "1 node", options: str = "", **more: Any) -> str:
        """Create a notebook job, or with ``schedule`` a job definition, of a notebook of this name."""
        notebook = nbformat.v4.new_notebook(
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        )
        (self.root / name).mkdir(exist_ok=True)
        nbformat.write(notebook, self.root / name / f"{name}.ipynb")
        body = {"name": name, "input_uri": f"{name}/{name}.ipynb", "runtime_environment_name": "hyperpod"}
        body |= {"output_formats": ["ipynb", "html"], "compute_type": size} | more
        if options:
            body["runtime_environment_parameters"] = {"options": options}
        kind = "job_definition" if "schedule" in more else "job"
        return str(self.ask("POST", f"{kind}s", body)[f"{kind}_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"jobs/{job_id}"))

    def files(self, job_id: str, eventually: Callable[..., Any]) -> dict[str, Path]:
        """What a job gave back, by its format, once it was copied to where the file browser shows it."""
        self.ask("GET", f"jobs/{job_id}/download_files")
        eventually(lambda: self.job(job_id)["downloaded"], message=self.log())
        return {file["file_format"]: self.root / file["file_path"] for file in self.job(job_id)["job_files"]}

    def made(self, definition: str) -> list[dict[str, Any]]:
        return list(self.ask("GET", f"jobs?job_definition_id={definition}")["jobs"])

    def children(self) -> list[str]:
        """The followers, by their process ids."""
        assert self.process is not None
        found = subprocess.run(
            ["pgrep", "-f", "-P", str(self.process.pid), "spawn_main"], capture_output=True, text=True
        )
        return found.stdout.split()

    def halts(self, follower: int) -> bool:
        """Halt a follower; not while it uses the database, which nobody else could use then."""
        os.kill(follower, signal.SIGSTOP)
        database = sqlite3.connect(f"file:{self.place}/data/scheduler.sqlite?mode=rw", timeout=0, uri=True)
        with closing(database), suppress(sqlite3.OperationalError):
            database.execute("BEGIN EXCLUSIVE")
            if is_stopped(follower):
                return True
        os.kill(follower, signal.SIGCONT)
        return False

    def end(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(30)


@pytest.fixture
def server(packages: str, tmp_path: Path, cluster: Store, eventually: Callable[..., Any]) -> Iterator[Server]:
    server = Server(packages, tmp_path)
    server.start()
    try:
        eventually(server.answers, 60)
        yield server
    finally:
        server.end(signal.SIGTERM)


def test_notebook_jobs_run_on_the_cluster(server: Server, cluster: Store, eventually: Callable[..., Any]) -> None:
    environments = {one["name"]: one for one in server.ask("GET", "runtime_environments")}
    assert "2 nodes" in environments.pop("hyperpod")["compute_types"] and environments
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.create("refused", "1", options="--nodes none")
    assert "--nodes" in refused.value.read().decode()

    def ended(job: str) -> dict[str, Any]:
        return eventually(
            lambda: (at := server.job(job))["end_time"] and at["status"] in ENDED and at, 120, server.log()
        )

    flag = server.root / "go-on"
    slow = f"time.sleep(0.005 if os.path.exists({str(flag)!r}) else 0.5)"  # so it trains when the node is lost
    source = "from beside import STEPS\n" + TRAIN.replace("time.sleep(0.005)", slow)
    (server.root / "trained").mkdir()
    (server.root / "trained" / "beside.py").write_text("STEPS = 40")
    after = "print('rate is', rate)\nopen('made.txt', 'w').write(str(rate))"
    trained = server.create(
        "trained", source, after, size="2 nodes", parameters={"rate": "0.5"}, package_input_folder=True
    )
    lost = server.create("lost", FOREVER)

    # each is one job on the cluster, also where the server ends meanwhile: it waits for none, and leaves no follower
    eventually(lambda: {jobs.job_view(cluster, job)["name"] for job in cluster.job_ids()} == {"trained", "lost"}, 120)
    ids = {jobs.job_view(cluster, job)["name"]: job for job in cluster.job_ids()}
    view = jobs.wait(cluster, ids["trained"], {"running"})
    marks = cluster.root / "notebook-jobs"
    assert (marks.stat().st_mode & 0o777, (marks / f"{lost}.lock").stat().st_mode & 0o777) == (0o700, 0o600)
    server.ask("PATCH", f"jobs/{trained}", {"name": "renamed"})
    followers = server.children()
    assert len(followers) == 2
    server.end(signal.SIGTERM)
    assert not [pid for pid in followers if Path(f"/proc/{pid}").exists()]

    # without a server, a node is lost, and a job is deleted; the next server is without our own extension
    jobs.fault(cluster, ids["trained"], "kill", node=view["members"][0]["node"])
    jobs.stop(cluster, ids["lost"])
    jobs.wait(cluster, ids["lost"])
    housekeeping.delete(cluster, ids["lost"])
    server.start(jupyter_hyperpod=False)
    eventually(server.answers, 60)
    flag.touch()
    (other,) = environments
    beside = server.create("beside", "print('not on the cluster')", runtime_environment_name=other)
    broken = server.create("broken", "raise ValueError('no such data')")

    done = ended(trained)
    assert (done["status"], done["status_message"]) == ("COMPLETED", f"{ids['trained']} succeeded"), server.log()
    assert jobs.job_view(cluster, ids["trained"])["incidents"]
    files = server.files(trained, eventually)
    notebook = nbformat.read(files["ipynb"], as_version=4)
    assert "injected-parameters" in notebook.cells[0].metadata["tags"]
    assert notebook.cells[-1].outputs[0].text == "rate is 0.5\n"
    assert "rate is 0.5" in files["html"].read_text()
    assert (files["files"] / "made.txt").read_text() == "0.5" and (files["files"] / "beside.py").exists()
    assert cluster.job(ids["trained"]).spec().nodes == 2

    failed = ended(lost)
    assert failed["status"] == "FAILED" and "not submitted a second time" in failed["status_message"]
    failed = ended(broken)
    assert failed["status"] == "FAILED" and "no such data" in failed["status_message"]
    assert ended(beside)["status"] == "COMPLETED"

    # each time of a definition is a job; one is stopped, and the others end with the definition
    definition = server.create("nightly", FOREVER, schedule="* * * * * */3", timezone="UTC")
    eventually(lambda: len(server.made(definition)) >= 2, 120)
    server.ask("PATCH", f"job_definitions/{definition}", {"active": False})
    before = {*ids.values(), *(job for job in cluster.job_ids() if job.startswith("broken"))}
    made = [one["job_id"] for one in server.made(definition)]
    eventually(lambda: len(cluster.job_ids()) == len(before) - 1 + len(made), 60, server.log())
    server.ask("PATCH", f"jobs/{made[0]}", {"status": "STOPPED"})
    stopped = ended(made[0])
    assert stopped["status"] == "STOPPED" and "Notebook Jobs" in stopped["status_message"]
    server.ask("DELETE", f"job_definitions/{definition}")
    assert server.made(definition) == []
    for job in set(cluster.job_ids()) - before:
        assert jobs.wait(cluster, job)["state"] == "stopped"
    eventually(lambda: not server.children() and not list(marks.iterdir()))


def test_the_server_answers_while_a_notebook_job_is_deleted(
    server: Server, cluster: Store, eventually: Callable[..., Any]
) -> None:
    """Its follower takes long to end: it is halted here."""
    held = server.create("held", FOREVER)
    (follower,) = map(int, eventually(server.children))
    other = server.create("other", FOREVER)
    eventually(lambda: len(cluster.job_ids()) == 2, 120, server.log())
    eventually(lambda: server.halts(follower))
    with ThreadPoolExecutor(2) as threads:
        try:
            deleted = [threads.submit(server.ask, "DELETE", f"jobs/{held}") for _ in range(2)]
            eventually(lambda: server.job(held)["status"] == "STOPPING")
            server.ask("PATCH", f"jobs/{other}", {"status": "STOPPED"})
            eventually(lambda: server.job(other)["status"] == "STOPPED", 60, server.log())
            assert not any(one.done() for one in deleted)
        finally:
            os.kill(follower, signal.SIGCONT)
        assert [one.result(60) for one in deleted] == [None, None]
    assert server.ask("DELETE", f"jobs/{held}") is None, "a tab that does not know it yet may ask once more"
    with pytest.raises(urllib.error.HTTPError):
        server.job(held)
    for job in cluster.job_ids():
        assert jobs.wait(cluster, job)["state"] == "stopped"
    eventually(lambda: not server.children())
