"""Kinds of values that a program keeps: which are plain, which have attributes to copy, and which cannot travel."""

from __future__ import annotations

import io
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from enum import EnumMeta
from fractions import Fraction
from types import FunctionType, GeneratorType, SimpleNamespace
from typing import Any, Protocol

import torch

from ..comm.state_codec import PATHS, is_array
from ..session.optimizer_state import has_state
from .own_files import THIS_PACKAGE, is_own_file

PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), range, Decimal, Fraction),
    *(torch.Size, torch.dtype, torch.device, *PATHS),
)
DICTIONARIES = ("dict", "OrderedDict", "defaultdict", "Counter")
LONG, DEEP = 100, 20  # items of a list, lists in lists
SMALL = 1_000_000  # numbers in an object of a container, of which all attributes are copied
# Packages whose objects show or record what happens, and do not change it.
HARMLESS = frozenset(
    "IPython _csv _io _thread concurrent csv dataclasses datetime functools io ipywidgets logging matplotlib mlflow "
    "pathlib queue re rich socket subprocess tensorboard threading time tqdm types typing wandb weakref".split()
)


class State:
    """A namespace for plain values that a run carries from step to step: ``State(best=math.inf, epoch=0)``.

    Its attributes may be numbers, text, tensors, arrays and containers of them.
    """

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


NAMESPACES: dict[str, Any] = {f"{k.__module__}.{k.__qualname__}": k for k in (State, SimpleNamespace, Namespace)}


class Unfit(Exception):
    """A value cannot travel. ``path`` leads to it, beginning with "." or "["; ``kind`` is its type's name."""

    def __init__(self, path: str, value: Any, kind: str = "") -> None:
        """``kind``: where there is a copy instead of a value, the class of what it is of."""
        super().__init__(path)
        self.path = path
        self.kind = kind.rpartition(".")[2] or type(value).__name__
        self.is_iterator = hasattr(value, "__next__") and not isinstance(value, io.IOBase)
        packages = set(type(value).__module__.split("."))
        self.is_harmless = bool(packages & HARMLESS) or isinstance(value, io.IOBase)


class Known(Protocol):
    """Names objects that every member has."""

    def key_of(self, value: Any) -> str | None:
        """What names an object, None for one that other members do not have."""

    def of_key(self, key: str) -> Any:
        """The object of this member that a key names. Raises LookupError."""

    def is_view(self, key: str) -> bool:
        """Whether a key names a view of the session's own tensors, whose content travels anyway."""

    def label_of(self, value: Any) -> str:
        """What numbers a new object, the same in all copies of one step."""

    def labelled(self, label: str, make: Callable[[], Any]) -> Any:
        """The object that was made for a number in this step, else a new one."""

    def unused(self, target: Any, label: str) -> Any:
        """An object that is to hold the copy of this number; None where it holds that of another one."""


def type_name(value: Any) -> str:
    return "{0.__module__}.{0.__qualname__}".format(value if isinstance(value, type) else type(value))


def is_foreign(value: Any) -> bool:
    """Whether `value` is an object of this package that is no part of the run, such as a step."""
    if isinstance(value, GeneratorType):
        return value.gi_code.co_filename.startswith(THIS_PACKAGE)
    ours = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
    return ours and not has_state(value) and not isinstance(value, State)


def has_attributes(value: Any) -> bool:
    """Whether `value` is an object of the program's own class, which is copied attribute by attribute."""
    if isinstance(value, (State, SimpleNamespace, Namespace)):
        return True
    kind = type(value)
    if isinstance(value, EnumMeta):
        return False  # what Enum keeps in its class, no program changes
    if isinstance(value, (type, FunctionType)):
        return is_own_file(getattr(sys.modules.get(value.__module__), "__file__", None) or "") and bool(vars(value))
    if isinstance(value, torch.utils.data.Sampler):  # such as weights of samples that the cell computes anew
        return True
    if not hasattr(value, "__dict__") and not slots_of(kind):
        return False
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (file is not None and is_own_file(file))


def slots_of(kind: type) -> tuple[str, ...]:
    """The attributes that a class names in ``__slots__``, and those of its bases."""
    found = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = (name for slots in found for name in ((slots,) if isinstance(slots, str) else slots))
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def held_by(value: Any) -> dict[str, Any]:
    """The attributes of an object, by name."""
    held: dict[str, Any] = getattr(value, "__dict__", {})
    if slots := slots_of(type(value)):
        return held | {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return held


def set_held(target: Any, name: str, value: Any) -> None:
    """Set an attribute as `held_by` shows it. A class of the program may do something else in ``__setattr__()``."""
    own = any("__setattr__" in vars(base) for base in type(target).__mro__[:-1])
    own = own and has_attributes(target) and not is_frozen(target)
    if not own or isinstance(target, type):
        setattr(target, name, value)
    elif name in slots_of(type(target)):
        object.__setattr__(target, name, value)
    else:
        target.__dict__[name] = value


def is_frozen(value: Any) -> bool:
    """Whether an object is of a data class whose attributes never change."""
    parameters: Any = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def size(value: Any, depth: int = DEEP) -> int:
    """About how many numbers a value holds; more than `SMALL` where that is not seen, or is nested deeper."""
    if isinstance(value, torch.Tensor):
        return value.nelement()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        found = 0 if len(value) <= LONG and depth else SMALL + 1
        for item in value:
            if found > SMALL:
                break
            found += size(item, depth - 1)
        return found
    return int(value.size) if is_array(value) else 1 if type(value) in PLAIN else SMALL + 1


def is_of_model(model: torch.nn.Module | None, kind: str, state: Any) -> bool:
    """Whether a state dictionary, of an object of this kind, fits a model."""
    return (
        model is not None
        and type_name(model) == kind
        and isinstance(state, dict)
        and model.state_dict().keys() == state.keys()
    )
