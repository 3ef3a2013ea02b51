"""Reads how busy NVIDIA's devices are from its management library (NVML), which needs no CUDA context.

Not verified on a machine with such a device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_GOOD = 0


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """``percent`` of the last moments in which all ``count`` devices together computed: 200 for two busy ones."""

    count: int
    percent: int
    memory: int
    limit: int


class Devices:
    """The devices of these names: numbers, or UUIDs as CUDA_VISIBLE_DEVICES has them. Raises OSError without NVML."""

    def __init__(self, names: Sequence[str], library: Any = None) -> None:
        self._nvml = library or ctypes.CDLL(LIBRARY)
        if self._nvml.nvmlInit_v2() != _GOOD:
            raise OSError("NVML does not begin")
        self._handles = [handle for name in names if (handle := self._handle(name)) is not None]

    def _handle(self, name: str) -> Any:
        handle = ctypes.c_void_p()
        if name.isdecimal():
            code = self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            code = self._nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        return handle if code == _GOOD else None

    def use(self) -> DeviceUse | None:
        """What they do now; None where none of them says it."""
        found: list[tuple[int, int, int]] = []
        for handle in self._handles:
            busy, memory = _Utilization(), _Memory()
            codes = (
                self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy)),
                self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)),
            )
            if codes == (_GOOD, _GOOD):
                found.append((busy.gpu, memory.used, memory.total))
        return DeviceUse(len(found), *map(sum, zip(*found, strict=True))) if found else None


def devices(names: Sequence[str]) -> Devices | None:
    """The devices of these names; None where there are none, or no NVML."""
    with suppress(OSError, AttributeError):
        return Devices(names) if names else None
    return None
