"""The lab's clock: a stream of chunks takes exactly what its bytes, with all headers, take at the NIC's rate."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest

from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived, Credited, FlowSpec, Wire
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
