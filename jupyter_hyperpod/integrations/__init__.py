"""Other frameworks in a session: one module per framework, each imported only by the program that uses it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_FRAMEWORKS = ("accelerate", "lightning", "transformers")


def __getattr__(name: str) -> Any:
    if name in _FRAMEWORKS:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FRAMEWORKS})
