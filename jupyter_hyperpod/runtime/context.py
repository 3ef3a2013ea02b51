"""What a process of a job is told through its environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ClusterError
from ..core.spec import JobSpec
from ..storage.store import JobStore


@dataclass(frozen=True, slots=True)
class Context:
    """The job this process belongs to and the node it runs on."""

    job: JobStore
    node: str
    cell: Path
    spec: JobSpec
    spare: bool = False

    @classmethod
    def from_environment(cls) -> Context:
        """Read $HYPERPOD_JOB_DIR, _NODE, _CELL and _SPARE (not empty on a spare node); raises ClusterError."""
        try:
            job = JobStore(Path(os.environ["HYPERPOD_JOB_DIR"]))
            cell = Path(os.environ["HYPERPOD_CELL"])
            node = os.environ["HYPERPOD_NODE"]
        except KeyError as error:
            raise ClusterError(
                f"${error.args[0]} is not set: this module is started by a backend, not by hand"
            ) from error
        return cls(job, node, cell, job.spec(), bool(os.environ.get("HYPERPOD_SPARE")))

    @property
    def endpoint_file(self) -> Path:
        """Where the coordinator says how it is reached."""
        return self.job.path / "coordinator.json"
