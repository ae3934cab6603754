"""The arrays of `tables`, made for one rank: of a program, of its flows, of its wires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import typeof

from optcc.runtime.compiled import loop
from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.tables import Flows, Lines, RowTables
from optcc.runtime.engine.program import Program
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.local import LocalWires
from optcc.runtime.wires.rings import WORD, Ring


def _ints(count: int) -> Any:
    return np.zeros(count, np.int64)


def _floats(count: int) -> Any:
    return np.zeros(count, np.float64)


def lists_in_one(lists: list[list[int]]) -> tuple[Any, Any]:
    """Where each begins, and all of them."""
    at = np.concatenate(([0], np.cumsum([len(each) for each in lists]))).astype(np.int64)
    return at, np.array([value for each in lists for value in each], np.int64)


def compile_all() -> None:
    """Compile the loop, or load what was compiled before."""
    one = _ints(1)
    row, route, queue, stripe = (np.zeros(1, kind) for kind in (t.ROW, t.ROUTE, t.QUEUE, t.STRIPE))
    rows = RowTables(row, route, queue, stripe, one, one, one, one, np.zeros(1, t.STACK))
    flows = Flows(np.zeros(1, t.FLOW), np.zeros(1, t.KEPT), one)
    wire, ring, nic, way = (np.zeros(1, kind) for kind in (t.WIRE, t.RING, t.NIC, t.WAY))
    lines = Lines(wire, ring, nic, way, one, one, one, one, one, one, np.zeros((1, 2), np.int32), one)
    loop.advance.compile(tuple(typeof(table) for table in (rows, flows, lines, one, _floats(1))))  # type: ignore[no-untyped-call, unused-ignore]


def flows_table(flows: FlowTransport, wires: LocalWires) -> Flows:
    """Before anything has been sent."""
    specs = flows._ends.layout.flows
    outs, ins = flows._outs, flows._ins
    f, at = np.zeros(len(specs), t.FLOW), 0
    for number, spec in enumerate(specs):
        slots = wires._slots if number in ins else wires._far.get(spec.dst)
        if slots is None or number not in slots or (number not in outs and number not in ins):
            continue
        base = _address(slots._bytes)
        start, _, size = slots._places[number]
        record = f[number]
        record["window"], record["most"], record["size"] = spec.window, spec.slot_bytes, size
        record["slots"], record["mark"] = base + start, base + slots._marks_at[number] * WORD
        if number in outs:
            record["kept_at"], at = at, at + spec.window
    return Flows(f, np.zeros(at, t.KEPT), np.array(sorted(outs), np.int64))


def lines_table(flows: FlowTransport, wires: LocalWires) -> tuple[Lines, list[Ring]]:
    """And the rings of its table, in order."""
    layout = flows._ends.layout
    own = _address(wires._slots._bytes)
    table: list[Ring] = [*wires._notices, *wires._backs]
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
        base, record = _address(out.far._bytes), records[wire]
        record["closed"], record["sleep"] = base + out.far._closed_at[wire] * WORD, base
        record["ring"], record["socket"] = ring(out.notices), out.sock.fileno()
    for wire, end in wires._in.items():
        record = records[wire]
        record["sleep"] = own + wires._slots._sleeps_at[end.src] * WORD
        record["ring"], record["socket"] = ring(end.backs), end.sock.fileno()
    rings = np.zeros(len(table), t.RING)
    for record, it in zip(rings, table, strict=True):
        base = _address(it._memory)
        record["written_at"], record["taken_at"] = base + it._written_at * WORD, base + it._taken_at * WORD
        record["records"], record["count"] = base + it._start, it._count
    words = [own, *(_address(far._bytes) + far._sleeps_at[wires._rank] * WORD for far in wires._far.values())]
    ways = 16 + 2 * sum(layout.flows[f].window for f in flows._ins)
    lines = Lines(
        wires=records,
        rings=rings,
        nics=np.zeros(len(layout.nics), t.NIC),
        ways=np.zeros(ways, t.WAY),
        held=_ints(ways),
        through=_ints(ways),
        unused=_ints(ways),
        notices=np.arange(reading, dtype=np.int64),
        backs=np.arange(reading, reading + len(wires._backs), dtype=np.int64),
        words=np.array(words, np.int64),
        polls=np.zeros((2, 2), np.int32),
        scratch=_ints(64),
    )
    return lines, table


def _address(memory: Any) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def rows_table(program: Program) -> tuple[Mapping[int, int], Mapping[int, int], RowTables]:
    """Row -> place, route -> its number, and the arrays, as they are before a run."""
    numbers = sorted((*program.sends, *program.receives))
    place = {number: i for i, number in enumerate(numbers)}
    routes = {route: i for i, route in enumerate(sorted({move.route for move in program.sends.values()}))}
    rows, sends = np.zeros(len(numbers) + 1, t.ROW), np.zeros(len(routes) + 1, t.ROUTE)
    sizes = [0] * len(routes)
    for record, number in zip(rows, numbers, strict=False):
        sent = number in program.sends
        move = program.sends[number] if sent else program.receives[number]
        record["row"], record["offset"], record["length"], record["reduce"] = (number, *move[3:])
        record["count"] = program.waits[number] if sent else program.awaits[number]
        record["route"] = routes[move.route] if sent else -1
        record["expected"], record["missing"] = not sent, 0 if sent else move.length
        if sent:
            sizes[routes[move.route]] += 1
    rows["since"] = np.nan
    rows["released_at"], released = lists_in_one([[place[to] for to in program.releases.get(n, ())] for n in numbers])
    rows["after_at"], after = lists_in_one([[place[to] for to in program.folds_after.get(n, ())] for n in numbers])
    sends["queue_at"] = np.concatenate(([0], np.cumsum(sizes)))
    return (
        place,
        routes,
        RowTables(
            rows=rows,
            routes=sends,
            queues=np.zeros(len(program.sends), t.QUEUE),
            stripes=np.zeros(0, t.STRIPE),
            kinds=_ints(1),
            lanes=_ints(0),
            released=released,
            after=after,
            stack=np.zeros(len(after) + 2, t.STACK),
        ),
    )
