"""How clients of this host reach a deployment, whose gateway listens on loopback of its own host."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ...storage.host_lease import this_host
from ...system.addresses import LOOPBACK, this_loopback

Deployment = Mapping[str, Any]  # that part of a job's view


def tunnel(deployment: Deployment | None) -> str:
    """The command that brings a deployment's port here; "" where it is here, or not open.

    Another program may listen at the same port here: where the command cannot have it, it ends.
    """
    if not (deployment and deployment["url"]) or _is_here(deployment):
        return ""
    port = deployment["url"].rpartition(":")[2]
    host = shlex.quote(deployment["host"]) if deployment.get("host") else "HOST"
    return f"ssh -o ExitOnForwardFailure=yes -N -L {port}:{LOOPBACK}:{port} {host}"


def address(deployment: Deployment, path: str = "") -> str:
    """A deployment's URL, with its host where that is another one."""
    there = f" on {deployment.get('host') or 'another host'}" if tunnel(deployment) else ""
    return f"{deployment['url']}{path}{there}"


def _is_here(deployment: Deployment) -> bool:
    own, its = this_loopback(), deployment.get("loopback", "")
    if own or its:
        return bool(own == its)
    return bool(deployment.get("host") == this_host())
