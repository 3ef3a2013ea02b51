"""The supervisor's part where nodes are SLURM's: what is written at them is read, and repeat offenders are avoided."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

from jupyter_hyperpod.backends.types import ReportedNode
from jupyter_hyperpod.control import cluster
from jupyter_hyperpod.core.health import HealthRecord, failed
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.health import check
from jupyter_hyperpod.policy.healing import OFFENCES
from jupyter_hyperpod.storage.journal import follow_commands
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.supervisor.entry import JobEntry
from jupyter_hyperpod.supervisor.healing import Healing
from jupyter_hyperpod.supervisor.machines import Machines


class Elsewhere:
    """Allocations without a SLURM behind them (a stand-in): reasons at nodes, and whom to avoid."""

    def __init__(self, **reasons: str) -> None:
        self.reasons = reasons
        self.avoided: tuple[str, ...] = ()
        self.records: list[ReportedNode] = []
        self.asked_s = 0.0
        self.joined = -math.inf

    def draining(self) -> dict[str, tuple[str, str]]:
        return {node: ("SLURM", reason) for node, reason in self.reasons.items()}

    def watched(self) -> dict[str, tuple[ReportedNode, float]]:
        return {node.name: (node, self.asked_s) for node in self.records}

    def nodes(self, job_id: str) -> set[str]:
        return {"n1"}

    def joined_s(self, job_id: str, node: str) -> float:
        return self.joined


def healing(store: Store, allocations: Any, **entries: JobEntry) -> Healing:
    journal = JournalWriter(store.cluster_events, "supervisor")
    host: Any = SimpleNamespace(nodes={})
    return Healing(store, host, entries, allocations, journal, Machines())


def test_what_is_written_at_a_node_is_taken_up_once(store: Store) -> None:
    allocations = Elsewhere(n1="Action:Replace", n2="action:reboot", n3="Kill task failed")
    one = healing(store, allocations)
    now_s = time.monotonic()
    for later in range(4):
        one.step(now_s + later)
    view = cluster.status(store)
    assert {name: health["action"] for name, health in view["health"].items()} == {"n1": "replace"}
    assert view["health"]["n1"]["fault"] == "ByHand" and len(view["health"]["n1"]["remedies"]) == 1
    (warning,) = view["warnings"]
    assert warning["text"].startswith("n2: reason 'action:reboot' asks for nothing")
    assert [incident["node"] for incident in view["incidents"]] == ["n1"]


def test_the_same_reason_written_again_after_the_node_was_back_is_taken_up_again(store: Store) -> None:
    allocations = Elsewhere(n1="Action:Replace")
    one = healing(store, allocations)
    one.step(time.monotonic())
    allocations.reasons = {}
    check.tell(store, "n1", "watch", "", "it is back")
    one.step(time.monotonic() + 2)
    allocations.reasons = {"n1": "Action:Replace"}
    one.step(time.monotonic() + 4)
    health = cluster.status(store)["health"]["n1"]
    assert [remedy["action"] for remedy in health["remedies"]] == ["replace", "watch", "replace"]


def test_repeat_offenders_are_avoided_on_slurm_too(store: Store) -> None:
    allocations = Elsewhere()
    one = healing(store, allocations)
    for _ in range(OFFENCES):
        check.tell(store, "n2", "reboot", "NvidiaXid73", "again")
        check.tell(store, "n2", "watch", "", "it is back")
    one.step(time.monotonic())
    assert allocations.avoided == ("n2",)
    assert any("repeat offenders" in decision["reason"] for decision in cluster.status(store)["decisions"])


XID = failed("kernel-log", "isolate", "NvidiaXid74", "Xid 74 on 00:1e.0")
RECORD = HealthRecord("replace", "NvidiaXid74", "NvidiaXid74: no reboot mends that", causes=(XID,), devices={"cpus": 2})
SOUND = HealthRecord("watch", reason="what was wrong is over", devices={"cpus": 2})


def test_what_an_agent_shows_at_a_node_is_journaled_once_and_taken_back(store: Store) -> None:
    allocations = Elsewhere()
    one = healing(store, allocations)
    now_s = time.monotonic()

    def shown(record: HealthRecord, drained: str = "") -> Any:
        nonlocal now_s
        allocations.records = [ReportedNode("n1", "ready", drained, record)]
        for _ in range(3):
            now_s += 1
            allocations.asked_s = now_s
            one.step(now_s)
        return cluster.status(store)

    view = shown(SOUND)
    assert view["health"]["n1"]["action"] == "watch" and view["incidents"] == []
    view = shown(RECORD, RECORD.reason)
    assert (view["health"]["n1"]["action"], view["health"]["n1"]["reason"]) == ("replace", RECORD.reason)
    assert view["health"]["n1"]["findings"][0]["text"] == XID.text and len(view["health"]["n1"]["remedies"]) == 1
    (incident,) = view["incidents"]
    assert [stage["stage"] for stage in incident["stages"]] == ["detected", "diagnosed"]
    view = shown(RECORD)  # somebody has taken the taint away
    assert view["health"]["n1"]["reason"] == "n1 was returned to service"
    view = shown(SOUND)
    assert view["health"]["n1"]["action"] == "watch"
    (incident,) = view["incidents"]
    assert [stage["stage"] for stage in incident["stages"]][2:] == ["repaired", "resumed"]


def test_what_a_person_has_drained_or_answers_of_before_change_nothing(store: Store) -> None:
    allocations = Elsewhere()
    one = healing(store, allocations)
    check.tell(store, "n1", "drain", "ByHand", "asked for by ann")
    allocations.records = [ReportedNode("n1", "ready", "", SOUND)]
    allocations.asked_s = -1.0  # before it was drained
    now_s = time.monotonic()
    one.step(now_s)
    allocations.records = [ReportedNode("n1", "cordoned", "hyperpod: asked for by ann", SOUND)]
    allocations.asked_s = now_s + 1
    one.step(now_s + 2)
    assert cluster.status(store)["health"]["n1"]["action"] == "drain"
    allocations.records = [ReportedNode("n1", "ready", "", SOUND)]
    allocations.asked_s = now_s + 3
    one.step(now_s + 4)
    assert cluster.status(store)["health"]["n1"]["action"] == "watch", "somebody has uncordoned it"


def test_a_job_is_told_again_of_what_has_joined_it_on_the_node_since(store: Store) -> None:
    """What was still being started there was not known to the job when it was told."""
    spec = JobSpec("job", store.put_cell("pass"), nodes=1, backend="slurm", slurm={"partition": "train"})
    entry, allocations = JobEntry(store, store.create_job(spec)), Elsewhere()
    entry.started = True
    one, told = healing(store, allocations, job=entry), follow_commands(entry.job.commands)
    allocations.records = [ReportedNode("n1", "drained", RECORD.reason, RECORD)]
    now_s = time.monotonic()

    def tells() -> list[str]:
        nonlocal now_s
        for _ in range(3):
            now_s += 1
            allocations.asked_s = now_s
            one.step(now_s)
        return [f"{command.kind} {command.data['node']}" for command in told.poll()]

    assert tells() == ["drain n1"]
    allocations.joined = time.time()
    assert tells() == ["drain n1"]
    assert tells() == []
    entry.journal.close()
