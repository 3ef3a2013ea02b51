"""A job in another environment than the cluster's begins as fast as one of its own, and recovers to the same bits."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_hyperpod.bench.laboratory import wait_for_idle
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.processes import start_ticks
from tests.runtime.conftest import Run, Submit, alive
from tests.test_foreign_environments import TREE, make_environment

Wait = Callable[..., object]
WHERE = "import sys\nprint(sys.prefix)\n"
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of another environment with the same packages."""
    found = [folder for folder in sys.path if folder.endswith("site-packages")]
    return make_environment(tmp_path_factory.mktemp("environment") / "venv", [str(TREE), *found])


def first_line_s(job: Submit, store: Store, python: str) -> float:
    """Seconds from the submit until the first line is there; it has to come from that environment."""
    run = job(WHERE, nodes=2, spares=0, python=python)
    run.finish()
    wait_for_idle(store)
    (submitted,) = run.of_kind("job.submitted")
    said = run.of_kind("output.written")[0]
    assert said.data["text"].strip() == str(Path(python).parents[1])
    return said.time_s - submitted.time_s


def test_its_later_cells_begin_as_fast_as_the_clusters_own(job: Submit, shared_cluster: Store, other: str) -> None:
    cold_s = first_line_s(job, shared_cluster, other)
    pairs = [
        (first_line_s(job, shared_cluster, sys.executable), first_line_s(job, shared_cluster, other)) for _ in range(5)
    ]
    own_s, other_s = (min(column) for column in zip(*pairs, strict=True))  # a busy machine only makes it longer
    assert other_s < cold_s / 2
    assert other_s < 2 * own_s + 0.3


def test_it_loses_a_node_and_keeps_the_bits(job: Submit, reference: Run, other: str) -> None:
    run = job(nodes=3, python=other, env={"PAUSE_S": "0.03"})
    run.until_step(5)
    victim = run.worker_pid(1)
    run.kill_node(1)
    run.until(lambda: not alive(victim), 60.0)
    run.until_step(12)
    run.kill(0)
    run.finish()
    run.same_as(reference)


def test_a_node_that_stands_still_costs_no_bit(job: Submit, reference: Run, other: str) -> None:
    run = job(env={"PAUSE_S": "0.03"}, python=other)
    run.until_step(6)
    run.stop_node(1)
    run.finish()
    assert run.view["incidents"], "its member stood still, too"
    run.same_as(reference)


def test_the_end_of_the_preloaded_interpreter_costs_no_bit(
    job: Submit, reference: Run, other: str, eventually: Wait
) -> None:
    run = job(env={"PAUSE_S": "0.03"}, python=other)
    run.until_step(4)
    (zygote,) = preloaded(other)
    os.kill(zygote, signal.SIGKILL)
    eventually(lambda: start_ticks(zygote) is None)
    run.kill_node(1)
    run.finish()
    run.same_as(reference)


def preloaded(python: str) -> list[int]:
    """The preloaded interpreters of an environment, without what they forked: that has another parent."""
    words = {int(name): command(name) for name in os.listdir("/proc") if name.isdecimal()}
    ours = {pid for pid, line in words.items() if line[0] == python and "--listener" in line}
    return [pid for pid in ours if parent(pid) not in ours and command(str(parent(pid)))[0] == sys.executable]


def command(pid: str) -> list[str]:
    """The words of a process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def parent(pid: int) -> int:
    """The process that started another one, 0 where that has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.parametrize("own", [True, False])
def test_what_an_interpreter_reads_as_it_begins_is_there_in_time(job: Submit, other: str, own: bool) -> None:
    """A forked process has begun before: it begins again. Hashes of text are alike in all processes."""
    python = sys.executable if own else other
    source = "import sys\nprint(sys.flags.dont_write_bytecode, sys.flags.hash_randomization)\n"
    run = job(source, nodes=1, python=python, env={"PYTHONDONTWRITEBYTECODE": "1"})
    run.finish()
    assert run.text() == {0: "1 0\n"}


def test_what_a_preloaded_library_has_read_is_read_again(job: Submit, tmp_path: Path) -> None:
    """The temporary folder, the time zone, and the processor's instructions that torch may use."""
    source = "import tempfile, time, torch\n"
    source += (
        "print(tempfile.gettempdir(), time.strftime('%Z', time.localtime(0)), torch.backends.cpu.get_cpu_capability())"
    )
    env = {"TMPDIR": str(tmp_path), "TZ": "XYZ-3", "ATEN_CPU_CAPABILITY": "default"}
    run = job(source, nodes=1, env=env)
    run.finish()
    assert run.text() == {0: f"{tmp_path} XYZ DEFAULT\n"}
