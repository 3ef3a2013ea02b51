"""Tags, notes and the archive: who wrote them is journaled, also after the job's end, and lists show them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.control.runs.labels import label
from jupyter_hyperpod.control.runs.report_page import report_page
from jupyter_hyperpod.control.runs.run_record import read
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.kept import TAGS_KEPT, labelled
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.folded import FoldedJournal
from jupyter_hyperpod.storage.journal import event_writer, read_events
from jupyter_hyperpod.storage.store import JobStore, Store
from jupyter_hyperpod.system.users import own_name
from tests.runs.pages import harmless


def ended(store: Store, name: str) -> JobStore:
    job = store.create_job(JobSpec(name=name, cell_digest="0" * 64))
    with event_writer(job.events, "coordinator") as journal:
        journal.append("job.state", {"state": "succeeded", "reason": "done"})
    return job


def test_a_job_that_has_ended_gets_tags_and_a_note(store: Store) -> None:
    job = ended(store, "told")
    FoldedJournal(job).save()  # a snapshot of before
    label(store, job.id, add=["baseline", "lr:1e-3"], note="the <first> one")
    view = label(store, job.id, add=["best"], remove=["lr:1e-3"], identity="Ada")
    assert view["labels"]["tags"] == ["baseline", "best"] and view["labels"]["note"] == "the <first> one"
    assert view["labels"]["by"] == f"Ada ({own_name()})" and view["state"] == "succeeded"
    assert [event.data["by"] for event in read_events(job.events) if event.kind == "job.labelled"] == [
        own_name(),
        f"Ada ({own_name()})",
    ]
    page = harmless(report_page(read(store, job.id), "1"))
    assert "baseline, best" in page.text and "the <first> one" in page.text


@pytest.mark.parametrize("tag", ["", "two words", "-x", "x" * 41, "<b>", "a\nb", "_"])
def test_what_cannot_be_a_tag_is_refused(store: Store, tag: str) -> None:
    job = ended(store, "told")
    with pytest.raises(SpecError, match="cannot be a tag; expected"):
        label(store, job.id, add=[tag])
    assert jobs.job_view(store, job.id)["labels"]["tags"] == []


def test_too_much_is_refused(store: Store) -> None:
    job = ended(store, "told")
    label(store, job.id, add=[f"t{number}" for number in range(TAGS_KEPT)])
    with pytest.raises(SpecError, match="would have 21 tags"):
        label(store, job.id, add=["one-more"])
    assert label(store, job.id, add=["one-more"], remove=["t0"])["labels"]["tags"][-1] == "one-more"
    with pytest.raises(SpecError, match="at once"):
        label(store, job.id, add=["x"], remove=["x"])
    with pytest.raises(SpecError, match="2001 characters"):
        label(store, job.id, note="x" * 2001)


tags = st.lists(st.sampled_from([f"t{number}" for number in range(30)]), unique=True, max_size=25)


@given(st.lists(st.tuples(tags, tags, st.none() | st.text(max_size=5), st.none() | st.booleans()), max_size=8))
def test_labels_are_bounded_and_the_last_word_counts(changes: list[tuple[list[str], list[str], Any, Any]]) -> None:
    known: dict[str, Any] = {"tags": [], "note": "", "archived": False, "by": "", "time_s": None}
    for number, (add, remove, note, archived) in enumerate(changes):
        data: dict[str, Any] = {"add": add, "remove": remove, "by": str(number)}
        data |= {} if note is None else {"note": note}
        data |= {} if archived is None else {"archived": archived}
        after = labelled(known, data, float(number))
        assert len(after["tags"]) <= TAGS_KEPT and len(set(after["tags"])) == len(after["tags"])
        assert after["tags"][-1:] == add[-1:] or not add
        assert not set(remove) - set(add) & set(after["tags"])
        assert after["note"] == (known["note"] if note is None else note)
        assert after["archived"] == (known["archived"] if archived is None else archived)
        assert labelled(after, data, float(number)) == after, "once more changes nothing"
        known = after


def test_the_command_and_the_lists(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    kept, old = ended(store, "kept"), ended(store, "old")

    def said(*words: str) -> str:
        assert main([*words]) == 0
        return capsys.readouterr().out

    assert "TAGS" not in said("list")
    assert said("tag", "kept") == f"{kept.id}: no tags\n"
    assert said("tag", "kept", "--add", "good", "--note", "a note") == f"{kept.id}: good\nnote: a note\n"
    assert json.loads(said("tag", "old", "--archive", "--json"))["archived"] is True
    listed = said("list")
    assert "TAGS" in listed and "good" in listed and old.id not in listed and "1 archived job" in listed
    assert "(archived)" in said("list", "--archived")
    assert old.id not in said("list", "--archived", "--tag", "good")
    assert [view["id"] for view in json.loads(said("list", "--json"))] == [old.id, kept.id]
    assert [view["id"] for view in json.loads(said("list", "--json", "--tag", "good"))] == [kept.id]
    described = said("describe", "kept")
    assert "a note" in described and f"by {own_name()}" in described
    assert f"tagged good; note: a note, by {own_name()}" in said("events", "kept")
    said("tag", "old", "--unarchive")
    assert old.id in said("list")
    assert main(["tag", "kept", "--add", "<no>"]) == 2
    assert "cannot be a tag" in capsys.readouterr().err
