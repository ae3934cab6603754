"""Emulated NICs by hand: when a chunk leaves and lands if each port serves one at a time at its rate."""

from __future__ import annotations

import math

import pytest

from optcc.runtime.wires.pacing import Chunk, PortClocks, Rates

RECEIVER, SENDER, OTHER = 0, 1, 2
"""Ports. Every sender has clocks of its own; the receiver's are asked for what lands."""


def clocks(into: float = 100.0, out: float = 100.0) -> PortClocks:
    return PortClocks([Rates(1.0, into), Rates(out, 1.0), Rates(out, 1.0)])


def chunk(flow: int, nbytes: int, wire: int = 0, seq: int = 0) -> Chunk:
    return Chunk(flow, seq, nbytes, wire)


def landings(receiver: PortClocks, now: float) -> list[tuple[float, int]]:
    """(time, flow) of what has landed."""
    return [(at, landed.flow) for at, landed in receiver.landed(now)]


@pytest.mark.parametrize(
    ("out", "into", "landing"),
    [(100.0, 100.0, 8.0), (100.0, 50.0, 9.0), (50.0, 100.0, 9.0)],
    ids=["equal", "slow receiver", "slow sender"],
)
def test_a_chunk_takes_as_long_as_its_slower_port(out: float, into: float, landing: float) -> None:
    receiver = clocks(into)
    receiver.arrive(RECEIVER, chunk(0, 100), *clocks(out=out).depart(SENDER, 100, 7.0))
    assert receiver.next_landing() == landing
    assert receiver.landed(landing - 1e-9) == []
    assert receiver.landed(landing) == [(landing, chunk(0, 100))]
    assert receiver.next_landing() == math.inf


def test_a_port_serves_one_chunk_at_a_time() -> None:
    receiver = clocks()
    receiver.arrive(RECEIVER, chunk(0, 100), 0.0, 1.0)
    receiver.arrive(RECEIVER, chunk(1, 200, wire=1), 0.5, 2.5)
    assert landings(receiver, 99.0) == [(1.0, 0), (3.0, 1)]
    receiver = clocks()
    receiver.arrive(RECEIVER, chunk(0, 100), 0.5, 1.5)
    receiver.arrive(RECEIVER, chunk(1, 200, wire=1), 0.0, 2.0)
    assert landings(receiver, 99.0) == [(2.0, 1), (3.0, 0)], "in order of time, not of arrival"


def test_two_senders_at_half_rate_share_a_port() -> None:
    receiver = clocks()
    for flow, port in ((0, SENDER), (1, OTHER)):
        receiver.arrive(RECEIVER, chunk(flow, 100, wire=flow), *clocks(out=50.0).depart(port, 100, 0.0))
    assert landings(receiver, 99.0) == [(2.0, 0), (3.0, 1)]


def test_ports_of_one_rank_do_not_wait_for_each_other() -> None:
    receiver = PortClocks([Rates(1.0, 100.0), Rates(1.0, 100.0)])
    for port in (0, 1):
        receiver.arrive(port, chunk(port, 100, wire=port), 0.0, 1.0)
    assert landings(receiver, 99.0) == [(1.0, 0), (1.0, 1)]


def test_a_chunk_takes_its_place_only_when_its_time_has_come() -> None:
    receiver = clocks()
    receiver.arrive(RECEIVER, chunk(0, 100), 5.0, 6.0)
    assert receiver.landed(4.0) == []
    receiver.arrive(RECEIVER, chunk(1, 100, wire=1), 4.5, 5.5)  # arrives after the other, and goes before it
    assert landings(receiver, 7.0) == [(5.5, 1), (6.5, 0)]


def test_a_sending_port_takes_one_after_the_other() -> None:
    sender = clocks()
    assert sender.free_at(SENDER) == -math.inf
    assert sender.depart(SENDER, 100, 2.0) == (2.0, 3.0)
    assert sender.free_at(SENDER) == 3.0
    assert sender.depart(SENDER, 100, 2.5) == (3.0, 4.0)
    assert sender.depart(SENDER, 100, 7.0) == (7.0, 8.0)
    assert sender.free_at(OTHER) == -math.inf


def test_without_rates_a_chunk_lands_on_arrival_and_keeps_its_order() -> None:
    receiver = clocks(math.inf, math.inf)
    for seq in range(3):
        stamps = clocks(out=math.inf).depart(SENDER, 10**9, 2.0)
        assert stamps == (2.0, 2.0)
        receiver.arrive(RECEIVER, chunk(0, 10**9, seq=seq), *stamps)
    assert receiver.next_landing() == 2.0
    assert [(at, landed.seq) for at, landed in receiver.landed(2.0)] == [(2.0, 0), (2.0, 1), (2.0, 2)]
    assert receiver.landed(3.0) == []


def test_what_has_not_landed_is_lost_with_its_wire() -> None:
    receiver = clocks()
    receiver.arrive(RECEIVER, chunk(0, 100, wire=4), 0.0, 1.0)
    receiver.arrive(RECEIVER, chunk(1, 100, wire=5), 0.0, 1.0)
    receiver.arrive(RECEIVER, chunk(2, 100, wire=4), 9.0, 10.0)
    assert landings(receiver, 0.5) == [], "all are under way, one is held until its time comes"
    receiver.forget(4)
    assert landings(receiver, 99.0) == [(2.0, 1)], "the port was busy with the lost one until then"
    assert receiver.next_landing() == math.inf


def test_a_port_that_slows_down_is_slow_from_the_next_chunk_on() -> None:
    sender = clocks()
    assert sender.depart(SENDER, 100, 0.0) == (0.0, 1.0)
    sender.rates[SENDER] = Rates(25.0, 1.0)
    assert sender.depart(SENDER, 100, 0.0) == (1.0, 5.0)
