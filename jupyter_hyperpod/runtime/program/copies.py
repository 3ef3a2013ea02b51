"""Copies what a program keeps, so that it can travel, and puts copies back into the objects that they came from.

A copy holds numbers, text, tensors, arrays and containers of them; `comm.state_codec` encodes it without pickle. What
can be changed in place is changed in place, because other names of the program may refer to the same object.
"""

from __future__ import annotations

import io
import os
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import is_dataclass
from enum import Enum
from operator import is_
from pathlib import Path
from types import FunctionType, GeneratorType, ModuleType, SimpleNamespace
from typing import Any

import torch

from ..comm.state_codec import is_array
from ..session.optimizer_state import access, copy_tensor, has_state, put_array, put_tensor, set_memory_file
from .own_files import dictionary, factory_of, is_own_file, own_class, tuple_class

Copy = Any
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
TYPE, ENUM = "\0type", "\0enum"  # beside an object's copy, the name of its class; the copy of a member of an Enum
MODULES = "\0modules"  # beside it, the plain attributes of a module and of those inside
PART = "\0part"  # beside it, where not all attributes of an object are in it
NAMED = "\0named"  # the key of the copy of a named tuple
KIND = "\0kind"  # in the copy of a dictionary: which class it is of, and the name of its default factory
OBJECT = "\0object"  # the key of an object's copy, to tell it from a dictionary's
SKIPPED = object()  # the copy of what the session carries already, and of functions, which a cell defines anew
PLAIN = (bool, int, float, complex, str, bytes, type(None), range, torch.Size, torch.dtype, torch.device)
DICTIONARIES = ("dict", "OrderedDict", "defaultdict", "Counter")
LONG = 100  # items of a list
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


class Unfit(Exception):
    """A value cannot travel. ``path`` leads to it, beginning with "." or "["; ``kind`` is its type's name."""

    def __init__(self, path: str, value: Any) -> None:
        super().__init__(path)
        self.path = path
        self.kind = type(value).__name__
        self.is_iterator = hasattr(value, "__next__") and not isinstance(value, io.IOBase)
        packages = set(type(value).__module__.split("."))
        self.is_harmless = bool(packages & HARMLESS) or isinstance(value, io.IOBase)


def _type(value: Any) -> str:
    return "{0.__module__}.{0.__qualname__}".format(value if isinstance(value, type) else type(value))


def _is_foreign(value: Any) -> bool:
    """Whether `value` is an object of this package that is no part of the run, such as a step."""
    if isinstance(value, GeneratorType):
        return value.gi_code.co_filename.startswith(_PACKAGE)
    ours = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
    return ours and not has_state(value) and not isinstance(value, State)


def has_attributes(value: Any) -> bool:
    """Whether `value` is an object of the program's own class, which is copied attribute by attribute."""
    if isinstance(value, (State, SimpleNamespace, Namespace)):
        return True
    kind = type(value)
    if isinstance(value, (type, FunctionType)):
        return is_own_file(getattr(sys.modules.get(value.__module__), "__file__", None) or "") and bool(vars(value))
    if isinstance(value, torch.utils.data.Sampler):  # such as weights of samples that the cell computes anew
        return True
    if not hasattr(value, "__dict__") or isinstance(value, (torch.Tensor, torch.nn.Module)):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (file is not None and is_own_file(file))


def _is_frozen(value: Any) -> bool:
    """Whether an object is of a data class whose attributes never change."""
    parameters: Any = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def own_ids(session: Any, model: torch.nn.Module, *others: Any) -> frozenset[int]:
    """Ids of the objects that travel as the session's own, or that every cell makes alike, such as the data.

    A list of samples is not among them: a cell may append to it, such as to a memory of what an agent has seen.
    """
    found = [session, *model.modules(), *model.parameters(), *model.buffers(), *others]
    return frozenset(id(value) for value in found if value is not None and type(value) not in (list, dict, deque))


class Copier:
    """Copies values; ``own`` are the ids of objects that the session carries already: they are skipped.

    ``attributes`` are those that are copied of objects of the program's own classes; None for all. Copies of ``model``
    can be made where there is none, such as the best one so far. With ``kinds`` copies of dictionaries say of which
    class these are.
    """

    def __init__(
        self,
        own: Collection[int] = (),
        attributes: frozenset[str] | None = None,
        model: Any = None,
        kinds: bool = False,
    ) -> None:
        self._own = own
        self._of_states = Copier(own, attributes, model) if kinds else self
        self._kinds = kinds
        self._attributes = attributes
        self._model = model

    def copied(self, value: Any, before: Copy = None, path: str = "") -> Copy:
        """A copy of a value. ``before`` is an earlier copy, whose memory is used again where it fits. Raises Unfit."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if id(value) in self._own or isinstance(value, ModuleType) or _is_foreign(value):
            return SKIPPED
        if callable(value) and not has_state(value) and not has_attributes(value):
            return SKIPPED
        if isinstance(value, Enum):
            return {ENUM: value.name, TYPE: _type(value)}
        if isinstance(value, torch.Tensor):
            return copy_tensor(value, before)
        if is_array(value):
            return value.copy()
        if (how := access(value)) is not None:
            earlier = before.get(OBJECT) if isinstance(before, dict) else None
            state = self._of_states.copied(how[0](value), earlier, path)
            return {OBJECT: state, TYPE: _type(value)} | self._of_modules(value)
        if isinstance(value, dict) and kind.__name__ in DICTIONARIES:
            copies = self._named(((_key(k, path), v, f"[{k!r}]") for k, v in value.items()), before, path)
            return copies if kind is dict or not self._kinds else copies | {KIND: [kind.__name__, factory_of(value)]}
        if kind is list:
            return self._list(value, before, path)
        if kind is tuple and all(type(item) in PLAIN for item in value):
            return value
        if isinstance(value, (tuple, deque)):
            items = [self.copied(item, None, f"{path}[{place}]") for place, item in enumerate(value)]
            if any(item is SKIPPED for item in items):
                return SKIPPED
            if isinstance(value, tuple) and kind is not tuple:
                if tuple_class(_type(value)) is not kind:
                    raise Unfit(path, value)
                return {NAMED: tuple(items), TYPE: _type(value)}
            return deque(items, value.maxlen) if isinstance(value, deque) else tuple(items)
        if kind in (set, frozenset):
            items = [self.copied(item, None, path) for item in value]
            if any(item is SKIPPED or isinstance(item, dict) for item in items):
                raise Unfit(path, value)
            return kind(items)
        if has_attributes(value):
            earlier = before.get(OBJECT) if isinstance(before, dict) else None
            held = vars(value)
            small = is_dataclass(value) or _size(held) <= SMALL or not any(map(self._is_set, held))
            whole = _is_frozen(value) or ("[" in path and small)
            chosen = ((k, v, f".{k}") for k, v in held.items() if whole or self._is_chosen(value, k))
            copies = self._named(chosen, earlier, path)
            return {OBJECT: copies, TYPE: _type(value)} | ({PART: True} if len(copies) < len(held) else {})
        raise Unfit(path, value)

    def _of_modules(self, value: Any) -> dict[str, Copy]:
        """Chosen plain attributes of a module and of those inside it, which its state dictionary does not hold."""
        names = self._attributes or frozenset()
        modules = value.named_modules() if names and isinstance(value, torch.nn.Module) else ()
        found = {path: copies for path, module in modules if (copies := self.attributes_of(module, names))}
        return {MODULES: found} if found else {}

    def attributes_of(self, holder: Any, names: Collection[str]) -> dict[str, Copy]:
        """Copies of those attributes of these names that an object has and that can travel."""
        found = {}
        for name in names & vars(holder).keys():
            try:
                copy = self.copied(vars(holder)[name])
            except Unfit:
                continue
            if copy is not SKIPPED:
                found[name] = copy
        return found

    def set_attributes(self, holder: Any, copies: Mapping[str, Copy]) -> None:
        """Set attributes to what the copies of `attributes_of` hold. Raises Unfit."""
        for name, copy in copies.items():
            setattr(holder, name, self.merged(getattr(holder, name, None), copy))

    def _is_chosen(self, value: Any, attribute: str) -> bool:
        beside = type(value).__module__ != "__main__"  # a class of another file, whose methods were not read
        if self._attributes is None or beside or isinstance(value, (State, SimpleNamespace, Namespace)):
            return True
        return attribute in self._attributes or "__dict__" in self._attributes

    def _is_set(self, attribute: str) -> bool:
        return self._attributes is None or attribute in self._attributes or "__dict__" in self._attributes

    def _named(self, items: Iterator[tuple[Any, Any, str]], before: Copy, path: str) -> Copy:
        earlier = before if isinstance(before, dict) else {}
        copies = {key: self._item(value, earlier.get(key), path + step) for key, value, step in items}
        return {key: copy for key, copy in copies.items() if copy is not SKIPPED}

    def _item(self, value: Any, before: Copy, path: str) -> Copy:
        """One of several named values; where not all need to travel, what cannot travel is left out."""
        try:
            return self.copied(value, before, path)
        except Unfit as unfit:
            if self._attributes is None or unfit.is_iterator:
                raise
            return SKIPPED

    def _list(self, value: list[Any], before: Copy, path: str) -> Copy:
        """A copy of a list; of a history, to which scalars are only appended, only what is new is copied."""
        kept = before if type(before) is list else []
        known = len(kept)
        if known > LONG and known <= len(value) and type(kept[0]) in (*PLAIN, tuple) and all(map(is_, value, kept)):
            kept += [self.copied(item, None, f"{path}[{known + place}]") for place, item in enumerate(value[known:])]
            return kept
        copies = [self.copied(item, kept[p] if p < known else None, f"{path}[{p}]") for p, item in enumerate(value)]
        return SKIPPED if any(copy is SKIPPED for copy in copies) else copies

    def merged(self, target: Any, copy: Copy) -> Any:
        """The value that holds `copy`: `target` itself, changed in place where that is possible, else a new value.

        Raises Unfit for the copy of an object where `target` is another one.
        """
        if self._put(target, copy):
            return target
        if isinstance(copy, dict) and ENUM in copy and _type(target) == copy[TYPE]:
            return type(target)[copy[ENUM]]
        if isinstance(copy, dict) and TYPE in copy:
            return self.made(copy, target)
        if type(copy) is tuple and type(target) is tuple and len(copy) == len(target):
            pairs = zip(target, copy, strict=True)  # tensors anew: they are often parts of other values, too
            return tuple(self.merged(own, item) if isinstance(item, dict) else self.fresh(item) for own, item in pairs)
        return self.fresh(copy)

    def fresh(self, copy: Copy) -> Any:
        """A new value that holds `copy`. Raises Unfit for an object that cannot be made."""
        if isinstance(copy, dict):
            if TYPE in copy:
                return self.made(copy, None)
            items = {key: self.fresh(item) for key, item in copy.items() if key != KIND}
            try:
                kind, factory = copy.get(KIND, ("dict", None))
                return dictionary(kind, factory, items)
            except LookupError:
                raise Unfit("", None) from None
        if type(copy) in (list, tuple):
            return type(copy)(map(self.fresh, copy))
        return deque(map(self.fresh, copy), copy.maxlen) if isinstance(copy, deque) else self.copied(copy)

    def made(self, copy: dict[str, Any], target: Any) -> Any:
        """A new object of a class of the program, or a model as the session's, that holds `copy`. Raises Unfit."""
        if _is_copy_of(self._model, copy) and self._put(again := deepcopy(self._model), copy):
            return again
        if NAMED in copy and (named := tuple_class(copy[TYPE])) is not None:
            items = map(self.fresh, copy[NAMED])
            return tuple.__new__(named, items) if hasattr(named, "_fields") else named(tuple(items))
        if copy[TYPE] in ("_io.BytesIO", "_io.StringIO"):
            file = getattr(io, copy[TYPE][4:])()
            set_memory_file(file, copy[OBJECT])
            return file
        kind = own_class(copy[TYPE])
        if kind is not None and issubclass(kind, Enum) and ENUM in copy:
            return kind[copy[ENUM]]
        if kind is None or PART in copy or issubclass(kind, torch.nn.Module):
            raise Unfit("", target)
        made = kind.__new__(kind)
        if access(made) is not None or not has_attributes(made):
            raise Unfit("", target)
        for name, item in copy[OBJECT].items():
            object.__setattr__(made, name, self.merged(None, item))  # also of frozen data classes
        return made

    def _put(self, target: Any, copy: Copy) -> bool:
        """Change `target` to hold `copy`; False where that is not possible in place."""
        if type(target) in PLAIN:
            return False
        if isinstance(target, torch.Tensor):
            return put_tensor(target, copy)
        if is_array(target):
            return put_array(target, copy)
        if isinstance(copy, dict) and (ENUM in copy or NAMED in copy):
            return False
        if isinstance(copy, dict) and OBJECT in copy:
            if _is_frozen(target):  # it was replaced, and others may hold the one that is here
                return False
            return _type(target) == copy[TYPE] and self._put_object(target, copy[OBJECT], copy.get(MODULES, {}))
        if isinstance(target, dict) and isinstance(copy, dict):
            return self._put_items(target, copy)
        if type(target) is list and type(copy) is list:
            target[:] = [self.merged(target[p] if p < len(target) else None, item) for p, item in enumerate(copy)]
            return True
        if isinstance(target, deque) and isinstance(copy, deque):
            target.clear()
            target.extend(map(self.fresh, copy))
            return True
        if type(target) is set and type(copy) is set:
            target.clear()
            target.update(copy)
            return True
        return False

    def _put_object(self, target: Any, copy: Copy, modules: dict[str, dict[str, Copy]]) -> bool:
        if (how := access(target)) is not None:
            how[1](target, self._of_states.copied(copy))
            for path, attributes in modules.items():
                self.set_attributes(target.get_submodule(path), attributes)
            return True
        if not has_attributes(target) and not isinstance(target, FunctionType):
            return False
        for name, item in copy.items():
            setattr(target, name, self.merged(vars(target).get(name), item))
        return True

    def _put_items(self, target: dict[Any, Any], copy: dict[Any, Any]) -> bool:
        items = {key: self.merged(target.get(key), item) for key, item in copy.items() if key != KIND}
        skipped = {key: value for key, value in target.items() if key not in items and self._is_skipped(value)}
        target.clear()
        target.update(skipped | items)
        return True

    def _is_skipped(self, value: Any) -> bool:
        try:
            return self.copied(value) is SKIPPED
        except Unfit:  # an object of a library, which was left out of the copy, too
            return True


def _size(value: Any) -> int:
    """About how many numbers a value holds; more than `SMALL` where that is not seen."""
    if isinstance(value, torch.Tensor):
        return value.nelement()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value)) if len(value) <= LONG else SMALL + 1
    return int(value.size) if is_array(value) else 1 if type(value) in PLAIN else SMALL + 1


def _is_copy_of(model: torch.nn.Module | None, copy: dict[str, Any]) -> bool:
    return model is not None and _type(model) == copy[TYPE] and model.state_dict().keys() == copy[OBJECT].keys()


def _key(key: Any, path: str) -> Any:
    if key is None or isinstance(key, (str, int, float)):
        return key
    if isinstance(key, tuple):
        return tuple(_key(part, path) for part in key)
    raise Unfit(path, key)
