"""A report as a picture and as a table: ``python -m benchmarks.figures REPORT.json docs/bench-recovery``.

Writes PREFIX.svg, PREFIX.png and PREFIX.md. Colours and text are legible on a light and on a dark page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.loading.arms import IN_PICTURE
from benchmarks.recovery.components import SAVED
from benchmarks.recovery.elastic import PAUSE

INK, OURS_COLOUR, OTHERS_COLOUR = "#767676", "#1f9e89", "#d1603d"
OURS = "jupyter_hyperpod"
RANGE = ("min", "median", "max")
LEAST_S = 0.01
REGAINED = "fault to the first new step, minus one step"
RATIO = "step against DDP"
# short column heads for the metrics of a recovery
HEADS = {
    "undisturbed step": "undisturbed step",
    "fault to the survivors' next commit, minus one step": "next commit",
    REGAINED: "new ground",
    "steps computed again": "steps again",
    "fault to the first step at full strength": "full strength",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn: one panel a case (of ``cases``, or all), one line an arm.

    ``logarithmic`` where arms differ by orders of magnitude.
    """

    title: str
    metric: str
    label: str
    logarithmic: bool
    reference: float | None
    bars: bool = False  # from zero, where what is shown is a difference or a rate
    cases: Sequence[str] = ()


PICTURES = {
    "recovery": Picture("Time without progress after a fault", REGAINED, "seconds, one step subtracted", True, None),
    "overhead": Picture("An undisturbed step, relative to plain DDP", RATIO, "ratio of step times", False, 1.0),
    "elastic": Picture("A job changes in size while it trains", PAUSE, "steps", False, 1.0, bars=True),
    "loading": Picture(
        "A model of 1 GB into cold memory", "rate", "GB/s, more is better", False, None, bars=True, cases=IN_PICTURE
    ),
    "components": Picture("What a component saves when a rank is killed", SAVED, "seconds", False, 0.0, bars=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Render a report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("report", type=Path, help="what `jupyter hyperpod bench NAME --json` printed")
    parser.add_argument("prefix", type=Path, help="where the files go, without suffix")
    options = parser.parse_args(arguments)
    report = json.loads(options.report.read_text())
    if report["bench"] not in PICTURES:
        parser.error(f"there is no picture of {report['bench']!r}; expected one of {', '.join(PICTURES)}")
    options.prefix.with_suffix(".md").write_text(f"# {PICTURES[report['bench']].title}\n\n{markdown(report)}")
    draw(report, options.prefix)
    return 0


def markdown(report: dict[str, Any]) -> str:
    """The rows as a table, medians with their range, then the bars, then what did not run and why."""
    metrics = list(dict.fromkeys(row["metric"] for row in report["rows"] if row["n"]))
    heads = ["system", "case", "n", *(HEADS.get(metric, metric) for metric in metrics)]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for arm, case in dict.fromkeys((row["arm"], row["case"]) for row in report["rows"]):
        found = {row["metric"]: row for row in report["rows"] if (row["arm"], row["case"]) == (arm, case)}
        if measured := [row for row in found.values() if row["n"]]:
            cells = [figure(found[metric]) if metric in found else "" for metric in metrics]
            lines.append(_line([arm, case, str(measured[0]["n"]), *cells]))
    lines += ["", _line(["promise", "measured", "bar", ""]), _line(["---"] * 4)]
    for bar in report["bars"]:
        sign = "≥" if bar["direction"] == "at least" else "≤"
        verdict = "kept" if bar["ok"] else "missed"
        lines.append(_line([f"`{bar['name']}`", f"{bar['value']:.3g}", f"{sign} {bar['limit']:g}", verdict]))
    for row in report["rows"]:
        if "reason" in row:
            lines += ["", f"Not run: {row['arm']}, {row['case']}.", "", "```", row["reason"].strip(), "```"]
    machine = report["machine"]
    lines += ["", f"Measured on {machine['cpus']} cores, Python {machine['python']}, torch {machine['torch']}."]
    return "\n".join(lines) + "\n"


def figure(row: dict[str, Any]) -> str:
    """Median (min–max) with the digits that carry meaning."""
    unit = f" {row['unit']}" if row["unit"] == "s" else ""
    median, low, high = (f"{row[name]:.3g}" for name in ("median", "min", "max"))
    return f"{median}{unit}" if low == high else f"{median}{unit} ({low}–{high})"


def draw(report: dict[str, Any], prefix: Path) -> None:
    """One dot an arm at its median, a line from its least to its greatest sample."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    picture = PICTURES[report["bench"]]
    rows = [row for row in report["rows"] if row["metric"] == picture.metric and row["n"]]
    cases = [case for case in dict.fromkeys(row["case"] for row in rows) if case in picture.cases or not picture.cases]
    rows = [row for row in rows if row["case"] in cases]
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    with pyplot.rc_context({"svg.fonttype": "none", "font.size": 9, "svg.hashsalt": "hyperpod"}):
        size = (4.2 + 2.9 * len(cases), 1.3 + 0.34 * len(arms))
        canvas, panels = pyplot.subplots(1, len(cases), figsize=size, sharey=True, sharex=True, squeeze=False)
        for panel, case in zip(panels[0], cases, strict=True):
            _panel(panel, [row for row in rows if row["case"] == case], arms, picture)
            panel.set_title(case, color=INK, fontsize=9)
        canvas.suptitle(picture.title, color=INK, fontsize=11)
        canvas.supxlabel(picture.label, color=INK, fontsize=9)
        canvas.tight_layout()
        for suffix, more in ((".svg", {"metadata": {"Date": None}}), (".png", {"dpi": 160})):
            canvas.savefig(prefix.with_suffix(suffix), transparent=True, **more)
        pyplot.close(canvas)


def _panel(panel: Any, rows: list[dict[str, Any]], arms: list[str], picture: Picture) -> None:
    for row in rows:
        place = -arms.index(row["arm"])
        colour = OURS_COLOUR if row["arm"].startswith(OURS) else OTHERS_COLOUR
        # no time at all has no place on a logarithmic axis: it is drawn at its end and labelled as it is
        low, median, high = (max(row[name], LEAST_S) if picture.logarithmic else row[name] for name in RANGE)
        panel.plot([low, high], [place, place], color=colour, linewidth=2, alpha=0.5)
        if picture.bars:
            panel.barh([place], [median], height=0.5, color=colour, alpha=0.35)
        panel.plot([median], [place], "o", color=colour, markersize=6)
        panel.annotate(
            f"{row['median']:.2f}", (median, place), (0, 6), textcoords="offset points",
            ha="center", color=colour, fontsize=8,
        )  # fmt: skip
    if picture.logarithmic:
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if picture.reference is not None:
        panel.axvline(picture.reference, color=INK, linewidth=1, linestyle=":")
    panel.margins(x=0.12)
    panel.set_ylim(-len(arms) + 0.4, 0.7)
    panel.set_yticks([-place for place in range(len(arms))], arms)
    panel.tick_params(colors=INK, length=2, which="both")
    panel.grid(axis="x", color=INK, alpha=0.2)
    for side, spine in panel.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(INK)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
