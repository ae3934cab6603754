"""Nameplate and measured rates of every NIC, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optcc.discover.calibration import NicRate
from optcc.files.writing import written

MOST = 128
"""NICs that are shown; of more, the slowest against their nameplate."""


def draw(nics: Sequence[NicRate], path: Path, kind: str) -> None:
    """Write a bar chart, a row per NIC. Raises InputError where it cannot be written. `kind` : what was measured."""
    from matplotlib.figure import Figure

    chosen = sorted(nics, key=lambda n: min(n.out, n.into) / n.nameplate if n.nameplate else 0.0)[:MOST]
    chosen = [nic for nic in nics if nic in chosen][::-1]
    figure = Figure(figsize=(7, 1.2 + 0.28 * len(chosen)), layout="constrained")
    axes = figure.subplots()
    places = range(len(chosen))
    gbps = 8e-9
    axes.barh([p + 0.2 for p in places], [n.out * gbps for n in chosen], 0.35, label="out", color="#4477aa")
    axes.barh([p - 0.2 for p in places], [n.into * gbps for n in chosen], 0.35, label="in", color="#88ccee")
    plates = [n.nameplate * gbps for n in chosen]
    axes.plot(plates, places, "|", color="black", markersize=14, label="nameplate", linestyle="none")
    axes.set_yticks(list(places), [n.name for n in chosen], fontsize=8)
    axes.set_xlabel(f"Gb/s, measured, {kind}")
    axes.set_xlim(left=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.08 + 0.5 / len(chosen)), ncols=3, frameon=False)
    with written(path) as file:
        figure.savefig(file, format=path.suffix[1:])
