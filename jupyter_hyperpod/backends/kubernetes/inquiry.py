"""Asks a cluster, before a job is submitted, what `shortages` judges. Nothing is created: questions alone are sent."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ...core.backend_options import HEAD_CLAIM, has_operator, has_remote_head, pairs, pod_user, shared_directories
from ...system import portable
from .client import Api, ApiError
from .components import OWN_CLASSES
from .rights import REVIEWS, RIGHTS, Right, review
from .shortages import ClusterFacts, JobNeeds, shortages
from .workloads.workload import OPERATOR_GROUP

UNREADABLE = (401, 403)
AT_ONCE = 6
KUEUE = "kueue.x-k8s.io"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def needs_of(options: Mapping[str, str], namespace: str, nodes: int) -> JobNeeds:
    """What a job with these options asks of a cluster."""
    shared, user = shared_directories(options), pod_user(options)
    # the image of a head's pod says as whom it runs, and its nodes run as the same
    root = not user[0] if user else has_remote_head(options) or portable.user_id() == 0
    return JobNeeds(
        namespace,
        max(nodes, 1),
        pairs(options.get("resources", "")),
        options.get("priority-class", ""),
        options.get("elastic-priority-class", ""),
        tuple(dict.fromkeys(one.claim for one in shared if one.claim)),
        options.get(HEAD_CLAIM, ""),
        options.get("queue", ""),
        operator=has_operator(options),
        head=has_remote_head(options),
        node_directories=any(not one.claim for one in shared),
        root=root,
    )


def refusal_of(api: Api, options: Mapping[str, str], nodes: int) -> str:
    """Everything for which a job with these options could never run, as sentences; "" where there is nothing.

    Raises ClusterError where the API does not answer.
    """
    needs = needs_of(options, api.namespace, nodes)
    facts = inquire(api, needs, rights=needed_rights(needs))
    return ". ".join(str(shortage) for shortage in shortages(needs, facts) if shortage.fatal)


def needed_rights(wanted: JobNeeds) -> list[Right]:
    """Without which no job of this kind runs."""
    needed = [right for right in RIGHTS if right.needed]
    if not wanted.operator:
        return needed
    operated = [
        replace(right, needed=True) for right in RIGHTS if right.group == OPERATOR_GROUP and right.verb != "watch"
    ]
    return [right for right in needed if wanted.head or right.group != "batch"] + operated


def inquire(api: Api, wanted: JobNeeds, nodes: bool = False, rights: Sequence[Right] = RIGHTS) -> ClusterFacts:
    """Find out everything that the shortages of a job depend on. Raises ClusterError where the API does not answer."""
    space = f"namespaces/{wanted.namespace}"
    version = api.get("/version").get("gitVersion", "")
    groups = _groups(api)
    asked = [right for right in rights if _matters(right, groups)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        allowed = list(pool.map(lambda right: _allowed(api, right, wanted.namespace), asked))
    classes = {name for name in (wanted.priority_class, wanted.elastic_priority_class) if name}
    queue = None
    if wanted.queue and groups is not None and KUEUE in groups:
        queue = _object(api, f"/apis/{KUEUE}/{groups[KUEUE]}/{space}/localqueues/{wanted.queue}")
    left_s, renewable = token(api)
    return ClusterFacts(
        version=str(version),
        rights=list(zip(asked, allowed, strict=True)),
        namespace=_object(api, f"/api/v1/{space}"),
        quotas=_items(api, f"/api/v1/{space}/resourcequotas"),
        limits=_items(api, f"/api/v1/{space}/limitranges"),
        priority_classes={name: _object(api, f"{CLASSES}/{name}") for name in sorted(classes)},
        claims={
            name: _object(api, f"/api/v1/{space}/persistentvolumeclaims/{name}")
            for name in (*wanted.claims, wanted.head_claim)
            if name
        },
        queue=queue,
        groups=groups,
        nodes=_items(api, "/api/v1/nodes") if nodes else None,
        drivers=_items(api, "/apis/storage.k8s.io/v1/csidrivers") if nodes else None,
        own_classes={name: _object(api, f"{CLASSES}/{name}") for name in OWN_CLASSES} if nodes else {},
        token_left_s=left_s,
        renewable=renewable,
        warning=api.access.warning,
    )


def token(api: Api) -> tuple[float | None, bool]:
    """How long the token is good for, None where it does not say; and whether something renews it."""
    until_s = api.credential().until_s
    renewable = api.access.plugin is not None or bool(api.access.token_file)
    return None if until_s is None else until_s - time.time(), renewable


def _matters(right: Right, groups: Mapping[str, str] | None) -> bool:
    """Rights to what is not installed matter to nobody."""
    return right.group not in (KUEUE, OPERATOR_GROUP) or (groups is not None and right.group in groups)


def _allowed(api: Api, right: Right, namespace: str) -> bool:
    found = api.create(REVIEWS, review(right, namespace))
    return (found.get("status") or {}).get("allowed") is True


def _groups(api: Api) -> dict[str, str] | None:
    """The groups of the API with the versions that they prefer; None where they are not told."""
    try:
        found = api.get("/apis").get("groups") or []
    except ApiError as error:
        if error.status in UNREADABLE:
            return None
        raise
    return {str(one.get("name")): str((one.get("preferredVersion") or {}).get("version")) for one in found}


def _object(api: Api, path: str) -> dict[str, Any] | None:
    """An object; empty where there is none, None where it may not be read."""
    try:
        return api.get(path)
    except ApiError as error:
        if error.status == 404:
            return {}
        if error.status in UNREADABLE:
            return None
        raise


def _items(api: Api, path: str) -> list[dict[str, Any]] | None:
    try:
        return api.list(path)[0]
    except ApiError as error:
        if error.status in UNREADABLE:
            return None
        raise
