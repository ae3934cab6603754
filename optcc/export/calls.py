"""Plans for the plugin that NCCL loads (docs/nccl.md): the transfers of one call, whose bytes are cut at fractions.

NCCL gives a plugin an AllReduce as a stream of calls of a few MiB. A plan becomes a cycle of programs, one for each of
so many calls in a row: a segment of the plan each, where its segments are AllReduces by themselves, else one program of
all transfers. `native/nccl/plans.c` has the format, and checks whatever it reads as `optcc.verify` does.

There is a plan for every state of the cluster: as it is, and after the next failures. Which nodes are slow does not
matter, only how slow: the plugin gives the roles of a plan to the nodes by their rates.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import gcd

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError, VerifyError
from optcc.planner.search import choose, merged_nics
from optcc.planner.standby import MAX_LOOKAHEAD, Places, State, upcoming
from optcc.schedule import Schedule
from optcc.simulation.verifier import verify
from optcc.theory import lower_bound
from optcc.values.cluster import Cluster

MOST_NODES = 64
MOST_ROWS = 4096
"""Transfers of a program."""
MOST_STATES = 1024
CYCLE = 2
"""Segments of a plan, and so programs of a cycle: what one leaves uneven the other evens out."""
CALL_BYTES = 4 << 20
"""Of the call that is planned for; others are cut in proportion."""
THOUSANDTHS = 1000


class TooManyError(InputError):
    """A call would have more transfers than the plugin reads."""


def prepared(cluster: Cluster, failures: int) -> tuple[dict[str, str], list[list[int]]]:
    """File name -> text of the plans for `cluster` as it is (now.plan) and after up to `failures` more NICs die; and
    the rates of the states after failures that have none, for a call would have too many transfers.

    Raises InputError for a cluster whose nodes the plugin could not tell apart by rates alone, and for too large a one.
    """
    if cluster.gpu_ranks or not cluster.fabric.flat:
        raise InputError(
            "not a cluster that NICs alone limit", where="--prepare", got="GPUs as ranks, or shared links",
            expected="servers as ranks on a fabric that does not block",
        )  # fmt: skip
    if not 2 <= len(cluster.servers) <= MOST_NODES:
        raise InputError("how many servers", where="--prepare", expected=f"2 to {MOST_NODES}", got=len(cluster.servers))
    if not 0 <= failures <= MAX_LOOKAHEAD:
        raise InputError("how many failures", where="--failures", expected=f"0 to {MAX_LOOKAHEAD}", got=failures)
    states = upcoming(State.of(cluster), Places.of(cluster), lookahead=failures, lefts=(Fraction(0),), most=MOST_STATES)
    files: dict[str, str] = {}
    large: list[list[int]] = []
    seen = set[tuple[int, ...]]()
    for state in states:
        if not state.possible:
            continue
        rates = rates_of(state.cluster)
        if tuple(sorted(rates)) in seen:
            continue
        seen.add(tuple(sorted(rates)))
        try:
            files[f"{len(files):04}.plan" if files else "now.plan"] = text(state.cluster)
        except TooManyError:
            if not files:
                raise
            large.append(rates)
    if not files:
        raise InputError(
            "no AllReduce is possible", where="--prepare", expected="a live NIC on each server", got="none"
        )
    return files, large


def rates_of(cluster: Cluster) -> list[int]:
    """By server, in thousandths of the fastest, at least 1; of the two ways the slower counts."""
    rates = [min(server.out_rate, server.in_rate) for server in cluster.servers]
    return [max(1, round(THOUSANDTHS * rate / max(rates))) for rate in rates]


def text(cluster: Cluster) -> str:
    """The plan for one state. Raises InputError where a call would have too many transfers."""
    on = merged_nics(cluster)
    recipe = choose(on, lower_bound(on, CALL_BYTES), segments=CYCLE)
    programs = list(programs_of(recipe.lower(on, CALL_BYTES)))
    most = max(map(len, programs))
    if most > MOST_ROWS:
        raise TooManyError(
            "too many transfers for a call", where="--prepare", expected=f"at most {MOST_ROWS}", got=most,
            hint="Fewer servers; a job of more goes by a ring.",
        )  # fmt: skip
    lines = ["optcc-plan 1", f"nodes {len(on.servers)}", " ".join(["rates", *map(str, rates_of(on))])]
    lines.append(f"programs {len(programs)}")
    for one in programs:
        lines += _program(one)
    return "\n".join([*lines, "end"]) + "\n"


def _program(one: Schedule) -> Iterator[str]:
    """Its lines. Positions are multiples of the greatest length that divides them all."""
    unit = gcd(one.nbytes, *map(int, one.offset), *map(int, one.length))
    yield f"program {len(one)} {one.nbytes // unit}"
    ends = one.offset + one.length
    for row in range(len(one)):
        place = f"{one.src[row]} {one.dst[row]} {one.offset[row] // unit} {ends[row] // unit}"
        yield " ".join([place, "+" if one.reduce[row] else "=", *map(str, one.deps(row))])


def programs_of(schedule: Schedule) -> Iterator[Schedule]:
    """A program for each segment, where every segment is an AllReduce of bytes of its own; else the whole schedule.

    Whoever waits for another segment waits for no bytes of his, but keeps to a pace: that is left out.
    """
    parts = [_segment(schedule, np.flatnonzero(schedule.segment == segment)) for segment in np.unique(schedule.segment)]
    try:
        for part in parts:
            verify(part)
    except VerifyError:
        parts = []
    if not parts or sum(part.nbytes for part in parts) != schedule.nbytes:
        verify(schedule)
        parts = [schedule]
    yield from parts


def _segment(schedule: Schedule, rows: NDArray[np.intp]) -> Schedule:
    """Some rows alone, and the bytes that they touch moved together."""
    first, last = schedule.offset[rows], schedule.offset[rows] + schedule.length[rows]
    edges = np.unique(np.concatenate((first, last)))
    touched = np.zeros(len(edges) - 1, np.bool_)
    for begin, end in zip(np.searchsorted(edges, first), np.searchsorted(edges, last), strict=True):
        touched[begin:end] = True
    moved = np.concatenate(([0], np.cumsum(np.diff(edges) * touched)))
    number = {int(row): place for place, row in enumerate(rows)}
    deps = [[number[dep] for dep in schedule.deps(int(row)).tolist() if dep in number] for row in rows]
    return schedule.replace(
        nbytes=int(moved[-1]),
        offset=moved[np.searchsorted(edges, first)],
        length=moved[np.searchsorted(edges, last)] - moved[np.searchsorted(edges, first)],
        route=schedule.route[rows],
        reduce=schedule.reduce[rows],
        stage=schedule.stage[rows],
        segment=schedule.segment[rows],
        dep_ptr=np.concatenate(([0], np.cumsum([len(one) for one in deps]))).astype(np.int64),
        dep_idx=np.array([dep for one in deps for dep in one], np.int64),
    )
