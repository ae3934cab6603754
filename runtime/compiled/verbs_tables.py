"""One rank's wires of queue pairs as tables of compiled code: filled from ends and NICs, and written back into them."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from optcc.runtime.compiled import basics
from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.flow_table import FlowTable, address_of
from optcc.runtime.compiled.queue_loop import advance
from optcc.runtime.compiled.tables import Queues
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.verbs.binding import VerbsError, address_of_function, event_functions
from optcc.runtime.verbs.end import OPEN, End, PostedWork
from optcc.runtime.verbs.wires import VerbsWires
from optcc.runtime.wires.contract import HEADER_BYTES

if TYPE_CHECKING:
    from optcc.runtime.compiled.engine import CompiledEngine


class VerbsFlows(FlowTable):
    """Over queue pairs. A flow's slots are in its receiver's memory, by the address that they have there."""

    def _place(self, number: int, record: Any) -> bool:
        wires: VerbsWires = self._wires
        record["size"] = record["stride"] = wires._strides[number]
        if number in self._ins:
            record["slots"] = wires._base + wires._layout.slots[number]
            record["payloads"] = record["slots"] + HEADER_BYTES
            return True
        ends = (wires._ends.get(wire) for wire in self._specs[number].wires)
        # One that is made anew knows nothing of the far end's memory before it is connected.
        bases = [end.remote[0] for end in ends if end is not None and end.remote[0]]
        record["slots"] = bases[0] + wires._far[number].slots[number] if bases else 0
        return bool(bases)

    def fill(self, engine: CompiledEngine) -> bool:
        """See `FlowTable`. False, too, where what is sent is not registered yet."""
        source: Any = engine._bytes if engine._parts is None else engine._parts
        first, length = self._wires._payload
        begin = address_of(source)
        return first <= begin <= begin + len(source) <= first + length and super().fill(engine)

    def write_back(self, engine: CompiledEngine) -> None:
        """See `FlowTable`."""
        super().write_back(engine)
        latest = self._wires._immediates._latest
        for number, out in self._outs.items():
            latest[number] = max(latest[number], out.sender.folded)
        for number, into in self._ins.items():
            latest[number] = max(latest[number], into.receiver.landed)

    def _kept(self, number: int) -> int:
        ends = self._wires._ends
        return int(max(ends[wire]._sends for wire in self._specs[number].wires if wire in ends))

    def _sends(self, wire: int, number: int) -> bool:
        return self._takes(wire)

    def _takes(self, wire: int) -> bool:
        end = self._wires._ends.get(wire)
        return end is not None and _works(end)

    def _number_at(self, wire: int, number: int) -> int:
        return int(self._wires._immediates._place[wire][number])


class VerbsLines:
    """See `LineTable`."""

    advance = staticmethod(advance)

    def __init__(self, flows: FlowTransport, wires: VerbsWires) -> None:
        self._wires, self.now = wires, wires.look_again
        layout = flows._ends.layout
        records = np.zeros(len(layout.wires), t.WIRE)
        records["out_nic"], records["in_nic"] = [w.out for w in layout.wires], [w.into for w in layout.wires]
        ends, devices = np.zeros(len(layout.wires), t.END), np.zeros(len(layout.nics), t.DEVICE)
        works, users, pairs = 0, list[int](), list[tuple[int, int]]()
        for wire, end in wires._ends.items():
            record, nic = ends[wire], end.nic
            record["nic"], record["pair"] = nic.index, end.queue_pair.address
            record["sends"], record["every"] = end._sends, end._every
            record["works_at"], works = works, works + end._sends
            using = wires._immediates._users[wire]
            record["users_at"], record["users"], users = len(users), len(using), [*users, *using]
            record["base"], record["key"] = end.remote
            record["chain"], record["receives"] = end._chain._at, end._receives._at
            record["headers"], record["header_key"] = end.headers_at, nic.memory.lkey
            pairs.append((nic.index << 32 | end.queue_pair.number, wire))
        for port, nic in wires._nics.items():
            record = devices[port]
            record["queue"], record["channel"], record["polled"] = nic.queue, nic._channel, nic._polled_at
            for name in ("poll", "notify", "post_send", "post_receive"):
                record[name] = address_of_function(getattr(nic.calls, name))
        self.tables = Queues(
            wires=records,
            nics=np.zeros(len(wires._backlog.under_way), t.NIC),  # the last ones of the layout may have no wires
            polls=np.zeros((2, 2), np.int32),
            scratch=np.zeros(64, np.int64),
            ends=ends,
            works=np.zeros(works, t.WORK),
            devices=devices,
            own=np.array(sorted(wires._ends), np.int64),
            ports=np.zeros(0, np.int64),
            users=np.array(users, np.int64),
            pairs=np.array(sorted(pairs), np.int64).reshape(-1, 2),
        )
        self.tables.nics["out_rate"], self.tables.nics["in_rate"] = wires._backlog._out, wires._backlog._into
        self._own = [(wire, wires._ends[wire]) for wire in sorted(wires._ends)]
        self._events = event_functions()
        self._working: Hashable = None

    def is_steady(self) -> bool:
        """Whether there is nothing to tell but chunks, once all that was written has been posted."""
        wires = self._wires
        wires.flush()
        return not wires._reports.happened and not wires._bug

    def fill(self, numbers: Any, times: Any) -> bool:
        """From ends and NICs; always True."""
        wires, backlog, clock = self._wires, self._wires._backlog, self._wires.clock
        working = (*(_works(end) for _, end in self._own), *wires._reports.gone)
        if working != self._working:
            self._working = working
            self._watch()
        w = self.tables
        for wire, end in self._own:
            first = end.work[0].serial if end.work else end._serial + 1
            record = w.ends[wire]
            record["first"], record["last"], record["told"] = first, end._serial, end._told
            record["under_way"], record["payload_key"] = end.under_way, end.nic.payload_key
            record["chained"] = record["came"] = record["refused"] = 0
            at = int(record["works_at"])
            for serial, flow, seq in end.work:
                w.works[at + serial % end._sends] = (flow, seq)
        for port in w.ports.tolist():
            nic = wires._nics[port]
            w.devices["armed"][port], (w.devices["at"][port], w.devices["found"][port]) = nic._armed, nic.left
        w.nics["under_way"], w.nics["out_free"], w.nics["in_free"] = backlog.under_way, backlog._sent, backlog._taken
        numbers[t.GET_EVENT], numbers[t.ACK_EVENTS] = self._events
        numbers[t.AHEAD], numbers[t.REFUSED] = wires._settings.ahead, 0
        numbers[t.TIMER] = wires._waiter._timer
        times[t.EARLY_S], times[t.LATE_S], times[t.TIMER_AT] = backlog._early_s, backlog._late, wires._waiter._set
        times[t.NOW], times[t.LOOKED] = clock.now, clock._looked
        times[t.SOCKETS_AT] = clock.now + basics.LOOK_S if clock._look_at is None else clock._look_at
        return True

    def _watch(self) -> None:
        """Which wires and NICs work from now on."""
        wires, w = self._wires, self.tables
        w.wires["out"] = w.wires["into"] = 0
        for wire, end in self._own:
            leaves = wires._wires[wire].src == wires._rank
            w.wires["out" if leaves else "into"][wire] = _works(end)
        here = sorted(port for port in wires._nics if port not in wires._reports.gone)
        files = [wires._waiter._timer, wires._polling.watch_fd]
        files += [wires._nics[port].completions_fd for port in here]
        files += [wires._nics[port].events_fd for port in here]
        polls = np.zeros((len(files), 2), np.int32)
        polls[:, 0], polls[:, 1] = files, basics.POLLIN
        self.tables = w._replace(polls=polls, ports=np.array(here, np.int64))

    def write_back(self, numbers: Any, times: Any, code: int) -> None:
        """Into ends and NICs. `code` : what compiled code has returned. Raises TransportError for a bug."""
        wires, w, backlog, clock = self._wires, self.tables, self._wires._backlog, self._wires.clock
        for wire, end in self._own:
            self._write_back_end(end, w.ends[wire])
        for port in w.ports.tolist():
            nic, record = wires._nics[port], w.devices[port]
            nic._armed, nic.left = bool(record["armed"]), (int(record["at"]), int(record["found"]))
        backlog.under_way[:], backlog._late = w.nics["under_way"].tolist(), float(times[t.LATE_S])
        backlog._sent[:], backlog._taken[:] = w.nics["out_free"].tolist(), w.nics["in_free"].tolist()
        wires._waiter._set = float(times[t.TIMER_AT])
        clock.now, clock._looked = float(times[t.NOW]), bool(times[t.LOOKED])
        clock._look_at = -np.inf if code == basics.SPOKEN else float(times[t.SOCKETS_AT])
        wires._full.clear()
        for wire, end in self._own if numbers[t.REFUSED] else ():
            number = abs(int(w.ends["refused"][wire]))
            if number:
                wires._reports.do(end, partial(_refuse, number))

    def _write_back_end(self, end: Any, record: Any) -> None:
        first, last, at = int(record["first"]), int(record["last"]), int(record["works_at"])
        while end.work and end.work[0].serial < first:
            end.work.popleft()
        works = self.tables.works
        for serial in range(max(first, end._serial + 1), last + 1):
            end.work.append(PostedWork(serial, *works[at + serial % end._sends].item()))
        end._serial, end._told, end.under_way = last, int(record["told"]), int(record["under_way"])
        end.receives -= int(record["came"])


def _works(end: End) -> bool:
    """Whether it does, and nothing waits on it."""
    return end.state is OPEN and not end.waits


def _refuse(number: int) -> None:
    raise VerbsError("a work request", number)
