"""How a typed message becomes a JSON object and is read again: field by field, as its annotations say.

A message is a frozen dataclass made by `message`. On the wire it is ``{"type": ..., field: ...}``; a field of a
dataclass is an object, a tuple is an array. A field whose default is None is left out while it is None, an unknown
field is ignored, and a missing field takes its default. NaN and infinity are no numbers: journals cannot hold them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import Any, ClassVar, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from ...core.errors import ProtocolError

FOUND = 80  # characters of a wrong value in an error
_SCALARS: dict[Any, frozenset[type]] = {
    int: frozenset({int}),
    float: frozenset({int, float}),  # the reader looks at a float that is no number
    str: frozenset({str}),
    bool: frozenset({bool}),
    types.NoneType: frozenset({types.NoneType}),
}
_NONE: frozenset[type] = frozenset()
Read = Callable[[Any], Any]
M = TypeVar("M", bound="Message")


class Process(Enum):
    """Who sends and receives messages. A replica of several ranks has a leader, which is a worker, and followers."""

    COORDINATOR = "coordinator"
    AGENT = "agent"
    WORKER = "worker"
    FOLLOWER = "follower"


class Message:
    """The base of all messages. ``wire``: its ``type`` in JSON. ``senders`` send it, ``receivers`` act on it."""

    __slots__ = ()
    wire: ClassVar[str]
    senders: ClassVar[frozenset[Process]]
    receivers: ClassVar[frozenset[Process]]


MESSAGES: dict[str, type[Message]] = {}


@dataclass_transform(frozen_default=True)
def message(
    wire: str, sender: Process | tuple[Process, ...], to: Process | tuple[Process, ...]
) -> Callable[[type[M]], type[M]]:
    """Turn a class into a message that ``sender`` sends and ``to`` receives."""

    def made(plain: type[M]) -> type[M]:
        cls = dataclass(frozen=True, slots=True)(plain)
        cls.wire, cls.senders, cls.receivers = wire, _several(sender), _several(to)
        assert wire not in MESSAGES, f"two messages are called {wire}"
        MESSAGES[wire] = cls
        return cls

    return made


def encode(said: Message) -> dict[str, Any]:
    """The JSON object of a message."""
    found = _codec(type(said)).write(said)
    found["type"] = said.wire
    return found


def decode(found: Mapping[str, Any]) -> Message | None:
    """The message in a JSON object, None for a type that is unknown. Raises ProtocolError for a field that is wrong."""
    kind = found.get("type")
    cls = MESSAGES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        return None
    try:
        read: Message = _codec(cls).read(found)
    except _Wrong as wrong:
        raise ProtocolError(f"message {cls.wire!r}: {wrong}") from None
    return read


class _Wrong(Exception):
    """A value is not what an annotation says."""


class _Codec:
    """Of one dataclass."""

    def __init__(self, cls: type[Any]) -> None:
        hints = get_type_hints(cls)
        self._cls = cls
        self._fields = []
        self._writers = []
        for field in fields(cls):
            hint, default = hints[field.name], field.default
            if field.default_factory is not MISSING:
                default = field.default_factory()
            self._fields.append((field.name, _kinds(hint), _reader(hint), default))
            self._writers.append((field.name, _writer(hint), default is None))

    def write(self, value: Any) -> dict[str, Any]:
        found = {}
        for name, writer, optional in self._writers:
            one = getattr(value, name)
            if one is not None:
                found[name] = one if writer is None else writer(one)
            elif not optional:
                found[name] = None
        return found

    def read(self, found: Any) -> Any:
        if type(found) is not dict and not isinstance(found, Mapping):
            raise _Wrong(f"expected an object, found {_shown(found)}")
        values = []
        for name, kinds, read, default in self._fields:
            value = found.get(name, default)
            if (kind := type(value)) not in kinds or (kind is float and not isfinite(value)):
                if value is MISSING:
                    raise _Wrong(f"field {name!r} is missing")
                try:
                    value = read(value)
                except _Wrong as wrong:
                    raise _Wrong(f"field {name!r}: {wrong}") from None
            values.append(value)
        return self._cls(*values)


_CODECS: dict[Any, _Codec] = {}


def _codec(cls: Any) -> _Codec:
    if cls not in _CODECS:
        _CODECS[cls] = _Codec(cls)
    return _CODECS[cls]


def _several(processes: Process | tuple[Process, ...]) -> frozenset[Process]:
    return frozenset(processes if isinstance(processes, tuple) else (processes,))


def _kinds(hint: Any) -> frozenset[type]:
    """The types of values that need no further look."""
    if _is_union(hint):
        return frozenset().union(*map(_kinds, get_args(hint)))
    return _SCALARS.get(hint, _NONE)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (types.UnionType, Union)


def _reader(hint: Any) -> Read:
    if hint is Any:
        return lambda value: value
    if _is_union(hint):
        return _union_reader(hint)
    if is_dataclass(hint):
        return _codec(hint).read
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        return _array_reader(inner[0]) if inner[1:] == (...,) else _tuple_reader(hint)
    if origin in (dict, Mapping):
        return _object_reader(inner[1])
    return _scalar_reader(hint)


def _scalar_reader(hint: Any) -> Read:
    kinds = _SCALARS[hint] - {float}

    def read(value: Any) -> Any:
        if type(value) in kinds:
            return value
        if type(value) is float and isfinite(value):
            if hint is float:
                return value
            if hint is int and value.is_integer():
                return int(value)
        raise _Wrong(f"expected {hint.__name__}, found {_shown(value)}")

    return read


def _union_reader(hint: Any) -> Read:
    readers = [_reader(one) for one in get_args(hint)]

    def read(value: Any) -> Any:
        for one in readers:
            try:
                return one(value)
            except _Wrong as found:
                wrong = found
        raise wrong if value is not None else _Wrong(f"expected {hint}, found null")

    return read


def _array_reader(hint: Any) -> Read:
    kinds, reader = _kinds(hint) - {float}, _reader(hint)

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _Wrong(f"expected an array, found {_shown(value)}")
        return tuple([one if type(one) in kinds else reader(one) for one in value])

    return read


def _tuple_reader(hint: Any) -> Read:
    readers = [_reader(one) for one in get_args(hint)]

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise _Wrong(f"expected {len(readers)} values, found {_shown(value)}")
        return tuple([reader(one) for reader, one in zip(readers, value, strict=True)])

    return read


def _object_reader(hint: Any) -> Read:
    reader = _reader(hint)

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _Wrong(f"expected an object, found {_shown(value)}")
        return {name: reader(one) for name, one in value.items()}

    return read


def _writer(hint: Any) -> Callable[[Any], Any] | None:
    """What makes JSON of a value, None where it is JSON already: json writes tuples as arrays."""
    if is_dataclass(hint):
        return _codec(hint).write
    inner = [writer for one in get_args(hint) if one is not ... and (writer := _writer(one)) is not None]
    if not inner:
        return None
    (writer,) = inner
    if _is_union(hint):
        return writer
    assert get_origin(hint) is tuple and get_args(hint)[1:] == (...,), f"nothing writes {hint}"
    return lambda value: [writer(one) for one in value]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= FOUND else text[:FOUND] + "…"
