"""The contract of wires for those that run on any machine, and what is particular to each."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from optcc.runtime.errors import TransportError
from optcc.runtime.wires.contract import (
    Abilities,
    Arrived,
    Cause,
    Completed,
    Credited,
    Drained,
    Failed,
    Happening,
    PortDown,
    Wires,
)
from optcc.runtime.wires.cuda import CudaWires
from optcc.runtime.wires.layout import Layout
from optcc.runtime.wires.lent import Arena
from optcc.runtime.wires.local import LocalWires
from optcc.runtime.wires.virtual import VirtualNet
from optcc.schedule import Port
from tests.wires_contract import (
    FLOWS,
    PATIENCE_S,
    SLOT_BYTES,
    WINDOW,
    WIRES,
    Pipe,
    WiresContract,
    count,
    header,
    joined,
    landed,
    quiet,
    send,
    until,
)


def layout(rate: float = math.inf) -> Layout:
    """The contract's job: NICs 0 and 1 at both ranks, so NIC i of rank r is number 2 r + i here."""
    wires = tuple(w.__class__(w.src, w.dst, 2 * w.src + w.out, 2 * w.dst + w.into) for w in WIRES)
    nics = tuple(Port(f"rank{nic // 2}/nic{nic % 2}", nic // 2, rate, rate) for nic in range(4))
    return Layout(2, nics, wires, FLOWS, {})


class LocalJob:
    """Both ranks in this process, over real sockets."""

    def __init__(self, rate: float = math.inf) -> None:
        self.watches = [Pipe(), Pipe()]
        self.memory = [memoryview(os.urandom(64 * 64 + SLOT_BYTES)) for _ in range(2)]
        self.ranks: Sequence[Any] = connect(layout(rate), self.watches)

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        for end in (*self.ranks, *self.watches):
            end.close()


def connect(it: Layout, watches: Sequence[Any], lent_bytes: int = 0) -> list[LocalWires]:
    """The ends of all ranks, in this process. lent_bytes : of a buffer that each rank lends; 0: none lends any."""
    return joined(
        it.ranks,
        lambda rank, exchange: LocalWires(
            rank,
            it.wires,
            it.flows,
            it.rates,
            exchange=exchange,
            watch=watches[rank],
            lent=arena(lent_bytes) if lent_bytes else None,
        ),
    )


def arena(nbytes: int) -> Arena:
    """An arena that is mapped: a test may write and read any of its bytes."""
    made = Arena(nbytes)
    made.empty(1, np.dtype(np.uint8))
    return made


class VirtualEnd:
    """A rank's end whose polls let time pass and whose watch is looked at."""

    def __init__(self, job: VirtualJob, rank: int) -> None:
        self._job, self._end, self._rank = job, job.net.ends[rank], rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)

    def poll(self, until: float) -> Sequence[Happening]:
        watch, net = self._job.watches[self._rank], self._job.net
        os.set_blocking(watch.fileno(), False)
        while True:
            news = self._end.poll(until)
            try:
                watch.check()
                return news
            except BlockingIOError:
                if news or net.now >= until:
                    return news
            net.now = min(until, net.now + 0.001)


class VirtualJob:
    """Both ranks in virtual time."""

    def __init__(self, rate: float = math.inf) -> None:
        self.net = VirtualNet(layout(rate))
        self.watches = [Pipe(), Pipe()]
        self.memory = [memoryview(os.urandom(64 * 64 + SLOT_BYTES)) for _ in range(2)]
        self.ranks: Sequence[Any] = [VirtualEnd(self, rank) for rank in range(2)]

    def now(self) -> float:
        return self.net.now

    def close(self) -> None:
        for watch in self.watches:
            watch.close()


class EmulatedContract(WiresContract):
    """What holds besides of wires that emulate their NICs."""

    def test_a_nic_that_goes_down_says_so_and_the_others_go_on(self, job: Any) -> None:
        job.ranks[0].cut(0)
        assert until(job, 0, count(PortDown, 1))[-1] == PortDown(0, Cause.PORT, "link down")
        send(job, 0, 0, 0)
        send(job, 3, 0, 1)
        assert landed(until(job, 1, count(Arrived, 1))) == [(3, 0, 1)]

    def test_the_far_ends_of_a_dead_nic_hear_of_it(self, job: Any) -> None:
        job.ranks[1].cut(2)
        send(job, 0, 0, 0)
        assert {f.wire for f in until(job, 0, count(Failed, 2)) if isinstance(f, Failed)} >= {0, 2}
        assert not landed(quiet(job, 1))

    def test_a_black_hole_is_silent(self, job: Any) -> None:
        job.ranks[1].darken(2)
        send(job, 0, 0, 0)
        send(job, 3, 0, 1)
        assert landed(until(job, 1, count(Arrived, 1))) == [(3, 0, 1)]
        seen = [*quiet(job, 0), *quiet(job, 1)]
        assert not [s for s in seen if isinstance(s, Failed | PortDown) or getattr(s, "wire", None) == 0]

    def test_what_is_stuck_in_a_black_hole_is_lost_with_the_wire(self, job: Any) -> None:
        send(job, 0, 0, 0)
        job.ranks[1].darken(2)
        job.ranks[1].fence(0)
        assert until(job, 1, count(Drained, 1))[-1] == Drained(0)
        job.ranks[1].heal(2)
        assert not landed(quiet(job, 1))

    def test_a_black_hole_that_heals_has_lost_nothing(self, job: Any) -> None:
        for seq in range(WINDOW):
            send(job, 0, 0, seq)
        job.ranks[1].darken(2)
        quiet(job, 1)
        quiet(job, 0)
        job.ranks[1].heal(2)
        assert landed(until(job, 1, count(Arrived, WINDOW))) == [(0, 0, seq) for seq in range(WINDOW)]

    def test_chunks_may_be_lost_and_credits_not(self, job: Any) -> None:
        send(job, 0, 0, 0)
        until(job, 1, count(Arrived, 1))
        until(job, 0, count(Completed, 1))
        job.ranks[1].darken(2, acks=False)
        send(job, 0, 0, 1)
        job.ranks[1].credit(0, 0, 1)
        assert not landed(quiet(job, 1))
        assert quiet(job, 0) == [Credited(0, 0, 1)]
        job.ranks[1].heal(2)
        assert landed(until(job, 1, count(Arrived, 1))) == [(0, 0, 1)]
        assert until(job, 0, count(Completed, 1)) == [Completed(0, 0, 1)]

    @pytest.mark.parametrize(("rank", "nic"), [(0, 0), (1, 2)])
    def test_acknowledgements_may_be_lost_and_chunks_not(self, job: Any, rank: int, nic: int) -> None:
        job.ranks[rank].darken(nic, data=False)
        for seq in range(2):
            send(job, 0, 0, seq)
        assert landed(until(job, 1, count(Arrived, 2))) == [(0, 0, 0), (0, 0, 1)]
        job.ranks[1].credit(0, 0, 1)
        assert quiet(job, 0) == []
        job.ranks[rank].heal(nic)
        quiet(job, 1)
        heard = until(job, 0, count(Credited, 1))
        assert [s for s in heard if isinstance(s, Completed)][-1] == Completed(0, 0, 1)
        assert [s for s in heard if isinstance(s, Credited)] == [Credited(0, 0, 1)]

    def test_a_sending_end_fails_for_itself(self, job: Any) -> None:
        job.ranks[0].fail_out(0, Cause.DEVICE, "post failed")
        told = until(job, 0, count(Failed, 2))
        assert {(f.wire, f.cause, f.detail) for f in told if isinstance(f, Failed)} == {
            (wire, Cause.DEVICE, "post failed") for wire in (0, 1)
        }
        send(job, 0, 0, 0)
        send(job, 3, 0, 1)
        assert landed(until(job, 1, count(Arrived, 1))) == [(3, 0, 1)]
        assert quiet(job, 1) == []

    def test_a_receiving_end_fails_for_itself(self, job: Any) -> None:
        job.ranks[1].fail_in(2, told=True)
        assert {f.wire for f in until(job, 1, count(Failed, 2)) if isinstance(f, Failed)} == {0, 2}
        send(job, 0, 0, 0)
        assert quiet(job, 1) == []
        assert quiet(job, 0) == []

    def test_a_receiving_end_fails_for_its_sender(self, job: Any) -> None:
        job.ranks[1].fail_in(2)
        assert not [s for s in quiet(job, 1) if isinstance(s, Failed)]
        send(job, 0, 0, 0)
        assert 0 in {f.wire for f in until(job, 0, count(Failed, 1)) if isinstance(f, Failed)}
        assert not landed(quiet(job, 1))

    def test_a_bug_is_no_lost_nic(self, job: Any) -> None:
        job.ranks[1].fail_nic("REM_ACCESS_ERR")
        with pytest.raises(TransportError, match="REM_ACCESS_ERR"):
            job.ranks[1].poll(job.now())


class TestVirtual(EmulatedContract):
    @pytest.fixture
    def job(self) -> Iterator[Any]:
        job = VirtualJob()
        yield job
        job.close()


class TestLocal(EmulatedContract):
    reads_records = False

    @pytest.fixture
    def job(self) -> Iterator[Any]:
        before = len(os.listdir("/proc/self/fd"))
        job = LocalJob()
        yield job
        job.close()
        assert len(os.listdir("/proc/self/fd")) == before, "left open"


def test_local_completions_are_told_with_credits_or_when_asked_for() -> None:
    """And who has asked is woken by a message, since nobody looks at a mark in a wait."""
    job = LocalJob()
    for seq in range(3):
        job.ranks[0].write(0, 0, seq, header(0, seq), job.memory[0][:64], job.now())
    assert landed(until(job, 1, count(Arrived, 3))) == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    assert quiet(job, 0) == []
    job.ranks[1].credit(0, 0, 2)
    assert until(job, 0, count(Credited, 1)) == [Completed(0, 0, 1), Credited(0, 0, 2)]
    job.ranks[0].hasten(0, 0, 2)
    assert job.ranks[0].poll(math.inf) == [Completed(0, 0, 2)]
    job.ranks[0].write(0, 0, 3, header(0, 3), job.memory[0][:64], job.now())
    job.ranks[0].hasten(0, 0, 3)
    woken: list[Any] = []
    waiter = threading.Thread(target=lambda: woken.extend(job.ranks[0].poll(math.inf)), daemon=True)
    waiter.start()
    until(job, 1, count(Arrived, 1))
    waiter.join(PATIENCE_S)
    assert woken == [Completed(0, 0, 3)]
    job.close()


def test_local_wires_count_what_a_black_hole_keeps_waiting() -> None:
    """At the end that receives: chunks that come, and credits that do not go; at the end that sends: the opposite."""
    job = LocalJob()
    for seq in range(2):
        job.ranks[0].write(0, 0, seq, header(0, seq), job.memory[0][:64], job.now())
    until(job, 1, count(Arrived, 2))
    job.ranks[1].darken(2)
    assert set(job.ranks[1].held(2).values()) == {0}, "nothing was under way"
    job.ranks[0].write(0, 0, 2, header(0, 2), job.memory[0][:64], job.now())
    job.ranks[1].credit(0, 0, 2)
    assert job.ranks[1].held(2)[0] == 2
    assert sum(job.ranks[1].held(2).values()) == 2, "on that wire"
    assert sum(job.ranks[1].held(3).values()) == 0, "at that NIC"
    job.ranks[1].heal(2)
    until(job, 1, count(Arrived, 1))
    assert sum(job.ranks[1].held(2).values()) == 0
    until(job, 0, count(Credited, 1))

    job.ranks[0].darken(0)
    assert set(job.ranks[0].held(0).values()) == {0}
    job.ranks[0].write(0, 0, 3, header(0, 3), job.memory[0][:64], job.now())
    job.ranks[1].credit(0, 0, 3)
    assert job.ranks[0].held(0)[0] == 2
    job.close()


@pytest.mark.parametrize("kind", [VirtualJob, LocalJob])
def test_emulated_rates_hold_arrivals_back(kind: Callable[[float], Any]) -> None:
    job = kind(SLOT_BYTES / 0.05)
    start = job.now()
    send(job, 0, 0, 0)
    (arrived,) = until(job, 1, count(Arrived, 1))
    assert isinstance(arrived, Arrived)
    assert arrived.at - start == pytest.approx(0.05, rel=0.2)
    assert job.now() >= arrived.at
    job.close()


class _LeakyVirtual:
    """Fences that do not keep old writes out."""

    @staticmethod
    def job() -> VirtualJob:
        job = VirtualJob()
        for end in job.net.ends:
            end.fence = lambda wire, end=end: end.news.append(Drained(wire))  # type: ignore[method-assign, misc]
        return job


@pytest.mark.parametrize(
    "name", ["test_a_fence_at_one_end_stops_the_other", "test_a_fenced_wire_is_drained_and_silent"]
)
def test_the_contract_notices_a_ghost(name: str) -> None:
    job = _LeakyVirtual.job()
    with pytest.raises(AssertionError):
        getattr(WiresContract(), name)(job)
    job.close()


@pytest.mark.parametrize(("can", "says"), [(True, False), (False, True)])
def test_the_contract_notices_a_record_that_is_not_read(can: bool, says: bool) -> None:
    """Wires that have stopped reading, and wires that read what they are not known to."""
    job = VirtualJob()
    if not says:
        job.net.ends[0].ask_record = lambda wire, flow: False  # type: ignore[method-assign]
    contract = WiresContract()
    contract.reads_records = can  # type: ignore[misc]
    with pytest.raises(AssertionError):
        contract.test_a_record_can_be_read_over_any_wire(job)
    job.close()


def _unused(wires: Wires) -> None:
    """That both kinds keep the contract is checked by mypy."""


def _check(local: LocalWires) -> None:
    _unused(local)
    _unused(VirtualNet(layout()).ends[0])


def test_what_came_before_the_watch_spoke_is_told_with_it() -> None:
    """Or a rank that was paused between its look at the sockets and at messages would say it got no further."""
    job = LocalJob()
    check = job.watches[1].check

    def speaks() -> None:
        send(job, 0, 0, 0)
        check()

    job.watches[1].check = speaks  # type: ignore[method-assign]
    job.watches[1].speak()
    try:
        assert landed(job.ranks[1].poll(-math.inf)) == [(0, 0, 0)]
    finally:
        job.close()


class Bare:
    """Wires without abilities."""


def test_abilities_are_found_by_their_names() -> None:
    """A name that no wires have would be an ability that nobody gets."""
    assert set(vars(Abilities.of(Bare())).values()) == {None}  # type: ignore[arg-type]
    local = Abilities.of(LocalWires.__new__(LocalWires))
    assert {name for name, able in vars(local).items() if able} == {
        *("hasten", "landed", "held", "break_path", "renew", "join")
    }
    assert callable(CudaWires.payload)
