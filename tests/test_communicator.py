"""The communicator, from its callers' side: results on their own buffers, of all types, over two kinds of wires."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.communicator.prepared import SMALL
from optcc.errors import InputError
from optcc.runtime.devices.host import DTYPES, Array, bits_of, divide, dtype_of, reduction_of
from optcc.runtime.evidence.payload import fill, reference
from optcc.runtime.wires.layout import WINDOW
from tests.communicators import Ranks, wires_in_memory

OPS = ("sum", "prod", "min", "max", "avg")
WORLD = 3


@pytest.fixture(scope="module", params=["local", "in memory"])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    patch = pytest.MonkeyPatch()
    if request.param == "local":
        with Ranks(WORLD) as ranks:
            yield ranks
    else:
        with wires_in_memory(patch), Ranks(WORLD) as ranks:
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


def test_ranks_need_not_keep_step(ranks: Ranks) -> None:
    """The root is through with some broadcasts before the others begin the first; its chunks wait for them."""
    through = threading.Event()
    ranks.good(lambda comm: comm.broadcast(np.zeros(2)))  # to connect, all must be there

    def call(comm: optcc.Communicator) -> list[float]:
        if comm.rank:
            assert through.wait(60)
        got = [float(comm.broadcast(np.full(2, float(i) if comm.rank == 0 else -1.0))[0]) for i in range(WINDOW[0])]
        through.set()
        return got

    assert ranks.good(call) == [[float(i) for i in range(WINDOW[0])]] * WORLD


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


@pytest.mark.parametrize(
    ("kind", "more"),
    [("all_reduce", 1), ("broadcast", 0), ("all_gather", WORLD), ("reduce_scatter", 1 / WORLD), ("all_to_all", 1)],
)
def test_what_may_be_sent_again_stays_as_it_was_sent(ranks: Ranks, kind: str, more: float) -> None:
    """Where a call does not wait until all has landed, a NIC that dies afterwards has it sent once more."""

    def call(comm: optcc.Communicator) -> int:
        sent: list[tuple[np.ndarray, bytes]] = []
        run = comm._member.run

        def noted(name: str, program: Any, buffer: np.ndarray, *args: Any, linger: bool = True, **named: Any) -> None:
            run(name, program, buffer, *args, linger=linger, **named)
            if not linger:
                sent.append((buffer, buffer.tobytes()))

        comm._member.run = noted  # type: ignore[method-assign]
        try:
            out = {"out": np.empty(int(30 * more))} if more else {}
            op = {"op": "avg"} if kind in ("all_reduce", "reduce_scatter") else {}
            getattr(comm, kind)(np.arange(30.0), **out, **op)
        finally:
            comm._member.run = run  # type: ignore[method-assign]
        assert all(buffer.tobytes() == was for buffer, was in sent)
        return len(sent)

    assert ranks.good(call) == [1] * WORLD
