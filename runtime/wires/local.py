"""Wires between processes of one machine: chunks written straight into the far end's slots, NIC rates emulated.

As with an RDMA write with immediate, the sender puts a chunk into its landing slot and a notification into a ring; both
are in shared memory. Or the chunk stays in the sender's buffer, where that is in shared memory, too (`lent`).

A connection that closes is a link that went down; notifications under way on it are lost, and with them their chunks.

What comes in is in `local_arrivals`, what goes back in `local_replies`, sleeping and waking in `local_waits`.
"""

from __future__ import annotations

import errno
import math
import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from optcc.runtime.engine.transport import Watch
from optcc.runtime.errors import TransportError
from optcc.runtime.forks import own
from optcc.runtime.wires.contract import (
    Cause,
    Drained,
    Failed,
    FlowSpec,
    Happening,
    Wire,
)
from optcc.runtime.wires.lent import Arena, FarArena
from optcc.runtime.wires.local_arrivals import LocalArrivals
from optcc.runtime.wires.local_ends import ReceivingEnd, SendingEnd, Unsent
from optcc.runtime.wires.local_faults import LocalFaults
from optcc.runtime.wires.local_meeting import connect_ends
from optcc.runtime.wires.local_renewing import LocalRenewing
from optcc.runtime.wires.local_replies import LocalReplies
from optcc.runtime.wires.local_waits import LOOK_S, LocalWaits
from optcc.runtime.wires.pacing import PortClocks, Rates
from optcc.runtime.wires.rings import Ring, fence
from optcc.runtime.wires.slots import Slots


class LocalWires(LocalArrivals, LocalReplies, LocalWaits, LocalFaults, LocalRenewing):
    """One rank's ends. `exchange` is an all-gather over the ranks of the job.

    rates : by NIC; inf is as fast as the machine goes
    lent : the memory that others may read what is sent from; None: there is none
    within_s : for all to connect; inf: until `watch` says that one will not
    """

    def __init__(
        self,
        rank: int,
        wires: Sequence[Wire],
        flows: Sequence[FlowSpec],
        rates: Sequence[Rates],
        *,
        exchange: Callable[[Any], list[Any]],
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
        lent: Arena | None = None,
        within_s: float = math.inf,
    ) -> None:
        self._lent = lent
        self._far_arenas = {}
        self._rank, self._wires, self._flows, self._watch, self._clock = rank, wires, flows, watch, clock
        self._clocks = PortClocks(rates)
        self._slots = self._slots_of(rank)
        self._far = {}
        self._news = []
        self._out = {}
        self._in = {}
        self._dirty = set()
        self._full = set()
        self._stuck = {}
        self._notices: list[Ring] = []  # to read
        self._backs: list[Ring] = []  # likewise
        self._sleeps = 0
        self._look_at = -math.inf
        self._no_data = {}
        self._no_acks = set()
        self._unsaid = {}
        self._calls = {}
        self._asked = {}
        self._told = {}
        self._bug, self.remade = "", 0
        self._doors, self.away, self._notices_to, self._backs_to = {}, {}, {}, {}
        self._epoll = select.epoll()
        self._ends: dict[int, SendingEnd | ReceivingEnd] = {}  # by descriptor
        own(self, LocalWires._let_go)
        try:
            connect_ends(
                rank,
                wires,
                exchange,
                self._slots,
                lent.fd if lent else None,
                self._borrow,
                self._borrow_arena,
                self._adopt,
                watch,
                within_s,
            )
            self._open_rings()
            self._epoll.register(watch.fileno(), select.EPOLLIN)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _adopt(self, end: SendingEnd | ReceivingEnd) -> None:
        if isinstance(end, ReceivingEnd):
            self._in[end.wire] = end
        else:
            self._out[end.wire] = end
        end.sock.setblocking(False)
        self._ends[end.sock.fileno()] = end
        self._epoll.register(end.sock.fileno(), select.EPOLLIN)

    def _open_rings(self) -> None:
        """One pair for each rank that sends here, and for each that this one sends to, however many wires there are."""
        for src in self._slots.senders:
            self._notices.append(self._slots.notices(src))
            self._backs_to[src] = self._slots.backs(src)
        for dst, far in self._far.items():
            self._notices_to[dst] = far.notices(self._rank)
            self._backs.append(far.backs(self._rank))
        self._join_rings([*self._out.values(), *self._in.values()])

    def _borrow(self, rank: int, fd: int) -> Slots:
        """The slots of another rank. It lends them with every wire; once is enough."""
        if rank in self._far:
            os.close(fd)
        else:
            self._far[rank] = self._slots_of(rank, fd)
        return self._far[rank]

    def _borrow_arena(self, rank: int, fd: int) -> None:
        self._far_arenas[rank] = FarArena(fd)

    def _slots_of(self, rank: int, fd: int | None = None) -> Slots:
        """This rank's slots; those of another, which lends `fd`."""
        return Slots(rank, self._flows, fd)

    def register(self, memory: memoryview) -> None:
        """Any memory will do."""

    def write(self, wire: int, flow: int, seq: int, header: bytes, payload: memoryview, ready: float) -> None:
        """At once, if there is room for the notification; else `poll` does it."""
        start, end = self._clocks.depart(self._wires[wire].out, len(payload), ready)
        out = self._out.get(wire)
        if out is None:
            return  # its loss has been reported
        if out.unsent or wire in self._no_data or not self._put(out, flow, seq, header, payload, start, end):
            out.unsent.append(Unsent(flow, seq, header, payload, start, end))

    def _put(self, out: SendingEnd, flow: int, seq: int, header: bytes, payload: Any, start: float, end: float) -> bool:
        """A chunk into its slot and a notification into the ring. False where the ring has no room. On a wire that the
        far end has closed neither: the loss is reported, and that is True, for there is nothing left to write."""
        far, wire = out.far, out.wire
        if far.is_closed(wire):
            self._fail(wire, os.strerror(errno.EPIPE))
            return True
        far.put(flow, seq, header, payload)
        if not out.notices.put(flow, len(payload), seq, start, end, wire):
            self._full.add(wire)
            return False
        fence()
        sleep = far.sleeps()
        if sleep and sleep != out.woke:
            self._wake(out, sleep)
        return True

    def free_at(self, wire: int, now: float) -> float:
        """When the emulated NIC is free, but not before what was written to this wire before is out."""
        out = self._out.get(wire)
        if out is not None and out.unsent:
            return math.inf
        return self._clocks.free_at(self._wires[wire].out)

    def publish(self, flow: int, epoch: int, landed: int, folded: int) -> None:
        """Nobody can read this rank's memory."""

    def ask_record(self, wire: int, flow: int) -> bool:
        """Not over sockets."""
        return False

    def fence(self, wire: int) -> None:
        """Close this end; what came on it and has not landed is lost. What the sending end writes, it writes at once,
        so it has none under way: after this no byte of an old write goes anywhere.
        """
        self._close(wire)
        self._news.append(Drained(wire))

    def slot(self, flow: int, seq: int) -> memoryview:
        """Header and room for the payload."""
        return self._slots.slot(flow, seq)

    def poll(self, until: float) -> list[Happening]:
        """What is in the rings; a wait only if there is nothing; then what has landed by now."""
        if self._bug:
            raise TransportError(self._bug)
        self._read_rings()
        if self._full:
            self._flush_full()
        now = self._clock()
        if self.away:
            until = min(until, self._come_back(now))
        self._land(now)
        if self._asked:
            self._see_landed()
        if not self._news or until == -math.inf or now >= self._look_at:
            wake = -math.inf if self._news else min(until, self._clocks.next_landing())
            if self._full or self._dirty - self._no_acks:
                wake = min(wake, now + LOOK_S)
            if (until == -math.inf or now >= self._look_at) if wake <= now else self._sleep(wake - now):
                self._look(now)
            self._land(self._clock())
            if self._asked:
                self._see_landed()
        if self._dirty:
            for wire in [*self._dirty]:
                self._send_replies(wire)
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Close every connection, let go of the slots."""
        if self._epoll.closed:
            return
        for far in self._far.values():
            far.withdraw(self._rank)
        fence()
        for wire in [*self._out, *self._in]:
            self._close(wire)
        for door in self._doors.values():
            door.close()
        for slots in (self._slots, *self._far.values()):
            slots.close()
        for arena in self._far_arenas.values():
            arena.close()
        self._far.clear()
        self._far_arenas.clear()
        self._lent = None
        self._epoll.close()

    def _let_go(self) -> None:
        """In a forked child: its copies of descriptors. What is shared stays as it is, and so do the ends there."""
        if self._epoll.closed:
            return
        self._epoll.close()
        for sock in [end.sock for end in self._ends.values()]:
            sock.close()
        for arena in self._far_arenas.values():
            arena.close()
        for slots in (self._slots, *self._far.values()):
            slots.let_go()

    def _flush(self, out: SendingEnd) -> None:
        """Write what is unsent while there is room for its notifications."""
        self._full.discard(out.wire)
        while out.unsent and out.wire not in self._no_data:
            if not self._put(out, *out.unsent[0]):
                return
            if out.wire not in self._out:
                return  # it was lost
            out.unsent.popleft()

    def _flush_full(self) -> None:
        for wire in [*self._full]:
            out = self._out.get(wire)
            if out is None:
                self._full.discard(wire)
            else:
                self._flush(out)

    def _read_rings(self) -> None:
        """Notifications, whose chunks are here; and what has come back."""
        for ring in self._notices:
            records = ring.take()
            if records:
                self._notice(records)
        for ring in self._backs:
            for record in ring.take():
                self._back(record)

    def _fail(self, wire: int, detail: str) -> None:
        self._close(wire)
        self._news.append(Failed(wire, Cause.CLOSED, detail))

    def _close(self, wire: int) -> None:
        end = self._out.get(wire) or self._in.get(wire)
        if end is not None:
            self._clocks.forget(wire)
            if not self._is_deaf(end):
                self._epoll.unregister(end.sock)
            self._no_data.pop(wire, None)
            self._no_acks.discard(wire)
            self._unsaid.pop(wire, None)
            self._stuck.pop(wire, None)
            if wire in self._in:
                self._slots.close_wire(wire)
            for table in (self._calls, self._asked):
                for key in [key for key in table if key[0] == wire]:
                    del table[key]
            self._out.pop(wire, None)
            self._in.pop(wire, None)
            del self._ends[end.sock.fileno()]
            end.sock.close()
