"""A stream: samples in the order in which a data set gives them, without an index.

Every member reads the whole stream, and uses the samples of its own micro-batches. What is random in it is seeded by
(seed, step, epoch), so all members read the same. A stream with ``state_dict()`` is continued from its state, if that
proves to be exact; any other is read again from its beginning. Exact is proved twice. After 1, 2, 4, 8 blocks and so on
a copy reads the next one from the state: a shuffle buffer gives the same samples only while it is first filled. And who
continues begins one block earlier, whose last sample it knows.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from itertools import islice
from typing import Any

import torch
from torch.utils import data as torch_data

from ...core.errors import SpecError, TrainingError
from ...system.variables import replaced
from ..program.copies.copier import Copier
from ..program.copies.forms import SKIPPED
from ..program.value_kinds import Unfit
from ..session.optimizer_state import has_state
from ..session.purity import seeded
from . import transport
from .indexed import is_map_style
from .order import STREAM, mix

DEEPEST = 100  # parts of a stream, one inside the other
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}
EMPTY = (
    "the stream gave no samples in epoch {epoch}, after {taken} in all: it may be an iterator, which can be read only "
    "once; give hp.Session an object whose __iter__() begins anew, such as a torch IterableDataset"
)
OTHER = (
    "the stream gave other samples when it was read again from its beginning: it may depend on its own code, "
    "set_epoch(epoch) and the generators of torch, Python and numpy, which are seeded, but not on the process, on time "
    "or on a generator of its own; or give it state_dict() and load_state_dict()"
)

MOSAIC = (
    "the data is a StreamingDataset of MosaicML, which gives each process another part of the samples and counts "
    "epochs in memory that all processes of a machine share, so a member that joins later cannot find its place; write "
    'data = streaming.LocalDataset("…") with its folder, on a mount: samples are then read by index'
)


def is_stream(data: Any) -> bool:
    """Whether `data` can be iterated from its beginning and has no index. An iterator can be read only once."""
    if torch_data.IterableDataset in type(data).__mro__:  # isinstance asks each of its many subclasses: 10 ms
        return True
    kinds = (Mapping, str, bytes, set, frozenset)
    other = isinstance(data, kinds) or hasattr(data, "iloc") or hasattr(data, "batch")
    streaming = type(data).__module__.startswith("datasets.") and type(data).__name__ == "IterableDataset"
    plain = hasattr(data, "__iter__") and not hasattr(data, "__next__")
    return streaming or (plain and not other and not is_map_style(data))


class SampleStream:
    """Reads ``source`` in blocks, one per step. ``progress()`` is called while it reads again what it had read."""

    def __init__(
        self,
        source: Any,
        seed: int,
        block: int,
        device: torch.device,
        drop_last: bool = False,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        if any(kind.__module__ == "streaming.base.dataset" for kind in type(source).__mro__):
            raise SpecError(MOSAIC)
        self._source, self._seed, self._block, self._device = source, seed, block, device
        self._drop_last, self._progress = drop_last, progress
        self._has_state = has_state(source) and not _forgets(source)
        self._has_epochs = callable(getattr(source, "set_epoch", None))
        self._counted = self._has_state and _wants_count(source)
        self._spare = _copied(source) if self._has_state else None
        self._begin()
        self._loaded: Mapping[str, Any] | None = None  # the place to continue at, until the next block is read
        self._proof_at = 1  # the step at which the state is proved next
        self._behind: dict[str, Any] | None = None  # the place before the last block
        self.mark = ""  # of the last block
        self.exact: bool | None = False if self._spare is None else None  # whether its state leads to the same samples
        self.read_again = 0  # samples

    @property
    def next_step(self) -> int:
        """The step (from 0) whose block is read next."""
        return self._step if self._loaded is None else int(self._loaded["step"])

    def block(self) -> list[Any]:
        """The samples of the next step. Raises TrainingError where there are none."""
        self._catch_up()
        step, self._behind = self._step, self._here()
        found = self._read()
        if step >= self._proof_at and self.exact is not False and self._behind["epoch"] == self._epoch:
            self.exact, self._proof_at = self._proves(self._behind, found), 2 * step
        return found

    def state_dict(self) -> dict[str, Any]:
        """The place between two blocks."""
        if self._loaded is not None:
            return dict(self._loaded)
        behind = self._behind if self.exact else None
        return self._here(with_state=False) | {"mark": self.mark, "exact": self.exact, "behind": behind}

    def load_state_dict(self, place: Mapping[str, Any]) -> None:
        """Continue at a place: from the state, or by reading again."""
        self._begin()
        self._loaded, self.exact = dict(place), place["exact"]

    def _catch_up(self) -> None:
        """Go to the place that was loaded. Raises TrainingError where the samples on the way are others."""
        place, self._loaded = self._loaded, None
        if place is None:
            return
        if place["exact"] and self._continues(place):
            return
        if self._has_epochs and place["taken"]:
            self._all = place["all"] - place["taken"]  # where the epoch began
            self._step, self._inside = divmod(self._all, self._block)
            self._epoch = place["epoch"]
        while self._step < place["step"]:
            self.read_again += len(self._read())
            self._progress()
        if place["mark"] != self.mark and not self._is_over():
            raise TrainingError(OTHER)

    def _is_over(self) -> bool:
        """Whether the epoch that was read again ends here: what was in it is past, the next block begins another."""
        with _alone(), seeded(mix(self._seed, self._step, self._epoch, STREAM), self._device):
            over = self._iterator is not None and next(self._iterator, _alone) is _alone
        if over:
            self._end_epoch()
        return over

    def _continues(self, place: Mapping[str, Any]) -> bool:
        """Go to the place by the state one block before it. False where that does not lead there: begin anew then."""
        behind, pristine = place["behind"], _copied(self._spare)
        if behind is None or behind["state"] is None or pristine is None:
            return False
        with suppress(Exception):
            self._load(self._source, behind)
            self._step, self._all = behind["step"], behind["all"]
            self._epoch, self._taken = behind["epoch"], behind["taken"]
            self._read()
            if self.mark == place["mark"]:
                self._behind = dict(behind)
                return True
        self._begin()
        self._source, self.exact = pristine, False
        return False

    def _here(self, with_state: bool = True) -> dict[str, Any]:
        place = {"step": self._step, "epoch": self._epoch, "taken": self._taken, "all": self._all}
        return place | ({"state": self._state() if self.exact is not False else None} if with_state else {})

    def _begin(self) -> None:
        self._iterator: Iterator[Any] | None = None
        self._step = self._epoch = self._taken = self._all = self._inside = 0

    def _read(self) -> list[Any]:
        """The next block, or the rest of it where reading again begins in the middle of one."""
        found: list[Any] = []
        wanted, self._inside = self._block - self._inside, 0
        while len(found) < wanted:
            with _alone(), seeded(mix(self._seed, self._step, self._epoch, STREAM), self._device):
                if self._iterator is None:
                    self._iterator = self._iterated(self._source)
                part = list(islice(self._iterator, wanted - len(found)))
            found += part
            self._taken += len(part)
            self._all += len(part)
            if len(found) < wanted:
                self._end_epoch()
                if self._drop_last:
                    self._all -= len(found)
                    found = []
        self._step += 1
        self.mark = f"{self._epoch} {self._taken} {transport.fingerprint(found[-1])}"
        return found

    def _end_epoch(self) -> None:
        if not self._taken:
            raise TrainingError(EMPTY.format(epoch=self._epoch, taken=self._all))
        self._epoch, self._taken, self._iterator = self._epoch + 1, 0, None

    def _iterated(self, source: Any) -> Iterator[Any]:
        if self._has_epochs:
            source.set_epoch(self._epoch)
        return iter(source)

    def _state(self) -> Any:
        """The source's own state as it can travel, None where it cannot."""
        if not self._has_state or self._iterator is None:
            return None
        try:
            found = Copier().copied(self._source.state_dict(*((self._taken, True) if self._counted else ())))
        except Unfit:
            return None
        return None if found is SKIPPED else found

    def _load(self, source: Any, place: Mapping[str, Any]) -> None:
        if self._has_epochs:
            source.set_epoch(place["epoch"])
        source.load_state_dict(copy.deepcopy(place["state"]))

    def _proves(self, place: Mapping[str, Any], found: list[Any]) -> bool:
        """Whether a copy of the source gives the same samples of the same epoch from a state."""
        if place["state"] is None:
            return False
        try:
            with _alone(), seeded(mix(self._seed, place["step"], place["epoch"], STREAM), self._device):
                self._load(self._spare, place)
                again = list(islice(self._iterated(self._spare), len(found)))
        except Exception:
            return False
        return len(again) == len(found) and all(
            transport.fingerprint(one) == transport.fingerprint(other) for one, other in zip(again, found, strict=True)
        )


def _wants_count(source: Any) -> bool:
    """Whether its ``state_dict(num_samples, from_beginning)`` is told how many samples of the epoch were taken."""
    try:
        return {"num_samples", "from_beginning"} <= set(inspect.signature(source.state_dict).parameters)
    except (TypeError, ValueError):
        return False


def _forgets(source: Any) -> bool:
    """Whether it is a stream of the datasets library with a shuffle buffer, whose state leaves the buffer out."""
    part, seen = getattr(source, "_ex_iterable", None), 0
    while part is not None and seen < DEEPEST:
        if type(part).__name__.startswith("BufferShuffled"):
            return True
        part, seen = getattr(part, "ex_iterable", None), seen + 1
    return False


def _copied(source: Any) -> Any:
    try:
        return copy.deepcopy(source)
    except Exception:
        return None


def _alone() -> AbstractContextManager[None]:
    """Libraries that would take every n-th sample for each of n processes see one process: all members read all."""
    return replaced(ALONE)
