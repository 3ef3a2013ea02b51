"""Adapts libraries when a cell imports them: IPython's display functions, tqdm's bar for notebooks, multiprocessing.

In a worker there is no kernel. IPython would print values, and the widgets of tqdm's bar would reach nobody. For
`multiprocessing` see `spawned.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from . import displays, spawned


def _show_here(module: Any) -> None:
    for name in ("display", "update_display", "publish_display_data", "clear_output"):
        setattr(module, name, getattr(displays, name))


def _draw_with_text(module: Any) -> None:
    """Replace the bar made of widgets by the one made of text, which takes one option less."""
    base: Any = sys.modules["tqdm.std"].tqdm

    def __init__(self: Any, *values: Any, display: bool = True, **options: Any) -> None:
        base.__init__(self, *values, **options)

    bar: Any = type("tqdm_notebook", (base,), {"__init__": __init__, "__module__": module.__name__})

    def trange(*values: int, **options: Any) -> Any:
        return bar(range(*values), **options)

    module.tqdm = module.tqdm_notebook = bar
    module.trange = module.tnrange = trange


ADAPTED: dict[str, Callable[[Any], None]] = {
    "IPython.core.display_functions": _show_here,
    "tqdm.notebook": _draw_with_text,
    "multiprocessing.spawn": spawned.adapt,
}


class _Loader:
    """Loads a module as `loader` does, and adapts it then."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        ADAPTED[module.__name__](module)


class _Finder:
    """Finds the modules that are adapted, before the usual finders do."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in ADAPTED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


def begin() -> None:
    """Adapt the modules that are imported already, and those that will be."""
    for name, adapt in ADAPTED.items():
        if name in sys.modules:
            adapt(sys.modules[name])
    sys.meta_path.insert(0, _Finder)
