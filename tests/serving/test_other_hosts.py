"""What gateway and replicas of other hosts say to each other is encrypted, and a newer gateway takes replicas over.

The processes are real; $HYPERPOD_ENCRYPT=on has connections of one host treated like those between hosts.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.spec import TURN_VARIABLE, ServeSpec
from jupyter_hyperpod.serving.context import REPLICA_PATH, Site
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.supervisor import launch
from jupyter_hyperpod.system.encryption import ENCRYPT_VARIABLE, encryption_context
from tests.serving.conftest import Deployment
from tests.serving.test_replicas import ready
from tests.serving.test_unreachable import FAR, ByHand
from tests.support.deployment_clients import Client

Wait = Callable[..., Any]


@pytest.fixture
def far(store: Store, number: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[ByHand]:
    """A gateway and a replica that do not trust the network between them."""
    monkeypatch.setenv(ENCRYPT_VARIABLE, "on")
    found = ByHand(store, ServeSpec(str(number[0]), task="predict"), number[1].read_text())
    try:
        found.start(launch.REPLICA, "far", FAR)
        yield found
    finally:
        for process in found.processes:
            process.kill()
            process.wait()


def talk(address: tuple[str, int], path: str, token: str, context: ssl.SSLContext | None) -> int:
    """The status with which somebody is answered there; 0 where the connection ends before."""
    with suppress(OSError, http.client.HTTPException), socket.create_connection(address, 10) as bare:
        sock = context.wrap_socket(bare) if context else bare
        with closing(http.client.HTTPConnection(*address)) as connection:
            connection.sock = sock
            connection.request("POST", path, json.dumps({"inputs": {"x": 2}}), {"Authorization": token})
            return connection.getresponse().status
    return 0


@pytest.mark.slow
def test_only_the_two_of_them_understand_each_other_and_a_newer_gateway_gets_the_replica(
    far: ByHand, eventually: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Deployment = eventually(far.opened)
    eventually(ready(found, 1))
    assert found.predict(4).json()["outputs"]["y"] == 10.0
    (member,) = found.view["members"]
    assert member["node"] == "far" and member["host"] == socket.gethostname()
    site = Site(far.job, "", Path(), far.spec, far.spec.serve or ServeSpec(""))
    endpoint, key = site.endpoint(), site.pass_between()
    assert endpoint is not None
    door = endpoint.host, endpoint.port
    assert door[1] != found.client.port, "clients have a door of their own"
    gateway, replica = (site.encryption(FAR, who, calls=True) for who in ("gateway", member["member"]))
    stranger = encryption_context(b"x" * 32, b"deployment: gateway", calls=True)
    assert talk(door, "/predict", f"Bearer {found.client.token}", gateway) == 200
    for nobody in (None, stranger, replica):
        assert talk(door, REPLICA_PATH, key, nobody) == 0
    joined = [event for event in found.events("member.joined") if event.data["node"] == "far"]
    assert len(joined) == 1

    monkeypatch.setenv(TURN_VARIABLE, "1")
    later = far.start(launch.GATEWAY, "head", "127.0.0.1")
    assert far.processes[0].wait(60) == 0, "the earlier one leaves"
    eventually(lambda: len(found.events("deployment.opened")) == 2)
    again = Deployment(found.store, found.job_id, Client.of(found.store, found.job_id))
    eventually(ready(again, 1))
    assert again.predict(4).json()["outputs"]["y"] == 10.0 and later.poll() is None
    assert [one["member"] for one in again.view["members"]] == [member["member"]], "the replica has stayed"
    jobs.fault(again.store, again.job_id, "kill", rank=0)
    assert far.processes[1].wait(60) == -signal.SIGKILL, "its gateway has told it, for a signal does not reach it"
