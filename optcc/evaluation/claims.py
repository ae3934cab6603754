"""Sentences of the page, each made of the figures: where a figure does not bear a sentence out, another one is written.

What papers claim stands beside what this simulator finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

from optcc.evaluation import rig
from optcc.evaluation.cells import FAULT_FREE, NICS, OPTCC, EvaluationCell
from optcc.evaluation.grid import PUBLISHED, RIVALS, TARGET, EvaluationGrid
from optcc.evaluation.markdown import cost_of, percent, sentence_a_line, table
from optcc.evaluation.rig import Rig
from optcc.evaluation.rivals import CHANNELS, R2CC_CHUNKS
from optcc.evaluation.straggler import hops_of, published_form, stragglers
from optcc.evaluation.target import Outcomes, above, overhead, unavoidable
from optcc.theory.derivations import K, P, X, r2cc
from optcc.values.units import format_size

NEAR = 0.02
"""Two schemes whose overheads differ by at most so much of the fault-free ring's time are called nearly equal."""
INFINITE = 10**9
PAPER_OPTCC = (0.02, 0.06)
"""Over the fault-free ring for one straggler, in SimAI (arXiv:2606.01680)."""
PAPER_R2CC = 0.57
"""Over the fault-free ring, at most: 8 servers of which one has lost half its rate (arXiv:2512.25059)."""


def words(grid: EvaluationGrid, outcomes: Outcomes, results: Mapping[Any, Any]) -> dict[str, str]:
    """Name in page.md -> text; `results` are the rig's."""
    found = {
        "said_unavoidable": unavoidable_said(grid, outcomes),
        "said_free": free_said(grid, outcomes),
        "said_costs": costs_said(grid, outcomes),
        "said_several": several_said(grid, outcomes),
        "said_targets": targets_said(grid, outcomes),
        "said_rig": rig_said(grid, results),
        "said_optcc": optcc_claimed(grid, outcomes),
        "said_r2cc": r2cc_claimed(),
    }
    return {name: sentence_a_line(text) for name, text in found.items()}


def unavoidable_said(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """What the bound says of a server at half of its rate."""
    half = [EvaluationCell(p, (NICS // 2,), grid.size, OPTCC) for p in grid.servers]
    shares = {c.servers: unavoidable(c, outcomes) for c in half}
    shown = ", ".join(f"{percent(share)} with {p}" for p, share in shares.items())
    alike = all(abs(share - 1 / (p - 1)) < 1e-9 for p, share in shares.items())
    law = ", 1/(P-1) of the fault-free time with P servers" if alike else ""
    return f"A server at half of its rate costs every AllReduce, whatever the schedule{law}: {shown} (computed)."


def free_said(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """How near each scheme comes where chunks cost nothing."""
    least = min(grid.per_chunks)
    ours, published, r2cc_cells, balance = (
        [EvaluationCell(p, (d,), grid.size, s, per_chunk=least) for p, d in stragglers(grid)]
        for s in (OPTCC, PUBLISHED, "r2cc", "balance")
    )
    beyond = [overhead(c, outcomes) - published_form(c, outcomes, hops_of(c.servers)) for c in published]
    apart = gap(grid, outcomes, least)
    near = "is nearly equal to optcc" if apart <= NEAR else "is not equal to optcc"
    within = sum(more <= NEAR for more in beyond)
    form = (
        f"is at most {100 * NEAR:.0f} points above its closed form, (k+1)/k of the bound and the latency of a ring, in "
        f"{within} of {len(beyond)} cells (at most {100 * max(beyond):+.1f} points)"
    )
    return (
        f"With one straggler and {cost_of(least)} for a chunk OptCC as published {near}. It {form}. Its overhead is "
        f"{spread(above(c, outcomes) for c in published)} points above the unavoidable one, optcc's "
        f"{spread(above(c, outcomes) for c in ours)}; they differ by at most {100 * apart:.1f}. R2CC-AllReduce is "
        f"{spread(above(c, outcomes) for c in r2cc_cells)} points above it, Balance "
        f"{spread(above(c, outcomes) for c in balance)} (simulated)."
    )


def gap(grid: EvaluationGrid, outcomes: Outcomes, per_chunk: Fraction) -> float:
    """By how much the overheads of OptCC as published and of optcc differ at most, as a share."""
    return max(abs(more) for more in _gaps(grid, outcomes, per_chunk))


def _gaps(grid: EvaluationGrid, outcomes: Outcomes, per_chunk: Fraction) -> list[float]:
    cells = [EvaluationCell(p, (d,), grid.size, PUBLISHED, per_chunk=per_chunk) for p, d in stragglers(grid)]
    return [overhead(c, outcomes) - overhead(c.of(OPTCC), outcomes) for c in cells]


def costs_said(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """What a cost of each chunk does to the best schedules."""
    gaps = {o: max(_gaps(grid, outcomes, o)) for o in grid.per_chunks}
    shown = ", ".join(f"{100 * most:.1f} at {cost_of(o)}" for o, most in gaps.items())
    grows = all(a <= b for a, b in pairwise(gaps[o] for o in sorted(gaps)))
    text = "The more a chunk costs, the further they are apart: " if grows else "What a chunk costs sets them apart: "
    return (
        f"{text}OptCC as published takes more points than optcc, at most {shown}. A pipeline of k equal segments must "
        "choose between (k+1)/k and k times as many chunks; optcc's choice differs by cell, and is in the table "
        "(simulated)."
    )


def several_said(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """What is left where several servers are degraded."""
    cells = [c for f in grid.failures if len(f.dead) > 1 for c in f.cells((grid.size,))]
    rivals = [[above(c.of(s), outcomes) for s in RIVALS if not outcomes[c.of(s)].refused] for c in cells]
    apply = sorted({s for c in cells for s in RIVALS if not outcomes[c.of(s)].refused})
    met = sum(above(c, outcomes) <= TARGET for c in cells)
    ahead = sum(above(c, outcomes) < min(known, default=float("inf")) for c, known in zip(cells, rivals, strict=True))
    return (
        f"With several degraded servers, of all these schemes only {' and '.join(apply) or 'optcc'} can be run beside "
        "optcc. The papers of both others mention several, too, but what we read of them is not enough to run it. Of "
        f"{len(cells)} such failures at {format_size(grid.size)} optcc is within {100 * TARGET:.0f} point of the "
        f"unavoidable overhead in {met}, and faster than every other scheme here in {ahead}. It is "
        f"{spread(above(c, outcomes) for c in cells)} points above, the best of the others "
        f"{spread(min(known) for known in rivals if known)} (simulated)."
    )


def targets_said(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """How many plans for one straggler meet the target, by the cost of a chunk."""
    parts = []
    for per_chunk in grid.per_chunks:
        mine = [c for c in grid.targets() if c.per_chunk == per_chunk]
        parts.append(f"{sum(above(c, outcomes) <= TARGET for c in mine)} of {len(mine)} at {cost_of(per_chunk)}")
    return f"Within the target of {100 * TARGET:.0f} point are {', '.join(parts)}."


def rig_said(grid: EvaluationGrid, results: Mapping[Any, Any]) -> str:
    """Whether the simulated figures of the rig meet the measured one, and for which costs of a chunk."""
    _, slope = rig.MEASURED[rig.AS_MEASURED]
    found = {
        o: results[Rig(rig.AS_MEASURED, o)].time_s / results[Rig(FAULT_FREE, o)].time_s for o in sorted(grid.per_chunks)
    }
    low, high = rig.MEASURED_RANGE
    inside = [cost_of(o) for o, value in found.items() if low <= value <= high]
    least, most = min(found.values()), max(found.values())
    where = f"At {', '.join(inside)} for a chunk" if inside else "At none of these costs of a chunk"
    side = "between these" if least <= slope <= most else "above all of these" if slope > most else "below all of these"
    return (
        f"{where} the simulated time is within the measured range, {low:.3f} to {high:.3f} times the fault-free ring. "
        f"It goes from {least:.3f} to {most:.3f} times; the middle of the measured range, {slope:.3f}, is {side}."
    )


def optcc_claimed(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """OptCC's 2 to 6 % beside what it takes here, up to half of a server's NICs dead."""
    up_to_half = [(p, d) for p, d in stragglers(grid) if 2 * d <= NICS]
    parts = []
    for per_chunk in grid.per_chunks:
        cells = [EvaluationCell(p, (d,), grid.size, PUBLISHED, per_chunk=per_chunk) for p, d in up_to_half]
        within = sum(overhead(c, outcomes) <= PAPER_OPTCC[1] for c in cells)
        parts.append(f"{within} of {len(cells)} at {cost_of(per_chunk)}")
    least = [unavoidable(EvaluationCell(p, (d,), grid.size, OPTCC), outcomes) for p, d in up_to_half]
    low, high = (f"{100 * share:.0f}" for share in PAPER_OPTCC)
    return (
        f"*OptCC: {low} to {high} % over the fault-free ring for one straggler (SimAI; arXiv:2606.01680).* Here, with "
        f"l up to 2 and {_servers(grid)} servers, its overhead is at most {high} % in {', '.join(parts)}. At most "
        f"{high} % are unavoidable in {sum(share <= PAPER_OPTCC[1] for share in least)} of these {len(least)} cells. "
        "What we read of the paper does not say for how many servers and which l its figure holds, nor how SimAI "
        "counts chunks."
    )


def _servers(grid: EvaluationGrid) -> str:
    return " to ".join(dict.fromkeys(str(f(p for p, _ in stragglers(grid))) for f in (min, max)))


def closed_form(cell: EvaluationCell, chunks: int) -> float:
    """R2CC-AllReduce's T/T0 - 1 with K = `chunks`, without costs (proof id ``rivals``)."""
    values = {P: cell.servers, X: Fraction(cell.dead[0], NICS), K: chunks}
    return float(r2cc().expression.subs(values)) - 1


R2CC_CASE = (8, NICS // 2)
"""Servers and dead NICs of the case that R2CC's paper states a figure for."""


def r2cc_claimed() -> str:
    """R2CC's 57 % beside its closed form."""
    servers, dead = R2CC_CASE
    limit = closed_form(EvaluationCell(servers, (dead,), 0, "r2cc"), INFINITE)
    return (
        f"*R2CC-AllReduce: up to {100 * PAPER_R2CC:.0f} % (arXiv:2512.25059).* Its closed form is "
        f"X (1+1/K) P/(2(P-1)(1-X)) over the fault-free ring: {percent(limit)} with P = {servers} servers, "
        f"X = {Fraction(dead, NICS)} of one's rate lost, and infinitely many chunks K. The rest is filling the rings, "
        "latency, and the cost of chunks, which the form leaves out. Simulated, with the K that suits it best:"
    )


def r2cc_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """R2CC-AllReduce in the case of its claim, by the cost of a chunk."""
    rows = []
    for cell in grid.at_costs(*R2CC_CASE, grid.size, "r2cc"):
        if cell in outcomes:
            found = outcomes[cell]
            chunks = R2CC_CHUNKS * found.segments // (NICS if found.way == CHANNELS else 1)
            form = percent(closed_form(cell, chunks))
            rows.append((cost_of(cell.per_chunk), found.way, chunks, form, percent(overhead(cell, outcomes))))
    return table(("cost of a chunk", "taken", "K", "closed form", "simulated"), rows)


def spread(shares: Iterable[float]) -> str:
    """Percentage points, ``+1.3 to +5.8``; where both ends read the same, that once."""
    known = [100 * share for share in shares]
    if not known:
        return "-"
    return " to ".join(dict.fromkeys((f"{min(known):+.1f}", f"{max(known):+.1f}")))
