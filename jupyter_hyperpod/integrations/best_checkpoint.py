"""The best checkpoint of a Trainer, which rank 0 writes and every member loads at the end: all have to see it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from transformers import TrainingArguments

from ..core.errors import SpecError, TrainingError
from ..runtime.program.own_files import is_made_by_tempfile, is_of_a_machine
from ..runtime.program.rehearsal import members_join

PATIENCE_S = 120.0  # network file systems show a new folder to other machines late
TEMPORARY = (
    "TrainingArguments(output_dir={folder!r}) is a temporary folder, which each member has for itself, and "
    "load_best_model_at_end=True loads rank 0's best checkpoint from it on every member. Name a folder that all nodes "
    "see, such as output_dir='runs/name'"
)
NOT_SEEN = (
    "rank 0 has written a checkpoint into {folder}, and this member sees none there after {waited_s:.0f} s. "
    "load_best_model_at_end=True loads the best one on every member: name a folder that all nodes see as "
    "TrainingArguments(output_dir=...)"
)


def refuse_temporary(args: TrainingArguments) -> None:
    """Raise SpecError where the best checkpoint would be loaded from a folder that other members do not have."""
    if not args.load_best_model_at_end or not members_join() or args.output_dir is None:
        return
    if is_made_by_tempfile(args.output_dir) or is_of_a_machine(args.output_dir):
        raise SpecError(TEMPORARY.format(folder=args.output_dir))


class BestCheckpoint:
    """Whether this member sees what rank 0 writes."""

    def __init__(self, args: TrainingArguments, patience_s: float = PATIENCE_S) -> None:
        self._folder = Path(str(args.output_dir))
        self._is_loaded = bool(args.load_best_model_at_end)
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._is_saved = self._is_seen = False

    def saved(self) -> None:
        """Rank 0 writes a checkpoint, at the end of a step."""
        self._is_saved = True

    def look(self) -> None:
        """A later step is done, so it is written. Raises TrainingError where this member does not see it in time."""
        if not self._is_loaded or self._is_seen or not self._is_saved:
            return
        self._since_s = self._since_s or time.monotonic()  # not from `saved`: writing may take long
        self._is_seen = any(self._folder.glob("checkpoint-*"))
        waited_s = time.monotonic() - self._since_s
        if not self._is_seen and waited_s > self._patience_s:
            raise TrainingError(NOT_SEEN.format(folder=self._folder, waited_s=waited_s))

    def wait_for(self, path: str) -> None:
        """Wait until this member sees the checkpoint ``path``. Raises TrainingError where it does not, in time."""
        until_s = time.monotonic() + self._patience_s
        while not os.path.isdir(path):
            if time.monotonic() > until_s:
                raise TrainingError(NOT_SEEN.format(folder=path, waited_s=self._patience_s))
            time.sleep(0.1)
