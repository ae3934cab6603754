"""Pictures of Monte Carlo distributions: the share of draws by overhead, unavoidable and simulated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optcc import __version__
from optcc.errors import InputError
from optcc.files.writing import check_place, written
from optcc.sweep.distribution import Distribution, OverheadSpread
from optcc.values.units import format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    depth = f", {inputs['segments']} segments" if inputs["segments"] else ""
    return f"{name}\n{inputs['servers']} servers, {format_size(inputs['size'])}{costs}{depth}, {_dead(one)}"


def _dead(one: Distribution) -> str:
    return f"{one.expected_failed:.3g} NICs dead on average"


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
