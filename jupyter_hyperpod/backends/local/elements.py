"""Tracks the elements of jobs on this machine: running ones, and results of ended ones until their job is released."""

from __future__ import annotations

from collections.abc import Iterable

from ..types import Element, ElementPhase
from .known_node import LocalNode


class Elements:
    """A job has one element per node at most, which bears the node's name."""

    def __init__(self) -> None:
        self._batches = 0
        self._batch: dict[tuple[str, str], int] = {}
        self._ended: dict[str, dict[str, Element]] = {}
        self._released: set[str] = set()

    def batch(self) -> int:
        self._batches += 1
        return self._batches

    def begun(self, job_id: str, node: str, batch: int) -> None:
        self._released.discard(job_id)
        self._batch[job_id, node] = batch
        self._ended.get(job_id, {}).pop(node, None)

    def ended(self, job_id: str, node: str, status: int | None) -> None:
        batch = self._batch.pop((job_id, node), 0)
        if job_id not in self._released:
            phase = ElementPhase.FAILED if status else ElementPhase.ENDED
            state = "lost" if status is None else "failed" if status else "succeeded"
            element = Element(node, state, phase, node, job=job_id, batch=batch, status=status)
            self._ended.setdefault(job_id, {})[node] = element

    def release(self, job_id: str, nodes: Iterable[LocalNode]) -> None:
        """Forget how the job's processes ended, also those that end after this."""
        self._ended.pop(job_id, None)
        if any(job_id in node.jobs for node in nodes):
            self._released.add(job_id)
        else:
            self._released.discard(job_id)

    def of(self, job_id: str, nodes: Iterable[LocalNode]) -> list[Element]:
        running = [self._running(job_id, node.name) for node in nodes if job_id in node.jobs]
        return [*running, *self._ended.get(job_id, {}).values()]

    def _running(self, job_id: str, node: str) -> Element:
        return Element(
            node, "running", ElementPhase.RUNNING, node, job=job_id, batch=self._batch.get((job_id, node), 0)
        )
