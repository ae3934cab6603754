"""Tables of sections 3 to 8: outcomes in, lines of Markdown out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from typing import Any

from optcc.evaluation.cells import FAULT_FREE, NICS, OPTCC, CellOutcome, EvaluationCell
from optcc.evaluation.grid import PUBLISHED, RIVALS, SCHEMES, TARGET, EvaluationGrid, Fleet
from optcc.evaluation.markdown import both, percent, ratio, table
from optcc.evaluation.studies import STAR_SEGMENTS, CostResult, RailsResult
from optcc.evaluation.target import Outcomes, above, overhead, unavoidable, where
from optcc.evaluation.training import TrainingJob
from optcc.values.units import format_seconds, format_size


def slowdown(dead: int) -> str:
    """l = rate before over rate after, as people write it."""
    live = NICS - dead
    return f"{NICS}/{live}" if NICS % live else str(NICS // live)


def how(outcome: CellOutcome) -> str:
    """Of a rival, channels or stripes and k; of ours, family and segments; "-" where there is no time."""
    return "-" if outcome.refused else f"{outcome.way or outcome.family}, {outcome.segments}"


RECONSTRUCTED_MARK = "‡"


def reconstructed(servers: int, lost: Fraction | int) -> bool:
    """Whether how OptCC's paper treats a straggler that lost the rate of so many NICs is in no text that we have: for
    l < 2 - 1/(P-1)."""
    return NICS / (NICS - Fraction(lost)) < 2 - Fraction(1, servers - 1)


def points(above: float) -> str:
    """A share above the unavoidable overhead in percentage points."""
    return f"{100 * above:+.1f}" + ("" if above <= TARGET else " (miss)")


def several_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """Section 3: dead or slow NICs, on one server and on several."""
    rows = []
    for f in grid.failures:
        cells = f.cells(grid.sizes)
        one = replace(cells[0], nbytes=grid.size)
        schemes = [one.of(scheme) for scheme in SCHEMES]
        shown = [both(percent(overhead(c, outcomes)), outcomes[c].over_bound) for c in schemes]
        if len(f.dead) == 1 and reconstructed(f.servers, f.dead[0] * (1 - f.left)):
            place = SCHEMES.index(PUBLISHED)
            shown[place] += f" {RECONSTRUCTED_MARK}"
        more = [points(above(c, outcomes)) for c in cells]
        ratios = [ratio(outcomes[c].over_bound) for c in cells]
        least = percent(unavoidable(one, outcomes))
        rows.append((f.servers, sum(f.dead), where(one), least, *shown, *more, *ratios, how(outcomes[one])))
    at = format_size(grid.size)
    sizes = [f"optcc less unavoidable, {format_size(n)}" for n in grid.sizes]
    sizes += [f"optcc over the bound with costs, {format_size(n)}" for n in grid.sizes]
    head = ("servers", "NICs", "where", "unavoidable", *(f"{scheme}, {at}" for scheme in SCHEMES))
    return table((*head, *sizes, f"optcc's family, segments at {at}"), rows)


def message_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """Section 4: time of every scheme by message size."""
    rows = []
    for n in grid.message_sizes:
        cells = [EvaluationCell(grid.message_servers, (4,), n, s) for s in (OPTCC, *RIVALS)]
        best, ring = outcomes[cells[0]], outcomes[cells[0].of(FAULT_FREE)]
        shown = [both(format_seconds(outcomes[c].time_s), outcomes[c].over_bound) for c in cells]
        bounds = format_seconds(best.bound_s), format_seconds(best.with_costs_s)
        rows.append((format_size(n), *bounds, format_seconds(ring.time_s), *shown, how(best)))
    return table(("size", "bound", "with costs", FAULT_FREE, OPTCC, *RIVALS, "optcc's family, segments"), rows)


def rails_table(grid: EvaluationGrid, results: Mapping[Any, Any]) -> list[str]:
    """Section 5: fabrics with rails or pods."""
    rows = []
    for study in grid.rails:
        r: RailsResult = results[study]
        ratios = (f"{r.fluid_s / r.bound_s:.4f}", f"{r.time_s / r.bound_s:.4f}", ratio(r.time_s / r.with_costs_s))
        shares = (percent(r.unavoidable), percent(r.overhead), points(r.overhead - r.unavoidable))
        case = (study.servers, study.fabric, study.failure, format_size(study.nbytes), format_seconds(r.bound_s))
        rows.append((*case, *ratios, *shares, r.family, r.segments))
    head = ("servers", "fabric", "dead or slow NICs", "size", "bound", "fluid / bound", "simulated / bound")
    more = ("over the bound with costs", "unavoidable", "overhead", "difference, pp", "family", "segments")
    return table((*head, *more), rows)


def cost_table(grid: EvaluationGrid, results: Mapping[Any, Any]) -> list[str]:
    """Section 6: what planning costs, and how close the plan is."""
    rows = []
    for study in grid.costs:
        cost: CostResult = results[study]
        rows.append(
            (
                8 * study.servers,
                "GPUs" if study.gpus else "servers",
                f"{cost.family}, {cost.segments}",
                f"{cost.transfers:,}",
                *(f"{seconds:.2f}" for seconds in (cost.plan_s, cost.lower_s, cost.simulate_s)),
                format_size(round(cost.peak_bytes / 2**20) * 2**20),
                f"{cost.ratio:.4f}",
                ratio(cost.ratio_with_costs),
            )
        )
    head = ("GPUs", "ranks", "family, segments", "transfers", "plan s", "lower s", "simulate s", "peak memory")
    return table((*head, "simulated / bound", "over the bound with costs"), rows)


CITED = {
    4: ("3.0", "2.0", "3.0"), 8: ("3.5", "2.0", "3.5"), 16: ("3.75", "2.0", "3.75"),
    32: ("3.875", "2.0", "-"), 64: ("3.938", "2.0", "-"),
}  # fmt: skip
"""ForestColl (Zhao et al., 2024) on the star with one node at half rate, by number of nodes: the time it states
(reduce-scatter, then allgather) and that of its trees with both overlapped, the slow node first or last, and in the
middle; units of n over a healthy node's rate."""
CITED_OVERLAPPED: dict[tuple[str, ...], dict[int | None, str]] = {
    ("3/4",): {None: "1.09 to 1.12"}, ("7/8",): {None: "1.05 to 1.06"}, ("1/2",) * 2: {8: "1.75", 16: "1.88"},
    ("1/2",) * 4: {8: "1.50", 16: "1.75"}, ("3/4",) * 2: {None: "1.25"}, ("7/8",) * 2: {None: "1.125"},
}  # fmt: skip
"""Its overlapped form over the optimum on other failures, by number of nodes; None: one figure for 8 and 16."""


def star_table(grid: EvaluationGrid, results: Mapping[Any, Any]) -> list[str]:
    """Section 7: ForestColl's table with our row."""
    rows = []
    for study in grid.stars:
        ratio, optimum = results[study].ratio, results[study].optimum
        left = tuple(map(str, study.left))
        if left == ("1/2",):
            alone, overlapped, middle = CITED[study.servers]
        else:
            cited = CITED_OVERLAPPED[left]
            both = "" if study.servers in cited else " (8 and 16 nodes)"
            alone, middle, overlapped = "-", "-", f"{cited.get(study.servers) or cited[None]} x optimum{both}"
        shown = (f"{optimum:.4f}", f"{ratio * optimum:.4f}", f"{ratio:.4f}")
        rows.append((study.servers, ", ".join(left), alone, overlapped, middle, *shown))
    ours = f"optcc, k = {STAR_SEGMENTS} (simulated)"
    theirs = ("ForestColl's own (cited)", "overlapped (cited)", "in the middle (cited)")
    return table(("nodes", "left", *theirs, "optimum", ours, "over the optimum"), rows)


AT_BOUND = "go on at the bound"
"""No schedule and no failover loses less than what goes on so."""


def training_table(grid: EvaluationGrid, outcomes: Outcomes, job: TrainingJob) -> list[str]:
    """Section 8: what of a week is lost, and by how much steps are longer."""
    rows = []
    for fleet in grid.fleets:
        mine = replace(job, gpus=fleet.gpus)
        ways: list[tuple[str, float, float | None]] = [("restart from a checkpoint", mine.lost_by_restarts(), None)]
        for way, chain in _chains(grid, fleet, outcomes).items():
            lose = mine.lost_by_slowdown if way == AT_BOUND else mine.lost_by_going_on
            ways.append((way, lose(chain), chain[0]))
        for way, share, one in ways:
            lost = (f"{100 * share:.4f} %", f"{168 * share:.3f}", format_ms(mine.per_step_s(share)))
            hit = "-" if one is None else format_ms(mine.exposed * one * mine.step_s)
            known = (fleet.gpus, fleet.servers, f"{mine.failures:.3f}", f"{mine.down:.4f}")
            rows.append((*known, way, *lost, hit))
    head = ("GPUs", "servers in an AllReduce", "NIC failures a week", "down on average", "after a failure")
    effects = ("share of the week lost", "hours of 168", "a step longer by, on average", "while one NIC is down")
    return table((*head, *effects), rows)


def _chains(grid: EvaluationGrid, fleet: Fleet, outcomes: Outcomes) -> dict[str, list[float]]:
    """Overheads with 1, 2, ... NICs down, by what goes on.

    Of several AllReduces the slowest sets the pace: the one that has of the dead NICs as many as cost most.
    """
    found = {}
    for scheme in (OPTCC, "balance"):
        found[f"go on with {scheme}"] = [overhead(cell, outcomes) for cell in grid.chain(fleet.servers, scheme)]
    found[AT_BOUND] = [unavoidable(cell, outcomes) for cell in grid.chain(fleet.servers, OPTCC)]
    if fleet.gpus > fleet.servers * NICS:
        return {way: list(accumulate(chain, max)) for way, chain in found.items()}
    return found


def format_ms(seconds: float) -> str:
    """Milliseconds, below zero too."""
    return f"{1000 * seconds:.3f} ms"
