"""Every plan of ours on the page held against the target, whatever its section; those that miss, for the top, with a
mark where no schedule of whole chunks could meet it. The mark follows the bound with costs (proof ids chunk-costs and
starving-pair)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from optcc.evaluation.cells import ALPHA, FAULT_FREE, OPTCC, PER_CHUNK, CellOutcome, EvaluationCell
from optcc.evaluation.grid import TARGET, TARGET_BYTES, EvaluationGrid
from optcc.evaluation.markdown import table
from optcc.evaluation.studies import Rails, RailsResult
from optcc.values.units import format_size

Outcomes = Mapping[EvaluationCell, CellOutcome]
MARK = "†"
"""Of cells where no schedule of whole chunks can meet the target."""


def overhead(cell: EvaluationCell, outcomes: Outcomes) -> float:
    """Simulated time over that of the fault-free ring at the same costs, less 1; nan where the scheme has no time."""
    return outcomes[cell].time_s / outcomes[cell.of(FAULT_FREE)].time_s - 1


def unavoidable(cell: EvaluationCell, outcomes: Outcomes) -> float:
    """The bound over the fault-free bound, less 1."""
    return outcomes[cell].bound_s / outcomes[cell].fault_free_s - 1


def above(cell: EvaluationCell, outcomes: Outcomes) -> float:
    """The overhead less the unavoidable one."""
    return overhead(cell, outcomes) - unavoidable(cell, outcomes)


def where(cell: EvaluationCell) -> str:
    """Dead or slow NICs of the first servers in words; each server has `NICS`."""
    dead, which = cell.dead, ", of server i from NIC i on" if cell.staggered else ""
    which += f" at {cell.left}" if cell.left else ""
    if len(dead) == 1:
        return f"{dead[0]} of one server{which}"
    if len(set(dead)) > 1:
        return f"{', '.join(map(str, dead))} of {len(dead)} servers{which}"
    return f"{dead[0]} each of {len(dead)} servers{which}"


def rails_where(study: Rails) -> str:
    """The failure and the fabric of a study of rails in words."""
    return f"{study.failure}, {study.fabric}" if study.pod else f"{study.failure} of {study.fabric}"


@dataclass(frozen=True)
class TargetCheck:
    """One plan that the target holds for: where it stands on the page, and its overhead above the unavoidable one.

    beyond : provably no schedule of whole chunks meets the target there
    """

    section: str
    servers: int
    failure: str
    nbytes: int
    above: float
    beyond: bool = False

    @property
    def missed(self) -> bool:
        """More than `TARGET` above the unavoidable overhead."""
        return not self.above <= TARGET

    @property
    def same(self) -> tuple[int, str, int]:
        """What a plan of another section has in common with it when it is the same one."""
        return self.servers, self.failure, self.nbytes


def held(grid: EvaluationGrid, results: Mapping[Any, Any]) -> list[TargetCheck]:
    """Every plan of ours on the page at the page's costs and of `TARGET_BYTES` or more that has an unavoidable
    overhead, in the page's order; one that stands in two sections is there twice. `results`: outcomes of cells and
    of rails.
    """
    sections = {"1, 2": [*grid.overheads(), *grid.targets()], "3": grid.several(), "4": grid.messages()}
    found = []
    for section, cells in sections.items():
        for c in dict.fromkeys(cells):
            if c.scheme == OPTCC and c.nbytes >= TARGET_BYTES and (c.alpha, c.per_chunk) == (ALPHA, PER_CHUNK):
                limit_s = results[c.of(FAULT_FREE)].time_s * (1 + unavoidable(c, results) + TARGET)
                plan = TargetCheck(section, c.servers, where(c), c.nbytes, above(c, results))
                found.append(_marked(plan, limit_s, results[c].with_costs_s))
    for study in grid.rails:
        if study.nbytes >= TARGET_BYTES:
            reached: RailsResult = results[study]
            limit_s = reached.fault_free_s * (1 + reached.unavoidable + TARGET)
            more = reached.overhead - reached.unavoidable
            plan = TargetCheck("5", study.servers, rails_where(study), study.nbytes, more)
            found.append(_marked(plan, limit_s, reached.with_costs_s))
    return found


def _marked(plan: TargetCheck, limit_s: float, with_costs_s: float) -> TargetCheck:
    return replace(plan, beyond=plan.missed and limit_s < with_costs_s)


def counts(found: list[TargetCheck]) -> tuple[int, int]:
    """(plans that miss, plans), each once in whatever sections it stands."""
    return len({h.same for h in found if h.missed}), len({h.same for h in found})


def target_lines(grid: EvaluationGrid, results: Mapping[Any, Any]) -> list[str]:
    """The top of the page: how many meet the target in each section, and all that miss it."""
    found = held(grid, results)
    missed, total = counts(found)
    lines = [
        f"Target: simulated overhead over the fault-free ring at most {100 * TARGET:.1f} percentage points above the "
        f"unavoidable, at {format_size(TARGET_BYTES)} and more.",
        f"**{total - missed} of {total} cells meet it**; "
        "one that stands in two sections is counted once in these numbers.",
        "",
    ]
    rows = []
    for section in dict.fromkeys(h.section for h in found):
        mine = [h for h in found if h.section == section]
        met = sum(not h.missed for h in mine)
        rows.append((section, len(mine), met, len(mine) - met))
    lines += table(("section", "cells", "meet it", "miss it"), rows)
    if missed:
        lines += ["These miss it, by so many percentage points above the unavoidable (simulated):", "", *_misses(found)]
    beyond = len({h.same for h in found if h.beyond})
    if beyond:
        lines += [
            f"{MARK} marks {beyond} of these {missed} cells: there no schedule of whole chunks can meet the target, "
            "as the [bound with costs](bounds.md#with-latency-and-chunks) is above it.",
            "",
        ]
    return lines


def _misses(found: list[TargetCheck]) -> list[str]:
    """A row for each failure with its misses by size; in the first of its sections."""
    sizes = sorted({h.nbytes for h in found})
    by_failure: dict[tuple[int, str], dict[int, TargetCheck]] = {}
    for h in found:
        by_failure.setdefault((h.servers, h.failure), {}).setdefault(h.nbytes, h)
    rows = []
    for (servers, failure), mine in by_failure.items():
        if any(h.missed for h in mine.values()):
            shown = [_shown(mine.get(n)) for n in sizes]
            rows.append((next(iter(mine.values())).section, servers, failure, *shown))
    return table(("section", "servers", "dead or slow NICs", *map(format_size, sizes)), rows)


def _shown(h: TargetCheck | None) -> str:
    if h is None:
        return "-"
    return f"**{100 * h.above:+.1f}**{f' {MARK}' if h.beyond else ''}" if h.missed else "met"
