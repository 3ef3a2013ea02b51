"""Commands from the job's journal, carried out: each is answered with `command.done` and a sentence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ...core.events import FAULTS, Command, done
from ...core.people import asked_by
from ...core.units import plural
from .. import faults
from ..protocol import orders
from ..protocol.codec import Message
from .controller import Controller

Data = Mapping[str, Any]


def obey(controller: Controller, command: Command) -> None:
    """Carry out one command and journal the outcome. The supervisor injects faults that are aimed at a node."""
    if command.kind == "fault" and command.data["rank"] is None:
        for member in controller.state.roster.members.values():
            if member.node == command.data["node"]:  # its owner strikes now; signs of life may still come
                member.signs.struck_s = time.monotonic()
        return
    try:
        ok, reason = _ORDERS[command.kind](controller, command.data)
    except (TypeError, ValueError, KeyError) as error:
        ok, reason = False, f"the command cannot be understood: {error!r}"
    controller.reporter.write("command.done", done(command, ok, reason))


def _stop(controller: Controller, data: Data) -> tuple[bool, str]:
    controller.end("stopped", data["reason"])
    return True, data["reason"]


def _scale(controller: Controller, data: Data) -> tuple[bool, str]:
    wish, allowed = data["target"], controller.state.spec.range
    target = allowed.clamp(wish)
    by = asked_by(data)
    reason = f"target is {plural(target, 'node')}" + ("" if by is None else f", as {by} asked")
    reason += "" if target == wish else f"; {wish} is not allowed by {allowed}"
    controller.scale(target, bool(data.get("lends")), reason)
    return True, reason


def _drain(controller: Controller, data: Data) -> tuple[bool, str]:
    node = str(data["node"])
    found = [m for m in controller.state.roster.members.values() if m.node == node or m.node.startswith(f"{node}.")]
    for member in found:
        controller.apply(controller.draining.unhealthy(member, str(data["cause"]), str(data["reason"])))
    return bool(found), f"{node} is left by {plural(len(found), 'member')}" if found else f"no member is on {node}"


def _blame(controller: Controller, data: Data) -> tuple[bool, str]:
    members = controller.state.roster.generation()
    blamed = [m for m in members if data["rank"] in (None, m.rank)]
    if not blamed:
        return False, f"there is no rank {data['rank']}; ranks are 0 to {len(members) - 1}"
    for member in blamed:
        controller.apply(controller.failures.blame(member, str(data["cause"]), str(data["reason"])))
    return True, str(data["reason"])


def _fault(controller: Controller, data: Data) -> tuple[bool, str]:
    members = controller.state.roster.generation()
    member = next((m for m in members if m.rank == data["rank"]), None)
    if member is None:
        return False, f"there is no rank {data['rank']}; ranks are 0 to {len(members) - 1}"
    kind = data["fault"]
    order, struck = _order(kind, data, member.member)
    if isinstance(order, orders.InjectFault) and not controller.state.trains:
        return False, f"{kind} takes effect in a step of hp.Session, and rank {member.rank} is in none"
    target = {"node": member.node, "rank": member.rank, "member": member.member}
    controller.reporter.write("fault.injected", {"fault": kind} | target)
    member.signs.struck_s = time.monotonic()
    member.tell(order)
    return True, f"{struck} rank {member.rank} on {member.node}"


def _order(kind: str, data: Data, member: str) -> tuple[Message, str]:
    """What the agent or the worker is told, and the words for it."""
    if kind in faults.SIGNALS:
        number = faults.SIGNALS[kind]
        return orders.SendSignal(member, int(number)), f"{number.name} sent to"
    if kind == "preempt":
        return orders.PreemptNode(member), "the node is preempted of"
    if kind == "throttle":
        factor, duration_s = data.get("factor") or faults.FACTOR, data.get("duration_s") or faults.DURATION_S
        order = orders.ThrottleWorker(factor, duration_s, member)
        return order, f"1/{factor:g} of the CPU time for {duration_s:g} s is left to"
    if kind not in FAULTS:
        raise ValueError(f"fault {kind!r} is unknown")
    return orders.InjectFault(member, kind), f"{kind} comes with the next micro-batch of"


_ORDERS: dict[str, Callable[[Controller, Data], tuple[bool, str]]] = {
    "stop": _stop,
    "scale": _scale,
    "fault": _fault,
    "drain": _drain,
    "blame": _blame,
}
