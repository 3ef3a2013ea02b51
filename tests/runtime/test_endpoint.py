"""The file that names a job's coordinator: the newest turn counts, and another machine's loopback is no address."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_hyperpod.runtime.coordinator.controller import Controller
from jupyter_hyperpod.storage import endpoint
from jupyter_hyperpod.storage.endpoint import Endpoint, OwnEndpoint, Replaced


def test_a_coordinator_finds_that_a_newer_one_has_announced_itself(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"
    first, second = OwnEndpoint(path, 1), OwnEndpoint(path, 2)
    first.announce("10.0.0.1", 7)
    first.touch()
    assert endpoint.read(path) == Endpoint("10.0.0.1", 7, 1)
    second.announce("10.0.0.2", 8)
    for act in (first.check, first.touch, lambda: first.announce("10.0.0.1", 7)):
        with pytest.raises(Replaced, match=r"a coordinator at 10\.0\.0\.2 has taken over this job"):
            act()
    second.touch()
    OwnEndpoint(path, 2).announce("10.0.0.2", 9)  # started again on the same host
    assert endpoint.read(path) == Endpoint("10.0.0.2", 9, 2)


def test_the_loopback_of_another_machine_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "coordinator.json"
    OwnEndpoint(path, 1).announce("127.0.0.1", 7)
    assert endpoint.read(path) == Endpoint("127.0.0.1", 7, 1)
    monkeypatch.setattr(endpoint, "this_machine", lambda: "another")
    assert endpoint.read(path) == Endpoint("127.0.0.1", 7, 1, elsewhere=True)


def test_files_of_earlier_versions_and_torn_ones(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"
    path.write_text(json.dumps({"host": "127.0.0.1", "port": 7, "pid": 1}))
    assert endpoint.read(path) == Endpoint("127.0.0.1", 7, 0)
    path.write_text(json.dumps({"ended": "succeeded"}))
    assert endpoint.read(path) is None
    for text in ("", "{", "{}", '{"host": "a", "port": null}'):
        path.write_text(text)
        with pytest.raises(ValueError):
            endpoint.read(path)


def test_agents_that_have_gone_to_another_coordinator_are_not_lost(tmp_path: Path) -> None:
    own, lost = OwnEndpoint(tmp_path / "endpoint", 1), []
    controller = Controller.__new__(Controller)
    controller._require_newest = own.check
    controller.state = SimpleNamespace(ended=False, roster=SimpleNamespace(by_channel=lambda channel: channel))  # type: ignore[assignment]
    controller.failures = SimpleNamespace(hung_up=lambda member: lost.append(member) or ())  # type: ignore[assignment]
    own.announce("10.0.0.1", 7)
    controller.hung_up("agent")  # type: ignore[arg-type]
    OwnEndpoint(tmp_path / "endpoint", 2).announce("10.0.0.2", 9)
    with pytest.raises(Replaced):
        controller.hung_up("another agent")  # type: ignore[arg-type]
    assert lost == ["agent"]
