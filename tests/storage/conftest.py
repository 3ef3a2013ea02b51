"""A store of one user of the system that members of a group share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.storage import sharing
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.storage.people import OPERATORS, OWNER, READERS, as_user, make_job, pass_through


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that other users reach: a pytest that starts meanwhile would close one of pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def shared(open_path: Path) -> JobStore:
    """A job in a store of OWNER, shared with READERS and OPERATORS; a second job is made after the sharing."""
    pass_through(open_path)
    root = open_path / "store"
    root.mkdir(mode=0o700)
    os.chown(root, OWNER, OWNER)

    def make() -> str:
        store = Store(root).prepare()
        first = make_job(store, "first")
        sharing.share(root, sharing.Sharing(READERS, OPERATORS))
        make_job(store, "second")
        return first

    return Store(root).job(as_user(OWNER, make))
