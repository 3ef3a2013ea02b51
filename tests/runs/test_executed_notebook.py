"""The executed notebook of a job: what is stored, how cells say that they begin, and what is written in the end."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_hyperpod.control.executed import stored_notebook
from jupyter_hyperpod.control.executed.executed_notebook import executed, write_notebook
from jupyter_hyperpod.control.sources.source import notebook_source
from jupyter_hyperpod.core.errors import Conflict, SpecError
from jupyter_hyperpod.core.spec import JobSpec, TrialSpec
from jupyter_hyperpod.runtime import cell_by_cell
from jupyter_hyperpod.storage.joined_cells import JoinedCells, joined
from jupyter_hyperpod.storage.journal import event_writer, read_events
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.output.output_choice import OutputChoice
from jupyter_hyperpod.storage.output.output_range import read_output
from jupyter_hyperpod.storage.output.output_relay import OutputRelay, StepLabel, cell_mark, mark
from jupyter_hyperpod.storage.store import Store

CODE: dict[str, Any] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
LEFT = [{"output_type": "stream", "name": "stdout", "text": "of before"}]
BOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "widgets": {"state": "large"}},
    "cells": [
        {"id": "a", "cell_type": "markdown", "metadata": {}, "source": "# Title"},
        CODE
        | {"id": "b", "metadata": {"tags": ["parameters"]}, "source": "%matplotlib inline\nrate = 1"}
        | {"execution_count": 7, "outputs": LEFT},
        CODE | {"id": "c", "source": "%hyperpod jobs", "execution_count": 8},
        CODE | {"id": "d", "source": "print(rate)\nrate"},
        CODE | {"id": "e", "source": "1 / 0"},
    ],
}
MEMBER = {"member": "node-1.a.7", "node": "node-1", "rank": 0}


class Scene:
    """A job of `BOOK` and its only member, which prints what a test says."""

    def __init__(self, folder: Path, source: str | None = None, **spec: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.store = Store(folder / "store").prepare()
        path = folder / "book.ipynb"
        path.write_text(json.dumps(BOOK))
        origin = stored_notebook.keep(self.store, path, print) if source is None else {}
        source = source or notebook_source(path.read_text(), path.name)
        digest = self.store.put_cell(source)
        self.job = self.store.create_job(JobSpec(name="x", cell_digest=digest, origin=origin, **spec))
        self.out, self.err = StepLabel(), StepLabel()
        with event_writer(self.job.events, "control") as journal:
            journal.append("job.submitted", {"id": self.job.id, "spec": self.job.spec().to_json()})
        self.tell(state="running")
        self.tell("generation.formed", generation=1, members=[MEMBER], spares=[], target=1, reason="")
        journal = JournalWriter(self.job.events, "agent-node-1.00000001")
        self.relay = OutputRelay(self.job, "node-1", journal, self.job.spec().output_cap)

    def tell(self, kind: str = "job.state", **data: Any) -> None:
        with event_writer(self.job.events, "coordinator") as journal:
            journal.append(kind, {"reason": ""} | data if kind == "job.state" else data)

    def print(self, text: str, stream: str = "stdout") -> None:
        label = self.out if stream == "stdout" else self.err
        self.relay.write(str(MEMBER["member"]), 0, stream, text, label)

    def begin(self, number: int) -> None:
        for stream in ("stdout", "stderr"):
            self.print(cell_mark(number), stream)

    def show(self, number: int, data: dict[str, Any], action: str = "display", name: str = "", **more: Any) -> None:
        shown = {"action": action, "id": name, "place": [0, 0, number], "data": data, "metadata": {}, **more}
        self.relay.expect(number, f"{data.get('text/plain', '')}\n", shown)
        self.print(mark(number))

    def written(self) -> dict[str, Any]:
        self.relay.flush()
        notebook = executed(self.store, self.job.id)
        nbformat.validate(nbformat.from_dict(notebook), version=4)
        return notebook


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def texts(cell: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["name"], one["text"]) for one in cell["outputs"] if one["output_type"] == "stream"]


def papermill(cell: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = cell["metadata"]["papermill"]
    return found


def test_each_cell_gets_its_outputs(scene: Scene) -> None:
    scene.print("loading\n", "stderr")
    scene.begin(1)
    scene.begin(3)
    scene.print("1\n")
    scene.print("hm\n", "stderr")
    scene.print("10 %\r20 %\rdone\nafter")
    scene.show(1, {"text/plain": "1"}, cell=3, result=True)
    scene.begin(4)
    told = {"type": "ZeroDivisionError", "message": "division by zero", "traceback": ["Traceback", "boom"], "line": 1}
    scene.tell("user.error", **MEMBER, **told, cell=1)  # raised in a function of the first cell
    scene.tell(state="failed", reason="it is the user's")
    notebook = scene.written()
    markdown, parameters, asks, prints, fails = notebook["cells"]
    assert markdown["source"] == "# Title" and asks["execution_count"] is None and "papermill" not in asks["metadata"]
    assert texts(parameters) == [("stderr", "loading\n")] and parameters["metadata"]["tags"] == ["parameters"]
    assert parameters["source"] == "%matplotlib inline\nrate = 1" and "widgets" not in notebook["metadata"]
    assert texts(prints) == [("stdout", "1\n"), ("stderr", "hm\n"), ("stdout", "done\nafter")]
    result = {"output_type": "execute_result", "data": {"text/plain": "1"}, "metadata": {}, "execution_count": 2}
    assert prints["outputs"][-1] == result
    (error,) = fails["outputs"]
    assert (error["output_type"], error["ename"], error["traceback"][-1]) == ("error", "ZeroDivisionError", "boom")
    statuses = [papermill(cell)["status"] for cell in (parameters, prints, fails)]
    assert statuses == ["completed", "completed", "failed"] and papermill(fails)["exception"] is True
    assert [cell["execution_count"] for cell in (parameters, prints, fails)] == [1, 2, 3]
    assert all(papermill(cell)["duration"] >= 0 for cell in (parameters, prints))
    about = notebook["metadata"]["hyperpod"]
    assert (about["job"], about["state"], about["notes"], about["cells"]) == (scene.job.id, "failed", [], 3)


def test_a_running_job_says_which_cell_runs(scene: Scene) -> None:
    assert [cell.get("execution_count") for cell in scene.written()["cells"]] == [None] * 5
    scene.begin(1)
    scene.begin(3)
    scene.print("1\n")
    notebook = scene.written()
    statuses = [cell["metadata"].get("papermill", {}).get("status") for cell in notebook["cells"]]
    assert statuses == [None, "completed", None, "running", "pending"]
    assert notebook["metadata"]["hyperpod"]["running_cell"] == 3 and notebook["cells"][4]["outputs"] == []
    scene.tell(state="stopped")
    assert papermill(scene.written()["cells"][3])["status"] == "stopped"


def test_a_cell_of_which_all_output_was_dropped_says_so(scene: Scene) -> None:
    scene.begin(4)
    notebook = scene.written()
    assert [papermill(notebook["cells"][at])["status"] for at in (1, 3, 4)] == ["completed", "completed", "running"]
    assert [cell.get("execution_count") for cell in notebook["cells"]] == [None, 1, None, 2, 3]
    assert notebook["cells"][1]["metadata"]["hyperpod"]["unsure"] == "all that the output said of this cell was dropped"
    assert len(notebook["metadata"]["hyperpod"]["notes"]) == 2


def test_displays_are_updated_and_cleared_where_they_are(scene: Scene) -> None:
    scene.begin(1)
    scene.show(1, {"text/plain": "old"}, name="bar", cell=1)
    scene.begin(3)
    scene.print("gone\n")
    scene.show(2, {}, action="clear", name="wait", cell=3)
    scene.show(3, {"text/plain": "new"}, action="update", name="bar", cell=3)
    scene.show(4, {"text/html": "<b>x</b>"}, cell=3)
    scene.print("stays\n")
    cells = scene.written()["cells"]
    assert [one["data"] for one in cells[1]["outputs"]] == [{"text/plain": "new"}]
    assert [one["output_type"] for one in cells[3]["outputs"]] == ["display_data", "stream"]


def test_parameters_of_a_run_are_a_cell_of_their_own(tmp_path: Path) -> None:
    source = joined("book.ipynb", [(1, f"rate = 1\n\n{stored_notebook.GIVEN}\nrate = 5"), (2, "print(rate)")])
    given = Scene(tmp_path / "made", source).written()
    assert [cell["source"] for cell in given["cells"]] == ["rate = 1", "# Parameters\nrate = 5", "print(rate)"]
    assert given["cells"][1]["metadata"]["tags"] == ["injected-parameters"]
    assert len(given["metadata"]["hyperpod"]["notes"]) == 1, "it has no text, and says so"
    trial = TrialSpec("tried-aaaaaaaa", 1, {"rate": 5})
    cells = Scene(tmp_path, joined("b.ipynb", [(1, "rate = 5"), (2, "rate")]), trial=trial).written()["cells"]
    assert [cell["source"] for cell in cells] == ["rate = 5", "# Parameters\nrate = 5", "rate"]


def test_jobs_without_cells_are_refused_in_a_sentence(tmp_path: Path) -> None:
    plain = Scene(tmp_path / "made", "print(1)")
    with pytest.raises(Conflict, match="was not submitted as a notebook: it has run one cell. Submit an .ipynb file"):
        executed(plain.store, plain.job.id)
    old = Scene(tmp_path, joined("b.ipynb", [(1, "print(1)")]))
    old.print("1\n")
    old.relay.flush()
    with pytest.raises(Conflict, match="does not say from which cell it comes: the job ran before cells were noted"):
        executed(old.store, old.job.id)


def test_the_file_is_written_for_its_owner_alone(scene: Scene, tmp_path: Path) -> None:
    scene.begin(1)
    scene.relay.flush()
    answer = write_notebook(scene.store, scene.job.id, str(tmp_path / "out.ipynb"), None)
    assert (tmp_path / "out.ipynb").stat().st_mode & 0o777 == 0o600
    assert answer.lines[0] == f"{scene.job.id} running: 1 of 3 code cells begun"
    assert nbformat.read(tmp_path / "out.ipynb", as_version=4).cells[0].source == "# Title"
    (tmp_path / "link.ipynb").symlink_to(tmp_path / "out.ipynb")
    write_notebook(scene.store, scene.job.id, str(tmp_path / "link.ipynb"), None)
    assert (tmp_path / "link.ipynb").is_symlink()  # the executed notebook behind it is written again


def test_what_is_no_executed_notebook_is_not_replaced(scene: Scene, tmp_path: Path) -> None:
    scene.begin(1)
    scene.relay.flush()
    source, pipe = tmp_path / "train.ipynb", tmp_path / "pipe"
    nbformat.write(nbformat.v4.new_notebook(), source)
    os.mkfifo(pipe)
    with pytest.raises(Conflict, match="is not the executed notebook of a job"):
        write_notebook(scene.store, scene.job.id, str(source), None)
    with pytest.raises(SpecError, match="is no regular file"):
        write_notebook(scene.store, scene.job.id, str(pipe), None)
    with pytest.raises(SpecError, match="is a folder"):
        write_notebook(scene.store, scene.job.id, str(tmp_path), None)
    assert pipe.is_fifo() and not nbformat.read(source, as_version=4).cells


def test_the_notebook_is_kept_as_long_as_its_job(scene: Scene) -> None:
    values = scene.store.put_cell("pushed values")
    again = JobSpec(name="y", cell_digest=scene.store.put_cell(f"pushed({values!r})"))
    other = scene.store.create_job(again)
    for path in scene.store.cells.iterdir():
        os.utime(path, (0, 0))
        assert path.stat().st_mode & 0o777 == 0o600 and "of before" not in path.read_text()
    scene.store.forget_cells()
    assert scene.written()["cells"][0]["source"] == "# Title" and scene.store.cell(values)
    scene.store.remove_job(other.id)
    scene.store.remove_job(scene.job.id)
    scene.store.forget_cells()
    assert not list(scene.store.cells.iterdir())


def test_a_notebook_that_jupyterlab_runs_is_stored_where_the_file_has_its_cells(tmp_path: Path) -> None:
    store, path = Store(tmp_path / "store").prepare(), tmp_path / "book.ipynb"
    made = CODE | {"id": "f", "source": "%%hyperpod\n…", "metadata": {"hyperpod": {"cells": "all"}}}
    path.write_text(json.dumps(BOOK | {"cells": [*BOOK["cells"], made]}))  # type: ignore[misc]
    ran = [(1, f"rate = 1\n\n{stored_notebook.GIVEN}\nrate = 5"), (3, "print(rate)\nrate"), (4, "1 / 0")]
    source = "\n" + joined("book.ipynb", ran)
    origin = stored_notebook.keep_front_end_s(store, str(path), source, print)
    stored = stored_notebook.read(store, origin)
    assert stored and stored["cells"][0]["source"] == "# Title" and stored_notebook.is_made(stored["cells"][-1])
    for other in ("", str(tmp_path / "other.ipynb"), str(tmp_path)):
        assert stored_notebook.keep_front_end_s(store, other, source, print) == {}
    changed = source.replace("print(rate)", "print(rate + 1)")
    assert stored_notebook.keep_front_end_s(store, str(path), changed, print) == {}
    assert stored_notebook.keep_front_end_s(store, str(path), "print(1)", print) == {}


def test_cells_say_that_they_begin_and_show_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [(1, "from __future__ import annotations\nx = 1\nx"), (3, "x += 1\nx;"), (4, "'end'")]
    source = joined("b.ipynb", cells)
    said: list[Any] = []
    monkeypatch.setattr(cell_by_cell, "_say", said.append)
    tree = cell_by_cell.marked(ast.parse(source), JoinedCells(source).parts(), lambda: said.append("|"), said.append)
    names: dict[str, Any] = {}
    exec(compile(tree, "b.ipynb", "exec", dont_inherit=True), names)
    cell_by_cell.ended()
    assert said == [1, 1, "|", 3, "|", 4, "end", 0] and set(names) - {"__builtins__"} == {"x", "annotations"}


def test_displays_that_do_not_fit_are_said_where_they_would_be(tmp_path: Path) -> None:
    scene = Scene(tmp_path, output_cap=1_000_000)
    plot = {"image/png": "x" * 400_000, "text/plain": "<Figure>"}
    scene.begin(1)
    scene.show(1, plot, cell=1)
    scene.begin(3)
    scene.show(2, plot, cell=3, name="live")
    scene.print("between\n")
    scene.show(3, plot, cell=3, result=True)
    scene.print("y" * 200_000 + "\n")
    scene.begin(4)
    scene.show(4, {"text/plain": "4"}, cell=4, result=True)
    scene.show(5, plot, cell=4)
    scene.show(6, plot | {"text/plain": "z" * 5000}, cell=4)
    notebook = scene.written()
    _, whole, _, cut, text = notebook["cells"]
    assert whole["outputs"][0]["data"] == plot and "hyperpod" not in whole["metadata"]
    said = (
        "not shown: image/png of 400 kB; what this worker prints and displays may take 500 kB of the journal, and 100 "
        "kB are left. For more, submit with `--output-cap 2MB`. Or save it to a file under shared:// and open that in "
        "the notebook"
    )
    live, between, result, _ = cut["outputs"]
    assert live["data"]["text/plain"] == f"<Figure>\n[{said}]" and between["text"] == "between\n"
    assert result["output_type"] == "execute_result" and "[not shown: image/png of 400 kB;" in str(result["data"])
    unsure = cut["metadata"]["hyperpod"]["unsure"]
    assert unsure.startswith("only the text of 2 displays was kept, the first without image/png of 400 kB; what this")
    four, five, long, six = text["outputs"]
    assert four["data"] == {"text/plain": "4"} and "and nothing is left" in five["data"]["text/plain"]
    assert long["text"] == "z" * 5000 + "\n" and six["data"]["text/plain"].startswith("[not shown: image/png")
    notes = notebook["metadata"]["hyperpod"]["notes"]
    assert [note[:35] for note in notes] == [
        "code cell 3: only the text of 2 dis",
        "code cell 4: only the text of 2 dis",
    ]
    logs = "".join(event.data["text"] for event in read_output(scene.job, OutputChoice()))
    assert logs.count("[not shown: image/png of 400 kB;") == 4 and f"<Figure>\n[{said}]\nbetween\n" in logs
    warnings = [event.data["text"] for event in read_events(scene.job.events) if event.kind == "warning.raised"]
    assert warnings[0].startswith("a display of rank 0 is kept as text only, without image/png of 400 kB, and so are")
    assert len(warnings) == 2, "once, and where further output is"
