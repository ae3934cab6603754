"""Arrays that the ranks of a machine share; and that schedules do not change what may still be read."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

from optcc.errors import VerifyError
from optcc.runtime.devices.host import Array
from optcc.runtime.errors import TransportError
from optcc.runtime.native.lent import Arena
from optcc.schedule import Schedule
from optcc.schedule.simple import all_gather, broadcast, one_tree, reduce_scatter
from optcc.simulation.verifier import verify
from optcc.values.cluster import Cluster

BYTES, PAGE = np.dtype(np.uint8), mmap.PAGESIZE


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
        from optcc.runtime.native.lent import Arena

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
