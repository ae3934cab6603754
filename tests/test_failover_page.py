"""The row of docs/bench-failover.md that is about the pure machines: it can tell losses, and runs that say nothing."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from benchmarks import bench_failover
from tests.protocol_interleavings import interleavings
from tests.protocol_mutants import AsksOnce


def test_row_12_tells_losses_and_a_world_that_is_too_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's row: what is in bold ends `make bench-failover` with exit status 1."""
    assert "| fake | 500 | 0 | 0 | a wire failed in " in bench_failover.interleaved(500, 1)
    monkeypatch.setattr(bench_failover, "interleavings", partial(interleavings, sender=AsksOnce))
    assert "| fake | 200 | 0 | **" in bench_failover.interleaved(200, 1)
    monkeypatch.setattr(bench_failover, "interleavings", lambda seeds: Counter(moved=1))
    assert "| fake | 200 | **200** | 0 |" in bench_failover.interleaved(200, 1)
