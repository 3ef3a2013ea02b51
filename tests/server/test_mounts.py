"""Mounts over REST: told with their health, and one that hangs holds neither the server nor the others."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from jupyter_hyperpod.control import attach
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.mounts import table
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.processes import Identity, session_members
from tests.server.conftest import Api
from tests.storage import volumes


def states(openapi: dict[str, Any], answer: tuple[int, Any]) -> dict[str, str]:
    status, found = answer
    assert status == 200
    schema = {"$ref": "#/components/schemas/Mounts", "components": openapi["components"]}
    Draft202012Validator(schema).validate(found)
    return {one["name"]: one["state"] for one in found["mounts"]}


async def test_mounts_are_told_with_their_health(
    openapi: dict[str, Any], api: Api, store: Store, tmp_path: Path
) -> None:
    table.add(store, MountSpec("data", str(tmp_path / "absent"), "/fsx", read_only=True))
    table.add(store, MountSpec("nfs", str(tmp_path / "nfs"), "/nfs", driver="nfs", source="h:/e"))
    table.add(store, MountSpec("s", "", "", driver="s3", source="s3://bucket"))
    assert states(openapi, await api("GET", "/mounts")) == {
        "shared": "ready",
        "data": "broken",
        "nfs": "detached",
        "s": "remote",
    }


@pytest.mark.fuse
async def test_a_mount_that_hangs_holds_neither_the_server_nor_the_others(
    openapi: dict[str, Any], api: Api, store: Store, tmp_path: Path
) -> None:
    spec = volumes.rclone(tmp_path)
    table.add(store, spec)
    try:
        attach.attach(store, spec)
        record = attach.state(store, spec.name)
        assert record is not None
        for pid in session_members(Identity(record["pid"], record["start"])):
            os.kill(pid, signal.SIGSTOP)
        asked = [asyncio.create_task(api("GET", "/mounts")) for _ in range(3)]
        await asyncio.sleep(0)
        assert (await api("GET", "/settings"))[0] == 200
        assert not any(task.done() for task in asked), "the server answers others while a mount hangs"
        for answer in await asyncio.gather(*asked):
            assert states(openapi, answer) == {"shared": "ready", spec.name: "hangs"}
    finally:
        attach.detach(store, spec, force=True)
