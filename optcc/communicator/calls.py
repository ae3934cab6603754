"""The collectives of a communicator, as callers call them: their buffers are looked at here, then used in order.
And arrays for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from optcc.communicator import arrays
from optcc.communicator.buffers import Buffer, Flat, HostBuffer, demand_alike, demand_elsewhere, lend
from optcc.communicator.collectives import Collectives
from optcc.communicator.handles import InOrder
from optcc.communicator.options import whole
from optcc.errors import InputError
from optcc.runtime.devices.host import Array, Op, Reduction, reduction_of
from optcc.runtime.errors import RankFailedError
from optcc.runtime.wires.lent import Arena


class Calls:
    """Those of rank `rank` among `world`."""

    rank: int
    world: int
    _collectives: Collectives
    _in_order: InOrder
    _closed: bool
    _process: int
    _arena: Arena | None

    def all_reduce(self, x: Any, op: str = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """The elementwise sum (prod, min, max, avg) of all ranks' `x`, in place or into `out`; the same on every rank.

        x, out : arrays of the same number of elements and type (numpy, torch, cupy, jax, anything with DLPack or the
            CUDA array interface), contiguous; of any size, 0 included, and the same on all ranks. Those in a GPU's
            memory are copied to pinned host memory and back
        async_op : return a Handle at once; leave `x` and `out` alone until it is done. Operations keep their order

        Returns `out`, or `x`. Raises InputError for such a buffer, RankFailedError when a rank has failed. After that
        `x` is as it was if it has up to `prepared.SMALL` bytes or the result goes to `out`; else it is spoilt.
        """
        reduction = reduction_of(op, "op")
        source = lend(x, "x", write=out is None)
        target = source if out is None else lend(out, "out")
        demand_alike(source, target, len(source.memory))
        call = partial(self._collectives.all_reduce, reduction=reduction)
        return self._do(call, source, target, x if out is None else out, async_op)

    def broadcast(self, x: Any, root: int = 0, *, async_op: bool = False) -> Any:
        """Rank `root`'s `x` into everybody's. Buffers, returns and errors as of `all_reduce`."""
        root = whole(root, "root", self.world)
        buffer = lend(x, "x", write=self.rank != root)
        return self._do(lambda read, _: self._collectives.broadcast(read, root), buffer, buffer, x, async_op)

    def all_gather(self, x: Any, out: Any, *, async_op: bool = False) -> Any:
        """All ranks' `x`, of the same size, one after the other in `out`, which has `world` times as many elements."""
        source, target = lend(x, "x", write=False), lend(out, "out")
        demand_alike(source, target, len(source.memory) * self.world)
        return self._do(self._collectives.all_gather, source, target, out, async_op)

    def reduce_scatter(self, x: Any, out: Any, op: str = "sum", *, async_op: bool = False) -> Any:
        """Of `x`, `world` parts as large as `out`, the reduction of all ranks' part number `rank` into `out`."""
        reduction = reduction_of(op, "op")
        source, target = lend(x, "x", write=False), lend(out, "out")
        demand_alike(target, source, len(target.memory) * self.world, "x")
        call = partial(self._collectives.reduce_scatter, reduction=reduction)
        return self._do(call, source, target, out, async_op)

    def all_to_all(self, x: Any, out: Any, *, async_op: bool = False) -> Any:
        """Of `x`, `world` equal parts, number r to rank r; into `out` the part of each rank for this one, by rank."""
        source, target = lend(x, "x", write=False), lend(out, "out")
        if len(source.memory) % self.world:
            expected = f"a number of elements that {self.world} divides"
            raise InputError("no equal parts", where="x", expected=expected, got=len(source.memory))
        demand_alike(source, target, len(source.memory))
        demand_elsewhere(source, target)
        return self._do(self._collectives.all_to_all, source, target, out, async_op)

    def barrier(self, *, async_op: bool = False) -> Any:
        """Returns when all ranks have called it."""
        nothing = HostBuffer(np.zeros(0, np.uint8))
        call = partial(self._collectives.all_reduce, reduction=Reduction(Op.MAX), call="barrier")
        return self._do(call, nothing, nothing, None, async_op)

    def empty(self, shape: int | Sequence[int], dtype: Any) -> Array:
        """An uninitialised numpy array whose bytes the other ranks of this machine can read where they are.

        That saves a copy of what this rank sends, over the local transport, on the compiled path, above
        `prepared.SMALL` bytes: where the array, or a contiguous part of it, is the result of `all_reduce`, `broadcast`
        or `all_gather`, or the input of `all_to_all`. Everywhere else it is an array like any other.

        It is called as numpy's `empty`, and takes the place of ncclMemAlloc and ncclCommWindowRegister, or of
        nvshmem_malloc. Unlike the latter two it is not collective: each rank may have as many arrays as it likes, or
        none, and ranks may differ in which arrays they pass. The arrays also work in communicators that come of this
        one by splitting, shrinking and growing, and remain after `close`. The memory of one is given back when the
        array and all views of it are gone. A process that is forked from this one shares them.

        shape : as of `numpy.empty`; dtype : one of the runtime's element types, or its name

        Raises InputError for another shape or type, and where there is too little memory, at once and not at first
        use: all arrays of a rank take at most half of the machine's memory.
        """
        self._demand_open()
        return arrays.empty(self._arena, shape, dtype)

    def _do(
        self, work: Callable[[Flat, Flat], None], source: Buffer, target: Buffer, result: Any, async_op: bool
    ) -> Any:
        """`work` with the elements of both in host memory; `result` is the caller's target."""
        self._demand_open()
        collectives = self._collectives

        def call() -> Any:
            read = source.read()
            write = read if target is source else target.room()
            collectives.wrote = False
            try:
                work(read, write)
            except RankFailedError as error:
                spoilt = collectives.wrote and not target.staged
                raise error.of_call(RankFailedError.NONE if spoilt else RankFailedError.OLD) from error.__cause__
            target.take(write)
            return result

        return self._in_order.run(call, async_op)

    def _demand_own(self) -> None:
        if os.getpid() != self._process:
            hint = "A forked child makes one of its own, if it needs any."
            raise InputError("a communicator belongs to the process that made it", where="Communicator", hint=hint)

    def _demand_open(self) -> None:
        self._demand_own()
        if self._closed:
            raise InputError("it is closed", where="Communicator", expected="calls before close()")
