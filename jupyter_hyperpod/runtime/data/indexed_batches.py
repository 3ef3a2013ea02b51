"""The batches of data that is addressed by index, read in the step itself or ahead of it by readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from ...core.errors import SpecError, TrainingError
from ...core.units import few
from ..worker.replica_sync import Group
from .changes import Watch
from .given import Given, collate_of, order_of
from .indexed import IndexedData, indexed
from .order import READING, Order, mix
from .readers import Failed, Readers
from .reading import Reading, read
from .sampled import Sampled
from .sizes import BatchSizes

SHOWN_FIRST, SHOWN_EVERY = 2, 20  # steps after which rank 0 journals how the workers keep up
OFTEN = 10  # changes of the data, after which a person is told that they cost time
LOST = "a worker that reads data ahead for rank {rank} ended unexpectedly; another one has taken its place"


class IndexedBatches:
    """Reads the micro-batches of this rank."""

    def __init__(
        self, found: Given, group: Group, seed: int, sizes: BatchSizes, micro_batch: int, device: torch.device
    ) -> None:
        self.data: IndexedData = indexed(found.data, collate_of(found, micro_batch))
        self._group, self._seed, self._device = group, seed, device
        self._sizes, self._micro_batch = sizes, micro_batch
        self._schedule = sizes.schedule
        self.reads = found.data
        self.samples: int | None = len(self.data)
        if self.samples < 1:
            raise SpecError("data is empty")
        self._found = found
        self.order: Order = order_of(found, self.samples, seed, sizes)
        self._known: dict[tuple[int, int], Reading] = {}
        self._readers = Readers(self.data, found.workers) if found.workers.count else None
        self._watch = Watch(found.data, found.collate)
        self._restarts = self._lost = 0
        self._changed: list[str] = []  # what the cell has changed since the step began

    def begin(self, step: int, due: Sequence[int], following: Sequence[int]) -> None:
        """This rank computes the micro-batches ``due`` of ``step`` (from 0), and of each later one ``following``."""
        self._follow_length()
        if self._sizes.schedule is not self._schedule:
            self._schedule = self._sizes.schedule
            self._known.clear()
        self.order.begin(step)
        if self._readers is None:
            return
        self._notice_changes(self._readers)
        if self._readers.lost > self._lost:
            self._lost = self._readers.lost
            self._group.journal("warning.raised", {"text": LOST.format(rank=self._group.rank)})
        if step % SHOWN_EVERY == SHOWN_FIRST and self._group.rank == 0:
            values = {"data_stalls": self._readers.stalls, "data_read_ahead": self._readers.ahead}
            self._group.journal("metric.logged", {"step": step, "values": values})
        self._known = {place: reading for place, reading in self._known.items() if place[0] >= step}
        readings = [self._reading(step, leaf) for leaf in due]
        most = len(due) + self._readers.depth
        while following and len(readings) < most and self.order.is_fixed(step := step + 1):
            readings += [self._reading(step, leaf) for leaf in following]
        self._readers.expect(readings)

    @property
    def name(self) -> str:
        """The order, for people."""
        return self.order.name

    def mark(self, step: int) -> int | None:
        """A number that is the same where a sampler has drawn the same samples; None where nothing is drawn."""
        return self.order.mark(step) if isinstance(self.order, Sampled) else None

    def state_dict(self) -> dict[str, Any]:
        """What members that join later compare their order with."""
        return self.order.state_dict() if isinstance(self.order, Sampled) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Another member has drawn this."""
        if isinstance(self.order, Sampled):
            self.order.load_state_dict(state)

    def of(self, step: int, leaf: int, again: bool = False) -> Any:
        """The batch of micro-batch ``leaf`` of ``step`` (from 0); ``again``: it is computed again, for a check."""
        reading = self._reading(step, leaf)
        if self._readers is None:
            return read(self.data, reading, self._device)
        if again and step == 0 and self._found.workers.begin is None:
            return self._read_here(reading)
        value = self._readers.take(reading)
        return self._raise(reading, value.text) if isinstance(value, Failed) else value

    @property
    def stalls(self) -> int:
        """Micro-batches for which this process had to wait."""
        return self._readers.stalls if self._readers is not None else 0

    @property
    def waited_s(self) -> float:
        """Seconds of these waits together."""
        return self._readers.waited_s if self._readers is not None else 0.0

    def close(self) -> None:
        """End the readers."""
        if self._readers is not None:
            self._readers.close()

    def _follow_length(self) -> None:
        """The cell may have appended samples, such as to a memory of what an agent has seen."""
        if len(self.data) != self.samples and isinstance(self._found.order, str):
            self.samples = len(self.data)
            self.order = order_of(self._found, self.samples, self._seed, self._sizes)
            self._known.clear()

    def _reading(self, step: int, leaf: int) -> Reading:
        if (step, leaf) not in self._known:
            first = self._sizes.first(step) + leaf * self._micro_batch
            indices = [self.order.at(position) for position in range(first, first + self._micro_batch)]
            seed = mix(self._seed, step, leaf, *self._group.place, READING)
            reading = Reading(step, leaf, tuple(self._group.part(indices)), seed)
            if self._readers is None:
                return reading
            self._known[step, leaf] = reading
        return self._known[step, leaf]

    def _raise(self, reading: Reading, text: str) -> NoReturn:
        """A worker could not read: raise its error as this process has it, with the lines of the cell."""
        if self._found.workers.begin is None:
            read(self.data, reading, self._device)
        raise TrainingError(f"a worker could not read the data for {reading.place}:\n{text}")

    def _read_here(self, reading: Reading) -> Any:
        """Read what changes something where that can be named. What this opens or keeps is no change of the cell."""
        self._changed += self._watch.changed()
        try:
            return read(self.data, reading, self._device)
        finally:
            self._watch.changed()

    def _notice_changes(self, readers: Readers) -> None:
        """Fork the readers again where the cell has changed what they read."""
        names, self._changed = [*self._changed, *self._watch.changed()], []
        if not names:
            return
        readers.restart()
        self._restarts += 1
        if self._restarts == OFTEN:
            self._group.warn(
                f"the cell has changed what the data set reads ({few(names)}) {OFTEN} times; each time the workers "
                "that read ahead begin anew, which makes steps slower. Change it less often, or write workers=0"
            )
