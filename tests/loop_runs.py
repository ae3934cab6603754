"""Whole runs over queue pairs of one process, whose devices `loop_verbs` plays: ranks are threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Self

import numpy as np

from optcc.machine.rdma import NicAddress
from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.path import CompiledPath
from optcc.runtime.devices.host import Op
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import program_of
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.layout import layout_of
from optcc.schedule import Schedule
from tests.failover_mail import Mailbox
from tests.fake_verbs import in_place
from tests.loop_verbs import LoopVerbs
from tests.wires_contract import joined

BOUND_S = 60.0


class LoopRun:
    """All ranks of a schedule, connected. A context manager.

    Attributes
    ----------
    device : all of the devices; ends, flows, paths : by rank
    """

    def __init__(self, schedule: Schedule, slot_bytes: int) -> None:
        self.schedule, self._stack = schedule, ExitStack()
        self.device = LoopVerbs(*(f"nic{i}" for i in range(len(schedule.ports))))
        self._stack.enter_context(in_place(self.device))
        from optcc.runtime.verbs.wires import VerbsWires

        layout = layout_of({"it": schedule}, slot_bytes)
        boxes = [Mailbox() for _ in range(schedule.ranks)]
        self.ends = joined(
            schedule.ranks,
            lambda rank, exchange: VerbsWires(
                rank,
                layout.wires,
                layout.flows,
                {i: NicAddress(f"nic{i}") for i, nic in enumerate(layout.nics) if nic.rank == rank},
                exchange=exchange,
                watch=boxes[rank],
                clock=time.monotonic,
            ),
        )
        for each in (*self.ends, *boxes):
            self._stack.callback(each.close)
        self.flows: list[FlowTransport] = []

        def send(to: int, rank: int, value: Any) -> None:
            boxes[to].put(lambda: self.flows[to].message(rank, value))

        for rank in range(schedule.ranks):
            tell: Callable[[int, Any], None] = lambda to, value, rank=rank: send(to, rank, value)  # noqa: E731
            routes = {"it": schedule.routes}
            self.flows.append(FlowTransport(rank, layout, routes, self.ends[rank], tell, time.monotonic))
        self.paths = [CompiledPath(each, end) for each, end in zip(self.flows, self.ends, strict=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, buffers: Sequence[np.ndarray], op: Op, compiled: bool) -> float:
        """In place; seconds of processor from the start of all ranks to the end of all. Raises what a rank raises."""
        errors: list[BaseException] = []
        marks: list[float] = []
        ready = threading.Barrier(self.schedule.ranks, lambda: marks.append(time.process_time()))
        over = threading.Barrier(self.schedule.ranks, lambda: marks.append(time.process_time()))

        def one(rank: int) -> None:
            try:
                program = program_of(self.schedule, rank, buffers[rank].itemsize)
                self.ends[rank].register(memoryview(buffers[rank]).cast("B"))
                self.flows[rank].begin("it", program.receives)
                rest = (program, buffers[rank], op, self.flows[rank], self.ends[rank].clock)
                engine = CompiledEngine(self.paths[rank], *rest) if compiled else Engine(*rest)
                ready.wait(BOUND_S)
                engine.run()
                over.wait(BOUND_S)
            except BaseException as error:
                errors.append(error)
                ready.abort()
                over.abort()

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(self.schedule.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND_S)
        assert not any(thread.is_alive() for thread in threads), "hangs"
        if errors:
            raise errors[0]
        return marks[1] - marks[0]
