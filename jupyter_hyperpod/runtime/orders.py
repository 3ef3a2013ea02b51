"""Commands from the job's journal, carried out: each is answered with `command.done` and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.events import Command
from . import faults
from .conductor import Conductor

Data = Mapping[str, Any]


def obey(conductor: Conductor, command: Command) -> None:
    """Carry out one command and journal the outcome. Faults aimed at a node belong to whoever owns the nodes."""
    if command.kind == "fault" and command.data["rank"] is None:
        return
    try:
        ok, reason = _ORDERS[command.kind](conductor, command.data)
    except (TypeError, ValueError, KeyError) as error:
        ok, reason = False, f"the command cannot be understood: {error!r}"
    done = {"command": {"writer": command.writer, "seq": command.seq}, "kind": command.kind}
    conductor.reporter.append("command.done", done | {"ok": ok, "reason": reason})


def _stop(conductor: Conductor, data: Data) -> tuple[bool, str]:
    conductor.end("stopped", data["reason"])
    return True, data["reason"]


def _scale(conductor: Conductor, data: Data) -> tuple[bool, str]:
    wish, allowed = data["target"], conductor.spec.range
    target = allowed.clamp(wish)
    reason = f"target is {target} nodes" + ("" if target == wish else f"; {wish} is not allowed by {allowed}")
    conductor.scaled(target, reason)
    return True, reason


def _fault(conductor: Conductor, data: Data) -> tuple[bool, str]:
    members = conductor.roster.generation()
    member = next((m for m in members if m.rank == data["rank"]), None)
    if member is None:
        return False, f"there is no rank {data['rank']}; ranks are 0 to {len(members) - 1}"
    number = faults.SIGNALS[data["fault"]]
    target = {"node": member.node, "rank": member.rank, "member": member.member}
    conductor.reporter.append("fault.injected", {"fault": data["fault"]} | target)
    member.channel.send({"type": "signal", "member": member.member, "number": int(number)})
    return True, f"{number.name} sent to rank {member.rank} on {member.node}"


_ORDERS: dict[str, Callable[[Conductor, Data], tuple[bool, str]]] = {"stop": _stop, "scale": _scale, "fault": _fault}
