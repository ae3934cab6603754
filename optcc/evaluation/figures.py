"""Figures of the evaluation, as SVG files beside the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optcc.evaluation.cells import FAULT_FREE, OPTCC, Cell
from optcc.evaluation.grid import RIVALS, SCHEMES, Grid
from optcc.evaluation.tables import Outcomes, overhead, slowdown, unavoidable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with any colour vision.
STYLE = {
    OPTCC: ("#0072B2", "o-"),
    "optcc-published": ("#56B4E9", "s--"),
    "r2cc": ("#E69F00", "^--"),
    "balance": ("#D55E00", "v--"),
    "hot-repair": ("#CC79A7", "x--"),
    FAULT_FREE: ("#009E73", "d:"),
}


def overhead_figure(grid: Grid, outcomes: Outcomes) -> Figure:
    """Overhead over the fault-free ring by the number of servers, a panel for each l."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.1 * len(grid.dead), 3.4), layout="constrained")
    for axes, dead in zip(figure.subplots(1, len(grid.dead), squeeze=False)[0], grid.dead, strict=True):
        for scheme in SCHEMES:
            cells = [Cell(p, (dead,), grid.size, scheme) for p in grid.servers]
            colour, line = STYLE[scheme]
            values = [100 * overhead(cell, outcomes) for cell in cells]
            axes.plot(grid.servers, values, line, color=colour, markersize=4, linewidth=1.2, label=scheme)
        cells = [Cell(p, (dead,), grid.size, OPTCC) for p in grid.servers]
        least = [100 * unavoidable(cell, outcomes) for cell in cells]
        axes.plot(grid.servers, least, color="black", linewidth=1, label="unavoidable")
        axes.set_xscale("log", base=2)
        axes.set_xticks(grid.servers, [str(p) for p in grid.servers])
        axes.set_title(f"l = {slowdown(dead)}", fontsize=10)
        axes.set_xlabel("servers")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("overhead over the\nfault-free ring, % (simulated)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    return figure


def message_figure(grid: Grid, outcomes: Outcomes) -> Figure:
    """Bus bandwidth by message size with half a server's NICs dead."""
    from matplotlib.figure import Figure

    p = grid.message_servers
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for scheme in (FAULT_FREE, OPTCC, *RIVALS):
        times = [outcomes[Cell(p, (4,), n, OPTCC).of(scheme)].time_s for n in grid.message_sizes]
        busbw = [2 * (p - 1) / p * n / t / 1e9 for n, t in zip(grid.message_sizes, times, strict=True)]
        colour, line = STYLE[scheme]
        axes.plot(grid.message_sizes, busbw, line, color=colour, markersize=4, linewidth=1.2, label=scheme)
    bounds = [outcomes[Cell(p, (4,), n, OPTCC)].bound_s for n in grid.message_sizes]
    limit = [2 * (p - 1) / p * n / t / 1e9 for n, t in zip(grid.message_sizes, bounds, strict=True)]
    axes.plot(grid.message_sizes, limit, color="black", linewidth=1, label="bound (no latency)")
    axes.set_xscale("log", base=2)
    axes.set_xticks(grid.message_sizes, [f"{n >> 20}" for n in grid.message_sizes])
    axes.set_xlabel("message size, MiB")
    axes.set_ylabel("busbw, GB/s (simulated)")
    axes.set_title(f"{p} servers, half of one server's NICs dead", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write an SVG that is the same for the same data."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "optcc", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
