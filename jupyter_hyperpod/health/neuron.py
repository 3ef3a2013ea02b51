"""Parses the output of AWS Neuron's `neuron-ls` and its driver's sysfs counters into findings. Pure.

Not verified on Trainium or Inferentia: tested on recorded output. Formats: `neuron-ls --json-output`, and
https://awsdocs-neuron.readthedocs-hosted.com/en/latest/tools/neuron-sys-tools/neuron-sysfs-user-guide.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.health import Finding, failed, passed, skipped
from ..core.units import plural
from .tool_output import count, extract, json_in

QUERY = ["neuron-ls", "--json-output"]
SYSFS = "/sys/devices/virtual/neuron_device"
COUNTERS = {
    "mem_ecc_uncorrected": ("isolate", "NeuronMemoryEcc"),
    "sram_ecc_uncorrected": ("isolate", "NeuronSramEcc"),
    "mem_ecc_repairable_uncorrected": ("reset", "NeuronMemoryRepairable"),
    "hw_error": ("isolate", "NeuronHardwareError"),
    "hw_numerical_error": ("monitor", "NeuronNumericalError"),
    "hw_collectives_error": ("reset", "NeuronCollectivesError"),
}


def devices(text: str) -> list[dict[str, Any]]:
    """The devices in the output of ``QUERY``, with its names of fields."""
    try:
        found: list[Any] = json_in(text, "[")
    except ValueError:
        return []
    return [device for device in found if isinstance(device, dict) and type(device.get("neuron_device")) is int]


def listed(text: str) -> list[Finding]:
    """Whether `neuron-ls` sees devices, with all of their cores."""
    found = devices(text)
    if not found:
        return [skipped("neuron-devices", f"neuron-ls names no device: {extract(text)}")]
    bare = [str(device["neuron_device"]) for device in found if not device.get("nc_count")]
    if bare:
        text = f"Neuron devices {', '.join(bare[:8])} have no cores"
        return [failed("neuron-devices", "reset", "NeuronNoCores", text)]
    cores = sum(count(str(device["nc_count"])) for device in found)
    return [passed("neuron-devices", f"{plural(len(found), 'Neuron device')} with {plural(cores, 'core')}")]


def counters(values: Mapping[str, str]) -> list[Finding]:
    """``device/counter`` -> text of its sysfs file: errors counted since the driver was loaded."""
    wrong = []
    for path, text in sorted(values.items()):
        device, _, name = path.partition("/")
        severity, fault = COUNTERS.get(name, ("monitor", ""))
        if fault and (errors := count(text.strip())):
            said = f"{device} has counted {errors} of {name}"
            wrong.append(failed("neuron-counters", severity, fault, said, device))
    if wrong or values:
        return wrong or [passed("neuron-counters", f"{len(values)} counters are at zero")]
    return [skipped("neuron-counters", f"{SYSFS} is not there: no Neuron driver is loaded")]
