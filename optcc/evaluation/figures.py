"""Figures of the evaluation, as SVG files beside the page."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from optcc.evaluation.cells import FAULT_FREE, NICS, OPTCC, PER_CHUNK, EvaluationCell
from optcc.evaluation.claims import PAPER_OPTCC, PAPER_R2CC, R2CC_CASE
from optcc.evaluation.grid import RIVALS, SCHEMES, TARGET, EvaluationGrid
from optcc.evaluation.markdown import cost_of
from optcc.evaluation.tables import RECONSTRUCTED_MARK, reconstructed, slowdown
from optcc.evaluation.target import Outcomes, above, overhead, unavoidable
from optcc.files.writing import write_file
from optcc.values.units import format_size

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


LEGEND_INCHES = 12.4
"""The legends' longest row of labels is about so wide; a narrower figure would cut it off at both edges."""


def panels(grid: EvaluationGrid, label: str, along: str = "servers", rows: int = 1) -> tuple[Figure, list[list[Axes]]]:
    """A figure with rows of one panel for each l; `along` is what its horizontal axes are for."""
    from matplotlib.figure import Figure

    size = max(LEGEND_INCHES, 3.1 * len(grid.dead)), 0.8 + 3.1 * rows
    figure = Figure(figsize=size, layout="constrained")
    found = [list(row) for row in figure.subplots(rows, len(grid.dead), squeeze=False, sharey=True)]
    for row in found:
        for axes, dead in zip(row, grid.dead, strict=True):
            axes.set_title(title(grid, dead), fontsize=10)
            axes.grid(alpha=0.3)
        row[0].set_ylabel(label)
    for axes in found[-1]:
        axes.set_xlabel(along)
    return figure, found


def title(grid: EvaluationGrid, dead: int) -> str:
    """l, with a mark where OptCC as published is our reconstruction with any of the grid's servers."""
    known = not any(reconstructed(p, dead) for p in grid.servers)
    return f"l = {slowdown(dead)}" + ("" if known else f" {RECONSTRUCTED_MARK}")


def servers_along(grid: EvaluationGrid, axes: Axes) -> None:
    """The numbers of servers, each twice the one before."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(grid.servers, [str(p) for p in grid.servers])
    axes.set_xlim(min(grid.servers) / 1.15, max(grid.servers) * 1.15)


def percent_scale(axes: Axes, linear: float, ticks: tuple[float, ...]) -> None:
    """Linear up to `linear`, logarithmic beyond, so that 2 and 400 both can be read."""
    axes.set_yscale("symlog", linthresh=linear)
    axes.margins(y=0.08)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_yticks([], minor=True)


OVERHEAD_TICKS = (0, 2, 4, 6, 8, 10, 20, 50, 100, 200, 500)


def overhead_figure(grid: EvaluationGrid, outcomes: Outcomes) -> Figure:
    """Overhead over the fault-free ring by the number of servers, a panel for each l, with the papers' claims. Above:
    chunks cost least; below: the page's cost."""
    costs = sorted({min(grid.per_chunks), PER_CHUNK})
    figure, rows = panels(grid, "overhead over the\nfault-free ring, % (simulated)", rows=len(costs))
    for per_chunk, row in zip(costs, rows, strict=True):
        for axes, dead in zip(row, grid.dead, strict=True):
            servers_along(grid, axes)
            axes.set_title(f"{title(grid, dead)}, {cost_of(per_chunk)} for a chunk", fontsize=10)
            of = EvaluationCell(0, (dead,), grid.size, OPTCC, per_chunk=per_chunk)
            servers = [p for p in grid.servers if grid.has(replace(of, servers=p))]
            for scheme in SCHEMES:
                colour, line = STYLE[scheme]
                values = [100 * overhead(replace(of, servers=p, scheme=scheme), outcomes) for p in servers]
                axes.plot(servers, values, line, color=colour, markersize=4, linewidth=1.2, label=scheme)
            least = [100 * unavoidable(replace(of, servers=p), outcomes) for p in servers]
            axes.plot(servers, least, ".-", color="black", markersize=3, linewidth=1, label="unavoidable")
            _claims(axes, dead)
    percent_scale(rows[0][0], 10, OVERHEAD_TICKS)
    legend(figure, rows)
    return figure


def _claims(axes: Axes, dead: int) -> None:
    """What the papers claim for a straggler with so many dead NICs."""
    if 2 * dead <= NICS:
        low, high = (100 * share for share in PAPER_OPTCC)
        label = f"claimed for OptCC, {low:.0f}-{high:.0f} % (arXiv:2606.01680)"
        axes.axhspan(low, high, color=STYLE["optcc-published"][0], alpha=0.25, lw=0, label=label)
    servers, lost = R2CC_CASE
    if dead == lost:
        colour, most = STYLE["r2cc"][0], 100 * PAPER_R2CC
        label = f"claimed for R2CC, up to {most:.0f} %, {servers} servers (arXiv:2512.25059)"
        axes.axhline(most, color=colour, linestyle=":", linewidth=1)
        axes.plot([servers], [most], "*", color=colour, markeredgecolor="black", markersize=11, label=label)


def cost_figure(grid: EvaluationGrid, outcomes: Outcomes) -> Figure:
    """Overhead over the fault-free ring by the cost of a chunk, a panel for each l, with most servers that have all."""
    servers = max(p for p in grid.servers if p <= grid.most_servers)
    figure, (row,) = panels(
        grid, f"overhead over the fault-free\nring, {servers} servers, % (simulated)", "us for a chunk"
    )
    along = [float(per_chunk) * 1e6 for per_chunk in grid.per_chunks]
    for axes, dead in zip(row, grid.dead, strict=True):
        for scheme in SCHEMES:
            colour, line = STYLE[scheme]
            values = [100 * overhead(c, outcomes) for c in grid.at_costs(servers, dead, grid.size, scheme)]
            axes.plot(along, values, line, color=colour, markersize=4, linewidth=1.2, label=scheme)
        least = 100 * unavoidable(EvaluationCell(servers, (dead,), grid.size, OPTCC), outcomes)
        axes.axhline(least, color="black", linewidth=1, label="unavoidable")
    percent_scale(row[0], 10, OVERHEAD_TICKS)
    legend(figure, [row])
    return figure


def above_figure(grid: EvaluationGrid, outcomes: Outcomes) -> Figure:
    """Percentage points above the unavoidable overhead at the page's cost of a chunk: ours by size, and the best rival;
    the target."""
    figure, (row,) = panels(grid, "percentage points above the\nunavoidable overhead (simulated)")
    for axes, dead in zip(row, grid.dead, strict=True):
        servers_along(grid, axes)
        for n, line in zip(grid.sizes, ("o:", "o-", "o--", "o-."), strict=False):
            values = [100 * above(EvaluationCell(p, (dead,), n, OPTCC), outcomes) for p in grid.servers]
            label = f"optcc, {format_size(n)}"
            axes.plot(grid.servers, values, line, color=STYLE[OPTCC][0], markersize=4, linewidth=1.2, label=label)
        cells = [[EvaluationCell(p, (dead,), grid.size, scheme) for scheme in RIVALS] for p in grid.servers]
        rivals = [min(100 * above(c, outcomes) for c in those if not outcomes[c].refused) for those in cells]
        label = f"the best of the others, {format_size(grid.size)}"
        axes.plot(grid.servers, rivals, "s--", color=STYLE["balance"][0], markersize=4, linewidth=1.2, label=label)
        axes.axhline(100 * TARGET, color="black", linewidth=1, label=f"target: {100 * TARGET:.1f} at most")
    percent_scale(row[0], 2, (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50))
    legend(figure, [row])
    return figure


def legend(figure: Figure, rows: list[list[Axes]]) -> None:
    """One legend under all panels, each line once."""
    found = {
        name: handle
        for row in rows
        for axes in row
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    names = list(found)
    figure.legend(found.values(), names, loc="outside lower center", ncols=5, fontsize=8, frameon=False)


def message_figure(grid: EvaluationGrid, outcomes: Outcomes) -> Figure:
    """Bus bandwidth by message size with half a server's NICs dead."""
    from matplotlib.figure import Figure

    p = grid.message_servers
    figure = Figure(figsize=(8.6, 3.8), layout="constrained")
    axes = figure.add_subplot()

    def busbw(times: list[float]) -> list[float]:
        return [2 * (p - 1) / p * n / t / 1e9 for n, t in zip(grid.message_sizes, times, strict=True)]

    for scheme in (FAULT_FREE, OPTCC, *RIVALS):
        times = [outcomes[EvaluationCell(p, (4,), n, OPTCC).of(scheme)].time_s for n in grid.message_sizes]
        colour, line = STYLE[scheme]
        axes.plot(grid.message_sizes, busbw(times), line, color=colour, markersize=4, linewidth=1.2, label=scheme)
    ours = [outcomes[EvaluationCell(p, (4,), n, OPTCC)] for n in grid.message_sizes]
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
