"""The block cache: the same bytes as the source, once a node, bounded, and never damaged ones."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import SpecError, StoreError
from jupyter_hyperpod.mounts import block_cache
from jupyter_hyperpod.mounts.block_cache import BlockCache

Eventually = Callable[..., Any]
BLOCK = 4096


class Memory:
    """A source in memory that counts what is asked of it."""

    def __init__(self, content: bytes, etag: str = "1") -> None:
        self.url, self.etag, self.size = "memory://x", etag, len(content)
        self.content = content
        self.asked: list[int] = []

    def read_into(self, offset: int, view: memoryview) -> None:
        self.asked.append(offset)
        view[:] = self.content[offset : offset + len(view)]


def cache(directory: Path, **more: Any) -> BlockCache:
    return BlockCache(directory / "blocks", block_bytes=BLOCK, **more)


@given(st.data())
def test_every_range_is_that_of_the_source(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5 * BLOCK))
    content = os.urandom(size)
    limit = data.draw(st.sampled_from([10, 3 * BLOCK, 1 << 20]))
    found = cache(tmp_path_factory.getbasetemp(), limit_bytes=limit).open(Memory(content, os.urandom(4).hex()))
    for _ in range(3):
        start = data.draw(st.integers(0, size))
        length = data.draw(st.integers(0, size - start))
        assert bytes(found.read(start, length)) == content[start : start + length]
    with pytest.raises(StoreError, match="are not all there"):
        found.read(size, 1)


def test_the_next_reader_asks_the_source_for_nothing(tmp_path: Path) -> None:
    content = os.urandom(3 * BLOCK + 17)
    first, second = Memory(content), Memory(content)
    assert bytes(cache(tmp_path).open(first).read(0, len(content))) == content
    assert bytes(cache(tmp_path).open(second).read(5, 3 * BLOCK)) == content[5 : 5 + 3 * BLOCK]
    assert (first.asked, second.asked) == ([0, BLOCK, 2 * BLOCK, 3 * BLOCK], [])
    files = [path for path in (tmp_path / "blocks").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (tmp_path / "blocks").stat().st_mode & 0o777 == 0o700


def test_a_changed_object_is_another_one(tmp_path: Path) -> None:
    one, two = os.urandom(BLOCK), os.urandom(BLOCK)
    assert bytes(cache(tmp_path).open(Memory(one, "1")).read(0, BLOCK)) == one
    assert bytes(cache(tmp_path).open(Memory(two, "2")).read(0, BLOCK)) == two


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "seal"])
def test_a_damaged_block_is_fetched_again(tmp_path: Path, damage: str) -> None:
    content = os.urandom(BLOCK)
    cache(tmp_path).open(Memory(content)).read(0, BLOCK)
    (path,) = (tmp_path / "blocks").rglob("0*")
    held = bytearray(path.read_bytes())
    if damage in ("flip", "seal"):
        held[100 if damage == "flip" else -10] ^= 1
    path.write_bytes(held[: {"truncate": 100, "empty": 0}.get(damage, len(held))])
    source = Memory(content)
    assert bytes(cache(tmp_path).open(source).read(0, BLOCK)) == content
    assert source.asked == [0]


def test_the_space_is_bounded_and_the_oldest_goes(tmp_path: Path) -> None:
    limit = 8 * (BLOCK + 64)
    held = cache(tmp_path, limit_bytes=limit)
    source = Memory(os.urandom(40 * BLOCK))
    reader = held.open(source)
    kept = reader.read(0, BLOCK)
    for number in range(1, 40):
        reader.read(number * BLOCK, BLOCK)
        held.find(held.key(source), 0, BLOCK)  # used by somebody, again and again
        assert held.held_bytes() <= limit
    assert bytes(kept) == source.content[:BLOCK]
    again = Memory(source.content)
    cache(tmp_path, limit_bytes=limit).open(again).read(0, BLOCK)
    assert again.asked == []
    assert held._counted() == held.held_bytes()


def test_what_is_larger_than_the_cache_is_read_all_the_same(tmp_path: Path) -> None:
    content = os.urandom(2 * BLOCK)
    held = cache(tmp_path, limit_bytes=10)
    assert bytes(held.open(Memory(content)).read(0, 2 * BLOCK)) == content
    assert held.held_bytes() == 0


def mapped(tmp_path: Path) -> list[str]:
    """What this process has mapped of the cache: where, and whether it was removed."""
    return [
        line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line
    ]


def test_a_large_object_stays_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proven once each, looked for once each, without a descriptor for any of them."""
    source, count = Memory(os.urandom(300 * BLOCK)), 300
    held = cache(tmp_path, limit_bytes=1 << 22)
    found, looked, proven = held.open(source), 0, 0
    find, checksum = held.find, zlib.crc32

    def looking(*about: Any) -> Any:
        nonlocal looked
        looked += 1
        return find(*about)

    def proving(content: Any) -> int:
        nonlocal proven
        proven += 1
        return checksum(content)

    found.read(0, source.size)
    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(held, "find", looking)
    monkeypatch.setattr(block_cache.zlib, "crc32", proving)
    for number in range(count):
        assert bytes(found.read(number * BLOCK, 100)) == source.content[number * BLOCK : number * BLOCK + 100]
    assert (looked, proven, len(mapped(tmp_path))) == (0, 0, count)
    found._mapped.clear()
    assert mapped(tmp_path) == []
    assert bytes(found.read(0, source.size)) == source.content
    assert (looked, proven, len(source.asked)) == (count, 0, count)
    assert len(os.listdir("/proc/self/fd")) == descriptors < count


def test_what_is_mapped_is_shared_among_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_cache, "_readers", type(block_cache._readers)())
    monkeypatch.setattr(block_cache, "MAPPED", 8)
    found = [cache(tmp_path, limit_bytes=1 << 20).open(Memory(os.urandom(9 * BLOCK), str(one))) for one in range(2)]
    for reader in (*found, *found):
        reader.read(0, 9 * BLOCK)
    assert len(mapped(tmp_path)) == 8


def test_a_block_that_was_proven_is_proven_again_once_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_cache, "LOOK_AGAIN_S", 0.0)
    source = Memory(os.urandom(BLOCK))
    found = cache(tmp_path, limit_bytes=1 << 20).open(source)
    found.read(0, BLOCK)
    assert bytes(found.read(0, BLOCK)) == source.content and source.asked == [0]
    (path,) = (tmp_path / "blocks").rglob("0*")
    before = path.stat()
    with path.open("r+b") as file:
        file.write(bytes([source.content[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # clocks of file systems may be too coarse
    assert bytes(found.read(0, BLOCK)) == source.content
    assert source.asked == [0, 0]


def test_what_cannot_be_mapped_is_no_damage_and_takes_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Memory(os.urandom(9 * BLOCK))
    cache(tmp_path, limit_bytes=1 << 20).open(source).read(0, source.size)
    kept = {path: path.stat().st_ino for path in (tmp_path / "blocks").rglob("0*")}

    def fail(descriptor: int, size: int) -> memoryview:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(block_cache, "_mapped", fail)
    monkeypatch.setattr(block_cache, "HELD", 4)
    held = cache(tmp_path, limit_bytes=1 << 20)
    monkeypatch.setattr(held, "publish", lambda *about: False)
    found = held.open(source)
    assert bytes(found.read(0, source.size)) == source.content
    assert len(found._held) == 4
    assert {path: path.stat().st_ino for path in (tmp_path / "blocks").rglob("0*")} == kept


def test_what_is_used_while_it_is_mapped_stays_and_what_was_removed_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_cache, "LOOK_AGAIN_S", 0.0)
    source = Memory(os.urandom(40 * BLOCK))
    found = cache(tmp_path, limit_bytes=8 * (BLOCK + 64)).open(source)
    for number in range(40):
        found.read(number * BLOCK, BLOCK)
        found.read(0, BLOCK)
    assert source.asked == [number * BLOCK for number in range(40)]
    assert len(mapped(tmp_path)) == 1
    shutil.rmtree(tmp_path / "blocks" / found._key)
    assert bytes(found.read(0, BLOCK)) == source.content[:BLOCK] and source.asked[-1] == 0


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir(mode=0o755)
    with pytest.raises(StoreError, match="mode 0755; expected a directory of your own with mode 0700"):
        cache(tmp_path)
    (tmp_path / "blocks").rmdir()
    (tmp_path / "blocks").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="blocks cannot be kept"):
        cache(tmp_path)
    with pytest.raises(SpecError, match="multiple"):
        BlockCache(tmp_path / "b", block_bytes=1000)


READER = """
import sys
from pathlib import Path
from jupyter_hyperpod.mounts.block_cache import BlockCache

class File:
    def __init__(self, path):
        self.url, self.etag, self.size, self.path = "file", "1", Path(path).stat().st_size, path
    def read_into(self, offset, view):
        with open(sys.argv[3], "a") as log: log.write(f"{offset}\\n")
        if sys.argv[4] == "hold" and offset == 0:
            print("holding", flush=True)
            sys.stdin.read()
        with open(self.path, "rb") as file:
            file.seek(offset); file.readinto(view)

source = File(sys.argv[1])
reader = BlockCache(Path(sys.argv[2]), block_bytes=4096, limit_bytes=int(sys.argv[5])).open(source)
print("ready", flush=True)
sys.stdin.readline()
for turn in range(int(sys.argv[6])):
    with open(sys.argv[1], "rb") as file:
        assert bytes(reader.read(0, source.size)) == file.read()
    reader._mapped.clear()
print("done", flush=True)
"""


def reader(tmp_path: Path, how: str = "read", limit: int = 1 << 20, turns: int = 1) -> subprocess.Popen[str]:
    arguments = [str(tmp_path / name) for name in ("content", "blocks", "log")]
    process = subprocess.Popen(
        [sys.executable, "-c", READER, *arguments, how, str(limit), str(turns)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate("go\n", timeout=60)
    return out


def test_processes_that_read_at_once_fetch_every_block_once(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(os.urandom(30 * BLOCK))
    readers = [reader(tmp_path) for _ in range(3)]
    for process in readers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0] for process in readers] == ["done\n"] * 3
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == [n * BLOCK for n in range(30)]


def test_processes_that_evict_each_other_read_the_truth(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(os.urandom(30 * BLOCK))
    limit = 10 * (BLOCK + 64)
    readers = [reader(tmp_path, limit=limit, turns=4) for _ in range(2)]
    threads = [threading.Thread(target=go, args=(process,)) for process in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [process.returncode for process in readers] == [0, 0]
    held = BlockCache(tmp_path / "blocks", block_bytes=BLOCK, limit_bytes=limit)
    assert 0 < held.held_bytes() <= limit


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reader_that_falls_while_it_fetches_holds_nobody(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(3 * BLOCK)
    (tmp_path / "content").write_bytes(content)
    falling = reader(tmp_path, "hold")
    assert falling.stdin is not None and falling.stdout is not None
    falling.stdin.write("go\n")
    falling.stdin.flush()
    assert falling.stdout.readline() == "holding\n"
    falling.send_signal(number)
    monkeypatch.setattr(block_cache, "WAIT_S", 0.2)
    source = Memory(content)
    source.url = "file"
    began_s = time.monotonic()
    assert bytes(cache(tmp_path, limit_bytes=1 << 20).open(source).read(0, len(content))) == content
    assert time.monotonic() - began_s < 30
    falling.kill()
    falling.communicate(timeout=30)
    assert go(reader(tmp_path)) == "done\n"
