"""A browser's part in the tests: a websocket that folds what it is told and insists on order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.views import UNFOLDABLE, View, apply, new_cluster_view, new_job_view

TELLING = ("state", "reason", "step", "world_size", "generation", "members", "warnings", "error", "incidents", "nodes")


class Client:
    """One websocket. `views` are folded as a browser folds; `gaps` are the events that were left out."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.views: dict[str, View] = {}
        self.jobs: list[dict[str, Any]] | None = None
        self.older: int | None = None
        self.problems: list[dict[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.snapshots: list[str] = []
        self.messages = 0
        self.gaps: list[tuple[str, int]] = []
        self.unfoldable: list[dict[str, Any]] = []

    async def subscribe(self, *topics: str, cursors: dict[str, dict[str, int]] | None = None) -> None:
        """Watch topics; where a cursor is given without a view, begin with an empty one."""
        for topic, cursor in (cursors or {}).items():
            if topic not in self.views:
                self.views[topic] = new_cluster_view() if topic == "cluster" else new_job_view(topic)
                self.views[topic]["seen"] = dict(cursor)
        await self.say({"type": "subscribe", "watch": list(topics)} | ({"cursors": cursors} if cursors else {}))

    async def say(self, message: Any) -> None:
        await self.socket.write_message(message if isinstance(message, str | bytes) else json.dumps(message))

    async def read(self, timeout_s: float = 50.0) -> dict[str, Any]:
        """Take one message and fold it."""
        text = await asyncio.wait_for(self.socket.read_message(), timeout_s)
        assert text is not None, f"the server closed the socket: {self.socket.close_code} {self.socket.close_reason}"
        message: dict[str, Any] = json.loads(text)
        self.messages += 1
        match message["type"]:
            case "snapshot":
                self.views[message["topic"]] = message["view"]
                self.snapshots.append(message["topic"])
            case "events":
                for event in message["events"]:
                    self._fold(message["topic"], event)
            case "jobs":
                self.jobs, self.older = message["jobs"], message["older"]
            case "jobs.changed":
                self._change(message)
            case "problem":
                self.problems.append(message)
            case other:
                raise AssertionError(f"unknown message {other}")
        return message

    def _change(self, message: dict[str, Any]) -> None:
        assert self.jobs is not None, "a change of a list that was never told"
        jobs = {job["id"]: job for job in self.jobs}
        for fields in message["jobs"]:
            jobs[fields["id"]] = jobs.get(fields["id"], {}) | fields
        self.jobs = [jobs[job_id] for job_id in message.get("order", [job["id"] for job in self.jobs])]
        self.older = message["older"]

    def _fold(self, topic: str, event: dict[str, Any]) -> None:
        view = self.views[topic]
        last = view["seen"].get(event["writer"], 0)
        assert event["seq"] > last, f"{event['writer']}:{event['seq']} came again or out of order after {last}"
        if event["seq"] != last + 1:
            self.gaps += [(event["writer"], seq) for seq in range(last + 1, event["seq"])]
        try:
            apply(view, Event(**event))
        except UNFOLDABLE:
            self.unfoldable.append(event)
        self.events.append((topic, event))

    async def until(self, condition: Callable[[], Any], timeout_s: float = 50.0) -> Any:
        """Read until `condition` holds and return its value; fails after `timeout_s`, saying what was known then."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (value := condition()):
                    await self.read(timeout_s)
        except TimeoutError:
            known = {topic: {k: v for k, v in view.items() if k in TELLING} for topic, view in self.views.items()}
            raise AssertionError(f"not within {timeout_s:g} s; {known}; problems: {self.problems}") from None
        return value

    async def quiet(self, seconds: float) -> bool:
        """Whether nothing arrives for a while."""
        waiting = asyncio.ensure_future(self.socket.read_message())
        done, _ = await asyncio.wait([waiting], timeout=seconds)
        if not done:
            waiting.cancel()
        return not done

    def close(self) -> None:
        self.socket.close()
