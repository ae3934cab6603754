"""Which plan for how many bytes: made by rank 0, sent to all, kept by each.

Ranks that planned by themselves could disagree in the last bit of a simulated time, and would wait for each other for
ever. So one plans, and says with the plan in which order the transfers go.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from optcc.errors import InputError, OptccError
from optcc.plans.plan import Plan
from optcc.runtime.torch.script import Program, program_of, rounds_of, rounds_script, script_of, turns_of
from optcc.runtime.torch.walk import GroupWalk, MessageWalk, Walk
from optcc.schedule import Schedule
from optcc.schedule.recipe import Costs
from optcc.values.cluster import Cluster
from optcc.values.units import format_size

log = logging.getLogger("optcc.pytorch")


Planner = Callable[[Cluster, int, Costs, int | None], Plan]
"""The plan for a cluster, bytes per rank and costs, so many segments deep, or as deep as it finds best (None).

Called on rank 0 alone."""

GLOO = Costs(Fraction(3, 10**4), Fraction(2, 10**4))
"""Four Gloo processes on two cores: 300 us half a round trip, 180 us a message (docs/pytorch.md)."""
NCCL = Costs(Fraction(3, 10**5), Fraction(0))
"""H200s of one host: 12 us from one recorded group of one small message to the next, 28 with four that are added, as in
most rounds of a plan (docs/pytorch.md)."""

DEPTHS = (1, 2, 4, 8, 16, 32, 64)
"""Segments that are tried where rounds are exchanged: planned times are of messages, which go when they can."""
DEEPER = (128, 256, 512)
"""The same, for plans of few transfers: short messages fit into what NCCL buffers, and their senders are not held up.
Four ranks over TCP, 128 MiB: 1.17 times native in 64 segments, 1.36 in 128, 1.45 in 256 (docs/pytorch.md)."""
MOST_ROWS = 2**15
"""Transfers of such a plan at most: three seconds of planning."""


class Book:
    """The plans of one cluster, by bytes. Every method is collective: all ranks of `group` call it in the same order.

    planner, gain : on rank 0, the plan, and how many times faster than a ring in virtual time it must be
    """

    def __init__(self, group: dist.ProcessGroup, cluster: Cluster, planner: Planner, costs: Costs, gain: float) -> None:
        self._group, self._cluster, self._planner = group, cluster, planner
        self._costs, self._gain = costs, gain
        self._walks: dict[tuple[int, torch.dtype, torch.device], Walk | None] = {}
        self.plans: dict[int, Plan | None] = {}
        """Bytes -> the plan in force; None: native."""

    def walk(self, buffer: torch.Tensor) -> Walk | None:
        """How to sum `buffer`; None: natively. Raises InputError on all ranks where rank 0 finds no plan."""
        key = (buffer.nbytes, buffer.dtype, buffer.device)
        if key not in self._walks:
            self._walks[key] = self._agree(buffer)
        return self._walks[key]

    def _agree(self, buffer: torch.Tensor) -> Walk | None:
        said = b""
        if dist.get_rank(self._group) == 0:
            said = _said(lambda: self._choose(buffer.nbytes, buffer.device.type != "cpu"))
        said = broadcast(said, self._group, buffer.device)
        head, _, turns = said.partition(b"\n")
        message = json.loads(head)
        if "error" in message:
            raise InputError(message["error"], where="the plan of rank 0")
        size = format_size(buffer.nbytes)
        if message["plan"] is None:
            log.info("buckets of %s: no plan is %g times as fast as a ring: native", size, self._gain)
            self.plans[buffer.nbytes] = None
            return None
        plan = Plan.from_bytes(b64decode(message["plan"]), "the plan of rank 0")
        log.info("buckets of %s: by plan, %s in %d segments", size, plan.family, plan.segments)
        self.plans[buffer.nbytes] = plan
        schedule = plan.schedule()
        order = np.frombuffer(turns, np.int32)
        return walk_of(schedule, order, self._group, buffer.element_size(), buffer.device, _round_s(plan))

    def _choose(self, nbytes: int, grouped: bool) -> tuple[Plan, bytes] | None:
        """A plan and the order of its transfers; None where a ring is about as fast. Seconds are virtual ones."""
        plan, turns, time_s, ring_s = self._deepened(nbytes) if grouped else self._messages(nbytes)
        return (plan, turns.tobytes()) if time_s * self._gain < ring_s else None

    def _messages(self, nbytes: int) -> _Tried:
        plan = self._planner(self._cluster, nbytes, self._costs, None)
        turns, time_s = _virtual(plan.schedule(), self._costs)
        _, ring_s = _virtual(plan.baseline("ring").schedule(), self._costs)
        return _Tried(plan, turns, time_s, ring_s)

    def _deepened(self, nbytes: int) -> _Tried:
        tried = [self._rounds(nbytes, segments) for segments in DEPTHS]
        for segments in DEEPER:
            if segments // DEPTHS[-1] * len(tried[len(DEPTHS) - 1].turns) <= MOST_ROWS:
                tried.append(self._rounds(nbytes, segments))
        return min(tried, key=lambda one: one.time_s)

    def _rounds(self, nbytes: int, segments: int) -> _Tried:
        plan = self._planner(self._cluster, nbytes, self._costs, segments)
        schedule = plan.schedule()
        turns, _ = _virtual(schedule, Costs())
        rounds = rounds_of(schedule, _programs(schedule, 1), turns, _round_s(plan))
        time_s = sum(rounds.seconds) + float(self._costs.alpha) * len(rounds.seconds)
        return _Tried(plan, turns, time_s, float(plan.baseline("ring").fluid_s))


def load(planner: Planner) -> None:
    """Import and compile what plans are made with, by making one: half a minute on a machine that never did."""
    with suppress(Exception):  # a planner that fails says so where its plan is wanted
        plan = planner(Cluster.uniform(servers=2, rate=1000), 4096, GLOO, None)
        _virtual(plan.schedule(), GLOO)


class _Tried(NamedTuple):
    plan: Plan
    turns: NDArray[np.int32]
    time_s: float
    ring_s: float


def _virtual(schedule: Schedule, costs: Costs) -> tuple[NDArray[np.int32], float]:
    """The order of a schedule's transfers in virtual time, and the seconds they take."""
    from optcc.simulation.simulator import simulate

    simulated = simulate(schedule, alpha=costs.alpha, per_chunk=costs.per_chunk)
    return turns_of(schedule, _programs(schedule, 1), simulated.finish), simulated.time_s


def _programs(schedule: Schedule, itemsize: int) -> list[Program]:
    return [program_of(schedule, rank, itemsize) for rank in range(schedule.ranks)]


def walk_of(
    schedule: Schedule,
    turns: NDArray[np.int32],
    group: dist.ProcessGroup,
    itemsize: int,
    device: torch.device,
    round_s: float = 0.0,
) -> Walk:
    """This rank's walk of a schedule, rank r of which is rank r of `group`, in the order `turns`.

    round_s : seconds of a round, where groups of calls are exchanged; 0: a round for each step that must come later
    """
    if schedule.ranks != dist.get_world_size(group) or sorted(turns.tolist()) != list(range(len(schedule))):
        raise InputError("not the schedule of this group", where="plan", expected="as many ranks, and each row's turn")
    rank = dist.get_rank(group)
    if device.type == "cpu":
        deps = {row: schedule.deps(row).tolist() for row in np.flatnonzero(schedule.src == rank).tolist()}
        return MessageWalk(script_of(program_of(schedule, rank, itemsize), turns, deps), group)
    programs = _programs(schedule, itemsize)
    rounds = rounds_of(schedule, programs, turns, round_s)
    return GroupWalk(rounds_script(programs[rank], turns, rounds.of), group)


def _round_s(plan: Plan) -> float:
    """What a port does in one segment's time: shorter rounds wait for each other more often, longer ones idle."""
    return float(plan.fluid_s / plan.segments) * 1.01


def _said(choose: Callable[[], tuple[Plan, bytes] | None]) -> bytes:
    """What rank 0 tells the others, an error too: else they would wait for it."""
    try:
        chosen = choose()
    except OptccError as error:
        return json.dumps({"error": str(error)}).encode() + b"\n"
    except Exception as error:  # whatever it is, the others are waiting
        return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n"
    if chosen is None:
        return json.dumps({"plan": None}).encode() + b"\n"
    plan, turns = chosen
    return json.dumps({"plan": b64encode(plan.to_bytes(packed=True)).decode()}).encode() + b"\n" + turns


def broadcast(text: bytes, group: dist.ProcessGroup, device: torch.device) -> bytes:
    """Rank 0's `text`, on all ranks of `group`."""
    source = dist.get_process_group_ranks(group)[0]
    length = torch.tensor([len(text)], dtype=torch.int64, device=device)
    dist.broadcast(length, source, group)
    if dist.get_rank(group) == 0:
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    else:
        data = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    dist.broadcast(data, source, group)
    return bytes(data.cpu().numpy())
