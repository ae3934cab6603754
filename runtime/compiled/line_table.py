"""One rank's wires as a table of compiled code: rings, sockets and the clocks of its emulated NICs."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from typing import Any

import numpy as np

from optcc.runtime.compiled import basics
from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.clocks import fill_clocks, write_back_clocks
from optcc.runtime.compiled.flow_table import address_of
from optcc.runtime.compiled.gpu_path import arguments_of_kernels
from optcc.runtime.compiled.local_loop import advance
from optcc.runtime.compiled.tables import Lines
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.local import LocalWires
from optcc.runtime.wires.rings import WORD, Ring


class LineTable:
    """`advance` : the compiled function; `tables` : its arrays; of wires and NICs that are not this rank's nothing."""

    advance = staticmethod(advance)

    def __init__(self, flows: FlowTransport, wires: LocalWires) -> None:
        self._wires, self.now = wires, flows._clock
        layout = flows._ends.layout
        own = address_of(wires._slots._bytes)
        table = self._rings = [*wires._notices, *wires._backs]
        reading = len(wires._notices)
        number = {id(ring): i for i, ring in enumerate(table)}

        def ring(it: Ring) -> int:
            if id(it) not in number:
                number[id(it)] = len(table)
                table.append(it)
            return number[id(it)]

        records = np.zeros(len(layout.wires), t.WIRE)
        records["out_nic"], records["in_nic"] = [w.out for w in layout.wires], [w.into for w in layout.wires]
        for wire, out in wires._out.items():
            base, record = address_of(out.far._bytes), records[wire]
            record["closed"], record["sleep"] = base + out.far._closed_at[wire] * WORD, base
            record["ring"], record["socket"] = ring(out.notices), out.sock.fileno()
        for wire, end in wires._in.items():
            record = records[wire]
            record["sleep"] = own + wires._slots._sleeps_at[end.src] * WORD
            record["ring"], record["socket"] = ring(end.backs), end.sock.fileno()
        self._nics = sorted({layout.wires[w].out for w in wires._out} | {layout.wires[w].into for w in wires._in})
        rings = np.zeros(len(table), t.RING)
        for record, it in zip(rings, table, strict=True):
            base = address_of(it._memory)
            record["written_at"], record["taken_at"] = base + it._written_at * WORD, base + it._taken_at * WORD
            record["records"], record["count"] = base + it._start, it._count
        words = [own, *(address_of(far._bytes) + far._sleeps_at[wires._rank] * WORD for far in wires._far.values())]
        ways = 16 + 2 * sum(layout.flows[f].window for f in flows._ins)
        chunks = 1 + sum(layout.flows[f].window for f in (*flows._ins, *flows._outs))  # under way on a GPU
        self.tables = Lines(
            wires=records,
            rings=rings,
            nics=np.zeros(len(layout.nics), t.NIC),
            ways=np.zeros(ways, t.WAY),
            held=np.zeros(ways, np.int64),
            through=np.zeros(ways, np.int64),
            unused=np.zeros(ways, np.int64),
            notices=np.arange(reading, dtype=np.int64),
            backs=np.arange(reading, reading + len(wires._backs), dtype=np.int64),
            words=np.array(words, np.int64),
            polls=np.zeros((2, 2), np.int32),
            scratch=np.zeros(64, np.int64),
            kernels=np.zeros(2, t.KERNEL),
            copying=np.zeros(chunks, t.COPYING),
            owed=np.zeros(chunks, t.OWED),
            arguments=arguments_of_kernels(),
        )
        self._working: Hashable = None
        self._written, self._taken = rings["written"], rings["taken"]

    def is_steady(self) -> bool:
        """Whether there is nothing to tell but chunks."""
        wires = self._wires
        return not (wires._news or wires._dirty or wires._full or wires._bug)

    def fill(self, numbers: Any, times: Any) -> bool:
        """False where more is under way than there is room for."""
        wires, w = self._wires, self.tables
        dark = wires._no_data.keys() | wires._no_acks  # wires that do not bring everything through
        clocks = wires._clocks
        if len(clocks._held) + len(clocks._through) > len(w.unused):
            return False
        working = (*wires._out, None, *wires._in, None, *dark)
        if working != self._working:
            self._working = working
            w = self._watch(dark)
        self._written[:], self._taken[:] = [r._written for r in self._rings], [r._taken for r in self._rings]
        fill_clocks(clocks, self._nics, w, numbers)
        numbers[t.SLEEPS], times[t.SOCKETS_AT] = wires._sleeps, wires._look_at
        return True

    def _watch(self, dark: Collection[int]) -> Lines:
        """Which wires work from now on, and whom to listen to in sleep."""
        wires, w = self._wires, self.tables
        w.wires["out"] = w.wires["into"] = 0
        outs, ins = ([wire for wire in some if wire not in dark] for some in (wires._out, wires._in))
        w.wires["out"][outs], w.wires["into"][ins] = 1, 1
        sockets = w.wires["socket"][[*outs, *ins]].tolist()
        polls = np.zeros((2 + len(sockets), 2), np.int32)
        polls[:, 0] = [wires._epoll.fileno(), wires._watch.fileno(), *sockets]
        self.tables = w._replace(polls=polls)
        return self.tables

    def write_back(self, numbers: Any, times: Any, code: int) -> None:
        """Into the wires. `code` : what compiled code has returned."""
        wires, w = self._wires, self.tables
        woke = w.wires["woke"]
        ends: list[tuple[int, Any]] = [*wires._out.items(), *wires._in.items()]
        for wire, end in ends:
            end.woke = int(woke[wire])
        for ring, written, taken in zip(self._rings, self._written.tolist(), self._taken.tolist(), strict=True):
            ring._written, ring._taken = written, taken
        write_back_clocks(wires._clocks, self._nics, w, numbers)
        wires._sleeps = numbers[t.SLEEPS]
        wires._look_at = -math.inf if code == basics.SPOKEN else float(times[t.SOCKETS_AT])
        if numbers[t.UNHEARD]:
            self._wake(numbers[t.UNHEARD] - 1)

    def _wake(self, wire: int) -> None:
        """The peer of a wire whose socket would not take the byte that wakes: now by Python, which finds out why."""
        wires = self._wires
        end: Any = wires._out.get(wire) or wires._in[wire]
        sleep = end.far.sleeps() if wire in wires._out else wires._slots.sleeps(end.src)
        wires._wake(end, sleep or -1)
