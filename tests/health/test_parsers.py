"""Vendors' texts to findings: recorded output (see recorded/SOURCES), each way to fail, and any text at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.health import OUTCOMES, SEVERITIES, Finding
from jupyter_hyperpod.health import host, inventory, kernel, neuron, nvidia, tables

RECORDED = Path(__file__).with_name("recorded")


def said(name: str) -> str:
    return (RECORDED / name).read_text()


def short(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.outcome, finding.severity, finding.fault) for finding in findings]


XID_LINES = [
    ("[111.111] NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
     "reboot", "NvidiaXid79", "Xid 79 on 0000:05:00, GPU has fallen off the bus: GPU has fallen off the bus."),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "monitor", "NvidiaXid14",
     "Xid 14 on 0000:03:00, not in NVIDIA's catalog: Channel 00000001"),
    ("NVRM: Xid (PCI:0000:00:1e.0): 74, pid=1896, name=python3, NVLink: fatal error detected on link 6",
     "isolate", "NvidiaXid74",
     "Xid 74 on 0000:00:1e.0, NVLINK Error (process 1896, python3): NVLink: fatal error detected on link 6"),
    ("NVRM: Xid (PCI:0000:00:1e.0): 73", "reboot", "NvidiaXid73", "Xid 73 on 0000:00:1e.0, NVENC2 error"),
    ("NVRM: Xid (PCI:0000:10:1c): 31, pid=42, name=python, Ch 00000008, MMU Fault", "monitor", "NvidiaXid31",
     "Xid 31 on 0000:10:1c, GPU memory page fault (process 42, python): Ch 00000008, MMU Fault"),
    ("[1.2] NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
     "reset", "NvidiaXid154", "Xid 154 on 0009:01:00, GPU Recovery Action Changed: "
     "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"),
    ("NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)",
     "monitor", "NvidiaXid154", "Xid 154 on 0009:01:00, GPU Recovery Action Changed: "
     "GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "severity", "fault", "text"), XID_LINES)
def test_xid_lines(line: str, severity: str, fault: str, text: str) -> None:
    finding = kernel.parse(line)
    assert finding is not None and finding.failed
    assert (finding.severity, finding.fault, finding.text) == (severity, fault, text)


@pytest.mark.parametrize(
    ("line", "severity", "fault"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "reboot",
            "NvidiaSXid20034",
        ),
        ("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20012, Non-fatal, Link 32", "monitor", "NvidiaSXid20012"),
        ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", "reboot", "NvidiaXid79"),
        ("mce: [Hardware Error]: Machine check events logged", "monitor", "MachineCheck"),
        ("Memory failure: 0x1234: recovery action for dirty LRU page: Recovered", "reboot", "UncorrectableMemory"),
        ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null)", "monitor", "OutOfMemory"),
        ("nvme nvme1: controller is down; will reset: CSTS=0xffffffff", "reboot", "NvmeFailure"),
        ("EXT4-fs error (device nvme0n1p1): ext4_lookup:1855: inode #131: comm bash", "drain", "FileSystemError"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:311]", "monitor", "CpuStall"),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", "reboot", "CpuLockup"),
        ("A double-bit ECC error has violated policy manager values.", "reset", "DcgmPolicyDoubleBitEcc"),
        ("A PCIe replay event has violated policy manager values.", "monitor", "DcgmPolicy"),
        ("neuron:nc: NQ_TYPE_HW_ERROR on nd0", "isolate", "NeuronHardwareError"),
    ],
)
def test_other_lines_of_the_kernel(line: str, severity: str, fault: str) -> None:
    finding = kernel.parse(line)
    assert finding is not None and (finding.severity, finding.fault) == (severity, fault)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: Xid error: xyz, invalid data",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.127.05",
        "eth0: up",
    ],
)
def test_lines_that_say_nothing(line: str) -> None:
    assert kernel.parse(line) is None


def test_the_tables_are_whole() -> None:
    severities = {code: tables.xid(code)[1] for code in (*range(200), 999_999)}
    assert severities[31] == "monitor" and severities[999_999] == "monitor"
    assert set(severities.values()) == {"monitor", "reset", "reboot", "isolate"}
    assert all(severity in SEVERITIES and fault.isalnum() for _, severity, fault in tables.kernel_log())
    efa = {name: found.efa for name, found in tables.instances().items()}
    assert (efa["p4d.24xlarge"], efa["p4de.24xlarge"], efa["p5.48xlarge"], efa["p5en.48xlarge"]) == (4, 4, 32, 16)
    assert tables.instance("ml.trn1.32xlarge") == tables.instance("trn1.32xlarge")
    assert tables.instance("t3.micro") is None


def test_gpus() -> None:
    found = nvidia.gpus(said("nvidia-smi-query.csv"))
    assert short(found) == [
        ("fail", "reset", "GpuUncorrectedEcc"),
        ("fail", "monitor", "GpuTemperature"),
        ("fail", "monitor", "GpuThermalSlowdown"),
    ]
    healthy = "\n".join(said("nvidia-smi-query.csv").splitlines()[:2])
    assert short(nvidia.gpus(healthy)) == [("pass", "monitor", "")]
    recorded = said("nvidia-smi-query-h100.csv")
    assert short(nvidia.gpus(recorded)) == [("pass", "monitor", "")]
    slow = recorded.replace("Not Active", "Active", 1)
    assert short(nvidia.gpus(slow)) == [("fail", "monitor", "GpuHardwareSlowdown")]
    broken = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert short(nvidia.gpus(broken)) == [("skipped", "monitor", "")]


def test_remapped_rows() -> None:
    assert short(nvidia.remapped_rows(said("remapped-rows-h100.csv"))) == [("pass", "monitor", "")]
    found = nvidia.remapped_rows(said("remapped-rows.csv"))
    assert short(found) == [("fail", "reset", "GpuRowRemapPending"), ("fail", "isolate", "GpuRowRemapFailure")]


def test_nvlinks() -> None:
    text = said("nvlink-status-a100.txt")
    assert short(nvidia.links(text, 12)) == [("pass", "monitor", "")]
    assert short(nvidia.links(text, 18)) == [("fail", "isolate", "NvlinkMissing")]
    inactive = text.replace("Link 3: 25 GB/s", "Link 3: <inactive>", 1)
    assert short(nvidia.links(inactive, 0)) == [("fail", "isolate", "NvlinkInactive")]
    assert nvidia.links("", 0)[0].outcome == "skipped"


def test_diagnoses_in_both_shapes() -> None:
    assert [(f.fault, f.severity) for f in nvidia.diagnosis(said("dcgm-diag-3.json"))] == [("DcgmGpuMemory", "isolate")]
    four = nvidia.diagnosis("WARNING: noise\n" + said("dcgm-diag-4.json"))
    assert [(f.fault, f.text) for f in four] == [("DcgmPcie", "pcie: PCIe replays: 12")]
    assert nvidia.diagnosis("Error: Unable to run diagnostic")[0].outcome == "skipped"
    assert nvidia.diagnosis('{"tests": [{"name": "memory", "results": [{"status": "Skip"}]}]}')[0].outcome == "skipped"


def test_health_watches_of_dcgm() -> None:
    found = nvidia.watches(said("dcgm-health.json"))
    assert short(found) == [("fail", "reboot", "DcgmHealthFailure")]
    assert "GPU 3: Failure" in found[0].text and "PCIe system: Warning" in found[0].text
    assert nvidia.watches('{"body": {"Overall Health": {"value": "Healthy"}}}')[0].outcome == "pass"
    assert nvidia.watches("Error: Health watches not enabled. Please enable watches.")[0].outcome == "skipped"


def test_neuron() -> None:
    assert short(neuron.listed(said("neuron-ls-trn2.json"))) == [("pass", "monitor", "")]
    bare = said("neuron-ls-trn2.json").replace('"nc_count": 4', '"nc_count": 0')
    assert short(neuron.listed(bare)) == [("fail", "reset", "NeuronNoCores")]
    values = {"neuron0/mem_ecc_uncorrected": "0\n", "neuron1/sram_ecc_uncorrected": "3\n", "neuron1/other": "9"}
    assert short(neuron.counters(values)) == [("fail", "isolate", "NeuronSramEcc")]
    assert neuron.counters({})[0].outcome == "skipped"


def test_expected_against_found() -> None:
    p5 = tables.instance("p5.48xlarge")
    found = inventory.Inventory("p5.48xlarge", "nvidia", found=7, efa_found=32)
    assert short(inventory.compare(found, p5)) == [("fail", "reboot", "DevicesMissing"), ("pass", "monitor", "")]
    nothing = inventory.compare(inventory.Inventory("p5.48xlarge"), p5)
    assert [finding.outcome for finding in nothing] == ["skipped", "skipped"]
    assert [finding.outcome for finding in inventory.compare(inventory.Inventory(), None)] == ["skipped", "skipped"]
    assert inventory.instance_type("", "ml.p5.48xlarge\n") == "p5.48xlarge"
    assert inventory.instance_type("Standard PC (Q35 + ICH9, 2009)") == ""
    assert inventory.efa_devices([("rdmap16s27", "efa"), ("mlx5_0", "mlx5_core"), ("efa_0", "")]) == 2


def test_the_host() -> None:
    calm = "some avg10=0.00 avg60=1.50 avg300=0.9 total=1\nfull avg10=0.00 avg60=0.20 avg300=0.1 total=1\n"
    assert host.pressure("memory", calm).outcome == "pass"
    assert host.pressure("memory", calm.replace("0.20", "55.0")).severity == "drain"
    assert host.pressure("cpu", "nonsense").outcome == "skipped"
    assert host.memory("MemTotal: 1000 kB\nMemAvailable: 500 kB\n").outcome == "pass"
    assert host.memory("MemTotal: 1000 kB\nMemAvailable: 5 kB\n").fault == "MemoryPressure"
    assert host.space("/x", 100 << 30, 50 << 30).outcome == "pass"
    assert host.space("/x", 100 << 30, 1 << 20).fault == "DiskPressure"
    assert host.space("/x", None, None).outcome == "skipped"
    assert host.clock(None).outcome == "skipped" and host.clock(0.2).outcome == "pass"
    assert host.clock(-60.0).text == "this machine's clock is 60.0 s behind the shared storage's"


def test_mounts() -> None:
    record = {"name": "fsx", "notebook_path": "/fsx", "reason": "did not answer", "took_s": 0.004}
    states = ["ready", "hangs", "broken", "detached", "remote"]
    found = host.mounts([record | {"state": state} for state in states])
    assert [finding.outcome for finding in found] == ["pass", "fail", "fail", "skipped", "skipped"]


PARSERS: list[Callable[[str], object]] = [
    kernel.parse,
    nvidia.gpus,
    nvidia.remapped_rows,
    lambda text: nvidia.links(text, 18),
    nvidia.diagnosis,
    nvidia.watches,
    neuron.listed,
    lambda text: neuron.counters({"neuron0/hw_error": text}),
    lambda text: host.pressure("io", text),
    host.memory,
    inventory.instance_type,
]
SEEDS = [line for path in RECORDED.iterdir() for line in (path.read_text(), *path.read_text().splitlines()[:8])]


@given(st.sampled_from(PARSERS), st.text() | st.lists(st.sampled_from(SEEDS), max_size=3).map("\n".join))
def test_no_text_breaks_a_parser(parse: Callable[[str], object], text: str) -> None:
    check(parse(text))


@given(st.sampled_from(PARSERS), st.sampled_from(SEEDS), st.integers(0, 4000), st.text(max_size=4), st.integers(0, 9))
def test_no_damage_breaks_a_parser(parse: Callable[[str], object], seed: str, at: int, noise: str, lost: int) -> None:
    at %= len(seed) + 1
    check(parse(seed[:at] + noise + seed[at + lost :]))


def check(result: object) -> None:
    found = result if isinstance(result, list) else [result]
    for finding in found:
        if isinstance(finding, Finding):
            assert finding.outcome in OUTCOMES and finding.text
            assert len(finding.text) < 1000 and "\n" not in finding.fault


@given(st.from_regex(r"NVRM: Xid \((PCI:)?[0-9a-f:.]{0,30}\): [0-9]{0,12}(, .*)?"))
def test_any_xid_line_is_understood_or_left_alone(line: str) -> None:
    finding = kernel.parse(line)
    assert finding is None or finding.fault.startswith(("NvidiaXid", "MachineCheck")) or finding.probe == "kernel-log"
