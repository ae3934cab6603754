"""What the papers claim beside what this simulator finds, and why: by segments, without costs, with latency alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from string import Template

from optcc.evaluation.cells import ALPHA, NIC_RATE, NICS, OPTCC, PER_CHUNK, Cell
from optcc.evaluation.grid import COSTS, PUBLISHED_SEGMENTS, Grid
from optcc.evaluation.markdown import percent, table
from optcc.evaluation.tables import slowdown
from optcc.evaluation.target import Outcomes, overhead, unavoidable
from optcc.theory.derive_rivals import r2cc
from optcc.theory.symbols import K, P, X
from optcc.units import format_seconds, format_size

PUBLISHED = "optcc-published"
COST_NAMES = ("no costs", "latency alone", "both")
INFINITE = 10**9


def with_costs(cell: Cell, outcomes: Outcomes) -> list[float]:
    """Overheads without costs, with latency alone, with both; each over the fault-free ring at the same costs."""
    cells = [replace(cell, alpha=alpha, per_chunk=per_chunk) for alpha, per_chunk in COSTS]
    return [overhead(c, outcomes) for c in cells]


def closed_form(cell: Cell, chunks: int) -> float:
    """R2CC-AllReduce's T/T0 - 1 with K = `chunks`, without costs (proof id ``rivals``)."""
    values = {P: cell.servers, X: Fraction(cell.dead[0], NICS), K: chunks}
    return float(r2cc().expression.subs(values)) - 1


def published_cells(grid: Grid) -> list[Cell]:
    """OptCC as published with one k for all."""
    stragglers = [(p, d) for p in grid.claimed_servers for d in grid.dead if d <= NICS // 2]
    return [Cell(p, (d,), grid.size, PUBLISHED, PUBLISHED_SEGMENTS) for p, d in stragglers]


def published_table(grid: Grid, outcomes: Outcomes) -> list[str]:
    """OptCC as published with one k for all, beside the k that suits it best."""
    rows = []
    for cell in published_cells(grid):
        best = cell.of(PUBLISHED)
        shares = (unavoidable(cell, outcomes), *with_costs(cell, outcomes), overhead(best, outcomes))
        rows.append((cell.servers, slowdown(cell.dead[0]), *map(percent, shares), outcomes[best].segments))
    fixed = [f"k = {PUBLISHED_SEGMENTS}, {name}" for name in COST_NAMES]
    return table(("servers", "l", "unavoidable", *fixed, "best k, both", "best k"), rows)


def r2cc_table(grid: Grid, outcomes: Outcomes) -> list[str]:
    """R2CC-AllReduce by its number of chunks, in the case of its claim."""
    rows = []
    for chunks in grid.claimed_chunks:
        cell = replace(grid.claimed()[0], segments=chunks)
        rows.append((chunks, *map(percent, (closed_form(cell, chunks), *with_costs(cell, outcomes)))))
    return table(("K", "closed form", *COST_NAMES), rows)


def claims(grid: Grid, outcomes: Outcomes) -> list[str]:
    """The published claims beside what this simulator finds."""
    up_to_2 = [Cell(p, (d,), grid.size, OPTCC) for p in grid.servers for d in grid.dead if d <= NICS // 2]
    below_2 = [with_costs(cell, outcomes) for cell in published_cells(grid) if 2 * cell.dead[0] < NICS]
    free, latency, both = map(_range, zip(*below_2, strict=True))
    most, best = max(grid.claimed_servers), grid.claimed()[0]
    chunk = grid.size // (PUBLISHED_SEGMENTS * most * NICS)
    chunks = outcomes[best].segments
    words = {
        "published": _range(overhead(cell.of(PUBLISHED), outcomes) for cell in up_to_2),
        "ours": _range(overhead(cell, outcomes) for cell in up_to_2),
        "k": PUBLISHED_SEGMENTS,
        "published_table": "\n".join(published_table(grid, outcomes)),
        "free": free,
        "latency": latency,
        "both": both,
        "alpha": format_seconds(ALPHA),
        "per_chunk": format_seconds(PER_CHUNK),
        "servers": most,
        "chunk": format_size(chunk),
        "chunk_s": format_seconds(chunk / NIC_RATE),
        "limit": percent(closed_form(best, INFINITE)),
        "r2cc_servers": best.servers,
        "lost": Fraction(best.dead[0], NICS),
        "r2cc": percent(overhead(best, outcomes)),
        "best_chunks": chunks,
        "best_form": percent(closed_form(best, chunks)),
        "r2cc_table": "\n".join(r2cc_table(grid, outcomes)),
    }
    text = Template(files("optcc.evaluation").joinpath("claims.md").read_text(encoding="utf-8"))
    return text.substitute(words).splitlines()


def _range(shares: Iterable[float]) -> str:
    """``1.3 % to 5.8 %``; where both ends read the same, that once."""
    known = list(shares)
    return " to ".join(dict.fromkeys((percent(min(known)), percent(max(known)))))
