"""What processes use, from texts of /proc and of control groups, and from a library in the place of NVML."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.system import nvml, usage
from jupyter_hyperpod.system.processes import stat_text

STAT = "42 (a (strange) name) S 1 42 42 0 -1 4194304 100 0 0 0 {} {} {} {} 20 0 1 0 1000 10000 200"
NET = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0
  eth0:{} 9 0 0 0 0 0 0 {} 9 0 0 0 0 0 0
eth0.5: 5 9 0 0 0 0 0 0 7 9 0 0 0 0 0 0
"""
numbers = st.integers(0, 2**62)


@given(numbers, numbers, numbers, numbers)
def test_cpu_time_is_that_of_a_process_and_of_the_children_that_have_ended(a: int, b: int, c: int, d: int) -> None:
    assert usage.cpu_ticks(STAT.format(a, b, c, d).encode()) == a + b + c + d


@given(numbers, numbers)
def test_the_loopback_is_no_network(received: int, sent: int) -> None:
    assert usage.network_bytes(NET.format(received, sent)) == (received + 5, sent + 7)
    assert usage.network_bytes(NET.partition("  eth0")[0]) is None


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_pages_of_a_process_alone(own: int, shared: int) -> None:
    assert usage.resident_pages(f"999 {own + shared} {shared} 7 0 8 0") == (own, shared)


@given(st.text() | st.none())
def test_no_text_raises(text: str | None) -> None:
    for parse in (usage.network_bytes, usage.resident_pages, usage.total_memory):
        assert parse(text) is None or text
    assert usage.cpu_ticks(text and text.encode(errors="replace")) is None or text
    assert usage.quota(text, text) is None or text
    assert usage.limit_bytes(text) is None or text
    assert isinstance(usage.groups_of(text), dict)


def groups(root: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return str(root)


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/pod/main\n", {"pod/cpu.max": "150000 100000\n", "pod/main/cpu.max": "max 100000\n"}, (1.5, None)),
        ("0::/pod\n", {"memory.max": "4096\n", "pod/memory.max": "max\n"}, (None, 4096)),
        ("0::/../other\n", {"memory.max": "4096\n"}, (None, 4096)),
        (
            "3:cpu,cpuacct:/job\n2:memory:/gone/outside\n1:name=systemd:/x\n",
            {
                "cpu/job/cpu.cfs_quota_us": "200000\n",
                "cpu/job/cpu.cfs_period_us": "100000\n",
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": "8192\n",
            },
            (2.0, 8192),
        ),
        ("2:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, (None, None)),
        ("", {}, (None, None)),
    ],
)
def test_limits_of_control_groups_of_both_versions(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: tuple[float | None, int | None]
) -> None:
    assert usage.limits(cgroup, groups(tmp_path, files)) == expected


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="of Linux")
def test_the_processes_of_a_tree_and_what_they_use() -> None:
    grandchild = "import time; x = bytearray(50_000_000); print('ready', flush=True); time.sleep(600)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        found = usage.tree(os.getpid())
        inner = usage.tree(child.pid)
        try:
            assert found[0] == os.getpid() and {child.pid, *inner} <= set(found) and len(inner) == 2
            pages = usage.resident_pages(usage.text(f"/proc/{inner[1]}/statm"))
            assert pages is not None and pages[0] * os.sysconf("SC_PAGE_SIZE") > 50_000_000
            assert (usage.cpu_ticks(stat_text(inner[1])) or 0) > 0
        finally:
            os.kill(inner[1], 9)


class Library:
    """Two devices, as the functions of NVML tell them; the second is known by its UUID only."""

    code = 0

    def nvmlInit_v2(self) -> int:
        return self.code

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = 1 + index.value
        return 0 if index.value == 0 else 2

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        handle._obj.value = 2
        return 0 if name == b"GPU-2" else 2

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, busy: Any) -> int:
        busy._obj.gpu = 30 * (handle.value or 0)
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 80 << 30, (handle.value or 0) << 30
        return 0


def test_devices_of_a_library_in_the_place_of_nvml() -> None:
    assert nvml.Devices(["0", "GPU-2", "7"], Library()).use() == nvml.DeviceUse(2, 90, 3 << 30, 160 << 30)
    assert nvml.Devices(["7"], Library()).use() is None
    broken = Library()
    broken.code = 9
    with pytest.raises(OSError, match="does not begin"):
        nvml.Devices(["0"], broken)
    assert nvml.devices([]) is None
