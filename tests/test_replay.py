"""A schedule as copies and folds: exact in order, and free of races when ranks run beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import SimulationError
from optcc.runtime.devices.host import Array, Op, divide, dtype_of, empty, reduction_of
from optcc.runtime.engine.replay import Place, Step, Steps, run_steps, steps_of
from optcc.runtime.evidence.payload import fill, is_exact, reference
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from tests.broken_schedules import in_a_circle, nested
from tests.conftest import clusters
from tests.effort import examples

REDUCTIONS = ["sum", "prod", "min", "max", "avg"]


def inputs(schedule: Schedule, dtype: str, op: Op) -> list[Array]:
    made = [empty(schedule.nbytes // dtype_of(dtype).itemsize, dtype_of(dtype)) for _ in range(schedule.ranks)]
    for rank, buffer in enumerate(made):
        fill(buffer, rank=rank, ranks=schedule.ranks, op=op)
    return made


def exact(plan: Steps, schedule: Schedule, dtype: str = "float32", reduction: str = "sum") -> bool:
    wanted = reduction_of(reduction)
    buffers = inputs(schedule, dtype, wanted.fold)
    run_steps(plan, buffers, wanted)
    expected = reference(len(buffers[0]), dtype_of(dtype), ranks=schedule.ranks, op=wanted.fold)
    if wanted.mean:
        divide(expected, schedule.ranks)
    return all(is_exact(buffer, expected) for buffer in buffers)


def accesses(step: Step) -> Iterator[tuple[Place, bool]]:
    """(where, is it written)"""
    yield step.source, False
    yield step.out, True
    if step.own is not None:
        yield step.own, False
    if step.also is not None:
        yield step.also, True


def meet(a: Place, b: Place) -> bool:
    if (a.rank, a.slot) != (b.rank, b.slot):
        return False
    return a.slot >= 0 or (a.offset < b.offset + b.length and b.offset < a.offset + a.length)


def races(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Pairs of steps that touch the same bytes, one of them writing, with nothing that orders them."""
    ordered = np.zeros((len(steps), len(steps)), bool)  # ordered[i, j]: j comes before i
    latest: dict[int, int] = {}
    for i, step in enumerate(steps):
        for before in (*step.after, *([latest[step.rank]] if step.rank in latest else [])):
            ordered[i] |= ordered[before]
            ordered[i, before] = True
        latest[step.rank] = i
    found = []
    for i, one in enumerate(steps):
        for j in np.flatnonzero(~ordered[i, :i]).tolist():
            touched = [(a, b) for a in accesses(one) for b in accesses(steps[j]) if (a[1] or b[1]) and meet(a[0], b[0])]
            if touched:
                found.append((j, i))
    return found


@examples(40)
@given(cluster=clusters(min_ranks=1, max_ranks=6, symmetric=False), elements=st.integers(1, 4000), data=st.data())
def test_every_plan_is_exact_and_without_races(cluster: Cluster, elements: int, data: st.DataObject) -> None:
    dtype, reduction = (
        data.draw(st.sampled_from(["float32", "bfloat16", "int8"])),
        data.draw(st.sampled_from(REDUCTIONS)),
    )
    itemsize = dtype_of(dtype).itemsize
    schedule = optcc.plan(cluster, elements * itemsize, segments=data.draw(st.integers(1, 4))).schedule()
    for fused in (False, True):
        plan = steps_of(schedule, itemsize, fused=fused)
        assert exact(plan, schedule, dtype, reduction)
        assert races(plan.steps) == []


@pytest.mark.parametrize("fused", [False, True])
def test_ranks_in_any_order_that_the_events_allow(fused: bool) -> None:
    """Streams may run ahead of each other: any interleaving gives the same bits."""
    schedule = nested()
    plan = steps_of(schedule, 4, fused=fused)
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(schedule.nbytes // 4).astype(np.float32) for _ in range(schedule.ranks)]
    first = [value.copy() for value in values]
    run_steps(plan, first, reduction_of("sum"))
    for _ in range(5):
        queues = [[i for i, step in enumerate(plan.steps) if step.rank == rank] for rank in range(schedule.ranks)]
        done: set[int] = set()
        order: list[Step] = []
        while any(queues):
            ready = [queue for queue in queues if queue and set(plan.steps[queue[0]].after) <= done]
            index = ready[rng.integers(len(ready))].pop(0)
            done.add(index)
            order.append(plan.steps[index])
        again = [value.copy() for value in values]
        run_steps(Steps(tuple(order), plan.slot_bytes), again, reduction_of("sum"))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))


def test_the_order_of_folds_shows_in_these_values() -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(1000).astype(np.float32) for _ in range(3))
    assert ((a + b) + c).tobytes() != (a + (b + c)).tobytes()


def test_a_missing_event_is_a_race() -> None:
    plan = steps_of(nested(), 4, fused=True)
    found = 0
    for index, step in enumerate(plan.steps):
        if step.after:
            less = [*plan.steps[:index], step._replace(after=step.after[1:]), *plan.steps[index + 1 :]]
            found += bool(races(less))
    assert found > len(plan.steps) // 3


def test_fusing_saves_a_pass_per_reduce() -> None:
    schedule = nested()
    apart, fused = steps_of(schedule, 4), steps_of(schedule, 4, fused=True)
    reduced = int(schedule.length[schedule.reduce].sum())
    copied = int(schedule.length.sum()) - reduced
    assert apart.traffic == (2 + 3) * reduced + 2 * copied
    assert len(apart.steps) == len(schedule) + int(schedule.reduce.sum())
    assert len(fused.steps) < len(apart.steps)
    assert fused.traffic < 0.8 * apart.traffic


def test_a_missing_step_shows() -> None:
    schedule = nested()
    for fused in (False, True):
        plan = steps_of(schedule, 4, fused=fused)
        for index in range(0, len(plan.steps), 5):
            steps = (*plan.steps[:index], *plan.steps[index + 1 :])
            assert not exact(Steps(steps, plan.slot_bytes), schedule), f"without step {index}"


def test_a_circle_is_a_deadlock() -> None:
    with pytest.raises(SimulationError, match="wait for each other"):
        steps_of(in_a_circle(nested()), 4)
