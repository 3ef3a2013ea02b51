"""The contract of backends: the same cases on every backend that can run here, through the seam alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.backends.types import ElementPhase
from jupyter_hyperpod.core.backends import BACKENDS
from jupyter_hyperpod.core.errors import ClusterError
from tests.backends.rigs import RIGS, Rig
from tests.conftest import REAL_THINGS


def marks(name: str) -> list[pytest.MarkDecorator]:
    """What a backend that needs a real thing is marked with."""
    return [getattr(pytest.mark, name), pytest.mark.timeout(300)] if name in REAL_THINGS else []


@pytest.fixture(params=[pytest.param(name, marks=marks(name)) for name in BACKENDS])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """A backend at work."""
    rig = RIGS[request.param](request.param, tmp_path, request)
    try:
        yield rig
    finally:
        rig.close()


def test_every_backend_keeps_the_contract() -> None:
    assert RIGS.keys() == BACKENDS.keys()


def test_a_process_is_observed_until_its_end_and_writes_its_log(rig: Rig) -> None:
    batch = rig.launch(rig.plan("0"))
    rig.until(lambda: (found := rig.elements()) and not any(e.active for e in found.values()), "the element has ended")
    (element,) = rig.elements().values()
    assert (element.phase, element.status, element.batch, element.job) == (ElementPhase.ENDED, 0, batch, rig.job)
    assert element.node in rig.nodes() and element.node in element.names
    assert rig.log(element.name) == f"on {element.node} {rig.directory} ['--x', \"it's $HOME\"]\nends\n"


def test_a_process_that_fails_is_told_apart(rig: Rig) -> None:
    rig.launch(rig.plan("7"))
    rig.until(lambda: any(e.phase is ElementPhase.FAILED for e in rig.elements().values()), "the element has failed")
    (element,) = rig.elements().values()
    assert element.status in (7, None) and not element.active


def test_what_is_cancelled_ends_and_nothing_of_it_is_left(rig: Rig) -> None:
    rig.launch(rig.plan("sleep"))
    (element,) = rig.running(1)
    assert rig.left()
    order = rig.runner.cancel(rig.job, [element.name])
    rig.until(order.done, "an answer to the cancellation")
    assert order.exception() is None
    rig.until(lambda: not any(e.active for e in rig.elements().values()), "the element has ended")
    rig.until(lambda: not rig.left(), "no process is left")
    assert rig.elements()[element.name].status != 0
    again = rig.runner.cancel(rig.job, [element.name])
    rig.until(again.done, "an answer to the second cancellation")
    assert again.exception() is None, "what has ended is no error"


def test_a_signal_reaches_the_process(rig: Rig) -> None:
    rig.launch(rig.plan("wait"))
    (element,) = rig.running(1)
    order = rig.runner.signal(rig.job, element.name, signal.SIGUSR1)
    rig.until(order.done, "an answer to the signal")
    assert order.exception() is None
    rig.until(lambda: "told" in rig.log(element.name), "the process was told")
    rig.until(lambda: not rig.elements()[element.name].active, "the element has ended")
    assert rig.elements()[element.name].status == 0


def test_a_job_grows_by_launching_and_shrinks_by_cancelling(rig: Rig) -> None:
    first = rig.launch(rig.plan("sleep"))
    (one,) = rig.running(1)
    second = rig.launch(rig.plan("sleep"))
    both = rig.running(2)
    assert first != second and len({element.node for element in both}) == 2
    assert {element.batch for element in both} == {first, second}
    order = rig.runner.cancel(rig.job, [one.name])
    rig.until(order.done, "an answer to the cancellation")
    (other,) = rig.running(1)
    assert other.name != one.name and other.batch == second


def test_jobs_do_not_meet_and_a_released_one_leaves_nothing(rig: Rig) -> None:
    rig.launch(rig.plan("sleep"), 2)
    rig.running(2)
    rig.launch(rig.plan("sleep", rig.other))
    (other,) = rig.running(1, rig.other)
    order = rig.runner.release(rig.job)
    rig.until(order.done, "an answer to the release")
    assert order.exception() is None
    rig.until(lambda: not any(e.active for e in rig.elements(rig.job).values()), "nothing of the job is active")
    rig.until(lambda: len(rig.left()) <= len(rig.elements(rig.other)) * 3, "only the other job's processes are left")
    assert [element.name for element in rig.running(1, rig.other)] == [other.name]
    again = rig.runner.release(rig.job)
    rig.until(again.done, "an answer to the second release")
    assert again.exception() is None


def test_what_ran_on_a_lost_node_is_not_said_to_run_there(rig: Rig) -> None:
    rig.launch(rig.plan("sleep"), 2)
    lost, other = rig.running(2)
    rig.lose(lost.node)

    def gone() -> bool:
        element = rig.elements().get(lost.name)
        return element is None or element.phase is not ElementPhase.RUNNING or element.node != lost.node

    rig.until(gone, "the loss is seen")
    assert rig.elements()[other.name].phase is ElementPhase.RUNNING, "the other goes on"


def test_nodes_are_told_with_their_states(rig: Rig) -> None:
    rig.elements()
    rig.until(lambda: rig.nodes() <= set(rig.runner.nodes), "all nodes are known")
    for name in rig.nodes():
        node = rig.runner.nodes[name]
        assert (node.name, node.drained) == (name, "") and node.state


def test_what_cannot_be_is_refused_in_words(rig: Rig) -> None:
    order = rig.runner.launch(rig.plan("0"), rig.impossible())
    rig.until(order.done, "an answer")
    assert isinstance(order.exception(), ClusterError) and str(order.exception())
    assert not rig.elements()


def test_a_job_that_nobody_launched_has_no_elements(rig: Rig) -> None:
    assert rig.elements("job-zzzzzzzz") == {}
    order = rig.runner.ends([])
    rig.until(order.done, "an answer")
    assert order.result() == []


def test_a_client_finds_what_it_needs(rig: Rig) -> None:
    assert rig.backend.missing() == "" and rig.backend.title and rig.backend.advice
    remedies = rig.backend.remedies()
    assert (remedies is None) == rig.backend.capabilities.owns_nodes, "somebody acts on nodes: the supervisor, or it"
    if remedies is None:
        return
    node = sorted(rig.nodes())[0]
    assert rig.nodes() <= rig.backend.node_states(rig.options).keys()
    found = remedies.node_info(node)
    assert remedies.installed() and remedies.serves(node) and found is not None and not found.out
    assert remedies.node_info("nowhere") is None
    assert "drain" in remedies.carry_out(node, "drain", "the contract")
    assert not remedies.serves(node)
    remedies.resume(node)
    assert remedies.serves(node)
