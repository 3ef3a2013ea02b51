"""Renders what ``setup apply`` makes as a chart for helm, of the same objects; what differs by place is a value. Pure.

The objects are made with a mark in place of each value, and each mark is then what helm replaces. So there is no second
copy of any of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...backends.kubernetes import rights
from ...core.errors import SpecError
from .health_objects import HealthAgents
from .node_groups import NodeGroup
from .own_objects import Object, own_objects

NAME = "jupyter-hyperpod"
UNVERIFIED = "Not verified with helm"
CHART, VALUES, JOBS, HEALTH = "Chart.yaml", "values.yaml", "templates/jobs.yaml", "templates/health.yaml"
MARK = "chart-value-{}"
_MARKED = re.compile(r"chart-value-([a-z]+)")
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
# each value by its mark, and what it is for people
PLACES = {
    "namespace": ("namespace", "where jobs run"),
    "account": ("account", "the service account of that namespace with which jobs are submitted"),
    "image": ("health.image", "the image of the health agents, with this package"),
    "python": ("health.python", "the Python of that image"),
    "recovery": ("health.recovery", "NodeRecovery: Automatic, or None to label nodes only"),
}


@dataclass(frozen=True, slots=True)
class ChartWish:
    """What a person asks for, as of ``setup apply``. ``whom``: who gets the rights: an account, a user or a group."""

    namespace: str
    whom: Mapping[str, str]
    remedies: bool = False
    groups: Sequence[NodeGroup] = ()
    agents: HealthAgents | None = None

    def subject(self) -> dict[str, str]:
        """Who gets the rights, as a role's binding has it."""
        return rights.subject(self.namespace, **self.whom)

    def objects(self) -> list[Object]:
        """What ``setup apply`` makes of it."""
        return own_objects(self.namespace, self.subject(), self.remedies, self.groups, agents=self.agents)

    def marked(self) -> tuple[ChartWish, dict[str, str]]:
        """The same with marks in place of the values, and the values by their marks."""
        values = {"namespace": self.namespace}
        whom, agents = dict(self.whom), self.agents
        if not (whom.get("user") or whom.get("group")):
            values["account"] = whom.get("account") or "default"
            whom["account"] = MARK.format("account")
        if agents is not None:
            values |= {name: getattr(agents, name) for name in ("image", "python", "recovery")}
            image, python, recovery = (MARK.format(name) for name in ("image", "python", "recovery"))
            agents = replace(agents, image=image, python=python, recovery=recovery)
        return replace(self, namespace=MARK.format("namespace"), whom=whom, agents=agents), values


def render(wish: ChartWish, release: str) -> dict[str, str]:
    """The files of the chart by name; ``release``: the version of this package. Raises SpecError."""
    if any("{{" in word for word in _words(wish.objects())):
        raise SpecError("helm would replace a part of what is given, which has {{ in it; expected plain names")
    marked, values = wish.marked()
    made = marked.objects()
    jobs = marked.objects() if wish.agents is None else replace(marked, agents=None).objects()
    told = {
        "apiVersion": "v2",
        "name": NAME,
        "description": f"What jobs of jupyter-hyperpod need in a cluster. {UNVERIFIED}.",
        "type": "application",
        "version": found[0] if (found := _RELEASE.match(release)) else "0.0.0",
        "appVersion": release,
    }
    parts = {JOBS: made[: len(jobs)], **({HEALTH: made[len(jobs) :]} if wish.agents else {})}
    return {
        CHART: _head("its description") + rights.as_yaml([told]),
        VALUES: _head("what differs from place to place") + values_text(values),
        **{name: _head("for helm, which fills in the values") + _template(objects) for name, objects in parts.items()},
    }


def _head(what: str) -> str:
    return f"# Made by `jupyter hyperpod setup chart`: {what}. {UNVERIFIED}.\n"


def values_text(values: Mapping[str, str]) -> str:
    """The values, each with what it is."""
    lines, within = [], ""
    for mark, value in values.items():
        path, what = PLACES[mark]
        group, _, name = path.rpartition(".")
        if group and group != within:
            lines.append(f"{group}:")
        within = group
        indent = "  " if group else ""
        lines += [f"{indent}# {what}", f"{indent}{name}: {json.dumps(value)}"]
    return "\n".join(lines) + "\n"


def _template(objects: Sequence[Object]) -> str:
    text = rights.as_yaml(objects, quoted=MARK.format(""))
    return _MARKED.sub(lambda found: f"{{{{ .Values.{PLACES[found[1]][0]} }}}}", text)


def _words(thing: Any) -> list[str]:
    """All texts in an object."""
    if isinstance(thing, Mapping):
        return [word for pair in thing.items() for part in pair for word in _words(part)]
    if isinstance(thing, list | tuple):
        return [word for part in thing for word in _words(part)]
    return [thing] if isinstance(thing, str) else []
