"""Turns lines of the kernel's log into findings (pure), and follows the log without ever blocking."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from ..core.health import Finding, failed
from . import tables

PROBE = "kernel-log"
DEVICE = "/dev/kmsg"
FILES = ("/var/log/kern.log", "/var/log/messages")
LINE_LIMIT = 4096
_READ_LIMIT = 1 << 20
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{1,24})\): ([0-9]{1,6})(?:,[ \t]*|$)")
_SXID = re.compile(r"nvidia-nvswitch[0-9]{0,4}: SXid \((?:PCI:)?([0-9A-Fa-f:.]{1,24})\): ([0-9]{1,6})(?:,[ \t]*(.*))?")
_OFF_BUS = re.compile(r"NVRM: .{0,80}fallen off the bus")
_PID = re.compile(r"^pid='?([^,']{0,40})'?, name='?([^,']{0,80})'?,[ \t]*")
# pattern, severity, fault, whether the node's hardware is faulty
_OTHERS = (
    (re.compile(r"(?:\[Hardware Error\]|mce: .{0,20}Machine check events logged)"), "monitor", "MachineCheck"),
    (re.compile(r"Memory failure: 0x[0-9a-f]+: (?:recovery action|unhandlable)"), "reboot", "UncorrectableMemory"),
    (re.compile(r"EDAC .{0,40}: [1-9][0-9]* UE "), "reboot", "UncorrectableMemory"),
    (re.compile(r"(?:oom-kill:|Out of memory: Kill(?:ed)? process)"), "monitor", "OutOfMemory"),
    (re.compile(r"blocked for more than [0-9]+ seconds"), "monitor", "HungTask"),
    (re.compile(r"hard LOCKUP"), "reboot", "CpuLockup"),
    # a virtual machine without CPU time looks like this, too
    (re.compile(r"(?:soft lockup|rcu_sched self-detected stall)"), "monitor", "CpuStall"),
    (re.compile(r"nvme nvme[0-9]+: (?:controller is down|Removing after probe|.{0,30}timeout, aborting)"),
     "reboot", "NvmeFailure"),
    (re.compile(r"(?:EXT4-fs|XFS|BTRFS) ?(?:error|.{0,40}(?:Corruption|shutdown))"), "drain", "FileSystemError"),
    (re.compile(r"Remounting filesystem read-only"), "reboot", "FileSystemReadOnly"),
    (re.compile(r"efa .{0,40}(?:admin queue .{0,40}timeout|Failed to process command|device reset)", re.I), "reboot",
     "EfaError"),
    # lines of `dcgmi policy --reg`, where its output goes to the followed log
    (re.compile(r"A double-bit ECC error has violated policy manager values"), "reset", "DcgmPolicyDoubleBitEcc"),
    (re.compile(r"maximum number of retired pages has violated policy"), "isolate", "DcgmPolicyRetiredPages"),
    (re.compile(r"An NVLink error has violated policy manager values"), "isolate", "DcgmPolicyNvlink"),
    (re.compile(r"(?:PCIe|thermal|power) .{0,40}has violated policy manager values"), "monitor", "DcgmPolicy"),
    (re.compile(r"neuron:.{0,80}(?:NQ_TYPE_.{0,20}ERROR|uncorrectable|hardware error|device reset failed)", re.I),
     "isolate", "NeuronHardwareError"),
)  # fmt: skip


def parse(line: str) -> Finding | None:
    """The finding in a line of the kernel's log, None where the line has none. Never raises."""
    line = line[:LINE_LIMIT].rstrip("\n")
    if match := _XID.search(line):
        return _xid(match[1], int(match[2]), line[match.end() :].strip())
    if match := _SXID.search(line):
        fatal = "Non-fatal" not in (match[3] or "") and "Fatal" in (match[3] or "")
        text = f"NVSwitch SXid {match[2]}" + (f", {match[3].strip()}" if match[3] else "")
        return failed(PROBE, "reboot" if fatal else "monitor", f"NvidiaSXid{match[2]}", text, match[1])
    if _OFF_BUS.search(line):
        return failed(PROBE, "reboot", "NvidiaXid79", "a GPU has fallen off the bus")
    for pattern, severity, fault in _OTHERS:
        if match := pattern.search(line):
            return failed(PROBE, severity, fault, line[match.start() : match.start() + 160].strip())
    return None


def _xid(device: str, code: int, rest: str) -> Finding:
    known = tables.xid(code, rest)
    said = _PID.sub("", rest)
    who = _PID.match(rest)
    process = f" (process {who[1]}, {who[2]})" if who and "unknown" not in who[1] else ""
    text = f"Xid {code} on {device}, {known.text}{process}" + (f": {said[:160]}" if said else "")
    return failed(PROBE, known.severity, f"NvidiaXid{code}", text, device)


class Tail:
    """Follows the kernel's log, or a file that replaces it, from its present end.

    `problem` says why nothing can be read. A file that appears later is read from its beginning.
    """

    def __init__(self, path: str = "") -> None:
        self.path = path or next((name for name in (DEVICE, *FILES) if os.access(name, os.R_OK)), "")
        self.problem = "" if self.path else f"no kernel log can be read: neither {DEVICE} nor {' nor '.join(FILES)}"
        self._device = self.path == DEVICE
        self._file = -1
        self._rest = b""
        self._offset = 0
        if self._device:
            self._open_device()
        elif self.path:
            with suppress(OSError):
                self._reopen()
                self._offset = os.fstat(self._file).st_size

    def _open_device(self) -> None:
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.problem = f"{self.path} cannot be read: {error.strerror}"

    def lines(self) -> Iterator[str]:
        """The lines logged since the last call."""
        if self._device:
            yield from self._records()
            return
        *whole, self._rest = (self._rest + self._grown()).split(b"\n")
        if len(self._rest) > LINE_LIMIT:
            whole.append(self._rest)
            self._rest = b""
        for line in whole:
            yield line.decode(errors="replace")

    def _grown(self) -> bytes:
        try:
            there = os.stat(self.path)
            # while the file is open, no other file can get its inode number
            here = os.fstat(self._file) if self._file >= 0 else None
            if here is None or there.st_ino != here.st_ino or there.st_size < self._offset:  # new, rotated or truncated
                self._reopen()
            content = os.pread(self._file, _READ_LIMIT, self._offset)
        except FileNotFoundError:
            return b""
        except OSError as error:
            self.problem = f"{self.path} cannot be read: {error.strerror}"
            return b""
        self._offset += len(content)
        return content

    def _reopen(self) -> None:
        fresh = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.close()
        self._file, self._offset, self._rest = fresh, 0, b""

    def _records(self) -> Iterator[str]:
        while self._file >= 0:
            try:
                record = os.read(self._file, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:  # some lines were overwritten before they were read
                continue
            except OSError as error:
                self.problem = f"{self.path} cannot be read: {error.strerror}"
                return
            yield record.decode(errors="replace").partition(";")[2].partition("\n")[0]

    def close(self) -> None:
        """Close what is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
