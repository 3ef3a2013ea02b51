"""Output as it is captured, errors as they are shown, journals on a full disk, progress, and what an audit says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.incidents import fold_stages
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.runtime.agent.worker_process import Output
from jupyter_hyperpod.runtime.audit import audit
from jupyter_hyperpod.runtime.context import Context
from jupyter_hyperpod.runtime.coordinator.incidents import HEAD, Incidents
from jupyter_hyperpod.runtime.progress import PHASES, WorkerProgress
from jupyter_hyperpod.runtime.protocol.facts import CellError
from jupyter_hyperpod.runtime.worker.cell import describe
from jupyter_hyperpod.storage.store import Store

# ---- output ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[Output, int]]:
    read, write = os.pipe()
    output = Output(read, "stdout")
    yield output, write
    output.close()
    try:
        os.close(write)
    except OSError:
        pass


def test_whole_lines_come_at_once_and_the_rest_is_held(
    pipe: tuple[Output, int], eventually: Callable[..., Any]
) -> None:
    output, write = pipe
    os.write(write, b"one\ntwo\nthr")
    assert output.read() == "one\ntwo\n"
    assert output.read() == "" and output.overdue() == ""
    os.write(write, b"ee\n")
    assert output.read() == "three\n"
    os.write(write, b"prompt> ")
    assert output.read() == ""
    assert eventually(output.overdue) == "prompt> "
    assert output.overdue() == ""


def test_characters_cut_in_two_and_bytes_that_are_none(pipe: tuple[Output, int]) -> None:
    output, write = pipe
    snowman = "☃\n".encode()
    os.write(write, snowman[:1])
    assert output.read() == ""
    os.write(write, snowman[1:] + b"\xff\xfe\n")
    assert output.read() == "☃\n\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}\n"


def test_last_words_without_a_newline(pipe: tuple[Output, int]) -> None:
    output, write = pipe
    os.write(write, b"a\nlast words\xe2")
    os.close(write)
    assert output.drain() == "a\nlast words\N{REPLACEMENT CHARACTER}"
    assert output.ended and output.drain() == ""


def test_draining_does_not_wait_for_a_pipe_that_somebody_holds_open(pipe: tuple[Output, int]) -> None:
    output, write = pipe
    os.write(write, b"x" * 60_000 + b"\nend")
    assert output.drain() == "x" * 60_000 + "\nend"


@given(st.lists(st.text(), max_size=6), st.data())
def test_any_text_in_any_pieces(texts: list[str], data: st.DataObject) -> None:
    read, write = os.pipe()
    output = Output(read, "stderr")
    content = "\n".join(texts).encode()
    found = ""
    start = 0
    while start < len(content):
        size = data.draw(st.integers(1, 20))
        os.write(write, content[start : start + size])
        found += output.read()
        start += size
    os.close(write)
    found += output.drain()
    assert found == content.decode()


# ---- errors ---------------------------------------------------------------------------------------------------


def described(source: str, filename: str = "<cell>") -> CellError:
    """Run a cell as a worker does and describe what it raised."""
    try:
        exec(compile(source, filename, "exec", dont_inherit=True), {"__name__": "__main__"})
    except BaseException as error:
        return describe(error, filename)
    raise AssertionError("the cell ended well")


def test_only_the_frames_of_the_cell_and_below_are_shown() -> None:
    found = described("def f(x):\n    return 1 / x\n\nf(0)\n")
    assert (found.type, found.message, found.line) == ("ZeroDivisionError", "division by zero", 2)
    text = "\n".join(found.traceback)
    assert text.count("<cell>") == 2 and "worker.py" not in text and "test_processes" not in text


def test_the_line_is_the_cells_own_even_where_a_library_raised() -> None:
    found = described("import json\n\njson.loads('{')\n")
    assert found.type == "JSONDecodeError" and found.line == 3
    assert "decoder.py" in "\n".join(found.traceback)


def test_a_syntax_error_has_its_line() -> None:
    found = described("x = 1\ny = = 2\n")
    assert found.type == "SyntaxError" and found.line == 2
    assert "test_processes" not in "\n".join(found.traceback[-3:])


def test_a_cause_is_shown_too() -> None:
    found = described("try:\n    {}['k']\nexcept KeyError as e:\n    raise RuntimeError('no k') from e\n")
    text = "\n".join(found.traceback)
    assert "KeyError: 'k'" in text and "RuntimeError: no k" in text


def test_endless_recursion_is_cut_to_a_readable_length() -> None:
    found = described("def f():\n    f()\n\nf()\n")
    assert found.type == "RecursionError" and len(found.traceback) < 150


def test_an_endless_message_is_cut() -> None:
    assert len(described("raise ValueError('x' * 1_000_000)").message) < 1_100


# ---- progress -------------------------------------------------------------------------------------------------


def test_progress_is_seen_across_a_fork() -> None:
    progress = WorkerProgress()
    assert progress.read() == (0, 0, "idle")
    pid = os.fork()
    if pid == 0:
        for phase in PHASES:
            progress.touch(phase, 7)
        os._exit(0)
    os.waitpid(pid, 0)
    assert progress.read() == (len(PHASES), 7, PHASES[-1])


# ---- incidents ------------------------------------------------------------------------------------------------


def test_a_new_coordinator_takes_up_open_incidents() -> None:
    journal: list[tuple[str, Any]] = []
    first = Incidents(lambda kind, data: journal.append((kind, data)))
    first.begin("node-1.9", "node-1", 0, "process killed", "SIGKILL", time.monotonic())
    first.fenced(2, 0)
    done = first.begin("node-2.9", "node-2", 1, "process killed", "SIGKILL", time.monotonic())
    first.fenced(3, 0)
    journal.append((journal[-1][0], journal[-1][1] | {"incident": done.name, "stage": "resumed"}))
    past = fold_stages(Event("coordinator.1", seq, time.time(), *told) for seq, told in enumerate(journal, 1))
    second = Incidents(lambda kind, data: journal.append((kind, data)), past)
    assert [incident.name for incident in second.open] == ["i1"]
    second.resumed(5, 2)
    assert journal[-1][1]["incident"] == "i1" and journal[-1][1]["stage"] == "resumed"
    assert second.begin("node-3.9", "node-3", 0, "node lost", "reset", time.monotonic()).name == "i3"


def test_who_does_not_return_is_missed_since_the_coordinator_before_was_lost() -> None:
    """Nobody heard the members from then on; a new coordinator is born later, and waits for them."""
    journal: list[Event] = []

    def write(kind: str, data: Any) -> None:
        journal.append(Event("coordinator.1", len(journal) + 1, time.time(), kind, data))

    Incidents(write).begin("head", HEAD, None, "coordinator killed", "SIGKILL", time.monotonic() - 5)
    born_s = time.monotonic()
    second = Incidents(write, fold_stages(journal))
    second.begin("node-1.9", "node-1", 0, "node lost", "it did not return", second.unheard_since_s(born_s))
    first, missed = fold_stages(journal)
    assert missed["detection_s"] >= 5 and missed["started_s"] == pytest.approx(first["started_s"], abs=0.05)
    assert Incidents(write).unheard_since_s(born_s) == born_s


# ---- audit ----------------------------------------------------------------------------------------------------


def commit(step: int, shares: list[list[int]], loss: str = "0x1p0", seq: int = 0, **more: Any) -> Event:
    assignment = [[f"m{rank}", share] for rank, share in enumerate(shares)]
    data = {"step": step, "generation": 1, "loss_hex": loss, "assignment": assignment, "redone": 0, "world_size": 2}
    return Event("worker", seq or step, float(seq or step), "step.committed", data | more)


OPENED = Event("c", 1, 0.0, "session.opened", {"total_steps": 3, "micro_batches": 4})
GOOD = [commit(step, [[0, 1], [2, 3]]) for step in (1, 2, 3)]


def closed(step: int = 3) -> Event:
    return Event("c", 2, 99.0, "session.closed", {"step": step, "digest": "d"})


def test_a_sound_journal() -> None:
    found = audit([OPENED, *reversed(GOOD), closed()])
    assert found.sound and found.digest == "d"
    assert (found.steps, found.micro_batches, found.members, found.repeated) == (3, 12, 2, 0)
    assert (
        found.sentence == "3 steps, 12 micro-batches by 2 members: every micro-batch of every step counts exactly once"
    )


def test_the_same_step_told_twice_is_sound_where_it_agrees() -> None:
    again = commit(2, [[0, 1, 2, 3]], seq=50, generation=2, redone=2)
    found = audit([OPENED, *GOOD, again, closed()])
    assert found.sound and (found.steps, found.repeated, found.redone) == (3, 1, 2)


def test_what_a_member_commits_after_it_was_fenced_does_not_count() -> None:
    lost = Event("c", 9, 2.5, "member.lost", {"member": "node-1.7", "node": "node-1", "rank": 0})
    late = replace(commit(3, [[0, 1, 2, 3]], "0x1p9", seq=4), writer="worker-node-1.7.ab12", time_s=2.6)
    early = replace(late, seq=3, time_s=2.4, data=GOOD[2].data)
    other = replace(late, writer="worker-node-1.77.ab12")
    assert audit([OPENED, *GOOD, lost, late, closed()]).sound
    assert audit([OPENED, *GOOD[:2], early, lost, closed()]).steps == 3, "what it committed before does"
    assert not audit([OPENED, *GOOD[:2], lost, late, closed()]).sound
    assert not audit([OPENED, *GOOD, lost, other, closed()]).sound


def test_a_cell_that_goes_back_to_a_checkpoint_computes_other_steps() -> None:
    back = Event("c", 8, 4.5, "checkpoint.loaded", {"step": 1, "session": 1, "generation": 2, "asked": True})
    # the clock of the coordinator is ahead
    others = [commit(step, [[0, 1], [2, 3]], "0x1p5", seq=step + 2, generation=2) for step in (2, 3)]
    found = audit([OPENED, *GOOD, back, *others, closed()])
    assert found.sound and (found.steps, found.micro_batches, found.repeated) == (3, 12, 0)
    assert audit([OPENED, *GOOD, back, closed(1)]).sound, "it may end there"
    thinned = [GOOD[0], commit(3, [[0, 1], [2, 3]], steps=2)]  # the last record stands for step 2, too
    found = audit([OPENED, *thinned, replace(back, data=back.data | {"step": 2}), others[1], closed()])
    assert found.sound and (found.steps, found.micro_batches) == (3, 12)
    fault = replace(back, data=back.data | {"asked": False})
    assert "was committed with loss" in audit([OPENED, *GOOD, fault, *others, closed()]).problems[0]


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([commit(1, [[0, 1], [3]])], "step 1 lacks micro-batches [2]"),
        ([commit(1, [[0, 1], [1, 2, 3]])], "step 1 counts micro-batches [1] more than once"),
        ([commit(1, [[0, 1], [2, 3, 4]])], "step 1 counts micro-batches [4], which do not exist"),
        ([GOOD[0], commit(1, [[0, 1, 2, 3]], "0x1p1", seq=9)], "step 1 was committed with loss 0x1p0 and again with"),
        ([GOOD[0], GOOD[2]], "steps [2] were never committed"),
        ([*GOOD[:2], closed(3)], "a session closed at step 3, the last one committed is 2"),
    ],
)
def test_contradictions_are_named(events: list[Event], problem: str) -> None:
    found = audit([OPENED, *events])
    assert not found.sound and problem in found.problems[0] and problem in found.sentence


def test_sessions_are_audited_one_by_one() -> None:
    second = Event("c", 3, 100.0, "session.opened", {"total_steps": 1, "micro_batches": 2})
    more = [second, commit(1, [[0], [1]], "0x1p5", seq=101, session=2)]
    found = audit([OPENED, *GOOD, closed(), *more])
    assert found.sound and (found.sessions, found.steps, found.micro_batches) == (2, 4, 14)


def test_nothing_to_audit() -> None:
    assert audit([]).sentence == "no step was committed: there is nothing to audit"


def test_a_pid_that_is_given_again_after_a_boot_makes_no_second_worker_of_one_name(
    store: Store, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    job = store.create_job(JobSpec("job", store.put_cell("pass"), nodes=1))
    for name, value in {"JOB_DIR": job.path, "NODE": "n1.1-0", "CELL": "cell.py"}.items():
        monkeypatch.setenv(f"HYPERPOD_{name}", str(value))
    first = Context.from_environment()
    eventually(lambda: Context.from_environment().member(77) != first.member(77))
    assert first.member(77).rsplit(".", 2)[0] == "n1.1-0" and first.member(77).endswith(".77")
