"""A laptop with another system: what a client needs works there, and what needs Linux is refused in words.

The systems are played (`support/elsewhere.py`): the package finds neither the modules nor the names that they lack.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, JobStore, Store
from tests.cells import train

TREE = Path(__file__).resolve().parents[1]
SYSTEMS = ("windows", "macos")
LAYERS = "core system policy storage mounts backends control planner cli notebook server".split()
REFUSED = "need Linux"
IMPORT_ALL = """
import importlib, pkgutil
count = 0
for layer in {layers}:
    package = importlib.import_module(f"jupyter_hyperpod.{{layer}}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if "notebook_jobs" in module.name:  # for jupyter-scheduler alone, which only some people have
            continue
        importlib.import_module(module.name)
        count += 1
print(count)
"""
MAGICS = """
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell(config=Config({{"HistoryManager": {{"enabled": False}}}}), colors="nocolor")
shell.run_line_magic("load_ext", "jupyter_hyperpod")
print(shell.run_line_magic("hyperpod", "list"))
shell.run_line_magic("hyperpod", "attach {job}")
result = shell.run_cell("%%hyperpod --nodes 2\\nprint(1)")
print(repr(result.error_in_exec or result.error_before_exec))
"""
SERVER = """
import asyncio
from jupyter_server.serverapp import ServerApp
from tornado.httpclient import AsyncHTTPClient

async def main():
    extensions = {"jupyter_hyperpod": True}
    app = ServerApp(open_browser=False, token="t", allow_root=True, port=0, jpserver_extensions=extensions)
    app.initialize(argv=[], find_extensions=False, new_httpserver=True)
    base = f"http://127.0.0.1:{app.port}/jupyter_hyperpod/api/v1"
    for _ in range(600):  # the server reads the store when somebody asks
        answer = await AsyncHTTPClient().fetch(f"{base}/jobs", headers={"Authorization": "token t"})
        if b'"jobs": []' not in answer.body:
            break
        await asyncio.sleep(0.05)
    print(answer.body.decode())
    await app.cleanup_extensions()
    app.http_server.stop()

asyncio.run(main())
"""
JOURNAL = """
import sys
from pathlib import Path
from jupyter_hyperpod.storage.journal import event_writer, follow_events
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.locks import one_at_a_time
from jupyter_hyperpod.core.errors import Conflict
job = Store(sys.argv[1]).job(sys.argv[2])
with event_writer(job.events, "control") as journal:
    for number in range(3):
        journal.append("warning.raised", {"text": f"{number}\\u00e4"}, durable=True)
print(len(follow_events(job.events).poll()))
with one_at_a_time(job.path / "lock", "busy", 0):
    try:
        with one_at_a_time(job.path / "lock", "busy", 0.05):
            print("both")
    except Conflict as error:
        print(error)
with one_at_a_time(job.path / "lock", "busy", 0):
    print("free again")
"""


slow = pytest.mark.slow  # each starts Jupyter's parts or several processes


@pytest.fixture
def job(store: Store) -> JobStore:
    """A job that has ended."""
    source = train()
    made = store.create_job(JobSpec(name="first", nodes=2, cell_digest=store.put_cell(source)))
    with event_writer(made.events, "control") as journal:
        journal.append("job.submitted", {"id": made.id, "spec": made.spec().to_json()})
        journal.append("warning.raised", {"text": "the disk is slow"})
    with event_writer(made.events, "coordinator") as journal:
        journal.append("job.state", {"state": "succeeded", "reason": "the cell has ended"})
    return made


def elsewhere(system: str, store: Store, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.elsewhere", system, *arguments]
    surroundings = {**os.environ, ENVIRONMENT_VARIABLE: str(store.root), "PYTHONPATH": str(TREE)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=TREE, env=surroundings)


def program(directory: Path, source: str) -> str:
    (directory / "program.py").write_text(source)
    return str(directory / "program.py")


def printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("system", SYSTEMS)
def test_all_modules_of_a_client_load(system: str, store: Store, tmp_path: Path) -> None:
    done = elsewhere(system, store, program(tmp_path, IMPORT_ALL.format(layers=LAYERS)))
    assert int(printed(done)) > 200


@slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_jobs_are_listed_read_and_followed(system: str, store: Store, job: JobStore, tmp_path: Path) -> None:
    def ask(*arguments: str) -> str:
        return printed(elsewhere(system, store, "cli", *arguments))

    assert "submit" in ask("--help")
    (known,) = json.loads(ask("list", "--json"))
    assert (known["id"], known["state"]) == (job.id, "succeeded")
    assert "the cell has ended" in ask("describe", job.id)
    assert "the disk is slow" in ask("events", job.id)
    ask("logs", job.id, "--follow")
    ask("report", job.id, "--output", str(tmp_path / "report.html"))
    assert job.id in (tmp_path / "report.html").read_text()


@slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_nodes_on_this_machine_are_refused_in_words(system: str, store: Store, tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text("print(1)\n")
    for arguments in (("submit", str(tmp_path / "cell.py")), ("cluster", "start"), ("validate",)):
        done = elsewhere(system, store, "cli", *arguments)
        assert done.returncode and REFUSED in done.stderr and "Traceback" not in done.stderr, (arguments, done.stderr)
    assert store.job_ids() == [], "nothing is left of what was refused"


@slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_job_whose_head_is_in_a_pod_needs_no_linux_here(
    system: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets as far as the cluster's API server, of which there is none."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (tmp_path / "cell.py").write_text("print(1)\n")
    options = ["--backend", "kubernetes", "--kubernetes", "image=x", "--kubernetes", "claim=data:/fsx"]
    submit = ["cli", "submit", str(tmp_path / "cell.py"), *options]
    done = elsewhere(system, store, *submit, "--kubernetes", "head=pod")
    assert done.returncode and "kubeconfig" in done.stderr and REFUSED not in done.stderr, done.stderr
    assert REFUSED in elsewhere(system, store, *submit).stderr


@slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_magics_list_and_follow(system: str, store: Store, job: JobStore, tmp_path: Path) -> None:
    said = printed(elsewhere(system, store, program(tmp_path, MAGICS.format(job=job.id))))
    assert job.id in said and REFUSED in said, said


@slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_server_gives_the_panel_its_jobs(system: str, store: Store, job: JobStore, tmp_path: Path) -> None:
    found: Any = json.loads(printed(elsewhere(system, store, program(tmp_path, SERVER))).splitlines()[-1])
    assert job.id in json.dumps(found), found


@slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_journals_are_written_and_locks_exclude(system: str, store: Store, job: JobStore, tmp_path: Path) -> None:
    done = elsewhere(system, store, program(tmp_path, JOURNAL), str(store.root), job.id)
    assert printed(done).splitlines() == ["6", "busy", "free again"]
