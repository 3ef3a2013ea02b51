"""Judges what a preflight found: each row passes, fails with a remedy, or is skipped with the reason. Pure.

Skipped is not passed: the check did not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..core.units import plural

MARK = "hyperpod-preflight "  # begins each line in which a node prints its findings
PASSED, FAILED, SKIPPED = "pass", "fail", "skipped"
SERVICEABLE = frozenset({"idle", "busy", "allocated", "mixed", "completing", "planned", "ready"})
SLOW_STORAGE_S = 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result: ``sentence`` is the finding, ``remedy`` what to do about it (failures only)."""

    name: str
    verdict: str
    sentence: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """A JSON-ready dictionary."""
        return asdict(self)


Probe = Mapping[str, Any]


def nodes_ready(states: Mapping[str, tuple[str, str]], needed: int, mend: str) -> Row:
    """``states``: node -> (state, why). Fails where fewer than ``needed`` are in service; ``mend`` is the remedy."""
    wrong = {node: found for node, found in states.items() if found[0].rstrip("*") not in SERVICEABLE}
    wrong |= {node: (state, "it does not answer") for node, (state, _) in states.items() if state.endswith("*")}
    told = ", ".join(f"{node} is {state}{f' ({why})' if why else ''}" for node, (state, why) in sorted(wrong.items()))
    good = len(states) - len(wrong)
    if good < needed:
        found = f"{good} of {len(states)} nodes are in service, {needed} are needed"
        return Row("nodes", FAILED, f"{found}: {told}" if told else found, mend)
    return Row("nodes", PASSED, f"{good} of {len(states)} nodes are in service{f'; {told}' if told else ''}")


def devices(probes: Sequence[Probe], asked: int | None) -> Row:
    """Compares each node's accelerators with its type and with the job's request per node (None: no request).

    Nodes of an unknown type need the same number as the others.
    """
    counts = {probe["node"]: int(probe["devices"]) for probe in probes}
    typed = {probe["node"]: probe["devices_expected"] for probe in probes if probe["devices_expected"]}
    if asked is None and not typed and not any(counts.values()):
        asks = "--slurm gres=gpu:N, --kubernetes resources=nvidia.com/gpu=N"
        return Row("devices", SKIPPED, f"no accelerator is asked for ({asks}) and none was found: CPUs only")
    alike = max((count for node, count in counts.items() if node not in typed), default=0) if asked is None else 0
    needed = {node: max(asked or 0, typed.get(node, alike)) for node in counts}
    if wrong := {node: count for node, count in counts.items() if count < needed[node]}:
        told = ", ".join(f"{node} has {count} of {needed[node]}" for node, count in sorted(wrong.items()))
        remedy = "compare `nvidia-smi -L` or `neuron-ls` there with the instance's type, and reboot or replace the node"
        return Row("devices", FAILED, told, remedy)
    return Row("devices", PASSED, f"{_span(counts.values())} on {_each(len(counts))}")


def fabric(probes: Sequence[Probe]) -> Row:
    """Compares each node's EFA devices with its type; all nodes of a job need the same number."""
    counts = {probe["node"]: int(probe["efa"]) for probe in probes}
    needed = {probe["node"]: int(probe["efa_expected"] or 0) for probe in probes}
    if not any(counts.values()) and not any(needed.values()):
        return Row("EFA", SKIPPED, "no EFA device was found under /sys/class/infiniband: the nodes speak TCP")
    short = any(count < needed[node] for node, count in counts.items())
    if short or len(set(counts.values())) > 1:
        of = {node: f" of {count}" if count else "" for node, count in needed.items()}
        told = ", ".join(f"{node} has {count}{of[node]}" for node, count in sorted(counts.items()))
        return Row("EFA", FAILED, told, "allow all EFA interfaces in the launch template and the security group")
    return Row("EFA", PASSED, f"{max(counts.values())} on {_each(len(counts))}")


def _each(nodes: int) -> str:
    return f"each of {nodes} nodes" if nodes > 1 else "the one node"


def _span(counts: Iterable[int]) -> str:
    found = sorted(set(counts))
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def driver(probes: Sequence[Probe]) -> Row:
    """Checks that all nodes have the same driver version and that torch sees the devices."""
    with_devices = [probe for probe in probes if probe["devices"]]
    if not with_devices:
        return Row("driver", SKIPPED, "there are no accelerators")
    if blind := [probe for probe in with_devices if not probe["driver"]]:
        told = ", ".join(f"{probe['node']} answers no driver query: {probe['driver_problem']}" for probe in blind)
        return Row("driver", FAILED, told, "install the driver that belongs to the kernel there, and reboot the node")
    versions = {probe["driver"] for probe in with_devices}
    if len(versions) > 1:
        told = ", ".join(f"{probe['node']} has {probe['driver']}" for probe in with_devices)
        return Row("driver", FAILED, told, "install the same driver on all nodes")
    return Row("driver", PASSED, f"version {versions.pop()} on {_each(len(with_devices))}")


def storage(mount: str, probes: Sequence[Probe]) -> Row:
    """Every node wrote a file and the others read it; the digests have to be equal."""
    name, remedy = f"storage {mount}", "mount the same file system on every node at the mount's node path, writable"
    found: dict[str, Mapping[str, Any]] = {probe["node"]: probe["storage"][mount] for probe in probes}
    if broken := [f"{node}: {probe['problem']}" for node, probe in found.items() if probe["problem"]]:
        return Row(name, FAILED, "; ".join(broken), remedy)
    for reader, probe in found.items():
        for writer, digest in probe["read"].items():
            if writer not in found or digest != found[writer]["written"]:
                return Row(name, FAILED, f"{reader} reads other bytes than {writer} wrote", remedy)
    slowest = max(found, key=lambda node: float(found[node]["took_s"]))
    took = f"{found[slowest]['took_s']:.2f} s on {slowest}"
    if found[slowest]["took_s"] > SLOW_STORAGE_S:
        return Row(name, FAILED, f"writing and reading took {took}, limit {SLOW_STORAGE_S:g} s", remedy)
    if len(found) < 2:
        return Row(name, SKIPPED, f"one node wrote and read its own in {took}; two are needed to compare")
    return Row(name, PASSED, f"{len(found)} nodes write, and read each other's bytes; at most {took}")


def unreachable(mount: str, state: str, reason: str) -> Row:
    """The row of a mount that this machine cannot use; ``state`` is one of `mounts.probe.Health`."""
    if state == "detached":
        return Row(
            f"storage {mount}", SKIPPED, f"it is not mounted on this machine: {reason or 'nothing to compare with'}"
        )
    remedy = f"look at its server; `jupyter hyperpod mount check {mount}` tells more"
    return Row(f"storage {mount}", FAILED, f"on this machine: {reason or state}", remedy)


def expected_devices(options: Mapping[str, str]) -> int | None:
    """Accelerators per node that a job's options ask for, as in ``gres=gpu:h100:8`` of SLURM or
    ``resources=nvidia.com/gpu=8`` of Kubernetes; None where they name none."""
    for word in options.get("resources", "").split(","):
        name, _, amount = word.strip().partition("=")
        if name.endswith(("/gpu", "/neuron")) and amount.isdecimal():
            return int(amount)
    asked = [word for word in options.get("gres", "").split(",") if word.split(":")[0] in ("gpu", "neuron")]
    count = (asked[0] if asked else f"gpu:{options.get('gpus-per-node', '')}").rpartition(":")[2]
    return int(count) if count.isdecimal() else (1 if asked else None)


def all_reduce(probes: Sequence[Probe]) -> Row:
    """Every rank has to hold the exact sum; the row shows the bandwidth."""
    if len(probes) < 2:
        return Row("all-reduce", SKIPPED, "one node has nobody to exchange with")
    remedy = "check that nodes resolve each other's names and that no firewall is between them; see NCCL_DEBUG=INFO"
    if broken := [f"{probe['node']}: {probe['reduce_problem']}" for probe in probes if probe["reduce_problem"]]:
        return Row("all-reduce", FAILED, "; ".join(broken), remedy)
    slowest = min(probes, key=lambda probe: float(probe["reduce_mb_s"]))
    what = f"{slowest['reduce_mb']:g} MB over {slowest['backend']}"
    told = f"exact on {plural(len(probes), 'rank')}, {what} at {slowest['reduce_mb_s']:.0f} MB/s"
    return Row("all-reduce", PASSED, f"{told} (slowest: {slowest['node']})")


def training(state: str, reason: str, faults: int, same: bool, alone: bool) -> Row:
    """A small job with a killed rank has to end with the same bits as an undisturbed one."""
    if state != "succeeded":
        return Row("training", FAILED, f"the small job {state}: {reason}", "see its output: `jupyter hyperpod logs`")
    if not same:
        told = "the disturbed run ended with other bits than the undisturbed one"
        remedy = "look for nodes of another kind among them: other processors, libraries or kernels compute other bits"
        return Row("training", FAILED, told, remedy)
    if alone:
        return Row("training", SKIPPED, "it trained; with one node nobody can be killed without losing the run")
    if not faults:
        return Row("training", SKIPPED, "it trained to its end before a rank could be killed")
    return Row(
        "training", PASSED, f"{faults} rank killed in the middle of it; loss by loss the bits of an undisturbed run"
    )


def verdict(rows: Sequence[Row]) -> str:
    """The last line: how many rows passed, failed and were skipped."""
    count = {name: sum(row.verdict == name for row in rows) for name in (PASSED, FAILED, SKIPPED)}
    told = f"{count[PASSED]} passed, {count[FAILED]} failed, {count[SKIPPED]} skipped"
    if count[FAILED]:
        return f"no-go: {told}"
    return f"go: {told}" + (" (skipped is not passed)" if count[SKIPPED] else "")
