"""Settings of a process that change what it computes, by the names of what sets them: each as text that compares."""

from __future__ import annotations

import decimal
import locale
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from ..system.place import here

_SMALL = sys.float_info.min  # the smallest number that is no denormal one


def _decimal() -> str:
    now = decimal.getcontext()  # without its flags, which each computation sets
    traps = sorted(trap.__name__ for trap, on in now.traps.items() if on)
    return str((now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, traps))


def _numpy_errors() -> str:
    numpy: Any = sys.modules.get("numpy")
    unset = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}  # where nothing has imported numpy
    return str(sorted((unset if numpy is None else numpy.geterr()).items()))


def _autocast() -> str:
    """In this thread, where no block of autocast is open."""
    devices = ("cpu", "cuda")
    return str((torch.is_autocast_cache_enabled(), *map(torch.is_autocast_enabled, devices)))


def _attention() -> str:
    cuda = torch.backends.cuda
    return str((cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()))


def _reduced_precision() -> str:
    """The flags of cuBLAS and cuDNN for numbers of fewer bits."""
    matmul = torch.backends.cuda.matmul
    reduced = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    return str((*reduced, torch.backends.cudnn.allow_tf32))


def _hooks_of_all_modules() -> int:
    names = vars(torch.nn.modules.module).items()
    return sum(len(table) for name, table in names if name.startswith("_global_") and isinstance(table, dict))


SETTINGS: dict[str, Callable[[], object]] = {
    "set_default_dtype": torch.get_default_dtype,
    "set_default_device": torch.get_default_device,
    "set_grad_enabled": torch.is_grad_enabled,
    "use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "set_float32_matmul_precision": torch.get_float32_matmul_precision,
    "set_num_threads": torch.get_num_threads,
    "set_flush_denormal": lambda: _SMALL / 2 == 0,
    "set_autocast_enabled": _autocast,
    "set_autocast_dtype": lambda: (torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")),
    "sdpa_kernel": _attention,
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "cudnn": _reduced_precision,
    "getcontext": _decimal,
    "seterr": _numpy_errors,
    "setlocale": lambda: locale.setlocale(locale.LC_ALL),
    "tzset": lambda: (time.tzname, time.timezone, time.altzone),
    "register_module_forward_hook": _hooks_of_all_modules,
    "chdir": here,  # of a folder that was deleted, the name stays
}
