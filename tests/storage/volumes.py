"""Real file systems for the tests: FUSE mounts over directories, and what this machine lacks for them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.mounts import drivers


def need(driver: str) -> None:
    """Skip, and say why, where this machine cannot mount with `driver`."""
    if problem := drivers.missing(drivers.DRIVERS[driver]):
        pytest.skip(f"NOT VERIFIED HERE: {driver} cannot be mounted: {problem}")


def juicefs(directory: Path, name: str = "jfs", point: str = "jfs") -> MountSpec:
    """A JuiceFS volume whose metadata and data are files in `directory`; formatted where it is not there yet."""
    need("juicefs")
    metadata = f"sqlite3://{directory}/jfs.db"
    if not (directory / "jfs.db").exists():
        program = drivers.program("juicefs")
        assert program is not None
        command = [program, "format", "--no-update", "--trash-days", "1", "--storage", "file"]
        command += ["--bucket", f"{directory}/jfs-data/", metadata, "volume"]
        subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=directory)
    path = str(directory / point)
    return MountSpec(name, path, path, driver="juicefs", source=metadata, options={"metrics": "127.0.0.1:0"})


def rclone(directory: Path, name: str = "rc") -> MountSpec:
    """A directory seen through an rclone mount."""
    need("rclone")
    (directory / "rclone-data").mkdir(exist_ok=True)
    path = str(directory / "rc")
    return MountSpec(name, path, path, driver="rclone", source=f":local:{directory}/rclone-data")
