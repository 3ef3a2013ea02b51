"""A secret that a job is given arrives on every rank, and shows nowhere: not in files, `ps`, answers or views."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.control import cluster as control
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.storage.store import ENVIRONMENT, Store
from tests.secrets_scan import command_lines_with, environments_with, files_with
from tests.server.client import Client
from tests.server.conftest import Api

Wait = Callable[..., Any]
# says that the value has arrived, then waits for the gate
CELL = """
import hashlib, os, time
print("arrived", hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest(), flush=True)
while not os.path.exists(os.environ["GATE"]):
    time.sleep(0.02)
print("done")
"""


def run(store: Store, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(store.root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment)


def everything_said(store: Store, job_id: str) -> str:
    """All that the command line says of a job, for people and for programs."""
    asked = [["list"], ["describe", job_id], ["events", job_id], ["logs", job_id], ["audit", job_id], ["metrics"]]
    asked += [[*words, "--json"] for words in asked[:-1]]
    done = [run(store, *words) for words in asked]
    return "".join(one.stdout + one.stderr for one in done)


def arrived(view: dict[str, Any], token: str) -> int:
    """How many ranks say that they have the value."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    return sum(f"arrived {digest}" in line["text"] for line in view["output"])


async def test_a_secret_arrives_and_shows_nowhere(
    cluster: Store, api: Api, connect: Callable[[], Awaitable[Client]], tmp_path: Path, eventually: Wait
) -> None:
    store, token, gate = cluster, "hf_" + secrets.token_hex(20), tmp_path / "gate"
    cell = tmp_path / "cell.py"
    cell.write_text(CELL)
    words = ["submit", str(cell), "--nodes", "2", "--env", "HF_TOKEN", "--env", f"GATE={gate}", "--name", "secretive"]
    done = await asyncio.to_thread(run, store, *words, HF_TOKEN=token)
    assert done.returncode == 0 and token not in done.stdout + done.stderr, done.stderr
    job_id = done.stdout.strip()
    private = store.job(job_id).path / ENVIRONMENT
    client = await connect()
    await client.subscribe("cluster", "jobs", job_id, cursors={job_id: {}})
    await client.until(lambda: arrived(client.views[job_id], token) == 2, 60)

    assert private.stat().st_mode & 0o777 == 0o600
    assert json.loads(private.read_text())["HF_TOKEN"] == token
    assert files_with(store.root, token, besides=private) == []
    assert command_lines_with(token) == [] and environments_with(token) == [], "ranks of this cluster are forks"
    assert token not in await asyncio.to_thread(everything_said, store, job_id)
    for path in ("/jobs", f"/jobs/{job_id}", f"/jobs/{job_id}/cell", "/cluster"):
        status, answer = await api("GET", path)
        assert status == 200 and token not in json.dumps(answer), path
    told = json.dumps([client.views, client.jobs, client.events, client.problems])
    assert token not in told and '"HF_TOKEN": "***"' in told, "the name is shown"

    # a supervisor and a rank that are replaced do not lose it
    status_before = control.request(store, {"op": "status"})["pid"]
    os.kill(status_before, 9)
    await asyncio.to_thread(eventually, lambda: _pid(store) not in (None, status_before), 60)
    jobs.fault(store, job_id, "kill", rank=1)
    await client.until(lambda: arrived(client.views[job_id], token) >= 3, 60)

    gate.touch()
    await client.until(lambda: client.views[job_id]["state"] == "succeeded", 60)
    await asyncio.to_thread(eventually, lambda: not private.exists(), 30, "the value outlives the job")
    assert files_with(store.root, token) == []

    again = await asyncio.to_thread(run, store, "rerun", job_id)
    assert again.returncode == 2 and "HF_TOKEN, GATE" in again.stderr and "--env HF_TOKEN takes" in again.stderr
    words = ["rerun", job_id, "--env", "HF_TOKEN", "--env", f"GATE={gate}", "--follow"]
    again = await asyncio.to_thread(run, store, *words, HF_TOKEN=token)
    assert again.returncode == 0 and hashlib.sha256(token.encode()).hexdigest() in again.stdout, again.stderr
    assert token not in again.stdout + again.stderr


def _pid(store: Store) -> int | None:
    with suppress(Exception):
        return int(control.request(store, {"op": "status"})["pid"])
    return None


def test_what_an_interpreter_reads_as_it_begins_is_there_in_time(
    shared_cluster: Store, tmp_path: Path, eventually: Wait
) -> None:
    """A process that was forked begins again."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    (tmp_path / "only_here.py").write_text("WORD = 'found'\n")
    token = "hf_" + secrets.token_hex(20)
    source = (
        "import hashlib, os, sys, only_here\n"
        "token = os.environ['HF_TOKEN']\n"
        "print(only_here.WORD, sys.flags.hash_randomization, hashlib.sha256(token.encode()).hexdigest())\n"
        "print('shown' if token in open('/proc/self/cmdline').read() else 'hidden')\n"
    )
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH"), os.getcwd()]))
    env = {"HF_TOKEN": token, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "HYPERPOD_NODE": "not yours"}
    job_id = jobs.submit(shared_cluster, source, name="cold", python=str(python), env=env)
    view = jobs.wait(shared_cluster, job_id, timeout_s=120)
    text = "".join(line["text"] for line in view["output"])
    assert view["state"] == "succeeded", (view["reason"], text)
    assert f"found 0 {hashlib.sha256(token.encode()).hexdigest()}\nhidden" in text
    eventually(lambda: files_with(shared_cluster.root, token) == [])
    assert view["members"][0]["node"].startswith("node-"), "what the backend says of its node stands"


@pytest.mark.parametrize("missing", [True, False])
def test_a_job_without_its_private_file_fails_and_does_not_run_without(shared_cluster: Store, missing: bool) -> None:
    """Never a run that is quietly different."""
    fields = jobs.complete({"name": "robbed", "env": {"A": "b"}})
    job = jobs._create(shared_cluster, jobs.make_spec(fields, shared_cluster.put_cell("print('ran')")))
    if missing:
        (job.path / ENVIRONMENT).unlink()
    else:
        (job.path / ENVIRONMENT).write_text("{")
    control.poke(shared_cluster, job.id)
    view = jobs.wait(shared_cluster, job.id, timeout_s=120)
    assert view["state"] == "failed" and not view["output"]
    assert str(job.path / ENVIRONMENT) in view["reason"]
