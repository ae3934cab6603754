"""Where compiled code takes over from a rank's flows and wires, and where it gives back.

Machines, queues and rings are filled into arrays (`_fill`); compiled code goes on from there (`loop`) until something
is not steady. Then its counts are written back (`_write_back`): the machines stand as if they had seen every chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from optcc.runtime.compiled import basics, loop
from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.clocks import fill_clocks, write_back_clocks
from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.folds import fold_of
from optcc.runtime.compiled.making import flows_table, lines_table, lists_in_one, rows_table
from optcc.runtime.compiled.tables import RowTables
from optcc.runtime.devices.host import name_of
from optcc.runtime.engine.program import Program
from optcc.runtime.flows.ends import Out, Piece
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.local import LocalWires

UNBOUNDED = 2**62
BREATH_S = 0.25
"""Compiled code comes back so often at least: Python has signals to deal with."""


_AT_FIRST = {"out": 0, "into": 0, "numbered": 0, "queued": -1, "call": -1, "asked": -1}


class CompiledPath:
    """That of one rank's flows. `timing` : count the processor time of copies and folds, in `bytes_s`."""

    def __init__(self, flows: FlowTransport, wires: LocalWires) -> None:
        self._flows, self._wires, self._layout = flows, wires, flows._ends.layout
        self._rows: WeakKeyDictionary[Program, Any] = WeakKeyDictionary()
        self._shares: tuple[Any, ...] = ()
        self._bound: Any = None
        self.timing, self.bytes_s = False, 0.0
        self.chunks = 0  # sent and taken by compiled code
        self.most = UNBOUNDED  # in one turn; few for tests, who look on after each
        self.f = flows_table(flows, wires)
        self.w, self._rings = lines_table(flows, wires)

    # --- made once ---------------------------------------------------------------------------------------------------

    def rows_of(self, program: Program) -> tuple[Mapping[int, int], Mapping[int, int], RowTables]:
        """Row -> place, route -> its number, and the arrays, as they are before a run."""
        known = self._rows.get(program)
        if known is None:
            known = self._rows[program] = rows_table(program)
        place, routes, rows = known
        changing = {name: getattr(rows, name).copy() for name in ("rows", "routes", "queues", "stack")}
        return place, routes, rows._replace(**changing)

    # --- a turn ------------------------------------------------------------------------------------------------------

    def advance(self, engine: CompiledEngine) -> None:
        """Let compiled code do what it can, maybe nothing; afterwards everything stands as after Python."""
        flows = self._flows
        while self._fill(engine):
            code = basics.ASIDE
            try:
                code = loop.advance(engine.rows, self.f, self.w, engine.numbers, engine.times)
                while code == basics.BREATH and self.most == UNBOUNDED:
                    engine.times[t.BREATH_AT] = flows._clock() + BREATH_S  # and here signals are dealt with
                    code = loop.advance(engine.rows, self.f, self.w, engine.numbers, engine.times)
            finally:
                self._write_back(engine, code)
            if code == basics.EXPIRED:
                flows._expire(float(engine.times[t.BEFORE]))
            elif code == basics.LANES:
                flows._send_path.look()
            elif code == basics.WATCH:
                flows._shares.watch([*engine.routes][engine.numbers[t.LANE]], flows._send_path.now)
            elif code != basics.BREATH:
                return

    def _fill(self, engine: CompiledEngine) -> bool:
        """False where something is not in its steady state: then nothing has changed."""
        flows, wires = self._flows, self._wires
        send_path, receive_path, monitor = flows._send_path, flows._receive_path, flows._shares.monitor
        g, f = engine.numbers, self.f
        busy = g[t.UNSENT] or g[t.UNFINISHED] or send_path.busy
        if not busy or flows._inbox or receive_path.due or monitor.factors:
            return False
        if wires._news or wires._dirty or wires._full or wires._bug:
            return False
        if self._bound is not engine:
            self._bind(engine)
        dark = wires._no_data.keys() | wires._no_acks
        f.flows["out"][:] = f.flows["into"][:] = 0
        f.flows["queued"][:] = f.flows["call"][:] = f.flows["asked"][:] = -1
        f.flows["numbered"][:] = 0
        g[t.BUSY] = 0
        self._posted = {}
        for number, out in flows._outs.items():
            sender = out.sender
            wire = sender.wire
            end = wires._out.get(wire)
            if not sender._is_steady or end is None or end.unsent or wire in dark:
                if out.queue or sender.outstanding:
                    return False
                continue
            if out.queue and not self._queued(out, engine):
                return False
            flow = f.flows[number]
            flow["out"], flow["wire"], flow["epoch"] = 1, wire, sender.epoch
            flow["posted"], flow["acked"], flow["folded"] = sender.posted, sender.acked, sender.folded
            self._posted[number] = sender.posted
        for number, into in flows._ins.items():
            receiver = into.receiver
            wire = receiver.wire
            if not receiver._is_steady or wire not in wires._in or wire in dark or receiver.landed != receiver.folded:
                continue
            flow = f.flows[number]
            flow["into"], flow["wire"], flow["epoch"] = 1, wire, receiver.epoch
            flow["landed"], flow["returned"], flow["every"] = receiver.landed, receiver._returned, receiver.credit_every
        for (wire, number), seq in wires._calls.items():
            if f.flows["wire"][number] != wire or not f.flows["into"][number]:
                return False
            f.flows["call"][number] = seq
        for (wire, number), seq in wires._asked.items():
            if f.flows["wire"][number] != wire or not f.flows["out"][number]:
                return False
            f.flows["asked"][number] = seq
        g[t.ASKED] = len(wires._asked)
        self._fill_shares(engine)
        return self._fill_lines(engine, dark)

    def _queued(self, out: Out, engine: CompiledEngine) -> bool:
        """What is queued, as one stretch of one transfer; False: it is not."""
        first, last, most = out.queue[0], out.queue[-1], self._layout.flows[out.number].slot_bytes
        offset, at = engine._program.sends[first.row].offset if first.row in engine.place else 0, first.offset
        if first.row not in engine.place or first.operation != self._flows._send_path._operation:
            return False
        for piece in out.queue:
            if piece.row != first.row or piece.offset != at or (piece is not last and len(piece.payload) != most):
                return False
            at += len(piece.payload)
        flow = self.f.flows[out.number]
        flow["queued"], flow["ready"] = engine.place[first.row], first.ready
        flow["start"], flow["stop"] = first.offset - offset, at - offset
        engine.numbers[t.BUSY] += 1
        return True

    def _bind(self, engine: CompiledEngine) -> None:
        """From now on this engine's: what is missing of its transfers is counted in its arrays."""
        receive_path, g = self._flows._receive_path, engine.numbers
        column = engine.column("missing")
        for row, nbytes in receive_path._missing.items():
            column[row] = nbytes
        receive_path._missing = column  # type: ignore[assignment]
        self._bound, self._shares = engine, ()
        g[t.OPERATION] = receive_path._operation
        g[t.BUFFER], g[t.BUFFER_BYTES], g[t.ITEM] = engine.address, len(engine._bytes), engine._itemsize
        g[t.FOLD] = fold_of(engine._op, name_of(engine._dtype)).address
        g[t.TIMING] = self.timing

    def _fill_shares(self, engine: CompiledEngine) -> None:
        """The lanes of each route, and the stripes of each kind of transfer: anew only when a flow has moved."""
        flows, program = self._flows, engine._program
        shares = flows._shares
        state = (engine, len(shares._lost), *(out.sender.wire for out in flows._outs.values()))
        if state != self._shares:
            self._shares = state
            kinds: dict[tuple[int, int], int] = {}
            stripes: list[list[tuple[int, int, int]]] = []
            for row, move in program.sends.items():
                kind = kinds.setdefault((move.route, move.length), len(kinds))
                if kind == len(stripes):
                    stripes.append(shares.cut(move))
                engine.rows.rows["kind"][engine.place[row]] = kind
            at = np.concatenate(([0], np.cumsum([len(many) for many in stripes]))).astype(np.int64)
            every = np.array([stripe for many in stripes for stripe in many], t.STRIPE)
            engine.rows.routes["lane_at"], lanes = lists_in_one([list(shares.live(route)) for route in engine.routes])
            engine.rows = engine.rows._replace(stripes=every, kinds=at, lanes=lanes)
        for route, i in engine.routes.items():
            watched = len(shares._lanes[route]) < 2 or (shares._name, route) in shares.monitor._busy
            engine.rows.routes["watched"][i] = watched

    def _fill_lines(self, engine: CompiledEngine, dark: Any) -> bool:
        wires, w, g, x = self._wires, self.w, engine.numbers, engine.times
        clocks = wires._clocks
        if len(clocks._held) + len(clocks._through) > len(w.unused):
            return False
        w.wires["out"][:] = w.wires["into"][:] = 0
        sockets = []
        ends: tuple[tuple[Mapping[int, Any], Any], ...] = ((wires._out, w.wires["out"]), (wires._in, w.wires["into"]))
        for some, works in ends:
            for wire, end in some.items():
                if wire not in dark:
                    works[wire], w.wires["woke"][wire] = 1, end.woke
                    sockets.append(int(w.wires["socket"][wire]))
        if len(sockets) + 2 != len(w.polls) or sockets != w.polls[2:, 0].tolist():
            polls = np.zeros((2 + len(sockets), 2), np.int32)
            polls[:, 0] = [wires._epoll.fileno(), wires._watch.fileno(), *sockets]
            self.w = w = w._replace(polls=polls)
        for i, ring in enumerate(self._rings):
            w.rings["written"][i], w.rings["taken"][i] = ring._written, ring._taken
        fill_clocks(clocks, w, g)
        g[t.MOST] = self.most
        g[t.SLEEPS], g[t.EARLY] = wires._sleeps, len(engine._early)
        g[t.LANDED] = g[t.UNHEARD] = g[t.CHUNKS] = g[t.BYTES_NS] = 0
        flows, now = self._flows, self._flows._clock()
        attendant, total = engine.attendant, int(g[t.TOTAL])
        g[t.STRIKE], wake = total + 1, math.inf
        if attendant:
            due = attendant.due()
            if due <= (total - 1) / total:
                g[t.STRIKE] = math.ceil(due * total)
            wake = attendant.wake()
        x[t.LOOK_AT], x[t.EVERY] = flows._look_at, flows._watchdog.every
        x[t.TIMERS], x[t.DUE], x[t.BREATH_AT] = flows._timers.next(), wake, now + BREATH_S
        x[t.LANES_AT], x[t.SOCKETS_AT] = flows._shares.monitor.look_at, wires._look_at
        return True

    # --- and back ----------------------------------------------------------------------------------------------------

    def _write_back(self, engine: CompiledEngine, code: int) -> None:
        flows, wires, f, g, x = self._flows, self._wires, self.f, engine.numbers, engine.times
        flows._look_at, flows._send_path.now = float(x[t.LOOK_AT]), flows._clock()
        for number, out in flows._outs.items():
            if f.flows["out"][number]:
                self._write_back_out(engine, number, out)
        for number, into in flows._ins.items():
            if f.flows["into"][number]:
                into.receiver.landed = into.receiver.folded = int(f.flows["landed"][number])
                into.receiver._returned = int(f.flows["returned"][number])
        wires._calls, wires._asked = self._chunks_named("call"), self._chunks_named("asked")
        self._write_back_lines(engine, code)
        self.chunks += int(g[t.CHUNKS])
        self.bytes_s += int(g[t.BYTES_NS]) / 1e9
        if g[t.UNHEARD]:
            wire = int(g[t.UNHEARD]) - 1
            end: Any = wires._out.get(wire) or wires._in[wire]
            sleep = end.far.sleeps() if wire in wires._out else wires._slots.sleeps(end.src)
            wires._wake(end, sleep or -1)
        if g[t.LANDED]:
            row, at = int(engine.rows.rows["row"][engine.rows.stack["place"][0]]), float(engine.rows.stack["at"][0])
            engine.landed(row, at)

    def _chunks_named(self, what: str) -> dict[tuple[int, int], int]:
        """(wire, flow) -> the chunk of which its landing is to be told."""
        flows = self.f.flows
        numbers = np.flatnonzero(flows[what] >= 0).tolist()
        return {(int(flows["wire"][n]), n): int(flows[what][n]) for n in numbers}

    def _write_back_out(self, engine: CompiledEngine, number: int, out: Out) -> None:
        send_path, f, sender = self._flows._send_path, self.f, out.sender
        wire, posted, acked = sender.wire, int(f.flows["posted"][number]), int(f.flows["acked"][number])
        sender.posted, sender.acked, sender.folded = posted, acked, int(f.flows["folded"][number])
        if f.flows["numbered"][number]:
            out.numbered += int(f.flows["numbered"][number])
            send_path._posted[wire] += int(f.flows["numbered"][number])
        if acked > out.base:
            for _ in range(min(acked - out.base, len(out.kept))):
                out.kept.popleft()
            out.base = acked
            told = self._wires._told
            told[wire, number] = max(acked, told.get((wire, number), 0))
        flow = f.flows[number]
        for seq in range(max(acked, self._posted[number]), posted):
            kept = f.kept[flow["kept_at"] + seq % flow["window"]]
            out.kept.append(self._piece(engine, kept["place"], kept["start"], kept["bytes"], kept["ready"]))
        out.queue.clear()
        start, stop, most = int(flow["start"]), int(flow["stop"]), int(flow["most"])
        if flow["queued"] >= 0:
            for begin in range(start, stop, most):
                out.queue.append(self._piece(engine, flow["queued"], begin, min(most, stop - begin), flow["ready"]))
        (send_path.busy.add if out.queue else send_path.busy.discard)(number)

    def _piece(self, engine: CompiledEngine, place: Any, start: Any, nbytes: Any, ready: Any) -> Piece:
        move = engine._program.sends[int(engine.rows.rows["row"][place])]
        start, payload = int(start), engine._payload(move)
        return Piece(
            float(ready),
            self._flows._send_path._operation,
            move.row,
            move.offset + start,
            payload[start : start + int(nbytes)],
        )

    def _write_back_lines(self, engine: CompiledEngine, code: int) -> None:
        wires, w, g = self._wires, self.w, engine.numbers
        for some, works in ((wires._out, w.wires["out"]), (wires._in, w.wires["into"])):
            for wire, end in some.items():
                if works[wire]:
                    end.woke = int(w.wires["woke"][wire])
        for i, ring in enumerate(self._rings):
            ring._written, ring._taken = int(w.rings["written"][i]), int(w.rings["taken"][i])
        write_back_clocks(wires._clocks, w, g)
        wires._sleeps = int(g[t.SLEEPS])
        wires._look_at = -math.inf if code == basics.SPOKEN else float(engine.times[t.SOCKETS_AT])
