"""Sweeps on a real cluster: their trials, their table, a restart, a trial run again, and the report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import housekeeping, jobs, lookup
from jupyter_hyperpod.control.sweeps import following, sweep_table, trials, verbs
from jupyter_hyperpod.control.sweeps.metric import trial_texts
from jupyter_hyperpod.control.sweeps.plan import SweepPlan, remarks
from jupyter_hyperpod.control.sweeps.trials import Sweep
from jupyter_hyperpod.core.errors import Conflict, NotFound, SpecError
from jupyter_hyperpod.core.spec import JobSpec, TrialSpec
from jupyter_hyperpod.policy.sweeps import space
from jupyter_hyperpod.storage.folded import FoldedJournal
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.storage.values import leave, pulled
from tests.runs.pages import harmless
from tests.test_magics import make_shell, run

BOUND_S = 120.0
GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "sweeps.md").read_text()
CELL = """
import torch, jupyter_hyperpod as hp
lr = 1e-3
kind = "plain"
if lr > 1:
    raise ValueError(f"{lr} is too much")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=1) as session:
    for step in session.steps(6):
        loss = step.run(loss_fn)
        session.log(score=-loss, lr=lr)
"""
QUICK = "x = 1\ny = 2\nresult = (x - 3) ** 2 + y\n"


def plan(*texts: str, **more: Any) -> SweepPlan:
    return SweepPlan.make(space.parse(texts), **more)


def ended(store: Store, name: str) -> Sweep:
    sweep = trials.read(store, name)
    for _ in following.updates(sweep):
        pass
    return sweep


def command(store: Store, *words: str, status: int = 0) -> str:
    line = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(store.root), *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def shown_of(sweep: Sweep, verb: str) -> str:
    assert sweep.best is not None
    return command(sweep.store, verb, sweep.best.job.id)


@pytest.mark.timeout(300)
def test_a_sweep_from_the_command_line(shared_cluster: Store, tmp_path: Path) -> None:
    """It goes on without its command, a trial that fails does not end it, and a trial runs again bit for bit."""
    file, page = tmp_path / "train.py", tmp_path / "sweep.html"
    file.write_text(CELL)
    words = ("submit", str(file), "--sweep", "lr=1e-3,0.1,7", "--metric", "score", "--maximize", "--name", "first")
    there = shared_cluster.job_ids()
    assert "trial 3: lr=7" in command(shared_cluster, *words, "--dry-run")
    assert shared_cluster.job_ids() == there
    begun = json.loads(command(shared_cluster, *words, "--json"))
    sweep = ended(shared_cluster, begun["id"])
    assert [trial.state for trial in sweep.trials] == ["succeeded", "succeeded", "failed"]
    assert [trial.job.id for trial in sweep.trials] == begun["jobs"]
    assert sweep.best is not None and sweep.best.spec.values == {"lr": 0.1}
    assert all(trial.job.spec().priority == -1 for trial in sweep.trials)
    for trial in sweep.trials[:2]:
        assert trial.view["metrics"]["lr"] == trial.spec.values["lr"], "the code computed with the trial's value"

    shown = command(shared_cluster, "sweep", "show", "first")
    assert re.search(r"^ +2 +0\.1 +succeeded +6/6 +-0\.\d+ +best +first-2-", shown, re.MULTILINE)
    assert "1 trial failed: first-3-" in shown and "best score" in shown
    found = json.loads(command(shared_cluster, "sweep", "show", begun["jobs"][0], "--json"))
    assert found["best"] == 2 and found["missing"] == [] and found["trials"][2]["state"] == "failed"

    assert re.search(r"^  trial +2 of first-\w{8}, lr=0\.1: score -0\.\d+$", shown_of(sweep, "describe"), re.MULTILINE)
    assert re.search(r"^first-2-.* lr=0\.1: score -0\.", command(shared_cluster, "list"), re.MULTILINE)
    alone = lookup.submit_again(shared_cluster, sweep.best.job.id)
    assert alone.startswith("first-2-again-") and lookup.job_id(shared_cluster, "first-2") == sweep.best.job.id
    view = jobs.wait(shared_cluster, alone, timeout_s=BOUND_S)
    assert (view["digest"], view["loss"]) == (sweep.best.view["digest"], sweep.best.view["loss"])
    same = json.loads(command(shared_cluster, "compare", sweep.best.job.id, alone, "--json"))
    assert "bit-identical until step 6" in same["identity"][0]["sentence"]
    assert len(trials.read(shared_cluster, "first").trials) == 3, "a trial that is run again is a job of its own"
    differs = json.loads(command(shared_cluster, "compare", *begun["jobs"][:2], "--json"))
    assert differs["differences"]["parameters"]["sweep.lr"] == ["0.001", "0.1"]
    values = [trial.value_text for trial in sweep.trials[:2]]
    assert differs["metrics"]["score, by which the sweep judges"] == values
    assert f"'{begun['id']}' is no job, but a sweep" in command(shared_cluster, "compare", begun["id"], alone, status=2)

    command(shared_cluster, "sweep", "report", "first", "-o", str(page))
    text = harmless(page.read_text()).text
    assert sweep.best.job.id in text and repr(sweep.best.value) in text
    source = page.read_text()
    assert source.count('href="#best"') == 2 and 'id="best"' in source and 'id="trial-3"' in source
    listed = command(shared_cluster, "sweep", "list")
    assert begun["id"] in listed and "3/3" in listed


@pytest.mark.timeout(300)
def test_what_is_missing_is_submitted_once(shared_cluster: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a submission that was cut off, after a deletion, and by two who resume at the same moment."""
    submit, left = jobs.submit, [2]

    def cut_off(*args: Any, **options: Any) -> str:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return submit(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "submit", cut_off)
        said: list[str] = []
        with pytest.raises(KeyboardInterrupt), verbs.told_when_cut_off(said.append):
            trials.begin(shared_cluster, QUICK, {"name": "cut"}, plan("x=1,2,3,4", "y=5,6", metric="result"))
    sweep = trials.read(shared_cluster, "cut")
    assert said == [f"2 of 8 trials submitted; `jupyter hyperpod sweep resume {sweep.id}` submits the rest"]
    assert sweep.missing == [3, 4, 5, 6, 7, 8]
    assert "6 trials of cut-" in "\n".join(sweep_table.end_lines(ended(shared_cluster, "cut"), "%hyperpod"))
    words = [sys.executable, "-m", "jupyter_hyperpod", "sweep", "resume", "cut", "--store", str(shared_cluster.root)]
    both = [subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [json.loads(one.communicate(timeout=BOUND_S)[0])["jobs"] for one in both]
    assert sorted(map(len, told)) == [0, 6], "one of them submitted all that was missing"
    sweep = ended(shared_cluster, "cut")
    assert [(t.number, t.state, t.value) for t in sweep.trials] == [
        (number, "succeeded", (x - 3) ** 2 + y)
        for number, (x, y) in enumerate(((x, y) for x in (1, 2, 3, 4) for y in (5, 6)), 1)
    ]
    assert sweep.best is not None and sweep.best.number == 5
    digests = {trial.number: trial.job.spec().cell_digest for trial in sweep.trials}
    (gone,) = (trial for trial in sweep.trials if trial.number == 4)
    housekeeping.delete(shared_cluster, gone.job.id)
    assert len(trials.resume(shared_cluster, sweep.id)) == 1 and trials.resume(shared_cluster, sweep.id) == []
    again = ended(shared_cluster, sweep.id)
    assert {trial.number: trial.job.spec().cell_digest for trial in again.trials} == digests


@pytest.mark.timeout(300)
def test_a_sweep_in_a_cell(shared_cluster: Store, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("JUPYTER_HYPERPOD_STORE", str(shared_cluster.root))
    shell = make_shell(lost_after_s=20.0)
    run(shell, f"%%hyperpod --sweep x=1,3 --sweep y=1..9 --trials 4 --metric result --name cell --seed 3\n{QUICK}")
    out = capfd.readouterr().out
    assert len(re.findall(r"^trial \d \(x=\d, y=\d\): succeeded · result \d+", out, re.MULTILINE)) == 4
    assert re.search(r"^best result \d+ in trial \d", out, re.MULTILINE)
    sweep = trials.read(shared_cluster, "cell")
    assert [trial.spec.values for trial in sweep.trials] == list(sweep.plan.points())
    assert all(trial.job.spec().seed == 3 for trial in sweep.trials)
    rows = run(shell, "%hyperpod sweep show cell")
    assert len(rows) == 4 and "best" in repr(rows) and "<table>" in rows._repr_html_()
    run(shell, f"%%hyperpod --sweep x=7,8 --name failing --metric result\n{QUICK}\nassert x == 7")
    assert "1 trial failed: failing-2-" in capfd.readouterr().out


@pytest.mark.timeout(300)
def test_trials_that_failed_run_again_when_asked_for(shared_cluster: Store, tmp_path: Path) -> None:
    """And what is no finite number is shown, and never the best; equal values are spoken of."""
    ready = tmp_path / "ready"
    cell = (
        f"import os\nx = 1.0\nif x > 2 and not os.path.exists({str(ready)!r}):\n    raise OSError('not yet')\n"
        "result = float('nan') if x == 1 else 7.0 if x else float('-inf')\n"
    )
    name = trials.begin(shared_cluster, cell, {"name": "again"}, plan("x=0,1,2,3", metric="result"))
    sweep = ended(shared_cluster, name)
    assert [trial.value_text for trial in sweep.trials] == ["-inf", "nan", "7", "-"]
    assert sweep.best is not None and sweep.best.number == 3
    shown = command(shared_cluster, "sweep", "show", "again")
    assert f"logs {sweep.trials[3].job.id} says more" in shown and "trial 4 (x=3): failed · OSError: not yet" in shown
    plainly = command(shared_cluster, "sweep", "resume", "again")
    assert f"is missing; 1 failed: jupyter hyperpod sweep resume {name} --again failed submits" in plainly
    ready.touch()
    (new,) = json.loads(command(shared_cluster, "sweep", "resume", "again", "--again", "failed", "--json"))["jobs"]
    sweep = ended(shared_cluster, name)
    assert [trial.job.id for trial in sweep.trials][3] == new and sweep.trials[3].value == 7.0
    assert "no trial of again-" in command(shared_cluster, "sweep", "resume", "again", "--again", "failed")
    del sweep.trials[:2]
    assert "all 2 trials that succeeded have the same result 7: does the code use x?" in sweep_table.end_lines(
        sweep, ""
    )


def test_what_a_person_should_know_before_a_sweep_runs() -> None:
    (said,) = remarks("lr = 0.1\nscore = lr\n", plan("lr=1,2", metric="score", arguments=("--lr", "{lr}")))
    assert "lr is given to the file as an argument" in said
    (said,) = remarks("lr = 0.1\nscore = lr\n", plan("lr=1,2", metric="nosuch"))
    assert "neither assigns nosuch at its top level nor logs it" in said
    for code in ("session.log(nosuch=lr)", "session.log(**values)", "nosuch = 3", "session.log(**{'nosuch': 1})"):
        assert remarks(f"lr = 0.1\n{code}\n", plan("lr=1,2", metric="nosuch")) == []


def test_a_sweep_is_interrupted_as_a_job_is(shared_cluster: Store, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.setenv("JUPYTER_HYPERPOD_STORE", str(shared_cluster.root))
    shell = make_shell(lost_after_s=20.0)
    cell = f"{QUICK}import time\nwhile True: time.sleep(0.1)\n"

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(following, "poll", interrupted)
        run(shell, f"%%hyperpod --sweep x=1,2 --name waits\n{cell}")
        assert "detached; waits-" in capfd.readouterr().out
        assert len(trials.read(shared_cluster, "waits").unfinished) == 2, "the trials go on"
        run(shell, f"%%hyperpod --sweep x=1,2 --name ends --cancel-on-interrupt\n{cell}")
        assert "2 trials of ends-" in capfd.readouterr().out
    assert {trial.state for trial in ended(shared_cluster, "ends").trials} == {"stopped"}
    sweep = trials.read(shared_cluster, "waits")
    with pytest.raises(Conflict, match=f"not ended: `%hyperpod sweep stop {sweep.id}` ends what runs"):
        run(shell, "%hyperpod sweep delete waits")
    run(shell, "%hyperpod sweep stop waits")
    assert {trial.state for trial in ended(shared_cluster, "waits").trials} == {"stopped"}
    again = trials.submit_again(shared_cluster, sweep.id, "stopped")
    trials.stop(trials.read(shared_cluster, "waits"), "enough")
    assert len(again) == len(ended(shared_cluster, "waits").trials) == 2
    run(shell, "%hyperpod sweep delete waits")
    assert "deleted: 4 jobs" in capfd.readouterr().out
    assert sweep.id not in trials.sweep_ids(shared_cluster) and not set(again) & set(shared_cluster.job_ids())


@pytest.mark.timeout(300)
def test_an_elastic_trial_makes_room_for_those_that_wait(shared_cluster: Store) -> None:
    """The first one, on all four nodes, shrinks while it trains."""
    cell = CELL.replace("session.steps(6)", "session.steps(100_000)").replace(
        "    return", "    time.sleep(0.002); return"
    )
    cell = f"import time\n{cell}"
    name = trials.begin(shared_cluster, cell, {"name": "room", "elastic": "1:4"}, plan("lr=1e-3,1e-2,0.1"))
    sweep = trials.read(shared_cluster, name)
    for trial in sweep.trials:
        assert jobs.wait(shared_cluster, trial.job.id, {"running"}, BOUND_S)["state"] == "running"
    sweep.poll()
    assert not sweep.trials[0].over
    assert trials.stop(sweep, "enough") == [trial.job.id for trial in sweep.trials]
    assert {trial.state for trial in ended(shared_cluster, name).trials} == {"stopped"}


def test_arguments_of_a_file_take_values(shared_cluster: Store, tmp_path: Path) -> None:
    file = tmp_path / "arguments.py"
    file.write_text("import sys\nresult = float(sys.argv[2])\n")
    words = ("submit", str(file), "--sweep", "rate=0.5,0.25", "--metric", "result", "--follow")
    out = command(shared_cluster, *words, "--", "--rate", "{rate}")
    assert "best result 0.25 in trial 2 (rate=0.25)" in out


def test_what_is_refused_leaves_nothing(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(QUICK)
    for words, said in (
        (("--sweep", "lr=1,2"), "train.py assigns no lr"),
        (("--sweep", "x="), "there are no values"),
        (("--trials", "3"), "belongs to a sweep"),
        (("--sweep", "x=1..5"), "say how many"),
        (("--sweep", "x=1,2", "--maximize", "--minimize"), "not allowed with argument"),
        (tuple(f"--sweep={name}={','.join(map(str, range(1000)))}" for name in ("x", "y")), "1,000,000 points"),
    ):
        with suppress(SystemExit):  # bad use
            assert main(["submit", str(file), *words]) == 2
        assert said in capsys.readouterr().err
    assert store.job_ids() == []
    with pytest.raises(NotFound, match="no sweep 'none'"):
        trials.read(store, "none")
    with pytest.raises(SpecError, match="a sweep has many"):
        trials.begin(store, QUICK, {"pull": ("x",)}, plan("x=1,2"))


@pytest.mark.timeout(300)
def test_the_guide(shared_cluster: Store, monkeypatch: pytest.MonkeyPatch, capfd: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("JUPYTER_HYPERPOD_STORE", str(shared_cluster.root))
    monkeypatch.chdir(tmp_path)
    shell = make_shell(lost_after_s=20.0)
    for code in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        run(shell, code)
        assert re.search(r"^best \w+ \S+ in trial \d", capfd.readouterr().out, re.MULTILINE)
    commands, _ = re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)
    for line in commands.splitlines()[1:]:
        assert main(line.replace("NAME", "first").split()[2:]) == 0, line
    assert (tmp_path / "sweep.html").exists()


MODULE = "SCALE = {scale}\n"
USES = """
import importlib
import own_scale
lr = 0.1
loss = lr * own_scale.SCALE
if lr > 4:
    late = "own_late"
    loss += importlib.import_module(late).MORE
"""


@pytest.mark.timeout(300)
def test_all_trials_import_what_was_there_when_the_sweep_began(
    shared_cluster: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do a trial that runs again, and one that was missing."""
    file, module, late = (tmp_path / name for name in ("train.py", "own_scale.py", "own_late.py"))
    file.write_text(USES)
    module.write_text("from own_deeper import SCALE\n")
    deeper = tmp_path / "own_deeper.py"
    deeper.write_text(MODULE.format(scale=1.0))
    late.write_text("MORE = 0\n")
    submit = jobs.submit

    def edited(*args: Any, **options: Any) -> str:
        job = submit(*args, **options)
        deeper.write_text(MODULE.format(scale=100.0))
        return job

    fields = {"name": "kept", "script": True, "filename": str(file), "working_directory": str(tmp_path), "spares": 0}
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "submit", edited)
        trials.begin(shared_cluster, USES, fields, plan("lr=1,2,5", metric="loss"))
    sweep = ended(shared_cluster, "kept")
    assert [trial.value for trial in sweep.trials] == [1, 2, 5]
    late.write_text("MORE = 7\n")
    housekeeping.delete(shared_cluster, sweep.trials[0].job.id)
    assert "own_deeper.py has changed: the new trials run it as it was" in command(
        shared_cluster, "sweep", "resume", "kept"
    )
    alone = lookup.submit_again(shared_cluster, sweep.trials[2].job.id)
    (said,) = jobs.submission_warnings(shared_cluster, alone)
    assert "own_deeper.py has changed: the new job runs it as it was then" in said
    assert jobs.wait(shared_cluster, alone, timeout_s=BOUND_S)["state"] == "succeeded"
    assert pulled(shared_cluster.job(alone).path)[0]["loss"] == 5
    assert [trial.value for trial in ended(shared_cluster, "kept").trials] == [1, 2, 5]


@pytest.mark.parametrize(
    ("logged", "left", "metric", "value", "said"),
    [
        (None, 2.0, "loss", 2.0, "is the variable at the end, 2, and not the loss of the last step, 5"),
        (3.0, 2.0, "val", 3.0, "is what was logged, 3, and not the variable at the end, 2"),
        (3.0, 3.0, "val", 3.0, ""),
        (None, None, "loss", 5.0, ""),
        (None, 2.0, "val", 2.0, ""),
    ],
)
def test_which_value_counts(
    store: Store, logged: float | None, left: float | None, metric: str, value: float, said: str
) -> None:
    made = plan("lr=1", metric=metric)
    job = store.create_job(
        JobSpec("order-1", "0" * 64, trial=TrialSpec("order-aaaaaaaa", 1, {"lr": 1}, made.to_json()))
    )
    sweep = Sweep(store, "order-aaaaaaaa", made, [])
    trial = sweep.add(job.id)
    trial.view.update(state="succeeded", loss=5.0, metrics={} if logged is None else {metric: logged})
    if left is not None:
        leave(job.path, [metric], {metric: left})
    assert trial.value == value and (said in trial.doubt if said else not trial.doubt)
    assert bool(said) == any(said in line for line in sweep_table.end_lines(sweep, "hp") if "and not" in line)


def test_a_value_that_cannot_be_read_is_unknown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan("lr=1", metric="val")
    spec = JobSpec("order-1", "0" * 64, trial=TrialSpec("order-aaaaaaaa", 1, {"lr": 1}, made.to_json()))
    job = store.create_job(spec)
    view = {**FoldedJournal(job).catch_up(), "state": "succeeded"}
    leave(job.path, ["val"], {"val": torch.tensor(2.0)})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)  # not installed
        assert trial_texts(store, [view]) == {job.id: "lr=1"}
    assert trial_texts(store, [view]) == {job.id: "lr=1: val 2"}
    (job.path / "pulled.json").unlink()
    (job.path / "pulled.json").mkdir()  # root may read a file of any user, but no folder
    assert trial_texts(store, [view]) == {job.id: "lr=1"}
