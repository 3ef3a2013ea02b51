"""torch's settings under which equal CUDA devices compute equal bits, and words for what they refuse.

On the CPU nothing is set: its operators give the same bits on the same number of threads.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ...core.errors import SpecError, TrainingError

EXACT, BEST_EFFORT = "exact", "best-effort"
CUBLAS_VARIABLE, CUBLAS_VALUE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"  # read when a process first uses cuBLAS
_REFUSED = "does not have a deterministic implementation"
_LIBRARIES = tuple(str(Path(root)) + os.sep for root in (Path(__file__).parents[2], Path(torch.__file__).parent))


class Determinism:
    """A session's choice: "exact" or "best-effort". The settings last until `restore`. Raises SpecError."""

    def __init__(self, wanted: str, audit: object, device: torch.device) -> None:
        if wanted not in (EXACT, BEST_EFFORT):
            raise SpecError(f"determinism is {wanted!r}; expected {EXACT!r} or {BEST_EFFORT!r}")
        if wanted == BEST_EFFORT and isinstance(audit, float | int):
            raise SpecError(
                f'determinism is "best-effort" and audit {audit}: micro-batches that are executed again may differ '
                'then without a fault; write audit="state", or determinism="exact"'
            )
        self.exact = wanted == EXACT
        self._device = device
        self._before: tuple[bool, bool, bool, bool] | None = None
        if self.exact and device.type == "cuda":
            self._set()

    def _set(self) -> None:
        cudnn = torch.backends.cudnn
        self._before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            cudnn.deterministic,
            cudnn.benchmark,
        )
        os.environ.setdefault(CUBLAS_VARIABLE, CUBLAS_VALUE)
        torch.use_deterministic_algorithms(True)
        cudnn.deterministic, cudnn.benchmark = True, False

    def restore(self) -> None:
        """Set what was set before the session."""
        if self._before is not None:
            enabled, warn_only, deterministic, benchmark = self._before
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = deterministic, benchmark
            self._before = None

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise TrainingError, with the operator's name and the program's line, where one may give different bits."""
        try:
            yield
        except RuntimeError as error:
            if _REFUSED not in str(error):
                raise
            raise TrainingError(
                f"{_operator(error)} has no deterministic kernel on {self._device.type}{_place(error)}, so members "
                "could compute different bits: use another operator there, or hp.Session(..., "
                'determinism="best-effort"), which promises no equal bits'
            ) from error


def _operator(error: RuntimeError) -> str:
    return str(error).split(_REFUSED)[0].strip().removesuffix(",") or "an operator"


def _place(error: RuntimeError) -> str:
    """Where the program called the operator; empty for one that runs in backward."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else " (in backward)"
