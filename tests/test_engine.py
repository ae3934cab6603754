"""The engine in virtual time: exact results, the simulator's times, and every planted fault noticed."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError, SimulationError
from optcc.runtime.devices.host import DTYPES, Array, Op, dtype_of, empty
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.priority import ReadyQueue
from optcc.runtime.engine.program import Move, program_of
from optcc.runtime.engine.transport import Landing, Take
from optcc.runtime.errors import TransportError
from optcc.runtime.evidence.payload import fill, is_exact, reference
from optcc.runtime.measuring.virtual_run import run_virtual
from optcc.schedule import Lane, Port, Route, Schedule
from optcc.values.cluster import Cluster
from tests.broken_schedules import in_a_circle, nested, waiting_also, with_rows
from tests.conftest import clusters
from tests.effort import examples


def run(schedule: Schedule, dtype: str = "float32", op: Op = Op.SUM) -> tuple[float, list[bool]]:
    """(virtual seconds, exact by rank)"""
    count = schedule.nbytes // dtype_of(dtype).itemsize
    buffers = [empty(count, dtype_of(dtype)) for _ in range(schedule.ranks)]
    for rank, buffer in enumerate(buffers):
        fill(buffer, rank=rank, ranks=schedule.ranks, op=op)
    seconds = run_virtual(schedule, buffers, op)
    expected = reference(count, dtype_of(dtype), ranks=schedule.ranks, op=op)
    return seconds, [is_exact(buffer, expected) for buffer in buffers]


@pytest.mark.parametrize("weak", [0, 1, 3])
@pytest.mark.parametrize("algorithm", ["optcc", "ring"])
def test_exact_and_on_the_simulators_time(weak: int, algorithm: str) -> None:
    cluster = Cluster.uniform(servers=5, nics=4, rate=10**9)
    for server in range(weak):
        cluster = cluster.degrade(f"server{server}/nic0")
    plan = optcc.plan(cluster, 2**20, segments=16)
    schedule = plan.baseline(algorithm).schedule()
    seconds, exact = run(schedule)
    assert exact == [True] * 5
    # Ties are broken by rounding here and by number there, hence the tolerance.
    assert seconds == pytest.approx(optcc.simulate(schedule).time_s, rel=0.02)
    assert seconds >= float(plan.bound.seconds) * (1 - 1e-9)


@examples(40)
@given(cluster=clusters(min_ranks=1, max_ranks=6, symmetric=False), elements=st.integers(1, 4000), data=st.data())
def test_every_plan_runs_exactly(cluster: Cluster, elements: int, data: st.DataObject) -> None:
    dtype, op = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(Op))
    plan = optcc.plan(cluster, elements * dtype_of(dtype).itemsize, segments=data.draw(st.integers(1, 5)))
    seconds, exact = run(plan.schedule(), dtype, op)
    assert exact == [True] * len(cluster.ranks)
    assert seconds >= float(plan.bound.seconds) * (1 - 1e-9)


def test_one_rank_has_nothing_to_do() -> None:
    assert run(nested(ranks=1, weak=0)) == (0.0, [True])


def test_a_dropped_transfer_shows() -> None:
    schedule = nested()
    for row in range(0, len(schedule), 3):
        _, exact = run(with_rows(schedule, [i for i in range(len(schedule)) if i != row]))
        assert not all(exact), f"without transfer {row}"


def test_a_doubled_reduce_shows() -> None:
    schedule = nested()
    for row in np.flatnonzero(schedule.reduce)[::3].tolist():
        _, exact = run(with_rows(schedule, [*range(row + 1), *range(row, len(schedule))]))
        assert not all(exact), f"transfer {row} twice"


def test_a_circle_of_dependencies_is_a_deadlock() -> None:
    with pytest.raises(SimulationError, match=r"deadlock: rank \d .* to receive"):
        run(in_a_circle(nested()))


def test_a_dependency_that_ends_elsewhere_is_refused() -> None:
    schedule = nested()
    elsewhere = int(np.flatnonzero(schedule.dst != schedule.src[-1])[0])
    with pytest.raises(InputError, match=f"waits for transfer {elsewhere}, which does not end there"):
        run(waiting_also(schedule, len(schedule) - 1, elsewhere))


def test_a_cut_element_is_refused() -> None:
    schedule = nested()
    with pytest.raises(InputError, match="whole elements"):
        run(schedule.replace(length=schedule.length - 2))
    with pytest.raises(InputError, match="whole elements"):
        run(schedule.replace(length=schedule.length * 0))


class Script:
    """A transport that does what the test says; the routes in `closed` take nothing."""

    def __init__(self) -> None:
        self.posted: list[tuple[int, bytes, float]] = []
        self.closed: dict[int, float] = {}

    def drain(self) -> bool:
        return True

    def free_at(self, route: int, now: float) -> float:
        return self.closed.get(route, -math.inf)

    def post(self, move: Move, payload: memoryview, ready: float) -> None:
        self.posted.append((move.row, bytes(payload), ready))

    def poll(self, until: float, take: Take) -> list[Landing]:
        raise AssertionError("the test calls the engine itself")


def land(engine: Engine, row: int, values: Array, at: float = 0.0) -> None:
    data, offset = values.tobytes(), star().offset[row]
    half = len(data) // 8 * 4
    for start, stop in ((half, len(data)), (0, half)):  # in pieces, not in order
        engine.take(row, int(offset) + start, memoryview(data)[start:stop])
    engine.landed(row, at)


def star() -> Schedule:
    """Ranks 1, 2, 3 reduce into 16, 16 and 8 bytes of rank 0 (rows 0, 1, 2), at 0, 0 and 8; when all three are done,
    it sends the first 8 bytes to rank 1 (row 3) and the last 8 to rank 2 (row 4)."""
    pairs = [(1, 0), (2, 0), (3, 0), (0, 1), (0, 2)]
    return Schedule(
        ranks=4,
        nbytes=16,
        ports=tuple(Port(f"server{rank}/nic0", rank, 1e3, 1e3) for rank in range(4)),
        routes=tuple(Route(src, dst, (Lane(src, dst, Fraction(1)),)) for src, dst in pairs),
        route=np.arange(5, dtype=np.int32),
        offset=np.array([0, 0, 8, 0, 8]),
        length=np.array([16, 16, 8, 8, 8]),
        reduce=np.array([True, True, True, False, False]),
        stage=np.ones(5, np.uint8),
        segment=np.zeros(5, np.int32),
        dep_ptr=np.array([0, 0, 0, 0, 3, 6]),
        dep_idx=np.array([0, 1, 2, 0, 1, 2]),
    )


def center(script: Script, clock: Callable[[], float] = lambda: 0.0) -> tuple[Engine, Array]:
    """Rank 0 of the star, its buffer zeros."""
    buffer = np.zeros(4, np.float32)
    return Engine(program_of(star(), 0, 4), buffer, Op.SUM, script, clock), buffer


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_folds_happen_in_row_order(order: tuple[int, ...]) -> None:
    # In float32 these sums differ by the order of the terms.
    terms = [np.array(term, np.float32) for term in ([1e8] * 4, [-1e8, 1, -1e8, 1], [1, -1e8])]
    script = Script()
    engine, buffer = center(script)
    for row in order:
        assert script.posted == []
        land(engine, row, terms[row], at=10.0 + row)
        engine.post_ready()
    by_row = np.zeros(4, np.float32) + terms[0] + terms[1]
    by_row[2:] += terms[2]
    assert buffer.tobytes() == by_row.tobytes()
    halves = by_row[:2].tobytes(), by_row[2:].tobytes()
    assert script.posted == [(3, halves[0], 12.0), (4, halves[1], 12.0)], "ready since the last landing"
    assert engine.finished


def test_the_row_order_test_can_fail() -> None:
    terms = np.array([1e8, 1, -1e8], np.float32)
    assert np.cumsum(terms)[-1] != np.cumsum(terms[[0, 2, 1]])[-1]


def test_the_lowest_row_goes_first_where_there_is_room() -> None:
    script = Script()
    engine, _ = center(script)
    script.closed = {3: 5.0}
    for row in range(3):
        land(engine, row, np.zeros(2 if row == 2 else 4, np.float32))
    assert engine.post_ready() == 5.0
    assert [row for row, _, _ in script.posted] == [4], "row 3 has no room before 5.0"
    script.closed = {}
    assert engine.post_ready() == math.inf
    assert [row for row, _, _ in script.posted] == [4, 3]


def test_what_waits_for_nothing_is_ready_from_the_beginning() -> None:
    script, now = Script(), [3.0]
    engine = Engine(program_of(star(), 2, 4), np.zeros(4, np.float32), Op.SUM, script, lambda: now[0])
    engine.begin()
    now[0] = 4.0
    engine.post_ready()
    assert [(row, ready) for row, _, ready in script.posted] == [(1, 3.0)]


def test_a_queue_takes_the_lowest_row_that_was_ready_in_time() -> None:
    queue = ReadyQueue()
    assert not queue
    for row, since in ((5, 1.0), (7, 0.5), (2, 3.0), (9, 2.0)):
        queue.push(row, since)
    order = []
    free = 1.5  # two seconds late, all four are there; each keeps the ports busy for one
    while queue:
        start, row = queue.first(free)
        queue.pop()
        order.append((row, start))
        free = start + 1.0
    assert order == [(5, 1.5), (7, 2.5), (2, 3.5), (9, 4.5)]


def test_a_queue_does_not_let_ports_idle_for_a_lower_row() -> None:
    queue = ReadyQueue()
    queue.push(1, 3.0)
    queue.push(8, 2.0)
    assert queue.first(0.0) == (2.0, 8)
    queue.pop()
    assert queue.first(2.5) == (3.0, 1)
    queue.pop()
    assert not queue


@pytest.mark.parametrize("row", [3, 99])
def test_a_stray_transfer_is_refused(row: int) -> None:
    engine, _ = center(Script())
    with pytest.raises(TransportError, match=f"got transfer {row}, which it does not expect"):
        engine.take(row, 0, memoryview(bytes(4)))


def test_a_transfer_that_comes_twice_is_refused() -> None:
    engine, _ = center(Script())
    land(engine, 0, np.zeros(4, np.float32))
    with pytest.raises(TransportError, match="does not expect"):
        engine.take(0, 0, memoryview(bytes(4)))


def test_progress_and_what_is_missing() -> None:
    engine, _ = center(Script())
    assert (engine.progress, engine.waiting_for()) == (
        0,
        "3 transfers to receive, 2 to send, first transfer 0 from rank 1",
    )
    land(engine, 0, np.zeros(4, np.float32))
    assert (engine.progress, engine.waiting_for()) == (
        1,
        "2 transfers to receive, 2 to send, first transfer 1 from rank 2",
    )
