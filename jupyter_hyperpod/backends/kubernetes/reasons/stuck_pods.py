"""Why a pod that has its node does not start, or why there is none: what the newest events say, of the pod or of what
makes it. They are asked for seldom, and only of such objects."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....core.errors import ClusterError
from .. import parse
from ..client import Api, ApiError
from ..workloads.workload import JOB

Object = Mapping[str, Any]
EARLY_S, SLOW_S = 10.0, 20.0  # a pod that is created for so long is asked about; is slow, whatever is done for it
PODLESS_S = 3.0  # so long there may be no pod
EACH_S = 10.0  # the events of one pod are read so seldom
MOST = 8  # pods in one look
FORBIDDEN, FORBIDDEN_S = 403, 300.0  # who may not read events is not refused every few seconds
WARNING, PLACED = "Warning", "Scheduled"
GENERAL = "Unable to attach or mount volumes"  # why, another event says
EVENTS_MOST = "100"


@dataclass
class _Stuck:
    """A pod that is being created, or a maker without a pod; times on the monotonic clock."""

    since_s: float
    kind: str = "Pod"
    asked_s: float = -math.inf
    said: str = ""


class StuckPods:
    """Remembers pods that are being created, and what was found out. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, _Stuck] = {}
        self._again_s = -math.inf

    def told(self, api: Api, pods: Sequence[Object], makers: Sequence[Object] = ()) -> dict[str, str]:
        """Why pods do not start, by their names, and why there are none, by those of their ``makers``, as far as that
        can be read."""
        now_s = self._clock()
        names = {pod["metadata"]["name"]: "Pod" for pod in pods if parse.is_creating(pod)}
        names |= {
            maker["metadata"]["name"]: maker.get("kind") or JOB.kind for maker in parse.without_pods(makers, pods)
        }
        self._known = {name: self._known.get(name) or _Stuck(now_s, kind) for name, kind in names.items()}
        for name in self._due(now_s):
            stuck = self._known[name]
            stuck.asked_s = now_s
            try:
                stuck.said = self._ask(api, name, stuck, now_s)
            except ClusterError as error:  # then what was said before is still the newest
                is_forbidden = isinstance(error, ApiError) and error.status == FORBIDDEN
                self._again_s = self._clock() + (FORBIDDEN_S if is_forbidden else EACH_S)
                break
        return {name: stuck.said for name, stuck in self._known.items() if stuck.said}

    def _due(self, now_s: float) -> list[str]:
        if now_s < self._again_s:
            return []
        due = [
            name
            for name, stuck in self._known.items()
            if now_s - stuck.since_s >= (EARLY_S if stuck.kind == "Pod" else PODLESS_S)
            and now_s - stuck.asked_s >= EACH_S
        ]
        return sorted(due, key=lambda name: self._known[name].asked_s)[:MOST]

    def _ask(self, api: Api, name: str, stuck: _Stuck, now_s: float) -> str:
        chosen = {"fieldSelector": f"involvedObject.kind={stuck.kind},involvedObject.name={name}", "limit": EVENTS_MOST}
        found = api.get(f"/api/v1/namespaces/{api.namespace}/events", chosen)
        return why(found.get("items") or (), slow=stuck.kind == "Pod" and now_s - stuck.since_s >= SLOW_S)


def why(events: Sequence[Object], slow: bool) -> str:
    """What the events of a pod say of why it does not start: a warning after which nothing went well, or what is done
    for one that is ``slow``; "" for neither."""
    order = sorted((one for one in events if one.get("reason") != PLACED), key=_moment)
    wrong: list[Object] = []
    for one in order:
        wrong = [*wrong, one] if one.get("type") == WARNING else []
    exact = [one for one in wrong if not str(one.get("message", "")).startswith(GENERAL)]
    newest = (exact or wrong)[-1:] or (order[-1:] if slow else [])
    return ": ".join(str(one[part]) for one in newest for part in ("reason", "message") if one.get(part))


def _moment(event: Object) -> str:
    """When it was seen last, in whole seconds; new servers tell that elsewhere than old ones."""
    series = event.get("series") or {}
    told = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    about = event.get("metadata") or {}
    return max(str(one)[:19] for one in (*told, about.get("creationTimestamp"), "") if one is not None)
