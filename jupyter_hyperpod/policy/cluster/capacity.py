"""Says what keeps a running job from the nodes it wants. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...core.units import few
from ..scaling import Claim, ScalableNode


def lacks(claim: Claim, claims: Collection[Claim], machines: Sequence[ScalableNode]) -> str:
    """Why a running job that gets no node now has fewer than it was told to have; "" where some are on their way."""
    if claim.serves or claim.commanded <= claim.base or not all(machine.up for machine in machines):
        return ""
    free, standby = sum(machine.free for machine in machines), sum(machine.spare for machine in machines)
    if free > standby:
        return ""
    capacity = len(machines) - standby
    holders = [other.job_id for other in claims if other.held and other.job_id != claim.job_id]
    if free:
        says = f"only spares are free, the others are held by {few(holders)}" if holders else "only spares are free"
    else:
        says = f"none is free, held by {few(holders)}" if holders else "none is free"
    return f"{says}; this cluster has {capacity:,}" if claim.commanded > capacity else says
