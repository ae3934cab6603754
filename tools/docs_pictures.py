"""The three pictures of the site's first page, drawn from simulations: `make docs-pictures`.

python tools/docs_pictures.py [FOLDER]      docs/pictures without an argument
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import optcc
from optcc.simulation.faults import Fault
from optcc.simulation.timeline import STAGE_COLOURS, STAGE_NAMES
from optcc.study.page import save

ROOT = Path(__file__).resolve().parent.parent
RATE = Fraction(50_000_000_000)  # a NIC of 400 Gb/s
SIZE = 2**28
BLUE, VERMILION, PINK = "#0072B2", "#D55E00", "#CC79A7"


def cost(servers: int = 16, nics: int = 8) -> Figure:
    """Time over the fault-free bound, by the number of dead NICs of one server: bound, optcc's schedule, ring."""
    dead = range(nics)
    bounds, ours, ring = [], [], []
    for count in dead:
        cluster = optcc.Cluster.uniform(servers=servers, nics=nics, rate=RATE)
        for nic in range(count):
            cluster = cluster.degrade(f"server1/nic{nic}")
        plan = optcc.plan(cluster, SIZE)
        whole = float(plan.bound.fault_free_s)
        bounds.append(float(plan.bound.seconds) / whole)
        ours.append(optcc.simulate(plan.schedule()).time_s / whole)
        ring.append(optcc.simulate(plan.baseline("ring").schedule()).time_s / whole)
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(dead, ring, "v--", color=VERMILION, label="one ring over all servers")
    axes.plot(dead, ours, "o-", color=BLUE, label="optcc")
    axes.plot(dead, bounds, color="black", linewidth=1.2, label="no schedule is below")
    axes.set_xlabel(f"dead NICs of one server, of {nics}; {servers} servers")
    axes.set_ylabel("time, fault-free = 1\n(simulated, no latency)")
    axes.legend(frameon=False)
    return figure


def timelines(servers: int = 5, segments: int = 8) -> Figure:
    """What every server sends, when: one ring, and nested rings, with a server at half its rate."""
    cluster = optcc.Cluster.uniform(servers=servers, rate=8 * RATE).degrade("server1/nic0", Fraction(1, 2))
    plan = optcc.plan(cluster, SIZE, segments=segments)
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, name, made in zip(panels, ("one ring", "optcc"), (plan.baseline("ring"), plan), strict=True):
        simulation = optcc.simulate(made.schedule())
        rows, stages = simulation.stripes.out, simulation.schedule.stage[simulation.stripes.row]
        for stage, colour in STAGE_COLOURS.items():
            chosen = stages == stage
            bars(axes, rows[chosen], simulation.stripe_start[chosen], simulation.stripe_end[chosen], colour)
        axes.set_yticks(range(servers), [f"server{s}" + (", half its rate" if s == 1 else "") for s in range(servers)])
        axes.axvline(1e3 * float(plan.bound.seconds), color="black", linewidth=1)
        axes.set_title(
            f"{name}: {simulation.time_s / float(plan.bound.seconds):.2f} of the bound", loc="left", fontsize=10
        )
        axes.invert_yaxis()
    panels[1].set_xlabel("ms (simulated, no latency); the line is the bound")
    handles = [mpl.patches.Patch(color=STAGE_COLOURS[stage], label=STAGE_NAMES[stage]) for stage in STAGE_COLOURS]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def failover(servers: int = 4, nics: int = 4) -> Figure:
    """What a server's NICs send in three collectives: before one dies, as it dies, and by the next plan."""
    cluster = optcc.Cluster.uniform(servers=servers, nics=nics, rate=RATE)
    healthy = optcc.plan(cluster, SIZE, segments=32)
    next_plan = optcc.plan(cluster.degrade("server1/nic2"), SIZE, segments=32)
    at = 0.4 * float(healthy.bound.seconds)
    fault = Fault("server1/nic2", at_s=at, detect_s=Fraction(1, 10**4))
    figure = Figure(figsize=(7.5, 2.6), layout="constrained")
    axes = figure.add_subplot()
    begin = 0.0
    for name, plan, faults in (("before", healthy, []), ("a NIC dies", healthy, [fault]), ("next plan", next_plan, [])):
        simulation = optcc.simulate(plan.schedule(), faults=faults)
        ports = [port.name for port in simulation.schedule.ports]
        mine = [ports.index(f"server1/nic{nic}") for nic in range(nics) if f"server1/nic{nic}" in ports]
        for port in mine:
            chosen = simulation.stripes.out == port
            nic = np.full(chosen.sum(), int(ports[port][-1]))
            bars(axes, nic, begin + simulation.stripe_start[chosen], begin + simulation.stripe_end[chosen], BLUE)
        if faults:
            axes.plot([1e3 * (begin + at)], [2], "x", color=PINK, markersize=11, markeredgewidth=3)
        ratio = simulation.time_s / float(plan.bound.seconds)
        axes.text(
            1e3 * (begin + simulation.time_s / 2), -0.75, f"{name}: {ratio:.2f} of its bound", ha="center", fontsize=9
        )
        begin += simulation.time_s + 0.1 * float(healthy.bound.seconds)
    axes.set_yticks(range(nics), [f"server1/nic{nic}" for nic in range(nics)])
    axes.set_ylim(nics - 0.4, -1.1)
    axes.set_xlabel("ms (simulated, no latency; noticed after 0.1 ms)")
    return figure


def bars(axes: Axes, rows: Iterable[int], begin: Iterable[float], end: Iterable[float], colour: str) -> None:
    """A bar of each stretch of time (seconds) on its row; what touches is drawn as one."""
    by_row: dict[int, list[list[float]]] = {}
    for row, start, stop in sorted(zip(rows, begin, end, strict=True)):
        spans = by_row.setdefault(int(row), [])
        if spans and start - spans[-1][1] < 1e-9:
            spans[-1][1] = max(spans[-1][1], stop)
        else:
            spans.append([start, stop])
    for row, spans in by_row.items():
        axes.broken_barh(
            [(1e3 * start, 1e3 * (stop - start)) for start, stop in spans], (row - 0.35, 0.7), color=colour
        )


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    for draw in (cost, timelines, failover):
        save(draw(), folder / f"{draw.__name__}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
