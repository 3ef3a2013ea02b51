"""Commands from the deployment's journal, carried out; each is answered with `command.done` and a sentence."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from ..core.events import Command
from ..core.units import plural
from .replica_manager import WRITER

if TYPE_CHECKING:
    from .gateway import Gateway

SUPERVISOR = "supervisor"
SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}


def recall(gateway: Gateway) -> None:
    """Read what was commanded before this gateway was there, and carry out what has not been."""
    for command in gateway.commands.poll():
        if command.kind == "scale" and not command.writer.startswith(f"{SUPERVISOR}."):
            gateway.crew.recall(gateway.site.spec.clamp(command.data["target"]))
        if command.kind == "drain":
            gateway.crew.leave_node(str(command.data["node"]), command.time_s)
        if (command.writer, command.seq) not in gateway.handled:
            _obey(gateway, command)


def obey_all(gateway: Gateway) -> None:
    """Carry out what is new."""
    for command in gateway.commands.poll():
        _obey(gateway, command)


def _obey(gateway: Gateway, command: Command) -> None:
    if command.writer.startswith(f"{WRITER}.") or (command.kind == "fault" and command.data["rank"] is None):
        return  # one's own, or a fault of a node, which is the supervisor's
    try:
        ok, reason = _carry_out(gateway, command)
    except (TypeError, ValueError, KeyError) as error:
        ok, reason = False, f"the command cannot be understood: {error!r}"
    done = {"command": {"writer": command.writer, "seq": command.seq}, "kind": command.kind}
    gateway.pen.write("command.done", done | {"ok": ok, "reason": reason})


def _carry_out(gateway: Gateway, command: Command) -> tuple[bool, str]:
    data = command.data
    if command.kind == "stop":
        gateway.end("stopped", str(data["reason"]))
        return True, str(data["reason"])
    if command.kind == "scale":
        target = gateway.site.spec.clamp(data["target"])
        gateway.crew.told_to_scale(target, command.writer.startswith(f"{SUPERVISOR}."), command.time_s)
        return True, f"{plural(target, 'replica')}, until the load asks for another number"
    if command.kind == "drain":
        node = str(data["node"])
        if count := gateway.crew.leave_node(node, command.time_s):
            return (
                True,
                f"{plural(count, 'replica')} on {node} told to finish what was asked and to end; others take the place",
            )
        return False, f"no replica is on {node}"
    if command.kind == "fault":
        return _break(gateway, data["fault"], data["rank"])
    return False, f"{command.kind} is for training"


def _break(gateway: Gateway, fault: str, rank: int) -> tuple[bool, str]:
    """Inject a fault into a replica of this host."""
    ready = gateway.pool.ready()
    if not 0 <= rank < len(ready):
        return False, f"there is no replica {rank}; replicas are 0 to {len(ready) - 1}"
    if fault not in SIGNALS:
        return False, f"{fault} is for training; a replica can be broken by {' or '.join(SIGNALS)}"
    replica = ready[rank]
    injected = {"fault": fault, "node": replica.node, "rank": rank, "member": replica.name}
    gateway.pen.write("fault.injected", injected)
    os.kill(replica.pid, SIGNALS[fault])
    return True, f"{SIGNALS[fault].name} sent to the replica on {replica.node}"
