"""The lab's clock: a stream of chunks takes exactly what its bytes, with all headers, take at the NIC's rate."""

from __future__ import annotations

import threading
from fractions import Fraction
from types import ModuleType

import pytest

from optcc.runtime.control import launch
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Session
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived, Credited, FlowSpec, Wire
from optcc.schedule.direct import DirectExchange
from optcc.values.cluster import Cluster, Nic, Server
from tests.verbs.conftest import needs_virtual_time
from tests.verbs.ranks import Ranks

pytestmark = [pytest.mark.rdma, needs_virtual_time]

CHUNK, CHUNKS, WINDOW = 1 << 17, 32, 8
PACKET, PER_PACKET = 4096, 14 + 20 + 8 + 12 + 4  # Ethernet, IPv4, UDP, transport header, checksum
FLOW = FlowSpec(0, 1, (0,), WINDOW, CHUNK)


def wire_bytes() -> int:
    """Of the whole stream; each chunk's first packet also has an address (16), its last an immediate value (4)."""
    packets = -(-(HEADER_BYTES + CHUNK) // PACKET)
    return CHUNKS * (HEADER_BYTES + CHUNK + packets * PER_PACKET + 20)


def takes(network: ModuleType, gbit: float) -> float:
    """Seconds at this rate. An idle NIC has saved up a bucket of bytes, which go for nothing."""
    return float((wire_bytes() - network.BURST_BYTES) * 8 / (gbit * 1e9))


def stream() -> float:
    """Seconds from the first write to the last arrival."""
    with Ranks([Wire(0, 1, 0, 0)], [FLOW], settings=VerbsSettings(timeout=18), memory_bytes=CHUNK, nics=1) as job:
        sender, receiver = job.ranks
        arrivals: list[float] = []

        def receive() -> None:
            while len(arrivals) < CHUNKS:
                for what in receiver.poll(float("inf")):
                    assert isinstance(what, Arrived)
                    arrivals.append(what.at)
                    receiver.credit(0, 0, what.seq + 1)

        other = threading.Thread(target=receive)
        other.start()
        start, sent, folded = job.now(), 0, 0
        while folded < CHUNKS:
            while sent < min(CHUNKS, folded + WINDOW):
                sender.write(0, 0, sent, bytes(HEADER_BYTES), job.memory[0][:CHUNK], start)
                sent += 1
            folded = max([folded, *(s.folded for s in sender.poll(float("inf")) if isinstance(s, Credited))])
        other.join()
        return max(arrivals) - start


@pytest.mark.parametrize("gbit", [1, 10, 25, 40, 100])
def test_a_stream_takes_what_its_bytes_take(network: ModuleType, gbit: int) -> None:
    for nic in (0, 1):
        network.rate(nic, gbit * 1e9)
    before = network.troubles()
    assert stream() == pytest.approx(takes(network, gbit), rel=0.005 if gbit < 100 else 0.01)
    assert network.troubles() == before


def test_the_slower_end_decides_either_way(network: ModuleType) -> None:
    for slow in (0, 1):
        network.rate(slow, 5e9)
        network.rate(1 - slow, 10e9)
        assert stream() == pytest.approx(takes(network, 5), rel=0.005)


def test_times_repeat(network: ModuleType) -> None:
    for nic in (0, 1):
        network.rate(nic, 10e9)
    first, second = stream(), stream()
    assert abs(first - second) < 2e-6


PLANS = {
    "few, large transfers": (DirectExchange(3, "none-starves", chunk=Fraction(13, 2**18), lanes=1), 1, 0.009741),
    "NICs of two rates": (DirectExchange(24, "none-starves", chunk=Fraction(49, 2**19), lanes=2), 2, 0.010616),
}
"""Recipe, what the first NIC's rate is divided by, and the simulator's seconds, with the costs of `make bench-lab`."""


@pytest.mark.parametrize("plan", PLANS)
def test_transfers_leave_in_the_plans_order_whichever_ranks_they_are_for(
    network: ModuleType, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    """Transfers to several ranks are ready for a NIC at once. Where they share it, the first one arrives too late."""
    from lab.allreduce import Forked

    monkeypatch.setattr(launch, "start_rank", Forked)
    recipe, slower, seconds = PLANS[plan]
    rates = [Fraction(10**10, 8) / (1 if nic else slower) for nic in range(8)]
    for nic, rate in enumerate(rates):
        network.rate(nic, float(8 * rate))
    nics = [Nic(f"rxe{nic}", rate, rate) for nic, rate in enumerate(rates)]
    cluster = Cluster(tuple(Server(f"server{r}", (nics[2 * r], nics[2 * r + 1])) for r in range(4)))
    schedule = recipe.lower(cluster, 16_000_000)
    with Session(Job({"it": schedule}, "float32", "sum", False, "verbs", 1 << 18)) as session:
        done = [session.run("it") for _ in range(2)]
    assert all(exact for run in done for exact in run.exact)
    assert [run.seconds for run in done] == pytest.approx([seconds] * 2, rel=0.01)
