"""Builds the output under a cell: a MIME bundle with the job's id, and a static snapshot of the job.

JupyterLab's renderer shows the live job from `MIME_TYPE`. Everything else (nbconvert, a mail, an editor that does not
know that type) shows the HTML or the text of the last update, with its time while the job goes on. The journal remains
the only record. The ranks' own output is ordinary stdout below it.
"""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from ..control import report, text_tables
from ..core.events import TERMINAL_STATES
from ..core.units import plural
from ..core.views import View

MIME_TYPE = "application/vnd.hyperpod.job.v1+json"
CHART_WIDTH, CHART_HEIGHT = 360, 64
_DOTS = {"good": "#2e9e4f", "warn": "#c98500", "bad": "#d13438", "info": "#3b82c4", "quiet": "#8a8a8a"}


def job_bundle(
    view: View, store_root: str, cell_digest: str, streams: bool, at_s: float | None = None
) -> dict[str, Any]:
    """Return the MIME bundle of a job: identity for the live renderer, HTML and text as of `at_s`.

    `streams` tells the renderer that the ranks' output is printed below it, and need not be shown twice.
    """
    return {
        MIME_TYPE: {"job_id": view["id"], "store": store_root, "cell_digest": cell_digest, "streams": streams},
        "text/html": job_html(view, at_s),
        "text/plain": " · ".join(filter(None, (report.progress_line(view), _as_of(view, at_s)))),
    }


def _as_of(view: View, at_s: float | None) -> str:
    """When a job that goes on was as it is shown: who reads a saved notebook later would take it for the present."""
    if at_s is None or view["state"] in TERMINAL_STATES:
        return ""
    return f"as of {datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"


def job_html(view: View, at_s: float | None = None) -> str:
    """Return a snapshot of the job: no scripts, everything escaped, colours taken from the page."""
    dot = _DOTS[report.TONES.get(view["state"], "quiet")]
    facts = " · ".join(html.escape(text_tables.clean(text)) for text in _facts(view))
    parts = [
        '<div style="border:1px solid rgba(128,128,128,.35);border-radius:6px;padding:8px 12px;max-width:46em">',
        f'<div><span style="color:{dot}">●</span> <strong>{html.escape(text_tables.clean(view["id"]))}</strong> '
        f"{html.escape(' '.join(filter(None, (text_tables.clean(view['state']), _as_of(view, at_s)))))}</div>",
        f'<div style="opacity:.75">{facts}</div>' if facts else "",
        loss_chart([(view["history"], view["incidents"])]),
        f'<div style="margin-top:4px">{report.incidents_table(view).html()}</div>' if view["incidents"] else "",
        "</div>",
    ]
    return "".join(parts)


def _facts(view: View) -> list[str]:
    facts = report.step_texts(view)
    if view["world_size"]:
        facts.append(plural(view["world_size"], "node"))
    if view["reason"]:
        facts.append(view["reason"])
    return facts


def loss_chart(curves: Sequence[tuple[Sequence[Sequence[Any]], Sequence[View]]]) -> str:
    """Return an SVG of loss over step. A curve is (history points ``[step, loss, time_s, …]``, incidents to mark)."""
    points = [point for history, _ in curves for point in history if point[1] is not None]
    if len(points) < 2:
        return ""
    left, right = min(p[0] for p in points), max(p[0] for p in points)
    low, high = min(p[1] for p in points), max(p[1] for p in points)

    def at_x(step: float) -> float:
        return 4 + (CHART_WIDTH - 8) * float((step - left) / max(right - left, 1))

    def at_y(loss: float) -> float:
        return CHART_HEIGHT - 4 - (CHART_HEIGHT - 8) * float(loss - low) / ((high - low) or 1)

    drawn = []
    for number, (history, incidents) in enumerate(curves):
        line = " ".join(f"{at_x(p[0]):.1f},{at_y(p[1]):.1f}" for p in history if p[1] is not None)
        dash = ' stroke-dasharray="5 4"' if number else ""
        drawn.append(f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"{dash}/>')
        for step in filter(None, (step_of(history, incident["started_s"]) for incident in incidents)):
            x = at_x(step)
            drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{CHART_HEIGHT}" stroke="{_DOTS["bad"]}"/>')
    return (
        f'<svg width="{CHART_WIDTH}" height="{CHART_HEIGHT}" role="img" style="display:block;margin:6px 0">'
        f"<title>loss from step {left} to {right}</title>{''.join(drawn)}</svg>"
    )


def step_of(history: Sequence[Sequence[Any]], time_s: float) -> float | None:
    """Return the first step committed after `time_s`, None where there is none."""
    return next((point[0] for point in history if point[2] >= time_s), None)


@dataclass
class JobDisplay:
    """One display that is updated while the job runs, so that a saved notebook shows its end."""

    store_root: str
    cell_digest: str
    streams: bool
    _display_id: str = field(default_factory=lambda: uuid4().hex)
    _last: dict[str, Any] | None = None

    def show(self, view: View) -> None:
        """Show or update the display; nothing is sent where nothing changed."""
        from IPython.display import display

        timeless = job_bundle(view, self.store_root, self.cell_digest, self.streams)
        if timeless != self._last:
            bundle = job_bundle(view, self.store_root, self.cell_digest, self.streams, time.time())
            display(bundle, raw=True, display_id=self._display_id, update=self._last is not None)
            self._last = timeless

    def forget(self) -> None:
        """The front end has removed the display; the next one is new."""
        self._last = None
