"""Secrets of every kind are planted in real jobs; then all that was written, said or shown is searched for them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from jupyter_hyperpod.control import deploy, jobs, metrics
from jupyter_hyperpod.storage.store import ENVIRONMENT, ENVIRONMENT_VARIABLE, Store
from tests.secrets_scan import command_lines_with, files_with
from tests.server.client import Client
from tests.server.conftest import Api

Wait = Callable[..., Any]
BOUND_S = 120
# says by digests what has arrived, trains until the gate opens, then fails with the secrets in local variables
CELL = """
import hashlib, os, time, torch, jupyter_hyperpod as hp
names = ["PLANTED", "FROM_FILE", "GIVEN", "REFERRED", "RENAMED"]
print("arrived", *(hashlib.sha256(os.environ[name].encode()).hexdigest() for name in names), flush=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]

def loss_fn(batch):
    time.sleep(0.005)
    opened = 1e9 if os.path.exists(os.environ["GATE"]) else 0.0  # in the loss, so that all members leave at one step
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) + opened

def fail(password):
    return 1 / (len(password) * 0)

with hp.Session(model, optimizer, data, global_batch=8, micro_batch=1) as session:
    for step in session.steps(100_000):
        loss = step.run(loss_fn)
        session.log(loss=loss)
        if step.number >= 10 and loss > 1e6:
            break
fail(os.environ["PLANTED"])
"""
HANDLER = """
import hashlib


def load(url):
    return hashlib.sha256(url.encode()).hexdigest()


def predict(model, inputs):
    return {"digest": model}
"""


@dataclass
class Planted:
    """What was planted, and all that was said."""

    store: Store
    folder: Path
    gate: Path
    secrets: dict[str, str]
    said: list[str] = field(default_factory=list)

    def run(self, *words: str, status: int = 0) -> str:
        """A command of the CLI, as a process; its standard output."""
        surroundings = os.environ | {"PLANTED": self.secrets["PLANTED"]}
        command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(self.store.root), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, env=surroundings)
        assert done.returncode == status, (words, done.stderr)
        self.said += [done.stdout, done.stderr]
        return done.stdout.strip()

    def options(self) -> list[str]:
        """The options that bring all secrets to a job; none of them is on the command line."""
        return [
            *("--env", "PLANTED", "--env-file", str(self.folder / "variables.env"), "--env", f"GATE={self.gate}"),
            *("--env", f"REFERRED=@file:{self.folder / 'referred'}", "--env", "RENAMED=@env:TEST_PLANTED_ON_NODES"),
        ]

    def forms(self) -> Iterator[tuple[str, str]]:
        """Every secret, as it is and as base64."""
        for name, secret in self.secrets.items():
            yield name, secret
            yield name, base64.b64encode(secret.encode()).decode().rstrip("=")[:-2]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Before the cluster starts, so that its nodes have a variable of their own."""
    words = ["PLANTED", "FROM_FILE", "GIVEN", "REFERRED", "RENAMED", "MOUNT", "PASSWORD", "SIGNATURE"]
    made = {name: f"{name.lower()}-{secrets.token_hex(12)}" for name in words}
    monkeypatch.setenv("TEST_PLANTED_ON_NODES", made["RENAMED"])
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    for name, text in {
        "variables.env": f"FROM_FILE={made['FROM_FILE']}\nGIVEN='{made['GIVEN']}'\n",
        "referred": f"{made['REFERRED']}\n",
        "credentials": f"AWS_ACCESS_KEY_ID=known\nAWS_SECRET_ACCESS_KEY={made['MOUNT']}\n",
        "cell.py": CELL,
        "handler.py": HANDLER,
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    return Planted(Store(tmp_path / "store"), folder, tmp_path / "gate", made)


async def test_secrets_are_found_in_private_files_only(
    planted: Planted, cluster: Store, api: Api, connect: Callable[[], Awaitable[Client]], jp_auth_header: Any,
    eventually: Wait,
) -> None:  # fmt: skip
    def digest(*names: str) -> list[str]:
        return [hashlib.sha256(planted.secrets[name].encode()).hexdigest() for name in names]

    run, store = planted.run, cluster
    planted.secrets["JUPYTER"] = jp_auth_header["Authorization"].split()[-1]
    planted.secrets["METRICS"] = metrics.token(store).read_text()
    credentials = str(planted.folder / "credentials")
    await asyncio.to_thread(run, "mount", "add", "models", "--driver", "s3", "--source", "s3://models",
                            "--credentials", credentials)  # fmt: skip
    await asyncio.to_thread(run, "mount", "list")

    # a job that trains, loses a member, and fails in the end
    cell, name = str(planted.folder / "cell.py"), ["--name", "planted"]
    await asyncio.to_thread(run, "submit", cell, "--nodes", "2", *name, *planted.options(), "--dry-run")
    job_id = await asyncio.to_thread(run, "submit", cell, "--nodes", "2", *name, *planted.options())
    job = store.job(job_id)
    client = await connect()
    await client.subscribe("cluster", "jobs", job_id, cursors={job_id: {}})
    arrived = "arrived " + " ".join(digest("PLANTED", "FROM_FILE", "GIVEN", "REFERRED", "RENAMED"))

    def came() -> int:
        said: defaultdict[str, str] = defaultdict(str)  # a line may come in pieces
        for piece in client.views[job_id]["output"]:
            said[piece["member"]] += piece["text"]
        return sum(arrived in text for text in said.values())

    await client.until(lambda: came() >= 2, BOUND_S)  # or 3: the spare says so, too
    jobs.fault(store, job_id, "kill", rank=1)
    told = lambda name: client.views[job_id][name]  # noqa: E731
    await client.until(lambda: told("incidents") and came() >= 3 and told("step") >= 10, BOUND_S)

    # a deployment whose model has an address with secrets in it
    address = (
        f"https://me:{planted.secrets['PASSWORD']}@models.invalid/m.bin?X-Signature={planted.secrets['SIGNATURE']}"
    )
    served = deploy.serve(store, address, handler=planted.folder / "handler.py", env={"PLANTED": "seen"})
    await asyncio.to_thread(deploy.wait_ready, store, served, BOUND_S)
    token = deploy.token_file(store, served)
    planted.secrets["CLIENTS"] = token.read_text()

    for words in (["list"], ["describe", job_id], ["events", job_id], ["logs", job_id], ["describe", served],
                  ["events", served], ["serve"]):  # fmt: skip
        await asyncio.to_thread(run, *words)
        await asyncio.to_thread(run, *words, "--json")
    await asyncio.to_thread(run, "metrics")
    for path in ("/jobs", f"/jobs/{job_id}", f"/jobs/{job_id}/cell", f"/jobs/{served}", "/cluster"):
        status, answer = await api("GET", path)
        assert status == 200, (path, answer)
        planted.said.append(json.dumps(answer))
    served_url = hashlib.sha256(address.encode()).hexdigest()
    assert await asyncio.to_thread(_asked, store, served, planted.secrets["CLIENTS"]) == {"digest": served_url}

    ours, theirs = job.path / ENVIRONMENT, store.job(served).path / ENVIRONMENT
    given = dict.fromkeys(("PLANTED", "FROM_FILE", "GIVEN"), ours)
    held = given | {"PASSWORD": theirs, "SIGNATURE": theirs, "CLIENTS": token, "METRICS": metrics.token(store)}
    await asyncio.to_thread(_search, planted, held)
    for one in (job, store.job(served)):
        for shown in (one.secret().hex(), base64.b64encode(one.secret()).decode()):
            assert files_with(store.root, shown) == [] and command_lines_with(shown) == []
            assert shown not in "\n".join(planted.said)
        assert (one.path / "secret").stat().st_mode & 0o777 == 0o600

    # it ends with an error
    planted.said.append(json.dumps([client.views, client.jobs, client.events, client.problems]))
    planted.gate.touch()
    client = await connect()  # the other one has not read for long
    await client.subscribe("cluster", "jobs", job_id)
    await client.until(lambda: client.views.get(job_id, {}).get("state") == "failed", BOUND_S)
    jobs.stop(store, served)
    await asyncio.to_thread(jobs.wait, store, served, timeout_s=BOUND_S)
    await asyncio.to_thread(eventually, lambda: not ours.exists() and not theirs.exists(), BOUND_S)
    pages = [planted.folder / name for name in ("run.html", "served.html", "compared.html")]
    for words in (["describe", job_id], ["events", job_id], ["logs", job_id],
                  ["report", job_id, "-o", str(pages[0])], ["report", served, "-o", str(pages[1])],
                  ["compare", job_id, served, "-o", str(pages[2])], ["compare", job_id, served, "--json"]):  # fmt: skip
        await asyncio.to_thread(run, *words)
    planted.said += [page.read_text() for page in pages]
    assert all("$FROM_FILE" in planted.said[at] for at in (-3, -1)), "the names of variables are shown"
    assert "ZeroDivisionError" in "\n".join(planted.said)
    planted.said.append(json.dumps([client.views, client.jobs, client.events, client.problems]))

    # the magics, in a notebook that is saved
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (
        f"import os; os.environ['PLANTED'] = open({str(planted.folder / 'planted')!r}).read()",
        "%load_ext jupyter_hyperpod",
        f"%%hyperpod --name shown {' '.join(planted.options())}\n{CELL}",
        "%hyperpod describe", "%hyperpod events", "%hyperpod logs", "%hyperpod list",
        f"%hyperpod report -o {planted.folder / 'shown.html'}",
        f"print(open({str(planted.folder / 'shown.html')!r}).read())", "%hyperpod compare planted shown",
        "%hyperpod rerun shown",
    )])  # fmt: skip
    (planted.folder / "planted").write_text(planted.secrets["PLANTED"])
    notebook = NotebookClient(book, timeout=BOUND_S, allow_errors=True, resources={})
    await notebook.async_execute(env=os.environ | {ENVIRONMENT_VARIABLE: str(store.root)})
    planted.said.append(nbformat.writes(book))
    assert "ZeroDivisionError" in planted.said[-1] and "values are not kept" in planted.said[-1]
    assert arrived in planted.said[-1]
    await asyncio.to_thread(eventually, lambda: not files_with(store.root, planted.secrets["PLANTED"]), BOUND_S)
    await asyncio.to_thread(_search, planted, {"CLIENTS": token, "METRICS": metrics.token(store)})


def _search(planted: Planted, held: dict[str, Path]) -> None:
    """``held``: secret -> the only file that holds it."""
    told = "\n".join(planted.said)
    assert [name for name, form in planted.forms() if form in told] == []
    assert {name: pids for name, form in planted.forms() if (pids := command_lines_with(form))} == {}
    found = {(name, path) for name, form in planted.forms() for path in files_with(planted.store.root, form)}
    assert found == set(held.items()), "these files hold secrets"
    assert {oct(path.stat().st_mode & 0o777) for path in held.values()} <= {"0o600"}


def _asked(store: Store, job_id: str, token: str) -> Any:
    from tests.support.deployment_clients import Client as Asks

    return Asks.of(store, job_id).ask("/predict", {"inputs": {}}, token=token).json()["outputs"]
