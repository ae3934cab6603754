"""Tables of one straggler, sections 1 and 2: outcomes in, lines of Markdown out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from optcc.evaluation import rig
from optcc.evaluation.cells import FAULT_FREE, NICS, OPTCC, EvaluationCell
from optcc.evaluation.grid import PUBLISHED, SCHEMES, EvaluationGrid
from optcc.evaluation.markdown import cost_of, percent, ratio, table
from optcc.evaluation.rig import Rig
from optcc.evaluation.rivals import CHANNELS
from optcc.evaluation.tables import RECONSTRUCTED_MARK, how, points, reconstructed, slowdown
from optcc.evaluation.target import Outcomes, above, overhead, unavoidable
from optcc.values.units import format_size

NAN = float("nan")
RECONSTRUCTED = "our reconstruction"


def scheme_name(scheme: str, servers: int, dead: int) -> str:
    """The scheme as rows call it."""
    return f"{scheme} ({RECONSTRUCTED})" if scheme == PUBLISHED and reconstructed(servers, dead) else scheme


def published_form(cell: EvaluationCell, outcomes: Outcomes, hops: int = 0) -> float:
    """Largest overhead of OptCC as published with its k in a cell, by its closed form. It is (k+1)/k of the bound and
    the latency of `hops`, over the fault-free ring, less 1. In channels k counts the segments on each NIC."""
    found = outcomes[cell]
    k = found.segments / (NICS if found.way == CHANNELS else 1)
    time_s = (1 + 1 / k) * found.bound_s + hops * float(cell.alpha)
    return time_s / found.fault_free_s - 1


def hops_of(servers: int) -> int:
    """From NIC to NIC along a ring of so many, both ways round: what the closed form has no latency for."""
    return 2 * (servers - 1)


def unavoidable_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """Section 1: what no schedule avoids."""
    rows = []
    for p in grid.servers:
        cells = [EvaluationCell(p, (d,), grid.size, OPTCC) for d in grid.dead]
        rows.append((p, *(percent(unavoidable(c, outcomes)) for c in cells)))
    return table(("servers", *(f"l = {slowdown(d)}" for d in grid.dead)), rows)


def free_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """Section 1: one straggler where chunks cost nothing, at the least of the grid's costs."""
    rows = []
    for p, d in stragglers(grid):
        cells = {s: EvaluationCell(p, (d,), grid.size, s, per_chunk=min(grid.per_chunks)) for s in SCHEMES}
        shown = [percent(overhead(cells[s], outcomes)) for s in SCHEMES]
        mark = " " + RECONSTRUCTED_MARK if reconstructed(p, d) else ""
        forms = [published_form(cells[PUBLISHED], outcomes, hops) for hops in (0, hops_of(p))]
        least = percent(unavoidable(cells[OPTCC], outcomes))
        rows.append((p, slowdown(d) + mark, least, *map(percent, forms), *shown))
    form = f"{PUBLISHED}, its closed form"
    return table(("servers", "l", "unavoidable", form, f"{form} with latency", *SCHEMES), rows)


def stragglers(grid: EvaluationGrid) -> list[tuple[int, int]]:
    """(servers, dead NICs) that the grid has at all of its costs."""
    return [(p, d) for p in grid.servers for d in grid.dead if p <= grid.most_servers]


def overhead_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """Section 1: one straggler, every scheme at every cost."""
    rows = []
    for p, d, scheme in product(grid.servers, grid.dead, SCHEMES):
        found = [outcomes.get(c) for c in grid.at_costs(p, d, grid.size, scheme)]
        over = [overhead(c, outcomes) if c in outcomes else NAN for c in grid.at_costs(p, d, grid.size, scheme)]
        ratios = [ratio(o.over_bound) if o else "-" for o in found]
        taken = [how(o) if o else "-" for o in found]
        least = percent(unavoidable(EvaluationCell(p, (d,), grid.size, OPTCC), outcomes))
        rows.append((p, slowdown(d), least, scheme_name(scheme, p, d), *map(percent, over), *ratios, *taken))
    costs = [cost_of(o) for o in grid.per_chunks]
    over_bound = [f"over the bound with costs, {o}" for o in costs]
    return table(
        ("servers", "l", "unavoidable", "scheme", *(f"overhead, {o}" for o in costs), *over_bound,
         *(f"taken, {o}" for o in costs)), rows,
    )  # fmt: skip


def target_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """Section 2: optcc's overhead less the unavoidable one, in percentage points."""
    rows = []
    for p, d, n in product(grid.servers, grid.dead, grid.sizes):
        cells = grid.at_costs(p, d, n, OPTCC)
        more = [points(above(c, outcomes)) if c in outcomes else "-" for c in cells]
        ratios = [ratio(outcomes[c].over_bound) if c in outcomes else "-" for c in cells]
        rows.append((p, slowdown(d), format_size(n), *more, *ratios))
    costs = [cost_of(o) for o in grid.per_chunks]
    return table(("servers", "l", "size", *costs, *(f"over the bound with costs, {o}" for o in costs)), rows)


def rig_table(grid: EvaluationGrid, results: Mapping[Any, Any]) -> list[str]:
    """Section 1: the rig, measured and simulated."""
    rows = []
    for scheme in rig.SCHEMES:
        measured_s, slope = rig.MEASURED.get(scheme, (NAN, NAN))
        shown, ratios = [], []
        for per_chunk in grid.per_chunks:
            found, ring = results[Rig(scheme, per_chunk)], results[Rig(FAULT_FREE, per_chunk)]
            shown.append(f"{found.time_s / ring.time_s:.3f} ({1000 * found.time_s:.1f} ms)")
            ratios.append(ratio(found.time_s / found.with_costs_s))
        known = "-" if measured_s != measured_s else f"{slope:.3f} ({1000 * measured_s:.1f} ms)"
        rows.append((scheme, known, *shown, *ratios))
    costs = [cost_of(o) for o in grid.per_chunks]
    simulated = [f"simulated, {o}" for o in costs]
    return table(("scheme", "measured", *simulated, *(f"over the bound with costs, {o}" for o in costs)), rows)
