"""Pacing, framing and the local transport: all ranks as threads of this process, real bytes over real sockets."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction

import numpy as np
import pytest

from optcc.errors import InputError
from optcc.runtime.device import DTYPES, Op, dtype_of, empty
from optcc.runtime.engine import Engine
from optcc.runtime.errors import PeerLostError
from optcc.runtime.job import Job
from optcc.runtime.local import LocalTransport
from optcc.runtime.pacing import Pacing, PortClocks, Unpaced, stripes_of
from optcc.runtime.payload import fill, is_exact, reference
from optcc.runtime.program import Move, program_of
from optcc.runtime.wire import Incoming, Outgoing
from optcc.schedule import Lane, Port, Route, Schedule
from tests.broken_schedules import nested


def fan_in(rates: list[tuple[float, float]], lengths: list[int]) -> Schedule:
    """Transfer i goes from rank i + 1 to rank 0; rates are (out, in) by rank, one port each."""
    rows = len(lengths)
    return Schedule(
        ranks=len(rates),
        nbytes=sum(lengths),
        ports=tuple(Port(f"p{rank}", rank, *both) for rank, both in enumerate(rates)),
        routes=tuple(Route(i + 1, 0, (Lane(i + 1, 0, Fraction(1)),)) for i in range(rows)),
        route=np.arange(rows, dtype=np.int32),
        offset=np.cumsum([0, *lengths[:-1]]),
        length=np.array(lengths),
        reduce=np.zeros(rows, np.bool_),
        stage=np.ones(rows, np.uint8),
        segment=np.zeros(rows, np.int32),
        dep_ptr=np.zeros(rows + 1, np.int64),
        dep_idx=np.zeros(0, np.int64),
    )


def moves_of(schedule: Schedule) -> list[Move]:
    receives = program_of(schedule, 0, 1).receives
    return [receives[row] for row in range(len(schedule))]


def sent(schedule: Schedule, ready: dict[int, float]) -> PortClocks:
    """Rank 0's clocks after every transfer, ready at the given time, has arrived from its own sender."""
    stripes = stripes_of(schedule)
    receiver = PortClocks(schedule, stripes)
    for move in moves_of(schedule):
        receiver.arrive(move, PortClocks(schedule, stripes).depart(move, ready[move.row]))
    return receiver


@pytest.mark.parametrize(
    ("out_rate", "in_rate", "landing"),
    [(100.0, 100.0, 8.0), (100.0, 50.0, 9.0), (50.0, 100.0, 9.0)],
    ids=["equal", "slow receiver", "slow sender"],
)
def test_a_transfer_takes_as_long_as_its_slower_port(out_rate: float, in_rate: float, landing: float) -> None:
    clocks = sent(fan_in([(1.0, in_rate), (out_rate, 1.0)], [100]), {0: 7.0})
    assert clocks.next_landing() == landing
    assert clocks.landed(landing - 1e-9) == []
    assert clocks.landed(landing) == [(0, landing)]
    assert clocks.next_landing() == math.inf


def test_a_port_serves_one_stripe_at_a_time() -> None:
    schedule = fan_in([(1.0, 100.0), (100.0, 1.0), (100.0, 1.0)], [100, 200])
    assert sent(schedule, {0: 0.0, 1: 0.5}).landed(99.0) == [(0, 1.0), (1, 3.0)]
    assert sent(schedule, {0: 0.5, 1: 0.0}).landed(99.0) == [(1, 2.0), (0, 3.0)], "in order of time, not of arrival"


def test_two_senders_at_half_rate_share_a_port() -> None:
    schedule = fan_in([(1.0, 100.0), (50.0, 1.0), (50.0, 1.0)], [100, 100])
    assert [at for _, at in sent(schedule, {0: 0.0, 1: 0.0}).landed(99.0)] == [2.0, 3.0]


def test_a_stripe_takes_its_place_only_when_its_time_has_come() -> None:
    schedule = fan_in([(1.0, 100.0), (100.0, 1.0), (100.0, 1.0)], [100, 100])
    stripes, (late, early) = stripes_of(schedule), moves_of(schedule)
    clocks = PortClocks(schedule, stripes)
    clocks.arrive(late, (5.0, 6.0))
    assert clocks.landed(4.0) == []
    clocks.arrive(early, (4.5, 5.5))  # arrives after the other, and goes before it
    assert clocks.landed(7.0) == [(1, 5.5), (0, 6.5)]


def test_a_sending_port_takes_one_after_the_other() -> None:
    schedule = fan_in([(1.0, 100.0), (100.0, 1.0)], [100])
    clocks = PortClocks(schedule, stripes_of(schedule))
    assert clocks.free_at(0, 1.0) == -math.inf
    assert clocks.depart(moves_of(schedule)[0], 2.0) == [2.0, 3.0]
    assert clocks.free_at(0, 2.5) == 3.0
    assert clocks.depart(moves_of(schedule)[0], 2.5) == [3.0, 4.0]


def test_unpaced_lands_on_arrival() -> None:
    (move,) = moves_of(fan_in([(1.0, 1.0), (1.0, 1.0)], [10]))
    pacing = Unpaced()
    assert (pacing.free_at(0, 2.0), pacing.depart(move, 1.0), pacing.next_landing()) == (2.0, (), math.inf)
    pacing.arrive(move, ())
    assert pacing.next_landing() == -math.inf
    assert pacing.landed(3.0) == [(0, 3.0)]
    assert pacing.landed(4.0) == []


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        yield left, right


def test_a_message_larger_than_the_sockets_buffers(pair: tuple[socket.socket, socket.socket]) -> None:
    outgoing, incoming = Outgoing(pair[0], 1, stamps=4), Incoming(pair[1], 0, stamps=4)
    payload = np.random.default_rng(0).bytes(5_000_000)
    landing = bytearray(len(payload))
    outgoing.send(7, (1.5, 2.5), memoryview(payload))
    assert not outgoing.clear
    got = incoming.receive(lambda row: memoryview(landing))
    while not outgoing.clear:
        outgoing.flush()
        got += incoming.receive(lambda row: memoryview(landing))
    assert got == [(7, (1.5, 2.5, 0.0, 0.0))]
    assert landing == payload


def test_messages_come_in_order_and_in_pieces(pair: tuple[socket.socket, socket.socket]) -> None:
    outgoing, incoming = Outgoing(pair[0], 1, stamps=0), Incoming(pair[1], 0, stamps=0)
    asked: list[int] = []
    landings = [bytearray(3), bytearray(5)]

    def place(row: int) -> memoryview:
        asked.append(row)
        return memoryview(landings[row])

    outgoing.send(0, (), memoryview(b"abc"))
    outgoing.send(1, (), memoryview(b"defgh"))
    whole = pair[1].recv(100)
    got = []
    for i in range(len(whole)):
        pair[0].send(whole[i : i + 1])
        got += incoming.receive(place)
    assert got == [(0, ()), (1, ())]
    assert asked == [0, 1], "asked once per transfer"
    assert landings == [b"abc", b"defgh"]


def test_a_peer_that_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    with pytest.raises(PeerLostError, match="lost rank 3: "):
        Outgoing(pair[0], 3, stamps=0).send(0, (), memoryview(b"x"))
    with pytest.raises(PeerLostError, match="lost rank 4: it closed the connection"):
        Incoming(pair[0], 4, stamps=0).receive(lambda row: memoryview(b""))


class NoWatch:
    """A watch that never speaks."""

    def __init__(self, stack: ExitStack) -> None:
        self.ours, self.theirs = (stack.enter_context(end) for end in socket.socketpair())

    def fileno(self) -> int:
        return self.ours.fileno()

    def check(self) -> None:
        raise AssertionError("nothing was sent")


def run_threads(schedule: Schedule, dtype: str, op: Op, *, paced: bool = False) -> tuple[float, list[bool], int]:
    """(seconds, exact by rank, payload bytes sent) of one run, a thread per rank."""
    count, stripes = schedule.nbytes // dtype_of(dtype).itemsize, stripes_of(schedule)
    buffers = [empty(count, dtype_of(dtype)) for _ in range(schedule.ranks)]
    transports, engines = [], []
    with ExitStack() as stack:
        links = {pair: socket.socketpair() for pair in Job({"it": schedule}, dtype, op, paced).pairs}
        for ends in links.values():
            for end in ends:
                stack.enter_context(end).setblocking(False)
        for rank, buffer in enumerate(buffers):
            fill(buffer, rank=rank, ranks=schedule.ranks, op=op)
            program = program_of(schedule, rank, buffer.itemsize)
            pacing: Pacing = PortClocks(schedule, stripes) if paced else Unpaced()
            transport = LocalTransport(
                schedule,
                program,
                stripes,
                pacing,
                outgoing={dst: ends[0] for (src, dst), ends in links.items() if src == rank},
                incoming={src: ends[1] for (src, dst), ends in links.items() if dst == rank},
                watch=NoWatch(stack),
                clock=time.monotonic,
            )
            transports.append(transport)
            engines.append(Engine(program, buffer, op, transport, time.monotonic))
        start = time.monotonic()
        threads = [threading.Thread(target=engine.run, daemon=True) for engine in engines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), engines[threads.index(thread)].waiting_for()
        seconds = time.monotonic() - start
    expected = reference(count, dtype_of(dtype), ranks=schedule.ranks, op=op)
    nbytes = sum(sum(transport.sent().values()) for transport in transports)
    return seconds, [is_exact(buffer, expected) for buffer in buffers], nbytes


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_op(dtype: str, op: Op) -> None:
    schedule = nested(ranks=4, nbytes=60_000)
    _, exact, nbytes = run_threads(schedule, dtype, op)
    assert exact == [True] * 4
    assert nbytes == 2 * 3 * 60_000


@pytest.mark.parametrize("nbytes", [4, 8, 12, 20, 4 * 1021])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_odd_sizes(ranks: int, nbytes: int) -> None:
    schedule = nested(ranks=ranks, nbytes=nbytes, weak=min(1, ranks - 1), segments=3)
    assert run_threads(schedule, "float32", Op.SUM)[1] == [True] * ranks


def test_rates_are_kept() -> None:
    schedule = nested(ranks=3, nbytes=1 << 20, rate=20 << 20, segments=16)
    seconds, exact, _ = run_threads(schedule, "float32", Op.SUM, paced=True)
    assert exact == [True] * 3
    bound = 2**20 / (10 << 20)  # through the weak rank's one NIC
    assert bound * 0.999 <= seconds < bound * 3


def test_the_rate_test_can_fail() -> None:
    seconds, _, _ = run_threads(nested(ranks=3, nbytes=1 << 20, rate=1 << 20), "float32", Op.SUM, paced=False)
    assert seconds < 2 * 0.999, "the bound at these rates"


def test_a_fraction_of_an_element_is_refused() -> None:
    with pytest.raises(InputError, match="not a whole number of elements, expected a multiple of 8 bytes for float64"):
        Job({"it": nested(nbytes=12)}, "float64", "sum", False)
