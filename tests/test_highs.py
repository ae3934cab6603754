"""The linear programs' way to the solver: the middle of the optimal face or a vertex, nothing out of its limits."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.sparse import csr_array

import optcc
from optcc.errors import OptccError
from optcc.theory import bound_program
from optcc.theory.bound_program import BoundProgram, maximised
from optcc.theory.program_network import build_network
from optcc.values.cluster import Cluster, Fabric

ROWS = csr_array(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]))
LOW, HIGH = np.array([-np.inf, 1.0]), np.array([2.0, 1.0])


def test_the_middle_of_the_face_and_a_vertex() -> None:
    """Of tree pairs for many alike ranks most ways take part in the middle, few at a vertex."""
    hit = replace(Cluster.uniform(servers=6, nics=2, rate=1000), fabric=Fabric(rails=True))
    for i in range(3):
        hit = hit.degrade(f"server{i}/nic{i % 2}", Fraction(1 + i, 4))
    program = BoundProgram(build_network(hit))
    program.solve()
    middle, vertex = (program._solve_once(vertex=each) for each in (False, True))
    assert middle.rate == pytest.approx(vertex.rate, rel=1e-5)
    used = [(np.concatenate([point.broadcast, point.roots]) > 1e-6 * point.rate).sum() for point in (middle, vertex)]
    assert used[0] > 1.5 * used[1]
    assert (vertex.prices > 0).any()


def test_without_an_optimum_there_is_nothing() -> None:
    assert maximised(np.ones(3), ROWS[1:], LOW[1:], np.array([np.inf]), vertex=False) is None  # no limit
    assert maximised(np.ones(3), ROWS, LOW, np.array([-1.0, 1.0]), vertex=True) is None  # x0 is at least 0


def test_an_option_that_is_not_taken_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_program, "LIMIT_S", "no time")
    with pytest.raises(OptccError, match="time_limit=no time"):
        maximised(np.ones(3), ROWS, LOW, HIGH, vertex=True)


def test_cuts_are_kept_by_more_than_the_margin() -> None:
    """Told to maximise, HiGHS 1.15 was outside by all of its tolerance here, as much as the margin of cuts."""
    gpus = replace(Cluster.uniform(servers=4, nics=2, rate=1000, gpus=2, nvlink_rate=6400), gpu_ranks=True)
    hit = gpus.degrade("server0/nic1").degrade("server1/nic0")
    assert optcc.lower_bound(hit, 1000).seconds == pytest.approx(Fraction(1), rel=1e-6)


def test_solvers_print_nothing() -> None:
    """HiGHS 1.16.0 does, where programs of ours print JSON. From C: only another process shows it."""
    code = """if True:
        from fractions import Fraction
        import numpy as np
        from scipy.sparse import csr_array
        from optcc.theory.bound_program import maximised
        from optcc.theory.splits import split_program
        one = np.ones(1)
        assert maximised(one, csr_array(np.ones((1, 1))), one, one, vertex=True)
        split_program([Fraction(1), Fraction(1), Fraction(1, 2)])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == ""
