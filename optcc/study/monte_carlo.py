"""What Monte Carlo draws say about overhead: mean, quantiles, and a picture.

A draw in which some server can no longer send or receive stops the job: its overhead is infinite. It counts so in the
quantiles, and is left out of the mean, which stands beside the number of such draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optcc import __version__
from optcc.errors import InputError
from optcc.files.writing import check_place, written
from optcc.study.cells import Row, SweepCell, SweepJob, SweepResult, row
from optcc.study.failures import MonteCarlo
from optcc.study.grid import SweepGrid
from optcc.values.units import format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True)
class OverheadSpread:
    """Overheads of some draws as fractions, ascending; infinite where there is none."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """Over the draws that have an overhead; None when none has."""
        finite = [value for value in self.values if math.isfinite(value)]
        return math.fsum(finite) / len(finite) if finite else None

    def quantile(self, q: float) -> float:
        """The least overhead that at least the fraction `q` of the draws does not exceed."""
        return self.values[max(0, math.ceil(q * len(self.values)) - 1)]

    def as_json(self) -> dict[str, float | None]:
        """Numbers by name; null for what is infinite."""
        named = {"mean": self.mean, **{f"p{100 * q:g}": self.quantile(q) for q in QUANTILES}, "max": self.values[-1]}
        return {name: value if value is not None and math.isfinite(value) else None for name, value in named.items()}


@dataclass(frozen=True)
class Distribution:
    """The draws of one Monte Carlo entry on one topology, at one size and cost, by one algorithm.

    inputs : the columns that are the same in all; expected_failed, mean_failed : dead NICs, by the model and as drawn
    stopped : draws in which a server is cut off; unsimulated : others without a simulated time
    """

    inputs: dict[str, Any]
    seed: int
    draws: int
    expected_failed: float
    mean_failed: float
    stopped: int
    unsimulated: int
    unavoidable: OverheadSpread
    achieved: OverheadSpread | None

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            **self.inputs,
            "seed": self.seed,
            "draws": self.draws,
            "expected_failed": self.expected_failed,
            "mean_failed": self.mean_failed,
            "stopped": self.stopped,
            "unsimulated": self.unsimulated,
            "unavoidable_overhead": self.unavoidable.as_json(),
            "overhead": self.achieved.as_json() if self.achieved else None,
        }


def distributions(
    grid: SweepGrid, cells: tuple[SweepCell, ...], results: Mapping[str, SweepResult]
) -> tuple[Distribution, ...]:
    """One per Monte Carlo entry, topology, size, cost and algorithm of `grid`, in the order of the table."""
    clusters = grid.clusters()
    alike: dict[tuple[str, int, SweepJob], list[Row]] = {}
    for cell in cells:
        if isinstance(grid.failures[cell.entry], MonteCarlo):
            same = (cell.topology, cell.entry, replace(cell.job, failures=()))
            alike.setdefault(same, []).append(row(cell, results))
    found = []
    for (_, entry, job), rows in alike.items():
        model = grid.failures[entry]
        assert isinstance(model, MonteCarlo)
        found.append(_distribution(model.expected(clusters[job.cluster_id]), job, rows))
    return tuple(found)


def _distribution(expected: Fraction, job: SweepJob, rows: list[Row]) -> Distribution:
    first = rows[0]
    names = ("topology", "servers", "size", "alpha_s", "per_chunk_s", "jitter", "failure_entry", "algorithm",
             "receivers")  # fmt: skip
    stopped = sum(r["unavoidable_overhead"] is None for r in rows)
    return Distribution(
        inputs={name: first[name] for name in names} | {"segments": job.segments},
        seed=first["seed"],
        draws=len(rows),
        expected_failed=float(expected),
        mean_failed=sum(r["failed"] for r in rows) / len(rows),
        stopped=stopped,
        unsimulated=sum(r["overhead"] is None for r in rows) - stopped if job.algorithm else 0,
        unavoidable=_spread(rows, "unavoidable_overhead"),
        achieved=_spread(rows, "overhead") if job.algorithm else None,
    )


def _spread(rows: list[Row], column: str) -> OverheadSpread:
    return OverheadSpread(tuple(sorted(math.inf if r[column] is None else r[column] for r in rows)))


PANELS = 12
"""Most panels of one picture: a topology, size and cost each."""
BINS = 40
# Okabe and Ito's palette: told apart with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")


def check_histogram(path: Path) -> None:
    """Raise InputError unless `write_histogram` can make `path`, as far as its name and place go."""
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise InputError("unknown kind of picture", where=str(path), expected="a name ending in .svg, .png or .pdf")
    check_place(path)


def write_histogram(found: tuple[Distribution, ...], path: Path) -> None:
    """Write `path`. Raises InputError when it cannot be."""
    check_histogram(path)
    with written(path) as file:
        metadata = {"Date": None} if path.suffix == ".svg" else None
        draw_histogram(found).savefig(file, format=path.suffix[1:], metadata=metadata)


def draw_histogram(found: tuple[Distribution, ...]) -> Figure:
    """One panel per topology, size and cost, in it a step line for what no schedule avoids and one per algorithm."""
    from matplotlib.figure import Figure

    panels: dict[str, list[Distribution]] = {}
    for one in found:
        panels.setdefault(_title(one), []).append(one)
    shown = list(panels.items())[:PANELS]
    columns = min(3, len(shown))
    figure = Figure(figsize=(4.6 * columns + 0.6, 3.1 * math.ceil(len(shown) / columns) + 0.7), layout="constrained")
    axes = np.atleast_1d(figure.subplots(math.ceil(len(shown) / columns), columns)).ravel()
    for here, (title, ones) in zip(axes, shown, strict=False):
        _panel(here, title, ones)
    for unused in axes[len(shown) :]:
        unused.set_axis_off()
    more = f", {len(panels) - PANELS} more not drawn" if len(panels) > PANELS else ""
    figure.suptitle(
        f"AllReduce overhead at a random moment: {found[0].draws} draws, seed {found[0].seed}, "
        f"optcc {__version__}, simulated{more}",
        fontsize=10,
    )
    return figure


def _title(one: Distribution) -> str:
    inputs = one.inputs
    name = Path(inputs["topology"]).name if ":" not in inputs["topology"] else inputs["topology"]
    costs = "".join(
        f", {label} {format_seconds(inputs[column])}"
        for label, column in (("alpha", "alpha_s"), ("per chunk", "per_chunk_s"))
        if inputs[column]
    )
    costs += f", jitter {inputs['jitter']:.2g}" if inputs["jitter"] else ""
    depth = f", {inputs['segments']} segments" if inputs["segments"] else ""
    dead = f"{one.expected_failed:.3g} NICs dead on average"
    return f"{name}\n{inputs['servers']} servers, {format_size(inputs['size'])}{costs}{depth}, {dead}"


def _panel(axes: Axes, title: str, ones: list[Distribution]) -> None:
    lines: list[tuple[str, OverheadSpread]] = [("unavoidable", ones[0].unavoidable)]
    lines += [(str(one.inputs["algorithm"]), one.achieved) for one in ones if one.achieved]
    finite = [value for _, spread in lines for value in spread.values if math.isfinite(value)]
    low, high = (100 * min(finite), 100 * max(finite)) if finite else (0.0, 0.0)
    edges = np.linspace(low, max(high, low + 1), BINS + 1)
    for colour, (label, spread) in zip(("#000000", *COLOURS * len(lines)), lines, strict=False):
        heights, _ = np.histogram([100 * v for v in spread.values if math.isfinite(v)], edges)
        style = "--" if label == "unavoidable" else "-"
        axes.stairs(heights / len(spread.values), edges, label=label, color=colour, linestyle=style)
    stopped = f"; {ones[0].stopped} draws cut a server off" if ones[0].stopped else ""
    axes.set_title(title.replace("$", r"\$") + stopped, fontsize=8, loc="left")
    axes.set_xlabel("overhead (%)", fontsize=8)
    axes.set_ylabel("share of draws", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
