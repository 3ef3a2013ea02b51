"""Short comparable values for what objects hold: two of them are equal where nothing has changed in between."""

from __future__ import annotations

import abc
import datetime
import functools
import gc
import hashlib
import io
import itertools
import os
import sys
import threading
import types
import weakref
import zlib
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..comm.state_codec import is_array
from ..session.optimizer_state import access
from .copies.pandas_state import seen_of_table, table_state
from .own_files import is_own_class, is_own_file
from .value_kinds import HARMLESS, PLAIN

READ_WHOLE = 65_536  # elements of a tensor or an array that is read whole; of larger ones as many are sampled
ROWS = 1000  # of a data frame, of which more are sampled
ITEMS = 50  # of a container, of which as many at each end are walked
# Packages beside those of copies.HARMLESS whose objects show, record or measure; and some there that hold content.
SHOWS = (
    HARMLESS
    | frozenset(
        "GPUtil _ctypes aim alive_progress asyncio atexit cProfile codecarbon comet_ml ctypes dvclive http "
        "line_profiler linecache loguru memory_profiler multiprocessing neptune plotly prometheus_client pstats psutil "
        "pynvml requests seaborn selectors signal ssl structlog tensorboardX torchinfo tracemalloc traceback urllib "
        "warnings".split()
    )
) - {"dataclasses", "functools", "io", "_io", "queue", "types", "typing", "_csv", "csv"}
_ITERATORS = (types.GeneratorType, types.AsyncGeneratorType, types.CoroutineType)
_BUFFERS = {
    *(("builtins", "bytearray"), ("builtins", "memoryview"), ("array", "array"), ("mmap", "mmap")),
    *(("_ctypes", name) for name in ("_SimpleCData", "Array", "Structure", "Union")),
}
_CACHE = type(functools.lru_cache(lambda: None))


def shows(value: Any) -> bool:
    """Whether an object only shows, records or measures what happens, by the package of its class.

    An event and a semaphore hold a flag and a count, on which the training may depend.
    """
    return not isinstance(value, (threading.Event, threading.Semaphore)) and bool(
        SHOWS.intersection(type(value).__module__.split("."))
    )


def is_immutable(value: Any) -> bool:
    """Whether `value` is a table, a column or a schema of Arrow, or reads a file of it by place: these never change."""
    kind = type(value)
    return kind.__module__ in ("pyarrow.lib", "pyarrow._parquet") and not any(
        hasattr(kind, name) for name in ("read", "__next__", "write")
    )


def is_cache(value: Any) -> bool:
    """Whether `value` is a function wrapped by `functools.lru_cache` or `functools.cache`."""
    return isinstance(value, _CACHE)


def of_closed(value: Any) -> Hashable | None:
    """The content of an object into which no path leads: a date, a context variable, a database, weak references.

    None for other objects.
    """
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta)):
        return "moment", repr(value)
    if isinstance(value, ContextVar):
        return "context", nested(value.get(None), 3)
    if (sqlite3 := sys.modules.get("sqlite3")) is not None and isinstance(value, sqlite3.Connection):
        return _of_database(value, sqlite3.Error)
    if (buffer := _buffer_of(value)) is not None:
        return type(value).__name__, len(buffer), zlib.crc32(buffer[:READ_WHOLE]), zlib.crc32(buffer[-READ_WHOLE:])
    if isinstance(value, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)):
        return "weak", nested(list(value.values()), 3)
    return None


def _of_database(database: Any, error: type[Exception]) -> Hashable:
    """How many rows this process has changed in a database of sqlite3 that lies in its memory."""
    with suppress(error):  # a closed one, or that of another thread
        cursor = database.cursor()
        cursor.row_factory = None  # the program's own may give dictionaries
        files = [row[2] for row in cursor.execute("pragma database_list")]
        return "database", 0 if any(files) else database.total_changes
    return "database", None


def _buffer_of(value: Any) -> memoryview | None:
    """The memory of numbers or bytes that an object without attributes holds, None for other objects."""
    if type(value).__module__ == "multiprocessing.sharedctypes":
        value = getattr(value, "get_obj", lambda: value)()
    kinds = {(kind.__module__, kind.__name__) for kind in type(value).__mro__}
    if not kinds.isdisjoint(_BUFFERS):
        with suppress(TypeError, ValueError):  # a released one
            return memoryview(value).cast("B")
    return None


def of_function(value: Any) -> Hashable:
    """Which function or class this is: its name and where its code begins."""
    code = getattr(value, "__code__", None)
    name = getattr(value, "__qualname__", type(value).__name__)
    return "function", name, code and (code.co_filename, code.co_firstlineno)


def of_registry(value: Any) -> Hashable | None:
    """The program's own functions or classes that were registered with a function of `functools.singledispatch`, or
    with an abstract class; None for other functions and classes.
    """
    if isinstance(value, abc.ABCMeta):
        found = [reference() for reference in abc._get_dump(value)[0]]  # type: ignore[attr-defined]
        return tuple(sorted(str(of_function(kind)) for kind in found if kind is not None and is_own_class(kind)))
    registry = vars(value).get("registry") if isinstance(value, types.FunctionType) else None
    if isinstance(registry, types.MappingProxyType) and "dispatch" in vars(value):
        codes = {kind: getattr(function, "__code__", None) for kind, function in registry.items()}
        own = [kind for kind, code in codes.items() if code is not None and is_own_file(code.co_filename)]
        return tuple(sorted((str(kind), str(of_function(registry[kind]))) for kind in own))
    return None


def is_iterator(value: Any) -> bool:
    """Whether `value` has a position that moves when it is used, such as a generator or a file that is read."""
    return isinstance(value, io.IOBase) or (hasattr(type(value), "__next__") and hasattr(type(value), "__iter__"))


def plain(value: Any) -> Hashable:
    """A number or text; NaN is equal to itself here."""
    return (type(value).__name__, "nan" if value != value else value)


class _Writes(int):
    """Torch's count of writes to a tensor: that of a process, so `digest`, which members compare, does not see it."""

    def __repr__(self) -> str:
        return ""


def of_tensor(value: torch.Tensor) -> Hashable:
    """Shape, kind and content of a tensor; of a large one, of evenly spread elements, and torch's count of writes."""
    data = value.detach()
    if data.layout is torch.sparse_coo:
        return "tensor", tuple(value.shape), of_tensor(data._indices()), of_tensor(data._values())
    if data.is_meta or data.layout is not torch.strided:
        return "tensor", _Writes(data._version)
    data = data.resolve_conj().resolve_neg()
    large = data.nelement() > READ_WHOLE
    if large:
        flat = data.view(-1) if data.is_contiguous() else data.reshape(-1)
        data = flat[:: flat.nelement() // READ_WHOLE + 1]
    content = zlib.crc32(data.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes()) if data.nelement() else 0
    return (
        "tensor",
        tuple(value.shape),
        str(value.dtype),
        content,
        _Writes(value._version if large and not value.is_inference() else 0),
    )


def of_array(value: Any) -> Hashable:
    """Shape, kind and content of an array, or of evenly spread elements of a large one."""
    if value.dtype.hasobject:
        return "array", value.shape, value.dtype.str, nested(value.tolist(), 3)
    flat = value.reshape(-1)
    if flat.size > READ_WHOLE:
        flat = flat[:: flat.size // READ_WHOLE + 1]
    return "array", value.shape, value.dtype.str, zlib.crc32(flat.tobytes())


def of_state(value: Any) -> Hashable:
    """The state of a generator of random numbers, an optimizer, a scheduler or another object with ``state_dict``."""
    how = access(value)
    assert how is not None
    with suppress(Exception):  # a class of somebody else may do anything in state_dict()
        return nested(seen_of_table(value, ROWS) if how[0] is table_state else how[0](value), 6)
    return "state"


def nested(value: Any, depth: int) -> Hashable:
    """The content of nested containers."""
    if isinstance(value, PLAIN):
        return plain(value)
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if is_array(value):
        return of_array(value)
    if depth and isinstance(value, dict):
        return "dict", tuple((nested(k, 1), nested(v, depth - 1)) for k, v in list(value.items())[:READ_WHOLE])
    if depth and isinstance(value, (list, tuple, deque)):
        return type(value).__name__, tuple(nested(item, depth - 1) for item in list(value)[:READ_WHOLE])
    return type(value).__name__


def of_container(value: Any) -> tuple[Hashable, bool]:
    """What is seen of a container without its items, and whether that is all: its items are numbers and text alone."""
    items = list(value.values()) if isinstance(value, dict) else list(value)
    kinds = set(map(type, items))
    keys: Hashable = tuple(map(_name, value)) if isinstance(value, dict) and len(value) <= ITEMS else ()
    if kinds <= _PLAIN:
        with suppress(TypeError):
            return (
                type(value).__name__,
                len(items),
                keys,
                hash(frozenset(items) if _is_set(value) else tuple(items)),
            ), True
    hidden = by_object(value) if isinstance(value, dict) else ()
    return (type(value).__name__, len(items), keys, hidden), False


_PLAIN = set(PLAIN) - {torch.Size}


def _is_set(value: Any) -> bool:
    return isinstance(value, (set, frozenset))


def by_object(value: dict[Any, Any]) -> Hashable:
    """The content of what a dictionary holds under keys that are objects: no path leads there."""
    return tuple(nested(inner, 3) for key, inner in list(value.items())[:ITEMS] if not isinstance(key, PLAIN))


def _name(key: Any) -> Hashable:
    return plain(key) if isinstance(key, PLAIN) else type(key).__name__


def of_iterator(value: Any) -> Hashable:
    """The position of a generator, an iterator or a file."""
    if isinstance(value, io.IOBase):
        return _of_file(value)
    if isinstance(value, _ITERATORS):
        frame = getattr(value, "gi_frame", None)
        return "generator", frame and (frame.f_lasti, nested(dict(frame.f_locals), 2))
    if isinstance(value, _BaseDataLoaderIter):
        return "iterator", value._num_yielded
    if isinstance(value, (itertools.count, itertools.repeat)):
        return "iterator", repr(value)
    for name in ("line_num", "__length_hint__"):
        with suppress(Exception):
            found = getattr(value, name)
            return "iterator", found() if callable(found) else found
    with suppress(Exception):  # an iterator of somebody else
        reduced = value.__reduce__()
        return "iterator", nested(reduced[1:], 3)
    return "iterator"


def _of_file(file: Any) -> Hashable:
    if isinstance(file, (io.StringIO, io.BytesIO)) and not file.closed:
        return "memory file", file.tell(), hash(file.getvalue())
    with suppress(Exception):
        if file.closed or not file.readable():
            return "file"
        try:
            return "file", file.tell()
        except OSError:  # lines of a text file are being read
            return "file", file.buffer.tell(), os.lseek(file.fileno(), 0, os.SEEK_CUR), id(file)
    return "file"


def of_cache(value: Any) -> Hashable:
    """What a cached function keeps: the content of its results."""
    return tuple(
        nested(item, 3) for kept in gc.get_referents(value) if isinstance(kept, dict) for item in _results(kept)
    )


def _results(kept: dict[Any, Any]) -> list[Any]:
    found = []
    for item in list(kept.values())[:ITEMS]:
        inner = gc.get_referents(item) if type(item).__name__ == "_lru_list_elem" else [item]
        found += [one for one in inner if type(one).__name__ != "_lru_list_elem"]
    return found


def hidden(value: Any) -> str:
    """The class of a part of an object whose content cannot be seen, or ""."""
    for inner in [] if isinstance(value, type) else list(getattr(value, "__dict__", {}).values()):
        known = isinstance(inner, (*PLAIN, torch.Tensor, types.ModuleType, type)) or callable(inner)
        if not (known or hasattr(inner, "__dict__") or hasattr(type(inner), "__len__") or shows(inner)):
            if not access(inner) and not is_array(inner) and not hasattr(type(inner), "__slots__"):
                return type(inner).__name__
    return ""


def changing(function: Any, changed: frozenset[str]) -> list[str]:
    """Names that a function reads and that change in the run."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    values = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    for name, cell in cells:
        values[name] = cell.cell_contents
    kinds = (torch.nn.Module, torch.optim.Optimizer)
    return [name for name, value in values.items() if name in changed or isinstance(value, kinds)]


def digest(content: Any, kind: str) -> str:
    """A digest of a content of this kind, for other processes."""
    if kind == "shape" and content[0] == "OrderedDict":
        content = ("dict", *content[1:])  # its copy may be a plain one
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]
