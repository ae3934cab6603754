"""Cells of the evaluation, and the grids that they make."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from optcc.evaluation.cells import FAULT_FREE, OPTCC, Cell
from optcc.evaluation.grid import FULL, MIB, QUICK, SCHEMES
from optcc.evaluation.markdown import percent
from optcc.evaluation.studies import Star
from optcc.evaluation.tasks import run_all
from tests.evaluations import TINY


def test_a_scheme_that_does_not_apply_has_no_time() -> None:
    outcome = Cell(4, (1, 1), MIB, "r2cc").run()
    assert np.isnan(outcome.time_s)
    assert "one degraded server" in outcome.refused
    assert percent(outcome.time_s) == "-"


def test_dead_nics_of_a_cell() -> None:
    def dead(cell: Cell) -> list[str]:
        return [f"{s.name}/{nic.name}" for s in cell.cluster.servers for nic in s.nics if not nic.alive]

    cell = Cell(4, (2, 1), MIB, OPTCC)
    assert dead(cell) == ["server0/nic0", "server0/nic1", "server1/nic0"]
    assert dead(replace(cell, staggered=True)) == ["server0/nic0", "server0/nic1", "server1/nic1"]
    assert dead(replace(cell, staggered=True).of(FAULT_FREE)) == []


def test_a_cell_has_its_own_segments_and_costs() -> None:
    cell = Cell(4, (4,), 64 * MIB, "r2cc", 4)
    assert cell.run().segments == 4
    free = replace(cell, alpha=Fraction(0), per_chunk=Fraction(0))
    assert free.run().time_s < replace(cell, per_chunk=Fraction(0)).run().time_s < cell.run().time_s
    assert cell.of(FAULT_FREE) == Cell(4, (), 64 * MIB, FAULT_FREE)
    ring = free.of(FAULT_FREE).run()
    assert ring.time_s == ring.fault_free_s < cell.of(FAULT_FREE).run().time_s


def test_grids_hold_what_the_tables_need() -> None:
    for grid in (FULL, QUICK, TINY):
        cells = set(grid.cells())
        assert all(cell.of(FAULT_FREE) in cells for cell in cells)
        assert {c.scheme for c in grid.overheads()} == {FAULT_FREE, *SCHEMES}
        assert grid.size in grid.sizes
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


def test_star_is_within_its_limit() -> None:
    found = Star(4, QUICK.stars[0].left, 2**30).run()
    assert found.optimum == pytest.approx(2)
    assert 1 <= found.ratio <= 1.02


def test_processes_give_what_one_gives() -> None:
    cells = [Cell(3, (1,), MIB, scheme) for scheme in (OPTCC, "balance")]
    one, two = (run_all(cells, jobs=jobs, done=lambda: None) for jobs in (1, 2))
    assert one == two
