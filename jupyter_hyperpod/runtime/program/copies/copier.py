"""Copies what a program keeps, so that it can travel, and puts copies back into the objects that they came from.

A copy holds numbers, text, tensors, arrays and containers of them; `comm.state_codec` encodes it without pickle. What
can be changed in place is changed in place, because other names of the program may refer to the same object.
"""

from __future__ import annotations

from argparse import Namespace
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from operator import is_
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from ...session.optimizer_state import access, copy_memory, has_memory, has_state, new_object, put_memory
from ..own_files import dictionary, factory_of, is_own_class, own_class, plain_items, set_items, tuple_class
from ..value_kinds import (
    DICTIONARIES,
    LONG,
    NAMESPACES,
    PLAIN,
    SMALL,
    Known,
    State,
    Unfit,
    has_attributes,
    held_by,
    is_foreign,
    is_frozen,
    is_of_model,
    set_held,
    size,
    type_name,
)
from .forms import (
    CONTENT,
    ENUM,
    ITEMS,
    ITSELF,
    KIND,
    LABEL,
    MODULES,
    NAMED,
    OBJECT,
    ORIGIN,
    PART,
    SHARED,
    SKIPPED,
    TRAINING,
    TYPE,
    Copy,
)
from .keys import key_from, key_of
from .pandas_state import table_state


class Copier:
    """Copies values; ``own`` are the ids of objects that the session carries already: they are skipped.

    ``attributes`` are those that are copied of objects of the program's own classes; None for all. Copies of ``model``
    can be made where there is none, such as the best one so far. With ``kinds`` copies of dictionaries say of which
    class these are. Of ``known`` objects what names them is copied, and with ``contents`` what they hold, too.
    """

    def __init__(
        self,
        own: Collection[int] = (),
        attributes: frozenset[str] | None = None,
        model: Any = None,
        kinds: bool = False,
        known: Known | None = None,
        contents: bool = False,
    ) -> None:
        self._own = own
        self._of_states = Copier(own, attributes, model) if kinds or known is not None else self
        self._known = known
        self._contents = contents
        self._open = set[int]()  # ids of the objects whose attributes are being copied
        self._inside = set[int]()  # ids of the objects whose content is being copied
        self._kinds = kinds
        self._attributes = attributes
        self._model = model

    def copied(self, value: Any, before: Copy = None, path: str = "") -> Copy:
        """A copy of a value. ``before`` is an earlier copy, whose memory is used again where it fits. Raises Unfit."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if self._known is not None and (key := self._known.key_of(value)) is not None:
            return {ORIGIN: key} | ({} if self._known.is_view(key) else self._content(value, before, path))
        if self._known is None or not isinstance(value, SHARED):
            return self._whole(value, before, path)
        copy = self._whole(value, before.get(CONTENT) if isinstance(before, dict) else None, path)
        if copy is SKIPPED or (isinstance(copy, dict) and TYPE in copy):
            return copy
        return {LABEL: self._known.label_of(value), CONTENT: copy}

    def _whole(self, value: Any, before: Copy, path: str) -> Copy:
        kind = type(value)
        if id(value) in self._own or isinstance(value, ModuleType) or is_foreign(value):
            return SKIPPED
        if callable(value) and not has_state(value) and not has_attributes(value):
            return SKIPPED
        if isinstance(value, Enum):
            return {ENUM: value.name, TYPE: type_name(value)}
        if has_memory(value):
            return copy_memory(value, before)
        if (how := access(value)) is not None:
            earlier = before.get(OBJECT) if isinstance(before, dict) else None
            state = self._of_states.copied(how[0](value), earlier, path)
            label = {LABEL: self._known.label_of(value)} if self._known is not None and how[0] is table_state else {}
            return {OBJECT: state, TYPE: type_name(value)} | self._of_modules(value) | label
        if isinstance(value, (dict, list, set, deque)) and is_own_class(kind):
            return self._own_container(value, before, path)
        if isinstance(value, dict) and kind.__name__ in DICTIONARIES:
            keyed = ((key_of(key, path, self._own), inner) for key, inner in value.items())
            copies = self._named(((key, inner, f"[{key!r}]") for key, inner in keyed), before, path)
            return copies if kind is dict or not self._kinds else copies | {KIND: [kind.__name__, factory_of(value)]}
        if kind is list:
            return self._list(value, before, path)
        if kind is tuple and all(type(item) in PLAIN for item in value):
            return value
        if isinstance(value, tuple) and kind is not tuple and tuple_class(type_name(value)) is not kind:
            self._of_states.copied(tuple(value), None, path)  # a part that cannot travel tells more
            raise Unfit(path, value)
        if isinstance(value, (tuple, deque)):
            items = [self.copied(item, None, f"{path}[{place}]") for place, item in enumerate(value)]
            if any(item is SKIPPED for item in items):
                return SKIPPED
            if isinstance(value, tuple) and kind is not tuple:
                return {NAMED: tuple(items), TYPE: type_name(value)}
            return deque(items, value.maxlen) if isinstance(value, deque) else tuple(items)
        if kind in (set, frozenset):
            items = [self.copied(item, None, path) for item in value]
            if any(item is SKIPPED or isinstance(item, dict) for item in items):
                raise Unfit(path, value)
            return kind(items)
        if has_attributes(value):
            earlier = before.get(OBJECT) if isinstance(before, dict) else None
            if id(value) in self._open:
                raise Unfit(path, value)  # it holds itself
            held = held_by(value)
            small = is_dataclass(value) or size(held) <= SMALL or not any(map(self._is_set, held))
            whole = is_frozen(value) or ("[" in path and small)
            self._open.add(id(value))
            try:
                chosen = ((k, v, f".{k}") for k, v in held.items() if whole or self._is_chosen(value, k))
                copies = self._named(chosen, earlier, path)
            finally:
                self._open.discard(id(value))
            more: dict[str, Copy] = {}
            if len(copies) < len(held):
                more = {PART: True}
            elif self._known is not None:
                more = {LABEL: self._known.label_of(value)}
            return {OBJECT: copies, TYPE: type_name(value)} | more
        raise Unfit(path, value)

    def _content(self, value: Any, before: Copy, path: str) -> dict[str, Copy]:
        if not self._contents or id(value) in self._inside:
            return {}
        self._inside.add(id(value))
        try:
            copy = self._whole(value, before.get(CONTENT) if isinstance(before, dict) else None, path)
        except Unfit as unfit:
            if not path or unfit.is_iterator or self._attributes is None:
                raise
            return {}
        finally:
            self._inside.discard(id(value))
        return {} if copy is SKIPPED else {CONTENT: copy}

    def _own_container(self, value: Any, before: Copy, path: str) -> Copy:
        """A copy of an object of the program's own subclass of a container: its items and its attributes."""
        earlier = before if isinstance(before, dict) else {}
        plain = plain_items(value)
        found = {TYPE: type_name(value), ITEMS: self._whole(plain, earlier.get(ITEMS), path)}
        if found[ITEMS] is SKIPPED or getattr(type(value), "default_factory", None) is not None:
            raise Unfit(path, value)
        held = getattr(value, "__dict__", {})
        if held is value:
            return found | {OBJECT: {}, ITSELF: True}
        chosen = ((k, v, f".{k}") for k, v in held.items() if self._is_chosen(value, k))
        copies = self._named(chosen, earlier.get(OBJECT), path)
        return found | {OBJECT: copies} | ({PART: True} if len(copies) < len(held) else {})

    def _of_modules(self, value: Any) -> dict[str, Copy]:
        """Chosen plain attributes of a module and of those inside it, which its state dictionary does not hold."""
        names = self._attributes or frozenset()
        modules = value.named_modules() if names and isinstance(value, torch.nn.Module) else ()
        found = {path: copies for path, module in modules if (copies := self.attributes_of(module, names))}
        flag = {TRAINING: value.training} if isinstance(value, torch.nn.Module) else {}
        return flag | ({MODULES: found} if found else {})

    def attributes_of(self, holder: Any, names: Collection[str]) -> dict[str, Copy]:
        """Copies of those attributes of these names that an object has and that can travel."""
        found, held = {}, held_by(holder)
        for name in names & held.keys():
            with suppress(Unfit):
                if (copy := self.copied(held[name])) is not SKIPPED:
                    found[name] = copy
        return found

    def set_attributes(self, holder: Any, copies: Mapping[str, Copy]) -> None:
        """Set attributes to what the copies of `attributes_of` hold. Raises Unfit."""
        for name, copy in copies.items():
            setattr(holder, name, self.merged(getattr(holder, name, None), copy))

    def _is_chosen(self, value: Any, attribute: str) -> bool:
        beside = type(value).__module__ != "__main__"  # a class of another file, whose methods were not read
        return beside or isinstance(value, (State, SimpleNamespace, Namespace)) or self._is_set(attribute)

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
        if isinstance(copy, dict) and ORIGIN in copy:
            return self._found(copy, target)
        if self._known is not None and type(target) not in PLAIN and self._known.key_of(target) is not None:
            with suppress(Unfit):  # every member has it, so the copy is of another one
                return self.fresh(copy)
        if self._known is not None and isinstance(copy, dict) and LABEL in copy:
            made = partial(self._put_or_made, self._known.unused(target, copy[LABEL]), copy.get(CONTENT, copy))
            return self._known.labelled(copy[LABEL], made)
        return self._put_or_made(target, copy)

    def _put_or_made(self, target: Any, copy: Copy) -> Any:
        return target if self._put(target, copy) else self._instead(target, copy)

    def _instead(self, target: Any, copy: Copy) -> Any:
        if isinstance(copy, dict) and ENUM in copy and type_name(target) == copy[TYPE]:
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
            if ORIGIN in copy:
                return self._found(copy, None)
            if TYPE in copy or LABEL in copy:
                return self._made_once(copy, None)
            items = {key: self.fresh(item) for key, item in self._keyed(copy)}
            try:
                kind, factory = copy.get(KIND, ("dict", None))
                return dictionary(kind, factory, items)
            except LookupError:
                raise Unfit("", None) from None
        if type(copy) in (list, tuple):
            return type(copy)(map(self.fresh, copy))
        return deque(map(self.fresh, copy), copy.maxlen) if isinstance(copy, deque) else self._of_states.copied(copy)

    def _keyed(self, copy: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        return ((key_from(key, self._own), item) for key, item in copy.items() if key != KIND)

    def _found(self, copy: dict[str, Any], target: Any) -> Any:
        """The object of this member for which a copy stands, with what it holds."""
        value = None
        with suppress(LookupError):
            value = self._known.of_key(copy[ORIGIN]) if self._known is not None else None
        if value is None and CONTENT not in copy:
            raise Unfit("", target)
        in_place = CONTENT not in copy or (value is not None and self._put(value, copy[CONTENT]))
        return value if in_place else self._instead(value, copy[CONTENT])

    def _made_once(self, copy: dict[str, Any], target: Any) -> Any:
        make = partial(self.fresh, copy[CONTENT]) if CONTENT in copy else partial(self.made, copy, target)
        return make() if self._known is None or LABEL not in copy else self._known.labelled(copy[LABEL], make)

    def made(self, copy: dict[str, Any], target: Any) -> Any:
        """A new object of a class of the program, or a model as the session's, that holds `copy`. Raises Unfit."""
        if is_of_model(self._model, copy[TYPE], copy.get(OBJECT)) and self._put(again := deepcopy(self._model), copy):
            return again.train(copy.get(TRAINING, True))
        if NAMED in copy and (named := tuple_class(copy[TYPE])) is not None:
            items = map(self.fresh, copy[NAMED])
            return tuple.__new__(named, items) if hasattr(named, "_fields") else named(tuple(items))
        if copy[TYPE].startswith(("_io.", "pandas.")):
            return new_object(copy[TYPE], self._of_states.copied(copy[OBJECT]))
        kind: Any = own_class(copy[TYPE]) or NAMESPACES.get(copy[TYPE])
        if kind is not None and issubclass(kind, Enum) and ENUM in copy:
            return kind[copy[ENUM]]
        if kind is None or PART in copy or issubclass(kind, torch.nn.Module):
            raise Unfit("", target, copy[TYPE])
        content = copy.get(ITEMS)
        made = kind.__new__(kind)
        if access(made) is not None or not (has_attributes(made) or ITEMS in copy):
            raise Unfit("", target, copy[TYPE])
        if isinstance(made, deque) and isinstance(content, deque):
            deque.__init__(made, (), content.maxlen)
        if content is not None:
            self._put_own_items(made, content)
        if ITSELF in copy:
            object.__setattr__(made, "__dict__", made)
        for name, item in copy[OBJECT].items():
            object.__setattr__(made, name, self.merged(None, item))  # also of frozen data classes
        return made

    def _put(self, target: Any, copy: Copy) -> bool:
        """Change `target` to hold `copy`; False where that is not possible in place."""
        if type(target) in PLAIN:
            return False
        if has_memory(target):
            return put_memory(target, copy)
        if isinstance(copy, dict) and (ENUM in copy or NAMED in copy or ORIGIN in copy):
            return False
        if isinstance(copy, dict) and OBJECT in copy:
            if is_frozen(target) or type_name(target) != copy[TYPE]:  # others may hold a frozen one, which was replaced
                return False
            if ITEMS in copy:
                self._put_own_items(target, copy[ITEMS])
            return self._put_object(target, copy[OBJECT], copy.get(MODULES, {}))
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
            set_held(target, name, self.merged(held_by(target).get(name), item))
        return True

    def _put_own_items(self, target: Any, copy: Copy) -> None:
        """Let a container of the program's own class hold these items, without a call of its own methods."""
        before: Any = list(target) if isinstance(target, list) else dict(target) if isinstance(target, dict) else ()
        if isinstance(target, dict):
            set_items(target, {key: self.merged(before.get(key), item) for key, item in self._keyed(copy)})
        elif isinstance(target, list):
            set_items(target, [self.merged(before[p] if p < len(before) else None, i) for p, i in enumerate(copy)])
        else:
            set_items(target, [self.fresh(item) for item in copy])

    def _put_items(self, target: dict[Any, Any], copy: dict[Any, Any]) -> bool:
        items = {key: self.merged(target.get(key), item) for key, item in self._keyed(copy)}
        skipped = {key: value for key, value in target.items() if key not in items and self._is_skipped(value)}
        target.clear()
        target.update(skipped | items)
        return True

    def _is_skipped(self, value: Any) -> bool:
        try:
            return self.copied(value) is SKIPPED
        except Unfit:  # an object of a library, which was left out of the copy, too
            return True
