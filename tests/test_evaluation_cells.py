"""Cells of the evaluation, and the grids that they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest

import optcc
from optcc.evaluation.cells import FAULT_FREE, OPTCC, PER_CHUNK, PER_CHUNKS, EvaluationCell
from optcc.evaluation.grid import FULL, GIB, MIB, QUICK, SCHEMES
from optcc.evaluation.markdown import percent
from optcc.evaluation.straggler import stragglers
from optcc.evaluation.studies import Star
from optcc.evaluation.tasks import run_all
from tests.evaluations import TINY


def test_a_scheme_that_does_not_apply_has_no_time() -> None:
    outcome = EvaluationCell(4, (1, 1), MIB, "r2cc").run()
    assert np.isnan(outcome.time_s)
    assert "one degraded server" in outcome.refused
    assert percent(outcome.time_s) == "-"


def test_dead_nics_of_a_cell() -> None:
    def dead(cell: EvaluationCell) -> list[str]:
        return [f"{s.name}/{nic.name}" for s in cell.cluster.servers for nic in s.nics if not nic.alive]

    cell = EvaluationCell(4, (2, 1), MIB, OPTCC)
    assert dead(cell) == ["server0/nic0", "server0/nic1", "server1/nic0"]
    assert dead(replace(cell, staggered=True)) == ["server0/nic0", "server0/nic1", "server1/nic1"]
    assert dead(replace(cell, staggered=True).of(FAULT_FREE)) == []


@pytest.mark.long
def test_a_cell_has_its_own_costs() -> None:
    cell = EvaluationCell(4, (4,), 64 * MIB, "r2cc")
    free = replace(cell, alpha=Fraction(0), per_chunk=Fraction(0))
    found = [each.run() for each in (free, replace(cell, per_chunk=Fraction(0)), cell)]
    assert found[0].time_s < found[1].time_s < found[2].time_s
    assert found[0].with_costs_s == found[0].bound_s < found[1].with_costs_s < found[2].with_costs_s
    assert all(outcome.over_bound > 1 and outcome.way in ("channels", "stripes") for outcome in found)
    assert cell.of(FAULT_FREE) == EvaluationCell(4, (), 64 * MIB, FAULT_FREE)
    ring = cell.of(FAULT_FREE).run()
    assert ring.bound_s == ring.fault_free_s < ring.time_s
    assert np.isnan(replace(ring, time_s=float("nan")).over_bound)


def test_the_bound_with_costs_is_that_of_its_cell() -> None:
    cell = EvaluationCell(4, (4,), 64 * MIB, "balance")
    least = optcc.lower_bound_with_costs(cell.cluster, cell.nbytes, alpha=cell.alpha, per_chunk=cell.per_chunk)
    found = cell.run()
    assert found.with_costs_s == float(least.seconds) > found.bound_s == float(least.bound.seconds)
    assert replace(cell, per_chunk=2 * cell.per_chunk).run().with_costs_s > found.with_costs_s


def test_what_takes_longest_begins_first() -> None:
    done: list[int] = []

    @dataclass(frozen=True)
    class Work:
        weight: float

        def run(self) -> None:
            done.append(int(self.weight))

    tasks = [Work(2), Work(3), Work(1)]
    assert list(run_all(tasks, jobs=1, done=lambda: None)) == tasks
    assert done == [3, 2, 1]
    small, large = EvaluationCell(8, (1,), GIB, OPTCC), EvaluationCell(64, (1,), GIB, OPTCC)
    assert small.weight < replace(small, per_chunk=Fraction(0)).weight < large.weight


def test_grids_hold_what_the_tables_need() -> None:
    for grid in (FULL, QUICK, TINY):
        cells = set(grid.cells())
        assert all(cell.of(FAULT_FREE) in cells for cell in cells)
        assert {c.scheme for c in grid.overheads()} == {FAULT_FREE, *SCHEMES}
        assert grid.size in grid.sizes
        assert PER_CHUNK in grid.per_chunks
        for cell in grid.overheads():
            assert cell.per_chunk == PER_CHUNK or cell.servers <= grid.most_servers
        assert {(p, d, o) for p, d in stragglers(grid) for o in grid.per_chunks} <= {
            (c.servers, *c.dead, c.per_chunk) for c in grid.overheads() if c.dead
        }
        for fleet in grid.fleets:
            for scheme in (OPTCC, "balance"):
                chain = grid.chain(fleet.servers, scheme)
                assert [len(cell.dead) for cell in chain] == list(range(1, len(chain) + 1))
                assert chain
                assert cells.issuperset(chain)
    several = {(f.servers, f.dead, f.staggered) for f in FULL.failures}
    assert several >= {(p, dead, False) for p in (8, 16, 32) for dead in ((4, 4), (4, 2, 1))}
    assert several >= {(16, (1,) * 4, True), (32, (1,) * 8, False)}
    assert {s.servers for s in FULL.stars} == {4, 8, 16, 32, 64}
    assert max(FULL.servers) * 8 == 1024
    assert FULL.per_chunks == QUICK.per_chunks == PER_CHUNKS
    assert [float(o) for o in PER_CHUNKS] == [0, 1e-7, 5e-7, 1e-6]


def test_star_is_within_its_limit() -> None:
    found = Star(4, QUICK.stars[0].left, 2**30).run()
    assert found.optimum == pytest.approx(2)
    assert 1 <= found.ratio <= 1.02


@pytest.mark.long
def test_processes_give_what_one_gives() -> None:
    cells = [EvaluationCell(3, (1,), MIB, scheme) for scheme in (OPTCC, "balance")]
    one, two = (run_all(cells, jobs=jobs, done=lambda: None) for jobs in (1, 2))
    assert one == two
