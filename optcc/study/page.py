"""The page of `optcc reproduce`: results in, tables, sentences and figures out, and what they were computed with.

A sentence is made of the figures: where a figure does not bear it out, another one is written. What papers claim stands
beside what this simulator finds. Every plan of ours is held against the target; where no schedule of whole chunks could
meet that, by the bound with costs (proof ids chunk-costs and starving-pair), it is marked.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.resources import files
from itertools import accumulate, pairwise, product
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import optcc
from optcc import __version__
from optcc.files.writing import staged, write_file
from optcc.machine.findings import package_version
from optcc.machine.workers import processes
from optcc.study.cells import SweepCell, SweepResult
from optcc.study.evaluation import (
    ALPHA,
    FAULT_FREE,
    NIC_RATE,
    NICS,
    OPTCC,
    PER_CHUNK,
    PUBLISHED,
    RIVALS,
    SCHEMES,
    TARGET,
    TARGET_BYTES,
    Case,
    EvaluationGrid,
    Fleet,
    Planning,
    PlanningResult,
)
from optcc.study.journal import Journal
from optcc.study.rivals import CHANNELS, R2CC_CHUNKS
from optcc.study.runner import Progress, run
from optcc.study.training import FAILOVER_S, TrainingJob
from optcc.theory.derivations import K, P, X, r2cc
from optcc.values.cluster import Cluster
from optcc.values.units import format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PACKAGES = ("numpy", "scipy", "cvxpy", "highspy")
"""What the figures may depend on."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def sentence_a_line(text: str) -> str:
    """The text with each sentence on a line; indented as in a list item, which changes no paragraph."""
    return re.sub(r"(?<=[.!?])(\*?) (?=[A-Z*])", r"\1\n   ", text)


def percent(share: float) -> str:
    """0.123 as "12.3 %"; "-" for nan."""
    return "-" if share != share else f"{100 * share:.1f} %"


def ratio(value: float) -> str:
    """1.0123 as "1.012"; "-" for nan."""
    return "-" if value != value else f"{value:.3f}"


def cost_of(per_chunk: Fraction) -> str:
    """Seconds for a chunk in microseconds: "0.5 us", "0 us"."""
    return f"{float(per_chunk) * 1e6:g} us"


def both(shown: str, over: float) -> str:
    """A figure, and in brackets the time over the bound with costs; "-" for nan."""
    return "-" if over != over else f"{shown} ({over:.2f})"


Outcomes = Mapping[Any, Any]
"""`SweepResult` by case and by the key of a job, `PlanningResult` by what was planned."""
MARK = "†"
"""Of cells where no schedule of whole chunks can meet the target."""


def overhead(cell: Case, outcomes: Outcomes) -> float:
    """Simulated time over that of the fault-free ring at the same costs, less 1; nan where the scheme has no time."""
    return float(outcomes[cell].time_s / outcomes[cell.of(FAULT_FREE)].time_s - 1)


def unavoidable(cell: Case, outcomes: Outcomes) -> float:
    """The bound over the fault-free bound, less 1."""
    return float(outcomes[cell].bound_s / outcomes[cell].fault_free_s - 1)


def above(cell: Case, outcomes: Outcomes) -> float:
    """The overhead less the unavoidable one."""
    return overhead(cell, outcomes) - unavoidable(cell, outcomes)


def where(cell: Case) -> str:
    """Dead or slow NICs of the first servers in words; each server has `NICS`."""
    dead, which = cell.dead, ", of server i from NIC i on" if cell.staggered else ""
    which += f" at {cell.left}" if cell.left else ""
    if len(dead) == 1:
        return f"{dead[0]} of one server{which}"
    if len(set(dead)) > 1:
        return f"{', '.join(map(str, dead))} of {len(dead)} servers{which}"
    return f"{dead[0]} each of {len(dead)} servers{which}"


def fabric_of(cluster: Cluster) -> str:
    """Rails or pods, in words."""
    pods = {server.pod for server in cluster.servers}
    if not cluster.fabric.rails:
        return f"pods of {len(cluster.servers) // len(pods)}, {cluster.fabric.pod_oversubscription} to 1"
    spine = "no spine" if cluster.fabric.spine is None else f"spine {cluster.fabric.spine} to 1"
    return f"{len(cluster.servers[0].nics)} rails, {spine}"


def failure_of(cell: SweepCell, cluster: Cluster) -> str:
    """Which NICs are dead or slow on rails or in pods, in words."""
    pairs = [failure.split("=") for failure in cell.job.failures]
    names = ", ".join(nic.replace("/nic", " rail " if cluster.fabric.rails else " nic") for nic, _ in pairs)
    return names if pairs[0][1] == "0" else f"{names} at {pairs[0][1]}"


def of_fabric(cell: SweepCell, results: Outcomes) -> tuple[Any, float, float]:
    """Our plan's result; its simulated time over that of the ring on the same fabric without failures, less 1; and
    that ring's time."""
    assert cell.job.reference is not None
    own, ring = results[cell.job.key], results[cell.job.reference.key]
    return own, own.time_s / ring.time_s - 1, ring.time_s


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


def held(grid: EvaluationGrid, results: Outcomes) -> list[TargetCheck]:
    """Every plan of ours on the page at the page's costs and of `TARGET_BYTES` or more that has an unavoidable
    overhead, in the page's order; one that stands in two sections is there twice."""
    sections = {"1, 2": grid.stragglers, "3": grid.several, "4": grid.messages}
    found = []
    for section, cells in sections.items():
        for c in dict.fromkeys(cells):
            if c.scheme == OPTCC and c.nbytes >= TARGET_BYTES and c.per_chunk == PER_CHUNK:
                limit_s = results[c.of(FAULT_FREE)].time_s * (1 + unavoidable(c, results) + TARGET)
                plan = TargetCheck(section, c.servers, where(c), c.nbytes, above(c, results))
                found.append(_marked(plan, limit_s, results[c].with_costs_s))
    for cell in grid.parts["fabrics"]:
        if cell.job.nbytes >= TARGET_BYTES:
            own, reached, ring_s = of_fabric(cell, results)
            cluster = grid.clusters[cell.job.cluster_id]
            failure = f"{failure_of(cell, cluster)}{' of' if cluster.fabric.rails else ','} {fabric_of(cluster)}"
            more = reached - own.unavoidable_overhead
            plan = TargetCheck("5", cell.servers, failure, cell.job.nbytes, more)
            limit_s = ring_s * (1 + own.unavoidable_overhead + TARGET)
            found.append(_marked(plan, limit_s, own.with_costs_s))
    return found


def _marked(plan: TargetCheck, limit_s: float, with_costs_s: float) -> TargetCheck:
    return replace(plan, beyond=plan.missed and limit_s < with_costs_s)


def counts(found: list[TargetCheck]) -> tuple[int, int]:
    """(plans that miss, plans), each once in whatever sections it stands."""
    return len({h.same for h in found if h.missed}), len({h.same for h in found})


def target_lines(grid: EvaluationGrid, results: Outcomes) -> list[str]:
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


def slowdown(dead: int) -> str:
    """l = rate before over rate after, as people write it."""
    live = NICS - dead
    return f"{NICS}/{live}" if NICS % live else str(NICS // live)


def how(outcome: SweepResult) -> str:
    """Of a rival, channels or stripes and k; of ours, family and segments; "-" where there is no time."""
    return "-" if outcome.error else f"{outcome.way or outcome.family}, {outcome.segments}"


RECONSTRUCTED_MARK = "‡"


def reconstructed(servers: int, lost: Fraction | int) -> bool:
    """Whether how OptCC's paper treats a straggler that lost the rate of so many NICs is in no text that we have: for
    l < 2 - 1/(P-1)."""
    return NICS / (NICS - Fraction(lost)) < 2 - Fraction(1, servers - 1)


def points(more: float) -> str:
    """A share above the unavoidable overhead in percentage points."""
    return f"{100 * more:+.1f}" + ("" if more <= TARGET else " (miss)")


def over_bound(costs: Sequence[str]) -> list[str]:
    """Heads of columns."""
    return [f"over the bound with costs, {o}" for o in costs]


NAN = float("nan")
RIG_SEGMENTS = 256
AS_MEASURED = f"optcc-published, k = {RIG_SEGMENTS} as there"
MEASURED = {"balance": (0.2939, 2.009), AS_MEASURED: (0.1877, 1.279)}
"""A rig on which somebody measured OptCC; simulated at its settings, the model meets hardware that is not ours. Scheme
-> seconds for 256 MiB, and the slope of time over size from 8 to 256 MiB over the fault-free ring's.

Source: the design notes of an implementation in NCCL (github.com/1WesleyYou/nccl, docs/optcc/DESIGN.md, section 3,
September 2026): five containers with a 25 Gb/s RoCE function each, of which 23.5 Gb/s are payload; one at half of that;
four channels with chunks of 256 KiB, so that 256 MiB are 256 segments of four sections. How it is related to the
paper's authors is not said.
"""
MEASURED_RANGE = (1.268, 1.291)
"""Of the implementation's slope, by its authors."""
RECONSTRUCTED = "our reconstruction"


def scheme_name(scheme: str, servers: int, dead: int) -> str:
    """The scheme as rows call it."""
    return f"{scheme} ({RECONSTRUCTED})" if scheme == PUBLISHED and reconstructed(servers, dead) else scheme


def published_form(cell: Case, outcomes: Outcomes, hops: int = 0) -> float:
    """Largest overhead of OptCC as published with its k in a cell, by its closed form. It is (k+1)/k of the bound and
    the latency of `hops`, over the fault-free ring, less 1. In channels k counts the segments on each NIC."""
    found = outcomes[cell]
    k = found.segments / (NICS if found.way == CHANNELS else 1)
    time_s = (1 + 1 / k) * found.bound_s + hops * float(ALPHA)
    return float(time_s / found.fault_free_s - 1)


def hops_of(servers: int) -> int:
    """From NIC to NIC along a ring of so many, both ways round: what the closed form has no latency for."""
    return 2 * (servers - 1)


def unavoidable_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """Section 1: what no schedule avoids."""
    rows = []
    for p in grid.servers:
        cells = [Case(p, (d,), grid.size, OPTCC) for d in grid.dead]
        rows.append((p, *(percent(unavoidable(c, outcomes)) for c in cells)))
    return table(("servers", *(f"l = {slowdown(d)}" for d in grid.dead)), rows)


def free_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """Section 1: one straggler where chunks cost nothing, at the least of the grid's costs."""
    rows = []
    for p, d in stragglers(grid):
        cells = {s: Case(p, (d,), grid.size, s, per_chunk=min(grid.per_chunks)) for s in SCHEMES}
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
        least = percent(unavoidable(Case(p, (d,), grid.size, OPTCC), outcomes))
        rows.append((p, slowdown(d), least, scheme_name(scheme, p, d), *map(percent, over), *ratios, *taken))
    costs = [cost_of(o) for o in grid.per_chunks]
    return table(
        ("servers", "l", "unavoidable", "scheme", *(f"overhead, {o}" for o in costs), *over_bound(costs),
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
    return table(("servers", "l", "size", *costs, *over_bound(costs)), rows)


def rig_results(grid: EvaluationGrid, results: Outcomes) -> dict[tuple[str, Fraction], SweepResult]:
    """Of the rig, by scheme and seconds for a chunk."""
    found = {}
    for cell in grid.parts["rig"]:
        job, ring = cell.job, cell.job.reference
        assert ring is not None
        found[AS_MEASURED if job.segments else job.algorithm or "", job.per_chunk_s] = results[job.key]
        if not job.segments:
            found[FAULT_FREE, job.per_chunk_s] = results[ring.key]
    return found


def rig_table(grid: EvaluationGrid, results: Outcomes) -> list[str]:
    """Section 1: the rig, measured and simulated."""
    rows, by_scheme = [], rig_results(grid, results)
    for scheme in (FAULT_FREE, "balance", AS_MEASURED, PUBLISHED, OPTCC):
        measured_s, slope = MEASURED.get(scheme, (NAN, NAN))
        shown, ratios = [], []
        for per_chunk in grid.per_chunks:
            found, ring = by_scheme[scheme, per_chunk], by_scheme[FAULT_FREE, per_chunk]
            shown.append(f"{found.time_s / ring.time_s:.3f} ({1000 * found.time_s:.1f} ms)")
            ratios.append(ratio(found.over_bound))
        known = "-" if measured_s != measured_s else f"{slope:.3f} ({1000 * measured_s:.1f} ms)"
        rows.append((scheme, known, *shown, *ratios))
    costs = [cost_of(o) for o in grid.per_chunks]
    simulated = [f"simulated, {o}" for o in costs]
    return table(("scheme", "measured", *simulated, *over_bound(costs)), rows)


def several_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """Section 3: dead or slow NICs, on one server and on several."""
    rows = []
    for f in grid.failures:
        cells = [replace(f, nbytes=n) for n in grid.sizes]
        schemes = [f.of(scheme) for scheme in SCHEMES]
        shown = [both(percent(overhead(c, outcomes)), outcomes[c].over_bound) for c in schemes]
        if len(f.dead) == 1 and reconstructed(f.servers, f.dead[0] * (1 - f.left)):
            place = SCHEMES.index(PUBLISHED)
            shown[place] += f" {RECONSTRUCTED_MARK}"
        more = [points(above(c, outcomes)) for c in cells]
        ratios = [ratio(outcomes[c].over_bound) for c in cells]
        least = percent(unavoidable(f, outcomes))
        rows.append((f.servers, sum(f.dead), where(f), least, *shown, *more, *ratios, how(outcomes[f])))
    at = format_size(grid.size)
    sizes = [f"optcc less unavoidable, {format_size(n)}" for n in grid.sizes]
    sizes += [f"optcc over the bound with costs, {format_size(n)}" for n in grid.sizes]
    head = ("servers", "NICs", "where", "unavoidable", *(f"{scheme}, {at}" for scheme in SCHEMES))
    return table((*head, *sizes, f"optcc's family, segments at {at}"), rows)


def message_table(grid: EvaluationGrid, outcomes: Outcomes) -> list[str]:
    """Section 4: time of every scheme by message size."""
    rows = []
    for n in dict.fromkeys(c.nbytes for c in grid.messages):
        one = replace(grid.messages[0], nbytes=n)
        cells = [one.of(s) for s in SCHEMES]
        best, ring = outcomes[cells[0]], outcomes[one.of(FAULT_FREE)]
        shown = [both(format_seconds(outcomes[c].time_s), outcomes[c].over_bound) for c in cells]
        bounds = format_seconds(best.bound_s), format_seconds(best.with_costs_s)
        rows.append((format_size(n), *bounds, format_seconds(ring.time_s), *shown, how(best)))
    return table(("size", "bound", "with costs", FAULT_FREE, *SCHEMES, "optcc's family, segments"), rows)


def fabric_table(grid: EvaluationGrid, results: Outcomes) -> list[str]:
    """Section 5: fabrics with rails or pods."""
    rows = []
    for cell in grid.parts["fabrics"]:
        r, reached, _ = of_fabric(cell, results)
        cluster = grid.clusters[cell.job.cluster_id]
        ratios = (f"{r.fluid_s / r.bound_s:.4f}", f"{r.time_s / r.bound_s:.4f}", ratio(r.over_bound))
        least = r.unavoidable_overhead
        shares = (percent(least), percent(reached), points(reached - least))
        case = (cell.servers, fabric_of(cluster), failure_of(cell, cluster), format_size(cell.job.nbytes))
        rows.append((*case, format_seconds(r.bound_s), *ratios, *shares, r.family, r.segments))
    head = ("servers", "fabric", "dead or slow NICs", "size", "bound", "fluid / bound", "simulated / bound")
    more = ("over the bound with costs", "unavoidable", "overhead", "difference, pp", "family", "segments")
    return table((*head, *more), rows)


def planning_table(grid: EvaluationGrid, results: Outcomes) -> list[str]:
    """Section 6: what planning costs, and how close the plan is."""
    rows = []
    for study in grid.planning:
        cost: PlanningResult = results[study]
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


def star_table(grid: EvaluationGrid, results: Outcomes) -> list[str]:
    """Section 7: ForestColl's table with our row; the optimum in units of n over a healthy node's rate."""
    rows = []
    for cell in grid.parts["stars"]:
        own = results[cell.job.key]
        over, optimum = own.time_s / own.bound_s, own.bound_s * float(NIC_RATE) / cell.job.nbytes
        left = tuple(failure.partition("=")[2] for failure in cell.job.failures)
        if left == ("1/2",):
            alone, overlapped, middle = CITED[cell.servers]
        else:
            cited = CITED_OVERLAPPED[left]
            shared = "" if cell.servers in cited else " (8 and 16 nodes)"
            alone, middle, overlapped = "-", "-", f"{cited.get(cell.servers) or cited[None]} x optimum{shared}"
        shown = (f"{optimum:.4f}", f"{over * optimum:.4f}", f"{over:.4f}")
        rows.append((cell.servers, ", ".join(left), alone, overlapped, middle, *shown))
    ours = f"optcc, k = {grid.parts['stars'][0].job.segments} (simulated)"
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


NEAR = 0.02
"""Two schemes whose overheads differ by at most so much of the fault-free ring's time are called nearly equal."""
INFINITE = 10**9
PAPER_OPTCC = (0.02, 0.06)
"""Over the fault-free ring for one straggler, in SimAI (arXiv:2606.01680)."""
PAPER_R2CC = 0.57
"""Over the fault-free ring, at most: 8 servers of which one has lost half its rate (arXiv:2512.25059)."""


def words(grid: EvaluationGrid, outcomes: Outcomes) -> dict[str, str]:
    """Name in page.md -> text."""
    found = {
        "said_unavoidable": unavoidable_said(grid, outcomes),
        "said_free": free_said(grid, outcomes),
        "said_costs": costs_said(grid, outcomes),
        "said_several": several_said(grid, outcomes),
        "said_targets": targets_said(grid, outcomes),
        "said_rig": rig_said(grid, outcomes),
        "said_optcc": optcc_claimed(grid, outcomes),
        "said_r2cc": r2cc_claimed(),
    }
    return {name: sentence_a_line(text) for name, text in found.items()}


def unavoidable_said(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """What the bound says of a server at half of its rate."""
    half = [Case(p, (NICS // 2,), grid.size, OPTCC) for p in grid.servers]
    shares = {c.servers: unavoidable(c, outcomes) for c in half}
    shown = ", ".join(f"{percent(share)} with {p}" for p, share in shares.items())
    alike = all(abs(share - 1 / (p - 1)) < 1e-9 for p, share in shares.items())
    law = ", 1/(P-1) of the fault-free time with P servers" if alike else ""
    return f"A server at half of its rate costs every AllReduce, whatever the schedule{law}: {shown} (computed)."


def free_said(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """How near each scheme comes where chunks cost nothing."""
    least = min(grid.per_chunks)
    ours, published, r2cc_cells, balance = (
        [Case(p, (d,), grid.size, s, per_chunk=least) for p, d in stragglers(grid)]
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
    cells = [Case(p, (d,), grid.size, PUBLISHED, per_chunk=per_chunk) for p, d in stragglers(grid)]
    return [overhead(c, outcomes) - overhead(c.of(OPTCC), outcomes) for c in cells]


def costs_said(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """What a cost of each chunk does to the best schedules."""
    gaps = {o: max(_gaps(grid, outcomes, o)) for o in grid.per_chunks}
    shown = ", ".join(f"{100 * most:.1f} at {cost_of(o)}" for o, most in gaps.items())
    grows = all(a <= b for a, b in pairwise(gaps[o] for o in sorted(gaps)))
    text = "The more a chunk costs, the further they are apart: " if grows else "What a chunk costs sets them apart: "
    return (
        f"{text}OptCC as published takes more points than optcc, at most {shown}. Its pipeline of k equal segments "
        "must choose between (k+1)/k and k times as many chunks; optcc's choice differs by cell, and is in the table "
        "(simulated)."
    )


def several_said(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """What is left where several servers are degraded."""
    cells = [c for c in grid.failures if len(c.dead) > 1]
    rivals = [[above(c.of(s), outcomes) for s in RIVALS if not outcomes[c.of(s)].error] for c in cells]
    apply = sorted({s for c in cells for s in RIVALS if not outcomes[c.of(s)].error})
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
        mine = {c for c in grid.stragglers if c.scheme == OPTCC and c.per_chunk == per_chunk}
        parts.append(f"{sum(above(c, outcomes) <= TARGET for c in mine)} of {len(mine)} at {cost_of(per_chunk)}")
    return f"Within the target of {100 * TARGET:.0f} point are {', '.join(parts)}."


def rig_said(grid: EvaluationGrid, outcomes: Outcomes) -> str:
    """Whether the simulated figures of the rig meet the measured one, and for which costs of a chunk."""
    _, slope = MEASURED[AS_MEASURED]
    by_scheme = rig_results(grid, outcomes)
    found = {o: by_scheme[AS_MEASURED, o].time_s / by_scheme[FAULT_FREE, o].time_s for o in grid.per_chunks}
    low, high = MEASURED_RANGE
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
        cells = [Case(p, (d,), grid.size, PUBLISHED, per_chunk=per_chunk) for p, d in up_to_half]
        within = sum(overhead(c, outcomes) <= PAPER_OPTCC[1] for c in cells)
        parts.append(f"{within} of {len(cells)} at {cost_of(per_chunk)}")
    least = [unavoidable(Case(p, (d,), grid.size, OPTCC), outcomes) for p, d in up_to_half]
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


def closed_form(cell: Case, chunks: int) -> float:
    """R2CC-AllReduce's T/T0 - 1 with K = `chunks`, without costs (proof id ``rivals``)."""
    values = {P: cell.servers, X: Fraction(cell.dead[0], NICS), K: chunks}
    return float(r2cc().expression.subs(values)) - 1


R2CC_CASE = (8, NICS // 2)
"""Servers and dead NICs of the case that R2CC's paper states a figure for."""


def r2cc_claimed() -> str:
    """R2CC's 57 % beside its closed form."""
    servers, dead = R2CC_CASE
    limit = closed_form(Case(servers, (dead,), 0, "r2cc"), INFINITE)
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
            of = Case(0, (dead,), grid.size, OPTCC, per_chunk=per_chunk)
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
        least = 100 * unavoidable(Case(servers, (dead,), grid.size, OPTCC), outcomes)
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
            values = [100 * above(Case(p, (dead,), n, OPTCC), outcomes) for p in grid.servers]
            label = f"optcc, {format_size(n)}"
            axes.plot(grid.servers, values, line, color=STYLE[OPTCC][0], markersize=4, linewidth=1.2, label=label)
        cells = [[Case(p, (dead,), grid.size, scheme) for scheme in RIVALS] for p in grid.servers]
        rivals = [min(100 * above(c, outcomes) for c in those if not outcomes[c].error) for those in cells]
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

    p, sizes = grid.messages[0].servers, list(dict.fromkeys(c.nbytes for c in grid.messages))
    figure = Figure(figsize=(8.6, 3.8), layout="constrained")
    axes = figure.add_subplot()

    def busbw(times: list[float]) -> list[float]:
        return [2 * (p - 1) / p * n / t / 1e9 for n, t in zip(sizes, times, strict=True)]

    for scheme in (FAULT_FREE, OPTCC, *RIVALS):
        times = [outcomes[Case(p, (4,), n, OPTCC).of(scheme)].time_s for n in sizes]
        colour, line = STYLE[scheme]
        axes.plot(sizes, busbw(times), line, color=colour, markersize=4, linewidth=1.2, label=scheme)
    ours = [outcomes[Case(p, (4,), n, OPTCC)] for n in sizes]
    healthy, hurt = busbw([o.fault_free_s for o in ours]), busbw([o.bound_s for o in ours])
    label = "fault-free bound, no latency"
    axes.plot(sizes, healthy, ":", color=STYLE[FAULT_FREE][0], linewidth=1, label=label)
    label = "bound with the dead NICs,\nno latency"
    axes.plot(sizes, hurt, color="black", linewidth=1, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{n >> 20}" for n in sizes])
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


@dataclass(frozen=True)
class Evaluation:
    """Markdown of the page, its figures by file name; how many cells the target holds for, and how many miss it."""

    text: str
    figures: dict[str, Figure]
    misses: int
    cells: int


def evaluate(
    grid: EvaluationGrid,
    job: TrainingJob,
    *,
    jobs: int,
    command: str,
    journal: Journal[SweepResult],
    progress: Progress,
) -> Evaluation:
    """Run the grid on `jobs` processes. `command` is quoted on the page; what `journal` has is not computed again, and
    what is computed goes there, but for times and memory of this machine. Raises OptccError when a process dies.
    """
    work, kept = grid.work, len(journal.results)
    run(grid.cells, grid.clusters, journal, workers=jobs, progress=lambda done, _: progress(kept + done, work))
    results = grid.results(journal.results)
    for number, one in enumerate(grid.planning, start=1):  # alone on the machine, and each in its own process
        with processes(1) as pool:
            results[one] = pool.submit(_planned, one).result()
        progress(work - len(grid.planning) + number, work)
    return page(grid, job, command, results)


def _planned(one: Planning) -> PlanningResult:
    return one.run()


def page(grid: EvaluationGrid, job: TrainingJob, command: str, results: Outcomes) -> Evaluation:
    """The page and its figures of all `results`."""
    blocks = {
        "misses": target_lines(grid, results),
        "unavoidable": unavoidable_table(grid, results),
        "free": free_table(grid, results),
        "overheads": overhead_table(grid, results),
        "rig": rig_table(grid, results),
        "r2cc": r2cc_table(grid, results),
        "targets": target_table(grid, results),
        "several": several_table(grid, results),
        "messages": message_table(grid, results),
        "rails": fabric_table(grid, results),
        "planning": planning_table(grid, results),
        "stars": star_table(grid, results),
        "training": training_table(grid, results, job),
    }
    rig = grid.parts["rig"][0]
    facts = {
        "command": command,
        "nics": NICS,
        "rate": format_rate(NIC_RATE),
        "alpha": format_seconds(ALPHA),
        "per_chunk": format_seconds(PER_CHUNK),
        "least_cost": cost_of(min(grid.per_chunks)),
        "costs_of_chunks": ", ".join(map(cost_of, grid.per_chunks)),
        "most_servers": grid.most_servers,
        "published": PUBLISHED,
        "reconstructed": RECONSTRUCTED,
        "mark": RECONSTRUCTED_MARK,
        "r2cc_chunks": R2CC_CHUNKS,
        "rig_servers": rig.servers,
        "rig_rate": f"{float(grid.clusters[rig.job.cluster_id].servers[0].nics[0].out_rate) * 8 / 1e9:g} Gb/s",
        "rig_size": format_size(rig.job.nbytes),
        "rig_segments": RIG_SEGMENTS,
        "size": format_size(grid.size),
        "message_servers": grid.messages[0].servers,
        "cost_size": format_size(grid.planning[0].nbytes),
        "target_bytes": format_size(TARGET_BYTES),
        "mttf": f"{job.mttf_s / 3600:g}",
        "mttf_gpus": job.mttf_gpus,
        "nic_share": f"{100 * job.nic_share:.3g}",
        "repair": f"{job.repair_s / 3600:g}",
        "restart": f"{job.restart_s / 60:g}",
        "exposed": f"{100 * job.exposed:g}",
        "step": f"{job.step_s:g}",
        "failover": f"{job.failover_s:g}",
        "default_failover": f"{FAILOVER_S:g}",
        "version": __version__,
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {package_version(name)}" for name in PACKAGES),
    }
    text = Template(files("optcc.study").joinpath("page.md").read_text(encoding="utf-8"))
    said = words(grid, results)
    markdown = text.substitute(facts, **said, **{name: "\n".join(lines) for name, lines in blocks.items()})
    pictures = {
        "evaluation-overhead.svg": overhead_figure(grid, results),
        "evaluation-costs.svg": cost_figure(grid, results),
        "evaluation-above.svg": above_figure(grid, results),
        "evaluation-messages.svg": message_figure(grid, results),
    }
    return Evaluation(markdown, pictures, *counts(held(grid, results)))


def linked(text: str, folder: Path) -> str:
    """`text` for a page in `folder`: links to other pages of the docs lead to where these are, in the folder itself or
    in `docs` of one above; where there are none near they are no links, but name the page."""
    links = re.compile(r"\[([^\]]+)\]\(([\w-]+\.md)(#[\w-]+)?\)")
    pages = {name for _, name, _ in links.findall(text)}
    here = folder.resolve()
    near = (here, *(above / "docs" for above in (here, *here.parents)))
    docs = next((docs for docs in near if all((docs / name).is_file() for name in pages)), None)
    if docs is None:
        return links.sub(r"\1 (docs/\2)", text)
    way = os.path.relpath(docs, here)
    return links.sub(lambda link: f"[{link[1]}]({Path(way, link[2]).as_posix()}{link[3] or ''})", text)


def write(evaluation: Evaluation, path: Path) -> list[Path]:
    """Write the page and, beside it, its figures; the paths written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = {path: linked(evaluation.text, path.parent).encode()}
    written |= {path.parent / name: drawn(figure) for name, figure in evaluation.figures.items()}
    with staged(written):
        return [*written]


def code() -> str:
    """Sixteen hex digits of what results depend on: optcc's sources and library, Python, and packages."""
    found = hashlib.sha256(repr([platform.python_version(), *map(package_version, PACKAGES)]).encode())
    for folder, folders, names in os.walk(Path(optcc.__file__).parent, followlinks=True):
        folders.sort()
        for name in sorted(name for name in names if name.endswith((".py", ".so"))):
            found.update(name.encode() + Path(folder, name).read_bytes())
    return found.hexdigest()[:16]
