"""Parses the output of nvidia-smi and dcgmi into findings. Pure. Tested on recorded and documented output.

Formats: nvidia-smi(1) ``--query-gpu=… --format=csv`` and ``nvlink --status``; `dcgmi diag -j` of DCGM 3 and 4.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.health import Finding, failed, passed, skipped
from ..core.units import plural
from .tool_output import count, extract, json_in

FIELDS = (
    "index", "uuid", "name", "temperature.gpu", "utilization.gpu", "memory.used", "memory.total",
    "ecc.errors.uncorrected.volatile.total", "retired_pages.pending",
    "clocks_throttle_reasons.hw_slowdown", "clocks_throttle_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown",
)  # fmt: skip
ROWS = ("gpu_uuid", "remapped_rows.correctable", "remapped_rows.uncorrectable", "remapped_rows.pending",
        "remapped_rows.failure")  # fmt: skip
QUERY = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,nounits"]
QUERY_ROWS = ["nvidia-smi", f"--query-remapped-rows={','.join(ROWS)}", "--format=csv,nounits"]
QUERY_LINKS = ["nvidia-smi", "nvlink", "--status"]
QUERY_DRIVER = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
QUERY_WATCHES = ["dcgmi", "health", "-g", "0", "-c", "-j"]
HOT_C, TOO_HOT_C = 85, 92
_SLOWDOWNS = {
    "hw_thermal_slowdown": ("GpuThermalSlowdown", "the hardware has slowed it down: too hot"),
    "hw_power_brake_slowdown": ("GpuPowerBrake", "the hardware has slowed it down: power brake"),
    "hw_slowdown": ("GpuHardwareSlowdown", "the hardware has slowed it down"),
    "sw_thermal_slowdown": ("GpuThermalSlowdown", "the driver has slowed it down: too hot"),
}
_GPU = re.compile(r"GPU ([0-9]{1,4}): ")
_LINK = re.compile(r"\s+Link ([0-9]{1,3}): (.*)")


def devices(text: str) -> list[dict[str, str]]:
    """The GPUs in the output of ``QUERY``: field -> value without unit."""
    return [row for row in _records(text) if row.get("index", "").isdecimal()]


def gpus(text: str) -> list[Finding]:
    """ECC errors, temperature and slowdowns in the output of ``QUERY``."""
    found = devices(text)
    if not found:
        return [skipped("nvidia-gpu", f"nvidia-smi names no GPU: {extract(text)}")]
    wrong = [finding for row in found for finding in _gpu(row)]
    hottest = max(count(row.get("temperature.gpu")) for row in found)
    return wrong or [
        passed("nvidia-gpu", f"{plural(len(found), 'GPU')} without uncorrected errors, hottest {hottest} °C")
    ]


def _gpu(row: Mapping[str, str]) -> Iterator[Finding]:
    name = f"GPU {row['index']}"
    if (errors := count(row.get("ecc.errors.uncorrected.volatile.total"))) > 0:
        text = f"{name} has {errors} uncorrected ECC errors since its driver was loaded"
        yield failed("nvidia-gpu", "reset", "GpuUncorrectedEcc", text, name)
    if row.get("retired_pages.pending") == "Yes":
        yield failed("nvidia-gpu", "reset", "GpuPagesPending", f"{name} has to be reset to retire bad pages", name)
    degrees = count(row.get("temperature.gpu"))
    if degrees >= HOT_C:
        severity = "drain" if degrees >= TOO_HOT_C else "monitor"
        yield failed("nvidia-gpu", severity, "GpuTemperature", f"{name} is {degrees} °C hot", name)
    for field, (fault, words) in _SLOWDOWNS.items():
        # drivers since 535 answer the old names under new ones
        if "Active" in (row.get(f"clocks_{word}_reasons.{field}") for word in ("throttle", "event")):
            yield failed("nvidia-gpu", "monitor", fault, f"{name}: {words}", name)
            return


def remapped_rows(text: str) -> list[Finding]:
    """Rows of memory that were, or could not be, replaced by spare rows, in the output of ``QUERY_ROWS``."""
    found = [row for row in _records(text) if row.get("gpu_uuid", "").startswith("GPU-")]
    if not found:
        return [skipped("nvidia-remapped-rows", f"no GPU reports remapped rows: {extract(text)}")]
    wrong = []
    for row in found:
        name = row["gpu_uuid"]
        if row.get("remapped_rows.failure") in ("Yes", "1"):
            text = f"{name} could not remap a bad row of its memory: it qualifies for replacement"
            wrong.append(failed("nvidia-remapped-rows", "isolate", "GpuRowRemapFailure", text, name))
        elif row.get("remapped_rows.pending") in ("Yes", "1"):
            text = f"{name} has to be reset to replace a bad row of its memory"
            wrong.append(failed("nvidia-remapped-rows", "reset", "GpuRowRemapPending", text, name))
    return wrong or [passed("nvidia-remapped-rows", f"no row is pending or failed on {plural(len(found), 'GPU')}")]


def links(text: str, expected: int) -> list[Finding]:
    """NVLinks in the output of ``QUERY_LINKS``; ``expected`` is the number per GPU, 0 where unknown."""
    up: dict[str, int] = {}
    down: list[str] = []
    gpu = ""
    for line in text.splitlines():
        if match := _GPU.match(line):
            gpu = match[1]
            up[gpu] = 0
        elif gpu and (match := _LINK.match(line)):
            if "inactive" in match[2].lower():
                down.append(f"link {match[1]} of GPU {gpu}")
            else:
                up[gpu] += 1
    if not any(up.values()) and not down:
        return [skipped("nvidia-nvlink", "no GPU here has NVLinks" if not expected else "nvidia-smi shows no NVLink")]
    if down:
        said = f"{len(down)} NVLinks are inactive: {', '.join(down[:4])}"
        return [failed("nvidia-nvlink", "isolate", "NvlinkInactive", said)]
    few = [f"GPU {name} has {active}" for name, active in up.items() if expected and active < expected]
    if few:
        return [
            failed("nvidia-nvlink", "isolate", "NvlinkMissing", f"{expected} NVLinks expected, {', '.join(few[:4])}")
        ]
    return [passed("nvidia-nvlink", f"{sum(up.values())} NVLinks are up")]


def watches(text: str) -> list[Finding]:
    """DCGM's health watches in the output of ``QUERY_WATCHES``."""
    try:
        body = json_in(text, "{")["body"]
        state = str(body["Overall Health"]["value"])
    except (ValueError, LookupError, TypeError):
        return [skipped("nvidia-dcgm-health", f"DCGM tells nothing: {extract(text)}")]
    if state == "Healthy":
        return [passed("nvidia-dcgm-health", "DCGM's health watches say Healthy")]
    said = "; ".join(_values(body))[:300]
    severity = "reboot" if state.startswith("Fail") else "monitor"
    return [failed("nvidia-dcgm-health", severity, f"DcgmHealth{_camel(state)}", f"DCGM says {said}")]


def _values(tree: Any, path: str = "") -> Iterator[str]:
    """Every value below ``children``, with the names that lead to it."""
    if isinstance(tree, dict):
        if isinstance(tree.get("value"), str) and tree["value"] != "Healthy":
            yield f"{path}: {tree['value']}"
        for name, inner in (tree.get("children") or tree).items() if "value" not in tree or "children" in tree else ():
            yield from _values(inner, f"{path} {name}".strip())


def diagnosis(text: str) -> list[Finding]:
    """The findings of `dcgmi diag -j`: one per failed test."""
    try:
        record = json_in(text, "{")
    except ValueError:
        return [skipped("nvidia-dcgm", f"dcgmi printed no JSON: {extract(text)}")]
    tests = list(_tests(record.get("DCGM GPU Diagnostic", record.get("DCGM Diagnostic", record))))
    ran = [test for test in tests if test[1] in ("pass", "fail", "warn")]
    if not ran:
        why = next((said for _, _, said in tests if said), "no test was run")
        return [skipped("nvidia-dcgm", f"DCGM ran no test to its end: {why}")]
    wrong = [
        failed("nvidia-dcgm", "isolate" if state == "fail" else "monitor", f"Dcgm{_camel(name)}", f"{name}: {said}")
        for name, state, said in ran
        if state != "pass"
    ]
    return wrong or [passed("nvidia-dcgm", f"{len(ran)} DCGM tests passed, {len(tests) - len(ran)} were skipped")]


def _tests(record: Any) -> Iterator[tuple[str, str, str]]:
    """(name, pass | fail | warn | other, why) of every result, in both of DCGM's shapes."""
    if not isinstance(record, dict):
        return
    categories = record.get("test_categories")
    for group in _dictionaries(categories) if isinstance(categories, list) else [record]:
        for test in _dictionaries(group.get("tests")):
            for result in _dictionaries(test.get("results")):
                state = str(result.get("status", "")).lower()
                said = [*_words(result.get("warnings")), *_words(result.get("info"))]
                state = next((word for word in ("pass", "fail", "warn") if state.startswith(word)), "skipped")
                yield str(test.get("name", "unnamed")), state, "; ".join(said)[:300]


def _dictionaries(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _words(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value] if value else []
    return [str(item.get("warning", item) if isinstance(item, dict) else item) for item in items]


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in re.findall(r"[A-Za-z0-9]+", name))


def _records(text: str) -> Iterator[dict[str, str]]:
    lines = [line for line in text.replace("\0", "").splitlines() if line.strip()]
    rows = csv.reader(lines, skipinitialspace=True)
    try:
        head = [name.split(" [")[0].strip() for name in next(rows, [])]
        for row in rows:
            if len(row) == len(head):
                yield {name: value.strip() for name, value in zip(head, row, strict=True)}
    except csv.Error:
        return
