"""Imports what jobs need into an interpreter that is to be forked, which therefore stays single-threaded."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence

from ..system.diagnostics import note
from ..system.processes import thread_names


def preload(names: Sequence[str]) -> list[str]:
    """Import each module (``module:function`` also calls it) and return those that could be.

    The collector rests meanwhile: importing leaves little garbage, and looking for it takes a sixth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return _imported(names)
    finally:
        if collects:
            gc.enable()


def _imported(names: Sequence[str]) -> list[str]:
    loaded = []
    for name in names:
        module, _, function = name.partition(":")
        try:
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
        except Exception as error:  # whatever a module raises, jobs can still start without it
            note(f"{name} is not preloaded: {error!r}")
        else:
            loaded.append(name)
    return loaded


def ready_to_fork(names: Sequence[str], again: Sequence[str], keep: int) -> list[str]:
    """`preload`, and have the collector leave alone what is there. Where a module started a thread, this process begins
    again without preloading: ``python`` with the arguments ``again``, and the descriptor ``keep``."""
    loaded = preload(names)
    threads = thread_names()
    if len(threads) > 1:
        note(f"preloading started threads ({', '.join(threads)}): a fork would not be safe; beginning again without it")
        os.set_inheritable(keep, True)
        os.execv(sys.executable, [sys.executable, *again])
    gc.collect()
    gc.freeze()
    return loaded
