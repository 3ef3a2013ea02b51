"""Writes the notebook of a job with its outputs, as papermill does: from the journal and the stored notebook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...core.errors import Conflict
from ...core.events import TERMINAL_STATES
from ...core.spec import JobSpec
from ...core.units import format_bytes, plural
from ...core.views import View
from ...storage.joined_cells import JoinedCells, JoinedPart
from ...storage.output.output_choice import OutputChoice
from ...storage.store import NOTEBOOK_DIGEST, Store
from .. import jobs, lookup, watch
from ..runs.verbs import write
from ..text_tables import Answer
from . import stored_notebook
from .cell_outputs import CellOutputs, Piece, read

TEXT_KEPT = 2_000_000  # characters of one stream output; of a longer one, its begin and its end are kept
INJECTED = "injected-parameters"
CODE_ONLY = "the notebook itself was not stored with the job: these are the code cells that have run, without text"


def write_notebook(store: Store, job: str, output: str | None, rank: int | None) -> Answer:
    """Write the executed notebook of a job. Raises NotFound, Conflict where it has none, SpecError for the file."""
    job_id = lookup.job_id(store, job)
    notebook = executed(store, job_id, rank or 0)
    path = Path(output or f"{job_id}.ipynb").absolute()
    _spare(path)
    size = write(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    about = notebook["metadata"]["hyperpod"]
    done, cells = about["cells_begun"], about["cells"]
    sentence = f"{job_id} {about['state']}: {done} of {plural(cells, 'code cell')} begun"
    told = {"id": job_id, "path": str(path), "bytes": size, "sentence": sentence, "notes": about["notes"]}
    return Answer(told, None, [sentence, *about["notes"], f"{path}: {format_bytes(size)}"])


def _spare(path: Path) -> None:
    """Raise Conflict where a file is there that is not the executed notebook of a job: it may be somebody's work."""
    if not path.is_file():
        return
    with suppress(OSError, ValueError, AttributeError, TypeError):
        if "hyperpod" in json.loads(path.read_text(encoding="utf-8"))["metadata"]:
            return
    raise Conflict(
        f"{path} is there, and is not the executed notebook of a job; name another file with -o, or remove that one"
    )


def executed(store: Store, job_id: str, rank: int = 0) -> dict[str, Any]:
    """The notebook of a job, of format 4, with what a rank has printed so far. Raises NotFound, Conflict."""
    job, view = store.job(job_id), jobs.job_view(store, job_id)
    spec = job.spec()
    source = JoinedCells("" if spec.script else store.cell(spec.cell_digest))
    if not (parts := source.parts()):
        raise Conflict(
            f"{job_id} was not submitted as a notebook: it has run {'a file' if spec.script else 'one cell'}. Submit "
            f"an .ipynb file, or run a notebook on the cluster; `logs {job_id}` shows what this job has printed"
        )
    if rank:
        watch.checked(store, job_id, OutputChoice(rank=rank))
    found = read(job, rank, str((view["error"] or {}).get("node", "")))
    if found.pieces and not any(piece.cell for piece in found.pieces) and not spec.origin.get(NOTEBOOK_DIGEST):
        raise Conflict(
            f"the output of {job_id} does not say from which cell it comes: the job ran before cells were noted. Run "
            f"it again with `rerun {job_id}`; `logs {job_id}` shows what it has printed"
        )
    run = _Run(view, spec, parts, found, rank)
    stored = stored_notebook.read(store, spec.origin)
    cells = list(_cells(stored, run))
    notebook = stored or {"nbformat": 4, "nbformat_minor": 5, "metadata": {}}
    if not stored:
        run.notes.append(CODE_ONLY)
    return {
        "cells": _with_ids(cells, int(notebook["nbformat_minor"])),
        "metadata": notebook["metadata"] | run.metadata(),
        "nbformat": 4,
        "nbformat_minor": notebook["nbformat_minor"],
    }


def origin(store: Store, job_id: str) -> str:
    """The path of the notebook that was submitted; "" where it is not known. Raises NotFound."""
    spec = store.job(job_id).spec()
    told = str(spec.origin.get("notebook") or spec.filename)
    return told if told.endswith(".ipynb") else ""


class _Run:
    """One run of the cells: what is known of each."""

    def __init__(self, view: View, spec: JobSpec, parts: list[JoinedPart], found: CellOutputs, rank: int) -> None:
        self.view, self.spec, self.found, self.rank = view, spec, found, rank
        self.parts = {part.cell: part for part in parts}
        self.over = view["state"] in TERMINAL_STATES
        self.notes: list[str] = []
        self.last = max(found.begun.keys() & self.parts.keys(), default=0)
        self.begun = [cell for cell in self.parts if cell <= self.last]
        for cell in self.begun:
            if cell not in found.begun:  # it has run: a later one has begun
                found.unsure[cell] = "all that the output said of this cell was dropped"
        self.failed = self._failed()
        self.outputs = _outputs(found.pieces)
        for cell, why in _left_out(self.outputs).items():
            found.unsure[cell] = "; ".join(filter(None, [found.unsure.get(cell, ""), why]))
        if self.failed:
            self.outputs.setdefault(self.failed, []).append(self._error())

    def _failed(self) -> int:
        """The cell in which the job's error was raised; 0 where there is none."""
        error = self.view["error"]
        if self.view["state"] != "failed" or not error:
            return 0
        if self.found.last.get(str(error["member"])) in self.begun:
            return self.found.last[str(error["member"])]
        self.found.unsure[self.last] = f"in which cell {error['member']} failed is not known: this is the last one"
        return self.last

    def _error(self) -> dict[str, Any]:
        error = self.view["error"]
        lines = [str(line) for line in error["traceback"]]
        if error["rank"] not in (None, self.rank):
            lines.insert(0, f"rank {error['rank']} on {error['node']}:")
        return {
            "output_type": "error",
            "ename": str(error["type"]),
            "evalue": str(error["message"]),
            "traceback": lines or [f"{error['type']}: {error['message']}"],
        }

    def status(self, cell: int) -> str:
        """As papermill has it: pending, running, completed or failed; "stopped" for a job that was stopped there."""
        if cell not in self.begun:
            return "pending"
        state = self.view["state"]
        if cell == self.failed:
            return "failed"
        if cell != self.last or self.found.ended_s is not None or state == "succeeded":
            return "completed"
        return {"failed": "failed", "stopped": "stopped"}.get(state, "running")

    def times(self, cell: int) -> tuple[float | None, float | None]:
        """When a cell began and ended."""
        if cell not in self.begun:
            return None, None
        begin_s, at = self.found.begun.get(cell), self.begun.index(cell)
        if at + 1 < len(self.begun):
            return begin_s, self.found.begun.get(self.begun[at + 1])
        return begin_s, self.found.ended_s or (self.view["ended_s"] if self.over else None)

    def cell_metadata(self, cell: int) -> dict[str, Any]:
        """What is known of a cell's run."""
        begin_s, end_s = self.times(cell)
        status = self.status(cell)
        about = _papermill(begin_s, end_s) | {"status": status, "exception": status == "failed"}
        said = {"hyperpod": {"unsure": self.found.unsure[cell]}} if cell in self.found.unsure else {}
        return {"papermill": about} | said

    def metadata(self) -> dict[str, Any]:
        """What is known of the whole run."""
        view = self.view
        begin_s = next(iter(self.found.begun.values()), view["started_s"])
        failed = view["state"] == "failed"
        about = {
            "job": view["id"],
            "name": view["name"],
            "backend": view["backend"],
            "state": view["state"],
            "reason": view["reason"],
            "rank": self.rank,
            "members": self.found.members,
            "nodes": view["world_size"] or view["nodes_wanted"],
            "steps": view["step"],
            "submitted": _time(view["submitted_s"]),
            "started": _time(view["started_s"]),
            "ended": _time(view["ended_s"]),
            "cells": len(self.parts),
            "cells_begun": len(self.begun),
            "running_cell": self.last if self.last and self.status(self.last) == "running" else None,
            "notes": [*self.notes, *(f"code cell {cell}: {why}" for cell, why in sorted(self.found.unsure.items()))],
        }
        papermill = _papermill(begin_s, view["ended_s"]) | {
            "exception": True if failed else None,
            "parameters": dict(self.spec.trial.values) if self.spec.trial else {},
        }
        return {"hyperpod": about, "papermill": papermill}


def _cells(stored: Mapping[str, Any] | None, run: _Run) -> Iterable[dict[str, Any]]:
    if stored is None:
        for part in run.parts.values():
            code, given = stored_notebook.split_given(part)
            yield _executed(run, part.cell, {"cell_type": "code", "metadata": {}, "source": code})
            yield from _injected(run, part, given)
        return
    number = 0
    for cell in stored["cells"]:
        if cell["cell_type"] != "code":
            yield dict(cell)
            continue
        number += 1
        if stored_notebook.is_made(cell):
            continue  # it has the code of the others once more
        if number not in run.parts:
            yield dict(cell)  # nothing of it has run
            continue
        part = run.parts[number]
        code, given = stored_notebook.split_given(part)
        if not stored_notebook.same_code(code, stored_notebook.source_of(cell)):
            cell = cell | {"source": code}  # with the values of a trial
        yield _executed(run, number, cell)
        yield from _injected(run, part, given)


def _executed(run: _Run, number: int, cell: Mapping[str, Any]) -> dict[str, Any]:
    begun = number in run.begun
    count = run.begun.index(number) + 1 if begun else None
    outputs = run.outputs.get(number, []) if begun else []
    return {
        **cell,
        "metadata": dict(cell.get("metadata") or {}) | run.cell_metadata(number),
        "execution_count": count,
        "outputs": [
            one | {"execution_count": count} if one["output_type"] == "execute_result" else one for one in outputs
        ],
    }


def _injected(run: _Run, part: JoinedPart, given: str) -> Iterable[dict[str, Any]]:
    """The cell of parameters that papermill puts behind the cell with their defaults."""
    trial = run.spec.trial.values if run.spec.trial else {}
    own = [f"{name} = {value!r}" for name, value in trial.items() if re.search(rf"(?m)^{name}\b[^=\n]*=", part.source)]
    text = "\n".join([*([given] if given else []), *own])
    if text:
        source = f"# Parameters\n{text}"
        yield {
            "cell_type": "code",
            "metadata": {"tags": [INJECTED]},
            "source": source,
            "execution_count": None,
            "outputs": [],
        }


def _with_ids(cells: list[dict[str, Any]], minor: int) -> list[dict[str, Any]]:
    """Cells with ids, as format 4.5 has them; those that have one keep it."""
    if minor < 5:
        return [{name: value for name, value in cell.items() if name != "id"} for cell in cells]
    used = {cell.get("id") for cell in cells}
    for number, cell in enumerate(cells):
        if not cell.get("id"):
            cell["id"] = next(name for name in (f"cell-{number}", f"hyperpod-{number}") if name not in used)
    return cells


def _outputs(pieces: Iterable[Piece]) -> dict[int, list[dict[str, Any]]]:
    """The outputs of each cell, as a notebook has them after updates and clearing."""
    found: dict[int, list[dict[str, Any]]] = {}
    named: dict[str, list[dict[str, Any]]] = {}
    clearing: set[int] = set()
    for piece in pieces:
        outputs = found.setdefault(piece.cell, [])
        shown = piece.shown
        if shown and shown["action"] == "clear":
            clearing.add(piece.cell) if shown["id"] == "wait" else outputs.clear()
            continue
        if shown and shown["action"] == "update":
            for one in named.get(shown["id"], ()):
                one |= _bundle(shown)
            continue
        if piece.cell in clearing:
            clearing.discard(piece.cell)
            outputs.clear()
        if shown:
            kind = "execute_result" if shown.get("result") else "display_data"
            one = {"output_type": kind, **_bundle(shown)}
            outputs.append(one)
            if shown["id"]:
                named.setdefault(shown["id"], []).append(one)
        elif outputs and outputs[-1].get("name") == piece.stream:
            outputs[-1]["parts"].append(piece.text)
        elif piece.text:
            outputs.append({"output_type": "stream", "name": piece.stream, "parts": [piece.text]})
    for outputs in found.values():
        for one in outputs:
            if "parts" in one:
                one["text"] = _shortened(_on_the_screen("".join(one.pop("parts"))))
    return found


def _bundle(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {key: dict(shown[key]) for key in ("data", "metadata")} | {"left_out": shown.get("left_out")}


def _left_out(outputs: Mapping[int, list[dict[str, Any]]]) -> dict[int, str]:
    """The cells with displays of which only the text was kept, and why; takes the reasons out of the outputs."""
    found: dict[int, list[str]] = {}
    for cell, several in outputs.items():
        for one in several:
            if why := one.pop("left_out", None):
                found.setdefault(cell, []).append(str(why))
    return {
        cell: f"only the text of {plural(len(why), 'display')} was kept, the first without {why[0]}"
        for cell, why in found.items()
    }


def _on_the_screen(text: str) -> str:
    """The text without what a carriage return has let a bar of progress overwrite."""
    if "\r" not in text:
        return text
    lines = (line if line.endswith("\r") else line.rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] if line.endswith("\r") else line for line in lines)


def _shortened(text: str) -> str:
    if len(text) <= TEXT_KEPT:
        return text
    half = TEXT_KEPT // 2
    left = format_bytes(len(text) - TEXT_KEPT)
    return f"{text[:half]}\n[{left} left out here; `jupyter hyperpod logs` shows all]\n{text[-half:]}"


def _papermill(begin_s: float | None, end_s: float | None) -> dict[str, Any]:
    duration = None if begin_s is None or end_s is None else round(end_s - begin_s, 6)
    return {"start_time": _time(begin_s), "end_time": _time(end_s), "duration": duration}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
