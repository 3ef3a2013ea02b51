"""Tells what is on a pod's own disk, which goes with the pod, where the pods of a job share no store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..storage.apart.wire import HeadAddress
from .table import mount_point_of, mounted_at

JOB_VARIABLE = "HYPERPOD_JOB_DIR"
IN_MEMORY = ("tmpfs", "ramfs")


def goes_with_pod(path: Path) -> bool:
    """Whether what is written there is lost with this pod, and seen by no other. Raises StoreError."""
    job = os.environ.get(JOB_VARIABLE)
    if not job or HeadAddress.of(Path(job)) is None:
        return False
    return is_own(path, Path(job), mounted_at())


def is_own(path: Path, job: Path, mounted: Mapping[str, str]) -> bool:
    """Whether ``path`` is on the container's own disk, on that of the job's directory, or in memory.

    ``mounted``: mount point -> file system.
    """
    point = mount_point_of(os.fspath(path), mounted)
    return point in ("/", mount_point_of(os.fspath(job), mounted)) or mounted.get(point) in IN_MEMORY
