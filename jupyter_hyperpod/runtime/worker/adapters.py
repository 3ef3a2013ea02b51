"""Adapts libraries when a cell imports them: IPython's display functions, tqdm's bar for notebooks, multiprocessing.

In a worker there is no kernel. IPython would print values, and the widgets of tqdm's bar would reach nobody. For
`multiprocessing` see `spawned.py`. The generators of numpy and torch are seeded, so that a cell draws the same numbers
whether or not its agent has imported them ahead.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from ..program import generators
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


def seed_everything(seed: int, threads: int | None = None) -> None:
    """Seed the generators of Python, numpy and torch, the last two as soon as they are imported."""
    random.seed(seed)
    _adapt_now_or_later({"numpy": partial(_seed_numpy, seed), "torch": partial(_seed_torch, seed, threads)})


def _seed_numpy(seed: int, module: Any) -> None:
    module.random.seed(seed % 2**32)
    generators.note_numpy()


def _seed_torch(seed: int, threads: int | None, module: Any) -> None:
    module.manual_seed(seed)
    if threads is not None:
        module.set_num_threads(threads)


class _Loader:
    """Loads a module as `loader` does, and adapts it then."""

    def __init__(self, loader: Any, adapt: Callable[[Any], None]) -> None:
        self._loader, self._adapt = loader, adapt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._adapt(module)


class _Finder:
    """Finds the modules that are adapted, before the usual finders do."""

    def __init__(self, adapted: Mapping[str, Callable[[Any], None]]) -> None:
        self._adapted = adapted

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._adapted:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._adapted[name])  # type: ignore[assignment]
        return spec


def begin() -> None:
    """Adapt the modules that are imported already, and those that will be."""
    _adapt_now_or_later(ADAPTED)


def _adapt_now_or_later(adapted: Mapping[str, Callable[[Any], None]]) -> None:
    later = dict(adapted)
    for name in adapted:
        if name in sys.modules:
            later.pop(name)(sys.modules[name])
    if later:
        sys.meta_path.insert(0, _Finder(later))
