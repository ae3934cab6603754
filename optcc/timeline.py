"""Timelines of a simulation: an SVG picture for a report, Chrome trace JSON for zooming (ui.perfetto.dev)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.schedule import Stage
from optcc.simulator import Simulation
from optcc.units import format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with any colour vision.
STAGE_COLOURS = {
    Stage.REDUCE_SCATTER: "#0072B2",
    Stage.TO_LEAF: "#E69F00",
    Stage.FROM_LEAF: "#D55E00",
    Stage.ALLGATHER: "#009E73",
}
STAGE_NAMES = {
    Stage.REDUCE_SCATTER: "reduce-scatter along a ring",
    Stage.TO_LEAF: "to a degraded server",
    Stage.FROM_LEAF: "from a degraded server",
    Stage.ALLGATHER: "allgather along a ring",
}
MAX_TRACKS = 32


def write_timeline(simulation: Simulation, path: Path, *, title: str, bound_s: float) -> None:
    """Write `path` as .svg (a picture) or .json (a Chrome trace). Raises InputError for any other ending."""
    check_timeline(path)
    try:
        if path.suffix == ".json":
            path.write_text(json.dumps(chrome_trace(simulation)), encoding="utf-8")
        else:
            draw_timeline(simulation, title=title, bound_s=bound_s).savefig(path, metadata={"Date": None})
    except OSError as error:
        expected = "a folder that exists and may be written to"
        raise InputError("cannot be written", where=str(path), expected=expected, got=error.strerror) from None


def check_timeline(path: Path | None) -> None:
    """Raise InputError unless `path` is None or a name that `write_timeline` can make, in a folder that exists."""
    if path is None:
        return
    if path.suffix not in (".svg", ".json"):
        raise InputError("unknown kind of timeline", where=str(path), expected="a name ending in .svg or .json")
    if not path.parent.is_dir():
        raise InputError("cannot be written", where=str(path), expected="a folder that exists", got=str(path.parent))


def chrome_trace(simulation: Simulation) -> dict[str, Any]:
    """Trace-event JSON: a process per rank, a thread per NIC and direction, microseconds of virtual time."""
    s, stripes, events = simulation.schedule, simulation.stripes, []
    for index, port in enumerate(s.ports):
        for side, way in enumerate(("out", "in")):
            track = {"pid": port.rank, "tid": 2 * index + side}
            events.append({"ph": "M", "name": "thread_name", **track, "args": {"name": f"{port.name} {way}"}})
    for rank in range(s.ranks):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
    for i in range(len(stripes.row)):
        row = int(stripes.row[i])
        args = {"transfer": row, "bytes": int(stripes.length[i]), "from": int(s.src[row]), "to": int(s.dst[row])}
        stage = Stage(int(s.stage[row])).name.lower()
        for nic, side, begin, end in (
            (int(stripes.out[i]), 0, simulation.stripe_start[i], simulation.stripe_end[i]),
            (int(stripes.into[i]), 1, simulation.land_start[i], simulation.land_end[i]),
        ):
            events.append(
                {
                    "ph": "X",
                    "name": stage,
                    "pid": s.ports[nic].rank,
                    "tid": 2 * nic + side,
                    "ts": begin * 1e6,
                    "dur": (end - begin) * 1e6,
                    "args": args,
                }
            )
    return {"displayTimeUnit": "ns", "otherData": {"source": "optcc simulation"}, "traceEvents": events}


def draw_timeline(simulation: Simulation, *, title: str, bound_s: float) -> Figure:
    """A matplotlib Figure of what every NIC sends and receives when, against the bound."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    tracks = _tracks(simulation)
    figure = Figure(figsize=(11, 1.6 + 0.3 * len(tracks)), layout="constrained")
    axes = figure.add_subplot()
    seconds, unit = max(simulation.time_s, bound_s), "s"
    for factor, name in ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms")):
        if seconds < 1000 * factor:
            seconds, unit = seconds / factor, name
            break
    scale = seconds / max(simulation.time_s, bound_s) if seconds else 1.0
    stages = simulation.schedule.stage[simulation.stripes.row]
    for y, (_, mine, begin, end) in enumerate(tracks):
        for stage in Stage:
            of_stage = mine[stages[mine] == stage]
            bars = _merged(begin[of_stage] * scale, end[of_stage] * scale, seconds / 2000)
            if bars:
                axes.broken_barh(bars, (y - 0.4, 0.8), facecolors=STAGE_COLOURS[stage], linewidth=0)
    axes.axvline(bound_s * scale, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        f"bound {format_seconds(bound_s)}",
        (bound_s * scale, -0.55),
        xytext=(-4, 1),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
    )
    axes.set_yticks(range(len(tracks)), [label.replace("$", r"\$") for label, *_ in tracks], fontsize=8)
    axes.set_ylim(len(tracks) - 0.4, -1.4)
    axes.set_xlim(0, seconds * 1.005 or 1)
    axes.set_xlabel(f"simulated time ({unit})")
    axes.set_title(title, fontsize=10, loc="left")
    used = [stage for stage in Stage if (stages == stage).any()]
    figure.legend(
        handles=[Patch(color=STAGE_COLOURS[stage], label=STAGE_NAMES[stage]) for stage in used],
        loc="outside lower center", ncols=4, fontsize=8, frameon=False,
    )  # fmt: skip
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


_Track = tuple[str, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


def _tracks(simulation: Simulation) -> list[_Track]:
    """(label, stripes, start, end) per port and direction; only each rank's busiest port when there are many."""
    s, stripes = simulation.schedule, simulation.stripes
    shown = list(range(len(s.ports)))
    if 2 * len(shown) > MAX_TRACKS:
        sent = np.bincount(stripes.out, simulation.stripe_end - simulation.stripe_start, len(s.ports))
        shown = [max((p for p in shown if s.ports[p].rank == r), key=lambda p: (sent[p], -p)) for r in range(s.ranks)]
    tracks: list[_Track] = []
    for p in shown[: MAX_TRACKS // 2]:
        live = sum(port.rank == s.ports[p].rank for port in s.ports)
        label = s.ports[p].name + (f" (1 of {live})" if len(shown) < len(s.ports) else "")
        out, into = np.flatnonzero(stripes.out == p), np.flatnonzero(stripes.into == p)
        moved = format_size(int(stripes.length[out].sum()))
        tracks.append((f"{label} out {moved}", out, simulation.stripe_start, simulation.stripe_end))
        moved = format_size(int(stripes.length[into].sum()))
        tracks.append((f"in {moved}", into, simulation.land_start, simulation.land_end))
    return tracks


def _merged(begin: NDArray[np.float64], end: NDArray[np.float64], gap: float) -> list[tuple[float, float]]:
    """(start, width) of bars, neighbours closer than `gap` joined: what the eye cannot tell apart need not be drawn."""
    bars: list[list[float]] = []
    for a, b in sorted(zip(begin.tolist(), end.tolist(), strict=True)):
        if bars and a - bars[-1][1] < gap:
            bars[-1][1] = max(b, bars[-1][1])
        else:
            bars.append([a, b])
    return [(a, b - a) for a, b in bars]
