"""The last step of a save: whatever happens in it, the old model is there as it was, or all of the new one."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import LoaderError
from jupyter_hyperpod.loader.read.http_connection import ConnectionBroken, Head
from jupyter_hyperpod.loader.read.source import Options, Source
from jupyter_hyperpod.loader.read.sources import Opener
from jupyter_hyperpod.loader.write import bucket
from tests.loader.conftest import Listed
from tests.loader.models import assert_same, decoder

pytestmark = [pytest.mark.s3]
OLD, NEW = decoder(blocks=3), decoder(seed=1, blocks=3)
INDEX = "model.safetensors.index.json"
MANIFEST = "model.safetensors.manifest.json"
SMALL: dict[str, Any] = {"shard_bytes": 60_000}
QUICK = Options(attempts=1)
Act = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """What replaces what: a name behind the URL, the options of both saves, and the step by which it is seen."""

    name: str
    old: dict[str, Any]
    new: dict[str, Any]
    request: str
    file: str


CASES = {
    "a file": Case("/one.safetensors", {}, {}, "POST", "one.safetensors"),
    "a file in a directory": Case("", {}, {}, "POST", "model.safetensors"),
    "shards": Case("", SMALL, SMALL, "PUT", INDEX),
    "shards for a file": Case("", {}, SMALL, "PUT", INDEX),
    "a file for shards": Case("", SMALL, {}, "DELETE", INDEX),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
buckets = pytest.mark.parametrize("place", ["weed", "rclone"], indirect=True)


def interrupt() -> None:
    """Ctrl-C."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


class Answered(Exception):
    """Another answer than the server's."""

    def __init__(self, head: Head, body: bytes) -> None:
        super().__init__(head.status)
        self.head, self.body = head, body


def nothing() -> None:
    """Nothing happens."""


@dataclass
class Meddler:
    """Does something before and after each step that is `wanted`: a request, or the system call that does the same."""

    patch: pytest.MonkeyPatch

    def at(self, case: Case, before: Act = nothing, after: Act = nothing) -> None:
        """Meddle with the switch of a case."""
        self._exchange(lambda method, path: (method, path) == (case.request, case.file), before, after)
        call = "unlink" if case.request == "DELETE" else "replace"
        self._call(call, lambda path: os.path.basename(path) == case.file, before, after)

    def at_shards(self, before: Act = nothing, after: Act = nothing) -> None:
        """Meddle with the publication of shards."""
        self._exchange(lambda method, path: method == "POST" and "-of-" in path, before, after)
        self._call("replace", lambda path: "-of-" in os.path.basename(path), before, after)

    def _exchange(self, wanted: Callable[[str, str], bool], before: Act, after: Act) -> None:
        real = bucket._exchange

        def exchange(connections: Any, request: bytes, *rest: Any) -> tuple[Head, bytes]:
            method, path, _ = request.decode("latin-1").split(" ", 2)
            path, _, query = path.rpartition("/")[2].partition("?")
            if query == "uploads=" or not wanted(method, path) or "partNumber" in query:
                return real(connections, request, *rest)
            try:
                before()
                found = real(connections, request, *rest)
                after()
            except Answered as answered:
                return answered.head, answered.body
            return found

        self.patch.setattr(bucket, "_exchange", exchange)

    def _call(self, name: str, wanted: Callable[[str], bool], before: Act, after: Act) -> None:
        real = getattr(os, name)

        def call(*paths: Any) -> None:
            if not wanted(str(paths[-1])):
                real(*paths)
                return
            before()
            real(*paths)
            after()

        self.patch.setattr(os, name, call)


@pytest.fixture
def meddler() -> Iterator[Meddler]:
    with pytest.MonkeyPatch.context() as patch:
        yield Meddler(patch)


def fail(place: str) -> Act:
    """What the step meets: no answer, or an error of the system."""

    def act() -> None:
        if place.startswith("s3://"):
            raise ConnectionBroken("the connection was closed before an answer")
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return act


def refuse(place: str, status: int = 403) -> Act:
    """The server, or the system, says no."""

    def act() -> None:
        if place.startswith("s3://"):
            raise Answered(Head(status, {}), b"<Error><Code>AccessDenied</Code></Error>")
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    return act


def begin(place: tuple[str, Listed], case: Case) -> tuple[str, set[str]]:
    """Have the old model there."""
    url = place[0] + case.name
    hp.save_model(OLD, url, checksum=True, **case.old)
    return url, place[1]()


@cases
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_in_the_switch(
    when: str, case: Case, place: tuple[str, Listed], meddler: Meddler, interruptible: None
) -> None:
    """What has been begun ends first; then all of the new model is there, and nothing else."""
    url, _ = begin(place, case)
    meddler.at(case, **{when: interrupt})
    with pytest.raises(KeyboardInterrupt):
        hp.save_model(NEW, url, **case.new)
    assert_same(hp.load_model(url), NEW)
    left = place[1]()
    assert not any("manifest" in name or "upload" in name or name.startswith(".") for name in left)
    meddler.patch.undo()
    assert len(left) == (1 if case.new == {} else 1 + len(hp.save_model(NEW, f"{url}-again", **case.new).files))


@cases
@buckets
def test_a_switch_whose_answer_is_lost(case: Case, place: tuple[str, Listed], meddler: Meddler) -> None:
    """It may have been done, and was: the new model stays."""
    url, _ = begin(place, case)
    meddler.at(case, after=fail(place[0]))
    with pytest.raises(LoaderError):
        hp.save_model(NEW, url, options=QUICK, **case.new)
    assert_same(hp.load_model(url), NEW)


@buckets
@pytest.mark.parametrize("first", ["no answer", "status 500"])
def test_a_switch_whose_answer_is_lost_before_it_is_refused(
    first: str, place: tuple[str, Listed], meddler: Meddler
) -> None:
    """Keys that are not valid any more when it is asked again say nothing about the first time."""
    case = CASES["shards"]
    url, _ = begin(place, case)
    acts = iter([fail(place[0]) if first == "no answer" else refuse(place[0], 500), refuse(place[0])])
    meddler.at(case, after=lambda: next(acts)())
    with pytest.raises(LoaderError, match="AccessDenied"):
        hp.save_model(NEW, url, **case.new)
    assert_same(hp.load_model(url), NEW)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.request != "DELETE"])
def test_a_directory_that_cannot_be_written_to_the_disk(name: str, tmp_path: Path, meddler: Meddler) -> None:
    """The new model stays, and so do the shards of the old one, which a power failure may bring back."""
    case = CASES[name]
    url, before = begin((str(tmp_path), lambda: set(os.listdir(tmp_path))), case)
    no_directory_survives(meddler.patch)
    with pytest.raises(LoaderError, match="Input/output error; expected that it survives"):
        hp.save_model(NEW, url, **case.new)
    assert_same(hp.load_model(url), NEW)
    assert before - set(os.listdir(tmp_path)) == {MANIFEST if not case.name else f"one{MANIFEST[5:]}"}


def no_directory_survives(patch: pytest.MonkeyPatch) -> None:
    """From the switch on, directories cannot be written to the disk."""
    real, replace = os.fsync, os.replace
    switched: list[bool] = []

    def sync(descriptor: int) -> None:
        if switched and stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    def switch(source: Any, target: Any) -> None:
        replace(source, target)
        switched.extend([True] * ("-of-" not in os.path.basename(target)))

    patch.setattr(os, "fsync", sync)
    patch.setattr(os, "replace", switch)


@cases
def test_a_switch_that_was_not_done(case: Case, place: tuple[str, Listed], meddler: Meddler) -> None:
    """The old model stays, its manifest with it; on this machine it is known that nothing else is needed."""
    url, before = begin(place, case)
    meddler.at(case, before=fail(place[0]))
    with pytest.raises(LoaderError):
        hp.save_model(NEW, url, options=QUICK, **case.new)
    assert_same(hp.load_model(url, checksum=True), OLD)
    if not place[0].startswith("s3://"):
        assert place[1]() == before


@cases
def test_a_switch_that_is_refused(case: Case, place: tuple[str, Listed], meddler: Meddler) -> None:
    """Who says no has not done it: nothing of the new model is left."""
    url, before = begin(place, case)
    meddler.at(case, before=refuse(place[0]))
    with pytest.raises(LoaderError, match="AccessDenied|Permission denied"):
        hp.save_model(NEW, url, **case.new)
    assert_same(hp.load_model(url, checksum=True), OLD)
    assert place[1]() == before


@pytest.mark.parametrize("how", ["an error", "Ctrl-C"])
@pytest.mark.parametrize("name", ["shards", "shards for a file"])
def test_shards_that_are_published_before_it_fails_are_removed(
    name: str, how: str, place: tuple[str, Listed], meddler: Meddler, interruptible: None
) -> None:
    url, before = begin(place, CASES[name])
    hit = iter([False, False, True])

    def act() -> None:
        if next(hit, False):
            (interrupt if how == "Ctrl-C" else fail(place[0]))()

    meddler.at_shards(after=act)
    with pytest.raises(KeyboardInterrupt if how == "Ctrl-C" else LoaderError):
        hp.save_model(NEW, url, options=QUICK, **CASES[name].new)
    assert place[1]() == before
    assert_same(hp.load_model(url, checksum=True), OLD)


@buckets
def test_a_server_that_fails_behind_the_switch(place: tuple[str, Listed], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that could fail is asked of the index where there was none; before the first byte, it is an error."""
    url, _ = begin(place, CASES["a file in a directory"])
    real_open, real_exchange, written = Opener.open, bucket._exchange, threading.Event()

    def opened(opener: Opener, address: str) -> Source:
        if address.endswith(INDEX) and written.is_set():
            raise LoaderError(address, "status 500, 8 times", "an answer")
        return real_open(opener, address)

    def exchange(connections: Any, request: bytes, *rest: Any) -> tuple[Head, bytes]:
        if INDEX.encode() in request and written.is_set():
            raise ConnectionBroken("the connection was closed before an answer")
        return real_exchange(connections, request, *rest)

    monkeypatch.setattr(Opener, "open", opened)
    monkeypatch.setattr(bucket, "_exchange", exchange)
    hp.save_model(NEW, url, options=QUICK, progress=lambda _: written.set())
    with pytest.raises(LoaderError, match="status 500"):
        hp.save_model(OLD, url, options=QUICK)
    written.clear()
    assert_same(hp.load_model(url), NEW)


def blind(patch: pytest.MonkeyPatch, url: str) -> None:
    """Keys that may write, and not read."""
    real = Opener.open

    def opened(opener: Opener, address: str) -> Source:
        if address.startswith(url):
            raise LoaderError(address, "no permission: AccessDenied (status 403)", "a readable object")
        return real(opener, address)

    patch.setattr(Opener, "open", opened)


@cases
@buckets
def test_who_may_not_look_takes_names_that_nothing_has(case: Case, place: tuple[str, Listed]) -> None:
    url, before = begin(place, case)
    with pytest.MonkeyPatch.context() as patch:
        blind(patch, url)
        seen: list[set[str]] = []
        real = bucket.Bucket.put

        def put(self: bucket.Bucket, name: str, content: bytes) -> None:
            seen.append(place[1]())
            real(self, name, content)

        patch.setattr(bucket.Bucket, "put", put)
        saved = hp.save_model(NEW, url, **case.new)
    if case.name:
        assert not seen and saved.files == ("one.safetensors",)
    else:
        assert seen[0] == before | set(saved.files) and not before & set(saved.files)
    assert_same(hp.load_model(url), NEW)


def test_an_index_that_names_the_single_file(tmp_path: Path) -> None:
    """The new file must not take its place before the index is gone."""
    url = str(tmp_path)
    hp.save_model(OLD, url)
    weights = ", ".join(f'"{name}": "model.safetensors"' for name in OLD)
    (tmp_path / INDEX).write_text(f'{{"weight_map": {{{weights}}}}}')
    assert_same(hp.load_model(url), OLD)
    saved = hp.save_model(NEW, url)
    assert_same(hp.load_model(url), NEW)
    assert set(os.listdir(tmp_path)) == {INDEX, *saved.files} and saved.files[0] != "model.safetensors"


def test_shards_that_are_gone_keep_their_names(tmp_path: Path) -> None:
    """None of another model is there while the old index is read, and none goes when the old ones are removed."""
    old = hp.save_model(OLD, str(tmp_path), **SMALL).files
    for name in old:
        (tmp_path / name).unlink()
    saved = hp.save_model(NEW, str(tmp_path), **SMALL)
    assert not set(saved.files) & set(old)
    assert_same(hp.load_model(str(tmp_path)), NEW)


def test_files_that_no_index_names_are_not_taken_for_shards(tmp_path: Path) -> None:
    saved = hp.save_model(NEW, str(tmp_path), **SMALL)
    (tmp_path / INDEX).unlink()
    again = hp.save_model({name: torch.zeros_like(tensor) for name, tensor in NEW.items()}, str(tmp_path), **SMALL)
    assert not {*saved.files} & {*again.files}
    assert set(os.listdir(tmp_path)) == {INDEX, *saved.files, *again.files}
