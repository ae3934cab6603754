"""The row of docs/failover.md that is about the pure machines: it can tell losses, and runs that say nothing."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from benchmarks import bench_failover
from tests.protocol_interleavings import interleavings
from tests.protocol_mutants import AsksOnce


def test_row_12_tells_losses_and_a_world_that_is_too_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's row: what is in bold ends `make failover` with exit status 1."""
    assert "| fake | 500 | 0 | 0 | a wire failed in " in bench_failover.interleaved(500, 1)
    monkeypatch.setattr(bench_failover, "interleavings", partial(interleavings, sender=AsksOnce))
    assert "| fake | 200 | 0 | **" in bench_failover.interleaved(200, 1)
    monkeypatch.setattr(bench_failover, "interleavings", lambda seeds: Counter(moved=1))
    assert "| fake | 200 | **200** | 0 |" in bench_failover.interleaved(200, 1)


def test_row_12_has_one_place_on_its_page() -> None:
    page = "| 11 | a |\n| 13 | b |\n| 16 | c |\n| 13 | d |"
    once = bench_failover.with_row(page, "| 12 | e |")
    assert once == "| 11 | a |\n| 12 | e |\n| 13 | b |\n| 16 | c |\n| 13 | d |"
    assert bench_failover.with_row(once, "| 12 | f |") == once.replace("e", "f")
