"""The communicator, from its callers' side: results on their own buffers, of all types, over the local transport."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.communicator.collectives import FIRST, Punctuality, Together
from optcc.communicator.prepared import CLASSES, SIZES, SMALL, RecentlyUsed
from optcc.errors import InputError
from optcc.runtime.devices.host import DTYPES, Array, bits_of, divide, dtype_of, reduction_of
from optcc.runtime.evidence.payload import fill, reference
from optcc.runtime.messages import Note
from optcc.runtime.native.layout import SEGMENT_BYTES
from tests.communicators import WAIT_S, Ranks

OPS = ("sum", "prod", "min", "max", "avg")
WORLD = 3


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD) as ranks:
        yield ranks


def given(rank: int, count: int, dtype: str, op: str) -> Array:
    values = np.empty(count, dtype_of(dtype))
    fill(values, rank=rank, ranks=WORLD, op=reduction_of(op).fold)
    return values


def expected(count: int, dtype: str, op: str) -> Array:
    total = reference(count, dtype_of(dtype), ranks=WORLD, op=reduction_of(op).fold)
    if reduction_of(op).mean:
        divide(total, WORLD)
    return total


def same(one: Array, other: Array) -> bool:
    """Bit for bit, also zeros and NaN."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_every_type_and_operation(ranks: Ranks, dtype: str, op: str) -> None:
    count = 1001
    into = ranks.good(lambda comm: comm.all_reduce(given(comm.rank, count, dtype, op), op))
    assert all(same(each, expected(count, dtype, op)) for each in into)


EDGES = [0, 1, 2, 7, 4096, SMALL // 4 - 1, SMALL // 4, SMALL // 4 + 1, 300_001, 1 << 20]


@pytest.mark.parametrize("count", EDGES)
def test_every_size_in_place_and_not(ranks: Ranks, count: int) -> None:
    def call(comm: optcc.Communicator) -> tuple[Array, Array, Array]:
        kept, out = given(comm.rank, count, "float32", "sum"), np.empty(count, np.float32)
        assert comm.all_reduce(kept, out=out) is out
        own = kept.copy()
        assert comm.all_reduce(own) is own
        return kept, out, own

    want = expected(count, "float32", "sum")
    for rank, (kept, out, own) in enumerate(ranks.good(call)):
        assert same(kept, given(rank, count, "float32", "sum")), "an input that is not the output stays"
        assert same(out, want)
        assert same(own, want)


def test_a_wrong_result_would_show() -> None:
    want = expected(1001, "float32", "min")
    assert not same(want, -want)
    assert same(want, want.copy())


def test_shapes_stay(ranks: Ranks) -> None:
    made = ranks.good(lambda comm: comm.all_reduce(np.full((3, 5, 2), comm.rank, np.int32)))
    assert all(np.array_equal(each, np.full((3, 5, 2), sum(range(WORLD)))) for each in made)


@pytest.mark.parametrize("count", [0, 3, 70_001])
@pytest.mark.parametrize("root", range(WORLD))
def test_broadcast(ranks: Ranks, count: int, root: int) -> None:
    made = ranks.good(lambda comm: comm.broadcast(given(comm.rank, count, "float64", "min"), root))
    assert all(same(each, given(root, count, "float64", "min")) for each in made)


def test_a_root_that_only_reads_its_buffer_may_broadcast_it(ranks: Ranks) -> None:
    def call(comm: optcc.Communicator) -> Array:
        x = np.full(4, comm.rank)
        x.flags.writeable = comm.rank != 1
        return comm.broadcast(x, 1)

    assert all(np.array_equal(each, [1] * 4) for each in ranks.good(call))


@pytest.mark.parametrize("count", [0, 3, 70_001])
def test_all_gather(ranks: Ranks, count: int) -> None:
    def call(comm: optcc.Communicator) -> Array:
        out = np.empty(WORLD * count, np.int16)
        return comm.all_gather(given(comm.rank, count, "int16", "max"), out)

    want = np.concatenate([given(rank, count, "int16", "max") for rank in range(WORLD)])
    assert all(same(each, want) for each in ranks.good(call))


@pytest.mark.parametrize("count", [0, 3, 70_001])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_reduce_scatter(ranks: Ranks, count: int, op: str) -> None:
    def call(comm: optcc.Communicator) -> Array:
        x = given(comm.rank, WORLD * count, "float32", op)
        before = x.copy()
        out = comm.reduce_scatter(x, np.empty(count, np.float32), op)
        assert same(x, before)
        return out

    want = expected(WORLD * count, "float32", op).reshape(WORLD, count)
    assert all(same(each, part) for each, part in zip(ranks.good(call), want, strict=True))


@pytest.mark.parametrize("count", [0, 3, 70_001])
def test_all_to_all(ranks: Ranks, count: int) -> None:
    def call(comm: optcc.Communicator) -> Array:
        x = given(comm.rank, WORLD * count, "float32", "max")
        before = x.copy()
        out = comm.all_to_all(x, np.full(WORLD * count, 7, np.float32))
        assert same(x, before)
        return out

    parts = [given(rank, WORLD * count, "float32", "max").reshape(WORLD, count) for rank in range(WORLD)]
    for rank, made in enumerate(ranks.good(call)):
        assert same(made, np.concatenate([part[rank] for part in parts]))


def test_a_barrier_lets_nobody_through_alone(ranks: Ranks) -> None:
    last, through = threading.Event(), threading.Event()

    def call(comm: optcc.Communicator) -> bool:
        if comm.rank == 2:
            early = through.wait(0.3)
            last.set()
            comm.barrier()
            return early
        comm.barrier()
        through.set()
        return not last.is_set()

    assert ranks.good(call) == [False] * WORLD


def test_calls_under_way_keep_their_order(ranks: Ranks) -> None:
    def call(comm: optcc.Communicator) -> list[Array]:
        many = [np.full(n, comm.rank + n) for n in (5, 100_000, 0, 7)]
        handles = [comm.all_reduce(x, async_op=True) for x in many]
        after = comm.all_reduce(np.array([comm.rank]))  # blocking, and behind the others
        assert all(handle.done() for handle in handles)
        assert all(
            handle.wait(60) is x and handle.future.result() is x for handle, x in zip(handles, many, strict=True)
        )
        return [*many, after]

    for made in ranks.good(call):
        for x, n in zip(made, (5, 100_000, 0, 7), strict=False):
            assert np.array_equal(x, np.full(n, WORLD * n + sum(range(WORLD))))
        assert made[-1] == sum(range(WORLD))


class Dlpack:
    """Another library's array, as it shows itself."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_other_libraries_buffers_are_used_where_they_are(ranks: Ranks) -> None:
    def call(comm: optcc.Communicator) -> Array:
        own, out = Dlpack(np.full(70_000, comm.rank + 1)), Dlpack(np.empty(70_000, int))
        assert comm.all_reduce(own) is own
        assert comm.all_reduce(own, "max", out=out) is out
        return out.array

    assert all(np.array_equal(each, np.full(70_000, 6)) for each in ranks.good(call))


@pytest.mark.torch
def test_torchs_tensors(ranks: Ranks) -> None:
    import torch

    def call(comm: optcc.Communicator) -> tuple[bool, str]:
        x = torch.full((300, 300), comm.rank + 1.0, dtype=torch.bfloat16)
        comm.all_reduce(x)
        with pytest.raises(InputError, match="x: not contiguous"):
            comm.all_reduce(x.t()[:2])
        return bool((x == 6).all()), str(x.dtype)

    assert ranks.good(call) == [(True, "torch.bfloat16")] * WORLD


def test_one_rank_alone() -> None:
    with optcc.Communicator() as comm:
        assert (comm.rank, comm.world) == (0, 1)
        x = np.arange(4.0)
        assert np.array_equal(comm.all_reduce(x, "avg", out=np.empty(4)), x)
        assert np.array_equal(comm.all_gather(x, np.empty(4)), x)
        assert np.array_equal(comm.reduce_scatter(x, np.empty(4)), x)
        assert np.array_equal(comm.all_to_all(x, np.empty(4)), x)
        assert comm.all_reduce(x, async_op=True).wait(60) is x
        comm.broadcast(x)
        comm.barrier()
    comm.close()  # twice does nothing
    with pytest.raises(InputError, match="it is closed"):
        comm.all_reduce(x)


def test_all_ranks_have_the_same_bits_of_rounded_sums(ranks: Ranks) -> None:
    for count in (100, 200_000):
        draw = [np.random.default_rng(rank).normal(size=count).astype(np.float32) for rank in range(WORLD)]
        made = ranks.good(lambda comm, draw=draw: comm.all_reduce(draw[comm.rank].copy()))
        assert len({each.tobytes() for each in made}) == 1
        assert np.allclose(made[0], sum(draw), atol=1e-5)
        assert bits_of(made[0]).any()


# What a communicator keeps from call to call: bounded, and good for calls of other sizes.


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize(("dtype", "count"), [("float32", 5), ("int8", 3), ("float64", 8), ("float16", 700)])
def test_a_call_that_is_made_already_takes_whatever_arrays_come(world: int, dtype: str, count: int) -> None:
    """Also where parts are rounded up. Sources stay as they were, and so do the results of the call before."""
    with Ranks(world) as ranks:

        def call(comm: optcc.Communicator) -> None:
            turns: list[tuple[Array, Array, Array]] = []
            for turn in range(3):
                own, all_of = (array_of(comm.empty(n, dtype), comm.rank + turn) for n in (count, count * world))
                part, whole = comm.empty(count, dtype), comm.empty(count * world, dtype)
                total = sum(range(world)) + world * turn
                comm.reduce_scatter(all_of, part)
                turns.append((all_of, part, np.full(count, total)))
                comm.all_gather(own, whole)
                turns.append((own, whole, np.repeat(np.arange(world) + turn, count)))
                there = comm.empty(count * world, dtype)
                comm.all_to_all(all_of, there)
                turns.append((all_of, there, np.repeat(np.arange(world) + turn, count)))
                mean = comm.empty(count, dtype)
                comm.all_reduce(array_of(comm.empty(count, dtype), 2 * turn), "avg", out=mean)
                turns.append((own, mean, np.full(count, 2 * turn)))
                given = array_of(comm.empty(count, dtype), comm.rank + turn)
                comm.broadcast(given, root=world - 1)
                turns.append((own, given, np.full(count, world - 1 + turn)))
            for at, (source, target, expected) in enumerate(turns):
                assert (source == comm.rank + at // 5).all()
                assert np.array_equal(target.astype(np.float64), expected), at

        ranks.good(call)


def array_of(array: Array, value: int) -> Array:
    """The same, filled."""
    array[:] = value
    return array


def test_what_is_kept_is_bounded() -> None:
    with Ranks(3) as ranks:

        def call(comm: optcc.Communicator) -> tuple[int, int]:
            for n in range(SIZES + 10):
                comm.all_reduce(np.zeros(SMALL + 8 * n, np.uint8))
                comm.all_reduce(np.zeros(n, np.uint8))
            assert isinstance(comm._collectives, Together)
            assert 0 < len(comm._collectives._held) <= SIZES
            return len(comm._prepared._calls), len(comm._prepared.trials)

        assert ranks.good(call) == [(SIZES, 1)] * 3, "one choice for all sizes of a class"
    assert CLASSES > 20, "all sizes up to 64 TiB"


def test_small_calls_are_made_anew_with_the_wires() -> None:
    with Ranks(3) as ranks:

        def call(comm: optcc.Communicator) -> None:
            made = []
            for _ in range(2):
                for _ in range(2):
                    assert (comm.all_reduce(np.ones(5)) == 3).all()
                assert isinstance(comm._collectives, Together)
                (held,) = comm._collectives._held.values()
                made.append(held.made)
                comm._prepared.renew(comm._prepared.cluster, reproducible=True)
            assert made[0] is not made[1]

        ranks.good(call)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("first", ["broadcast", "all_reduce", "all_gather", "reduce_scatter"])
def test_small_calls_do_not_make_segments_small(first: str, world: int) -> None:
    """What comes later goes by the same wires."""
    with Ranks(world) as ranks:

        def call(comm: optcc.Communicator) -> int:
            x, out = np.zeros(world), np.zeros(1 if first == "reduce_scatter" else world * world)
            getattr(comm, first)(x, *([out] if first in ("all_gather", "reduce_scatter") else []))
            return comm._member.links.layout.segment_bytes

        assert ranks.good(call) == [SEGMENT_BYTES[1]] * world


def test_the_one_not_used_for_longest_goes() -> None:
    kept: RecentlyUsed[int] = RecentlyUsed(2)
    kept.keep("a", 1)
    kept.keep("b", 2)
    assert kept.find("a") == 1
    kept.keep("c", 3)
    assert kept.find("b") is None
    assert (kept.find("a"), kept.find("c")) == (1, 3)


# A rank that always comes after the others is told in everybody's events, once.


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_rank_that_comes_late_to_every_call_is_told_to_all(world: int) -> None:
    together = threading.Barrier(world)
    with Ranks(world) as ranks:

        def steps(comm: optcc.Communicator) -> list[str]:
            x = np.ones(4, np.float32)
            for step in range(2 * FIRST):
                together.wait(WAIT_S)
                time.sleep(0.05 if comm.rank == 1 else 0)
                if step % 4:
                    comm.all_reduce(x)
                else:
                    comm.barrier()
                comm.broadcast(x)
            return [event.text for event in comm.events() if event.kind == "late"]

        told = ranks.good(steps)
    assert [len(each) for each in told] == [1] * world, told
    assert {each[0].split(":")[0] for each in told} == {"rank 1 comes late"}


def told(calls: Sequence[Sequence[float]]) -> list[list[str]]:
    """What each call told; `calls` : of each, seconds by rank, of which rank 0's are this one's."""
    each: list[list[str]] = []
    kept: list[Sequence[float]] = []

    def exchange(mine: list[float]) -> list[list[float]]:
        latest = kept[-len(mine) :]
        assert mine == [call[0] for call in latest]
        return [list(of) for of in zip(*latest, strict=True)]

    def tell(notes: Sequence[Note]) -> None:
        each.append([note.text for note in notes])

    one = Punctuality(exchange, tell)
    for call in calls:
        kept.append(call)
        one.took(call[0])
    return each


def test_it_is_told_once_and_again_after_it_was_in_time() -> None:
    late, well = [[0.2, 0.21, 0.01]] * 64, [[0.01, 0.01, 0.01]] * 64
    said = told([*late, *well, *late, *late])
    assert [len(each) for each in said] == [1, 0, 0, 0, 1]  # after 16, 32, 64, 128 and 256 calls
    assert said[0][0].startswith("rank 2 comes late: last in 16 of 16 collectives")


def test_ranks_that_come_together_or_by_turns_are_not_told() -> None:
    assert told([[0.05, 0.051, 0.052]] * 300) == [[], [], [], [], []]
    turns = [[0.2 if rank != call % 3 else 0.01 for rank in range(3)] for call in range(300)]
    assert told(turns) == [[], [], [], [], []]


def test_large_arrays_count_too() -> None:
    together = threading.Barrier(3)
    with Ranks(3) as ranks:

        def steps(comm: optcc.Communicator) -> list[str]:
            x = np.ones(SMALL // 2, np.float32)
            for _ in range(FIRST):
                together.wait(WAIT_S)
                time.sleep(0.05 if comm.rank == 2 else 0)
                comm.all_reduce(x)
            return [event.text for event in comm.events() if event.kind == "late"]

        assert [each[0].split(":")[0] for each in ranks.good(steps)] == ["rank 2 comes late"] * 3


# OPTCC_DEBUG: what a communicator says of what it has chosen.


def test_it_says_what_it_goes_by_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPTCC_DEBUG", "info")
    with Ranks(2, "uniform:servers=2,nics=2,rate=100Gb/s") as ranks:
        for _ in range(2):
            ranks.good(lambda comm: comm.all_reduce(np.zeros(SMALL)))
    out, err = capsys.readouterr()
    assert out == ""
    for rank in range(2):
        first, plan, wires = [line for line in err.splitlines() if line.startswith(f"optcc INFO rank {rank} of 2: ")]
        assert first.endswith("cluster of 4 NICs, 0 of them dead; here nic0 100Gb/s, nic1 100Gb/s; transport local")
        assert re.search(r": AllReduce up to 2MiB: [a-z-]+, 1 segment, plan [0-9a-f]{16}$", plan)
        assert wires.endswith(": 4 wires to 1 ranks")
    assert len(err.splitlines()) == 6


def test_it_says_nothing_unasked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPTCC_DEBUG", "WARN")
    with Ranks(2) as ranks:
        ranks.good(lambda comm: comm.all_reduce(np.zeros(3)))
    assert capsys.readouterr() == ("", "")


def test_a_level_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTCC_DEBUG", "loud")
    errors = Ranks(2).errors
    assert len(errors) == 2
    for error in errors:  # its own, or the first one's that came upon it
        assert "OPTCC_DEBUG: no such level, expected WARN or INFO, got 'loud'" in str(error)
