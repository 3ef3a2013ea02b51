"""Cells as people write them: what they print, how they fail, and what the job says of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jupyter_hyperpod.notebook.showing import ShownDisplays
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


def test_rank_0_shows_the_last_value_and_every_rank_what_it_displays(job: Submit) -> None:
    run = job("import os\nrank = int(os.environ['RANK'])\ndisplay('of', rank)\n{'six': 6 * 7, 'rank': rank}\n", nodes=2)
    run.finish()
    assert run.text() == {0: "'of'\n0\n{'six': 42, 'rank': 0}\n", 1: "'of'\n1\n"}


def test_a_semicolon_and_none_show_nothing(job: Submit) -> None:
    for source in ("6 * 7;  # quiet\n", "None\n", "x = 3\n", "print('x')\n", "def f():\n    7\n"):
        run = job(source, nodes=1)
        run.finish()
        assert run.text() == ({0: "x\n"} if "print" in source else {}), source


def test_who_is_rank_0_at_the_end_shows_the_last_value(job: Submit) -> None:
    run = job(TRAIN + "\n'the end'\n", nodes=2, env={"PAUSE_S": "0.03"})
    run.until_step(3)
    first = run.view["members"][0]["member"]
    run.kill(0)
    run.finish()
    ended = [event for event in run.of_kind("output.written") if "'the end'" in event.data["text"]]
    assert len(ended) == 1 and ended[0].data["member"] != first


def test_a_picture_is_shown_by_rank_0_and_told_of_by_the_others(job: Submit) -> None:
    source = (
        "import matplotlib.pyplot as plt\nfor _ in range(2):\n    plt.plot([1, 2])\n    plt.show()\nplt.figure();\n"
    )
    run = job(source, nodes=2, env={"MPLBACKEND": "module://matplotlib_inline.backend_inline"})
    run.finish()
    for rank, text in run.text().items():
        assert text.count("<Figure size 640x480 with ") == 3
        shown = [e.data["shown"] for e in run.of_kind("output.written") if e.data["rank"] == rank]
        assert [set(one.get("data", ())) for one in shown] == [{"text/plain", "image/png"} if rank == 0 else set()] * 3
    assert run.text("stderr") == {}


DISPLAYING = TRAIN.replace(
    "        session.log(loss=loss)",
    "        display({'step': step.number})",
)


def test_displays_go_on_with_another_rank_0_and_none_is_repeated(job: Submit) -> None:
    run = job(DISPLAYING, nodes=3)
    run.until_step(5)
    run.kill(0)
    run.finish()
    seen = ShownDisplays()
    events = [event for event in run.of_kind("output.written") if "shown" in event.data]
    found = [e.data["shown"]["data"]["text/plain"] for e in events if seen.is_new(e.data["member"], e.data["shown"])]
    assert found == [str({"step": number}) for number in range(1, 25)]
    assert len({event.data["member"] for event in events if event.data["shown"]["action"]}) == 2


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
    # a spare, which has no rank yet, prints what its cell prints behind the first session
    one, three = ({rank: text for rank, text in run.text().items() if rank is not None} for run in (alone, together))
    assert len(three) == 3 and set(three.values()) == {one[0]}
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


def test_a_flood_of_output_fills_the_journal_to_its_share_and_then_files_of_its_own(job: Submit) -> None:
    flood = "for i in range(1500):\n    print(i, 'x' * 60_000)\nprint('the end')\n"
    run = job(flood, nodes=1, env={"HYPERPOD_OUTPUT_MB": "4"}, output_cap=8_000_000)
    run.finish()
    written = sum(len(e.data["text"]) for e in run.of_kind("output.written"))
    assert written < 6e6
    (warning,) = [w["text"] for w in run.view["warnings"]]
    assert warning.startswith("further output of rank 0 is in ")
    assert warning.endswith(f"`jupyter hyperpod logs {run.job_id} --rank 0` shows it")
    files = list((run.store.job(run.job_id).path / "output").iterdir())
    assert 4e6 < sum(file.stat().st_size for file in files) <= 8e6
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(run.store.root), "logs", run.job_id]
    done = subprocess.run([*command, "--rank", "0"], capture_output=True, text=True, timeout=120)
    firsts = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("x")]
    numbers = [int(word) for word in firsts if word.isdecimal()]  # the oldest that is kept may begin within a line
    assert done.stdout.endswith("\nthe end\n")
    assert numbers == list(range(numbers[0], 1500)) and 50 < len(numbers) < 140, "the newest"
    assert "of older output were dropped here, up to " in done.stderr


def test_who_is_lost_between_two_sessions_leaves_no_gap_in_the_ranks(job: Submit) -> None:
    slow = TWO_SESSIONS.replace("import torch", "import time, torch")
    source = slow.replace("    print(", "    time.sleep(4.0 * (turn == 0))\n    print(")
    run = job(source, nodes=3, spares=0)
    run.until_event("session.closed")
    run.kill(1)
    run.finish()
    formed = run.of_kind("generation.formed")[-1].data
    assert [member["rank"] for member in formed["members"]] == [0, 1], run.story()
    assert "did not form" not in run.story() and "no rank may be missing" in formed["reason"]
    assert run.of_kind("step.committed")[-1].data["world_size"] == 2
    report = audit(run.events)
    assert (report.sound, report.sessions, report.steps) == (True, 2, 10), report


SECOND = """
import torch, jupyter_hyperpod as hp
data = [torch.randn(4) for _ in range(16)]
model = torch.nn.Linear(4, 1)
def train(loss_function, {arguments}):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {begin}
        for step in session.steps(4):
            step.run(loss_function)
            {within}
def loss_function(batch):
    return model(batch).square().mean()
try:
    train(loss_function)
except StopIteration:
    pass
train(loss_function)
"""
WITH = "with hp.Session(model, optimizer, data, global_batch=8, micro_batch=4) as session:"
HELD = "all_sessions.append(session := hp.Session(model, optimizer, data, global_batch=8, micro_batch=4))\n    if True:"


@pytest.mark.parametrize(
    ("begin", "within", "words"),
    [
        (WITH, "if step.number == 3: raise StopIteration", "left by StopIteration, which the cell caught"),
        (HELD, "pass", "while the one with the loop of line 9 is open"),
    ],
    ids=["left by an error", "never closed"],
)
def test_a_session_that_begins_before_the_last_has_ended_is_refused(
    job: Submit, begin: str, within: str, words: str
) -> None:
    cell = SECOND.format(begin=begin, within=within, arguments="all_sessions=[]")
    assert words in job(cell, nodes=2).finish("failed")["reason"]
