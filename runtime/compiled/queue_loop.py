"""The loop of one rank over queue pairs: what Python calls. See `loop`."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from collections import namedtuple
from typing import Any

from optcc.runtime.compiled.basics import ASIDE, GOES_ON, called
from optcc.runtime.compiled.completions import (
    can_say,
    fold_from_slot,
    poll_queues,
    say_landed,
    take_from_slot,
    time_of_poll,
)
from optcc.runtime.compiled.loop import advance_over
from optcc.runtime.compiled.parts import register
from optcc.runtime.compiled.queue_pairs import flush, free_at, say_folded, send_chunk
from optcc.runtime.compiled.tables import Flows, Queues, RowTables

QueueLines = namedtuple("QueueLines", Queues._fields)

register(
    QueueLines,
    poll=poll_queues,
    time_now=time_of_poll,
    free_at=free_at,
    send_chunk=send_chunk,
    can_say=can_say,
    take_payload=take_from_slot,
    fold_slot=fold_from_slot,
    say_landed=say_landed,
    say_folded=say_folded,
)


@called  # type: ignore[misc, unused-ignore]
def advance(
    rows: Any,
    routes: Any,
    queues: Any,
    stripes: Any,
    kinds: Any,
    lanes: Any,
    released: Any,
    after: Any,
    stack: Any,
    places: Any,
    flows: Any,
    kept: Any,
    parked: Any,
    mine: Any,
    wires: Any,
    ends: Any,
    works: Any,
    nics: Any,
    devices: Any,
    own: Any,
    ports: Any,
    users: Any,
    pairs: Any,
    polls: Any,
    scratch: Any,
    g: Any,
    x: Any,
) -> int:
    """See `local_loop.advance`. What has been written is posted."""
    r = RowTables(rows, routes, queues, stripes, kinds, lanes, released, after, stack, places)
    f = Flows(flows, kept, parked, mine)
    w = QueueLines(wires, ends, works, nics, devices, own, ports, users, pairs, polls, scratch)
    code = advance_over(r, f, w, g, x)
    return code if flush(w, g) == GOES_ON else ASIDE
