"""What the benchmark of our wires against a plain loop measures; the benchmark itself is not run here."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from typing import Any

import pytest

pytestmark = pytest.mark.rdma


class Way:
    """Moves nothing."""

    def __init__(self, rank: int, chunk: int, exchange: Any) -> None: ...

    def run(self, chunks: int) -> None: ...

    def close(self) -> None: ...


def test_every_order_of_the_ways_is_measured_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    from lab import plain_loop

    monkeypatch.setattr(plain_loop, "WAYS", dict.fromkeys(plain_loop.WAYS, Way))
    turns = plain_loop.rank_main(0, Namespace(chunk=8, chunks=1, seconds=0.0), lambda value: [value, value])
    orders = Counter(tuple(turn) for turn in turns)
    assert len(orders) == 6
    assert set(orders.values()) == {1}
