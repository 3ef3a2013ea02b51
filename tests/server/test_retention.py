"""The server deletes jobs that ended long ago, where its settings say so, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from traitlets import TraitError

from jupyter_hyperpod.control import housekeeping
from jupyter_hyperpod.server import retention
from jupyter_hyperpod.server.extension import HyperpodExtension
from jupyter_hyperpod.storage.store import Store
from tests.test_housekeeping import job


@pytest.mark.parametrize("extension_config", [{"keep_jobs": "30d", "keep_newest_jobs": 1}])
def test_what_ended_long_ago_is_deleted(store: Store, extension: HyperpodExtension) -> None:
    old, older = job(store, "old", "failed", 40), job(store, "older", "succeeded", 50)
    running = job(store, "running", "running", 90)
    extension.retention.prune()
    assert set(store.job_ids()) == {old, running}, f"{old} is the newest that has ended, {older} is gone"
    job(store, "young", "stopped", 3)
    extension.retention.prune()
    assert old not in store.job_ids() and len(store.job_ids()) == 2


def test_without_the_setting_nothing_is_deleted(store: Store, extension: HyperpodExtension) -> None:
    kept = job(store, "old", "succeeded", 4000)
    extension.retention.prune()
    assert store.job_ids() == [kept]


@pytest.mark.parametrize("text", ["soon", "-1d", "30 weeks"])
def test_a_time_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(TraitError, match=r"HyperpodExtension.keep_jobs: duration"):
        HyperpodExtension(keep_jobs=text)


def test_times_are_those_of_prune() -> None:
    assert [HyperpodExtension(keep_jobs=text).keep_jobs for text in ("", "12h", "90d")] == ["", "12h", "90d"]


async def test_an_error_of_any_kind_is_logged_and_the_next_look_follows(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked = asyncio.Event()
    errors = iter([RuntimeError("the table is no table")])

    def delete_old(*_: object, **__: object) -> list[object]:
        for error in errors:
            raise error
        loop.call_soon_threadsafe(looked.set)
        return []

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(housekeeping, "delete_old", delete_old)
    monkeypatch.setattr(retention, "EVERY_S", 0.01)
    keeper = retention.Retention(store, 1.0, 0, logging.getLogger("test"))
    with ThreadPoolExecutor(1) as threads:
        keeper.start(threads)
        await asyncio.wait_for(looked.wait(), 50)
        await keeper.stop()
    assert "the table is no table" in caplog.text
