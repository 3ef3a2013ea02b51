"""Cells as people write them: what they print, how they fail, and what the job says of it."""

from __future__ import annotations

from jupyter_hyperpod.runtime.audit import audit
from tests.runtime.conftest import TRAIN, Submit, alive

TWO_SESSIONS = """
import torch, jupyter_hyperpod as hp
for turn in range(2):
    torch.manual_seed(turn)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.randn(4), torch.randn(1)) for _ in range(16)]
    with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2, seed=turn) as session:
        for step in session.steps(5):
            step.run(lambda batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]))
    print("digest", session.digest())
"""


def test_a_plain_cell_prints_from_every_rank(job: Submit) -> None:
    run = job("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n", nodes=3)
    run.finish()
    assert run.text() == {rank: f"rank {rank} of 3\n" for rank in range(3)}
    assert [view["rank"] for view in run.view["members"]] == [0, 1, 2]


def test_ranks_can_form_a_process_group(job: Submit) -> None:
    source = (
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "t = torch.tensor([dist.get_rank() + 1.0])\ndist.all_reduce(t)\nprint(t.item())\ndist.destroy_process_group()\n"
    )
    run = job(source, nodes=2)
    run.finish()
    assert set(run.text().values()) == {"3.0\n"}


def test_an_exception_is_the_users_and_is_not_tried_again(job: Submit) -> None:
    run = job("x = 1\n\ndef f():\n    return x / 0\n\nf()\n", nodes=2)
    view = run.finish("failed")
    assert "ZeroDivisionError" in view["reason"]
    assert "line 4" in view["reason"]
    error = view["error"]
    assert error["type"] == "ZeroDivisionError"
    text = "\n".join(error["traceback"])
    assert "return x / 0" in text
    assert "jupyter_hyperpod" not in text
    assert not run.of_kind("incident.stage")


def test_a_loss_function_that_raises_shows_the_cells_own_line(job: Submit) -> None:
    run = job(TRAIN.replace("    inputs, targets = batch", "    inputs, targets, more = batch"), nodes=2)
    view = run.finish("failed")
    assert view["error"]["type"] == "ValueError"
    assert "inputs, targets, more = batch" in "\n".join(view["error"]["traceback"])


def test_a_syntax_error_names_its_line(job: Submit) -> None:
    run = job("x = 1\nfoo()\nexec('1 +')\n", nodes=1)
    assert "NameError" in run.finish("failed")["reason"]


def test_exit_statuses(job: Submit) -> None:
    for code, state in (("0", "succeeded"), ("None", "succeeded"), ("3", "failed"), ("'no data'", "failed")):
        run = job(f"import sys\nprint('before')\nsys.exit({code})\n", nodes=1)
        view = run.finish(state)
        assert run.text() == {0: "before\n"}
        if state == "failed":
            assert "SystemExit" in view["reason"]
            assert code.strip("'") in view["reason"]


def test_a_dead_rank_of_a_plain_cell_fails_the_job_with_a_reason(job: Submit) -> None:
    suicide = "import os, signal, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
    view = job(suicide + "time.sleep(60)\n", nodes=2).finish("failed")
    for words in ("rank 1", "SIGKILL", "hp.Session"):
        assert words in view["reason"]


def test_a_rank_that_leaves_by_the_back_door_fails_a_plain_cell(job: Submit) -> None:
    view = job("import os\nos._exit(0)\n", nodes=1).finish("failed")
    assert "exit status 0" in view["reason"]


def test_two_sessions_in_one_cell(job: Submit) -> None:
    alone, together = job(TWO_SESSIONS, nodes=1), None
    alone.finish()
    together = job(TWO_SESSIONS, nodes=3)
    together.finish()
    assert len(together.of_kind("session.closed")) == 2
    assert set(together.text().values()) == set(alone.text().values())
    report = audit(together.events)
    assert (report.sound, report.sessions, report.steps) == (True, 2, 10), report


def test_a_rank_without_the_session_fails_the_job_instead_of_hanging(job: Submit) -> None:
    source = "import os\nif os.environ['RANK'] == '0':\n" + "".join(f"    {line}\n" for line in TRAIN.splitlines())
    view = job(source, nodes=2).finish("failed")
    assert "rank 1 ended its cell while others wait in hp.Session" in view["reason"]


def test_ranks_that_open_different_sessions_fail_with_the_difference(job: Submit) -> None:
    source = TRAIN.replace("global_batch=16", "global_batch=16 + 2 * int(os.environ['RANK'])")
    view = job(source, nodes=2).finish("failed")
    assert "global_batch 18 instead of 16" in view["reason"]


def test_a_rank_that_leaves_the_loop_alone_fails_the_job_instead_of_hanging(job: Submit) -> None:
    leaves = "        session.log(loss=loss)\n        if session.rank == 1 and step.number == 3: break\n"
    view = job(TRAIN.replace("        session.log(loss=loss)\n", leaves), nodes=2).finish("failed")
    assert "rank 1 left its session after step 3 while rank 0 goes on" in view["reason"]


def test_all_ranks_may_leave_the_loop_early(job: Submit) -> None:
    leaves = "        session.log(loss=loss)\n        if step.number == 3: break\n"
    run = job(TRAIN.replace("        session.log(loss=loss)\n", leaves), nodes=3)
    assert run.finish()["step"] == 3
    assert audit(run.events).sound


def test_a_step_that_is_not_run_is_an_error(job: Submit) -> None:
    view = job(TRAIN.replace("loss = step.run(loss_fn)", "loss = 0.0"), nodes=2).finish("failed")
    assert "step 1 was not run" in view["reason"]


def test_processes_that_a_cell_started_do_not_outlive_it(job: Submit) -> None:
    source = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid)\n"
    run = job(source, nodes=2)
    run.finish()
    for pid in map(int, run.text().values()):
        assert not alive(pid), "the cell's child is still there"


def test_a_flood_of_output_is_cut_off_and_said_so(job: Submit) -> None:
    flood = "for i in range(1500):\n    print('x' * 60_000)\nprint('end')\n"
    run = job(flood, nodes=1, env={"HYPERPOD_OUTPUT_MB": "4"})
    run.finish()
    written = sum(len(e.data["text"]) for e in run.of_kind("output.written"))
    assert written < 6e6
    assert any("left out" in w["text"] for w in run.view["warnings"])
