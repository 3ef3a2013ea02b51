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
    for pattern, severity, fault in tables.kernel_log():
        if match := pattern.search(line):
            return failed(PROBE, severity, fault, line[match.start() : match.start() + 160].strip())
    return None


def _xid(device: str, code: int, rest: str) -> Finding:
    known, severity = tables.xid(code, rest)
    said = _PID.sub("", rest)
    who = _PID.match(rest)
    process = f" (process {who[1]}, {who[2]})" if who and "unknown" not in who[1] else ""
    text = f"Xid {code} on {device}, {known}{process}" + (f": {said[:160]}" if said else "")
    return failed(PROBE, severity, f"NvidiaXid{code}", text, device)


class Tail:
    """Follows the kernel's log, or a file that replaces it, from its present end.

    A file that appears later is read from its beginning.
    """

    def __init__(self, path: str = "") -> None:
        self.path = path or next((name for name in (DEVICE, *FILES) if os.access(name, os.R_OK)), "")
        self._file, self._offset, self._rest = -1, 0, b""
        with suppress(OSError):
            self._reopen()
            self._offset = os.lseek(self._file, 0, os.SEEK_END)

    @property
    def is_open(self) -> bool:
        """Whether there is a log that can be read."""
        return self._file >= 0

    def lines(self) -> Iterator[str]:
        """The lines logged since the last call."""
        if self.path == DEVICE:
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
        except OSError:
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
            except BrokenPipeError:  # some lines were overwritten before they were read
                continue
            except OSError:  # BlockingIOError: no further line yet
                return
            yield record.decode(errors="replace").partition(";")[2].partition("\n")[0]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
