"""The picture of the Grafana dashboard: its panels' own queries, answered by Prometheus on recorded metrics.

python -m tools.dashboard_picture [FILE]      docs/pictures/dashboard.svg without an argument

It is drawn by matplotlib, as Debian has no Grafana: places, titles, queries, units and legends are from the dashboard's
file, the style is not.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from optcc.study.page import save
from tools.prometheus import Prometheus, Series, history, program, running

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "monitoring"
START_S = 1767225600.0
HOUR = 3600.0
PHASES = (("healthy", 5), ("degraded", 9), ("healthy", 3), ("drain", 7))
"""The recordings of a day, and their hours."""
END_S = START_S + HOUR * sum(hours for _, hours in PHASES)
COLUMNS = 24
"""Of Grafana's grid."""
WIDTH_IN = 7.6
"""That of a page of the site, so that points are the points of its text."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#882255", "#44AA99")


def day() -> str:
    """The recorded day, as Prometheus imports it."""
    return history([((EXAMPLES / f"{name}.prom").read_text(), hours * HOUR) for name, hours in PHASES], START_S)


def panels() -> list[dict[str, Any]]:
    """Those of the dashboard's file."""
    found: list[dict[str, Any]] = json.loads((EXAMPLES / "optcc.dashboard.json").read_text())["panels"]
    return found


def expression(target: dict[str, Any]) -> str:
    """A panel's query, its variables being what they are when the dashboard is opened."""
    text: str = target["expr"]
    return text.replace("$optcc_job", ".*")


def legend(target: dict[str, Any], series: Series) -> str:
    """What the panel calls a series."""
    return re.sub(r"{{(\w+)}}", lambda found: series.labels.get(found[1], ""), target["legendFormat"])


def draw(prometheus: Prometheus) -> Figure:
    """All panels at their places."""
    boards = panels()
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in boards)
    figure = Figure(figsize=(WIDTH_IN, rows * 0.4))
    for panel in boards:
        at = panel["gridPos"]
        left, width = (at["x"] + 1.8) / COLUMNS, (at["w"] - 2.4) / COLUMNS
        axes = figure.add_axes((left, 1 - (at["y"] + at["h"] - 1.0) / rows, width, (at["h"] - 1.9) / rows))
        (target,) = panel["targets"]
        (_stat if panel["type"] == "stat" else _lines)(axes, prometheus, panel, target)
    return figure


def _stat(axes: Axes, prometheus: Prometheus, panel: dict[str, Any], target: dict[str, Any]) -> None:
    (series,) = prometheus.at(expression(target), END_S - 60)
    axes.set_title(panel["title"], fontsize=8.5)
    axes.set_axis_off()
    axes.text(0.5, 0.4, shown(series.points[-1][1], panel), ha="center", va="center", fontsize=18)


def shown(value: float, panel: dict[str, Any]) -> str:
    """A number in the panel's unit."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    return {"percentunit": f"{value:.0%}", "s": f"{value / HOUR:.1f} h"}.get(unit, f"{value:g}")


def _lines(axes: Axes, prometheus: Prometheus, panel: dict[str, Any], target: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    factor = {"percentunit": 100.0, "s": 1 / HOUR}.get(defaults["unit"], 1.0)
    found = prometheus.over(expression(target), START_S, END_S - 60, 300)
    for number, series in enumerate(sorted(found, key=lambda one: legend(target, one))):
        times, values = _with_gaps(series)
        label = legend(target, series)
        axes.plot(times, [value * factor for value in values], color=COLOURS[number % len(COLOURS)], label=label,
                  drawstyle="steps-post")  # fmt: skip
    axes.set_title(panel["title"], fontsize=9.5, loc="left", x=-0.14)
    axes.set_xlim(0, (END_S - START_S) / HOUR)
    if "max" in defaults:
        axes.set_ylim(defaults["min"] * factor, 1.03 * defaults["max"] * factor)
    else:
        axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    axes.set_xticks(range(0, 24, 6), [f"{hour}:00" for hour in range(0, 24, 6)], fontsize=9)
    axes.tick_params(axis="y", labelsize=9)
    axes.set_ylabel({"percentunit": "%", "s": "hours"}.get(defaults["unit"], ""), fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2 if len(found) > 3 else 1, columnspacing=1, handlelength=1, frameon=False)


def _with_gaps(series: Series) -> tuple[list[float], list[float]]:
    """Hours and values, broken where there were none for a while."""
    times, values = list[float](), list[float]()
    for at, value in series.points:
        hour = (at - START_S) / HOUR
        if times and hour - times[-1] > 0.2:
            times.append(times[-1])
            values.append(float("nan"))
        times.append(hour)
        values.append(value)
    return times, values


def main(path: Path) -> None:
    """Draw it into a file."""
    from tests.free_port import free_port

    if not (program("prometheus") and program("promtool")):
        raise SystemExit("dashboard_picture: prometheus is missing; tools/programs.sh .venv prometheus brings it")
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), free_port(), day()) as prometheus:
        save(draw(prometheus), path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures" / "dashboard.svg")
