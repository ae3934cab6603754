"""The verdict as a picture: every NIC of every server, coloured by what is left of its rate."""

from __future__ import annotations

from pathlib import Path

from optcc.diagnose.diagnosis import Diagnosis
from optcc.files.writing import written

MOST_SERVERS = 64
"""Rows; of more servers those with findings, then the first."""
EMPTY = "#eeeeee"


def draw(found: Diagnosis, path: Path) -> None:
    """Write it as SVG, PNG or PDF, by the name. Raises InputError where it cannot be written."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    left = {one.nic: one for one in found.verdict.findings}
    unmeasured = set(found.verdict.unmeasured)
    servers = [s for s in found.cluster.servers if any(f"{s.name}/{n.name}" in left for n in s.nics)]
    servers += [s for s in found.cluster.servers if s not in servers][: MOST_SERVERS - len(servers)]
    servers = [s for s in found.cluster.servers if s in servers][:MOST_SERVERS]
    widest = max(len(server.nics) for server in servers)
    figure = Figure(figsize=(2.6 + 0.62 * widest, 1.3 + 0.34 * len(servers)), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["RdYlBu"]
    for row, server in enumerate(servers):
        for column, nic in enumerate(server.nics):
            name = f"{server.name}/{nic.name}"
            one = left.get(name)
            colour = colours(one.left) if one else EMPTY if name in unmeasured else colours(1.0)
            edge = "black" if one and one.sure == "certain" else "white"
            axes.add_patch(Rectangle((column - 0.45, row - 0.42), 0.9, 0.84, facecolor=colour, edgecolor=edge))
            if one:
                mark = "?" if one.sure == "possible" else ""
                axes.text(column, row, f"{100 * one.left:.0f}{mark}", ha="center", va="center", fontsize=8)
            elif name in unmeasured:
                axes.text(column, row, "-", ha="center", va="center", fontsize=8, color="#888888")
    axes.set_xlim(-0.5, widest - 0.5)
    axes.set_ylim(len(servers) - 0.5, -0.5)
    longest = max(servers, key=lambda server: len(server.nics))
    axes.set_xticks(range(widest), [nic.name for nic in longest.nics], fontsize=8, rotation=45)
    axes.set_yticks(range(len(servers)), [server.name for server in servers], fontsize=8)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    scale = ScalarMappable(Normalize(0, 100), colours)
    figure.colorbar(scale, ax=axes, shrink=0.8, label="% of the rate left")
    axes.set_title("framed: certain; ?: one of several; -: not seen at full rate", fontsize=8, loc="left")
    with written(path) as file:
        figure.savefig(file, format=path.suffix[1:])
