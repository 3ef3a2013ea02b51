"""Fixtures every test may use, and the rule every test obeys: leave no process behind.

store            an empty job store in a temporary directory; $JUPYTER_HYPERPOD_STORE names it
cluster          the same store with a real local cluster on it, stopped and verified gone afterwards
shared_cluster   one store with one cluster for all tests that only need some cluster
eventually       eventually(condition, timeout_s=60): wait for a condition with a bound, never for a time
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from jupyter_hyperpod.core import vocabulary
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.storage.journal_search import read_kinds
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store
from tests import phases
from tests.leaks import command_line, environments, setting, wait_until_gone

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started the tests in the background

if TYPE_CHECKING:
    from tests.support.kubernetes import Testbed as KubernetesTestbed
    from tests.support.slurm import Testbed

pytest_plugins = ["pytest_jupyter.jupyter_server", "tests.s3.fixtures"]

T = TypeVar("T")
SHARED_MARK = "TEST_SHARED_CLUSTER_MARK"
CLUSTERS = {"cluster", "shared_cluster", "switched_on"}
REAL_THINGS = ("slurm", "netns", "s3", "fuse", "browser", "wheel", "kubernetes", "gpu")
OF_KUBERNETES = {"kubernetes", "test_contract.py"}  # the rest of the tests takes half a minute to collect
MARK = "TEST_PYTEST_MARK"  # of this process alone: several may run beside each other
os.environ[MARK] = f"pytest-{secrets.token_hex(6)}"
FAILED = os.environ.pop("TEST_FAILED", "")  # a file for the names of tests that fail: `.ci/beside` tries them again
_MARKED, _SHARED = setting(MARK, os.environ[MARK]), setting(SHARED_MARK)

settings.register_profile(
    "default", deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down what fails, each test once."""
    if FAILED and report.failed:
        known = Path(FAILED).read_text().splitlines() if Path(FAILED).exists() else []
        if report.nodeid not in known:
            Path(FAILED).write_text("".join(f"{name}\n" for name in [*known, report.nodeid]))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what starts a cluster or needs a real thing: `make test` runs the others and those marked quick."""
    for item in items:
        if item.get_closest_marker("kubernetes") is not None and not OF_KUBERNETES.intersection(item.path.parts):
            raise pytest.UsageError(f"{item.nodeid}: `make test-kubernetes` looks for tests in {OF_KUBERNETES} alone")
        starts_cluster = not CLUSTERS.isdisjoint(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("quick") is None and starts_cluster:
            item.add_marker("slow")
        if any(
            item.get_closest_marker(name) for name in (*REAL_THINGS, "timeout")
        ):  # fast ones need no bound of their own
            item.add_marker("slow")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty job store that is also the default one."""
    root = tmp_path / "store"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(root))
    return Store(root).prepare()


@pytest.fixture
def cluster(store: Store) -> Iterator[Store]:
    """A store with a cluster of its own: 4 nodes and a spare."""
    with pytest.MonkeyPatch.context() as patch:
        yield from running_cluster(store, patch, "TEST_CLUSTER_MARK")


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with a cluster that other tests use too: leave its nodes as you found them."""
    store = Store(tmp_path_factory.mktemp("shared") / "store").prepare()
    with pytest.MonkeyPatch.context() as patch:
        yield from running_cluster(store, patch, SHARED_MARK)


def running_cluster(
    store: Store, patch: pytest.MonkeyPatch, variable: str, ready: bool = True, **shape: Any
) -> Iterator[Store]:
    """Start a cluster whose processes carry a mark in `variable`; stop it and insist that all are gone."""
    from jupyter_hyperpod.control import cluster as control

    mark = f"cluster-{secrets.token_hex(6)}"
    patch.setenv(variable, mark)
    try:
        control.ensure_started(store, **shape)
        patch.delenv(variable)
        if ready:
            control.wait_ready(store)
        yield store
    finally:
        with suppress(ClusterError):  # a test may have stopped it already
            control.stop(store)
        left = wait_until_gone(mark, 60, variable)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"the cluster was stopped but these went on: {left}"
    assert unlike_the_table(store) == [], "events were written otherwise than core/vocabulary.py says"
    assert unlisted_phases(store) == [], "a coordinator went another way than its table of transitions"


def unlike_the_table(store: Store) -> list[str]:
    """What real processes wrote into the journals of a store otherwise than the table of events says."""
    found: dict[str, None] = {}
    for directory in (store.cluster_events, *(store.job(job_id).events for job_id in store.job_ids())):
        for event in read_kinds(directory, vocabulary.EVENTS):
            found.update(dict.fromkeys(vocabulary.violations(event.kind, event.data)))
    return list(found)[:20]


def unlisted_phases(store: Store) -> list[str]:
    """Where a coordinator journaled a phase that the one before does not lead to."""
    found = []
    for job_id in store.job_ids():
        found += phases.unlisted(read_kinds(store.job(job_id).events, {"phase.changed"}))
    return found


@pytest.fixture(scope="session")
def switched_on() -> Iterator[Testbed]:
    """A real SLURM, one for all tests that need it: a controller, four nodes and two login hosts.

    Skips where there can be none.
    """
    from tests.support.slurm import Testbed, missing

    if reason := missing():
        pytest.skip(f"NO TEST AGAINST SLURM RUNS HERE: {reason}")
    with Testbed(4, {SHARED_MARK: "slurm"}, logins=2) as bed:
        yield bed


@pytest.fixture(scope="session")
def shared_testbed() -> Iterator[KubernetesTestbed]:
    """A real Kubernetes of two nodes, one for all tests that need it.

    They are never skipped: where the programs are not built, or this machine lacks something, the tests fail and say
    what to do.
    """
    from tests.support.kubernetes import Testbed

    with Testbed(2, {SHARED_MARK: "kubernetes"}) as bed:
        yield bed


@pytest.fixture
def kubernetes(shared_testbed: KubernetesTestbed) -> Iterator[KubernetesTestbed]:
    """Both nodes are ready when a test begins, and nothing of the team's runs."""
    from tests.support.kubernetes import TEAM

    yield shared_testbed
    shared_testbed.restore()
    if shared_testbed.find("clusterrolebinding", "hyperpod-nodes"):  # of some tests
        shared_testbed.kubectl("delete", "clusterrolebinding", "hyperpod-nodes")
    if any(shared_testbed.get(kind, "-n", TEAM)["items"] for kind in ("jobs", "pods")):
        shared_testbed.kubectl("delete", "jobs,pods", "--all", "-n", TEAM, "--grace-period=0", "--force")


@pytest.fixture
def eventually() -> Callable[..., T]:
    """Wait for a condition: ``eventually(lambda: …)`` returns its first true value."""

    def wait(condition: Callable[[], T], timeout_s: float = 60.0, message: str = "") -> T:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, message or f"still {value!r} after {timeout_s:g} s"
            time.sleep(0.01)
        return value

    return wait


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Fail a test that leaves a process; kill it, so that the next test starts clean."""
    before = _processes()
    yield
    deadline = time.monotonic() + 30
    while (left := _left_since(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"this test left processes behind: {left}"


def _left_since(before: dict[int, str]) -> dict[int, str]:
    return {pid: line for pid, line in _processes().items() if pid not in before}


def _processes() -> dict[int, str]:
    """This run's living processes but for the shared cluster's: pid -> command line (zombies have none)."""
    known = environments()
    found = {pid for pid, environment in known.items() if _MARKED in environment} | _children()
    found -= {pid for pid, environment in known.items() if _SHARED in environment} | _ANCESTORS
    lines = {pid: command_line(pid) for pid in found}
    return {pid: line for pid, line in lines.items() if line and "resource_tracker" not in line}


def _children() -> set[int]:
    """Direct children of this process, forked ones included (they carry no mark)."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def _ancestors() -> set[int]:
    """This process and those above it: the runner itself carries the mark too."""
    found, pid = set(), os.getpid()
    while pid > 0:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


_ANCESTORS = _ancestors()
