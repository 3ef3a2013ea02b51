"""The verbs about nodes where no cluster runs: what is refused and with which words, what a check leaves behind."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from jupyter_hyperpod.control import cluster, nodes
from jupyter_hyperpod.core.errors import HyperpodError, NotFound, SpecError
from jupyter_hyperpod.core.health import DEEP
from jupyter_hyperpod.health import check
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
        ("nodes list n1", SpecError, "`nodes describe n1` tells of one"),
        ("nodes drain", SpecError, "needs a NODE"),
        ("nodes drain n1", NotFound, "no node 'n1' here; expected one of none: no cluster runs"),
        ("nodes update n1", SpecError, "needs --reason Action:Reboot or Action:Replace"),
        ("health check n1 --deep", NotFound, "there is no node 'n1' here"),
        ("health inject n1 74", NotFound, "no cluster runs"),
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


def test_a_deep_check_that_is_interrupted_leaves_no_label(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), check.labelled(store, "n1"):
        assert cluster.status(store)["health"]["n1"]["labels"][DEEP] == "InProgress"
        raise KeyboardInterrupt
    health = cluster.status(store)["health"]["n1"]
    assert DEEP not in health["labels"] and "did not come to its end" in health["reason"]


def test_checks_by_the_clock_do_not_fill_the_journal(store: Store) -> None:
    for number in range(check.JOURNALS_KEPT + 5):
        check.tell(store, "n1", "watch", "", f"check {number}", ())
    assert len(list(store.cluster_events.iterdir())) <= check.JOURNALS_KEPT + 1
    assert cluster.status(store)["health"]["n1"]["reason"] == f"check {check.JOURNALS_KEPT + 4}"
