"""Trains on a cluster from a notebook cell; a lost machine costs no step. Here: the public names, loaded on first use.

`import jupyter_hyperpod as hp` imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import integrations as integrations
    from .loader.hub import hub_path as hub_path
    from .loader.local_path import local_path as local_path
    from .loader.model import load_model as load_model
    from .loader.write.save import save_model as save_model
    from .notebook import widgets as widgets
    from .policy.growth import GrowBatch as GrowBatch
    from .policy.guard import Guard as Guard
    from .runtime import faults as faults
    from .runtime.checkpoint.store import Checkpoint as Checkpoint
    from .runtime.data.tokens import TokenDataset as TokenDataset
    from .runtime.program.value_kinds import State as State
    from .runtime.session.session import Session as Session
    from .runtime.worker.elastic_events import elastic_event_detected as elastic_event_detected

__version__ = "0.1.0"

_PUBLIC = {
    "Checkpoint": ".runtime.checkpoint.store",
    "GrowBatch": ".policy.growth",
    "Guard": ".policy.guard",
    "Session": ".runtime.session.session",
    "State": ".runtime.program.value_kinds",
    "TokenDataset": ".runtime.data.tokens",
    "hub_path": ".loader.hub",
    "load_model": ".loader.model",
    "local_path": ".loader.local_path",
    "save_model": ".loader.write.save",
    "elastic_event_detected": ".runtime.worker.elastic_events",
    "submit": ".control.jobs",
    "sweep": ".notebook.function_sweeps",
}
_MODULES = {"faults": ".runtime.faults", "integrations": ".integrations", "widgets": ".notebook.widgets"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name], __name__)
    if name in _PUBLIC:
        try:
            return getattr(import_module(_PUBLIC[name], __name__), name)
        except ModuleNotFoundError as error:
            if not (sentence := import_module(".core.extras", __name__).remedy(error)):
                raise
            raise ModuleNotFoundError(f"jupyter_hyperpod.{name}: {sentence}", name=error.name) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_MODULES})


def load_ipython_extension(shell: Any) -> None:
    """Register the magics: ``%load_ext jupyter_hyperpod``."""
    import_module(".notebook.magics", __name__).register(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "../labextension/dist", "dest": "jupyter_hyperpod"}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    extension = import_module(".server.extension", __name__)
    return [{"module": extension.__name__, "app": extension.HyperpodExtension}]
