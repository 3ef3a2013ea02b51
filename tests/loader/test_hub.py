"""Models and data of the Hugging Face Hub: fetched once, at one commit per job, refusals in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.storage.store import Store
from tests.support.hub_server import Hub, serving

LOAD = "import sys, jupyter_hyperpod as hp\nprint(sorted(hp.load_model(sys.argv[1])))"
PATH = "import sys, jupyter_hyperpod as hp\nprint(hp.hub_path(sys.argv[1]))"


@pytest.fixture
def hub() -> Iterator[tuple[Hub, dict[str, str]]]:
    with serving() as (hub, endpoint):
        yield hub, {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}


def weights(value: float, size: int = 8) -> dict[str, bytes]:
    return {"model.safetensors": save({"w": torch.full((size,), value)}), "pytorch_model.bin": b"x" * 100}


def run(code: str, url: str, env: dict[str, str], cache: Path, **more: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | env | {"HF_HOME": str(cache)} | more
    words = [sys.executable, "-W", "error", "-c", code, url]
    return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=90, check=False)


def test_a_model_is_fetched_once_and_only_what_the_loader_reads(
    hub: tuple[Hub, dict[str, str]], tmp_path: Path
) -> None:
    there, env = hub
    commit = there.commit("models/org/net", weights(1.0))
    for _ in range(2):
        done = run(LOAD, "hf://org/net", env, tmp_path)
        assert done.stdout == "['w']\n", done.stderr
    assert there.fetched == {"model.safetensors": 1}
    there.commit("models/org/net", weights(2.0))
    assert run(LOAD, f"hf://org/net@{commit}", env, tmp_path).stdout == "['w']\n"
    assert there.fetched == {"model.safetensors": 1}
    assert run(LOAD, "hf://org/net/model.safetensors", env, tmp_path, HF_HUB_OFFLINE="1").stdout == "['w']\n"


def test_a_file_of_a_data_set(hub: tuple[Hub, dict[str, str]], tmp_path: Path) -> None:
    there, env = hub
    there.commit("datasets/org/words", {"part/text.bin": b"abcdefgh" * 4, "other.bin": b"z"})
    code = "import sys, jupyter_hyperpod as hp\nprint(len(hp.TokenDataset(sys.argv[1], 4)))"
    assert run(code, "hf://datasets/org/words/part/text.bin", env, tmp_path).stdout == "7\n"
    done = run(PATH, "hf://datasets/org/words/part", env, tmp_path)
    assert os.listdir(done.stdout.strip()) == ["text.bin"] and there.fetched == {"part/text.bin": 1}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hf://org/none", "no such repository"),
        ("hf://org/net@nowhere", "no such revision"),
        ("hf://org/net/none.safetensors", "no such file or folder in the repository"),
        ("hf://org/shut", "a model whose owner grants access one by one"),
        ("hf://net", "hf://ORGANISATION/NAME"),
        ("hf://spaces/org/net", "is a space; expected hf://ORGANISATION/NAME"),
    ],
)
def test_a_refusal_is_said(hub: tuple[Hub, dict[str, str]], tmp_path: Path, url: str, words: str) -> None:
    there, env = hub
    there.commit("models/org/net", weights(1.0))
    there.commit("models/org/shut", weights(1.0))
    there.gated.add("models/org/shut")
    done = run(PATH, url, env, tmp_path, HF_TOKEN="hf_secret")
    assert done.returncode == 1 and words in done.stderr.splitlines()[-1], done.stderr
    assert "hf_secret" not in done.stderr


def test_no_connection_is_said(tmp_path: Path) -> None:
    done = run(PATH, "hf://org/net", {"HF_ENDPOINT": "http://127.0.0.1:9"}, tmp_path)
    assert "no answer from the Hub; expected a connection to http://127.0.0.1:9" in done.stderr.splitlines()[-1]


def test_processes_that_begin_together_fetch_once_also_where_one_is_killed(
    hub: tuple[Hub, dict[str, str]], tmp_path: Path
) -> None:
    there, env = hub
    there.commit("models/org/net", weights(1.0, 400_000))
    there.go.clear()
    variables = os.environ | env | {"HF_HOME": str(tmp_path)}
    words = [sys.executable, "-c", LOAD, "hf://org/net"]
    first = subprocess.Popen(words, env=variables)
    assert there.began.wait(60)
    others = [subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    there.go.set()
    assert [process.communicate(timeout=90)[0] for process in others] == ["['w']\n"] * 3
    assert there.fetched["model.safetensors"] <= 3, "of the killed process, of its successor, and what it went on with"


CELL = """
import time, jupyter_hyperpod as hp, os
weights = hp.load_model("hf://org/net")["w"]
open(os.environ["LOADED"] + "/" + os.environ["HYPERPOD_NODE"], "w").close()
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = [weights * i for i in range(8)]
with hp.Session(model, optimizer, data, global_batch=4, micro_batch=1) as session:
    for step in session.steps(30):
        step.run(lambda batch: model(batch).mean())
        time.sleep(0.15)
print("weights", float(weights[0]))
"""


@pytest.mark.timeout(180)
def test_all_members_of_a_job_load_the_same_commit(
    shared_cluster: Store, hub: tuple[Hub, dict[str, str]], tmp_path: Path
) -> None:
    """A branch that moves while the job runs does not reach members that join later."""
    from tests.runtime.conftest import Run

    there, env = hub
    there.commit("models/org/net", weights(1.0))
    (tmp_path / "loaded").mkdir()
    more = {"HF_HOME": str(tmp_path / "cache"), "LOADED": str(tmp_path / "loaded")}
    job = Run(shared_cluster, jobs.submit(shared_cluster, CELL, nodes=3, env=env | more))
    job.until_step(4)
    there.commit("models/org/net", weights(2.0))
    job.kill(1)
    job.finish()
    assert job.text()[0] == "weights 1.0\n"
    assert len(list((tmp_path / "loaded").iterdir())) == 4 and there.fetched == {"model.safetensors": 1}
