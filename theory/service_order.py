"""The best sizes of a schedule's segments while every port keeps its order of service: a linear program.

In a simulated run each port serves its stripes in some order. Keep these orders and let the sizes vary. Then every time
is a longest path through sums of sizes, and the makespan is the largest of linear functions of the sizes. The sizes
that minimise it are a linear program, exact for these orders. The dual is a mixture of critical paths.

The simulator, given the new sizes, may serve in other orders, so `refine` goes round: simulate, solve, simulate, and
keeps the best run. The program has two variables per stripe and is meant for thousands of stripes, not millions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from optcc.errors import InputError, OptccError
from optcc.simulation.simulator import Simulation
from optcc.theory.ramps import Sizes

MAX_STRIPES = 20_000
"""Beyond this the program takes minutes; use ramps.py."""

_DENOMINATOR = 10**6


@dataclass(frozen=True)
class OrderedSizes:
    """Sizes (sum 1), the `seconds` their critical path takes in the given orders, and the gap to the orders'
    optimum.
    """

    sizes: Sizes
    seconds: float
    gap: float


class ServiceOrder:
    """The constraints of one run: A z <= b with z = (start, landing) of every stripe, the makespan, the sizes; seconds.

    `sizes` are those the run had; `alpha_s` and `chunk_s` are what it was simulated with.
    """

    def __init__(self, run: Simulation, sizes: Sizes, *, alpha_s: float = 0.0, chunk_s: float = 0.0) -> None:
        stripes, schedule = run.stripes, run.schedule
        self.count, self.segments = len(stripes.row), len(sizes)
        if self.count > MAX_STRIPES:
            raise InputError(
                "too many stripes for a program", where="schedule", expected=f"at most {MAX_STRIPES}", got=self.count
            )
        self.chunk_s, self.alpha_s = chunk_s, alpha_s
        self.segment = schedule.segment[stripes.row].astype(np.int64)
        share = stripes.length / np.array([float(size) for size in sizes])[self.segment]
        self.out_work = share / np.array([port.out_rate for port in schedule.ports])[stripes.out]
        self.in_work = share / np.array([port.in_rate for port in schedule.ports])[stripes.into]
        self.sent_before = _pairs(stripes.out, run.stripe_start)
        self.landed_before = _pairs(stripes.into, run.land_end)
        deps = np.repeat(np.arange(len(schedule)), np.diff(schedule.dep_ptr))
        self.waits = _products(stripes.ptr, schedule.dep_idx, deps)
        self.by_time = np.lexsort((np.repeat([1, 0], self.count), np.concatenate((run.stripe_start, run.land_end))))

    def program(self) -> tuple[Any, NDArray[np.float64]]:
        """A (sparse) and b. Columns: starts, landings, makespan, sizes."""
        n, each = self.count, np.arange(self.count)
        start, land, end, size = each, n + each, np.full(n, 2 * n), 2 * n + 1 + self.segment
        longest = np.maximum(self.out_work, self.in_work)
        (before, after), (earlier, later), (dep, row) = self.sent_before.T, self.landed_before.T, self.waits.T
        blocks = [
            # start + work + alpha <= landing; landing <= makespan; dependencies; out ports; in ports
            ([start, land, size], [1.0, -1.0, longest], -self.alpha_s - self.chunk_s),
            ([land, end], [1.0, -1.0], 0.0),
            ([land[dep], start[row]], [1.0, -1.0], 0.0),
            ([start[before], start[after], size[before]], [1.0, -1.0, self.out_work[before]], -self.chunk_s),
            ([land[earlier], land[later], size[later]], [1.0, -1.0, self.in_work[later]], -self.chunk_s),
        ]
        rows, columns, values, limits, done = [], [], [], [], 0
        for where, what, limit in blocks:
            here = np.arange(done, done + len(where[0]))
            for column, value in zip(where, what, strict=True):
                rows.append(here)
                columns.append(column)
                values.append(np.broadcast_to(value, len(here)))
            limits.append(np.full(len(here), limit))
            done += len(here)
        shape = (done, 2 * n + 1 + self.segments)
        matrix = coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape)
        return matrix.tocsr(), np.concatenate(limits)

    def seconds(self, sizes: Sizes) -> float:
        """The critical path at `sizes`, by following the run's own order of events; knows nothing of the program."""
        scale = np.array([float(size) for size in sizes])[self.segment]
        out_work, in_work = self.out_work * scale + self.chunk_s, self.in_work * scale + self.chunk_s
        start, land = np.zeros(self.count), np.zeros(self.count)
        sent_after: dict[int, int] = {int(b): int(a) for a, b in self.sent_before}
        landed_after: dict[int, int] = {int(b): int(a) for a, b in self.landed_before}
        waits: dict[int, list[int]] = {}
        for dep, row in self.waits:
            waits.setdefault(int(row), []).append(int(dep))
        for event in self.by_time:
            i = int(event % self.count)
            if event < self.count:
                start[i] = max((land[dep] for dep in waits.get(i, ())), default=0.0)
                if i in sent_after:
                    start[i] = max(start[i], start[sent_after[i]] + out_work[sent_after[i]])
            else:
                land[i] = start[i] + max(out_work[i], in_work[i]) + self.alpha_s
                if i in landed_after:
                    land[i] = max(land[i], land[landed_after[i]] + in_work[i])
        return float(land.max(initial=0.0))


def best_sizes(order: ServiceOrder, start: Sizes) -> OrderedSizes:
    """The sizes with the shortest critical path in `order`, never longer than that of `start`.

    None falls below 1/64 of an equal one: what such a segment saves is less than its messages cost.
    """
    matrix, limits = order.program()
    horizon = order.seconds(start)
    z = cp.Variable(matrix.shape[1], nonneg=True)
    sizes, makespan = z[2 * order.count + 1 :], z[2 * order.count]
    floor = 1 / (64 * order.segments)
    # In units of the horizon, so that the solver sees numbers near 1.
    scaled = matrix.tocoo()
    is_size = scaled.col > 2 * order.count
    values = np.where(is_size, scaled.data / horizon, scaled.data)
    unit = coo_array((values, (scaled.row, scaled.col)), matrix.shape).tocsr()
    obey = unit @ z <= limits / horizon
    program = cp.Problem(cp.Minimize(makespan), [obey, cp.sum(sizes) == 1, sizes >= floor])
    program.solve(solver=cp.HIGHS)
    if z.value is None or sizes.value is None:
        raise OptccError(f"the linear program over the segments' sizes has no solution: {program.status}")
    found = _rational(sizes.value)
    seconds = order.seconds(found)
    if seconds > horizon:
        found, seconds = start, horizon
    bound = horizon * _dual_bound(order, unit, limits / horizon, np.maximum(obey.dual_value, 0.0), floor)
    return OrderedSizes(found, seconds, seconds / bound - 1)


def refine(
    simulated: Callable[[Sizes], Simulation],
    starts: Iterable[Sizes],
    *,
    rounds: int = 4,
    alpha_s: float = 0.0,
    chunk_s: float = 0.0,
) -> tuple[Sizes, float]:
    """Simulate and solve in turn, from each start, at most `rounds` times: the best sizes seen and their seconds.

    Never worse than any of `starts`. `alpha_s` and `chunk_s` are what `simulated` simulates with.
    """
    seen: dict[Sizes, float] = {}
    for start in starts:
        sizes = start
        for _ in range(rounds + 1):
            if sizes in seen:
                break
            run = simulated(sizes)
            seen[sizes] = run.time_s
            sizes = best_sizes(ServiceOrder(run, sizes, alpha_s=alpha_s, chunk_s=chunk_s), sizes).sizes
    return min(seen.items(), key=lambda pair: pair[1])


def _pairs(port: NDArray[np.int32], when: NDArray[np.float64]) -> NDArray[np.int64]:
    """int64, shape (pairs, 2): (stripe, next stripe at the same port) in the order of `when`."""
    order = np.lexsort((when, port))
    same = port[order[:-1]] == port[order[1:]]
    return np.stack((order[:-1][same], order[1:][same]), axis=1)


def _products(ptr: NDArray[np.int64], deps: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64, shape (pairs, 2): (stripe of a dependency, stripe of the row that waits for it)."""
    pairs = [
        (i, j)
        for d, r in zip(deps, rows, strict=True)
        for i in range(ptr[d], ptr[d + 1])
        for j in range(ptr[r], ptr[r + 1])
    ]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _rational(values: NDArray[np.float64]) -> Sizes:
    parts = [Fraction(round(float(value) * _DENOMINATOR), _DENOMINATOR) for value in values]
    largest = parts.index(max(parts))
    parts[largest] += 1 - sum(parts)
    return tuple(parts)


def _dual_bound(
    order: ServiceOrder, matrix: Any, limits: NDArray[np.float64], prices: NDArray[np.float64], floor: float
) -> float:
    """A makespan, in horizons, that no sizes undercut in these orders, for any prices >= 0 on the constraints.

    makespan >= makespan + prices (A z - b). The remainder of a time's coefficient counts at its worst between 0 and the
    horizon, the remainder of the sizes' at its least over all sizes.
    """
    left = matrix.T @ prices
    times, sizes = left[: 2 * order.count + 1], left[2 * order.count + 1 :]
    times[-1] += 1.0
    spread = floor * sizes.sum() + (1 - floor * len(sizes)) * sizes.min()
    return float(np.minimum(times, 0.0).sum() + spread - prices @ limits)
