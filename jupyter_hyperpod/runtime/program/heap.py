"""Walks everything that a cell can reach, and notes what is there by path: two walks show what has changed between.

From the variables of the person's own frames it follows own functions (globals that they name, closures, defaults),
instances, classes, containers, modules of own files, and the session's model, data and optimizer. The insides of
Python's and torch's own objects, and of objects that only show or record, are left out.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import threading
import types
from argparse import Namespace
from collections import defaultdict, deque, namedtuple
from collections.abc import Hashable, Iterator
from queue import Queue
from types import FrameType
from typing import Any

import torch

from ..comm.state_codec import is_array
from ..process_settings import SETTINGS
from ..session.optimizer_state import access
from . import readings
from .analysis.emptied_files import KIND as EMPTIED
from .analysis.emptied_files import is_emptied
from .analysis.parsing import attributes_set
from .frames import callers, is_ours
from .functions import names_of
from .own_files import is_own_class, is_own_file
from .value_kinds import PLAIN, State, has_attributes, held_by
from .walk import REGISTERED, Noted, Path, Visit, Walk

SAMPLES = 8  # of the session's data, of which as many at each end are walked: to read 100 takes most of a walk
NODES = 5000  # at most, per walk
DEEPEST = 64  # steps of a path
CONTAINERS = (list, tuple, set, frozenset, dict, deque)
_OFTEN = {int, float, str, bool, type(None)}
_PACKAGE = __name__.partition(".")[0]
_MODULE = frozenset(vars(torch.nn.Module())) | {"training"}
_OPTIMIZER = {"state", "param_groups", "defaults", "step"}
_TORCH = ("torch.utils.data.", "torch.distributions.", "torch.quasirandom")  # of torch, whose objects are walked
_DESCRIPTORS = (types.MemberDescriptorType, type(vars(namedtuple("_Any", "a"))["a"]))  # how slots and fields are read
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)  # methods that are not written in Python
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, type)
_OWN = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)  # of the session, with something to look at
_NOT_FOLLOWED = (types.ModuleType, types.BuiltinFunctionType, types.MethodWrapperType, types.CodeType, FrameType)


class Heap:
    """``own``: ids of what the session carries. ``sources``: its model, data, optimizer and scheduler, by name."""

    def __init__(self, own: frozenset[int], sources: dict[str, Any]) -> None:
        self._set: dict[str, list[list[str]]] = {}
        self._staying: set[types.CodeType] = set()  # what runs between two steps
        self._settings: dict[Path, Noted] = {}  # as they were between two steps
        self._environ: tuple[dict[Any, Any], dict[Path, Noted]] = ({}, {})  # to decode it once
        self.own = own
        self._sources = {name: value for name, value in sources.items() if value is not None}

    def walk(self, between: bool = False) -> Walk:
        """Look at everything now; last at the variables of functions that do not run ``between`` two steps."""
        walk, seen = Walk(), set[int]()
        self._staying = {frame.f_code for frame in callers()} if between else self._staying
        todo, late = deque(self._roots()), deque(self._of_frames(staying=False))
        if between or not self._settings:  # a step may run inside a block that sets them for its time
            self._settings = {
                (("setting", name),): Noted(str(read()), "setting", 0, name, 0, name) for name, read in SETTINGS.items()
            }
        walk.found.update(self._settings)
        walk.found.update(self._environment())
        count = 0
        while todo or late:
            count += 1
            if count > NODES:
                walk.cut = True
                break
            one = (todo or late).popleft()
            todo.extend(self._look(one, walk, seen))
        return walk

    def _environment(self) -> dict[Path, Noted]:
        if (now := dict(os.environb if os.supports_bytes_environ else os.environ)) != self._environ[0]:
            noted: dict[Path, Noted] = {
                (("environ", v),): Noted(text, "value", 0, v, 0, v) for v, text in os.environ.items()
            }
            self._environ = now, noted
        return self._environ[1]

    def _roots(self) -> Iterator[Visit]:
        done = set[int]()
        yield from self._of_frames(staying=True)
        for frame in callers():
            if id(frame.f_globals) not in done:
                done.add(id(frame.f_globals))
                yield from _of_namespace(frame.f_globals)
                yield from self._of_libraries(frame)
        for name, value in self._sources.items():
            yield Visit(value, (("session", name),), 0, name, name)

    def _of_frames(self, staying: bool) -> Iterator[Visit]:
        for frame in callers():
            if (frame.f_code in self._staying) is staying and frame.f_locals is not frame.f_globals:
                for name, value in list(frame.f_locals.items()):
                    yield Visit(value, (("frame", (frame.f_code.co_qualname, name)),), id(frame), name, name)

    def _of_libraries(self, frame: FrameType) -> Iterator[Visit]:
        """Attributes of modules and classes of libraries that the file of a frame sets."""
        file, names = frame.f_code.co_filename, frame.f_globals
        if file not in self._set:
            self._set[file] = attributes_set("".join(linecache.getlines(file)))
        for name, *chain in self._set[file]:
            holder = names.get(name)
            path: Path = (("global", (str(names.get("__name__")), name)),)
            for attribute in chain[:-1]:
                holder, path = getattr(holder, attribute, None), (*path, ("attr", attribute))
            if isinstance(holder, (types.ModuleType, type)) and chain[-1] in vars(holder):
                yield _step(Visit(holder, path, 0, "", name), vars(holder)[chain[-1]], "attr", chain[-1], chain[-1])

    def _look(self, one: Visit, walk: Walk, seen: set[int]) -> list[Visit]:
        """Note a value; return what it holds."""
        value = one.value
        if type(value) in _OFTEN or isinstance(value, PLAIN):
            _note(walk, one, readings.plain(value), whole=0)
            return []
        if isinstance(value, _FUNCTIONS) and _may_be_replaced(one):
            _note(walk, one, readings.of_function(value), "function")
        walk.places[one.path] = one
        walk.cut = walk.cut or len(one.path) > DEEPEST
        if id(value) in seen or len(one.path) > DEEPEST:
            walk.aliases.setdefault(id(value), set()).add(str(one.path[0][1][-1]))
            return []
        seen.add(id(value))
        walk.holders.add(one.path)
        if isinstance(value, dict) and _is_of_module(value):
            return []  # scope = globals(): its variables have paths of their own
        if (content := readings.of_closed(value)) is not None:
            _note(walk, one, content)
            return []
        if isinstance(value, _BOUND) and not isinstance(value.__self__, types.ModuleType | type):
            return [_step(one, value.__self__, "attr", "__self__", one.name)]
        if _is_ours(value) or isinstance(value, _NOT_FOLLOWED):
            return list(_of_module(value)) if isinstance(value, types.ModuleType) else []
        if isinstance(value, threading.local):
            return list(_attributes(one))
        own = id(value) in self.own
        if own and one.inside and one.holder not in self.own:
            walk.touching.add(one.name)
        if own and not isinstance(value, _OWN) and one.path[0][0] != "session":
            seen.discard(id(value))  # the data: it has a root of its own
            walk.aliases.setdefault(id(value), set()).add(one.name)
            walk.variables |= {name: one.name for name, source in self._sources.items() if source is value}
            return []
        if readings.is_immutable(value) or (readings.shows(value) and not has_attributes(value)):
            return []
        return self._content(one, walk, own)

    def _content(self, one: Visit, walk: Walk, own: bool) -> list[Visit]:
        value = one.value
        if isinstance(value, torch.Tensor):
            if not own:
                _note(walk, one, readings.of_tensor(value))
            elif not isinstance(value, torch.nn.Parameter):
                _note(walk, one, readings.of_tensor(value), "late")  # a buffer that is not saved
            grad = value.grad if value.is_leaf and value.requires_grad and not own else None
            held = list(_attributes(one)) if value.__dict__ else []
            if value.is_leaf and not own:
                held.append(_step(one, value.requires_grad, "attr", "requires_grad", "requires_grad"))
            return held + ([_step(one, grad, "attr", "grad", one.name, holder=0)] if grad is not None else [])
        if is_array(value) or isinstance(value, getattr(sys.modules.get("numpy"), "ndarray", ())):
            _note(walk, one, readings.of_array(value), EMPTIED if is_emptied(value) else "value")
            return []
        if isinstance(value, torch.nn.Module):
            _note_hooks(walk, one)
            return list(_of_nn_module(one, own))
        if isinstance(value, torch.optim.Optimizer):
            _note_hooks(walk, one)
            if not own:
                _note(walk, one, readings.of_state(value))
            return [s for s in _attributes(one) if s.key not in _OPTIMIZER and not str(s.key).startswith("_")]
        if access(value) is not None:
            if not own:
                _note(walk, one, readings.of_state(value))
                if not self.own.isdisjoint(map(id, vars(value).values() if hasattr(value, "__dict__") else ())):
                    walk.touching.add(one.name)  # a scheduler, which changes the optimizer
            return list(_attributes(one)) if has_attributes(value) else []
        return self._compound(one, walk)

    def _compound(self, one: Visit, walk: Walk) -> list[Visit]:
        value = one.value
        if isinstance(value, CONTAINERS):
            content, whole = readings.of_container(value)
            _note(walk, one, content, "shape", whole=id(value))
            most = SAMPLES if value is self._sources.get("data") else readings.ITEMS
            items = [] if whole else list(_items(one, most))
            if isinstance(value, defaultdict) and not isinstance(value.default_factory, (type, type(None))):
                items.append(_step(one, value.default_factory, "attr", "default_factory", one.name))
            return items + (list(_attributes(one)) if hasattr(value, "__dict__") and not whole else [])
        if readings.is_cache(value):
            _note(walk, one, (value.cache_info().misses, readings.of_cache(value)), "cache")
            return [_step(one, value.__wrapped__, "attr", "__wrapped__", one.name)]
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial, type)):
            if (registered := readings.of_registry(value)) is not None:
                place = Visit(None, (*one.path, REGISTERED), id(value), REGISTERED[1], "register")
                _note(walk, place, registered, "setting")
            return list(_of_callable(one))
        if readings.is_iterator(value):
            running = getattr(value, "gi_running", False)
            if not running:
                _note(walk, one, readings.of_iterator(value), "iterator")
            return list(_attributes(one)) if has_attributes(value) else []
        if isinstance(value, Queue):
            return [_step(one, value.queue, "attr", "queue", one.name)]
        if str(type(value).__module__).startswith("torch") and not str(type(value).__module__).startswith(_TORCH):
            return []
        held = list(_attributes(one))
        if not held and not hasattr(value, "__dict__"):
            _note(walk, one, type(value).__name__, "opaque")
        if is_own_class(type(value)):
            held.append(_step(one, type(value), "class", "", one.name))
        return held


def _note(walk: Walk, one: Visit, content: Hashable, kind: str = "value", whole: int | None = None) -> None:
    shown = id(one.value) if whole is None else whole
    walk.found[one.path] = Noted(content, kind, one.holder, one.key, shown, one.name, one.inside)


def _note_hooks(walk: Walk, one: Visit) -> None:
    place = Visit(None, (*one.path, ("attr", "hooks")), id(one.value), "hooks", "hooks")
    _note(walk, place, hooks_of(one.value), "late")


def _step(one: Visit, value: Any, kind: str, key: Any, name: str, holder: int | None = None) -> Visit:
    path = (*one.path, (kind, key))
    inside = one.inside
    if not inside and kind == "attr" and not _is_own_object(one.value):
        inside = len(one.path)
    return Visit(value, path, id(one.value) if holder is None else holder, key, name, inside)


def _may_be_replaced(one: Visit) -> bool:
    """Whether a function is a variable, an attribute of an own object or of what variables hold, or a ``forward``."""
    if len(one.path) == 1:
        return one.path[0][0] == "global"
    return one.path[-1][0] == "attr" and (not one.inside or one.inside == len(one.path) - 1 or one.key == "forward")


def _is_own_object(value: Any) -> bool:
    if isinstance(value, (State, types.SimpleNamespace, Namespace, types.FunctionType, torch.Tensor)):
        return True
    return is_own_class(value if isinstance(value, type) else type(value))


def _is_ours(value: Any) -> bool:
    kind = value if isinstance(value, (type, types.FunctionType)) else type(value)
    if isinstance(value, types.GeneratorType):
        return is_ours(value.gi_code.co_filename)
    name = getattr(kind, "__module__", "") or ""
    return name.partition(".")[0] == _PACKAGE and not isinstance(value, State)


def _of_namespace(names: dict[str, Any]) -> Iterator[Visit]:
    module = str(names.get("__name__", ""))
    for name, value in list(names.items()):
        if not name.startswith("__"):
            yield Visit(value, (("global", (module, name)),), id(names), name, name)


def _of_module(module: types.ModuleType) -> Iterator[Visit]:
    file = vars(module).get("__file__")  # not getattr(), at which a module that is imported on use would be imported
    if file and is_own_file(file):
        yield from _of_namespace(vars(module))


def _is_of_module(names: dict[Any, Any]) -> bool:
    """Whether a dictionary holds the variables of a module."""
    name = names.get("__name__")
    return isinstance(name, str) and name in sys.modules and vars(sys.modules[name]) is names


def hooks_of(value: Any) -> Hashable:
    """The hooks of the program that a module, its own parameters or an optimizer have."""
    tables = [table for name, table in vars(value).items() if name.endswith("hooks") and isinstance(table, dict)]
    for parameter in value._parameters.values() if isinstance(value, torch.nn.Module) else ():
        names = ("_backward_hooks", "_post_accumulate_grad_hooks")
        tables += [table for name in names if (table := getattr(parameter, name, None))]
    functions = [hook for table in tables for hook in table.values()]
    codes = [getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None) for hook in functions]
    files = [getattr(code, "co_filename", "<frozen") for code in codes]
    own = [hook for hook, file in zip(functions, files, strict=True) if is_own_file(file)]
    return tuple(map(str, map(readings.of_function, own)))


def _of_nn_module(one: Visit, own: bool) -> Iterator[Visit]:
    value = one.value
    builtin = type(value).__module__.startswith("torch.")
    tensors = {} if own else {**value._parameters, **value._buffers}
    kept = {name: value._buffers[name] for name in value._non_persistent_buffers_set} if own else {}
    marked = {name: p for name, p in value._parameters.items() if p is not None and p.__dict__} if own else {}
    for name, inner in {**tensors, **kept, **marked, **value._modules}.items():
        if inner is not None:
            yield _step(one, inner, "attr", name, one.name if builtin else name, holder=id(value))
    if not own:
        yield _step(one, value.training, "attr", "training", "training")
    for name, inner in list(vars(value).items()):
        if name not in _MODULE and (
            name == "forward" or not (builtin and isinstance(inner, (tuple, types.FunctionType)))
        ):
            yield _step(one, inner, "attr", name, name)
    if not builtin and _is_own_object(value):
        yield _step(one, type(value), "class", "", one.name)


def _attributes(one: Visit) -> Iterator[Visit]:
    value, own = one.value, _is_own_object(one.value)
    # torch keeps the versions of modules in an attribute of the dictionaries that state_dict() returns
    names = [(name, inner) for name, inner in list(held_by(value).items()) if name != "_metadata"]
    for name, inner in names:
        yield _step(one, inner, "attr", name, name if own else one.name)


def _items(one: Visit, most: int) -> Iterator[Visit]:
    value = one.value
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    if isinstance(value, (set, frozenset)):
        pairs = []
    if len(pairs) > 2 * most:
        pairs = pairs[:most] + pairs[-most:]
    for key, inner in pairs:
        if isinstance(key, PLAIN):
            yield _step(one, inner, "item", key, one.name)


def _of_callable(one: Visit) -> Iterator[Visit]:
    value = one.value
    if isinstance(value, functools.partial):
        yield _step(one, value.func, "attr", "func", one.name)
        code = getattr(value.func, "__code__", None)
        for place, inner in enumerate(value.args):
            name = code.co_varnames[place] if code and place < code.co_argcount else one.name
            todo = Visit(value.args, (*one.path, ("attr", "args")), id(value), "args", name)
            yield _step(todo, inner, "item", place, name)
        for name, inner in value.keywords.items():
            todo = Visit(value.keywords, (*one.path, ("attr", "keywords")), id(value), "keywords", name)
            yield _step(todo, inner, "item", name, name)
    elif isinstance(value, types.MethodType):
        yield _step(one, value.__func__, "attr", "__func__", one.name)
        yield _step(one, value.__self__, "attr", "__self__", one.name)
    elif isinstance(value, type):
        yield from _of_class(one)
    elif is_own_file(value.__code__.co_filename):
        yield from _of_function(one)


def _of_class(one: Visit) -> Iterator[Visit]:
    own = _is_own_object(one.value)
    for name, inner in list(vars(one.value).items()):
        inner = getattr(inner, "__func__", inner) if isinstance(inner, (staticmethod, classmethod)) else inner
        inner = inner.fget if isinstance(inner, property) else inner
        follows = own and isinstance(inner, types.FunctionType)
        if not name.startswith("__") or follows:
            if (
                follows
                or isinstance(inner, (*PLAIN, *CONTAINERS))
                or (own and not callable(inner) and not isinstance(inner, _DESCRIPTORS))
            ):
                yield _step(one, inner, "attr", name, name)


def _of_function(one: Visit) -> Iterator[Visit]:
    value = one.value
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        try:
            yield _step(one, cell.cell_contents, "closure", name, name, holder=id(cell))
        except ValueError:  # not bound yet
            continue
    names = value.__code__.co_varnames[: value.__code__.co_argcount]
    defaults = value.__defaults__ or ()
    for name, inner in [
        *zip(names[len(names) - len(defaults) :], defaults, strict=True),
        *(value.__kwdefaults__ or {}).items(),
    ]:
        yield _step(one, inner, "default", name, name)
    for name, inner in list(vars(value).items()):
        yield _step(one, inner, "attr", name, name)
    named = value.__globals__
    module = str(named.get("__name__", ""))
    for name in sorted(names_of(value.__code__)):
        if name in named and not name.startswith("__"):
            yield Visit(named[name], (("global", (module, name)),), id(named), name, name)
