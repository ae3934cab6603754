"""Chunks that stay in their sender's buffer: read by the receiver before they are acknowledged, or lost."""

from __future__ import annotations

import errno
import math
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

import optcc
from optcc.errors import VerifyError
from optcc.runtime.compiled.compiling import compile_all
from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.path import CompiledPath
from optcc.runtime.devices.host import Array, Op
from optcc.runtime.engine.program import program_of
from optcc.runtime.errors import TransportError
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived, Cause, Failed
from optcc.runtime.wires.layout import layout_of
from optcc.runtime.wires.lent import Arena, FarArena
from optcc.runtime.wires.local import LocalWires
from optcc.schedule import Schedule
from optcc.schedule.simple import all_gather, broadcast, one_tree, reduce_scatter
from optcc.simulation.verifier import verify
from optcc.values.cluster import Cluster
from tests.test_wires import connect, layout
from tests.wires_contract import Pipe, header

BUFFER = 4096
FLOW, WIRE = 0, 0
"""From rank 0 to rank 1."""


@pytest.fixture
def ends() -> Iterator[list[LocalWires]]:
    watches = [Pipe(), Pipe()]
    made = connect(layout(), watches, lent_bytes=BUFFER)
    yield made
    for each in (*made, *watches):
        each.close()


def lend(end: LocalWires, seq: int, start: int, nbytes: int) -> None:
    """As compiled code does it: no payload in the slot, but where it is."""
    out = end._out[WIRE]
    out.far.lend(FLOW, seq, header(FLOW, seq), start, nbytes)
    out.notices.put(FLOW, nbytes, seq, -math.inf, -math.inf, WIRE)


def filled(end: LocalWires) -> bytes:
    assert end._lent
    end._lent.bytes[:] = os.urandom(BUFFER)
    return bytes(end._lent.bytes)


def test_a_lent_chunk_arrives_with_its_bytes(ends: list[LocalWires]) -> None:
    values = filled(ends[0])
    lend(ends[0], 0, 1000, 3000)
    assert [type(it) for it in ends[1].poll(-math.inf)] == [Arrived]
    slot = ends[1].slot(FLOW, 0)
    assert slot[:HEADER_BYTES] == header(FLOW, 0)
    assert slot[HEADER_BYTES : HEADER_BYTES + 3000] == values[1000:4000]


def test_its_sender_may_write_again_once_it_is_acknowledged(ends: list[LocalWires]) -> None:
    values = filled(ends[0])
    lend(ends[0], 0, 0, 100)
    assert ends[0].landed(WIRE, FLOW) == 0
    ends[1].poll(-math.inf)
    assert ends[0].landed(WIRE, FLOW) == 1
    filled(ends[0])
    assert ends[1].slot(FLOW, 0)[HEADER_BYTES : HEADER_BYTES + 100] == values[:100]


def test_a_chunk_that_is_sent_again_through_its_slot_is_not_lent(ends: list[LocalWires]) -> None:
    filled(ends[0])
    lend(ends[0], 0, 0, 100)
    ends[0].write(WIRE, FLOW, 0, header(FLOW, 0), memoryview(bytes(100)), -math.inf)
    ends[1].poll(-math.inf)
    assert ends[1].slot(FLOW, 0)[HEADER_BYTES : HEADER_BYTES + 100] == bytes(100)


def test_a_sender_that_has_given_up_loses_the_wire(ends: list[LocalWires]) -> None:
    lend(ends[0], 0, 0, 100)
    ends[0]._out[WIRE].far.withdraw(0)
    assert ends[1].poll(-math.inf) == [Failed(WIRE, Cause.CLOSED, "its sender has given up")]
    assert ends[0].landed(WIRE, FLOW) == 0


def test_who_closes_lends_nothing_any_more(ends: list[LocalWires]) -> None:
    assert not ends[1]._slots.has_withdrawn(0)
    ends[0].close()
    assert ends[1]._slots.has_withdrawn(0)


@pytest.mark.parametrize(("start", "nbytes"), [(BUFFER, 1), (BUFFER - 10, 11), (2**60, 100)])
def test_a_chunk_beyond_the_buffer_is_refused(ends: list[LocalWires], start: int, nbytes: int) -> None:
    lend(ends[0], 0, start, nbytes)
    with pytest.raises(TransportError, match="of the buffer of rank 0, which has fewer"):
        ends[1].poll(-math.inf)


# --- arenas ---------------------------------------------------------------------------------------------------------

BYTES = np.dtype(np.uint8)
PAGE = mmap.PAGESIZE


def taken(arena: Arena) -> int:
    """Pages of memory that it takes."""
    return os.fstat(arena.fd).st_blocks * 512 // PAGE


def starts(arena: Arena, *arrays: Array) -> list[int]:
    """The pages on which arrays begin."""
    first = np.frombuffer(arena.bytes, BYTES).ctypes.data
    return [(array.ctypes.data - first) // PAGE for array in arrays]


def test_an_array_is_there_as_long_as_somebody_has_it() -> None:
    before = os.listdir("/dev/fd")
    arena = Arena(64)
    values = arena.empty(8, np.dtype(np.int64))
    values[:] = 7
    arena.close()
    assert values.tolist() == [7] * 8
    del values, arena
    assert len(os.listdir("/dev/fd")) == len(before)


def test_an_array_that_is_gone_gives_back_its_memory_and_its_place() -> None:
    arena = Arena(4 * PAGE)
    first, second, third = (arena.empty(count, BYTES) for count in (1, PAGE + 1, PAGE))
    assert (starts(arena, first, second, third), taken(arena)) == ([0, 1, 3], 4)
    view = second[5:].reshape(2, -1)
    first[:], view[:], third[:] = 1, 2, 3
    del first, second
    assert taken(arena) == 3, "a view keeps it"
    with pytest.raises(TransportError, match=r"0.00781 MiB .* share: of 0.0156 MiB 0.00391 MiB in a row are left"):
        arena.empty(2 * PAGE, BYTES)
    assert (view == 2).all()
    del view
    assert taken(arena) == 1
    again = arena.empty(3 * PAGE, BYTES)  # both gaps in one
    assert (starts(arena, again), taken(arena)) == ([0], 4)
    assert (third == 3).all()


def test_an_empty_array_takes_nothing() -> None:
    arena = Arena(0)
    assert arena.empty(0, BYTES).shape == (0,)
    assert not arena.bytes


@pytest.mark.parametrize(("module", "call"), [(os, "posix_fallocate"), (mmap, "mmap")], ids=["memory", "addresses"])
def test_memory_that_cannot_be_had_is_an_error_and_leaves_the_arena_as_it_was(
    module: ModuleType, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    arena = Arena(PAGE)
    with monkeypatch.context() as here:
        here.setattr(module, call, none_left)
        with pytest.raises(TransportError, match=r"MiB .* cannot be had: Cannot allocate"):
            arena.empty(PAGE, BYTES)
    assert bool(os.fstat(arena.fd).st_size) == bool(arena.bytes), "others map what there is"
    assert len(arena.empty(PAGE, BYTES)) == PAGE


def test_a_forked_process_allocates_nothing_and_gives_nothing_back() -> None:
    """In a process without threads, which forks."""
    script = """if True:
        import os
        import numpy as np
        from optcc.runtime.errors import TransportError
        from optcc.runtime.wires.lent import Arena, FarArena

        arena = Arena(1 << 20)
        values = arena.empty(1000, np.dtype(np.int64))
        values[:] = 7
        child = os.fork()
        if not child:
            del values
            try:
                arena.empty(1, np.dtype(np.int8))
            except TransportError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (values == 7).all()
    """
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_a_far_arena_is_mapped_when_something_is_lent_from_it() -> None:
    arena = Arena(PAGE)
    far = FarArena(os.dup(arena.fd))
    assert not far.bytes
    with pytest.raises(TransportError, match="cannot be mapped"):
        FarArena(os.dup(arena.fd)).map()
    arena.empty(3, BYTES)[:] = 7
    far.map()
    assert len(far.bytes) == PAGE
    far.close()
    assert FarArena(os.dup(arena.fd)).bytes, "at once where there has been an array"


# --- what schedules owe to it ----------------------------------------------------------------------------------------


def late_reads(schedule: Schedule) -> list[tuple[int, int]]:
    """Pairs of transfers: the second changes bytes of a rank that the first, by its dependencies, may still be read
    from. Such bytes must not be lent."""
    before = [0] * len(schedule)  # transfers that have certainly finished before each starts, as bits
    for row in range(len(schedule)):
        for dep in schedule.deps(row).tolist():
            before[row] |= before[dep] | 1 << dep
    start, stop = schedule.offset, schedule.offset + schedule.length
    return [
        (sent, row)
        for row in range(len(schedule))
        for sent in range(row)
        if schedule.src[sent] == schedule.dst[row]
        and start[sent] < stop[row]
        and start[row] < stop[sent]
        and not before[row] >> sent & 1
    ]


SIMPLE = {
    "one tree": lambda cluster: one_tree(cluster, 4096),
    "broadcast": lambda cluster: broadcast(cluster, 1 << 20, 2),
    "all gather": lambda cluster: all_gather(cluster, 4096),
    "reduce scatter": lambda cluster: reduce_scatter(cluster, 4096),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_collectives_do_not_change_what_they_may_still_be_sending(name: str) -> None:
    assert late_reads(SIMPLE[name](Cluster.uniform(servers=5, nics=2, rate=Fraction(10**9)))) == []


def test_a_schedule_that_does_is_noticed() -> None:
    """Two ranks that swap without waiting. The verifier, which every family is tested by, refuses it."""
    tree = one_tree(Cluster.uniform(servers=2, nics=1, rate=Fraction(10**9)), 4096)
    none = np.zeros(0, np.int64)
    loose = tree.replace(dep_ptr=np.zeros(len(tree) + 1, np.int64), dep_idx=none)
    assert late_reads(loose) == [(0, 1)]
    with pytest.raises(VerifyError, match="may still be"):
        verify(loose)


# --- compiled code ---------------------------------------------------------------------------------------------------


class Impatient:
    """Has compiled code come back as soon as there is nothing left to do."""

    def look(self, done: float) -> None:
        pass

    def due(self) -> float:
        return math.inf

    def wake(self) -> float:
        return time.monotonic()


@pytest.mark.parametrize("gives_up", [False, True])
def test_compiled_code_does_not_count_what_a_sender_has_taken_back(gives_up: bool) -> None:
    compile_all()
    cluster = Cluster.uniform(servers=2, nics=1, rate=Fraction(10**9))
    schedule = optcc.plan(cluster, 4096, segments=1).schedule()
    it, watches = layout_of({"it": schedule}), [Pipe(), Pipe()]
    unlimited = replace(it, nics=tuple(replace(nic, out_rate=math.inf, in_rate=math.inf) for nic in it.nics))
    wires = connect(unlimited, watches, lent_bytes=4096)
    try:
        landed = []
        for rank, end in enumerate(wires):
            assert end._lent
            flows = FlowTransport(rank, it, {"it": schedule.routes}, end, lambda to, value: None, time.monotonic)
            buffer = end._lent.empty(1024, np.dtype(np.float32))
            buffer[:] = 1
            program = program_of(schedule, rank, 4)
            flows.begin("it", program.receives)
            path = CompiledPath(flows, end)
            engine = CompiledEngine(path, program, buffer, Op.SUM, flows, time.monotonic)
            engine.attendant = Impatient()
            if gives_up and rank == 1:
                wires[1]._slots.withdraw(0)
            engine.begin()
            path.advance(engine)
            landed.append(sum(into.receiver.landed for into in flows._ins.values()))
        assert landed == [0, 0 if gives_up else 1]
        assert gives_up == any(isinstance(it, Failed) for it in wires[1].poll(-math.inf))
    finally:
        for each in (*wires, *watches):
            each.close()
