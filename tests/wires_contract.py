"""What every kind of wires must do: the tests of `WiresContract`, for one class per kind to inherit.

The job: ranks 0 and 1 with two NICs each, every NIC wired to every NIC of the other, both ways. One thread drives both
ranks, so nothing here may depend on a rank answering while another waits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from optcc.runtime.wires.contract import (
    HEADER_BYTES,
    Arrived,
    Completed,
    Credited,
    Drained,
    Failed,
    FlowSpec,
    Happening,
    Record,
    Wire,
    Wires,
)

WIRES = tuple(Wire(src, 1 - src, out, into) for src in (0, 1) for out in (0, 1) for into in (0, 1))
SLOT_BYTES = 20_000
"""Not a multiple of anything."""
WINDOW = 4
FLOWS = (
    FlowSpec(0, 1, (0, 3, 1, 2), WINDOW, SLOT_BYTES),
    FlowSpec(0, 1, (3, 0, 1, 2), WINDOW, SLOT_BYTES),
    FlowSpec(1, 0, (4, 7, 5, 6), WINDOW, SLOT_BYTES),
)
PATIENCE_S = 5.0


def joined(ranks: int, make: Callable[[int, Callable[[Any], list[Any]]], Any]) -> list[Any]:
    """What `make(rank, exchange)` makes for each rank, all in this process; their all-gathers go over threads."""
    barrier, shown = threading.Barrier(ranks, timeout=20), [None] * ranks
    ends: dict[int, Any] = {}

    def one(rank: int) -> None:
        def exchange(value: Any) -> list[Any]:
            shown[rank] = value
            barrier.wait()
            everyone = list(shown)
            barrier.wait()
            return everyone

        ends[rank] = make(rank, exchange)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [ends[rank] for rank in range(ranks)]


class Pipe:
    """A watch that speaks when told."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.heard = 0

    def fileno(self) -> int:
        return self._read

    def check(self) -> None:
        self.heard += len(os.read(self._read, 100))

    def speak(self) -> None:
        os.write(self._write, b"!")

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Job(Protocol):
    """Both ranks' wires over WIRES and FLOWS, their watches, a clock, and the memory that each has registered."""

    ranks: Sequence[Wires]
    watches: Sequence[Pipe]
    memory: Sequence[memoryview]

    def now(self) -> float: ...


def until(
    job: Job, rank: int, wanted: Callable[[list[Happening]], object], within_s: float = PATIENCE_S
) -> list[Happening]:
    """Poll a rank until what has happened there is `wanted`."""
    seen: list[Happening] = []
    end = job.now() + within_s
    while not wanted(seen):
        assert job.now() < end, f"rank {rank} has seen only {seen}"
        seen += job.ranks[rank].poll(end)
    return seen


def quiet(job: Job, rank: int, for_s: float = 0.05) -> list[Happening]:
    """All that happens at a rank for a while."""
    seen: list[Happening] = []
    end = job.now() + for_s
    while job.now() < end:
        seen += job.ranks[rank].poll(end)
    return seen


def count(kind: type, number: int) -> Callable[[list[Happening]], bool]:
    return lambda seen: sum(isinstance(s, kind) for s in seen) >= number


def header(flow: int, seq: int) -> bytes:
    return bytes((flow * 31 + seq * 7 + i) % 256 for i in range(HEADER_BYTES))


def send(job: Job, wire: int, flow: int, seq: int, size: int = SLOT_BYTES) -> memoryview:
    """Write a chunk of bytes that no other chunk has."""
    rank = FLOWS[flow].src
    at = (flow * 64 + seq) * 64 % (len(job.memory[rank]) - SLOT_BYTES)
    payload = job.memory[rank][at : at + size]
    job.ranks[rank].write(wire, flow, seq, header(flow, seq), payload, job.now())
    if hasattr(job.ranks[rank], "hasten"):
        job.ranks[rank].hasten(wire, flow, seq)
    return payload


def landed(seen: Sequence[Happening]) -> list[tuple[int, int, int]]:
    """Wire, flow and number of what has arrived, in order."""
    return [(s.wire, s.flow, s.seq) for s in seen if isinstance(s, Arrived)]


class WiresContract:
    """Inherit, and give the fixture `job`.

    reads_records : whether these wires can read the far end's memory
    """

    reads_records: ClassVar[bool] = True

    def test_a_chunk_lands_whole_in_its_slot_and_nowhere_else(self, job: Job) -> None:
        before = [bytes(job.ranks[1].slot(0, s)) for s in range(WINDOW)]
        payload = send(job, 0, 0, 2)
        assert landed(until(job, 1, count(Arrived, 1))) == [(0, 0, 2)]
        slot = job.ranks[1].slot(0, 2)
        assert len(slot) >= HEADER_BYTES + SLOT_BYTES
        assert bytes(slot[:HEADER_BYTES]) == header(0, 2)
        assert slot[HEADER_BYTES : HEADER_BYTES + SLOT_BYTES] == payload
        assert [bytes(job.ranks[1].slot(0, s)) for s in (0, 1, 3)] == [before[s] for s in (0, 1, 3)]
        assert until(job, 0, count(Completed, 1)) == [Completed(0, 0, 2)]

    def test_a_slot_is_used_again_for_the_chunk_a_window_later(self, job: Job) -> None:
        for seq in range(3 * WINDOW + 1):
            payload = send(job, 0, 0, seq, SLOT_BYTES - seq)
            assert landed(until(job, 1, count(Arrived, 1))) == [(0, 0, seq)]
            assert job.ranks[1].slot(0, seq)[HEADER_BYTES : HEADER_BYTES + SLOT_BYTES - seq] == payload
            job.ranks[1].credit(0, 0, seq + 1)
            until(job, 0, count(Credited, 1))

    def test_a_wire_keeps_order_also_between_flows(self, job: Job) -> None:
        for seq in range(WINDOW):
            send(job, 3, 0, seq)
            send(job, 3, 1, seq)
        expected = [(3, flow, seq) for seq in range(WINDOW) for flow in (0, 1)]
        assert landed(until(job, 1, count(Arrived, 2 * WINDOW))) == expected
        lasts = {Completed(3, flow, WINDOW - 1) for flow in (0, 1)}
        done = [(s.wire, s.flow, s.seq) for s in until(job, 0, lasts.issubset) if isinstance(s, Completed)]
        assert done == [each for each in expected if each in done], "some may be left out, for the last says all"
        for flow in (0, 1):
            for seq in range(WINDOW):
                assert bytes(job.ranks[1].slot(flow, seq)[:HEADER_BYTES]) == header(flow, seq)

    def test_every_wire_reaches_the_same_slots(self, job: Job) -> None:
        for seq, wire in enumerate(FLOWS[0].wires):
            payload = send(job, wire, 0, seq)
            assert landed(until(job, 1, count(Arrived, 1))) == [(wire, 0, seq)]
            assert job.ranks[1].slot(0, seq)[HEADER_BYTES : HEADER_BYTES + SLOT_BYTES] == payload

    def test_flows_go_both_ways_at_once(self, job: Job) -> None:
        for seq in range(WINDOW):
            send(job, 0, 0, seq)
            send(job, 4, 2, seq)
        assert landed(until(job, 1, count(Arrived, WINDOW))) == [(0, 0, seq) for seq in range(WINDOW)]
        assert landed(until(job, 0, count(Arrived, WINDOW))) == [(4, 2, seq) for seq in range(WINDOW)]

    def test_a_chunk_of_no_payload(self, job: Job) -> None:
        send(job, 0, 0, 0, 0)
        assert landed(until(job, 1, count(Arrived, 1))) == [(0, 0, 0)]
        assert bytes(job.ranks[1].slot(0, 0)[:HEADER_BYTES]) == header(0, 0)

    def test_credits_come_back_in_order(self, job: Job) -> None:
        for seq in range(WINDOW):
            send(job, 0, 0, seq)
        until(job, 1, count(Arrived, WINDOW))
        for folded in range(1, WINDOW + 1):
            job.ranks[1].credit(0, 0, folded)
        seen = until(job, 0, lambda seen: Credited(0, 0, WINDOW) in seen)
        credits = [s.folded for s in seen if isinstance(s, Credited)]
        assert credits == sorted(set(credits))  # the last counts: some may have been merged

    def test_more_writes_than_the_wire_takes_at_once_wait(self, job: Job) -> None:
        """A credit may overtake the completion of its chunk, so more than a window may be under way."""
        for seq in range(4 * WINDOW):
            send(job, 0, 0, seq, 64)
        assert landed(until(job, 1, count(Arrived, 4 * WINDOW))) == [(0, 0, seq) for seq in range(4 * WINDOW)]

    def test_a_nic_is_free_again_when_its_chunks_are_out(self, job: Job) -> None:
        assert job.ranks[0].free_at(0, job.now()) <= job.now()
        for seq in range(WINDOW):
            send(job, 0, 0, seq)
        until(job, 1, count(Arrived, WINDOW))
        until(job, 0, lambda seen: Completed(0, 0, WINDOW - 1) in seen)
        assert job.ranks[0].free_at(0, job.now()) <= job.now()

    def test_a_record_can_be_read_over_any_wire(self, job: Job) -> None:
        assert job.ranks[0].ask_record(0, 0) == self.reads_records
        if not self.reads_records:
            assert not [seen for seen in quiet(job, 0) if isinstance(seen, Record)], "none follows a no"
            return
        assert until(job, 0, count(Record, 1)) == [Record(0, 0, 0, 0)]
        job.ranks[1].publish(0, 3, 2**40, 2**40 - 1)
        job.ranks[1].publish(1, 9, 9, 9)
        for wire in FLOWS[0].wires:
            assert job.ranks[0].ask_record(wire, 0)
            assert until(job, 0, count(Record, 1)) == [Record(0, 3, 2**40, 2**40 - 1)]

    def test_a_fenced_wire_is_drained_and_silent(self, job: Job) -> None:
        for seq in range(WINDOW):
            send(job, 0, 0, seq)
        job.ranks[0].fence(0)
        seen = until(job, 0, count(Drained, 1))
        assert seen[-1] == Drained(0)
        assert not [s for s in seen if isinstance(s, Failed)]  # it was asked for
        job.ranks[1].fence(0)
        seen = until(job, 1, count(Drained, 1))
        arrived = landed(seen)
        assert arrived == [(0, 0, seq) for seq in range(len(arrived))]  # what came before is told before
        slots = [bytes(job.ranks[1].slot(0, s)) for s in range(WINDOW)]
        send(job, 0, 0, WINDOW)
        job.ranks[1].credit(0, 0, 1)
        job.ranks[0].ask_record(0, 0)
        assert quiet(job, 0) == quiet(job, 1) == []
        assert [bytes(job.ranks[1].slot(0, s)) for s in range(WINDOW)] == slots

    def test_a_fence_at_one_end_stops_the_other(self, job: Job) -> None:
        job.ranks[1].fence(0)
        assert until(job, 1, count(Drained, 1)) == [Drained(0)]
        slot = bytes(job.ranks[1].slot(0, 0))
        send(job, 0, 0, 0)
        assert not [s for s in quiet(job, 0) if isinstance(s, Completed)]
        assert quiet(job, 1) == []
        assert bytes(job.ranks[1].slot(0, 0)) == slot
        job.ranks[0].fence(0)
        until(job, 0, count(Drained, 1))

    def test_the_other_wires_go_on(self, job: Job) -> None:
        for rank in (0, 1):
            job.ranks[rank].fence(0)
            until(job, rank, count(Drained, 1))
        payload = send(job, 1, 0, 0)
        assert landed(until(job, 1, count(Arrived, 1))) == [(1, 0, 0)]
        assert job.ranks[1].slot(0, 0)[HEADER_BYTES : HEADER_BYTES + SLOT_BYTES] == payload
        job.ranks[1].credit(1, 0, 1)
        assert count(Credited, 1)(until(job, 0, count(Credited, 1)))

    def test_a_wire_can_be_fenced_twice(self, job: Job) -> None:
        for _ in range(2):
            job.ranks[0].fence(0)
            assert until(job, 0, count(Drained, 1)) == [Drained(0)]

    def test_poll_comes_back_in_time(self, job: Job) -> None:
        end = job.now() + 0.05
        assert job.ranks[0].poll(end) == []
        assert job.now() >= end
        assert job.ranks[0].poll(job.now() - 1) == []

    def test_the_watch_ends_a_wait(self, job: Job) -> None:
        job.watches[0].speak()
        assert job.ranks[0].poll(float("inf")) == []
        assert job.watches[0].heard == 1

    def test_a_look_without_a_wait_hears_the_watch_too(self, job: Job) -> None:
        assert job.ranks[0].poll(-float("inf")) == []
        job.watches[0].speak()
        assert job.ranks[0].poll(-float("inf")) == []
        assert job.watches[0].heard == 1
