"""Says and changes with whom a store is shared, for the command line and for browsers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...core.errors import SpecError
from ...storage import sharing
from ...storage.store import Store
from ...system import portable
from ...system.users import group_id, group_name, own_name, user_name
from ..text_tables import Answer

READ, OPERATE = "read", "operate"


def share(store: Store, groups: Sequence[str], private: bool) -> Answer:
    """The verb ``share``. Raises SpecError, StoreError."""
    if private and groups:
        raise SpecError("--private takes no group: it ends the sharing with all")
    store.refuse_private()
    if private:
        sharing.unshare(store.root)
    elif groups:
        sharing.share(store.prepare().root, _parsed(groups))
    shared = sharing.sharing_of(store.root)
    lines = [f"the store {store.root} is {'private' if shared is None else f'shared: {shared}'}"]
    lines += _notes(store, shared)
    return Answer({"store": str(store.root), "shared": None if shared is None else asdict(shared)}, lines=lines)


def told(store: Store) -> dict[str, Any]:
    """For a browser: whose the store is, who else reads and operates, and what the user of this process may do there.

    Raises StoreError.
    """
    shared = sharing.sharing_of(store.root)
    owner = sharing.owner_elsewhere(store.root)
    operate = shared.operate if shared else None
    own = _own_groups()
    return {
        "store": str(store.root),
        "owner": owner or _owner(store),
        "read": group_name(shared.read) if shared else "",
        "operate": "" if operate is None else group_name(operate),
        "own": not owner,
        "operates": not owner or operate in own,
        "groups": sorted(group_name(group) for group in own) if portable.HAS_USERS else [],
        "notes": _notes(store, shared) if not owner else [],
    }


def change(store: Store, read: str, operate: str) -> dict[str, Any]:
    """Share the store with these groups, "" for none, or with nobody. Raises SpecError, StoreError."""
    words = [f"{name.strip()}:{role}" for name, role in ((read, READ), (operate, OPERATE)) if name.strip()]
    share(store, words, private=not words)
    return told(store)


def _owner(store: Store) -> str:
    try:
        return user_name(os.stat(store.root).st_uid)
    except OSError:  # it comes with the first job
        return own_name()


def _own_groups() -> set[int]:
    return {portable.group_id(), *(os.getgroups() if portable.HAS_USERS else ())}


def _notes(store: Store, shared: sharing.Sharing | None) -> list[str]:
    """What keeps members out."""
    notes = []
    if shared is not None and (closed := sharing.closed_above(store.root, shared.read)):
        notes.append(f"the group {group_name(shared.read)} cannot get there: {closed} is closed to it")
    if shared is not None and shared.operate not in (None, shared.read):
        notes.append(f"who operates must be in the group {group_name(shared.read)}, too")
    return notes


def _parsed(words: Sequence[str]) -> sharing.Sharing:
    """``team``, ``team:operate``, or ``team ops:operate``. Raises SpecError."""
    groups: dict[str, int] = {}
    for word in words:
        name, _, role = word.partition(":")
        if role not in ("", READ, OPERATE):
            raise SpecError(f"role {role[:80]!r} is unknown; expected read or operate")
        group = group_id(name)
        if group is None:
            raise SpecError(f"there is no group {name[:80]!r} on this system; `id` shows yours")
        if groups.setdefault(role or READ, group) != group:
            raise SpecError(f"two groups have the role {role or READ}; one can")
    return sharing.Sharing(groups.get(READ, groups.get(OPERATE, -1)), groups.get(OPERATE))
