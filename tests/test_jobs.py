"""Submitting, listing and commanding jobs; what bad input is told. Real processes where a job has to run."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_hyperpod.control import cluster, jobs, report
from jupyter_hyperpod.control.cluster import daemon_environment
from jupyter_hyperpod.core.errors import Conflict, NotFound, SpecError, StoreError
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import JobStore, Store
from jupyter_hyperpod.supervisor.launch import launch_plan

from .cells import train

Wait = Callable[..., object]


def written(store: Store, name: str = "job", **fields: object) -> JobStore:
    """A job as submit leaves it, without a cluster to run it."""
    complete = jobs.complete({"name": name, **fields})
    return jobs._create(store, jobs.make_spec(complete, store.put_cell("pass")))


@pytest.mark.parametrize(
    ("source", "fields", "message"),
    [
        ("", {}, "is empty"),
        ("  \n\n", {}, "is empty"),
        ("x = (\n", {}, "line 1"),
        ("pass", {"name": "../../etc"}, "job name '../../etc' is not allowed"),
        ("pass", {"elastic": "4:2"}, "elastic range 4:2 is impossible"),
        ("pass", {"elastic": "two"}, "not of the form MIN:MAX"),
        ("pass", {"nodes": 9, "elastic": "2:4"}, "outside the elastic range 2:4"),
        ("pass", {"nodes": 0}, "nodes is 0"),
        ("pass", {"backend": "nomad"}, "backend 'nomad' is not available"),
        ("pass", {"nodse": 3}, "'nodse' is no field of a job .did you mean nodes"),
        ("pass", {"env": {"A=B": "c"}}, "environment variable number 1 has a name that is not allowed"),
    ],
)
def test_a_request_that_cannot_run_is_refused_and_leaves_nothing(
    store: Store, source: str, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        jobs.submit(store, source, fields)
    assert store.job_ids() == []
    assert not cluster.connectable(store)


def test_a_cell_of_100_mb_is_refused_before_it_is_compiled(store: Store) -> None:
    source = "this is no Python" * (100 * 2**20 // 17)
    with pytest.raises(SpecError, match="the limit is 16 MiB"):
        jobs.submit(store, source)
    assert list(store.cells.iterdir()) == []


def test_submitting_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "IPython", "tornado", "asyncio", "jupyter_server")
    code = f"import sys, jupyter_hyperpod.control.jobs; print([m for m in sys.modules if m.split('.')[0] in {heavy}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_full_disk_refuses_the_job_and_leaves_no_half_made_one(store: Store) -> None:
    """The limit on file sizes makes every write fail as a full disk does, without needing one."""
    script = (
        "import resource, sys\n"
        "from jupyter_hyperpod.control import jobs\n"
        "from jupyter_hyperpod.core.errors import StoreError\n"
        "from jupyter_hyperpod.storage.store import Store\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))\n"
        "try:\n"
        "    jobs.submit(Store(sys.argv[1]), 'pass', name='job')\n"
        "except StoreError as error:\n"
        "    print('refused:', error)\n"
    )
    digest = store.put_cell("pass")
    sample = written(store, working_directory="/")
    (journal,) = sample.events.glob("control.*")
    too_little_for_the_journal = journal.stat().st_size - 20  # times are not always written with as many digits
    assert too_little_for_the_journal > (sample.path / "spec.json").stat().st_size
    store.remove_job(sample.id)
    # without it, the interpreter caches cut-off byte code where the limit falls into a file
    environment = daemon_environment({"PYTHONDONTWRITEBYTECODE": "1"})
    for room in (0, 100, too_little_for_the_journal):
        command = [sys.executable, "-c", script, str(store.root), str(room)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", check=True)
        assert done.stdout.startswith("refused: cannot"), done.stdout + done.stderr
        assert list(store.jobs.iterdir()) == [], room
    assert store.cell(digest) == "pass"


def test_the_launch_plan_says_where_everything_is_and_holds_no_secret(store: Store) -> None:
    mount = MountSpec("data", "/home/me/data", "/fsx/data")
    job = written(store, env={"A": "b", "HYPERPOD_JOB_ID": "not yours"}, threads=2, mounts=(mount,))
    plan = launch_plan(store, job, job.spec(), "digest")
    assert plan.env["PYTHONHASHSEED"] == "0", "or each process starts again to have it"
    assert plan.env["HYPERPOD_JOB_ID"] == job.id and "A" not in plan.env and plan.env["OMP_NUM_THREADS"] == "2"
    assert Path(plan.env["HYPERPOD_CELL"]).read_text() == "pass"
    assert json.loads(plan.env["HYPERPOD_MOUNTS"]) == {"shared": str(store.shared), "data": "/fsx/data"}
    assert (plan.module, plan.head_module) == (
        "jupyter_hyperpod.runtime.agent.main",
        "jupyter_hyperpod.runtime.coordinator.main",
    )
    assert job.secret().hex() not in repr(plan) and repr(job.secret()) not in repr(plan)


def test_a_corrupt_line_becomes_a_warning_and_the_rest_is_read(store: Store) -> None:
    job = written(store)
    with event_writer(job.events, "head") as journal:
        journal.append("job.state", {"state": "running", "reason": "so it is"})
    (job.events / "broken.00000000.jsonl").write_text('{"half": \nnot json\n')
    view = jobs.job_view(store, job.id)
    assert view["state"] == "running"
    assert len(view["warnings"]) == 2 and "journal:" in view["warnings"][0]["text"]


def test_the_list_survives_jobs_that_cannot_be_read(store: Store) -> None:
    good = written(store, "good")
    broken = written(store, "broken")
    next(iter(broken.events.glob("*.jsonl"))).write_text(
        '{"v":1,"writer":"w","seq":1,"time_s":1,"kind":"job.submitted","data":{"id":"x","spec":7}}\n'
    )
    (store.jobs / "not a job").mkdir()
    views = {view["id"]: view for view in jobs.list_jobs(store)}
    assert set(views) == {good.id, broken.id}
    assert views[good.id]["warnings"] == [] and "cannot be shown" in views[broken.id]["warnings"][0]["text"]


def test_requests_that_do_not_fit_the_jobs_state(store: Store) -> None:
    job = written(store, nodes=2)
    with pytest.raises(Conflict, match="has not started yet"):
        jobs.fault(store, job.id, "kill", rank=0)
    with pytest.raises(SpecError, match="fault 'explode' is unknown; expected one of kill, hang"):
        jobs.fault(store, job.id, "explode", rank=0)
    with pytest.raises(SpecError, match="exactly one aim"):
        jobs.fault(store, job.id, "kill")
    with pytest.raises(SpecError, match="nan cannot be aimed at a node; expected rank"):
        jobs.fault(store, job.id, "nan", node="node-1")
    with pytest.raises(SpecError, match="a factor and a duration belong to throttle, not to kill"):
        jobs.fault(store, job.id, "kill", rank=0, factor=2)
    with pytest.raises(SpecError, match="a factor of 1 is impossible"):
        jobs.fault(store, job.id, "throttle", rank=0, factor=1)
    with pytest.raises(SpecError, match="3 nodes is outside the range 1:2"):
        jobs.scale(store, job.id, 3)
    with pytest.raises(SpecError, match="not of the form"):
        jobs.stop(store, "../secret")
    with pytest.raises(NotFound, match="no job job-aaaaaaaa"):
        jobs.stop(store, "job-aaaaaaaa")
    with event_writer(job.events, "head") as journal:
        journal.append("job.state", {"state": "succeeded", "reason": "all done"})
    for act in (lambda: jobs.stop(store, job.id), lambda: jobs.scale(store, job.id, 1)):
        with pytest.raises(Conflict, match="has already ended: succeeded: all done"):
            act()


def test_waiting_says_where_the_job_stands(store: Store) -> None:
    job = written(store)
    with pytest.raises(
        TimeoutError, match=f"{job.id} is pending after 0.05 s, expected failed or stopped or succeeded"
    ):
        jobs.wait(store, job.id, timeout_s=0.05)


def test_a_job_that_never_fits_fails_with_a_clear_reason(shared_cluster: Store) -> None:
    job_id = jobs.submit(shared_cluster, "pass", nodes=7)
    view = jobs.wait(shared_cluster, job_id, timeout_s=60)
    assert view["state"] == "failed"
    assert "needs at least 7 nodes, this cluster has 4 (and 1 held back as spare)" in view["reason"]


@pytest.mark.quick
def test_a_second_job_waits_for_the_first_and_then_runs(shared_cluster: Store, eventually: Wait) -> None:
    sleep = "import time, os\nwhile not os.path.exists(os.environ['HYPERPOD_JOB_DIR'] + '/go'): time.sleep(0.01)\n"
    first = jobs.submit(shared_cluster, sleep, nodes=3, name="first")
    jobs.wait(shared_cluster, first, {"running"}, 60)
    second = jobs.submit(shared_cluster, "print('here')", nodes=2, name="second")
    third = jobs.submit(shared_cluster, "pass", nodes=1, name="third")
    eventually(lambda: "waits behind" in jobs.job_view(shared_cluster, third)["reason"])
    assert f"waits for 1 node more: needs 2 of 4, held by {first}" in jobs.job_view(shared_cluster, second)["reason"]
    (shared_cluster.jobs / first / "go").touch()
    states = [jobs.wait(shared_cluster, job_id, timeout_s=60)["state"] for job_id in (first, second, third)]
    assert states == ["succeeded"] * 3


def test_a_running_job_says_what_keeps_it_from_growing(shared_cluster: Store, eventually: Wait) -> None:
    """In the list, the line of progress and the table; what it said is gone once it has grown, or wants no more."""
    sleep = "import time, os\nwhile not os.path.exists(os.environ['HYPERPOD_JOB_DIR'] + '/go'): time.sleep(0.01)\n"
    first = jobs.submit(shared_cluster, sleep, nodes=2, spares=0, name="first")
    jobs.wait(shared_cluster, first, {"running"}, 60)
    second = jobs.submit(shared_cluster, train(), nodes=2, elastic="1:4", spares=0, name="second")
    eventually(lambda: jobs.job_view(shared_cluster, second)["step"])
    jobs.scale(shared_cluster, second, 3)
    why = f"only spares are free, the others are held by {first}"
    told = f"runs on 2 nodes and waits for 1 more: {why}"
    eventually(lambda: jobs.job_view(shared_cluster, second)["reason"] == told)
    view = jobs.job_view(shared_cluster, second)
    assert f" · {told}" in report.progress_line(view)
    assert "2 of 3 (1:4)" in report.jobs_table([view]).render()
    jobs.scale(shared_cluster, second, 2)
    eventually(lambda: "target is 2 nodes" in jobs.job_view(shared_cluster, second)["reason"])
    jobs.scale(shared_cluster, second, 3)
    eventually(lambda: jobs.job_view(shared_cluster, second)["reason"] == told)
    (shared_cluster.jobs / first / "go").touch()
    eventually(lambda: jobs.job_view(shared_cluster, second)["world_size"] == 3)
    grown = jobs.job_view(shared_cluster, second)
    assert (grown["waits"], grown["state"]) == ("", "running") and "3 of 3 members" in grown["reason"]
    jobs.stop(shared_cluster, second)
    assert jobs.wait(shared_cluster, second, timeout_s=60)["waits"] == ""


def test_a_waiting_job_can_be_stopped_before_it_starts(shared_cluster: Store, eventually: Wait) -> None:
    first = jobs.submit(shared_cluster, "import time; time.sleep(1000)", nodes=4, name="first")
    jobs.wait(shared_cluster, first, {"running"}, 60)
    second = jobs.submit(shared_cluster, "pass", nodes=1, name="second")
    eventually(lambda: jobs.job_view(shared_cluster, second)["reason"])
    jobs.stop(shared_cluster, second, "not needed")
    view = jobs.wait(shared_cluster, second, timeout_s=60)
    assert (view["state"], view["reason"]) == ("stopped", "not needed")
    jobs.stop(shared_cluster, first)
    assert jobs.wait(shared_cluster, first, timeout_s=60)["state"] == "stopped"
    free = lambda: all(node["state"] == "idle" for node in cluster.status(shared_cluster)["nodes"])  # noqa: E731
    eventually(free)


@pytest.mark.quick
def test_a_job_on_a_warm_cluster_is_forked_from_preloaded_interpreters(shared_cluster: Store) -> None:
    cluster.wait_ready(shared_cluster)
    source = "import sys, os; print(os.environ['RANK'], 'torch.optim.adamw' in sys.modules)"
    job_id = jobs.submit(shared_cluster, source, nodes=4)
    view = jobs.wait(shared_cluster, job_id, timeout_s=60)
    assert sorted(line["text"] for line in view["output"]) == [f"{rank} True\n" for rank in range(4)]


def test_the_limit_used_for_a_full_disk_really_refuses(tmp_path: Path) -> None:
    code = (
        "import resource,sys; resource.setrlimit(resource.RLIMIT_FSIZE,(0,resource.RLIM_INFINITY));"
        "from pathlib import Path; from jupyter_hyperpod.storage.store import write_private;"
        "write_private(Path(sys.argv[1]), b'x')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], capture_output=True, text=True)
    assert StoreError.__name__ in done.stderr and list(tmp_path.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
