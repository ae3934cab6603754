"""The page of `optcc reproduce`: results in, tables, sentences and figures out, and what they were computed with.

The measure is the time over the certified bound with costs (proof ids chunk-costs, starving-pair, postal): no schedule
of whole chunks is faster. A sentence is made of the figures: where a figure does not bear it out, another one is
written. What papers claim stands beside what this simulator finds.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from importlib.resources import files
from itertools import accumulate, pairwise
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import optcc
from optcc import __version__
from optcc.api import lower_bound
from optcc.discover import apply_failures
from optcc.files.writing import staged, write_file
from optcc.machine.findings import package_version
from optcc.machine.workers import processes
from optcc.study.cells import JITTER_SEEDS, SweepCell, SweepResult
from optcc.study.evaluation import (
    ALPHA,
    BALANCE,
    JITTERS,
    NIC_RATE,
    NICS,
    OPTCC,
    PER_CHUNK,
    PUBLISHED,
    RING,
    RIVALS,
    TARGET_BYTES,
    TARGET_SHARE,
    TARGETS,
    EvaluationGrid,
    Fleet,
    Outcomes,
    Place,
    Planning,
    PlanningResult,
)
from optcc.study.journal import Journal
from optcc.study.runner import Progress, run
from optcc.study.training import FAILOVER_S, TrainingJob
from optcc.values.cluster import Cluster
from optcc.values.units import format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PACKAGES = ("numpy", "scipy", "cvxpy", "highspy")
"""What the figures may depend on."""
NAN = float("nan")
TWO_PHASES = "reduce-scatter, then allgather, of equal shards, each at its optimum"
"""What ForestColl's program finds for each of the two, on any fabric."""


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


# Rows: a cluster with its failures, a size and a cost of chunks.


@dataclass(frozen=True)
class Row:
    """What is known of a place. fabric, failure : in words

    starving : servers with half of their rate or less
    unavoidable : the bound with costs over that without failures, less 1
    own : time of our plan over that of our plan without failures, less 1
    two_phases_s : seconds of `TWO_PHASES`, computed, without latency and costs
    over : time over the bound with costs by scheme and jitter, nan where the scheme does not apply
    found : results by scheme, without jitter
    """

    place: Place
    servers: int
    fabric: str
    failure: str
    starving: int
    unavoidable: float
    own: float
    two_phases_s: float
    over: Mapping[tuple[str, float], float]
    found: Mapping[str, SweepResult]

    @property
    def with_costs_s(self) -> float:
        """The bound with costs, seconds."""
        return self.found[OPTCC].with_costs_s or NAN

    @property
    def usual(self) -> bool:
        """Whether it is of `SHOWN_BYTES` and the page's cost of a chunk."""
        return self.place.nbytes == SHOWN_BYTES and self.place.per_chunk == PER_CHUNK

    @property
    def in_bytes(self) -> float:
        """What the busiest port or link of our plan carries, in time over the plain bound."""
        return (self.found[OPTCC].fluid_s or NAN) / (self.found[OPTCC].bound_s or NAN)

    @property
    def parts(self) -> tuple[float, ...]:
        """Without jitter, of the bound with costs: what our plan takes beyond the plain bound for the bytes and for the
        chunks of its busiest NIC, and for latency and waiting; what the bound counts beside bytes."""
        mine = self.found[OPTCC]
        ends = (mine.bound_s or NAN, mine.fluid_s or NAN, mine.busy_s or NAN, mine.time_s)
        counted = self.with_costs_s - (mine.bound_s or NAN)
        return tuple(part / self.with_costs_s for part in (*(b - a for a, b in pairwise(ends)), counted))

    def rival(self, jitter: float) -> tuple[float, str]:
        """The least over the bound of all other schemes with that jitter, and which; (nan, "") where none was run."""
        known = [(self.over[scheme, jitter], scheme) for scheme in RIVALS if (scheme, jitter) in self.over]
        return min((one for one in known if one[0] == one[0]), default=(NAN, ""))


def rows_of(grid: EvaluationGrid, results: Outcomes) -> list[Row]:
    """All places of the grid, in its order."""
    return [_row(grid, place, cell, results) for place, cell in grid.places.items()]


def _row(grid: EvaluationGrid, place: Place, cell: SweepCell, results: Outcomes) -> Row:
    over: dict[tuple[str, float], float] = {}
    found: dict[str, SweepResult] = {}
    for scheme in (OPTCC, *RIVALS):
        for jitter in JITTERS:
            if job := grid.jobs.get((place, scheme, jitter)):
                over[scheme, jitter] = results[job.key].over_bound
                if not jitter:
                    found[scheme] = results[job.key]
    mine, whole = found[OPTCC], results[grid.jobs[place.whole, OPTCC, 0.0].key]
    cluster = grid.clusters[place.cluster_id]
    hurt = apply_failures(cluster, place.failures)
    gather = lower_bound(hurt, place.nbytes, collective="allgather")
    starving = sum(2 * now.out_rate <= was.out_rate for now, was in zip(hurt.servers, cluster.servers, strict=True))
    return Row(
        place, cell.servers, fabric_of(cluster), failure_of(place.failures, cluster), starving,
        (mine.with_costs_s or NAN) / (whole.with_costs_s or NAN) - 1, mine.time_s / whole.time_s - 1,
        2 * float(gather.seconds), over, found,
    )  # fmt: skip


def fabric_of(cluster: Cluster) -> str:
    """One fabric, rails or pods, in words."""
    pods = {server.pod for server in cluster.servers}
    if not cluster.fabric.rails:
        factor = cluster.fabric.pod_oversubscription
        return f"pods of {len(cluster.servers) // len(pods)}, {factor} to 1" if len(pods) > 1 else "one"
    spine = "no spine" if cluster.fabric.spine is None else f"spine {cluster.fabric.spine} to 1"
    return f"{len(cluster.servers[0].nics)} rails, {spine}"


def failure_of(failures: Sequence[str], cluster: Cluster) -> str:
    """Which NICs are dead or slow, in words: on rails by name; else how many of how many servers."""
    pairs = [failure.split("=") for failure in failures]
    left = pairs[0][1]
    slow = "" if left == "0" else f" at {left}"
    if cluster.fabric.rails:
        rails: dict[str, list[int]] = {}
        for name, _ in pairs:
            server, _, nic = name.partition("/nic")
            rails.setdefault(server, []).append(int(nic))
        return ", ".join(f"{server} {_which(mine)}" for server, mine in rails.items()) + slow
    dead = list(Counter(name.partition("/")[0] for name, _ in pairs).values())
    if len(dead) == 1:
        return f"{dead[0]} of one server{slow}"
    if len(set(dead)) > 1:
        return f"{', '.join(map(str, dead))} of {len(dead)} servers{slow}"
    return f"{dead[0]} each of {len(dead)} servers{slow}"


def _which(rails: list[int]) -> str:
    """Rails in words, those in a row by the first and the last."""
    if len(rails) == 1:
        return f"rail {rails[0]}"
    if rails == list(range(rails[0], rails[-1] + 1)):
        return f"rails {rails[0]} to {rails[-1]}"
    return f"rails {', '.join(map(str, rails))}"


def slashed(row: Row, scheme: str) -> str:
    """The time over the bound at each jitter: "1.001 / 1.036 / 1.120"."""
    return " / ".join(ratio(row.over.get((scheme, jitter), NAN)) for jitter in JITTERS)


def in_words(jitter: float) -> str:
    """0.03 as "3 %"."""
    return f"{100 * jitter:g} %"


JITTER_HEAD = " / ".join(in_words(jitter) for jitter in JITTERS)
SHOWN_FAILURES = ("1 of one server", "4 of one server", "4 each of 2 servers")
SHOWN_BYTES = 2**30


def first_table(rows: list[Row]) -> list[str]:
    """What fits a screen: at `SHOWN_BYTES` and the page's cost of a chunk, the usual failures."""
    lines = []
    for row in rows:
        if row.usual and (row.failure in SHOWN_FAILURES or row.fabric != "one"):
            best = [row.rival(jitter) for jitter in JITTERS]
            who = ", ".join(dict.fromkeys(name for _, name in best if name)) or "-"
            others = " / ".join(ratio(value) for value, _ in best)
            lines.append(
                (row.servers, row.fabric, row.failure, percent(row.unavoidable), percent(row.own),
                 slashed(row, OPTCC), others, who)
            )  # fmt: skip
    head = ("servers", "fabric", "dead NICs", "unavoidable", "optcc over its own without failures")
    return table((*head, f"optcc, jitter {JITTER_HEAD}", "best of the others, the same", "which"), lines)


def scheme_table(rows: list[Row]) -> list[str]:
    """Every scheme, one server's NICs dead, at `SHOWN_BYTES` and the page's cost."""
    lines = [
        (row.servers, row.failure, *(slashed(row, scheme) for scheme in (OPTCC, *RIVALS)),
         ratio(row.two_phases_s / row.with_costs_s))
        for row in rows
        if row.usual and row.fabric == "one" and "of one server" in row.failure and " at " not in row.failure
    ]  # fmt: skip
    return table(("servers", "dead NICs", OPTCC, *RIVALS, "two phases (computed)"), lines)


def size_table(rows: list[Row]) -> list[str]:
    """Every scheme by size: most servers that have all sizes, half of one's NICs dead."""
    lines = [
        (row.servers, format_size(row.place.nbytes), format_seconds(row.with_costs_s),
         *(slashed(row, scheme) for scheme in (OPTCC, *RIVALS)))
        for row in sized(rows, f"{NICS // 2} of one server")
    ]  # fmt: skip
    return table(("servers", "size", "bound with costs", OPTCC, *RIVALS), lines)


SIZED_SERVERS = 16


def sized(rows: list[Row], failure: str) -> list[Row]:
    """One failure at all sizes, on one fabric of `SIZED_SERVERS` servers or, without them, the most that there are."""
    mine = [row for row in rows if row.fabric == "one" and row.place.per_chunk == PER_CHUNK and row.failure == failure]
    servers = max((row.servers for row in mine if row.servers <= SIZED_SERVERS), default=0)
    return sorted((row for row in mine if row.servers == servers), key=lambda row: row.place.nbytes)


def cells_table(rows: list[Row]) -> list[list[object]]:
    """Every row, the head first: times in microseconds, without jitter; ratios to the bound with costs."""
    schemes = (OPTCC, *RIVALS)
    head = ["servers", "fabric", "failures", "bytes", "us for a chunk", "bound with costs, us", "unavoidable"]
    head += [
        "optcc over its own without failures",
        "optcc in bytes alone",
        "its busiest NIC with chunks",
        "two phases over the bound (computed)",
    ]
    head += [f"{scheme}, {what}" for scheme in schemes for what in ("us", "taken", *map(_over_head, JITTERS))]
    found: list[list[object]] = [[*head]]
    for row in rows:
        line: list[object] = [row.servers, row.fabric, row.failure, row.place.nbytes]
        line += [f"{float(row.place.per_chunk) * 1e6:g}", _digits(1e6 * row.with_costs_s), _digits(row.unavoidable)]
        line += [
            _digits(row.own),
            _digits(row.in_bytes),
            _digits((row.found[OPTCC].busy_s or NAN) / row.with_costs_s),
            _digits(row.two_phases_s / row.with_costs_s),
        ]
        for scheme in schemes:
            one = row.found.get(scheme, SweepResult(error="not run"))
            taken = "" if one.error else f"{one.way or one.family}, {one.segments}"
            line += [_digits(1e6 * one.time_s), taken]
            line += [_digits(row.over.get((scheme, jitter), NAN)) for jitter in JITTERS]
        found.append(line)
    return found


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """The text of a CSV file."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def _over_head(jitter: float) -> str:
    return f"over the bound, jitter {in_words(jitter)}"


def _digits(value: float) -> str:
    """Five digits; empty for nan."""
    return "" if value != value else f"{value:.5g}"


# What it says.


def kept(rows: list[Row], jitter: float) -> tuple[list[Row], list[Row]]:
    """(rows that keep the target at a jitter, all that it stands for)."""
    mine = [row for row in rows if row.place.nbytes >= TARGET_BYTES and (OPTCC, jitter) in row.over]
    return [row for row in mine if row.over[OPTCC, jitter] <= TARGETS[jitter]], mine


def target_said(rows: list[Row], jitter: float) -> str:
    """How many cells keep the target, and whether that is enough."""
    good, mine = kept(rows, jitter)
    share = len(good) / len(mine) if mine else NAN
    enough = "kept" if share >= TARGET_SHARE else "missed"
    within = f"within {100 * (TARGETS[jitter] - 1):.0f} % of the bound with costs"
    return (
        f"With {in_words(jitter)} of jitter {len(good)} of {len(mine)} cells of {format_size(TARGET_BYTES)} and more "
        f"are {within}, {percent(share)}. The target, {percent(TARGET_SHARE)}, is {enough} (simulated)."
    )


def misses_said(rows: list[Row]) -> str:
    """How many cells are beyond the target without jitter, and the farthest."""
    good, mine = kept(rows, 0.0)
    bad = [row for row in mine if row not in good]
    if not bad:
        return "No cell is beyond it without jitter."
    most = max(bad, key=lambda row: row.over[OPTCC, 0.0])
    return (
        f"Without jitter {len(bad)} of {len(mine)} cells are beyond it, {sum(row.starving > 0 for row in bad)} with a "
        f"server at half of its rate or less. The farthest is {ratio(most.over[OPTCC, 0.0])} of the bound: "
        f"{most.servers} servers, {most.failure}, {format_size(most.place.nbytes)}."
    )


def loose_table(rows: list[Row]) -> list[str]:
    """Of the cells that the target stands for, by how many servers starve: the parts of what plans beyond it take, on
    average."""
    good, mine = kept(rows, 0.0)
    lines: list[tuple[object, ...]] = []
    for name, few, many in (("none", 0, 0), ("one", 1, 1), ("two or more", 2, NICS * len(rows))):
        every = [row for row in mine if few <= row.starving <= many]
        bad = [row for row in every if row not in good]
        means = [sum(part) / len(bad) for part in zip(*(row.parts for row in bad), strict=True)] or [NAN] * 4
        over = sum(row.over[OPTCC, 0.0] - 1 for row in bad) / len(bad) if bad else NAN
        lines.append((name, len(every), len(bad), percent(over), *map(percent, means)))
    head = ("servers at half or less", "cells", "beyond 2 %", "over the bound with costs", "bytes", "chunks")
    return table((*head, "latency and waiting", "the bound's own beside bytes"), lines)


def rivals_said(rows: list[Row], jitter: float) -> str:
    """Where another scheme is faster than our plan."""
    mine = [(row, *row.rival(jitter)) for row in rows if row.rival(jitter)[1]]
    ahead = [(row, best, who) for row, best, who in mine if best < row.over[OPTCC, jitter]]
    text = f"With {in_words(jitter)} of jitter another scheme is faster than optcc in {len(ahead)} of {len(mine)} cells"
    if not ahead:
        return f"{text} (simulated)."
    names = ", ".join(f"{who} in {count}" for who, count in Counter(who for _, _, who in ahead).most_common())
    row, best, who = max(ahead, key=lambda one: one[0].over[OPTCC, jitter] / one[1])
    return (
        f"{text}: {names}. Most by {who} with {row.servers} servers, {row.failure}, {format_size(row.place.nbytes)}: "
        f"{ratio(best)} of the bound against {ratio(row.over[OPTCC, jitter])} (simulated)."
    )


def unavoidable_said(rows: list[Row]) -> str:
    """What the bound says of a server at half of its rate."""
    half = [row for row in rows if row.usual and row.fabric == "one" and row.failure == f"{NICS // 2} of one server"]
    shown = ", ".join(f"{percent(row.unavoidable)} with {row.servers}" for row in half)
    own = ", ".join(f"{percent(row.own)} with {row.servers}" for row in half)
    return (
        "A server at half of its rate costs every AllReduce about 1/(P-1) of the fault-free time with P servers, "
        f"whatever the schedule: by the bound with costs {shown} (computed). optcc's plans, over its own without "
        f"failures: {own} (simulated)."
    )


PAPER_OPTCC = (0.02, 0.06)
"""Over the fault-free ring for one straggler, in SimAI (arXiv:2606.01680)."""
PAPER_R2CC = 0.57
"""Over the fault-free ring, at most: 8 servers of which one has lost half its rate (arXiv:2512.25059)."""


def over_ring(grid: EvaluationGrid, row: Row, scheme: str, results: Outcomes) -> float:
    """Time without jitter over that of the fault-free ring at its best, less 1; nan where there is none."""
    ring = grid.jobs.get((row.place.whole, RING, 0.0))
    return row.found[scheme].time_s / results[ring.key].time_s - 1 if ring and scheme in row.found else NAN


def claims_said(grid: EvaluationGrid, rows: list[Row], results: Outcomes) -> tuple[str, str]:
    """What two papers claim, beside what is found here at `SHOWN_BYTES`."""
    mine = [
        row for row in rows
        if row.usual and row.fabric == "one" and "of one server" in row.failure and " at " not in row.failure
    ]  # fmt: skip
    mild = [row for row in mine if int(row.failure.split()[0]) * 2 <= NICS and PUBLISHED in row.found]
    shares = [over_ring(grid, row, PUBLISHED, results) for row in mild]
    servers = " to ".join(dict.fromkeys(str(end(row.servers for row in mild)) for end in (min, max)))
    low, high = (f"{100 * share:.0f}" for share in PAPER_OPTCC)
    optcc_paper = (
        f"*OptCC: {low} to {high} % over the fault-free ring for one straggler (SimAI; arXiv:2606.01680).* Here, with "
        f"up to half of one server's NICs dead, {servers} servers and {cost_of(PER_CHUNK)} "
        f"for a chunk, its overhead is at most {high} % in {sum(share <= PAPER_OPTCC[1] for share in shares)} of "
        f"{len(shares)} cells; by {percent(min(shares))} to {percent(max(shares))} (simulated). What we read of the "
        "paper does not say for how many servers and which rates its figure holds, nor how SimAI counts chunks; of "
        "what SimAI has, [its stock AllReduce was run](related.md#simai-run), without OptCC's schedules."
    )
    half = [row for row in mine if row.servers == 8 and row.failure == f"{NICS // 2} of one server"]
    found = ", ".join(percent(over_ring(grid, row, "r2cc", results)) for row in half) or "-"
    r2cc_paper = (
        f"*R2CC-AllReduce: up to {100 * PAPER_R2CC:.0f} % over it (arXiv:2512.25059).* Here, with 8 servers and half "
        f"of one's NICs dead, {found} at {cost_of(PER_CHUNK)} for a chunk (simulated)."
    )
    return optcc_paper, r2cc_paper


def words(grid: EvaluationGrid, rows: list[Row], results: Outcomes) -> dict[str, str]:
    """Name in page.md -> text."""
    claims = claims_said(grid, rows, results)
    found = {
        "said_targets": " ".join(target_said(rows, jitter) for jitter in TARGETS),
        "said_misses": misses_said(rows),
        "said_rivals": " ".join(rivals_said(rows, jitter) for jitter in JITTERS),
        "said_unavoidable": unavoidable_said(rows),
        "said_rig": rig_said(grid, results),
        "said_optcc": claims[0],
        "said_r2cc": claims[1],
    }
    return {name: sentence_a_line(text) for name, text in found.items()}


# A rig that somebody measured.


RIG_SEGMENTS = 256
AS_MEASURED = f"optcc-published, k = {RIG_SEGMENTS} as there"
MEASURED = {BALANCE: (0.2939, 2.009), AS_MEASURED: (0.1877, 1.279)}
"""A rig on which somebody measured OptCC; simulated at its settings, the model meets hardware that is not ours. Scheme
-> seconds for 256 MiB, and the slope of time over size from 8 to 256 MiB over the fault-free ring's.

Source: the design notes of an implementation in NCCL (github.com/1WesleyYou/nccl, docs/optcc/DESIGN.md, section 3,
September 2026): five containers with a 25 Gb/s RoCE function each, of which 23.5 Gb/s are payload; one at half of that;
four channels with chunks of 256 KiB, so that 256 MiB are 256 segments of four sections. How it is related to the
paper's authors is not said.
"""
MEASURED_RANGE = (1.268, 1.291)
"""Of the implementation's slope, by its authors."""


def rig_results(grid: EvaluationGrid, results: Outcomes) -> dict[tuple[str, Fraction], SweepResult]:
    """Of the rig, by scheme and seconds for a chunk."""
    found = {}
    for cell in grid.parts["rig"]:
        job, ring = cell.job, cell.job.reference
        assert ring is not None
        found[AS_MEASURED if job.segments else job.algorithm or "", job.per_chunk_s] = results[job.key]
        if not job.segments:
            found[RING, job.per_chunk_s] = results[ring.key]
    return found


def rig_table(grid: EvaluationGrid, results: Outcomes) -> list[str]:
    """The rig, measured and simulated."""
    by_scheme = rig_results(grid, results)
    costs = sorted({per_chunk for _, per_chunk in by_scheme})
    rows = []
    for scheme in (RING, BALANCE, AS_MEASURED, PUBLISHED, OPTCC):
        measured_s, slope = MEASURED.get(scheme, (NAN, NAN))
        shown, ratios = [], []
        for per_chunk in costs:
            found, ring = by_scheme[scheme, per_chunk], by_scheme[RING, per_chunk]
            shown.append(f"{found.time_s / ring.time_s:.3f} ({1000 * found.time_s:.1f} ms)")
            ratios.append(ratio(found.over_bound))
        known = "-" if measured_s != measured_s else f"{slope:.3f} ({1000 * measured_s:.1f} ms)"
        name = "fault-free ring" if scheme == RING else scheme
        rows.append((name, known, *shown, *ratios))
    head = ("scheme", "measured", *(f"simulated, {cost_of(o)}" for o in costs))
    return table((*head, *(f"over the bound with costs, {cost_of(o)}" for o in costs)), rows)


def rig_said(grid: EvaluationGrid, results: Outcomes) -> str:
    """Whether the simulated figures of the rig meet the measured one, and for which costs of a chunk."""
    _, slope = MEASURED[AS_MEASURED]
    by_scheme = rig_results(grid, results)
    costs = sorted({per_chunk for _, per_chunk in by_scheme})
    found = {o: by_scheme[AS_MEASURED, o].time_s / by_scheme[RING, o].time_s for o in costs}
    low, high = MEASURED_RANGE
    inside = [cost_of(o) for o, value in found.items() if low <= value <= high]
    least, most = min(found.values()), max(found.values())
    where = f"At {', '.join(inside)} for a chunk" if inside else "At none of these costs of a chunk"
    side = "between these" if least <= slope <= most else "above all of these" if slope > most else "below all of these"
    return (
        f"{where} the simulated time is within the measured range, {low:.3f} to {high:.3f} times the fault-free ring. "
        f"It goes from {least:.3f} to {most:.3f} times; the middle of the measured range, {slope:.3f}, is {side}."
    )


# What planning costs; beside ForestColl; what it means for training.


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
                *(f"{seconds:.2f}" for seconds in (cost.plan_s, cost.simulate_s)),
                format_size(round(cost.peak_bytes / 2**20) * 2**20),
                f"{cost.ratio:.4f}",
                ratio(cost.ratio_with_costs),
            )
        )
    head = ("GPUs", "ranks", "family, segments", "transfers", "plan s", "simulate s", "peak memory")
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


def star_table(grid: EvaluationGrid, results: Outcomes) -> list[list[object]]:
    """ForestColl's table with our row, the head first; the optimum in units of n over a healthy node's rate."""
    ours = f"optcc, k = {grid.parts['stars'][0].job.segments} (simulated)"
    theirs = ("ForestColl's own (cited)", "overlapped (cited)", "in the middle (cited)")
    rows: list[list[object]] = [["nodes", "left", *theirs, "optimum", ours, "over the optimum"]]
    for cell in grid.parts["stars"]:
        own = results[cell.job.key]
        over, optimum = own.time_s / own.bound_s, own.bound_s * float(NIC_RATE) / cell.job.nbytes
        left = tuple(failure.partition("=")[2] for failure in cell.job.failures)
        if left == HALF:
            alone, overlapped, middle = CITED[cell.servers]
        else:
            cited = CITED_OVERLAPPED[left]
            shared = "" if cell.servers in cited else " (8 and 16 nodes)"
            alone, middle, overlapped = "-", "-", f"{cited.get(cell.servers) or cited[None]} x optimum{shared}"
        shown = (f"{optimum:.4f}", f"{over * optimum:.4f}", f"{over:.4f}")
        rows.append([cell.servers, ", ".join(left), alone, overlapped, middle, *shown])
    return rows


HALF = ("1/2",)
"""What the failures of the stars that are on the page have left."""


def star_lines(rows: list[list[object]]) -> list[str]:
    """Of the table what is on the page."""
    head, *every = rows
    shown = [row for row in every if row[1] == HALF[0]]
    lines = table([str(cell) for cell in head], shown)
    return [*lines, f"{len(shown)} of {len(every)} rows: [all]({STARS}).", ""]


AT_BOUND = "go on at the bound"
"""No schedule and no failover loses less than what goes on so."""


def training_table(grid: EvaluationGrid, rows: list[Row], results: Outcomes, job: TrainingJob) -> list[str]:
    """What of a week is lost, and by how much steps are longer."""
    lines = []
    for fleet in grid.fleets:
        mine = replace(job, gpus=fleet.gpus)
        ways: list[tuple[str, float, float | None]] = [("restart from a checkpoint", mine.lost_by_restarts(), None)]
        for way, chain in _chains(grid, fleet, rows, results).items():
            lose = mine.lost_by_slowdown if way == AT_BOUND else mine.lost_by_going_on
            ways.append((way, lose(chain), chain[0]))
        for way, share, one in ways:
            lost = (f"{100 * share:.4f} %", f"{168 * share:.3f}", format_ms(mine.per_step_s(share)))
            hit = "-" if one is None else format_ms(mine.exposed * one * mine.step_s)
            known = (fleet.gpus, fleet.servers, f"{mine.failures:.3f}", f"{mine.down:.4f}")
            lines.append((*known, way, *lost, hit))
    head = ("GPUs", "servers in an AllReduce", "NIC failures a week", "down on average", "after a failure")
    effects = ("share of the week lost", "hours of 168", "a step longer by, on average", "while one NIC is down")
    return table((*head, *effects), lines)


def chain(servers: int, rows: list[Row]) -> list[Row]:
    """1, 2, 3, ... servers with a dead NIC each, as far as the grid has them, at `SHOWN_BYTES` on one fabric."""
    found: dict[int, Row] = {}
    for row in rows:
        hit = {failure.partition("/")[0] for failure in row.place.failures}
        dead = all(failure.endswith("=0") for failure in row.place.failures)
        here = row.usual and row.servers == servers and row.fabric == "one"
        if here and dead and len(hit) == len(row.place.failures):
            found.setdefault(len(hit), row)
    return [found[count] for count in range(1, len(found) + 1) if count in found]


def _chains(grid: EvaluationGrid, fleet: Fleet, rows: list[Row], results: Outcomes) -> dict[str, list[float]]:
    """Overheads with 1, 2, ... NICs down over the same scheme without failures, by what goes on.

    Of several AllReduces the slowest sets the pace: the one that has of the dead NICs as many as cost most.
    """
    mine = chain(fleet.servers, rows)
    found = {
        f"go on with {OPTCC}": [row.own for row in mine],
        f"go on with {BALANCE}": [over_ring(grid, row, BALANCE, results) for row in mine],
        AT_BOUND: [row.unavoidable for row in mine],
    }
    if fleet.gpus > fleet.servers * NICS:
        return {way: list(accumulate(shares, max)) for way, shares in found.items()}
    return found


def format_ms(seconds: float) -> str:
    """Milliseconds, below zero too."""
    return f"{1000 * seconds:.3f} ms"


# Figures.


# Okabe and Ito's palette: told apart with any colour vision.
STYLE = {
    OPTCC: ("#0072B2", "o-"),
    PUBLISHED: ("#56B4E9", "s--"),
    "r2cc": ("#E69F00", "^--"),
    BALANCE: ("#D55E00", "v--"),
    "hot-repair": ("#CC79A7", "x--"),
    "nccl-tree": ("#009E73", "d--"),
}
TICKS = (1, 1.2, 1.5, 2, 3, 5, 10, 20)


def size_figure(rows: list[Row]) -> Figure:
    """Time over the bound with costs by size, a panel for each jitter, two failures."""
    from matplotlib.figure import Figure

    failures = [f"{dead} of one server" for dead in (1, NICS // 2)]
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    panels = figure.subplots(len(failures), len(JITTERS), squeeze=False, sharey=True, sharex=True)
    for line, failure in zip(panels, failures, strict=True):
        mine = sized(rows, failure)
        for axes, jitter in zip(line, JITTERS, strict=True):
            _panel(axes, mine, jitter)
            servers = mine[0].servers if mine else 0
            axes.set_title(f"{servers} servers, {failure}, jitter {in_words(jitter)}", fontsize=9)
        line[0].set_ylabel("time over the bound\nwith costs (simulated)")
    for axes in panels[-1]:
        axes.set_xlabel("message size, MiB")
    handles = {name: handle for handle, name in zip(*panels[0][0].get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    return figure


def _panel(axes: Axes, rows: list[Row], jitter: float) -> None:
    for scheme in (OPTCC, *RIVALS):
        known = [(row.place.nbytes / 2**20, row.over.get((scheme, jitter), NAN)) for row in rows]
        known = [(size, value) for size, value in known if value == value]
        colour, line = STYLE[scheme]
        axes.plot([s for s, _ in known], [v for _, v in known], line, color=colour, markersize=4, label=scheme)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xscale("log", base=2)
    sizes = [row.place.nbytes / 2**20 for row in rows]
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes], fontsize=8)
    axes.set_yscale("log")
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS], minor=False)
    axes.set_yticks([], minor=True)
    axes.grid(alpha=0.3)


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
    """Markdown of the page, its figures and tables by name; how many cells the target without jitter holds for, and how
    many miss it."""

    text: str
    figures: dict[str, Figure]
    misses: int
    cells: int
    tables: dict[str, str] = field(default_factory=dict)


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
    work, done_before = grid.work, len(journal.results)
    run(grid.cells, grid.clusters, journal, workers=jobs, progress=lambda done, _: progress(done_before + done, work))
    grid.check(journal.results)
    results: dict[Any, Any] = dict(journal.results)
    for number, one in enumerate(grid.planning, start=1):  # alone on the machine, and each in its own process
        with processes(1) as pool:
            results[one] = pool.submit(_planned, one).result()
        progress(work - len(grid.planning) + number, work)
    return page(grid, job, command, results)


def _planned(one: Planning) -> PlanningResult:
    return one.run()


CELLS, STARS = "data/evaluation-cells.csv", "data/evaluation-stars.csv"


def page(grid: EvaluationGrid, job: TrainingJob, command: str, results: Outcomes) -> Evaluation:
    """The page, its figures and tables of all `results`."""
    rows, stars = rows_of(grid, results), star_table(grid, results)
    blocks = {
        "first": first_table(rows),
        "schemes": scheme_table(rows),
        "sizes": size_table(rows),
        "loose": loose_table(rows),
        "rig": rig_table(grid, results),
        "planning": planning_table(grid, results),
        "stars": star_lines(stars),
        "training": training_table(grid, rows, results, job),
    }
    rig = grid.parts["rig"][0]
    facts = {
        "command": command,
        "nics": NICS,
        "rate": format_rate(NIC_RATE),
        "alpha": format_seconds(ALPHA),
        "per_chunk": format_seconds(PER_CHUNK),
        "published": PUBLISHED,
        "two_phases": TWO_PHASES,
        "draws": len(JITTER_SEEDS),
        "cells": CELLS,
        "places": len(rows),
        "shown": len(blocks["first"]) - 3,
        "most_servers": max(row.servers for row in rows),
        "rig_servers": rig.servers,
        "rig_rate": f"{float(grid.clusters[rig.job.cluster_id].servers[0].nics[0].out_rate) * 8 / 1e9:g} Gb/s",
        "rig_size": format_size(rig.job.nbytes),
        "rig_segments": RIG_SEGMENTS,
        "size": format_size(SHOWN_BYTES),
        "cost_size": format_size(grid.planning[0].nbytes),
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
    said = words(grid, rows, results)
    markdown = text.substitute(facts, **said, **{name: "\n".join(lines) for name, lines in blocks.items()})
    good, mine = kept(rows, 0.0)
    tables = {CELLS: as_csv(cells_table(rows)), STARS: as_csv(stars)}
    figures = {"evaluation-sizes.svg": size_figure(rows)}
    return Evaluation(markdown, figures, len(mine) - len(good), len(mine), tables)


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
    """Write the page and, beside it, its figures and tables; the paths written."""
    (path.parent / CELLS).parent.mkdir(parents=True, exist_ok=True)
    written = {path: linked(evaluation.text, path.parent).encode()}
    written |= {path.parent / name: drawn(figure) for name, figure in evaluation.figures.items()}
    written |= {path.parent / name: text.encode() for name, text in evaluation.tables.items()}
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
