"""Commands of members of the group with which a store is shared: what they may ask for, and what is taken from them.

A member may end, resize and disturb a job; no command of a member changes what the job computes. Nothing that a member
wrote is passed on unchecked: the command is built anew from the fields that are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import ProtocolError
from .events import FAULTS, THROTTLE_LIMIT, THROTTLE_LIMIT_S, Command
from .people import Person, asked_by, shown

# they end, stop or slow processes; the others change values, and belong to the owner
FAULTS_OF_MEMBERS = ("kill", "hang", "throttle", "partition", "preempt")
KINDS_OF_MEMBERS = ("stop", "scale", "fault")
MOST_NODES = 1_000_000
LONGEST_REASON = 500


def accepted(command: Command, job_id: str, name: str, writer: Person) -> Command:
    """The command that is carried out, in the name of ``writer``: the user to whom the file ``name`` belongs.

    Raises ProtocolError, with a sentence, for a command that names another person or another job, or that a member may
    not give.
    """
    by = asked_by(command.data)
    if by is None or by.uid != writer.uid:
        named = "nobody's name" if by is None else f"the name of {by}"
        raise ProtocolError(f"a command in {named} was refused: {writer} wrote it")
    if command.data.get("job") != job_id:
        raise ProtocolError(f"a command of {writer} was refused: it is not for {job_id}")
    if command.kind not in KINDS_OF_MEMBERS:
        raise ProtocolError(f"a command of {writer} was refused: {command.kind} is not for members of a group")
    data = _FIELDS[command.kind](command.data, writer)
    # the name cannot be that of another writer: who else wrote a record decides how it is treated
    return Command(f"member-{writer.uid}.{name}", 1, command.time_s, command.kind, {**data, "by": writer.to_json()})


def _refused(writer: Person, what: str) -> ProtocolError:
    return ProtocolError(f"a command of {writer} was refused: {what}")


def _stop(data: Mapping[str, Any], writer: Person) -> dict[str, Any]:
    said = data["reason"]
    if not isinstance(said, str) or len(said) > LONGEST_REASON:
        raise _refused(writer, f"its reason is not a text of at most {LONGEST_REASON} characters")
    reason, truth = shown(said), f"stopped by {writer}"
    return {"reason": reason if reason == truth or reason.startswith(f"{truth} ") else f"{truth}: {reason}"}


def _scale(data: Mapping[str, Any], writer: Person) -> dict[str, Any]:
    target = data["target"]
    if type(target) is not int or not 1 <= target <= MOST_NODES:
        raise _refused(writer, "its target is not a number of nodes")
    return {"target": target}


def _fault(data: Mapping[str, Any], writer: Person) -> dict[str, Any]:
    kind, rank, node, target = data["fault"], data["rank"], data["node"], data.get("target")
    if not isinstance(kind, str) or kind not in FAULTS_OF_MEMBERS:
        known = isinstance(kind, str) and kind in FAULTS
        what = f"the fault {kind} changes values" if known else "its fault is unknown"
        raise _refused(writer, f"{what}; members of a group may inject {', '.join(FAULTS_OF_MEMBERS)}")
    aims = [aim for aim, given in (("rank", rank), ("node", node), (target, target)) if given is not None]
    if len(aims) != 1 or aims[0] not in FAULTS[kind].aims:
        raise _refused(writer, f"{kind} needs exactly one aim out of {', '.join(FAULTS[kind].aims)}")
    if not (rank is None or (type(rank) is int and 0 <= rank < MOST_NODES)):
        raise _refused(writer, "its rank is not a number")
    if not (node is None or (isinstance(node, str) and len(node) <= 80 and shown(node) == node)):
        raise _refused(writer, "its node is not a name")
    more: dict[str, Any] = {} if target is None else {"target": target}
    for name, least, limit in (("factor", 1, THROTTLE_LIMIT), ("duration_s", 0, THROTTLE_LIMIT_S)):
        value = data.get(name)
        if value is None:
            continue
        if kind != "throttle" or type(value) not in (int, float) or not least < value <= limit:
            raise _refused(writer, f"its {name} is not possible")
        more[name] = value
    return {"fault": kind, "rank": rank, "node": node, **more}


_FIELDS = {"stop": _stop, "scale": _scale, "fault": _fault}
