"""Finds the job that a person means by an id or a name, and submits a job again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..core import env_references
from ..core.env_references import EnvReference
from ..core.errors import Conflict, HyperpodError, NotFound, SpecError, StoreError
from ..core.events import TERMINAL_STATES, Event
from ..core.names import LONGEST_NAME, is_job_id, may_be_trial, validate_job_id, validate_name
from ..core.options import near_matches
from ..core.spec import JobSpec
from ..core.units import few
from ..core.views import View
from ..storage.store import JobStore, Store
from . import jobs
from .text_tables import Answer

AGAIN = "-again"  # behind the name of a trial: a job that runs the same code beside its sweep


def job_id(store: Store, text: str) -> str:
    """Return the id of the job `text` names: an id, or a name, which means its newest job.

    Raises SpecError for text that can be neither, NotFound where no such job exists.
    """
    ids = store.job_ids()
    if text in ids:
        return text
    try:
        validate_name(text, "job")
    except SpecError:
        return store.job(validate_job_id(text)).id
    for candidate in ids:
        if candidate.rpartition("-")[0] == text:
            return candidate
    if trials := [one for one in ids if may_be_trial(one, text if is_job_id(text) else f"{text}-")]:
        raise NotFound(
            f"{text!r} is no job, but a sweep, whose trials are jobs: name one, such as {trials[0]}; `jupyter hyperpod "
            f"sweep show {text}` shows them"
        )
    known = [*ids, *{candidate.rpartition("-")[0] for candidate in ids}]
    raise NotFound(
        f"no job {text!r}{near_matches(text, known)}; `jupyter hyperpod list` shows the jobs in {store.jobs}"
    )


def to_command(store: Store, text: str) -> str:
    """`job_id`, for a command. Raises Conflict where the newest job of a name has ended, and an older one has not."""
    found = job_id(store, text)
    if found != text and jobs.job_view(store, found)["state"] in TERMINAL_STATES and (older := older_note(store, text)):
        raise Conflict(f"{found} has already ended; {older}; name it by its id")
    return found


def stop(store: Store, names: Sequence[str], place: str) -> Answer:
    """Ask jobs to stop, for a person at ``place``: what came of each.

    Where there are several, one that cannot be stopped keeps nobody else from it. Raises as `to_command` does for one.
    """
    names = list(dict.fromkeys(names))
    if len(names) == 1:
        found = to_command(store, names[0])
        return Answer({"id": found, "command": "stop"}, None, [jobs.stop_from(store, found, place)])
    records: list[dict[str, str]] = []
    for name in names:
        try:
            found = to_command(store, name)
            if any(record["id"] == found for record in records):
                continue
            records.append({"id": found, "command": "stop", "said": jobs.stop_from(store, found, place)})
        except HyperpodError as error:
            records.append({"id": name, "command": "stop", "error": f"{name} was not stopped: {error}"})
    lines = [record.get("said") or record["error"] for record in records]
    return Answer(records, None, lines, ok=not any("error" in record for record in records))


def older_note(store: Store, text: str) -> str:
    """A sentence about jobs of the name `text` that have not ended, although they are not its newest; else ""."""
    older = [found for found in store.job_ids() if found != text and found.rpartition("-")[0] == text][1:]
    running = [found for found in older if jobs.job_view(store, found)["state"] not in TERMINAL_STATES]
    if len(running) > 1:
        return f"{len(running)} older jobs of that name are running: {few(running)}"
    return f"an older job of that name is running: {running[0]}" if running else ""


def missing_tag(tag: str, views: Iterable[View]) -> str:
    """A sentence where no job has a tag, with the nearest one that a job has; else ""."""
    known = sorted({known for view in views for known in view["labels"]["tags"]})
    there = "" if known else "; `jupyter hyperpod tag JOB --add TAG` writes the first one"
    return "" if tag in known else f"no job has the tag {tag!r}{near_matches(tag, known)}{there}"


def read(store: Store, text: str) -> tuple[str, list[Event]]:
    """The id and all events so far of the job that `text` names. Raises SpecError and NotFound as `job_id` does."""
    name = job_id(store, text)
    return name, jobs.follow(store, name).poll()


def references(store: Store, job_id: str) -> dict[str, str]:
    """Name -> reference, such as ``@file:PATH``, of a job's environment variables; empty where it cannot be read."""
    try:
        return dict(store.job(job_id).spec().env_from)
    except (SpecError, StoreError):
        return {}


def trials(store: Store, views: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Job -> its trial in a few words, of those jobs that are trials of sweeps."""
    found = [view for view in views if may_be_trial(view["id"])]
    if not found:
        return {}
    from .sweeps.metric import trial_texts

    return trial_texts(store, found)


def trial_line(store: Store, view: View) -> str:
    """The trial that a job is, in a line; "" for a job that is none."""
    if not may_be_trial(view["id"]):
        return ""
    from .sweeps import metric

    return metric.trial_line(store, view)


def submit_again(
    store: Store, job_id: str, name: str | None = None, env: Iterable[tuple[str, str | EnvReference]] | None = None
) -> str:
    """Submit the cell and the specification of an earlier job once more, as `name` where given; return the new id.

    ``env`` replaces variables of the earlier job, whose values are deleted when it ends. A trial of a sweep is
    submitted as a job of its own, under another name. Raises SpecError where a value is neither kept nor given, and the
    errors of `jobs.submit`.
    """
    store.refuse_foreign()
    job = store.job(job_id)
    again = fields_of(job, env) | no_trial(job.spec()) | ({"name": name} if name else {})
    return jobs.submit(store, store.cell(job.spec().cell_digest), again, earlier=job)


def no_trial(spec: JobSpec) -> dict[str, Any]:
    """The fields by which a job is no trial of a sweep, nor called like one: ``first-3`` becomes ``first-3-again``."""
    if spec.trial is None:
        return {}
    sweep, _, number = spec.name.rpartition("-")
    end = f"-{number}{AGAIN}"
    return {"trial": None, "name": sweep[: LONGEST_NAME - len(end)] + end}


def fields_of(job: JobStore, env: Iterable[tuple[str, str | EnvReference]] | None = None) -> dict[str, Any]:
    """The fields of a job's specification, with which the same can be submitted again. Raises as `submit_again`."""
    spec = job.spec()
    record = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name != "cell_digest"}
    values, references = env_references.split(env or ())
    record["env"] = _environment(job, spec, values, references)
    record["env_from"] = {n: text for n, text in spec.env_from.items() if n not in values} | references
    return record


def _environment(
    job: JobStore, spec: JobSpec, given: dict[str, str], references: Collection[str]
) -> dict[str, str]:  # fmt: skip
    missing = [name for name in spec.env if name not in given and name not in references]
    if not missing:
        return given
    try:
        return {name: value for name, value in job.environment().items() if name not in references} | given
    except StoreError:
        raise SpecError(
            f"{job.id} had the environment variable{'s' if len(missing) > 1 else ''} {', '.join(missing)}, and values "
            f"are not kept once a job has ended; give them again: --env {missing[0]} takes the value of your own "
            f"environment, --env {missing[0]}=VALUE sets it"
        ) from None
