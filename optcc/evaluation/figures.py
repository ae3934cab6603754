"""Figures of the evaluation, as SVG files beside the page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from optcc.evaluation.cells import FAULT_FREE, NICS, OPTCC, Cell
from optcc.evaluation.grid import RIVALS, SCHEMES, TARGET, Grid
from optcc.evaluation.tables import slowdown
from optcc.evaluation.target import Outcomes, above, overhead, unavoidable
from optcc.outputs import write_file
from optcc.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


PAPER_OPTCC = (2, 6)
"""Percent over the fault-free ring for one straggler, in SimAI (arXiv:2606.01680)."""
PAPER_R2CC = 57
"""Percent over the fault-free ring, at most: 8 servers of which one has lost half its rate (arXiv:2512.25059)."""


LEGEND_INCHES = 12.4
"""The legends' longest row of labels is about so wide; a narrower figure would cut it off at both edges."""


def panels(grid: Grid, label: str) -> tuple[Figure, list[Axes]]:
    """A figure with one panel for each l, the numbers of servers along it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(LEGEND_INCHES, 3.1 * len(grid.dead)), 3.9), layout="constrained")
    row = list(figure.subplots(1, len(grid.dead), squeeze=False, sharey=True)[0])
    for axes, dead in zip(row, grid.dead, strict=True):
        axes.set_xscale("log", base=2)
        axes.set_xticks(grid.servers, [str(p) for p in grid.servers])
        axes.set_title(f"l = {slowdown(dead)}", fontsize=10)
        axes.set_xlabel("servers")
        axes.grid(alpha=0.3)
    row[0].set_ylabel(label)
    return figure, row


def percent_scale(axes: Axes, linear: float, ticks: tuple[float, ...]) -> None:
    """Linear up to `linear`, logarithmic beyond, so that 2 and 400 both can be read."""
    axes.set_yscale("symlog", linthresh=linear)
    axes.margins(y=0.08)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_yticks([], minor=True)


def overhead_figure(grid: Grid, outcomes: Outcomes) -> Figure:
    """Overhead over the fault-free ring by the number of servers, a panel for each l, with what the papers claim."""
    figure, row = panels(grid, "overhead over the\nfault-free ring, % (simulated)")
    for axes, dead in zip(row, grid.dead, strict=True):
        for scheme in SCHEMES:
            cells = [Cell(p, (dead,), grid.size, scheme) for p in grid.servers]
            colour, line = STYLE[scheme]
            values = [100 * overhead(cell, outcomes) for cell in cells]
            axes.plot(grid.servers, values, line, color=colour, markersize=4, linewidth=1.2, label=scheme)
        cells = [Cell(p, (dead,), grid.size, OPTCC) for p in grid.servers]
        least = [100 * unavoidable(cell, outcomes) for cell in cells]
        axes.plot(grid.servers, least, color="black", linewidth=1, label="unavoidable")
        colour = STYLE["optcc-published"][0]
        if dead <= NICS // 2:
            axes.axhspan(
                *PAPER_OPTCC, color=colour, alpha=0.25, lw=0, label="claimed for OptCC, 2-6 % (arXiv:2606.01680)"
            )
        if dead == NICS // 2:
            colour, label = STYLE["r2cc"][0], "claimed for R2CC, up to 57 %, 8 servers (arXiv:2512.25059)"
            axes.axhline(PAPER_R2CC, color=colour, linestyle=":", linewidth=1)
            axes.plot([8], [PAPER_R2CC], "*", color=colour, markeredgecolor="black", markersize=11, label=label)
    percent_scale(row[0], 10, (0, 2, 4, 6, 8, 10, 20, 50, 100, 200, 500))
    legend(figure, row)
    return figure


def above_figure(grid: Grid, outcomes: Outcomes) -> Figure:
    """Percentage points above the unavoidable overhead: ours by size, and the best rival; the target."""
    figure, row = panels(grid, "percentage points above the\nunavoidable overhead (simulated)")
    for axes, dead in zip(row, grid.dead, strict=True):
        for n, line in zip(grid.sizes, ("o:", "o-", "o--", "o-."), strict=False):
            values = [100 * above(Cell(p, (dead,), n, OPTCC), outcomes) for p in grid.servers]
            label = f"optcc, {format_size(n)}"
            axes.plot(grid.servers, values, line, color=STYLE[OPTCC][0], markersize=4, linewidth=1.2, label=label)
        cells = [[Cell(p, (dead,), grid.size, scheme) for scheme in RIVALS] for p in grid.servers]
        rivals = [min(100 * above(c, outcomes) for c in those if not outcomes[c].refused) for those in cells]
        label = f"the best of the others, {format_size(grid.size)}"
        axes.plot(grid.servers, rivals, "s--", color=STYLE["balance"][0], markersize=4, linewidth=1.2, label=label)
        axes.axhline(100 * TARGET, color="black", linewidth=1, label=f"target: {100 * TARGET:.1f} at most")
    percent_scale(row[0], 2, (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50))
    legend(figure, row)
    return figure


def legend(figure: Figure, row: list[Axes]) -> None:
    """One legend under all panels, each line once."""
    found = {name: handle for axes in row for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    names = list(found)
    figure.legend(found.values(), names, loc="outside lower center", ncols=5, fontsize=8, frameon=False)


def message_figure(grid: Grid, outcomes: Outcomes) -> Figure:
    """Bus bandwidth by message size with half a server's NICs dead."""
    from matplotlib.figure import Figure

    p = grid.message_servers
    figure = Figure(figsize=(8.6, 3.8), layout="constrained")
    axes = figure.add_subplot()

    def busbw(times: list[float]) -> list[float]:
        return [2 * (p - 1) / p * n / t / 1e9 for n, t in zip(grid.message_sizes, times, strict=True)]

    for scheme in (FAULT_FREE, OPTCC, *RIVALS):
        times = [outcomes[Cell(p, (4,), n, OPTCC).of(scheme)].time_s for n in grid.message_sizes]
        colour, line = STYLE[scheme]
        axes.plot(grid.message_sizes, busbw(times), line, color=colour, markersize=4, linewidth=1.2, label=scheme)
    ours = [outcomes[Cell(p, (4,), n, OPTCC)] for n in grid.message_sizes]
    healthy, hurt = busbw([o.fault_free_s for o in ours]), busbw([o.bound_s for o in ours])
    label = "fault-free bound, no latency"
    axes.plot(grid.message_sizes, healthy, ":", color=STYLE[FAULT_FREE][0], linewidth=1, label=label)
    label = "bound with the dead NICs,\nno latency"
    axes.plot(grid.message_sizes, hurt, color="black", linewidth=1, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(grid.message_sizes, [f"{n >> 20}" for n in grid.message_sizes])
    axes.set_xlabel("message size, MiB")
    axes.set_ylabel("busbw, GB/s (simulated)")
    axes.set_title(f"{p} servers, half of one server's NICs dead; the fault-free ring has all", fontsize=10)
    axes.grid(alpha=0.3)
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    return figure


def drawn(figure: Figure) -> bytes:
    """The text of an SVG that is the same for the same data."""
    import matplotlib as mpl

    file = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "optcc", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write it to `path`, as `drawn`."""
    write_file(path, drawn(figure))
