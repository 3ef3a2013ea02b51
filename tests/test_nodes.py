"""The verbs about nodes where no cluster runs: what is refused and with which words, what a check leaves behind."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from jupyter_hyperpod.control import cluster, nodes
from jupyter_hyperpod.core.errors import ClusterError, HyperpodError, NotFound, SpecError
from jupyter_hyperpod.core.health import BY_HAND, DEEP, failed
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.health import check
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.journal_search import read_kinds
from jupyter_hyperpod.storage.store import Store


def run(store: Store, *words: str) -> nodes.Answer:
    parser = argparse.ArgumentParser()
    verb = words[0]
    (nodes.add_node_options if verb == "nodes" else nodes.add_health_options)(parser)
    options = parser.parse_args(words[1:])
    return nodes.run_nodes(options, store) if verb == "nodes" else nodes.run_health(options, store)


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ("nodes list n1", SpecError, "`nodes describe n1` shows one"),
        ("nodes drain", SpecError, "needs a NODE"),
        ("nodes drain n1", NotFound, "there is no node 'n1' here; expected one of none: no cluster is running"),
        ("nodes update n1", SpecError, "needs --reason Action:Reboot or Action:Replace"),
        ("health check n1 --deep", NotFound, "there is no node 'n1' here"),
        ("health inject n1 74", NotFound, "no cluster is running"),
        ("health recovery Sometimes", SpecError, "expected Automatic or None"),
    ],
)
def test_what_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, kind: type[HyperpodError], said: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kind, match=said):
        run(store, *words.split())
    assert cluster.status(store)["health"] == {}, "nothing is told of a node that is not there"


def test_a_typo_where_the_programs_of_slurm_have_no_cluster(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs with the names of SLURM's commands say what SLURM's own do without a cluster."""
    monkeypatch.setenv("PATH", str(tmp_path))
    says = "error: fetch_config: DNS SRV lookup failed\nfatal: Could not establish a configuration source"
    for program in ("scontrol", "sinfo", "sbatch", "squeue", "scancel"):
        (tmp_path / program).write_text(f"#!/bin/sh\necho '{says}' >&2; exit 1\n")
        (tmp_path / program).chmod(0o755)
    with event_writer(store.cluster_events, "supervisor") as journal:
        journal.append("cluster.state", {"state": "running", "reason": "", "nodes": ["node-1"], "pid": 1})
        facts = {"node": "node-1", "state": "idle", "reason": "", "jobs": [], "slots": 1, "used": 0}
        journal.append("node.state", {**facts, "spare": False, "incarnation": 1, "pid": 1})
    with pytest.raises(NotFound) as refused:
        run(store, "nodes", "drain", "nod-1")
    assert str(refused.value) == "there is no node 'nod-1' here (did you mean node-1?); expected one of node-1"


def test_a_deep_check_that_is_interrupted_leaves_no_label(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), check.labelled(store, "n1"):
        assert cluster.status(store)["health"]["n1"]["labels"][DEEP] == "InProgress"
        raise KeyboardInterrupt
    health = cluster.status(store)["health"]["n1"]
    assert DEEP not in health["labels"] and "did not finish" in health["reason"]


def test_what_a_check_finds_elsewhere_is_asked_for_and_told_once_of_that_machine(store: Store) -> None:
    looked = check.NodeCheck([failed("devices", "isolate", "DeviceMissing", "7 of 8")], {"cpus": 3}, "boot-of-n7")
    looked = check.NodeCheck.from_json(looked.to_json())
    asked: list[tuple[str, ...]] = []
    for _ in range(2):
        told = check.judge(store, "n7", looked, True, lambda *words: asked.append(words))
        assert told["action"] == "replace"
    assert asked == [("n7", "replace", "DeviceMissing")] * 2, "the first may have been undone"
    (event,) = read_kinds(store.cluster_events, ("node.health",))
    assert (event.data["devices"], event.data["boot"]) == ({"cpus": 3}, "boot-of-n7")
    check.tell(store, "n8", "replace", BY_HAND, "by hand")
    assert [e.data["boot"] for e in read_kinds(store.cluster_events, ("node.health",))][-1] == "", "not this machine's"


def test_a_remedy_that_is_refused_is_not_told_as_if_it_were_under_way(store: Store) -> None:
    def refuse(*_: str) -> None:
        raise ClusterError("access denied")

    looked = check.NodeCheck([failed("devices", "isolate", "DeviceMissing", "7 of 8")], {}, "")
    with pytest.raises(ClusterError):
        check.judge(store, "n7", looked, False, refuse)
    assert check.known(store, "n7")["action"] == "watch"


def test_with_node_recovery_none_a_check_only_labels(store: Store) -> None:
    run(store, "health", "recovery", "None")
    asked: list[tuple[str, ...]] = []
    looked = check.NodeCheck([failed("devices", "isolate", "DeviceMissing", "7 of 8")], {}, "")
    assert check.judge(store, "n7", looked, False, lambda *words: asked.append(words))["action"] == "replace"
    assert not asked


def test_checks_by_the_clock_do_not_fill_the_journal(store: Store) -> None:
    for number in range(check.JOURNALS_KEPT + 5):
        check.tell(store, "n1", "watch", "", f"check {number}")
    assert len(list(store.cluster_events.iterdir())) <= check.JOURNALS_KEPT + 1
    assert cluster.status(store)["health"]["n1"]["reason"] == f"check {check.JOURNALS_KEPT + 4}"


def test_nodes_of_a_scheduler_on_which_jobs_run_are_listed_with_the_jobs(store: Store) -> None:
    assert run(store, "nodes", "list").record["elsewhere"] == []
    pods = {"image": "team/train:3", "claim": "data:/data"}
    made = {}
    for name in ("first", "second", "over"):
        job = store.create_job(JobSpec(name, store.put_cell("pass"), backend="kubernetes", kubernetes=pods))
        made[name] = job.id
        members, spares = (["n2"], ["n1"]) if name == "second" else (["n1"], ["n3"])
        facts = {"members": placed(members), "spares": placed(spares), "generation": 0, "reason": "", "target": 1}
        with event_writer(job.events, "coordinator") as journal:
            journal.append("job.state", {"state": "running", "reason": ""})
            journal.append("generation.formed", facts)
            if name == "over":
                journal.append("job.state", {"state": "succeeded", "reason": ""})
    answer = run(store, "nodes", "list")
    both = [job_id for job_id in store.job_ids() if job_id != made["over"]]
    expected = [("n1", both, False), ("n2", [made["second"]], False), ("n3", [made["first"]], True)]
    assert answer.record["elsewhere"] == [
        {"node": node, "title": "Kubernetes", "backend": "kubernetes", "jobs": jobs, "spare": spare}
        for node, jobs, spare in expected
    ]
    assert answer.table is not None
    _, first, _, third = answer.table.render().splitlines()
    assert first.split()[:3] == ["n1", "elsewhere", "worker"] and third.split()[:3] == ["n3", "elsewhere", "spare"]
    assert made["first"] in first and "a node of Kubernetes" in first


def placed(nodes: list[str]) -> list[dict[str, object]]:
    return [{"member": f"{node}.7", "node": node, "pid": 7, "host": node, "rank": 0} for node in nodes]
