"""The matrix of faults and random cuts over the compiled path."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from tests import compiled_rig
from tests.failover_cuts import cut
from tests.failover_matrix import ROWS, cases, every
from tests.failover_rig import Rig
from tests.failover_runs import InconclusiveError, conclusive
from tests.test_wires import connect

pytestmark = pytest.mark.usefixtures("compiled")


LENT_BYTES = 1 << 20
"""More than any buffer of the matrix."""


@pytest.mark.parametrize(("number", "how"), cases(every(), pytest.mark.long))
def test_failover(number: int, how: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of the matrix of faults, from buffers that are lent; its strikes are at moments that the compiled path
    goes through."""
    monkeypatch.setattr(Rig, "engine", compiled_rig.engine)
    compiled_rig.taken.clear()
    assert conclusive(lambda: ROWS[number].run(partial(connect, lent_bytes=LENT_BYTES), **how))
    assert sum(compiled_rig.taken) > 0


def test_random_cuts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "engine", compiled_rig.engine)
    first = int(request.config.getoption("--hypothesis-seed"))
    hits = 0
    for seed in range(first, first + 6):
        try:
            hits += bool(cut(partial(connect, lent_bytes=seed % 2 * LENT_BYTES), seed).moved)
        except InconclusiveError:
            continue
        except Exception as error:
            raise AssertionError(f"cut({seed}): {error}") from error
    assert hits > 0
