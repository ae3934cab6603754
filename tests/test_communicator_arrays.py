"""Arrays that a communicator allocates: ranks lend from them, whatever other ranks do, and nothing is left behind."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.communicator.prepared import SMALL
from optcc.errors import InputError
from optcc.runtime.control import transports
from optcc.runtime.control.links import Links
from optcc.runtime.devices.host import Array
from optcc.runtime.native.library import engine_library
from tests.communicators import Ranks
from tests.test_communicator import Dlpack
from tests.test_communicator_failures import TWO_NICS

WORLD = 3
COUNT = SMALL // 4 * 2
"""Elements of 4 bytes of a call that goes where its buffers are."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD) as ranks:
        ranks.good(lambda comm: comm.all_reduce(np.zeros(COUNT, np.float32)))  # wires stand before there is an array
        yield ranks


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of each operation: the rank, and whether it lends."""
    found: list[tuple[int, bool]] = []
    whole = Links.run

    def run(self: Links, *args: Any, **how: Any) -> bool:
        before = self._wires.lent  # type: ignore[attr-defined]
        noted = whole(self, *args, **how)
        found.append((self._rank, self._wires.lent > before))  # type: ignore[attr-defined]
        return noted

    monkeypatch.setattr(Links, "run", run)
    return found


def own(comm: optcc.Communicator, count: int = COUNT, value: float | None = None) -> Array:
    """An array of the communicator's."""
    made = comm.empty(count, np.float32)
    made[:] = comm.rank + 1 if value is None else value
    return made


def plain(comm: optcc.Communicator, count: int = COUNT, value: float | None = None) -> Array:
    """An array of the caller's."""
    return np.full(count, comm.rank + 1 if value is None else value, np.float32)


def one_of_each(comm: optcc.Communicator) -> Array:
    return (own if comm.rank == 1 else plain)(comm)


Call = Callable[[optcc.Communicator], Any]

CALLS: dict[str, tuple[Call, Any, Sequence[int]]] = {
    "all_reduce": (lambda c: c.all_reduce(own(c)), 6, (0, 1, 2)),
    "max": (lambda c: c.all_reduce(own(c), "max"), 3, (0, 1, 2)),
    "avg": (lambda c: c.all_reduce(own(c), "avg"), 2, (0, 1, 2)),
    "result elsewhere": (lambda c: c.all_reduce(plain(c), out=own(c)), 6, (0, 1, 2)),
    "only the input": (lambda c: c.all_reduce(own(c), out=plain(c)), 6, ()),
    "a part": (lambda c: c.all_reduce(own(c, COUNT + 20)[10:-10]), 6, (0, 1, 2)),
    "a matrix": (lambda c: c.all_reduce(own(c).reshape(2, -1)), 6, (0, 1, 2)),
    "another library's": (lambda c: c.all_reduce(Dlpack(own(c))).array, 6, (0, 1, 2)),
    "plain": (lambda c: c.all_reduce(plain(c)), 6, ()),
    "one rank's": (lambda c: c.all_reduce(one_of_each(c)), 6, (1,)),
    "all but one rank's": (lambda c: c.all_reduce((plain if c.rank == 1 else own)(c)), 6, (0, 2)),
    "broadcast": (lambda c: c.broadcast(own(c), 1), 2, (1,)),
    "all_gather": (
        lambda c: c.all_gather(plain(c), own(c, WORLD * COUNT)),
        np.repeat([1, 2, 3], COUNT),
        (0, 1, 2),
    ),
    "all_to_all": (
        lambda c: c.all_to_all(own(c, WORLD * COUNT), plain(c, WORLD * COUNT)),
        np.repeat([1, 2, 3], COUNT),
        (0, 1, 2),
    ),
    "reduce_scatter": (lambda c: c.reduce_scatter(own(c, WORLD * COUNT), plain(c)), 6, (0, 1, 2)),
    "small": (lambda c: c.all_reduce(own(c, SMALL // 4)), 6, ()),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_lend_where_they_may(ranks: Ranks, lent: list[tuple[int, bool]], name: str) -> None:
    call, want, lenders = CALLS[name]
    assert all((np.asarray(made) == want).all() for made in ranks.good(call))
    assert {rank for rank, lends in lent if lends} == {*lenders}


def test_an_array_is_written_again_as_soon_as_its_handle_is_done(ranks: Ranks) -> None:
    """Nobody reads it any more then, and another array may have its place."""

    def call(comm: optcc.Communicator) -> list[bool]:
        good = []
        for turn in range(20):
            many = [own(comm, value=turn + comm.rank), own(comm, value=-turn)]
            handles = [comm.all_reduce(x, async_op=True) for x in many]
            for handle, want in zip(handles, (3 * turn + 3, -3 * turn), strict=True):
                del many[0]
                made = handle.wait(60)
                good.append(bool((made == want).all()))
                made[:] = 1e9
                del made
        return good

    assert all(all(good) for good in ranks.good(call))


# --- groups and the end ----------------------------------------------------------------------------------------------


def test_groups_lend_the_same_arrays(ranks: Ranks, lent: list[tuple[int, bool]]) -> None:
    def call(comm: optcc.Communicator) -> float:
        x = own(comm)
        part = comm.split(0)
        assert part
        with part:
            got = float(part.all_reduce(x)[-1])
        comm.all_reduce(x)  # the memory is still there
        return got

    assert ranks.good(call) == [6.0] * WORLD
    assert sorted(lent) == [(rank, True) for rank in range(WORLD) for _ in range(2)]


def test_another_communicators_array_is_memory_like_any_other(ranks: Ranks, lent: list[tuple[int, bool]]) -> None:
    with Ranks(WORLD) as others:
        arrays = others.good(own)
        assert all((made == 6).all() for made in ranks.good(lambda comm: comm.all_reduce(arrays[comm.rank])))
    assert not any(lends for _, lends in lent)


def shared() -> int:
    """Descriptors of memory that ranks share."""
    links = [os.readlink(each.path) for each in os.scandir("/proc/self/fd") if os.path.lexists(each.path)]
    return sum("memfd:optcc" in link for link in links)


def test_arrays_outlive_their_communicator_and_nothing_else_does() -> None:
    before = shared()
    with Ranks(2) as ranks:
        kept = ranks.good(lambda comm: comm.all_reduce(own(comm)))
        kept += ranks.good(lambda comm: comm.all_reduce(own(comm), async_op=True).wait(60))
        assert shared() > before
    for comm in ranks.comms:
        with pytest.raises(InputError, match="it is closed"):
            comm.empty(1, "int8")
    assert all((x == 3).all() for x in kept)
    kept.clear()
    assert shared() == before, "although the communicators are still there"


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_nic_dies_while_chunks_are_lent(lent: list[tuple[int, bool]]) -> None:
    def call(comm: optcc.Communicator) -> bytes:
        x = comm.empty(1 << 20, np.float32)
        x[:] = np.random.default_rng(comm.rank).normal(size=len(x))
        return comm.all_reduce(x).tobytes()

    with Ranks(WORLD, TWO_NICS, tune=False) as ranks:
        healthy = ranks.good(call)
        ranks.good(lambda comm: comm.strike("cut", "server1/nic0", 0.5))
        assert ranks.good(call) == healthy
        kinds = [event.kind for event in ranks.comms[1].events()]
        assert kinds.index("struck") < kinds.index("nic down"), "the fault met something"
        ranks.good(lambda comm: [comm.barrier() for _ in range(50)])
        assert len({*ranks.good(call)}) == 1, "over wires made anew"
    assert {rank for rank, lends in lent if lends} == {*range(WORLD)}


def test_a_caller_that_is_interrupted_has_its_array_back() -> None:
    """What others read from it then does not count: they fail."""
    with Ranks(2) as ranks:
        ranks.good(lambda comm: comm.all_reduce(own(comm)))

        def call(comm: optcc.Communicator) -> None:
            if comm.rank == 0:
                with pytest.raises(KeyboardInterrupt), comm._member.turn("barrier()"):
                    raise KeyboardInterrupt
                assert not comm._member.links.up, "nothing is lent any more"
            else:
                with pytest.raises(optcc.RankFailedError, match="interrupted by KeyboardInterrupt"):
                    comm.all_reduce(own(comm))

        ranks.good(call)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        ((2, -1), "int8", r"shape: no such shape, expected whole numbers from 0 on, got '\(2, -1\)'"),
        ("ab", "int8", "shape: no such shape"),
        (2.5, "int8", "shape: no such shape"),
        (3, "complex64", "dtype: no such element type, expected one of int8, .*, got 'complex64'"),
        (3, np.complex64, "dtype: no such element type"),
        (3, "float33", "dtype: no such element type"),
        (3, 7, "dtype: no such element type"),
        (2**50, "int8", r"empty: too little memory, expected up to \d+ bytes, which can be had, got .*numpy.empty"),
    ],
)
def test_arrays_that_cannot_be(shape: Any, dtype: Any, words: str) -> None:
    with optcc.Communicator() as comm, pytest.raises(InputError, match=words):
        comm.empty(shape, dtype)


def test_memory_that_ranks_share_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports.os, "sysconf", lambda name: 128)
    with Ranks(2) as ranks:
        comm = ranks.comms[0]
        x = comm.empty(8192, "uint8")
        with pytest.raises(InputError, match=r"empty: too little memory .* in a row are left.* Drop arrays"):
            comm.empty(1, "uint8")
        del x
        comm.empty(8192, "uint8")


@pytest.mark.parametrize("shape", [0, 5, (), (2, 3), [4], np.int64(3), (0, 7)])
@pytest.mark.parametrize("dtype", ["bfloat16", np.float64, np.dtype("int16")])
def test_shapes_and_types_are_numpys(shape: Any, dtype: Any) -> None:
    with optcc.Communicator() as comm:
        made = comm.empty(shape, dtype)
        like = np.empty(shape, made.dtype)
        assert (made.shape, made.nbytes, made.flags.c_contiguous) == (like.shape, like.nbytes, True)
        assert made.flags.writeable


# --- memory that was not lent ----------------------------------------------------------------------------------------


@pytest.fixture
def peeked(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """By rank, payloads that the kernel was to read, of all operations."""
    found: dict[int, int] = {}
    whole = Links.run

    def run(self: Links, *args: Any, **how: Any) -> bool:
        noted = whole(self, *args, **how)
        found[self._rank] = self._wires.peeked  # type: ignore[attr-defined]
        return noted

    monkeypatch.setattr(Links, "run", run)
    return found


def gathered(comm: optcc.Communicator, out: Array) -> bool:
    """Whether all_gather of the ranks' numbers brings what it must; ranks send from `out`."""
    comm.all_gather(plain(comm), out)
    return bool((out.reshape(WORLD, COUNT) == np.arange(1, WORLD + 1)[:, None]).all())


def test_other_memory_is_read_by_the_kernel_where_it_lets_ranks(ranks: Ranks, peeked: dict[int, int]) -> None:
    assert ranks.good(lambda comm: gathered(comm, np.zeros(WORLD * COUNT, np.float32))) == [True] * WORLD
    assert all(peeked[rank] for rank in range(WORLD))
    before = peeked.copy()
    ranks.good(lambda comm: comm.all_reduce(np.zeros(4, np.float32)))
    assert peeked == before, "what is small is not worth it"


def test_elements_may_begin_anywhere(ranks: Ranks) -> None:
    """Rows of a file with a head of odd length: read and written where they are not aligned."""

    def calls(comm: optcc.Communicator) -> None:
        def odd(count: int, value: float) -> Array:
            made = np.frombuffer(bytearray(4 * count + 1), np.float32, offset=1)
            assert not made.flags.aligned
            made[:] = value
            return made

        x, out = odd(COUNT, comm.rank), odd(WORLD * COUNT, -1)
        assert comm.all_gather(x, out) is out
        assert (out.reshape(WORLD, COUNT) == np.arange(WORLD)[:, None]).all()
        assert (comm.all_reduce(x) == sum(range(WORLD))).all()
        lent = comm.empty(4 * COUNT + 1, np.uint8)[1:].view(np.float32)
        lent[:] = comm.rank
        lent.flags.writeable = comm.rank != 1
        assert (comm.broadcast(lent, 1) == 1).all()

    ranks.good(calls)


def test_where_the_kernel_reads_nothing_it_goes_by_the_ring(
    monkeypatch: pytest.MonkeyPatch, peeked: dict[int, int]
) -> None:
    monkeypatch.setattr(engine_library(), "optcc_shm_peek", lambda shm: 0)
    with Ranks(WORLD) as ranks:
        assert ranks.good(lambda comm: gathered(comm, np.zeros(WORLD * COUNT, np.float32))) == [True] * WORLD
    assert set(peeked.values()) == {0}


def test_memory_that_the_kernel_does_not_read_goes_by_the_ring_from_then_on(peeked: dict[int, int]) -> None:
    """As that which a GPU's driver has pinned: its process reads it, the kernel does not."""
    maps = [mmap.mmap(-1, 4 * WORLD * COUNT, prot=mmap.PROT_WRITE) for _ in range(WORLD)]
    with Ranks(WORLD) as ranks:

        def call(comm: optcc.Communicator) -> bool:
            return gathered(comm, np.frombuffer(maps[comm.rank], np.float32))

        assert ranks.good(call) == [True] * WORLD
        first = peeked.copy()
        assert all(first.values()), "they have tried"
        assert ranks.good(call) == [True] * WORLD
        assert peeked == first
        assert not any(event.kind in ("nic down", "lost") for comm in ranks.comms for event in comm.events())
