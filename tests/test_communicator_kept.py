"""What a communicator keeps from call to call: bounded, and good for calls of other sizes."""

from __future__ import annotations

import numpy as np
import pytest

import optcc
from optcc.communicator.prepared import CLASSES, SIZES, SMALL, RecentlyUsed
from optcc.runtime.wires.layout import SLOT_BYTES
from tests.communicators import Ranks


def test_what_is_kept_is_bounded() -> None:
    with Ranks(3) as ranks:

        def call(comm: optcc.Communicator) -> tuple[int, int]:
            for n in range(SIZES + 10):
                comm.all_reduce(np.zeros(SMALL + 8 * n, np.uint8))
            return len(comm._prepared._calls), len(comm._prepared.trials)

        assert ranks.good(call) == [(SIZES, 1)] * 3, "one choice for all sizes of a class"
    assert CLASSES > 20, "all sizes up to 64 TiB"


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("first", ["broadcast", "all_reduce", "all_gather", "reduce_scatter"])
def test_small_calls_do_not_make_chunks_small(first: str, world: int) -> None:
    """What comes later goes by the same wires."""
    with Ranks(world) as ranks:

        def call(comm: optcc.Communicator) -> set[int]:
            x, out = np.zeros(world), np.zeros(1 if first == "reduce_scatter" else world * world)
            getattr(comm, first)(x, *([out] if first in ("all_gather", "reduce_scatter") else []))
            return {flow.slot_bytes for flow in comm._member.layout.flows}

        assert ranks.good(call) == [{SLOT_BYTES}] * world


def test_the_one_not_used_for_longest_goes() -> None:
    kept: RecentlyUsed[int] = RecentlyUsed(2)
    kept.keep("a", 1)
    kept.keep("b", 2)
    assert kept.find("a") == 1
    kept.keep("c", 3)
    assert kept.find("b") is None
    assert (kept.find("a"), kept.find("c")) == (1, 3)
