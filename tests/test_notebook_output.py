"""What stays in a saved notebook: static, escaped, and as of the job's end."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

from jupyter_hyperpod.control import report, sentences, text_tables
from jupyter_hyperpod.core.events import EVENT_FIELDS, Event, decode_event
from jupyter_hyperpod.core.incidents import fold_stages
from jupyter_hyperpod.core.views import View, fold_all, new_job_view
from jupyter_hyperpod.notebook.output import MIME_TYPE, JobDisplay, job_bundle, job_html, loss_chart
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store

JOURNALS = Path(__file__).parent / "journals"
EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\x1b[2J\u202e"


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def journal(name: str) -> list[Event]:
    return [decode_event(line) for line in (JOURNALS / f"{name}.jsonl").read_bytes().splitlines()]


def view_of(name: str) -> View:
    return fold_all(new_job_view(f"{name}-abcdefgh"), journal(name))


@pytest.mark.parametrize("name", ["happy", "kill", "elastic", "user-error"])
def test_snapshot_is_static_and_whole(name: str) -> None:
    text = job_html(view_of(name))
    tags = Tags(text)
    assert tags.tags <= {"div", "span", "strong", "em", "svg", "title", "polyline", "line"} | {
        "table", "thead", "tbody", "tr", "th", "td"
    }  # fmt: skip
    assert not any(attribute.startswith("on") for attribute in tags.attributes)
    assert "url(" not in text and "http" not in text


def test_snapshot_shows_state_incidents_and_curve() -> None:
    view = view_of("kill")
    text = job_html(view)
    assert view["state"] in text and "<table>" in text and "<polyline" in text
    assert job_bundle(view, "/s", "d", False)["text/plain"] == report.progress_line(view)


def test_snapshot_of_a_job_that_goes_on_says_when_that_was() -> None:
    view, at_s = view_of("kill") | {"state": "running"}, 1795775459.0  # 2026-11-27 10:30:59 UTC
    bundle = job_bundle(view, "/s", "d", False, at_s)
    assert "running as of 2026-11-27 10:30 UTC</div>" in bundle["text/html"]
    assert bundle["text/plain"] == f"{report.progress_line(view)} · as of 2026-11-27 10:30 UTC"
    ended = job_bundle(view | {"state": "succeeded"}, "/s", "d", False, at_s)
    assert "as of" not in ended["text/html"] + ended["text/plain"]


def test_a_display_has_the_time_of_its_last_change(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, **how: shown.append(bundle["text/plain"]))
    card, view = JobDisplay("/s", "d", False), view_of("kill") | {"state": "running"}
    for at_s, state in ((1795775459.0, "running"), (1795775519.0, "running"), (1795775580.0, "recovering")):
        monkeypatch.setattr("jupyter_hyperpod.notebook.output.time.time", lambda at_s=at_s: at_s)
        card.show(view | {"state": state})
    assert [text.rpartition(" · ")[2] for text in shown] == [f"as of 2026-11-27 10:3{m} UTC" for m in (0, 3)]


def test_snapshot_takes_its_colours_from_the_page() -> None:
    text = job_html(view_of("kill"))
    assert "currentColor" in text and "background" not in text


def test_everything_foreign_is_escaped() -> None:
    view = new_job_view(EVIL)
    view |= {"name": EVIL, "reason": EVIL, "state": EVIL, "session": {"total_steps": 1, "global_batch": 1}}
    stage = {"incident": 1, "stage": EVIL, "cause": EVIL, "node": EVIL, "rank": 0, "rung": 1, "text": EVIL}
    view["incidents"] = fold_stages([Event(EVIL, 1, 1.0, "incident.stage", stage)])
    text = job_html(view)
    assert not Tags(text).tags & {"script", "img"}
    assert "\x1b" not in text and "\x1b" not in report.progress_line(view)
    table = report.jobs_table([view], 10.0)
    assert "\x1b" not in table.render() and "<script" not in table.html()


def test_bundle_names_the_job_and_holds_no_state() -> None:
    bundle = job_bundle(view_of("happy"), "/store", "ab12", True)
    assert bundle[MIME_TYPE] == {"job_id": "happy-abcdefgh", "store": "/store", "cell_digest": "ab12", "streams": True}
    json.dumps(bundle)


def test_chart_of_strange_curves() -> None:
    assert loss_chart([([], [])]) == "" and loss_chart([([[1, 2.0, 0.0, 1]], [])]) == ""
    flat = [[1, 2.0, 0.0, 1], [2, 2.0, 1.0, 1], [3, None, 2.0, 1]]
    Tags(loss_chart([(flat, [])]))


def test_every_kind_of_event_has_a_sentence() -> None:
    assert set(sentences._SENTENCES) == set(EVENT_FIELDS)
    for name in ("happy", "kill", "elastic", "user-error", "cluster"):
        for event in journal(name):
            sentence = sentences.event_sentence(event)
            assert sentence and "{" not in sentence, (event.kind, sentence)


def test_sentence_of_a_strange_event_is_its_data() -> None:
    assert "nonsense" in sentences.event_sentence(Event("w", 1, 0.0, "step.committed", {"step": "nonsense"}))


def test_tables_align_wide_characters() -> None:
    rows = [[text_tables.Cell("日本"), text_tables.Cell("1")], [text_tables.Cell("abcd"), text_tables.Cell("22")]]
    lines = text_tables.Table(("NAME", ">N"), rows).render().splitlines()
    assert lines == ["NAME   N", "日本   1", "abcd  22"]


# ---- saved notebooks ----------------------------------------------------------------------------------------


def notebook(*cells: str) -> Any:
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in ("%load_ext jupyter_hyperpod", *cells)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )


def execute(book: Any, store: Store, directory: Path) -> None:
    environment = os.environ | {ENVIRONMENT_VARIABLE: str(store.root), "IPYTHONDIR": str(directory)}
    options: dict[str, Any] = {"extra_arguments": ["--HistoryManager.enabled=False"]}
    NotebookClient(book, timeout=60, resources={"metadata": {"path": str(directory)}}, **options).execute(
        env=environment
    )


def test_saved_notebook_shows_how_the_job_ended(shared_cluster: Store, tmp_path: Path) -> None:
    book = notebook("%%hyperpod --nodes 2 --name saved\nprint('printed')", "%hyperpod jobs")
    execute(book, shared_cluster, tmp_path)
    nbformat.validate(book)
    display = next(output for output in book.cells[1].outputs if output.output_type == "display_data")
    assert "succeeded" in display.data["text/html"] and "saved · succeeded" in display.data["text/plain"]
    assert display.data[MIME_TYPE]["job_id"].startswith("saved-")
    page, _ = HTMLExporter().from_notebook_node(book)
    assert "[rank 1] printed" in page and "succeeded" in page


def test_failed_job_fails_the_notebook(shared_cluster: Store, tmp_path: Path) -> None:
    book = notebook("%%hyperpod --name failing\nraise RuntimeError('no luck')", "print('never')")
    with pytest.raises(CellExecutionError, match="RuntimeError: no luck"):
        execute(book, shared_cluster, tmp_path)
    kinds = [output.output_type for output in book.cells[1].outputs]
    assert kinds == ["display_data", "error"] and book.cells[2].outputs == []
    assert "failed" in book.cells[1].outputs[0].data["text/html"]
