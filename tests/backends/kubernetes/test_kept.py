"""Which pods that are kept fit a job, what a Job says of it, and what a keeper leaves behind: nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from jupyter_hyperpod.backends.kubernetes import manifests, parse
from jupyter_hyperpod.backends.kubernetes.manifests import PodUser
from jupyter_hyperpod.backends.kubernetes.warm import fitting, leftovers
from jupyter_hyperpod.backends.kubernetes.warm.fitting import FITS, KEEPS, FreePod, choose, free_pods
from jupyter_hyperpod.backends.kubernetes.warm.pod_order import PodOrder
from jupyter_hyperpod.backends.kubernetes.workloads.workload import JOB_NAME
from jupyter_hyperpod.backends.types import BASE, ELASTIC
from jupyter_hyperpod.core.errors import ProtocolError, SpecError
from jupyter_hyperpod.core.spec import JobSpec, LaunchPlan
from jupyter_hyperpod.system.processes import start_ticks
from tests.backends.kubernetes.test_manifests import PLACED, PLAIN, PLAN, RICH

OWNER = "1000 /fsx/store"
ENV = {"OMP_NUM_THREADS": "2", "PYTHONPATH": "/fsx/src", "HYPERPOD_JOB_DIR": "/fsx/store/jobs/a", "GREETING": "hello"}
FIRST = replace(PLAN, env=ENV)


def made(plan: LaunchPlan = FIRST, part: str = BASE, person: PodUser | None = None, **changed: str) -> dict[str, Any]:
    options = {**RICH, **changed}
    return manifests.job(plan, options, part, 7, 0, person or PodUser(1000, 1000), ("n9",))


def digest(plan: LaunchPlan = FIRST, owner: str = OWNER, **others: Any) -> str:
    return fitting.fits(made(plan, **others), plan, owner)


def test_what_belongs_to_a_job_alone_does_not_decide_whether_a_pod_fits() -> None:
    env = {**ENV, "HYPERPOD_JOB_DIR": "/fsx/store/jobs/b", "GREETING": "bye"}
    other = replace(FIRST, job_id="eval-abcdefgh", env=env, working_directory="/", log_directory="/fsx/logs")
    assert digest(other) == digest()
    second = manifests.job(other, RICH, BASE, 8, 3, PodUser(1000, 1000), ())
    assert fitting.fits(second, other, OWNER) == digest(), "another batch, and other nodes to be avoided"


@pytest.mark.parametrize(
    "changed",
    [
        {"image": "registry.example/train:4"},
        {"resources": "cpu=9"},
        {"claim": "team-data:/fsx"},
        {"queue": "other"},
        {"selector": "zone=a"},
        {"tolerations": "gpu"},
        {"affinity": "zone=a"},
        {"priority-class": "other"},
        {"fs-group": "5"},
        {"part": ELASTIC},
        {"person": PodUser(1001, 1000)},
        {"owner": "1000 /fsx/another store"},
        {"plan": replace(FIRST, python="/opt/other/bin/python")},
        {"plan": replace(FIRST, warm_key="edited")},
        {"plan": replace(FIRST, env={**ENV, "OMP_NUM_THREADS": "3"})},
        {"plan": replace(FIRST, env={**ENV, "PYTHONPATH": "/fsx/other"})},
    ],
)
def test_a_pod_of_another_kind_does_not_fit(changed: dict[str, Any]) -> None:
    assert digest(**changed) != digest()


@pytest.mark.parametrize("options", [PLAIN, PLACED, RICH])
def test_the_pod_of_a_keeper_is_that_of_the_job_but_for_its_program(options: dict[str, str]) -> None:
    plain = manifests.job(FIRST, options, BASE, 7, 0, PodUser(1000, 1000))
    order = PodOrder("hp-7-0", FIRST, 600.0)
    kept = fitting.kept(plain, order, ["torch", "a.b:first_use"], OWNER)
    kubernetes_validate.validate(kept, "1.33", strict=True)
    (old,), (new,) = (one["spec"]["template"]["spec"]["containers"] for one in (plain, kept))
    command = [word.replace("$$", "$") for word in new.pop("command")]
    del old["command"]
    assert command[:3] == [FIRST.python, "-m", fitting.KEEPER] and PodOrder.from_line(command[-1]) == order
    names = {one["name"] for one in new.pop("env")}
    assert {one["name"] for one in old.pop("env")} - names == {"HYPERPOD_JOB_DIR", "GREETING"}
    assert "PYTHONHASHSEED" in names
    assert kept["metadata"]["labels"].pop(FITS) == fitting.fits(
        plain | {"spec": made_spec(FIRST, options)}, FIRST, OWNER
    )
    assert kept["metadata"]["labels"].pop(fitting.OWNER) == OWNER
    assert kept["metadata"].pop("annotations") == {KEEPS: "600"}
    assert kept == plain, "and `kept` has not changed what it was given"


def made_spec(plan: LaunchPlan, options: dict[str, str]) -> Any:
    return manifests.job(plan, options, BASE, 7, 0, PodUser(1000, 1000))["spec"]


def test_an_order_is_one_line_and_anything_else_is_refused() -> None:
    order = PodOrder("hp-7-0", replace(FIRST, env={"TEXT": "two\nlines ü"}), 1.5)
    assert "\n" not in order.line() and PodOrder.from_line(order.line()) == order
    for line in ("", "[]", "{}", json.dumps({"name": "x", "plan": {"arguments": []}, "keep_s": 1}), "[" * 100_000):
        with pytest.raises(ProtocolError):
            PodOrder.from_line(line)


def job_and_pod(now_s: float = 1000.0, phase: str = "Running", **about: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A Job whose pod is kept, after its job, and the pod."""
    job = fitting.kept(made(), PodOrder("hp-7-0", FIRST, 600.0), (), OWNER)
    job["metadata"] |= {"resourceVersion": "5", **about}
    pod = {
        "metadata": {"name": "hp-7-0-x", "labels": {**job["metadata"]["labels"], JOB_NAME: "hp-7-0"}},
        "spec": {"nodeName": "n1"},
        "status": {"phase": phase},
    }
    merge(job, fitting.freed(job, now_s))
    merge(pod, fitting.of_nobody())
    return job, pod


def merge(thing: dict[str, Any], change: dict[str, Any]) -> None:
    """A merge patch, as the API does it."""
    for name, value in change.items():
        if isinstance(value, dict):
            merge(thing.setdefault(name, {}), value)
        elif value is None:
            thing.pop(name, None)
        else:
            thing[name] = value


def test_a_free_job_is_no_element_and_is_one_of_the_next_job_when_it_is_taken() -> None:
    job, pod = job_and_pod()
    assert parse.elements([job], [pod]) == {}
    assert free_pods([job], [pod]) == [FreePod("hp-7-0", "hp-7-0-x", "n1", digest(), 1600.0, "5")]
    labels = manifests.labels("eval-abcdefgh", BASE, 9)
    merge(job, fitting.taken(labels, 2, "5", 0))
    merge(pod, fitting.of_job(labels, 2))
    assert free_pods([job], [pod]) == [] and KEEPS not in job["metadata"]["annotations"]
    (element,) = parse.elements([job], [pod])["eval-abcdefgh"]
    assert (element.name, element.batch, element.node, element.state) == ("hp-9-2", 9, "n1", "Running")
    assert pod["metadata"]["labels"][manifests.JOB] == "eval-abcdefgh", "by which new pods keep off its node"


def test_a_job_of_nobody_is_soon_removed_after_its_end_and_one_of_a_job_is_there_to_tell_how_it_ended() -> None:
    job, _ = job_and_pod()
    assert job["spec"][fitting.TTL] == fitting.LEFT_S < made()["spec"][fitting.TTL]
    merge(job, fitting.taken(manifests.labels("eval-abcdefgh", BASE, 9), 2, "5", 0))
    assert job["spec"][fitting.TTL] == made()["spec"][fitting.TTL]


def test_a_pod_that_ends_or_is_gone_is_not_free() -> None:
    for job, pod in (
        job_and_pod(phase="Succeeded"),
        job_and_pod(phase="Pending"),
        job_and_pod(deletionTimestamp="now"),
    ):
        assert free_pods([job], [pod]) == []
    job, pod = job_and_pod()
    assert free_pods([job], []) == []
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert free_pods([job], [pod]) == []


def test_of_the_pods_that_fit_one_a_node_is_taken_and_first_those_that_stay_longest() -> None:
    def pod(name: str, node: str, until_s: float = 500.0, fits: str = "d") -> FreePod:
        return FreePod(name, f"{name}-x", node, fits, until_s, "1")

    free = [pod("a", "n1"), pod("b", "n1", 600.0), pod("c", "n2"), pod("d", "n3", fits="e"), pod("e", "n4", 101.0)]
    free += [pod("f", "n5"), pod("g", "n6", 700.0)]
    chosen = [one.job for one in choose(free, "d", 9, 100.0, {"n5"}, ())]
    assert chosen == ["g", "b", "c"], "not one that ends at once, nor one on a node to be avoided"
    assert [one.job for one in choose(free, "d", 2, 100.0, (), ())] == ["g", "b"]
    assert [one.job for one in choose(free, "d", 9, 100.0, (), {"n1", "n3"})] == ["b"], "other nodes get no work"


def test_pods_are_not_kept_of_jobs_that_cannot_leave_them() -> None:
    options = {**PLAIN, "keep-warm": "10min"}
    JobSpec("a", "0" * 64, backend="kubernetes", kubernetes=options)
    with pytest.raises(SpecError, match="head=pod cannot be kept"):
        JobSpec("a", "0" * 64, backend="kubernetes", kubernetes={**options, "head": "pod"})
    with pytest.raises(SpecError, match="keep-warm: it is 0"):
        JobSpec("a", "0" * 64, backend="kubernetes", kubernetes={**options, "keep-warm": "0s"})


# -- what a job leaves ------------------------------------------------------------------------------------------


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """Directories like those of a container, with a shared directory mounted below /tmp."""
    for name in ("tmp/shared", "usr/lib", "tmp/of-the-image"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("usr/lib/a.py", "tmp/of-the-image/b", "tmp/shared/mine"):
        (tmp_path / name).write_text("as it was")
    return tmp_path


def watched(container: Path) -> leftovers.ContainerFiles:
    time.sleep(leftovers.CLOCK_NS / 1e9 * 2)
    return leftovers.ContainerFiles(str(container), [str(container / "tmp")], [str(container / "tmp/shared")])


def test_what_a_job_has_written_into_scratch_directories_is_removed_and_mounts_are_left_alone(container: Path) -> None:
    files = watched(container)
    deep = container / "tmp/new/deep"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    (container / "tmp/link").symlink_to(container / "usr")
    (container / "tmp/of-the-image/beside").write_text("x")
    (container / "tmp/shared/result").write_text("x")
    deep.chmod(0)
    assert files.restore() == ""
    assert sorted(os.listdir(container / "tmp")) == ["of-the-image", "shared"]
    assert os.listdir(container / "tmp/of-the-image") == ["b"]
    assert sorted(os.listdir(container / "tmp/shared")) == ["mine", "result"]
    assert files.restore() == "", "and a second job is no different"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda root: (root / "usr/lib/a.py").write_text("x"), "usr/lib/a.py was changed"),
        (lambda root: (root / "usr/lib/new.py").write_text("x"), "was changed"),
        (lambda root: (root / "usr/lib/a.py").unlink(), "usr/lib was changed"),
        (lambda root: (root / "usr/lib/a.py").chmod(0o600), "usr/lib/a.py was changed"),
        (lambda root: (root / "tmp/of-the-image/b").write_text("x"), "tmp/of-the-image/b was changed"),
        (lambda root: (root / "tmp/of-the-image/b").unlink(), "tmp/of-the-image/b is gone"),
    ],
)
def test_an_image_that_a_job_has_changed_cannot_be_restored(
    container: Path, change: Callable[[Path], object], why: str
) -> None:
    files = watched(container)
    change(container)
    assert why in files.restore()


def test_mount_points_are_read_with_their_blanks() -> None:
    text = "36 35 98:0 / /a\\040b rw - ext4 x rw\n37 35 98:0 /x /fsx ro - nfs y ro\n"
    assert leftovers.mount_points(text) == {"/a b", "/fsx"}


# -- a keeper, without a pod ------------------------------------------------------------------------------------

JOB = """
import json, os, sys, pathlib, subprocess
def main():
    root = pathlib.Path(os.environ["ROOT"])
    seen = {name: os.environ.get(name) for name in ("JOB", "SECRET", "LEFT", "SET_BY_IMPORT")}
    seen["process"], seen["keeper"] = os.getpid(), os.getppid()
    (root / "seen").open("a").write(json.dumps(seen) + "\\n")
    os.environ["LEFT"] = "1"
    (root / "pod/dev/shm/left").write_text("x")
    (root / "pod/tmp/left").write_text("x")
    program = "import os, time; os.fork(); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    (root / "child").write_text(str(child.pid))
    if os.environ["JOB"] == "wait":
        import time; time.sleep(600)
    if os.environ["JOB"] == "held":
        import time
        while not (root / "go").exists(): time.sleep(0.01)
    if os.environ["JOB"] == "fails":
        return 3
    (root / os.environ["JOB"] / "coordinator.json").write_text('{"ended": "succeeded"}')
    return 0
"""


class Kept:
    """A keeper that runs here, with directories instead of a pod's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("pod/tmp", "pod/dev/shm", "modules"):
            (root / name).mkdir(parents=True)
        (root / "modules/kept_job.py").write_text(JOB)
        (root / "modules/sets.py").write_text("import os\nos.environ['SET_BY_IMPORT'] = '1'\n")
        self.process: subprocess.Popen[bytes] | None = None

    def order(self, job: str, keep_s: float = 60.0, **env: str) -> PodOrder:
        (self.root / job).mkdir(exist_ok=True)
        values = {"HYPERPOD_JOB_DIR": str(self.root / job), "JOB": job, **env}
        logs = str(self.root / "logs")
        return PodOrder(
            f"hp-1-{job}", LaunchPlan(job, "kept_job", "", (), values, sys.executable, "/", logs, ""), keep_s
        )

    def start(self, order: PodOrder, threads: str = "1") -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(self.root / "modules"), os.environ.get("PYTHONPATH", os.getcwd())])
        env = {**os.environ, "ROOT": str(self.root), "PYTHONPATH": paths, "OMP_NUM_THREADS": threads}
        command = [
            sys.executable,
            "-m",
            fitting.KEEPER,
            "--root",
            str(self.root / "pod"),
            "--preload",
            "sets",
            order.line(),
        ]
        with open(self.root / "stderr", "a") as said:
            self.process = subprocess.Popen(command, env=env, stderr=said)
        return self.process

    def say(self, line: str) -> subprocess.CompletedProcess[str]:
        """As `exec` in the pod does it."""
        from jupyter_hyperpod.backends.kubernetes.warm import doorway

        memory = self.root / "pod/dev/shm"
        words = [str(memory / Path(word).name) if word.startswith("/dev/shm") else word for word in doorway.command()]
        return subprocess.run(words, input=f"{line}\n", capture_output=True, text=True, timeout=60)

    def seen(self) -> list[dict[str, Any]]:
        path = self.root / "seen"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def waits(self) -> bool:
        return (self.root / "pod/dev/shm/hyperpod.next").exists()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    one = Kept(tmp_path)
    yield one
    if one.process is not None:
        one.process.kill()
        one.process.wait()


Eventually = Callable[..., Any]


def test_each_job_has_a_process_of_its_own_and_finds_nothing_of_the_one_before(
    kept: Kept, eventually: Eventually
) -> None:
    process = kept.start(kept.order("a", SECRET="hidden"))
    eventually(kept.waits, timeout_s=60)
    first = int((kept.root / "child").read_text())
    eventually(lambda: start_ticks(first) is None)
    assert not (kept.root / "pod/dev/shm/left").exists()
    told = kept.say(kept.order("b", keep_s=0.5).line())
    assert (told.returncode, told.stdout) == (0, "taken\n")
    assert not (kept.root / "pod/tmp/left").exists() or len(kept.seen()) == 2
    assert process.wait(60) == 0, "it ends by itself after its time"
    one, other = kept.seen()
    assert one["keeper"] == other["keeper"] == process.pid and one["process"] != other["process"]
    assert other | {"process": 0, "keeper": 0} == {
        "JOB": "b",
        "SECRET": None,
        "LEFT": None,
        "SET_BY_IMPORT": None,
        "process": 0,
        "keeper": 0,
    }
    assert sorted(os.listdir(kept.root / "logs")) == ["hp-1-a.log", "hp-1-b.log"]


def test_a_pod_is_not_kept_of_a_job_that_fails_that_goes_on_or_that_has_changed_the_image(
    kept: Kept, eventually: Eventually
) -> None:
    assert kept.start(kept.order("fails")).wait(60) == 3
    assert kept.start(kept.order("a", keep_s=0)).wait(60) == 0 and not kept.waits()
    assert kept.start(kept.order("a")).wait(60) == 0, "its job has ended before it began"
    assert len(kept.seen()) == 2


def test_a_pod_that_is_told_to_leave_tells_its_job_and_ends(kept: Kept, eventually: Eventually) -> None:
    process = kept.start(kept.order("wait"))
    eventually(lambda: kept.seen(), timeout_s=60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    (kept.root / "pod/tmp/left").unlink()  # the next pod would take it for a file of its image
    process = kept.start(kept.order("a"))
    eventually(lambda: "waits for a job" in (kept.root / "stderr").read_text(), timeout_s=60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0 and "this pod ends" not in (kept.root / "stderr").read_text()


def test_what_is_no_order_is_refused_and_ends_the_pod(kept: Kept, eventually: Eventually) -> None:
    process = kept.start(kept.order("held"))
    assert kept.say(kept.order("b").line()).returncode == 3, "it runs a job or begins to"
    (kept.root / "go").touch()
    eventually(kept.waits, timeout_s=60)
    told = kept.say("no order")
    assert told.stdout.startswith("refused a keeper cannot read what it was told")
    assert process.wait(60) == 0


def test_where_imports_start_threads_nothing_is_imported_before_a_fork(kept: Kept, eventually: Eventually) -> None:
    kept.start(kept.order("a"), threads="4")
    eventually(kept.waits, timeout_s=60)
    assert "beginning again without it" in (kept.root / "stderr").read_text()
    assert kept.say(kept.order("b", keep_s=0).line()).stdout == "taken\n"
    assert kept.process is not None and kept.process.wait(60) == 0 and len(kept.seen()) == 2


def test_a_keeper_does_not_begin_outside_a_pod(kept: Kept) -> None:
    command = [sys.executable, "-m", fitting.KEEPER, kept.order("a").line()]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2 and "runs in pods only" in told.stderr
