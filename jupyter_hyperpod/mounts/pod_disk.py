"""Tells what is on a pod's own disk, which goes with the pod, where the pods of a job share no store."""

from __future__ import annotations

import os
from pathlib import Path

from ..core.backend_options import shared_directories
from ..storage.apart.wire import HeadAddress
from ..storage.store import JobStore

JOB_VARIABLE = "HYPERPOD_JOB_DIR"


def goes_with_pod(path: Path) -> bool:
    """Whether another pod of the job does not find what is written there: it is in no volume claim that pods may write.

    A directory of the nodes may be another one on each. Raises StoreError, SpecError.
    """
    job = os.environ.get(JOB_VARIABLE)
    if not job or HeadAddress.of(Path(job)) is None:
        return False
    claims = [one for one in shared_directories(JobStore(Path(job)).spec().backend_options) if one.claim]
    place = Path(os.path.realpath(path))
    holding = [one for one in claims if place.is_relative_to(one.path)]
    return not holding or max(holding, key=lambda one: len(one.path)).read_only
