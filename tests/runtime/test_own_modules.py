"""Modules of the person's own: every member runs the source with which the job began, whatever becomes of the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from jupyter_hyperpod.control.sources import own_imports
from jupyter_hyperpod.core.errors import Conflict
from jupyter_hyperpod.core.spec import JobSpec, TrialSpec
from jupyter_hyperpod.runtime.worker import main as worker
from jupyter_hyperpod.runtime.worker import own_modules
from jupyter_hyperpod.storage.fingerprint import record
from jupyter_hyperpod.storage.source_record import SourceRecord
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import TRAIN, Submit

LOSS = "def scale(x):\n    return x * {factor}\n"
CELL = """
import time, torch, jupyter_hyperpod as hp
from torch import nn
from own_loss import scale

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(x, x.sum()) for x in torch.randn(32, 4)]

def loss_fn(batch):
    time.sleep(0.04)
    return nn.functional.mse_loss(scale(model(batch[0]).squeeze(-1)), batch[1])

with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2, audit=None) as session:
    for step in session.steps(20):
        step.run(loss_fn)
print("factor", scale(1))
"""


def test_a_module_that_is_edited_while_the_job_runs(job: Submit, tmp_path: Path) -> None:
    module = tmp_path / "own_loss.py"
    module.write_text(LOSS.format(factor=2))
    calm = job(CELL, nodes=1, working_directory=str(tmp_path))
    calm.finish()
    run = job(CELL, working_directory=str(tmp_path))
    run.until_step(4)
    module.write_text(LOSS.format(factor=3))
    run.kill(1)
    run.until_step(10)
    run.kill(0)
    run.finish()
    assert run.losses() == calm.losses()
    assert run.view["digest"] == calm.view["digest"]
    assert "factor 2" in run.text().get(0, "")
    following = job(CELL, nodes=1, working_directory=str(tmp_path))  # another job takes the file as it is
    following.finish()
    assert "factor 3" in following.text().get(0, "")


def test_the_first_member_decides(tmp_path: Path) -> None:
    record = SourceRecord(tmp_path)
    assert record.of("/a/model.py", b"one") == b"one"
    assert record.of("/a/model.py", b"two") == b"one"
    assert record.of("/b/model.py", b"two") == b"two"
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in (tmp_path / "sources").iterdir())


def test_a_trial_that_finds_another_version_is_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "late.py"
    made = []
    for sweep, number in (("other-aaaaaaaa", 1), ("late-aaaaaaaa", 1), ("late-aaaaaaaa", 2)):
        spec = JobSpec(f"late-{number}", "0" * 64, trial=TrialSpec(sweep, number, {"lr": 1}))
        made.append(store.create_job(spec))
    SourceRecord(made[0].path).of(str(path), b"x = 0")
    path.write_text("x = 1")
    own_modules.RecordedLoader("late", str(path), SourceRecord(made[1].path), made[1]).get_code("late")
    loader = own_modules.RecordedLoader("late", str(path), SourceRecord(made[2].path), made[2])
    path.write_text("x = 2")
    with pytest.raises(Conflict, match=f"late.py is not what {made[1].id}, another trial of this sweep, imported"):
        loader.get_code("late")


def test_what_a_source_imports_is_found(tmp_path: Path) -> None:
    package = tmp_path / "package" / "inner"
    package.mkdir(parents=True)
    files = {
        "package/__init__.py": "",
        "package/inner/__init__.py": "",
        "package/inner/model.py": "from ..side import x",
    }
    files |= {"package/side.py": "from . import last", "package/last.py": "\xff", "alone.py": "import package.inner"}
    for name, text in {**files, "unused.py": ""}.items():
        (tmp_path / name).write_text(text, "latin-1")
    found = own_imports.found("def f():\n    import alone\n    from package.inner import model\n", [str(tmp_path)])
    assert set(found) == {str(tmp_path / name) for name in files}


@pytest.mark.parametrize("name", ["a\nb.py", "x" * 200 + ".py", "ünï.py"])
def test_odd_names_of_files(tmp_path: Path, name: str) -> None:
    assert SourceRecord(tmp_path).of(f"/somewhere/{name}", b"text") == b"text"


def test_a_member_with_other_packages_says_so(job: Submit) -> None:
    run = job(TRAIN, nodes=2, env={"PAUSE_S": "0.02"})
    run.until_step(4)
    left = run.store.job(run.job_id).path / record.FILE
    there = json.loads(left.read_text())
    assert there["packages"]["numpy"][0] == numpy.__version__
    assert not run.view["warnings"]
    there["packages"]["numpy"][0] = "1.0"
    left.write_text(json.dumps(there))
    run.kill(1)
    run.finish()
    (warning,) = run.view["warnings"]
    assert f"numpy 1.0 there, {numpy.__version__} here" in warning["text"] and warning["text"].startswith("node-")


def test_packages_that_came_and_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "first-1.0.dist-info").mkdir()
    (tmp_path / "gone-2.0.dist-info").mkdir()
    job = tmp_path / "store" / "jobs" / "job"
    job.mkdir(parents=True)
    assert worker._other_environment(job) == ""
    record.leave(job, record.take(str(tmp_path)))
    assert worker._other_environment(job) == ""
    (tmp_path / "gone-2.0.dist-info").rmdir()
    (tmp_path / "first-1.0.dist-info").rename(tmp_path / "first-1.1.dist-info")
    assert "first 1.0 there, 1.1 here; gone 2.0 there, not installed here. Results" in worker._other_environment(job)
    (job / record.FILE).write_text("{")
    assert worker._other_environment(job) == ""
    (job / record.OLD_FILE).write_text(json.dumps({"first": "1.0"}))
    assert "first 1.0 there, 1.1 here" in worker._other_environment(job)
