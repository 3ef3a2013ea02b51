"""Carries out the commands of a job that are the supervisor's business; the job's head carries out the others."""

from __future__ import annotations

from collections.abc import Mapping

from ..backends.base import Host
from ..core.events import Command
from .allocation.allocations import Allocations
from .entry import STOP_GRACE_S, JobEntry
from .faults import break_node, break_target


def carry_out(
    entry: JobEntry, command: Command, now_s: float, host: Host, entries: Mapping[str, JobEntry], elsewhere: Allocations
) -> None:
    """Carry out a command of ``entry``, one of the ``entries``; ``elsewhere``: nodes that schedulers gave."""
    if command.kind == "stop":
        entry.stop_reason = str(command.data["reason"])
        if entry.started:
            entry.kill_at_s = now_s + STOP_GRACE_S  # the head ends it; this is for a head that does not
        else:
            entry.done(command, True, "the job had not started")
            entry.end("stopped", entry.stop_reason, now_s)
    elif command.kind == "fault" and command.data["node"] is not None and entry.elsewhere:
        elsewhere.of(entry).fault(command)
    elif command.kind == "fault" and command.data["node"] is not None:
        node, kind = str(command.data["node"]), str(command.data["fault"])
        entry.done(command, *break_node(host, entries, node, kind))
    elif command.kind == "fault" and command.data.get("target") is not None:
        break_target(host, entry, command)
    elif command.kind == "scale" and not entry.started:
        entry.done(command, True, f"its target is now {entry.target}")
