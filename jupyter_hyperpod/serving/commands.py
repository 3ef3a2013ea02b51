"""Carries out commands from the deployment's journal, and answers each with `command.done` and a sentence."""

from __future__ import annotations

import os
import signal

from ..core.events import GATEWAY, Command, done
from ..core.units import plural
from .deployment import Deployment

SUPERVISOR = "supervisor"
SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}


def recall(deployment: Deployment) -> None:
    """Read the commands given before this gateway started, and carry out the open ones."""
    for command in deployment.commands.poll():
        if command.kind == "scale" and not command.writer.startswith(f"{SUPERVISOR}."):
            deployment.replicas.recall(deployment.site.spec.clamp(command.data["target"]))
        if command.kind == "drain":
            deployment.replicas.leave_node(str(command.data["node"]), command.time_s)
        if (command.writer, command.seq) not in deployment.handled:
            _obey(deployment, command)


def obey_all(deployment: Deployment) -> None:
    for command in deployment.commands.poll():
        _obey(deployment, command)


def _obey(deployment: Deployment, command: Command) -> None:
    if command.writer.startswith(f"{GATEWAY}.") or (command.kind == "fault" and command.data["rank"] is None):
        return  # a command of this gateway, or a fault of a node, which the supervisor handles
    try:
        ok, reason = _carry_out(deployment, command)
    except (TypeError, ValueError, KeyError) as error:
        ok, reason = False, f"the command cannot be understood: {error!r}"
    deployment.journal.write("command.done", done(command, ok, reason))


def _carry_out(deployment: Deployment, command: Command) -> tuple[bool, str]:
    data = command.data
    if command.kind == "stop":
        deployment.end("stopped", str(data["reason"]))
        return True, str(data["reason"])
    if command.kind == "scale":
        target = deployment.site.spec.clamp(data["target"])
        deployment.replicas.told_to_scale(target, command.writer.startswith(f"{SUPERVISOR}."), command.time_s)
        return True, f"{plural(target, 'replica')}, until the load asks for another number"
    if command.kind == "drain":
        node = str(data["node"])
        if count := deployment.replicas.leave_node(node, command.time_s):
            return True, f"{plural(count, 'replica')} on {node}: to end once others answer in their place"
        return False, f"no replica is on {node}"
    if command.kind == "fault":
        return _break(deployment, data["fault"], data["rank"])
    return False, f"{command.kind} is for training"


def _break(deployment: Deployment, fault: str, rank: int) -> tuple[bool, str]:
    """Inject a fault into a replica; one of another host is told to do it to itself."""
    ready = deployment.pool.ready()
    if not 0 <= rank < len(ready):
        return False, f"there is no replica {rank}; replicas are 0 to {len(ready) - 1}"
    if fault not in SIGNALS:
        return False, f"{fault} is for training; a replica can be broken by {' or '.join(SIGNALS)}"
    replica = ready[rank]
    replica.told_to_break = True
    injected = {"fault": fault, "node": replica.node, "rank": rank, "member": replica.name}
    deployment.journal.write("fault.injected", injected)
    if replica.here:
        os.kill(replica.pid, SIGNALS[fault])
    else:
        replica.say("break", number=SIGNALS[fault])
    return True, f"{SIGNALS[fault].name} sent to the replica on {replica.node}"
