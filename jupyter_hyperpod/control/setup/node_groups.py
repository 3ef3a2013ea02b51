"""What a person asks for with ``--nodes TYPE:COUNT[:MARKET]``: groups of nodes with the devices of their type. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.errors import SpecError
from ...core.options import near_matches
from ...health.tables import InstanceDevices, instance, instances

FORM = "TYPE:COUNT, TYPE:COUNT:spot, TYPE:COUNT:cr-ID or TYPE:COUNT:block=cr-ID"
SPOT, BLOCK = "spot", "block="
RESOURCES = {"nvidia": "nvidia.com/gpu", "neuron": "aws.amazon.com/neuron"}
EFA = "vpc.amazonaws.com/efa"
_MARKET = re.compile(r"spot|(block=)?cr-[0-9a-f]{8,17}")
_GENERAL = re.compile(r"[cmr]\d[a-z]*\.(\d*x)?large")  # processors alone, and no EFA that would be used
MOST_NODES = 5000  # of a cluster with EKS's default quotas


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one instance type. ``market``: "" on demand, "spot", a reservation, or a capacity block."""

    devices: InstanceDevices
    count: int
    market: str = ""

    @property
    def type(self) -> str:
        """The instance type."""
        return self.devices.type

    @property
    def name(self) -> str:
        """The name of the group."""
        kind = {"": "", SPOT: "-spot"}.get(self.market, "-block" if self.market.startswith(BLOCK) else "-reserved")
        return self.type.replace(".", "-") + kind

    @property
    def reservation(self) -> str:
        """The id of its capacity reservation, "" without one."""
        return "" if self.market == SPOT else self.market.removeprefix(BLOCK)

    def amounts(self) -> dict[str, int]:
        """What one node offers to pods, besides processors and memory."""
        found = {RESOURCES[self.devices.kind]: self.devices.devices} if self.devices.devices else {}
        return found | ({EFA: self.devices.efa} if self.devices.efa else {})


def parse(words: Sequence[str]) -> list[NodeGroup]:
    """The groups that a person asks for. Raises SpecError."""
    groups = [_group(word) for word in words]
    for group in groups:
        if sum(other.name == group.name for other in groups) > 1:
            raise SpecError(f"--nodes names {group.name} twice; give it one count")
    return groups


def _group(word: str) -> NodeGroup:
    kind, _, rest = word.partition(":")
    count, _, market = rest.partition(":")
    if not count.isdecimal() or (market and not _MARKET.fullmatch(market)):
        raise SpecError(f"--nodes has {word[:80]!r}, expected {FORM}")
    if not 1 <= int(count[:9]) <= MOST_NODES:
        raise SpecError(f"--nodes has {word[:80]!r}, expected a number from 1 to {MOST_NODES}")
    name = kind.removeprefix("ml.")
    devices = instance(name)
    if devices is None and _GENERAL.fullmatch(name):
        devices = InstanceDevices(name, "cpu", 0, "", 0, 0, 0)
    if devices is None:
        known = sorted(instances())
        raise SpecError(
            f"nothing is known of the type {kind[:40]!r}{near_matches(name, known)}; known: {', '.join(known)}"
        )
    return NodeGroup(devices, int(count), market)
