"""Records between processes through shared memory: none is lost, none comes twice, and who sleeps is woken."""

from __future__ import annotations

import math
import mmap
import threading
import time
from struct import Struct
from typing import Any

import pytest

from optcc.runtime.errors import TransportError
from optcc.runtime.wires import rings
from optcc.runtime.wires.contract import Arrived, Credited
from optcc.runtime.wires.rings import Ring, ring_bytes
from optcc.runtime.wires.slots import Slots
from tests.effort import cases
from tests.test_wires import LocalJob, layout
from tests.wires_contract import FLOWS, PATIENCE_S, count, header, landed, until

RECORD = Struct("<Iq")


def pair(size: int, start: int = 64) -> tuple[Ring, Ring]:
    memory = memoryview(mmap.mmap(-1, start + ring_bytes(size, RECORD)))
    return Ring(memory, start, size, RECORD), Ring(memory, start, size, RECORD)


def test_records_come_once_and_in_order_however_often_the_ring_goes_round() -> None:
    writer, reader = pair(5)
    seen: list[tuple[Any, ...]] = []
    for number in range(100):
        assert writer.put(number, -number)
        if number % 3 == 0:
            seen += reader.take()
    seen += reader.take()
    assert seen == [(number, -number) for number in range(100)]
    assert reader.take() == []


def test_a_full_ring_takes_nothing_until_it_is_read() -> None:
    writer, reader = pair(5)
    assert [writer.put(number, 0) for number in range(9)] == [True] * 8 + [False], "a power of two"
    assert [number for number, _ in reader.take()] == list(range(8))
    assert writer.put(8, 0)
    assert reader.take() == [(8, 0)]


def test_a_count_that_cannot_be_is_a_bug() -> None:
    writer, reader = pair(4)
    for number in range(4):
        writer.put(number, 0)
    writer._taken = 4  # as if all had been read
    writer.put(4, 0)
    with pytest.raises(TransportError, match="5 records in a ring of 4"):
        reader.take()


def test_machines_that_reorder_stores_are_asked_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the count of records is written, before what it counts is read, before room is given back."""
    asked: list[int] = []
    monkeypatch.setattr(rings, "_IN_ORDER", False)
    writer, reader = pair(4)
    monkeypatch.setattr(rings, "order", lambda: asked.append(writer._words[writer._written_at]))
    writer.put(1, 2)
    assert asked == [0], "the count is not written yet"
    assert reader.take() == [(1, 2)]
    assert asked == [0, 1, 1]


def test_one_writes_while_the_other_reads() -> None:
    writer, reader = pair(16)
    total = cases(20_000)
    seen: list[int] = []

    def read() -> None:
        end = time.monotonic() + 60
        while len(seen) < total and time.monotonic() < end:
            seen.extend(number for number, _ in reader.take())

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(total):
        while thread.is_alive() and not writer.put(number, number):
            time.sleep(0)
    thread.join(60)
    assert seen == list(range(total))


def test_nothing_in_a_ranks_memory_overlaps() -> None:
    it = layout()
    for rank in range(2):
        slots = Slots(rank, FLOWS)
        slots.sleep(7)
        for src in slots.senders:
            slots.sleep(8, src)
            notices, backs = slots.notices(src), slots.backs(src)
            while notices.put(2**32 - 1, 2**32 - 1, -1, math.nan, math.nan, -1):
                pass
            while backs.put(2**32 - 1, 2**32 - 1, -1, -1):
                pass
        incoming = [flow for flow, spec in enumerate(it.flows) if spec.dst == rank]
        for flow in incoming:
            assert slots.landed(flow, 2**24 - 1) == 0
            for seq in range(FLOWS[flow].window):
                assert not any(slots.slot(flow, seq)), "rings end before slots begin"
        assert [slots.is_closed(wire) for wire in FLOWS[incoming[0]].wires] == [False] * 4
        assert [slots.sleeps(), *(slots.sleeps(src) for src in slots.senders)] == [7, 8]
        slots.close()


@pytest.mark.parametrize("credit", [False, True])
def test_who_sleeps_is_woken_and_who_is_awake_is_not_called(credit: bool) -> None:
    """A chunk wakes its receiver, a credit its sender; with nobody asleep nothing goes over the socket."""
    job = LocalJob()
    job.ranks[0].write(0, 0, 0, header(0, 0), job.memory[0][:64], job.now())
    until(job, 1, count(Arrived, 1))
    sleeper = 0 if credit else 1
    woken: list[Any] = []
    waiter = threading.Thread(target=lambda: woken.extend(job.ranks[sleeper].poll(math.inf)), daemon=True)
    waiter.start()
    end = time.monotonic() + PATIENCE_S
    slots, src = job.ranks[1]._slots, 0
    while not slots.sleeps(src if credit else None):
        assert time.monotonic() < end
        time.sleep(0.001)
    if credit:
        job.ranks[1].credit(0, 0, 1)
    else:
        job.ranks[0].write(0, 0, 1, header(0, 1), job.memory[0][:64], job.now())
    waiter.join(PATIENCE_S)
    assert isinstance(woken[-1], Credited if credit else Arrived)
    assert not slots.sleeps(src if credit else None), "it is awake"
    calls: list[object] = []
    for rank in job.ranks:
        rank._wake = lambda *woken: calls.append(woken)
    job.ranks[0].write(0, 0, 2, header(0, 2), job.memory[0][:64], job.now())
    job.ranks[1].credit(0, 0, 1)
    assert not calls
    job.close()


def test_a_sleeper_looks_once_more_after_it_has_said_so() -> None:
    """What comes between its look and its word would wake nobody: here it does so in the fence between the two."""
    job = LocalJob()
    receiver = job.ranks[1]
    say = receiver._say_sleep

    def late(nth: int) -> None:
        if nth:
            job.ranks[0].write(0, 0, 0, header(0, 0), job.memory[0][:64], job.now())
        say(nth)

    receiver._say_sleep = late
    assert landed(receiver.poll(time.monotonic() + PATIENCE_S)) == [(0, 0, 0)]
    assert not receiver._slots.sleeps()
    job.close()
