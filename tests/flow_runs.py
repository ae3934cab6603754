"""Flows one way over three virtual wires, and what was written on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np

from optcc.runtime.devices.host import Array, Op
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.measuring.virtual_run import VirtualRun
from optcc.runtime.messages import Note
from optcc.runtime.wires import layout
from optcc.schedule import Lane, Port, Route, Schedule

TIMEOUTS = Timeouts(progress=100.0, grace=50.0, answer=5.0)
NIC = {"rank0/nic0": 0, "rank0/nic1": 1, "rank0/nic2": 2, "rank1/nic0": 3, "rank1/nic1": 4, "rank1/nic2": 5}


def one_way(lengths: Sequence[int], shares: Sequence[Fraction] = (Fraction(1, 3),) * 3) -> Schedule:
    """Rank 0 sends to rank 1, one transfer after the other, over NICs of 8 bytes per second."""
    rows = len(lengths)
    return Schedule(
        ranks=2,
        nbytes=sum(lengths),
        ports=tuple(Port(name, nic // 3, 8.0, 8.0) for name, nic in NIC.items()),
        routes=(Route(0, 1, tuple(Lane(i, 3 + i, share) for i, share in enumerate(shares) if share)),),
        route=np.zeros(rows, np.int32),
        offset=np.cumsum([0, *lengths[:-1]]),
        length=np.array(lengths),
        reduce=np.zeros(rows, np.bool_),
        stage=np.ones(rows, np.uint8),
        segment=np.zeros(rows, np.int32),
        dep_ptr=np.zeros(rows + 1, np.int64),
        dep_idx=np.zeros(0, np.int64),
    )


class Watched(VirtualRun):
    """A one-way run with 8-byte chunks that remembers what was written: (time, wire, flow, seq)."""

    def __init__(self, schedule: Schedule, window: int = 64, timeouts: Timeouts = TIMEOUTS) -> None:
        buffers: list[Array] = [
            np.arange(schedule.nbytes // 4, dtype=np.int32),
            np.zeros(schedule.nbytes // 4, np.int32),
        ]
        with mock.patch.object(layout, "WINDOW", (1, window)):
            super().__init__(schedule, buffers, Op.SUM, slot_bytes=8, timeouts=timeouts)
        self.buffers = buffers
        self.writes: list[tuple[float, int, int, int]] = []
        end: Any = self.net.ends[0]
        write = end.write

        def watched(wire: int, flow: int, seq: int, *rest: Any) -> None:
            self.writes.append((self.net.now, wire, flow, seq))
            write(wire, flow, seq, *rest)

        end.write = watched

    def strike(self, at: float, nic: str, what: str, **how: Any) -> None:
        number = NIC[nic]
        self.at(at, lambda net: getattr(net.ends[number // 3], what)(number, **how))

    def finish(self) -> float:
        """Run, and see that all has come."""
        seconds = self.run()
        assert np.array_equal(*self.buffers)
        return seconds

    def by_nic(self, since: float = 0.0) -> list[int]:
        """Chunks by the NIC they left by."""
        left = Counter(self.net.layout.wires[wire].out for at, wire, _, _ in self.writes if at >= since)
        return [left[nic] for nic in range(3)]

    def again(self) -> dict[int, int]:
        """Flow -> chunks written more than once."""
        times = Counter((flow, seq) for _, _, flow, seq in self.writes)
        return dict(Counter(flow for (flow, _), count in times.items() if count > 1))

    def journal(self, kind: str) -> list[Note]:
        return [note for note in self.flows[0].journal if note.kind == kind]
