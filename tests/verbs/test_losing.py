"""Wires over queue pairs, when NICs, cables, packets and devices get lost. Virtual times are exact."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from types import ModuleType

import pytest

from optcc.runtime.errors import TransportError
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.contract import (
    HEADER_BYTES,
    Arrived,
    Cause,
    Completed,
    Credited,
    Drained,
    Failed,
    PortDown,
    PortUp,
    Record,
)
from tests.verbs.conftest import VIRTUAL_TIME
from tests.verbs.ranks import Ranks
from tests.wires_contract import SLOT_BYTES, WIRES, count, landed, quiet, send, until

pytestmark = pytest.mark.rdma

QUICK = VerbsSettings(timeout=12, retries=2)  # gives up after 50 ms


@pytest.fixture
def job() -> Iterator[Ranks]:
    with Ranks(settings=QUICK) as ranks:
        yield ranks


def move(job: Ranks, lost: int, backup: int, seq: int) -> None:
    """Fence both ends of a lost wire and send a chunk by another."""
    for rank in (0, 1):
        job.ranks[rank].fence(lost)
        until(job, rank, count(Drained, 1))
    payload = send(job, backup, 0, seq)
    assert landed(until(job, 1, count(Arrived, 1))) == [(backup, 0, seq)]
    assert job.ranks[1].slot(0, seq)[HEADER_BYTES : HEADER_BYTES + SLOT_BYTES] == payload
    until(job, 0, count(Completed, 1))


@pytest.mark.parametrize("cable", [False, True], ids=["its link", "its cable"])
def test_a_rank_sees_its_own_nic_go(job: Ranks, network: ModuleType, cable: bool) -> None:
    before = job.now()
    network.cut(0, cable)
    (down,) = until(job, 0, count(PortDown, 1))
    assert down[:2] == PortDown(0, Cause.PORT, "")[:2]
    assert not VIRTUAL_TIME or job.now() - before < 0.02
    send(job, 0, 0, 0)
    assert quiet(job, 1) == []
    move(job, 0, 3, 0)


def test_the_far_ends_nic_goes(job: Ranks, network: ModuleType) -> None:
    network.cut(2)
    before = job.now()
    send(job, 0, 0, 0)
    seen = until(job, 0, count(Failed, 1))
    assert [s[:2] for s in seen] == [Failed(0, Cause.ERROR, "")[:2]]
    assert "RETRY_EXC_ERR on rxe0" in seen[0].detail
    took = job.now() - before
    # The soft NIC's timers tick: they may be a little early.
    assert not VIRTUAL_TIME or QUICK.gives_up_after_s * 0.95 <= took <= QUICK.gives_up_after_s * 1.8
    assert [s[:2] for s in until(job, 1, count(PortDown, 1))] == [PortDown(0, Cause.PORT, "")[:2]]
    move(job, 0, 3, 0)


def test_a_black_hole_shows_by_retries_alone(job: Ranks, network: ModuleType) -> None:
    network.lose(2, "in")
    send(job, 0, 0, 0)
    seen = until(job, 0, count(Failed, 1))
    assert "RETRY_EXC_ERR" in seen[0].detail
    assert quiet(job, 1) == []
    move(job, 0, 3, 0)


def test_lost_acknowledgements_leave_chunks_that_arrived_and_never_completed(job: Ranks, network: ModuleType) -> None:
    network.lose(0, "in", "acks")
    for seq in range(3):
        send(job, 0, 0, seq)
    assert landed(until(job, 1, count(Arrived, 3))) == [(0, 0, seq) for seq in range(3)]
    seen = until(job, 0, count(Failed, 1))
    assert not [s for s in seen if isinstance(s, Completed)]
    # The record, read over another NIC, tells what the completions did not.
    job.ranks[1].publish(0, 0, 3, 0)
    assert job.ranks[0].ask_record(3, 0)
    assert until(job, 0, count(Record, 1))[-1] == Record(0, 0, 3, 0)
    move(job, 0, 3, 3)


def test_some_lost_packets_are_only_sent_again(network: ModuleType) -> None:
    # A chunk is five packets, its tries are counted together, and the NIC gives up at the seventh that fails before the
    # last packet is through: of chunks that lose one packet in 20 this happens to 2 in 10**7, in 7, to 2 in 10**4.
    with Ranks(settings=VerbsSettings(timeout=12, retries=6)) as job:
        before = network.troubles()
        network.lose(0, "out", "data", one_in=20)
        for first in range(0, 400, 4):  # until one was lost that NICs counted
            seqs = range(first, first + 4)
            for seq in seqs:
                send(job, 0, 0, seq)
            assert landed(until(job, 1, count(Arrived, 4))) == [(0, 0, seq) for seq in seqs]
            assert not [s for s in until(job, 0, count(Completed, 4)) if isinstance(s, Failed)]
            if network.troubles() != before:
                break
        assert network.troubles() != before


def test_a_short_flap_at_the_far_end_heals_by_itself(network: ModuleType) -> None:
    with Ranks(settings=VerbsSettings(timeout=14, retries=6)) as job:
        network.cut(2)
        send(job, 0, 0, 0)
        network.restore(2)
        assert [s[0] for s in until(job, 1, count(PortUp, 1)) if isinstance(s, PortDown | PortUp)] == [0, 0]
        assert until(job, 0, count(Completed, 1)) == [Completed(0, 0, 0)]
        assert landed(quiet(job, 1)) == [(0, 0, 0)]


def test_a_nic_that_is_back_works_with_new_queue_pairs_and_a_new_address(job: Ranks, network: ModuleType) -> None:
    network.cut(0)
    until(job, 0, count(PortDown, 1))
    network.readdress(0)
    network.restore(0)
    assert until(job, 0, count(PortUp, 1))[-1] == PortUp(0)
    with Ranks(settings=QUICK) as anew:
        send(anew, 0, 0, 0)
        assert landed(until(anew, 1, count(Arrived, 1))) == [(0, 0, 0)]
        until(anew, 0, count(Completed, 1))


def test_a_nic_without_a_link_is_told_at_once(network: ModuleType) -> None:
    network.cut(0)
    with Ranks(settings=QUICK) as job:
        seen = quiet(job, 0)
        assert PortDown(0, Cause.PORT, "")[:2] in [s[:2] for s in seen]
        send(job, 3, 0, 0)
        assert landed(until(job, 1, count(Arrived, 1))) == [(3, 0, 0)]


def test_wires_of_a_missing_nic_are_lost_from_the_start_at_both_ends() -> None:
    with Ranks(settings=QUICK, missing=[2]) as job:
        lost = {w for w, wire in enumerate(WIRES) if (wire.into if wire.src == 0 else wire.out) == 0}
        for rank in (0, 1):
            seen = job.ranks[rank].poll(job.now())
            assert {s.wire for s in seen if isinstance(s, Failed)} == lost
            assert [s.nic for s in seen if isinstance(s, PortDown)] == ([0] if rank == 1 else [])
        move(job, 0, 3, 0)


def test_a_device_that_refuses_work_is_gone(job: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    from optcc.runtime.verbs.binding import VerbsError
    from optcc.runtime.verbs.posting import SendChain

    def refuse(*_: object) -> None:
        raise VerbsError("ibv_post_send", errno.EIO)

    with monkeypatch.context() as patch:
        patch.setattr(SendChain, "post", refuse)
        send(job, 0, 0, 0)
    seen = job.ranks[0].poll(job.now())
    assert [s.nic for s in seen if isinstance(s, PortDown)] == [0]
    assert {s.wire for s in seen if isinstance(s, Failed)} == {0, 1, 4, 6}
    assert {s.cause for s in seen} == {Cause.DEVICE}
    move(job, 0, 3, 0)


def test_an_end_that_answers_nothing_any_more_is_fenced_like_others(job: Ranks) -> None:
    """Its queue pair is reset, and cannot be put into error; that is no failure of the whole NIC."""
    job.ranks[1].fail_in(0)
    send(job, 0, 0, 0)
    seen = until(job, 0, count(Failed, 1))
    assert [s[:2] for s in seen] == [Failed(0, Cause.ERROR, "")[:2]]
    job.ranks[1].fence(0)
    assert until(job, 1, count(Drained, 1)) == [Drained(0)], "and no NIC is gone"
    move(job, 0, 1, 0)  # by the same NIC of rank 0


def test_events_are_looked_at_by_time_however_busy_a_rank_is(job: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds may take long between two polls that both find chunks."""
    busy = job.ranks[0]
    reports = busy._reports
    monkeypatch.setattr(reports, "collect", lambda nic: reports.happened.append(Completed(0, 0, 0)))
    busy.poll(job.now())
    job.watches[0].speak()
    for _ in range(3):
        time.sleep(0.0006)
        assert busy.poll(job.now())
    assert job.watches[0].heard


@pytest.mark.parametrize("what", ["key", "address"])
def test_a_bug_is_not_taken_for_a_lost_nic(job: Ranks, what: str) -> None:
    end = job.ranks[0]._ends[0]
    base, key = end.remote
    end.remote = (base, key ^ 0xFF00) if what == "key" else (base + (1 << 40), key)
    send(job, 0, 0, 0)
    with pytest.raises(TransportError, match=r"REM_ACCESS_ERR.*this is a bug"):
        until(job, 0, count(Failed, 1))


def test_a_payload_outside_the_registered_memory_is_a_bug(job: Ranks) -> None:
    with pytest.raises(TransportError, match="outside the memory"):
        job.ranks[0].write(0, 0, 0, bytes(HEADER_BYTES), memoryview(bytearray(64)), 0.0)


def test_memory_does_not_move_under_writes(job: Ranks) -> None:
    send(job, 0, 0, 0)
    with pytest.raises(TransportError, match="under way"):
        job.ranks[0].register(memoryview(bytearray(4096)))


def test_numbers_outgrow_the_immediate_value(job: Ranks) -> None:
    """22 bits travel; chunks are numbered without end."""
    start = (1 << 22) * 5 - 3
    for rank in job.ranks:
        rank._immediates._latest[0] = start - 1
    for seq in range(start, start + 8):
        send(job, 0, 0, seq, 100)
        assert landed(until(job, 1, count(Arrived, 1))) == [(0, 0, seq)]
        job.ranks[1].credit(0, 0, seq + 1)
        assert Credited(0, 0, seq + 1) in until(job, 0, count(Credited, 1))


def test_a_record_caught_half_written_is_read_again(job: Ranks) -> None:
    mine = job.ranks[1]
    at = mine._layout.records[0]
    mine._bytes[at] ^= 1
    assert job.ranks[0].ask_record(0, 0)
    assert quiet(job, 0, 0.001) == []
    mine.publish(0, 1, 2, 3)
    assert until(job, 0, count(Record, 1)) == [Record(0, 1, 2, 3)]


def test_nothing_is_left_open(network: ModuleType) -> None:
    """Descriptors, and what is counted by device."""

    def held() -> tuple[int, str]:
        return len(os.listdir("/proc/self/fd")), network.held()

    before = held()
    for round_ in range(5):
        with Ranks(settings=QUICK) as job:
            assert held() != before  # or this would count nothing
            send(job, 0, 0, 0)
            if round_ % 2:
                network.cut(0)
                until(job, 0, count(PortDown, 1))
                network.restore(0)
            job.ranks[0].fence(0)
    assert held() == before
