"""What a job knows of its nodes on SLURM beyond what SLURM says: who has joined it, who was lost, who never came."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from jupyter_hyperpod.backends.kubernetes import parse
from jupyter_hyperpod.backends.kubernetes.runner import KubernetesRunner
from jupyter_hyperpod.backends.slurm import script
from jupyter_hyperpod.backends.slurm.runner import SlurmRunner
from jupyter_hyperpod.backends.types import BASE, Element
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.policy.membership import NODE_LOST
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.journal_search import read_kinds
from jupyter_hyperpod.storage.store import ENDPOINT_FILE, Store
from jupyter_hyperpod.supervisor.allocation.allocation import NO_NODES_S, SENT_AGAIN_S, Allocation, still_leaving
from jupyter_hyperpod.supervisor.allocation.ledger import Ledger
from jupyter_hyperpod.supervisor.entry import JobEntry


def element(task: int, state: str, node: str = "") -> Element:
    return script.element(1, task, state, node, "None", "job", BASE)


class Books:
    """A ledger whose queue is told by the test, and the journal that its job's coordinator would write."""

    def __init__(self, store: Store) -> None:
        spec = JobSpec("job", store.put_cell("pass"), nodes=2, backend="slurm", slurm={"partition": "train"})
        self.entry = JobEntry(store, store.create_job(spec))
        self.journal = event_writer(self.entry.job.events, "coordinator")
        self.slurm = SlurmRunner()
        self.now_s = time.monotonic()
        self.open()

    def open(self) -> None:
        """A supervisor begins."""
        self.ledger = Ledger(self.entry, self.slurm)

    def read(self, *elements: Element, after_s: float = 1.0) -> None:
        """The queue is read again."""
        self.now_s += after_s
        self.slurm.fresh_s = time.monotonic()
        self.ledger.update(list(elements), self.now_s)

    def joined(self, node: str, pid: int = 7) -> None:
        self.journal.append("member.joined", {"member": f"{node}.{pid}", "node": node, "pid": pid, "host": node})

    def lost(self, node: str, pid: int = 7) -> None:
        record = {"member": f"{node}.{pid}", "node": node, "rank": 0, "cause": NODE_LOST, "detail": ""}
        self.journal.append("member.lost", record)

    def coordinate(self) -> None:
        (self.entry.job.path / ENDPOINT_FILE).write_text("{}")

    @property
    def silent(self) -> dict[str, float]:
        return self.ledger.silent(self.now_s)


@pytest.fixture
def books(store: Store) -> Iterator[Books]:
    found = Books(store)
    found.ledger.record(1, BASE, 2)
    yield found
    found.journal.close()
    found.entry.journal.close()


def test_a_job_that_was_only_scaled_has_not_begun_and_its_state_is_where_members_have_stayed(books: Books) -> None:
    presence = books.ledger.presence
    formed = {"reason": "", "target": 3, "members": [], "spares": []}
    books.joined("n1")
    books.journal.append("generation.formed", {"generation": 0, **formed})
    presence.poll()
    assert not presence.begun and not presence.keeps(["n1"])
    books.journal.append("generation.formed", {"generation": 1, **formed})
    books.joined("n2")
    presence.poll()
    assert presence.begun and presence.keeps(["n2", "n1"]) and not presence.keeps(["n2"])
    books.lost("n1")
    books.joined("n1")
    presence.poll()
    assert not presence.keeps(["n1"]), "what runs there now is new"


def test_nobody_is_silent_before_there_is_somebody_to_join(books: Books) -> None:
    books.read(element(0, "PENDING"), element(1, "PENDING"))
    books.read(element(0, "RUNNING", "n1"), element(1, "PENDING"), after_s=50)
    assert not books.silent
    books.coordinate()
    books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"), after_s=50)
    books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"), after_s=10)
    assert books.silent == pytest.approx({"1_0": 10, "1_1": 10})
    books.joined("n1")
    assert books.silent.keys() == {"1_1"}


def test_an_element_that_begins_on_the_node_again_has_to_join_again(books: Books) -> None:
    books.coordinate()
    books.read(element(0, "PENDING"))
    books.read(element(0, "RUNNING", "n1"))
    books.joined("n1")
    assert not books.silent
    books.read(element(0, "PENDING"))
    books.read(element(0, "RUNNING", "n1"))
    books.read(element(0, "RUNNING", "n1"), after_s=5)
    assert books.silent == pytest.approx({"1_0": 5})
    books.joined("n1.1-0")
    assert not books.silent, "one of several elements of a node carries its own number"
    books.read(element(0, "COMPLETED", "n1"))
    assert not books.silent


def test_what_slurm_has_queued_again_is_known_also_by_the_next_supervisor(books: Books) -> None:
    def requeued() -> set[str]:
        return {name for name, seen in books.ledger.seen.items() if seen.requeued}

    books.read(element(0, "PENDING"), element(1, "RUNNING", "n2"))
    books.read(element(0, "RUNNING", "n1"), element(1, "SUSPENDED", "n2"))
    assert not requeued()
    books.read(element(0, "PENDING"), element(1, "RUNNING", "n2"))
    books.read(element(0, "PENDING"), element(1, "COMPLETING", "n2"))
    assert requeued() == {"1_0"}
    books.open()
    assert requeued() == {"1_0"}
    books.read(element(0, "CONFIGURING", "n1"), element(1, "PENDING"))
    assert requeued() == {"1_1"}, "the other is about to start"
    books.read(element(0, "PENDING"), element(1, "CANCELLED"))
    books.read(element(0, "PENDING"), element(1, "PENDING"))
    assert requeued() == {"1_0"}, "a controller that was restarted does not know of the other's end"


@pytest.mark.parametrize(
    ("state", "reason", "waits"),
    [
        ("PENDING", "None", "cred_expire"),
        ("PENDING", "BeginTime", "cred_expire"),
        ("PENDING", "Priority", ""),
        ("PENDING", "JobHeldAdmin", ""),
        ("PENDING", "job requeued in held state", ""),
        ("PENDING", "launch failed requeued held", "launch failed"),
        ("CONFIGURING", "None", ""),
        ("RUNNING", "launch failed requeued held", ""),
    ],
)
def test_only_what_slurm_itself_delays_is_not_waited_for(state: str, reason: str, waits: str) -> None:
    found = script.element(1, 0, state, "", reason, "job", BASE)
    why = script.why_held(found, requeued=state == "PENDING")
    assert waits in why and bool(waits) == bool(why)
    assert script.why_held(found, requeued=False) == (why if "launch" in waits else ""), "it has not had a node yet"


def test_what_is_requeued_again_and_again_before_it_joins_is_asked_for_less_often(books: Books) -> None:
    def once(node: str, number: int) -> float:
        books.read(element(number, "RUNNING", node))
        if node == "n2":
            books.joined(node)
        books.read(element(number, "PENDING"))
        return books.ledger.rest_until_s - books.now_s

    assert once("n1", 0) < 0, "once can be chance"
    assert once("n1", 1) == pytest.approx(2)
    assert once("n1", 2) == pytest.approx(4)
    once("n2", 3)
    books.ledger.rest_until_s = 0.0
    assert once("n1", 4) < 0, "one has joined in between"


def test_the_next_supervisor_knows_who_has_joined(books: Books) -> None:
    books.coordinate()
    books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"))
    books.joined("n1")
    books.open()
    books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"))
    books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"), after_s=3)
    assert books.silent == pytest.approx({"1_1": 3})


def test_the_next_supervisor_knows_what_was_lost_before(books: Books) -> None:
    books.coordinate()
    books.read(element(0, "PENDING"), element(1, "PENDING"))
    books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"))
    books.joined("n1")
    books.joined("n2")
    books.lost("n1")
    books.open()
    books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"))
    assert books.ledger.lost(time.monotonic() + 1).keys() == {"1_0"}


def test_a_node_that_was_lost_is_not_silent_and_one_that_began_later_is_not_lost(books: Books) -> None:
    books.coordinate()
    books.read(element(0, "RUNNING", "n1"))
    books.joined("n1")
    books.lost("n1")
    assert not books.silent and books.ledger.lost(books.now_s + 1).keys() == {"1_0"}
    books.read(element(0, "PENDING"), after_s=2)
    books.read(element(0, "RUNNING", "n1"), after_s=2)
    assert not books.ledger.lost(books.now_s)


def test_a_member_whose_successor_has_joined_takes_no_node_along(books: Books) -> None:
    books.coordinate()
    books.read(element(0, "RUNNING", "n1"))
    books.joined("n1")
    books.joined("n1", 8)
    books.lost("n1")  # noticed late, as by a coordinator that has begun anew
    assert not books.ledger.lost(books.now_s + 1)
    books.lost("n1", 8)
    assert books.ledger.lost(books.now_s + 1).keys() == {"1_0"}


def test_what_was_told_to_end_has_not_failed_unless_it_began_once_more(books: Books) -> None:
    def failures() -> int:
        return books.entry.agents.quick

    books.coordinate()
    books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"))
    books.ledger.dismissed.update(["1_0", "1_1"])
    books.read(element(0, "FAILED", "n1"), element(1, "PENDING"))
    assert not failures(), "its signal came before it could take one"
    books.read(element(0, "FAILED", "n1"), element(1, "RUNNING", "n1"))
    books.read(element(0, "FAILED", "n1"), element(1, "FAILED", "n1"))
    assert failures() == 1


def test_elements_that_fail_at_once_end_the_job_only_where_nobody_gets_further(books: Books) -> None:
    def fail(node: str) -> int:
        books.read(element(0, "PENDING"))
        books.read(element(0, "RUNNING", node))
        books.read(element(0, "FAILED", node))
        return books.entry.agents.quick

    books.coordinate()
    assert [fail("n1"), fail("n1"), fail("n1")] == [1, 2, 3]
    assert not books.ledger.unfit_nodes(0.0), "perhaps it is the job"
    books.joined("n2")
    assert fail("n1") == 0, "n2 has joined since: it is not the job"
    assert [fail("n1"), fail("n1")] == [1, 2], "nobody has joined since"
    assert not books.entry.ended
    assert [fail("n1"), fail("n1"), fail("n1")] == [3, 4, 5]
    assert books.entry.ended


def test_while_a_node_may_still_join_elements_that_fail_at_once_are_only_asked_for_less_often(books: Books) -> None:
    books.coordinate()
    for _ in range(7):
        books.read(element(0, "RUNNING", "n1"), element(1, "PENDING"), after_s=0.1)
        books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"), after_s=0.1)
        books.read(element(0, "RUNNING", "n1"), element(1, "FAILED", "n2"), after_s=0.1)
    assert books.entry.agents.quick == 7 and not books.entry.ended
    assert books.ledger.rest_until_s - books.now_s == pytest.approx(8)
    books.read(element(0, "FAILED", "n1"), element(1, "FAILED", "n2"))
    assert books.entry.ended


def test_a_node_on_which_nothing_begins_is_avoided_until_something_does(books: Books) -> None:
    books.coordinate()
    books.read(element(0, "RUNNING", "n1"))
    books.joined("n1")
    for avoided, rest_s, seen_to_run in ((set(), None, True), ({"n2"}, 2, False), ({"n2"}, 4, True)):
        books.read(element(0, "RUNNING", "n1"), element(1, "PENDING"))
        if seen_to_run:
            books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"))
        books.read(element(0, "RUNNING", "n1"), element(1, "FAILED", "n2"))
        assert (books.entry.agents.quick, books.entry.agents.total) == (0, 0), "n1 trains"
        assert books.ledger.unfit_nodes(0.0) == avoided
        assert rest_s is None or books.ledger.rest_until_s - books.now_s == pytest.approx(rest_s)
    assert not books.ledger.unfit_nodes(books.now_s), "it may have been repaired by now"
    books.read(element(0, "RUNNING", "n1"), element(1, "RUNNING", "n2"))
    books.joined("n2")
    books.read(element(0, "RUNNING", "n1"), element(1, "FAILED", "n2"))
    assert not books.ledger.unfit_nodes(0.0), "it was killed, but it had joined"


def test_who_was_told_to_leave_is_told_again_after_beginning_anew_or_staying_for_long() -> None:
    told = {"1_0": 0.0, "1_1": 0.0}
    assert still_leaving(told, {"1_0", "1_1"}, SENT_AGAIN_S - 1) == told
    assert still_leaving(told, {"1_1"}, 1.0) == {"1_1": 0.0}, "SLURM has queued the other again"
    assert not still_leaving(told, {"1_0", "1_1"}, SENT_AGAIN_S)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"state": parse.STARTING, "reason": "FailedMount: no such directory"}, "FailedMount: no such directory"),
        ({"state": parse.STARTING, "reason": "ContainerCreating"}, ""),
        ({"state": parse.PENDING, "reason": "no node can take it"}, "no node can take it"),
    ],
)
def test_a_job_that_has_begun_says_why_another_of_its_nodes_does_not_begin(
    store: Store, second: dict[str, str], said: str
) -> None:
    pods = {"image": "team/train:3", "claim": "data:/data"}
    spec = JobSpec("job", store.put_cell("pass"), nodes=2, backend="kubernetes", kubernetes=pods)
    entry, runner = JobEntry(store, store.create_job(spec)), KubernetesRunner({})
    entry.started = True
    runs = parse.element("hp-7-0", parse.RUNNING, "n1", "", entry.job.id, BASE)
    waits = parse.element("hp-7-1", second["state"], "n2", second["reason"], entry.job.id, BASE)
    assert runs is not None and waits is not None
    runner._mine[entry.job.id]
    runner._elements = {entry.job.id: [runs, waits]}
    allocation = Allocation(entry, runner)
    for allocation._read_s in (0.0, 1.0, NO_NODES_S + 2.0):
        allocation._report_lacking([runs] if allocation._read_s == 0.0 else [runs, waits])
    told = [event.data["reason"] for event in read_kinds(entry.job.events, ("decision.made",))]
    assert told == ([f"Kubernetes has not started 1 node yet: {said}"] if said else [])
    entry.journal.close()
