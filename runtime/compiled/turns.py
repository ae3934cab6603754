"""Folds in their turn, compiled: the engine's, and pieces that came before it.

A piece of a reduce that comes before its turn stays in its slot, parked, and its flow gets no credits meanwhile. The
engine keeps a copy instead; so does Python of all that is parked, whenever it has a turn.
"""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

from optcc.runtime.compiled.basics import inner
from optcc.runtime.compiled.parts import fold_slot, say_folded
from optcc.runtime.compiled.queues import push_ready
from optcc.runtime.compiled.tables import BUFFER, LEFT, LEFT_CREDIT, UNFINISHED, Flows, RowTables


@inner  # type: ignore[misc, unused-ignore]
def park(r: RowTables, f: Flows, flow: int, seq: int, place: int, offset: int, nbytes: int) -> None:
    """A chunk stays in its slot until all folds before its own are done."""
    number = f.flows[flow].kept_at + seq % f.flows[flow].window
    f.parked[number].flow, f.parked[number].seq = flow, seq
    f.parked[number].offset, f.parked[number].bytes = offset, nbytes
    f.parked[number].next = r.rows[place].parked
    r.rows[place].parked = 1 + number
    f.flows[flow].parked += 1


@inner  # type: ignore[misc, unused-ignore]
def give_back(f: Flows, w: Any, g: Any, flow: int) -> None:
    """A credit, if it is time for one."""
    if f.flows[flow].parked == 0 and f.flows[flow].landed - f.flows[flow].returned >= f.flows[flow].every:
        if say_folded(f, w, g, flow, f.flows[flow].landed):
            f.flows[flow].returned = f.flows[flow].landed
        else:
            g[LEFT] = LEFT_CREDIT


@inner  # type: ignore[misc, unused-ignore]
def _fold_parked(r: RowTables, f: Flows, w: Any, g: Any, place: int) -> None:
    number = r.rows[place].parked - 1
    r.rows[place].parked = 0
    while number >= 0:
        flow = f.parked[number].flow
        own = g[BUFFER] + f.parked[number].offset
        fold_slot(f, w, g, flow, f.parked[number].seq, own, f.parked[number].bytes)
        f.flows[flow].parked -= 1
        give_back(f, w, g, flow)
        number = f.parked[number].next - 1


@inner  # type: ignore[misc, unused-ignore]
def finish(r: RowTables, f: Flows, w: Any, g: Any, place: int, at: float) -> None:
    """All of a transfer has landed: see `Engine.landed`."""
    r.rows[place].expected = 0
    r.stack[0].place, r.stack[0].at, size = place, at, 1
    while size > 0:
        size -= 1
        place, at = r.stack[size].place, r.stack[size].at
        if r.rows[place].since > at:
            at = r.rows[place].since
        r.rows[place].since = at
        r.rows[place].count -= 1
        if r.rows[place].count > 0:
            continue
        if r.rows[place].parked != 0:
            _fold_parked(r, f, w, g, place)
        for i in range(r.rows[place].released_at, r.rows[place + 1].released_at):
            sent = r.released[i]
            if not r.rows[sent].since > at:
                r.rows[sent].since = at
            r.rows[sent].count -= 1
            if r.rows[sent].count == 0:
                push_ready(r.routes, r.queues, r.rows[sent].route, sent, r.rows[sent].since)
        for i in range(r.rows[place].after_at, r.rows[place + 1].after_at):
            r.stack[size].place, r.stack[size].at = r.after[i], at
            size += 1
        g[UNFINISHED] -= 1
