"""Timelines of a simulation: an SVG picture for a report, Chrome trace JSON for zooming (ui.perfetto.dev)."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.files.writing import check_place, written
from optcc.schedule import Stage
from optcc.simulation.simulator import Services, Simulation, forced_idle, services
from optcc.values.units import format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from optcc.simulation.faults import Fault

# Okabe and Ito's palette: told apart with any colour vision.
STAGE_COLOURS = {
    Stage.REDUCE_SCATTER: "#0072B2",
    Stage.TO_LEAF: "#E69F00",
    Stage.FROM_LEAF: "#D55E00",
    Stage.ALLGATHER: "#009E73",
}
STAGE_NAMES = {
    Stage.REDUCE_SCATTER: "summing (reduce-scatter)",
    Stage.TO_LEAF: "to a degraded server",
    Stage.FROM_LEAF: "from a degraded server",
    Stage.ALLGATHER: "handing out sums (allgather)",
}
FORCED_IDLE, LOST = "#D9D9D9", "#CC79A7"
FAULT = "#CC0000"
MAX_TRACKS = 32
"""More tracks than these, and only some NICs of each rank are drawn."""
MAX_RANKS = 64
"""Of so many ranks a NIC is drawn: what a page of 60 inches holds."""
MAX_LINKS = 8


def write_timeline(
    simulation: Simulation, path: Path, *, title: str, bound_s: float, faults: Sequence[Fault] = ()
) -> None:
    """Write `path` as .svg (a picture) or .json (a Chrome trace). Raises InputError for any other ending.

    faults : those that were simulated; the picture shows their ports and marks their moments
    """
    check_timeline(path)
    with written(path) as file:
        if path.suffix == ".json":
            file.write(json.dumps(chrome_trace(simulation)).encode())
        else:
            figure = draw_timeline(simulation, title=title, bound_s=bound_s, faults=faults)
            figure.savefig(file, format="svg", metadata={"Date": None})


def check_timeline(path: Path | None) -> None:
    """Raise InputError unless `path` is None or a name that `write_timeline` can make, in a place it can write to."""
    if path is None:
        return
    if path.suffix not in (".svg", ".json"):
        raise InputError("unknown kind of timeline", where=str(path), expected="a name ending in .svg or .json")
    check_place(path)


def chrome_trace(simulation: Simulation) -> dict[str, Any]:
    """Trace-event JSON: a process per rank with a thread per port and direction, one more with a thread per link that
    was crossed; microseconds of virtual time. Where receivers serve packets, what overlaps is on further threads.
    """
    s, stripes, every = simulation.schedule, simulation.stripes, services(simulation)
    ports = len(s.ports)
    tracks = [(port.rank, 2 * i, f"{port.name} out") for i, port in enumerate(s.ports)]
    tracks += [(port.rank, 2 * i + 1, f"{port.name} in") for i, port in enumerate(s.ports)]
    tracks += [(s.ranks, link, s.links[link].name) for link in range(len(s.links))]
    shown = [*range(2 * ports), *(2 * ports + link for link in _crossed(simulation))]
    processes = [f"rank {rank}" for rank in range(s.ranks)] + ["links"] * (len(shown) > 2 * ports)
    events: list[dict[str, Any]] = []
    for pid, name in enumerate(processes):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
    for pid, tid, name in map(tracks.__getitem__, shown):
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})

    named: set[tuple[int, int]] = set()
    beside = _beside(every) if simulation.receivers == "packets" else np.zeros(len(every.stripe), np.int64)

    def add(name: str, resource: int, begin: float, end: float, args: dict[str, Any], row: int = 0) -> None:
        pid, tid, label = tracks[resource]
        if row:
            tid += row * len(tracks)
            if (pid, tid) not in named:
                named.add((pid, tid))
                thread = {"name": "thread_name", "pid": pid, "tid": tid, "args": {"name": f"{label} ({row + 1})"}}
                events.append({"ph": "M", **thread})
        span = {"ts": begin * 1e6, "dur": (end - begin) * 1e6}
        events.append({"ph": "X", "name": name, "pid": pid, "tid": tid, **span, "args": args})

    in_vain = len(every.stripe) - len(simulation.lost.stripe)
    for i, stripe in enumerate(every.stripe.tolist()):
        row = int(stripes.row[stripe])
        args = {"transfer": row, "bytes": int(stripes.length[stripe]), "from": int(s.src[row]), "to": int(s.dst[row])}
        name = "lost" if i >= in_vain else Stage(int(s.stage[row])).name.lower()
        add(name, int(every.resource[i]), float(every.begin[i]), float(every.end[i]), args, int(beside[i]))
    for resource, begin, end in forced_idle(simulation):
        for a, b in zip(begin.tolist(), end.tolist(), strict=True):
            add("forced idle", resource, a, b, {})
    return {"displayTimeUnit": "ns", "otherData": {"source": "optcc simulation"}, "traceEvents": events}


def _beside(every: Services) -> NDArray[np.int64]:
    """int64: how many earlier services of its resource each is drawn below, so that none overlaps another."""
    found = np.zeros(len(every.stripe), np.int64)
    rows: list[tuple[float, int]] = []  # heap: when a row of this resource is free again, which
    last = -1
    for i in np.lexsort((every.begin, every.resource)).tolist():
        if every.resource[i] != last:
            last, rows = int(every.resource[i]), []
        free = rows and rows[0][0] <= every.begin[i]
        row = heappop(rows)[1] if free else len(rows)
        heappush(rows, (float(every.end[i]), row))
        found[i] = row
    return found


def _crossed(simulation: Simulation) -> list[int]:
    """The links that anything crossed."""
    crossed: list[int] = np.unique(simulation.crossings.resource).tolist()
    return [resource - 2 * len(simulation.schedule.ports) for resource in crossed]


def draw_timeline(simulation: Simulation, *, title: str, bound_s: float, faults: Sequence[Fault] = ()) -> Figure:
    """A matplotlib Figure of what every port sends and receives when, against the bound; faults at their moments."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    tracks, left_out = _tracks(simulation, {fault.port for fault in faults})
    figure = Figure(figsize=(11, 1.6 + 0.3 * len(tracks)), layout="constrained")
    axes = figure.add_subplot()
    seconds, unit = max(simulation.time_s, bound_s), "s"
    for factor, name in ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms")):
        if seconds < 1000 * factor:
            seconds, unit = seconds / factor, name
            break
    scale = seconds / max(simulation.time_s, bound_s) if seconds else 1.0
    stages = simulation.schedule.stage[simulation.stripes.row]
    gaps = {resource: (begin, end) for resource, begin, end in forced_idle(simulation)}

    def draw(y: int, begin: NDArray[np.float64], end: NDArray[np.float64], height: float, colour: str) -> None:
        bars = _merged(begin * scale, end * scale, seconds / 2000)
        axes.broken_barh(bars, (y - height / 2, height), facecolors=colour, linewidth=0)

    for y, (_, resource, stripe, begin, end, in_vain) in enumerate(tracks):
        if resource in gaps:
            draw(y, *gaps[resource], 0.4, FORCED_IDLE)
        draw(y, begin[in_vain], end[in_vain], 0.8, LOST)
        for stage in Stage:
            of_stage = (stages[stripe] == stage) & ~in_vain
            draw(y, begin[of_stage], end[of_stage], 0.8, STAGE_COLOURS[stage])
    names = [port.name for port in simulation.schedule.ports]
    for fault in faults:
        if fault.at_s >= simulation.time_s:
            continue  # it came too late to meet anything
        at, port = float(fault.at_s) * scale, names.index(fault.port)
        rows = [y for y, track in enumerate(tracks) if track[1] % len(names) == port and track[1] < 2 * len(names)]
        axes.vlines(at, min(rows) - 0.5, max(rows) + 0.5, color=FAULT, linewidth=2)
        what = f"slows to {float(fault.left):.0%}" if fault.left else "dies"
        where = (at, min(rows) - 0.5)
        axes.annotate(
            what, where, xytext=(4, -2), textcoords="offset points", va="top", fontsize=8, color=FAULT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # readable over bars, too
        )  # fmt: skip
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
    axes.set_title(title + left_out, fontsize=10, loc="left")
    used = [stage for stage in Stage if (stages == stage).any()]
    figure.legend(
        handles=[
            *(Patch(color=STAGE_COLOURS[stage], label=STAGE_NAMES[stage]) for stage in used),
            Patch(color=FORCED_IDLE, label="forced idle"),
            *(Patch(color=LOST, label="lost") for _ in simulation.lost.stripe[:1]),
        ],
        loc="outside lower center", ncols=6, fontsize=8, frameon=False,
    )  # fmt: skip
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


_Track = tuple[str, int, NDArray[np.int32], NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]


def _tracks(simulation: Simulation, hit: Collection[str]) -> tuple[list[_Track], str]:
    """(label, resource, stripes, start, end, in vain?) per port and direction, of many only each rank's busiest port
    and those named in `hit`; then per link, when there are few. And what to say of ranks that are left out.
    """
    s, stripes, every = simulation.schedule, simulation.stripes, services(simulation)
    shown, left_out = list(range(len(s.ports))), ""
    if 2 * len(shown) > MAX_TRACKS:
        struck = [p for p in shown if s.ports[p].name in hit]
        sent = np.bincount(stripes.out, simulation.stripe_end - simulation.stripe_start, len(s.ports))
        first = list(dict.fromkeys([*(s.ports[p].rank for p in struck), *range(s.ranks)]))[:MAX_RANKS]
        busiest = [max((p for p in shown if s.ports[p].rank == r), key=lambda p: (sent[p], -p)) for r in first]
        shown = sorted({*struck, *busiest})
        if len(first) < s.ranks:
            left_out = f"; {len(first)} of {s.ranks} ranks drawn: the first, and those with a fault"
    tracks: list[_Track] = []

    def add(label: str, resource: int) -> None:
        mine = np.flatnonzero(every.resource == resource)
        moved = format_size(int(stripes.length[every.stripe[mine]].sum()))
        in_vain = mine >= len(every.stripe) - len(simulation.lost.stripe)
        tracks.append((f"{label} {moved}", resource, every.stripe[mine], every.begin[mine], every.end[mine], in_vain))

    for p in shown:
        live = sum(port.rank == s.ports[p].rank for port in s.ports)
        add(s.ports[p].name + (f" (1 of {live})" if len(shown) < len(s.ports) else "") + " out", p)
        add("in", len(s.ports) + p)
    links = _crossed(simulation)
    if len(links) <= MAX_LINKS:
        for link in links:
            add(s.links[link].name, 2 * len(s.ports) + link)
    return tracks, left_out


def _merged(begin: NDArray[np.float64], end: NDArray[np.float64], gap: float) -> list[tuple[float, float]]:
    """(start, width) of bars, neighbours closer than `gap` joined: what the eye cannot tell apart need not be drawn."""
    bars: list[list[float]] = []
    for a, b in sorted(zip(begin.tolist(), end.tolist(), strict=True)):
        if bars and a - bars[-1][1] < gap:
            bars[-1][1] = max(b, bars[-1][1])
        else:
            bars.append([a, b])
    return [(a, b - a) for a, b in bars]
