"""Runs in virtual time whose messages take their time: what is struck, lost, doubted and moved in them, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from heapq import heappop
from typing import Any
from unittest import mock

import numpy as np
import pytest

from optcc.runtime.devices.host import Op
from optcc.runtime.flows.receive_path import nothing_runs
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.measuring.virtual_run import VirtualRun
from optcc.runtime.messages import Note
from optcc.runtime.protocol.events import Spread
from optcc.runtime.wires import layout
from optcc.runtime.wires.virtual import VirtualWires
from optcc.schedule import Schedule
from tests.failover_runs import rings

TIMEOUTS = Timeouts()
RTT_S = 0.001
"""Of a message and its answer."""


class Timed(VirtualRun):
    """A run whose messages take their time, and get lost as `loses` says: (kind, how many of it there were before)."""

    rtt_s = RTT_S

    def __init__(
        self, schedule: Schedule, loses: Callable[[str, int], bool] = lambda kind, nth: False, **how: Any
    ) -> None:
        self.schedule, self._loses, self.messages = schedule, loses, Counter[str]()
        self.buffers = [
            np.random.default_rng(rank).standard_normal(schedule.nbytes // 4).astype(np.float32)
            for rank in range(schedule.ranks)
        ]
        how = {"slot_bytes": 2048, "timeouts": TIMEOUTS, **how}
        with mock.patch.object(layout, "WINDOW", (1, 4)):
            super().__init__(schedule, self.buffers, Op.SUM, **how)

    def _post_for(self, rank: int) -> Callable[[int, object], None]:
        def post(to: int, value: Any) -> None:
            lost = self._loses(value[1], self.messages[value[1]])
            self.messages[value[1]] += 1
            if not lost:
                self.at(self.net.now + self.rtt_s / 2, lambda net: self.flows[to].message(rank, value))

        return post

    def strike(self, at: float, nic: str, what: str, **how: Any) -> None:
        """Let a NIC be struck at its time."""
        number = next(i for i, port in enumerate(self.net.layout.nics) if port.name == nic)
        rank = self.net.layout.nics[number].rank
        self.at(at, lambda net: getattr(net.ends[rank], what)(number, **how))

    def settle(self, within_s: float = 5.0) -> None:
        """Go on after the end until nothing is waited for any more."""
        self.net.paused.clear()
        end = self.net.now + within_s
        while self._next() < np.inf:
            self.net.now = max(self.net.now, self._next())
            assert self.net.now < end, f"still asking: {self.messages}"
            while self._pending and self._pending[0][0] <= self.net.now:
                heappop(self._pending)[2](self.net)
            for each in self.flows:
                each.poll(self.net.now, nothing_runs)

    def _next(self) -> float:
        wakes = [flows.next_wake() for flows in self.flows]
        return min(*wakes, self.net.next_landing(), self._pending[0][0] if self._pending else np.inf)

    def moved(self) -> list[Note]:
        """Of all ranks, by time."""
        return sorted((n for f in self.flows for n in f.journal if n.kind == "moved"), key=lambda note: note.at)

    def finish(self) -> VirtualRun:
        """Run, and see that every rank has the bits that it would have had without a fault."""
        self.run()
        assert [buffer.tobytes() for buffer in self.buffers] == whole(self.schedule)[1]
        return self


@cache
def whole(schedule: Schedule) -> tuple[float, list[bytes]]:
    """Without a fault: seconds, and the bits on every rank."""
    run = Timed(schedule)
    return run.run(), [buffer.tobytes() for buffer in run.buffers]


def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As over sockets: messages are all there is."""
    monkeypatch.setattr(VirtualWires, "ask_record", lambda self, wire, flow: False)


PAIR = rings(2, 2, 1 << 16, 4_000_000)
DEADLINE_S = TIMEOUTS.progress + TIMEOUTS.grace
MESSAGES_S = 4 * RTT_S
"""A probe and its answer, word to those who share the NIC, the question after the verdict: what comes on top."""


def doubt_everything(run: VirtualRun) -> None:
    """As if every flow had come upon a black hole."""
    for each in run.flows:
        doubts: Any = each._suspicions
        doubts._nics.clear()
        for flow in (*each._outs.values(), *each._ins.values()):
            machine: Any = getattr(flow, "sender", None) or flow.receiver  # type: ignore[union-attr]
            doubts.spread(None, Spread(machine.wire))
