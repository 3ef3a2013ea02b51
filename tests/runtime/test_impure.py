"""Programs that keep something outside the session: no node is fenced for that, and the job says what to write."""

from __future__ import annotations

from tests.runtime.conftest import TRAIN, Run, Submit

LOOP = "        session.log(loss=loss)\n"
PROGRAM = "program not reproducible"


def changed(*replacements: tuple[str, str]) -> str:
    """`TRAIN` with other lines."""
    source = TRAIN
    for old, new in replacements:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def blamed(run: Run) -> str:
    """The sentence that the job ends with; the same stands in the journal, in the incident and at the card."""
    reason = str(run.finish("failed", 90)["reason"])
    told = [i for i in run.view["incidents"] if i["cause"] == PROGRAM]
    assert len(told) == 1, run.story()
    assert told[0]["stages"][-1]["text"] == reason, run.story()
    assert "the likely cause is the program, not a node" in reason.replace("The", "the")
    assert reason.endswith("no node is fenced and nothing starts again")
    corrupt = [e for e in run.of_kind("member.lost") if e.data["cause"] == "silent data corruption"]
    assert not corrupt, run.story()
    again = [e for e in run.of_kind("decision.made") if "from its seed" in e.data["reason"]]
    assert not again, run.story()
    return reason


def test_a_scheduler_that_the_loop_steps(job: Submit) -> None:
    source = changed((", scheduler=scheduler)", ")"), (LOOP, f"{LOOP}        scheduler.step()\n"))
    run = job(source.replace("steps(24)", "steps(400)"), env={"PAUSE_S": "0.02"})
    run.until_step(5)
    run.kill(1)
    reason = blamed(run)
    assert " joined after step " in reason and "has not run the loop before that" in reason
    assert "hp.Session(..., scheduler=scheduler)" in reason


def test_two_members_one_of_them_new(job: Submit) -> None:
    """Neither can be proven right: that must not begin the run again from its seed."""
    source = changed((", scheduler=scheduler)", ")"), (LOOP, f"{LOOP}        scheduler.step()\n"))
    run = job(source.replace("steps(24)", "steps(400)"), nodes=2, env={"PAUSE_S": "0.02"})
    run.until_step(5)
    run.kill(0)
    assert " joined after step " in blamed(run)


def test_layers_that_are_unfrozen_in_the_loop(job: Submit) -> None:
    frozen = "model[0].requires_grad_(False)\nsettings = "
    unfreeze = "    for step in session.steps(24):\n        model[0].requires_grad_(step.number >= 6)\n"
    source = changed(("settings = ", frozen), ("    for step in session.steps(24):\n", unfreeze))
    reason = blamed(run := job(source))
    assert "3 members differ in the state after step 6" in reason
    assert "3 of 3 members at once" in reason and "requires_grad" in reason
    assert run.view["step"] == 6


def test_a_counter_in_the_cell_that_the_loss_depends_on(job: Submit) -> None:
    counted = "    return nn.functional.mse_loss(model(inputs).squeeze(-1), targets) * (1 + 0.01 * turns)\n"
    source = changed(
        ("    return nn.functional.mse_loss(model(inputs).squeeze(-1), targets)\n", counted),
        ("seed=3,", "seed=3, audit=1.0,"),
        ("def loss_fn", "turns = 0\n\ndef loss_fn"),
        (LOOP, f"{LOOP}        turns += 1\n"),
    )
    run = job(source.replace("steps(24)", "steps(400)"), env={"PAUSE_S": "0.02"})
    run.until_step(5)
    run.kill(1)
    reason = blamed(run)
    assert "computed a wrong gradient" in reason and "a counter in the cell" in reason


def test_a_loss_function_that_writes_behind_torch(job: Submit) -> None:
    source = changed(("def loss_fn(batch):\n", "def loss_fn(batch):\n    model[1].weight.data.mul_(0.999)\n"))
    reason = blamed(job(source))
    assert "3 of 3 members at once" in reason and "through .data or numpy" in reason


def frozen_from(condition: str) -> str:
    """`TRAIN` whose loop freezes a layer where `condition` holds."""
    freeze = (
        f"    for turn, step in enumerate(session.steps(24)):\n        model[0].requires_grad_(not ({condition}))\n"
    )
    return changed(("    for step in session.steps(24):\n", freeze)).replace("nn.LayerNorm(16), ", "")


def test_layers_that_are_frozen_by_the_cells_own_count(job: Submit) -> None:
    run = job(frozen_from("turn >= 12"))
    run.until_step(5)
    run.kill(1)
    reason = blamed(run)
    assert "choice of frozen parameters" in reason and "(requires_grad)" in reason
    assert " joined after step " in reason and "compute everything else from step.number" in reason


def test_layers_that_are_frozen_by_the_steps_number(job: Submit) -> None:
    source = frozen_from("step.number >= 8")
    undisturbed = job(source, nodes=2)
    undisturbed.finish()
    run = job(source)
    run.until_step(12)
    run.kill(1)
    run.finish()
    run.same_as(undisturbed)
