"""Starts and lists deployments: jobs whose head is a gateway and whose nodes run replicas of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..core import backend_options
from ..core.backends import DEFAULT_BACKEND
from ..core.elastic import MAX_NODES, ElasticRange
from ..core.errors import ClusterError, Conflict, NotFound, SpecError
from ..core.events import TERMINAL_STATES
from ..core.names import public_name
from ..core.spec import MODEL_VARIABLE, ServeSpec
from ..core.views import View
from ..mounts import table
from ..mounts.table import REMOTE, resolve_url
from ..storage.store import Store
from ..system.addresses import LOOPBACK, port_error, port_problem
from . import jobs
from .engines import presets
from .sources.source import read_file
from .submit_options import job_name

READY_TIMEOUT_S = 600.0
# a deployment lives for months; only replicas that repeatedly fail at their start end it
ENDLESS = 1_000_000
_DECODER, _ENGINE = "# served by the project's decoder\n", "# served by an engine\n"


def parse_replicas(text: str) -> tuple[int, int]:
    """Parse ``"MIN:MAX"`` or ``"N"``; MIN may be 0. Raises SpecError."""
    low, separator, high = text.partition(":")
    if not low.isdecimal() or not (high.isdecimal() if separator else True):
        raise SpecError(f"replicas {text[:40]!r} is not of the form MIN:MAX or N, for example --replicas 1:4")
    minimum, maximum = int(low), int(high or low)
    if not (0 <= minimum <= maximum <= MAX_NODES and maximum):
        raise SpecError(f"replicas {text!r} is impossible; expected 0 <= MIN <= MAX and at least 1 as MAX")
    return minimum, maximum


def serve(
    store: Store,
    model: str,
    *,
    replicas: str = "1",
    handler: str | os.PathLike[str] | None = None,
    engine: str | None = None,
    engine_args: str | None = None,
    start_timeout_s: float | None = None,
    name: str | None = None,
    threads: int = 1,
    backend: str = DEFAULT_BACKEND,
    env: Mapping[str, str] | None = None,
    env_from: Mapping[str, str] | None = None,
    **limits: Any,
) -> str:
    """Start a deployment of ``model`` and return its job id; `wait_ready` waits until it answers.

    ``handler``: a Python file with ``load(model)`` and ``predict(model, inputs)``. ``engine``: the name of a preset
    (`control.engines.presets`) or the command of another server, with ``engine_args`` behind it; it has to be ready
    ``start_timeout_s`` after its start. Without both the model is one of the project's decoder. ``backend``: where
    replicas run. ``limits`` are fields of ServeSpec, and the options of a backend by its name, as those of a job.
    Raises SpecError for a bad request or a missing engine, NotFound for a missing local path, and the errors of
    `jobs.submit`.
    """
    store.refuse_foreign()
    minimum, maximum = parse_replicas(replicas)
    options = {name: dict(limits.pop(name) or {}) for name in backend_options.TABLES if name in limits}
    known = {field.name for field in fields(ServeSpec)} - {"model", "task", "minimum", "engine"}
    if unknown := sorted(limits.keys() - known):
        raise SpecError(f"not an option of a deployment: {unknown[0]}; expected some of {', '.join(sorted(known))}")
    if handler and limits.get("recipe"):
        raise SpecError("a recipe describes the project's decoder, a handler brings its own model; choose one of them")
    given = {key: value for key, value in limits.items() if value is not None}
    task = "predict" if handler else "completions"
    if engine is not None:
        if handler or limits.get("recipe"):
            raise SpecError("an engine brings its own code and shape; give neither a handler nor a recipe with it")
        found, suited = presets.engine_of(engine, engine_args, start_timeout_s)
        given, task = suited | given | {"engine": found}, "engine"
    elif engine_args is not None or start_timeout_s is not None:
        raise SpecError("arguments and a start timeout are those of an engine; name it with --engine")
    located, env = _located(store, model), dict(env or {})
    if (public := public_name(located)) != located:
        env[MODEL_VARIABLE], located, model = located, public, public_name(model)
    spec = ServeSpec(located, task=task, minimum=minimum, **given)
    if spec.port and backend == DEFAULT_BACKEND:
        _refuse_taken(store, spec.port)
    first = max(1, minimum)
    job = {
        "name": name or job_name(model.rstrip("/")),
        "nodes": first,
        "elastic": ElasticRange(first, maximum),
        "spares": 0,
        "threads": threads,
        "env": env,
        "env_from": dict(env_from or {}),
        "filename": os.fspath(Path(handler).absolute()) if handler else model,
        "max_restarts": ENDLESS,
        "serve": spec,
        "backend": backend,
        **options,
    }
    source = read_file(Path(handler)) if handler else _ENGINE if engine is not None else _DECODER
    return jobs.submit(store, source, job)


def _refuse_taken(store: Store, port: int) -> None:
    """Raise Conflict for a port of this host, where the gateway will be, at which something listens already."""
    if (error := port_error(LOOPBACK, port)) is None:
        return
    running = (view for view in deployments(store) if view["state"] not in TERMINAL_STATES)
    owner = next((view["id"] for view in running if view["deployment"]["url"].endswith(f":{port}")), "")
    if problem := port_problem(error, port, f"the deployment {owner}" if owner else ""):
        raise Conflict(problem)


def _located(store: Store, model: str) -> str:
    """The model's address for every node; raises NotFound for a missing local path."""
    area = model.partition("://")[0] if "://" in model else "file"
    if area != "file" and area in REMOTE:
        return model
    seen = table.roots(table.table(store).values(), "notebook")
    path = os.path.abspath(os.path.expanduser(resolve_url(model, seen))) if area == "file" else resolve_url(model, seen)
    if "://" not in path and not os.path.exists(path):
        raise NotFound(
            f"there is no model at {path}; expected a file or a directory of weights, or a URL such as s3://…"
        )
    return path if area == "file" else model


def token_file(store: Store, job_id: str) -> Path:
    """The file with the token of a deployment, readable by its owner only."""
    return store.job(job_id).path / "token"


def wait_ready(store: Store, job_id: str, timeout_s: float | None = None) -> View:
    """Wait until the deployment answers and return its view. Raises ClusterError where it ends before, or too late.

    Without ``timeout_s`` it has ten minutes, and an engine its own time to start besides.
    """
    if timeout_s is None:
        serve = store.job(job_id).spec().serve
        timeout_s = READY_TIMEOUT_S + (serve.engine.start_timeout_s if serve and serve.engine else 0.0)
    try:
        view = jobs.wait(store, job_id, TERMINAL_STATES | {"running"}, timeout_s)
    except TimeoutError as error:
        raise ClusterError(str(error)) from error
    if view["state"] in TERMINAL_STATES:
        raise ClusterError(f"{job_id} {view['state']}: {view['reason']}")
    return view


def deployments(store: Store) -> list[View]:
    """Every deployment's view, newest first."""
    return [view for view in jobs.list_jobs(store) if view["deployment"] is not None]
