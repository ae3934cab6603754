"""One AllReduce over local wires, by Python's path and by the compiled one."""

from __future__ import annotations

import math
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import optcc
from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.path import CompiledPath
from optcc.runtime.devices.host import Array, Op, dtype_of
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import program_of
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.wires.layout import layout_of
from optcc.runtime.wires.local import LocalWires
from optcc.runtime.wires.pacing import Rates
from optcc.schedule import Schedule
from tests.failover_mail import Mailbox
from tests.fold_contract import random_bits
from tests.test_wires import arena, joined

BOUND_S = 120.0
"""No run here takes as long, on whatever machine."""


def run_both(
    schedule: Schedule,
    dtype: str,
    op: Op,
    paced: bool,
    slot_bytes: int = 4096,
    before: Callable[[int, list[CompiledPath]], None] = lambda rank, paths: None,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
    bound_s: float = BOUND_S,
) -> tuple[Any, list[Any], int]:
    """The results of all ranks by Python, and compiled, as bytes, over the same wires; chunks that were compiled.

    Compiled it runs three times: by way of slots; from buffers that are lent; so, but for rank 0, which is Python's.
    The chunks of the last run do not count.
    before : called by every rank before it begins a run in which all are compiled
    bound_s : a run that takes longer has failed
    """
    layout = layout_of({"it": schedule}, slot_bytes)
    rates = layout.rates if paced else [Rates(math.inf, math.inf)] * len(layout.nics)
    boxes = [Mailbox() for _ in range(schedule.ranks)]
    shared = [arena(2 * (schedule.nbytes + mmap.PAGESIZE)) for _ in range(schedule.ranks)]
    wires = joined(
        schedule.ranks,
        lambda rank, exchange: LocalWires(
            rank, layout.wires, layout.flows, rates, exchange=exchange, watch=boxes[rank], lent=shared[rank]
        ),
    )
    flows: list[FlowTransport] = []

    def send(to: int, rank: int, value: Any) -> None:
        boxes[to].put(lambda: flows[to].message(rank, value))

    for rank in range(schedule.ranks):
        flows.append(
            FlowTransport(
                rank,
                layout,
                {"it": schedule.routes},
                wires[rank],
                lambda to, value, rank=rank: send(to, rank, value),  # type: ignore[misc]
                time.monotonic,
                timeouts,
            )
        )
    paths = [CompiledPath(each, end) for each, end in zip(flows, wires, strict=True)]
    results, chunks = [], 0
    nobody = [None] * schedule.ranks
    for compiled, lends in ((nobody, False), (paths, False), (paths, True), ([None, *paths[1:]], True)):
        buffers = [
            random_bits(dtype, schedule.nbytes // dtype_of(dtype).itemsize, rank) for rank in range(schedule.ranks)
        ]
        if lends:
            for rank, values in enumerate(buffers):
                buffers[rank] = shared[rank].empty(len(values), values.dtype)
                buffers[rank][:] = values
        _run(schedule, buffers, op, flows, compiled, before, bound_s)
        results.append([buffer.tobytes() for buffer in buffers])
        if None not in compiled:
            chunks = sum(path.chunks for path in paths)
        if None not in compiled or not lends:
            assert lends == any(_has_lent(end, flows[rank]) for rank, end in enumerate(wires))
    for each in (*wires, *boxes, *shared):  # not after a failure: a rank that still runs writes to their memory
        each.close()
    return results[0], results[1:], chunks


def _has_lent(end: LocalWires, flows: FlowTransport) -> bool:
    """Whether some of the last chunks that came to a rank were lent, and not fetched by Python."""
    last = ((flow, into.receiver.landed - 1 - back) for flow, into in flows._ins.items() for back in range(4))
    return any(end._slots.lent(flow, seq) for flow, seq in last if seq >= 0)


def _run(
    schedule: Schedule,
    buffers: Sequence[Array],
    op: Op,
    flows: Sequence[FlowTransport],
    paths: Any,
    before: Any,
    bound_s: float,
) -> None:
    ranks = schedule.ranks
    errors: list[BaseException] = []
    ready, over = threading.Barrier(ranks), threading.Barrier(ranks)

    def one(rank: int) -> None:
        try:
            program = program_of(schedule, rank, buffers[rank].itemsize)
            flows[rank].begin("it", program.receives)
            rest = (program, buffers[rank], op, flows[rank], time.monotonic)
            engine = CompiledEngine(paths[rank], *rest) if paths[rank] else Engine(*rest)
            ready.wait(bound_s)
            if None not in paths:
                before(rank, paths)
            engine.run()
            over.wait(bound_s)
        except BaseException as error:
            errors.append(error)
            ready.abort()
            over.abort()

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(bound_s)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def schedule_of(weak: int, nics: int, nbytes: int, servers: int = 3) -> Schedule:
    cluster = optcc.Cluster.uniform(servers=servers, nics=nics, rate=Fraction(10**9))
    for server in range(weak):
        cluster = cluster.degrade(f"server{server}/nic0")
    return optcc.plan(cluster, nbytes, segments=3).schedule()
