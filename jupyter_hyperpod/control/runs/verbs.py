"""The verbs ``report`` and ``compare``: their options, and the files that they write."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import SpecError
from ...core.units import few, format_bytes
from ...storage.store import Store
from ...system import portable
from .. import lookup
from ..text_tables import Answer, Table
from . import labels, side_by_side
from .run_record import read, read_journal
from .sentence import what_happened
from .side_by_side import JobComparison

VERBS = {
    "report": "write what a job did and what happened to it as one HTML file that needs no server",
    "tag": "write tags and a note on a job, or put it into the archive; without options, show them",
    "compare": "say until which step jobs are the same to the last bit, and what of code and settings differs",
}
MOST_JOBS = 6


def add_options(verb: str, parser: argparse.ArgumentParser) -> None:
    """Declare the options of one of `VERBS`, without the job of ``report`` and ``tag``."""
    if verb == "tag":
        labels.add_options(parser)
        return
    written = "file to write (default: JOB.html in this folder); one that exists is replaced"
    if verb == "compare":
        parser.add_argument(
            "jobs", nargs="+", metavar="JOB", help="ids or names; the first is compared with each other"
        )
        written = "also write the comparison as an HTML file with overlaid curves; one that exists is replaced"
    parser.add_argument("-o", "--output", metavar="FILE", help=written)


def report(store: Store, job: str, output: str | None) -> Answer:
    """Write the report of a job. Raises NotFound, SpecError for a file that cannot be written."""
    from ... import __version__
    from .report_page import report_page

    job_id = lookup.job_id(store, job)
    record = read(store, job_id)
    path = Path(output or f"{job_id}.html").absolute()
    size = write(path, report_page(record, __version__))
    sentence = what_happened(record)
    told = {"id": job_id, "path": str(path), "bytes": size, "sentence": sentence}
    return Answer(told, None, [sentence, f"{path}: {format_bytes(size)}"])


def compared(store: Store, jobs: Sequence[str], *, environments: bool = True) -> JobComparison:
    """Read and compare jobs, with what is known of their ``environments`` or without.

    Raises NotFound, SpecError for fewer than two or too many.
    """
    named = {job: lookup.job_id(store, job) for job in jobs}
    ids = list(dict.fromkeys(named.values()))
    if not ids:
        raise SpecError(f"no job to be compared; name 2 to {MOST_JOBS}")
    if len(ids) < 2:
        raise SpecError(_one_job(store, list(jobs), ids[0]))
    if len(ids) > MOST_JOBS:
        raise SpecError(f"{len(ids)} jobs are too many to be compared; name 2 to {MOST_JOBS}")
    records = [read(store, job_id, output=False) for job_id in ids]
    if not environments:
        for record in records:
            record.hide_environment()
    return side_by_side.compare(records)


def compared_for_browser(store: Store, jobs: Sequence[str], environments: bool) -> dict[str, Any]:
    """A comparison as `JobComparison.to_json` has it, with the runs and the differences of their sources.

    Raises the errors of `compared`.
    """
    found = compared(store, jobs, environments=environments)
    first = found.records[0]
    runs = [
        {
            "id": record.job_id,
            "name": record.view["name"] or record.job_id,
            "state": record.view["state"],
            "tags": record.view["labels"]["tags"],
            "sentence": what_happened(record),
            "source_difference": side_by_side.source_difference(first, record),
        }
        for record in found.records
    ]
    equal = {part: found.equal(part) for part in found.alike}
    return found.to_json() | {"runs": runs, "equal": equal, "environments": environments}


def account_for_browser(store: Store, job_id: str) -> dict[str, Any]:
    """Where the nodes' time of a job went, and the curve of every logged value. Raises NotFound and SpecError."""
    record = read_journal(store.job(job_id))
    spent = record.time
    lost = sorted(spent.lost.items(), key=lambda item: -item[1])
    return {
        "jobs": [record.job_id],
        "sentence": what_happened(record),
        "goodput": spent.goodput,
        "useful": spent.useful,
        "spare": spent.spare,
        "thinned": spent.thinned,
        "lost": [{"cause": cause, "node_seconds": seconds} for cause, seconds in lost],
        **side_by_side.all_curves([record]),
    }


def report_for_browser(store: Store, job_id: str, environments: bool) -> str:
    """The page that ``report`` writes, with what is known of the environment or without. Raises NotFound, SpecError."""
    from ... import __version__
    from .report_page import report_page

    record = read(store, job_id)
    if not environments:
        record.hide_environment()
    return report_page(record, __version__)


def _one_job(store: Store, words: Sequence[str], job_id: str) -> str:
    """Why one job cannot be compared, and with what it may be."""
    others = [one for one in store.job_ids() if one != job_id]
    alike = [one for one in others if one.rpartition("-")[0] == job_id.rpartition("-")[0]]
    near = f", such as {(alike or others)[0]}" if others else ""
    if len(words) < 2:
        return f"{words[0]} alone cannot be compared; name another job, too{near}"
    what = f"{few(list(dict.fromkeys(words)))} stand{'' if len(set(words)) > 1 else 's'} for one job, {job_id}"
    return f"{what}; name a job to compare it with{near}, by its id where both have the same name"


def compare(store: Store, jobs: Sequence[str], output: str | None) -> tuple[Answer, list[tuple[str, Table]]]:
    """Compare jobs: what is known of them, and tables of what differs, with titles."""
    from ... import __version__
    from .compare_page import compare_page

    found = compared(store, jobs)
    told = list(side_by_side.lines(found))
    record: dict[str, Any] = found.to_json()
    if output:
        path = Path(output).absolute()
        size = write(path, compare_page(found, __version__))
        record |= {"path": str(path), "bytes": size}
        told.append(f"{path}: {format_bytes(size)}")
    tables = [(part, found.table(part)) for part, rows in found.differences.items() if rows]
    return Answer(record, found.metric_table(), told), tables


def write(path: Path, text: str) -> int:
    """Write a page for its owner alone, whole or not at all; return its size. Raises SpecError."""
    content = text.encode("utf-8", "replace")
    path = Path(os.path.realpath(path))  # a link stays one
    if path.exists() and not path.is_file():
        raise SpecError(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}; name a file with -o")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | portable.NOT_INHERITED, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise SpecError(f"{path} cannot be written: {error.strerror}; name another file with -o") from None
    return len(content)
