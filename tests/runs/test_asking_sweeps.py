"""Sweeps that Optuna chooses: on a real cluster, pruned, cut off, and gone on with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control.sweeps import asking, trials
from jupyter_hyperpod.control.sweeps.plan import SweepPlan
from jupyter_hyperpod.core.errors import Conflict, SpecError
from jupyter_hyperpod.policy.sweeps import space
from jupyter_hyperpod.storage.store import Store

QUICK = "x = 1.0\nkind = 'a'\nresult = (x - 3) ** 2 + (kind == 'b')\n"
# the first trials go to their end; one with a large x then waits, far behind them, until it is ended
SLOW = """
import time, torch, jupyter_hyperpod as hp
x = 1
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
with hp.Session(model, optimizer, [(torch.ones(4), torch.ones(1))] * 8, global_batch=8, micro_batch=8) as session:
    for step in session.steps(4):
        step.run(lambda batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]))
        if step.number > 1:  # a first score of a step before may be judged at once
            session.log(score=float(x))
        while x > 5 and step.number == 2:
            time.sleep(0.05)
"""


def plan(*texts: str, **more: Any) -> SweepPlan:
    return SweepPlan.make(space.parse(texts), **more)


def test_without_optuna_it_says_how_to_install_it(store: Store, monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    (file := tmp_path / "quick.py").write_text(QUICK)
    words = ["submit", str(file), "--sweep", "x=0..9", "--sampler", "tpe"]
    assert main([*words, "--trials", "3", "--follow"]) == 2
    assert "pip install 'jupyter_hyperpod[optuna]'" in capsys.readouterr().err
    assert main([*words, "--trials", "3"]) == 2 and "give --follow" in capsys.readouterr().err
    assert main([*words, "--follow"]) == 2 and "say how many trials" in capsys.readouterr().err
    with pytest.raises(SpecError, match="needs a sampler that learns"):
        plan("x=1,2", pruner="median")
    assert store.job_ids() == []


@pytest.mark.timeout(300)
def test_a_sweep_that_was_cut_off_goes_on_in_another_process(shared_cluster: Store) -> None:
    pytest.importorskip("optuna")
    tried = plan("x=0.0..9.0", "kind=a,b", sampler="tpe", trials=7, metric="result")
    sweep, updates = asking.begin(shared_cluster, QUICK, {"name": "asked"}, tried)
    while not sweep.trials:  # several may end before the next look
        next(updates)
    updates.close()  # the kernel ends
    begun = {trial.number: trial.job.id for trial in sweep.trials}
    assert 1 <= len(begun) < 7
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(shared_cluster.root)]
    done = subprocess.run([*command, "sweep", "resume", "asked"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "7 of 7 trials · 7 succeeded" in done.stdout
    found = trials.read(shared_cluster, sweep.id)
    assert [trial.number for trial in found.trials] == [1, 2, 3, 4, 5, 6, 7]
    assert begun.items() <= {trial.number: trial.job.id for trial in found.trials}.items(), "none was run again"
    for trial in found.trials:
        values = trial.spec.values
        assert trial.value == (values["x"] - 3) ** 2 + (values["kind"] == "b")
    again = subprocess.run([*command, "sweep", "resume", "asked"], capture_output=True, text=True, timeout=120)
    assert "no trial of asked-" in again.stdout
    code, fields, earlier = trials.template(found)
    with pytest.raises(Conflict, match="another process goes on with it"):
        trials.submit_trial(found, 7, code, fields, earlier)


@pytest.mark.timeout(300)
def test_a_trial_that_others_surpass_is_pruned_and_told_as_pruned(shared_cluster: Store) -> None:
    optuna = pytest.importorskip("optuna")
    tried = plan("x=1..9", sampler="tpe", trials=6, pruner="median", metric="score")
    study = asking.Study(shared_cluster, tried)
    fields = {"name": "pruned", "threads": 1}
    sweep = trials.Sweep(shared_cluster, trials.new_id("pruned"), tried, [])
    for x in (1, 2, 1, 2, 3, 9):  # five have to end before a median is known
        study.enqueue({"x": x})
    for _ in asking.drive(sweep, study, asking.Template(SLOW, fields), at_once=1):
        pass
    assert [trial.state for trial in sweep.trials] == ["succeeded"] * 5 + ["pruned"]
    assert "its score at step 2 is worse" in sweep.trials[5].view["reason"] and sweep.trials[5].view["step"] == 2
    states = [trial.state for trial in study.optuna_trials()]
    assert states == [optuna.trial.TrialState.COMPLETE] * 5 + [optuna.trial.TrialState.PRUNED]
    assert sweep.best is not None and sweep.best.spec.values == {"x": 1}
