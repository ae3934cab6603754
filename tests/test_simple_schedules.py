"""Schedules without a planner: verified element by element, and refused when a transfer is missing."""

from __future__ import annotations

import pytest

import optcc
from optcc.errors import VerifyError
from optcc.schedule.simple import FAN, one_tree
from optcc.values.cluster import Cluster
from tests.broken_schedules import with_rows


@pytest.mark.parametrize("ranks", [2, 3, 4, FAN + 1, FAN + 2, 23])
def test_one_tree_adds_every_element_once(ranks: int) -> None:
    cluster = Cluster.uniform(servers=ranks, nics=2, rate="1Gb/s").degrade("server1/nic0")
    schedule = one_tree(cluster, 4096)
    assert optcc.verify(schedule).transfers == 2 * (ranks - 1) == len(schedule)


def test_a_missing_transfer_is_found() -> None:
    schedule = one_tree(Cluster.uniform(servers=4, nics=1, rate="1Gb/s"), 64)
    with pytest.raises(VerifyError):
        optcc.verify(with_rows(schedule, range(1, len(schedule))))
