"""What is measured over real queue pairs: NICs whose rates the lab's network sets, one of them 37 % slow."""

from __future__ import annotations

from types import ModuleType

import pytest

from optcc.runtime.control import launch
from optcc.runtime.measuring.calibrate import Measurements, measure
from optcc.schedule.routes import ports_of
from optcc.values.cluster import Cluster, Nic, Server
from tests.verbs.conftest import needs_virtual_time

pytestmark = [pytest.mark.rdma, needs_virtual_time]

RANKS, NICS, RATE = 3, 2, 10**9 // 8  # bytes per second
HEADERS = 0.03
"""Ethernet's, IP's and the transport's are 58 bytes for each packet of 4096; chunks have one, and credits go back."""


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.allreduce import Forked

    monkeypatch.setattr(launch, "start_rank", Forked)


def measured(network: ModuleType, slow: int | None, part: float) -> Measurements:
    """The lab's NICs 0 to 5, two per rank; all are believed to have `RATE`."""
    for nic in range(RANKS * NICS):
        network.rate(nic, 8 * RATE * (part if nic == slow else 1))
    servers = [
        Server(f"server{r}", tuple(Nic(f"rxe{r * NICS + i}", RATE, RATE) for i in range(NICS)), NICS)
        for r in range(RANKS)
    ]
    return measure(ports_of(Cluster(tuple(servers))), repeat=1, probe_s=0.02, transport="verbs")


def best(found: Measurements) -> dict[str, float]:
    """By NIC, the least of what it sends and receives, as a part of RATE."""
    seen: dict[tuple[str, str], float] = {}
    for pair in found.pairs:
        for key in ((pair.out, "out"), (pair.into, "in")) if pair.together else ():
            seen[key] = max(seen.get(key, 0.0), max(rate or 0.0 for rate in pair.rates) / RATE)
    names = {name for name, _ in seen}
    return {name.partition("/")[2]: min(seen[name, "out"], seen[name, "in"]) for name in names}


def test_a_slow_nic_is_found_and_only_that_one(network: ModuleType) -> None:
    found = measured(network, 2, 0.63)
    rates = best(found)
    assert rates.pop("rxe2") == pytest.approx(0.63, rel=HEADERS)
    assert all(rate == pytest.approx(1, rel=HEADERS) for rate in rates.values())


def test_without_a_slow_nic_none_is_found(network: ModuleType) -> None:
    rates = best(measured(network, None, 1))
    assert all(rate == pytest.approx(1, rel=HEADERS) for rate in rates.values())
