"""Where compiled code takes over from a rank's flows and wires, and where it gives back.

Machines, queues and rings are filled into arrays (`_fill`); compiled code goes on from there (`loop`) until something
is not steady. Then its counts are written back (`_write_back`): the machines stand as if they had seen every chunk.
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from optcc.runtime.compiled import basics
from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.flow_table import FlowTable, address_of
from optcc.runtime.compiled.folds import fold_of
from optcc.runtime.compiled.gpu_path import bind_gpu, fill_gpu, write_back_gpu
from optcc.runtime.compiled.line_table import LineTable
from optcc.runtime.compiled.local_flows import LocalFlows
from optcc.runtime.compiled.program_tables import ProgramTables
from optcc.runtime.devices.host import name_of
from optcc.runtime.engine.program import Program
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.cuda import CudaWires
from optcc.runtime.wires.local import LocalWires

UNBOUNDED = 2**62
BREATH_S = 0.25
"""Compiled code comes back so often at least: Python has signals to deal with."""


def tables_for(flows: FlowTransport, wires: Any) -> tuple[FlowTable, Any]:
    """Those of flows and of what carries them, `LineTable` or `VerbsLines`."""
    if isinstance(wires, LocalWires):
        return LocalFlows(flows, wires), LineTable(flows, wires)
    from optcc.runtime.compiled.verbs_tables import VerbsFlows, VerbsLines

    return VerbsFlows(flows, wires), VerbsLines(flows, wires)


class CompiledPath:
    """That of one rank's flows.

    timing : time each so-manyth copy or fold; 0: none
    bytes_s, clock_s : processor seconds of all copies and folds, by those that were timed; of the clock that timed them
    chunks : sent and taken by compiled code
    most : chunks in one turn; few for tests, who look on after each
    """

    def __init__(self, flows: FlowTransport, wires: Any) -> None:
        self._flows, self._wires = flows, wires
        self._programs: WeakKeyDictionary[Program, ProgramTables] = WeakKeyDictionary()
        self._bound: ref[CompiledEngine] | None = None  # no more than a reference: its buffer is the caller's
        self._launches: Any = None  # of payloads in a GPU's memory
        self.timing, self.bytes_s, self.clock_s = 0, 0.0, 0.0
        self.chunks, self.most = 0, UNBOUNDED
        self.flows, self.lines = tables_for(flows, wires)
        self._remade = 0  # wires that had been made anew then

    def tables_of(self, program: Program) -> ProgramTables:
        """Made once."""
        known = self._programs.get(program)
        if known is None:
            known = self._programs[program] = ProgramTables(program)
        return known

    def advance(self, engine: CompiledEngine) -> bool:
        """Let compiled code do what it can, maybe nothing; afterwards everything stands as after Python.

        True: all is sent and received.
        """
        flows = self._flows
        while self._fill(engine):
            code = basics.ASIDE
            try:
                code = self._run(engine)
                while code == basics.BREATH and self.most == UNBOUNDED:
                    engine.times[t.BREATH_AT] = self.lines.now() + BREATH_S  # and here signals are dealt with
                    code = self._run(engine)
            finally:
                self._write_back(engine, code)
            if code == basics.EXPIRED:
                flows._expire(float(engine.times[t.BEFORE]))
            elif code == basics.LANES:
                flows._send_path.look()
            elif code == basics.WATCH:
                flows._shares.watch([*engine.tables.routes][engine.numbers[t.LANE]], flows._send_path.now)
            elif code != basics.BREATH:
                return bool(code == basics.DONE)
        return False

    def _run(self, engine: CompiledEngine) -> int:
        code: int = self.lines.advance(
            *engine.tables.arrays, *self.flows.tables, *self.lines.tables, engine.numbers, engine.times
        )
        return code

    def _fill(self, engine: CompiledEngine) -> bool:
        """False where something is not in its steady state: then nothing has changed."""
        flows, wires, g = self._flows, self._wires, engine.numbers
        busy = g[t.UNSENT] or g[t.UNFINISHED] or flows._send_path.busy
        if not busy or flows._inbox or flows._receive_path.due or flows._shares.monitor.factors:
            return False
        if wires.remade != self._remade:
            self._remade = wires.remade
            self.flows, self.lines = tables_for(flows, wires)
        if not self.lines.is_steady():
            return False
        if self._bound is None or self._bound() is not engine:
            self._bind(engine)
        if not self.flows.fill(engine):
            return False
        now = self.lines.now()
        if not self.lines.fill(g, engine.times):
            return False
        if isinstance(wires, CudaWires) and not fill_gpu(
            wires, self._launches, self.lines.tables, g, engine.times, now
        ):
            return False
        for route, queue in engine.tables.ready.items():
            if queue:  # else compiled code would return at once, to have it watched
                flows._shares.watch(route, now)
        self._fill_shares(engine)
        g[t.MOST], g[t.EARLY] = self.most, len(engine._early)
        g[t.LEFT] = g[t.UNHEARD] = g[t.CHUNKS] = 0
        g[t.WORKS] = g[t.TIMED] = g[t.BYTES_NS] = g[t.CLOCK_NS] = 0
        self._fill_times(engine, now)
        return True

    def _bind(self, engine: CompiledEngine) -> None:
        """From now on this engine's: what is missing of its transfers is counted in its arrays."""
        receive_path, g, tables = self._flows._receive_path, engine.numbers, engine.tables
        known = receive_path._missing
        tables.arrays.rows["missing"][tables.received] = np.fromiter(known.values(), np.int64, len(known))
        receive_path._missing = tables.missing  # type: ignore[assignment]
        self._bound = ref(engine)
        g[t.OPERATION] = receive_path._operation
        g[t.BUFFER], g[t.BUFFER_BYTES], g[t.ITEM] = engine.address, len(engine._bytes), engine._itemsize
        if isinstance(self._wires, CudaWires):
            self._launches = self._wires.gpu.launches(engine._dtype, engine._op)
            bind_gpu(self._launches, self.lines.tables, g, engine._itemsize)
        else:
            g[t.FOLD] = fold_of(engine._op, name_of(engine._dtype)).address
        g[t.LENT_FROM] = self._lent_from(engine)
        g[t.TIMING] = self.timing

    def _lent_from(self, engine: CompiledEngine) -> int:
        """Where this rank's arena is, if the operation sends from there and waits until all has been read; else 0."""
        lent = getattr(self._wires, "_lent", None)
        if lent is None or not engine.lingers:
            return 0
        source = engine._bytes if engine._parts is None else engine._parts
        first, begin = address_of(lent.bytes), address_of(source)
        return first if first <= begin <= first + len(lent.bytes) - len(source) else 0

    def _fill_shares(self, engine: CompiledEngine) -> None:
        """The lanes of each route, and the stripes of each kind of transfer."""
        shares, tables = self._flows._shares, engine.tables
        wires = [out.sender.wire for out in self._flows._outs.values()]
        tables.cut((shares._lanes, shares._route, len(shares._lost), *wires), shares.live, shares.cut)
        watched = tables.arrays.routes["watched"]
        for route, i in tables.routes.items():
            watched[i] = len(shares._lanes[route]) < 2 or (shares._name, route) in shares.monitor._busy

    def _fill_times(self, engine: CompiledEngine, now: float) -> None:
        """When Python has something to do next."""
        flows, attendant, g, x = self._flows, engine.attendant, engine.numbers, engine.times
        total = int(g[t.TOTAL])
        g[t.STRIKE], wake = total + 1, math.inf
        if attendant:
            due = attendant.due()
            if due <= (total - 1) / total:
                g[t.STRIKE] = math.ceil(due * total)
            wake = attendant.wake()
        x[t.LOOK_AT], x[t.EVERY] = flows._look_at, flows._watchdog.every
        x[t.TIMERS], x[t.DUE], x[t.BREATH_AT] = flows._timers.next(), wake, now + BREATH_S
        x[t.LANES_AT] = flows._shares.monitor.look_at

    def _write_back(self, engine: CompiledEngine, code: int) -> None:
        flows, g, x = self._flows, engine.numbers.tolist(), engine.times
        flows._look_at = float(x[t.LOOK_AT])
        self.flows.write_back(engine)
        self.chunks += g[t.CHUNKS]
        if g[t.TIMED]:
            self.bytes_s += g[t.BYTES_NS] / 1e9 * g[t.WORKS] / g[t.TIMED]
            self.clock_s += g[t.CLOCK_NS] / 1e9
        self.lines.write_back(g, x, code)
        flows._send_path.now = flows._clock()
        if isinstance(self._wires, CudaWires):
            write_back_gpu(self._wires, self._launches, self.lines.tables, g)
        self.flows.give_back()
        if g[t.LEFT] == t.LEFT_LANDING:
            arrays = engine.tables.arrays
            row, at = int(arrays.rows["row"][arrays.stack["place"][0]]), float(arrays.stack["at"][0])
            engine.landed(row, at)
