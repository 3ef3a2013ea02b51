"""The probes of a node: what each reads, how often, and which parser judges it. Every read has a time limit."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import HyperpodError
from ..core.health import Finding, failed, skipped
from ..mounts import probe as mount_probe
from ..mounts.table import mounted_at
from ..storage.store import Store, private_directory
from . import host, inventory, neuron, nvidia, tables

COMMAND_S = 20.0
TYPE_VARIABLE = "HYPERPOD_INSTANCE_TYPE"
_NETWORK = ("nfs", "nfs4", "lustre", "cifs", "ceph", "fuse.", "beegfs", "gpfs", "9p", "wekafs")
_held: dict[str, subprocess.Popen[bytes]] = {}  # tool -> a process that did not end in time
_DMI = "sys/class/dmi/id/product_name"


@dataclass(frozen=True, slots=True)
class ProbeRoot:
    """Where probes read. Tests replace / by another ``root``; ``store`` may be missing."""

    store: Store | None = None
    root: Path = Path("/")

    def text(self, path: str) -> str | None:
        """A file's content; None where it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class Probe:
    """``look`` reads and judges; ``every_s`` is how often. A probe never raises."""

    name: str
    every_s: float
    look: Callable[[ProbeRoot], Sequence[Finding]]

    def run(self, place: ProbeRoot) -> list[Finding]:
        """The probe's findings. An error of the probe itself becomes a finding."""
        try:
            return list(self.look(place))
        except (OSError, ValueError, HyperpodError) as error:
            return [skipped(self.name, f"the probe cannot be run: {error}")]


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of a command; ``missing``: it is not installed; ``late``: it did not end in time."""

    text: str = ""
    status: int = 0
    missing: bool = False
    late: bool = False


def ask(command: Sequence[str], timeout_s: float = COMMAND_S) -> CommandOutput:
    """Run a command without a shell and for a bounded time, even where the kernel does not let it end.

    Meanwhile the same tool is not started again, so that a driver that hangs holds only one process.
    """
    held = _held.get(command[0])
    if held is not None and held.poll() is None:
        return CommandOutput(late=True)
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
    except (FileNotFoundError, PermissionError):
        return CommandOutput(missing=True)
    try:
        text, _ = process.communicate(timeout=timeout_s)
    except BaseException as error:
        mount_probe.abandon(process)
        _held[command[0]] = process
        if isinstance(error, subprocess.TimeoutExpired):
            return CommandOutput(late=True)
        raise
    return CommandOutput(text.decode(errors="replace"), process.returncode)


def told(
    probe: str, command: Sequence[str], judge: Callable[[str], Sequence[Finding]], timeout_s: float = COMMAND_S
) -> Sequence[Finding]:
    """Judge the output of a vendor's tool. A tool that hangs is a finding; a missing tool is skipped."""
    answer = ask(command, timeout_s)
    if answer.missing:
        return [skipped(probe, f"{command[0]} is not installed")]
    if answer.late:
        text = f"{' '.join(command)[:60]} did not answer within {timeout_s:g} s"
        return [failed(probe, "reboot", "DriverHangs", text)]
    return judge(answer.text)


def _pressure(place: ProbeRoot) -> list[Finding]:
    resources = ("cpu", "memory", "io")
    return [host.pressure(resource, place.text(f"/proc/pressure/{resource}")) for resource in resources]


def _memory(place: ProbeRoot) -> list[Finding]:
    return [host.memory(place.text("/proc/meminfo"))]


def _space(place: ProbeRoot) -> list[Finding]:
    path = str(place.store.root if place.store else place.root)
    found = os.statvfs(path)
    return [host.space(path, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)]


def _mounts(place: ProbeRoot) -> list[Finding]:
    if place.store is None:
        return [skipped("mounts", "no job store was named, so no mount table")]
    return host.mounts(mount_probe.survey(place.store))


def _clock(place: ProbeRoot) -> list[Finding]:
    if place.store is None or not _remote(str(place.store.root)):
        return [host.clock(None)]
    path = private_directory(place.store.cluster / "health") / f".clock-{os.getpid()}"
    before_s = time.time()
    try:
        path.touch(0o600)
        return [host.clock((before_s + time.time()) / 2 - path.stat().st_mtime)]
    finally:
        path.unlink(missing_ok=True)


def _remote(path: str) -> bool:
    """Whether another machine sets the times of its files."""
    mounted = mounted_at()
    point = max((point for point in mounted if os.path.commonpath([point, path]) == point), key=len, default="")
    return mounted.get(point, "").startswith(_NETWORK)


def _links(place: ProbeRoot) -> Sequence[Finding]:
    known = tables.instance(type_of(place))
    expected = known.links if known else 0
    return told("nvidia-nvlink", nvidia.QUERY_LINKS, lambda text: nvidia.links(text, expected))


def _counters(place: ProbeRoot) -> Sequence[Finding]:
    values = {}
    top = place.root / neuron.SYSFS.lstrip("/")
    for path in top.glob("neuron*/stats/hardware/*/total") if top.is_dir() else ():
        with suppress(OSError):
            values[f"{path.relative_to(top).parts[0]}/{path.parent.name}"] = path.read_text(errors="replace")
    return neuron.counters(values)


def _inventory(place: ProbeRoot) -> Sequence[Finding]:
    found = take(place)
    return inventory.compare(found, tables.instance(found.type))


def type_of(place: ProbeRoot) -> str:
    """The instance type, from $HYPERPOD_INSTANCE_TYPE or the machine itself; "" where unknown."""
    return inventory.instance_type(os.environ.get(TYPE_VARIABLE, ""), place.text(_DMI) or "")


def take(place: ProbeRoot) -> inventory.Inventory:
    """Count the node's accelerators and EFA devices."""
    name = type_of(place)
    known = tables.instance(name)
    kind, found, busy = _accelerators()
    return inventory.Inventory(
        type=name,
        kind=known.kind if known else kind,
        expected=known.devices if known else None,
        found=found,
        busy=busy,
        efa_expected=known.efa if known else None,
        efa_found=efa(place),
        cpus=os.cpu_count() or 0,
        memory_bytes=host.meminfo(place.text("/proc/meminfo")).get("MemTotal", 0),
    )


def _accelerators() -> tuple[str, int | None, int | None]:
    """(kind, devices, how many of them compute), from the vendors' tools; None without such a tool."""
    answer = ask(nvidia.QUERY)
    if not answer.missing:
        gpus = nvidia.devices(answer.text)
        return "nvidia", len(gpus), sum(gpu.get("utilization.gpu", "0") not in ("0", "[N/A]", "") for gpu in gpus)
    answer = ask(neuron.QUERY)
    if not answer.missing:
        found = neuron.devices(answer.text)
        return "neuron", len(found), sum(bool(device.get("neuron_processes")) for device in found)
    return "cpu", None, None


def efa(place: ProbeRoot) -> int | None:
    """How many EFA devices the kernel shows; None where it shows no fabric at all."""
    top = place.root / inventory.INFINIBAND.lstrip("/")
    if not top.is_dir():
        return None
    entries = [(path.name, os.path.basename(os.path.realpath(path / "device" / "driver"))) for path in top.iterdir()]
    return inventory.efa_devices(entries)


def _tool(name: str, every_s: float, command: Sequence[str], judge: Callable[[str], Sequence[Finding]]) -> Probe:
    return Probe(name, every_s, lambda place: told(name, command, judge))


HOST = (
    Probe("pressure", 10.0, _pressure),
    Probe("memory", 10.0, _memory),
    Probe("free-space", 30.0, _space),
    Probe("mounts", 30.0, _mounts),
    Probe("clock", 60.0, _clock),
    Probe("devices", 60.0, _inventory),
    _tool("nvidia-gpu", 30.0, nvidia.QUERY, nvidia.gpus),
    _tool("nvidia-remapped-rows", 60.0, nvidia.QUERY_ROWS, nvidia.remapped_rows),
    Probe("nvidia-nvlink", 60.0, _links),
    _tool("nvidia-dcgm-health", 60.0, nvidia.QUERY_WATCHES, nvidia.watches),
    _tool("neuron-devices", 60.0, neuron.QUERY, neuron.listed),
    Probe("neuron-counters", 30.0, _counters),
)
