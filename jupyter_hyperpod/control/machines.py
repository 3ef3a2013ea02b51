"""A node as the cluster's journal tells of it."""

from __future__ import annotations

from typing import Any

from ..backends.base import NodeLike


def node_record(node: NodeLike) -> dict[str, Any]:
    """The data of a `node.state` event."""
    jobs = sorted(node.jobs)
    return {
        "node": node.name,
        "state": "busy" if node.state == "idle" and jobs else node.state,
        "reason": node.reason,
        "spare": node.spare,
        "slots": 1,
        "used": len(jobs),
        "jobs": jobs,
        "pid": node.pid,
        "incarnation": node.incarnation,
    }
