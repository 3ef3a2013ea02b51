"""Tells a cell that does other things on some members from a device that fails: their states differ in the same way.

A flag that the loss function sets from its own samples, and on which the loop changes a learning rate, is set on some
members only. The state of most of them would be taken for the right one, and the others' devices for faulty ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from ...core.errors import TrainingError
from ...core.units import few

Settings = Sequence[dict[str, Any]]
Gather = Callable[[bytes], list[bytes]]  # the bytes of every member, by rank; all have the same length
UNKNOWN_WRITES = (1 << 64) - 1
_PLAIN = (bool, int, float, complex, str, type(None))
_SIZE = 8  # octets of the length of a member's settings
_ADVICE = (
    "Decide by what is the same on every member: the loss that step.run() returns, or step.metrics. Nothing of this "
    "step is applied"
)
SETTINGS = (
    "step {step}: members have other settings of the optimizer: {named}. The cell has set them by what only some "
    f"members saw, such as a sample in the loss function{{joined}}. {_ADVICE}"
)
WRITES = (
    "step {step}: members have other weights, and the cell has written to them a different number of times since the "
    f"last step: {{named}}. It decides by what only some members saw, such as a sample in the loss function. {_ADVICE}"
)
ORDER = (
    "step {step}: the optimizer has its parameters in another order on some members. A set has none of its own: write "
    "a list, such as [p for name, p in model.named_parameters() if not name.startswith('head')]. Nothing of this step "
    "is applied"
)


def number_of(settings: Settings) -> int:
    """A number of 64 bits for the `described` settings, equal on members with equal ones."""
    return int.from_bytes(hashlib.blake2b(_as_octets(settings), digest_size=8).digest(), "big")


def described(settings: Settings) -> dict[str, str]:
    """The values that are numbers, text, or sequences of these, by name; of several groups with the group's number."""
    several = len(settings) > 1
    return {
        f"{name} of group {place}" if several else name: repr(_number(value))
        for place, group in enumerate(settings)
        for name, value in sorted(group.items())
        if _is_plain(value)
    }


def refuse_other_settings(
    step: int, numbers: Sequence[int], settings: Settings, gather: Gather, joined: Sequence[int | None]
) -> None:
    """Raise TrainingError where the ``numbers`` of the members' settings differ, with what differs. Raises Regroup.

    ``joined``: the steps after which members have joined, by rank; None for those that were there from the beginning.
    """
    if len(set(numbers)) == 1:
        return
    own = _as_octets(settings)
    most = max(int.from_bytes(length, "big") for length in gather(len(own).to_bytes(_SIZE, "big")))
    members = [json.loads(octets) for octets in gather(own.ljust(most))]
    later = [f"rank {rank} joined after step {after}" for rank, after in enumerate(joined) if after is not None]
    said = f", or by what the cell did before a member joined: {few(later)}" if later else ""
    raise TrainingError(SETTINGS.format(step=step, named=_differing(members), joined=said))


def refuse_other_order(step: int, names: Sequence[str], gather: Gather) -> None:
    """Members' states differ: raise TrainingError where the ``names`` of the parameters in the optimizer, in their
    order, do as well. Raises Regroup.
    """
    if len(set(gather(hashlib.blake2b("\n".join(names).encode(), digest_size=8).digest()))) > 1:
        raise TrainingError(ORDER.format(step=step))


def refuse_other_writes(step: int, writes: Sequence[int]) -> None:
    """Members' states differ: raise TrainingError where the cell's writes to them do as well."""
    known = {rank: count for rank, count in enumerate(writes) if count != UNKNOWN_WRITES}
    if len(set(known.values())) > 1:
        named = few([f"{count} on rank {rank}" for rank, count in known.items()])
        raise TrainingError(WRITES.format(step=step, named=named))


def _as_octets(settings: Settings) -> bytes:
    return json.dumps(described(settings)).encode()


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or isinstance(value, (list, tuple)) and all(map(_is_plain, value))


def _number(value: Any) -> Any:
    """The value with numbers as floating-point ones: 1 and 1.0 are the same setting."""
    if isinstance(value, (list, tuple)):
        return [_number(item) for item in value]
    if not isinstance(value, (bool, int, float)) or abs(value) >= 1 << 53:
        return value
    return float(value) + 0.0  # -0.0, too


def _differing(members: Sequence[dict[str, str]]) -> str:
    """The first setting that differs, with its values by rank, and how many others do."""
    names = dict.fromkeys(name for member in members for name in member)
    differ = [name for name in names if len({member.get(name) for member in members}) > 1]
    if not differ:  # within a replica of several ranks another one differs
        return "those of another rank of the same replica"
    values = few([f"{member.get(differ[0], 'not set')} on rank {rank}" for rank, member in enumerate(members)])
    more = f", and so are {few(differ[1:])}" if differ[1:] else ""
    return f"{differ[0]} is {values}{more}"
