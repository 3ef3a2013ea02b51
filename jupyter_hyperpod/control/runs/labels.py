"""Tags, a note and the archive: what a person writes on a job, journaled with the person's name, also after its end."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from ...core.errors import SpecError
from ...core.kept import TAGS_KEPT
from ...core.options import near_matches
from ...core.views import View
from ...storage.journal import event_writer
from ...storage.store import Store
from .. import jobs
from ..report import labels_text
from ..text_tables import Answer, clean

LONGEST_NOTE = 2000
_TAG = re.compile(r"[^\W_][\w.:/+-]{0,39}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``tag``."""
    parser.add_argument("--add", action="append", metavar="TAG", default=[], help="add a tag; may be repeated")
    parser.add_argument("--remove", action="append", metavar="TAG", default=[], help="remove a tag; may be repeated")
    parser.add_argument(
        "--note", metavar="TEXT", help="write a note, in the place of the one that is there; '' removes it"
    )
    archive = parser.add_mutually_exclusive_group()
    archive.add_argument("--archive", action="store_true", help="leave the job out of the list, and keep all of it")
    archive.add_argument("--unarchive", action="store_true", help="show it in the list again")


def tag(store: Store, job_id: str, options: argparse.Namespace, identity: str = "") -> Answer:
    """Carry out ``tag``. Raises the errors of `label`."""
    archived = True if options.archive else False if options.unarchive else None
    changes = options.add or options.remove or options.note is not None or archived is not None
    if changes:
        view = label(store, job_id, add=options.add, remove=options.remove, note=options.note, archived=archived,
                     identity=identity)  # fmt: skip
    else:
        view = jobs.job_view(store, job_id)
    known = view["labels"]
    lines = [f"{job_id}: {labels_text(view) or 'no tags'}"]
    lines += [f"note: {clean(known['note'])}"] if known["note"] else []
    return Answer({"id": job_id, **known}, None, lines)


def label(
    store: Store,
    job_id: str,
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    note: str | None = None,
    archived: bool | None = None,
    identity: str = "",
) -> View:
    """Change the labels of a job, and return its view. None leaves the note, or the place in the archive, as it is.

    Only the owner of the store may. ``identity`` is the name by which a Jupyter server knows the person. Raises
    SpecError for what cannot be a tag or a note, StoreError for the store of somebody else.
    """
    for one in add:
        if not _TAG.fullmatch(one):
            raise SpecError(
                f"{one[:60]!r} cannot be a tag; expected at most 40 letters, digits and . _ : / + -, such as baseline"
            )
    if both := set(add) & set(remove):
        raise SpecError(f"the tag {min(both)} cannot be added and removed at once")
    if note is not None and len(note) > LONGEST_NOTE:
        raise SpecError(f"the note has {len(note)} characters; expected at most {LONGEST_NOTE}")
    job = store.job(job_id)
    store.refuse_foreign()
    has = jobs.job_view(store, job_id)["labels"]["tags"]
    if absent := [one for one in remove if one not in has]:
        raise SpecError(
            f"{job_id} has no tag {absent[0]!r}{near_matches(absent[0], has)}; it has {', '.join(has) or 'none'}"
        )
    kept = [tag for tag in has if tag not in (*add, *remove)]
    if len(kept) + len(set(add)) > TAGS_KEPT and add:
        raise SpecError(f"{job_id} would have {len(kept) + len(set(add))} tags; expected at most {TAGS_KEPT}")
    data: dict[str, Any] = {"add": list(dict.fromkeys(add)), "remove": list(remove), "by": str(jobs.person(identity))}
    data |= {} if note is None else {"note": note}
    data |= {} if archived is None else {"archived": archived}
    with event_writer(job.events, "control") as journal:
        journal.append("job.labelled", data, durable=True)
    return jobs.job_view(store, job_id)


def label_all(
    store: Store,
    job_ids: Sequence[str],
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    note: str | None = None,
    archived: bool | None = None,
    identity: str = "",
) -> list[str]:
    """Change the labels of several jobs, of which some may lack a tag that is removed; return their ids.

    Raises the errors of `label`; the jobs before the one that raised are changed.
    """
    for job_id in job_ids:
        has = jobs.job_view(store, job_id)["labels"]["tags"] if remove else ()
        label(store, job_id, add=add, remove=[one for one in remove if one in has], note=note, archived=archived,
              identity=identity)  # fmt: skip
    return list(job_ids)
