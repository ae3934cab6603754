"""Wires made of queue pairs: chunks are RDMA writes with an immediate value, credits such writes of no bytes."""

from __future__ import annotations

import errno
import logging
import mmap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Self

from optcc.machine.rdma import NicAddress
from optcc.runtime.engine.transport import Watch
from optcc.runtime.errors import TransportError
from optcc.runtime.verbs.backlog import Backlog
from optcc.runtime.verbs.binding import VerbsError
from optcc.runtime.verbs.end import DRAINED, FENCING, OPEN, ChunkWrite, End
from optcc.runtime.verbs.faults import VerbsFaults
from optcc.runtime.verbs.immediate import Immediates
from optcc.runtime.verbs.layout import address_of, lay_out, slot_stride
from optcc.runtime.verbs.meeting import Exchange, OpenedEnds, connect_ends, open_ends
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.poll_clock import PollClock
from optcc.runtime.verbs.polling import Polling
from optcc.runtime.verbs.records import Records
from optcc.runtime.verbs.renewing import VerbsRenewing
from optcc.runtime.verbs.reports import NicReports
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.verbs.waiting import Waiter
from optcc.runtime.wires.contract import HEADER_BYTES, Drained, FlowSpec, Happening, Wire
from optcc.runtime.wires.pacing import Rates

log = logging.getLogger(__name__)


class VerbsWires(VerbsFaults, VerbsRenewing):
    """One rank's ends of all wires, as `wires.Wires` says.

    Parameters
    ----------
    rank, wires, flows : whose ends, and the tables that all ranks share
    nics : this rank's NICs by index of port; one that is not in it is gone, and its wires are lost from the start
    exchange : called twice, by all ranks: with addresses of queue pairs, and with what could not be connected
    watch : what else may end a wait; clock : the system's monotonic clock, of `poll`'s `until`

    Raises TransportError for what is a bug, here and in `poll`; InputError for more flows than a wire can tell apart.
    """

    def __init__(
        self,
        rank: int,
        wires: Sequence[Wire],
        flows: Sequence[FlowSpec],
        nics: Mapping[int, NicAddress],
        *,
        exchange: Exchange,
        watch: Watch,
        clock: Callable[[], float],
        rates: Sequence[Rates] | None = None,
        settings: VerbsSettings | None = None,
    ) -> None:
        self._rank, self._wires, self._flows = rank, wires, flows
        self._settings = settings or VerbsSettings()
        ports = 1 + max((max(wire.out, wire.into) for wire in wires), default=0)
        self._bits = {port: rates[port].out * 8 if rates else inf for port in range(ports)}
        self.clock = PollClock(clock)
        self._bug, self.remade = "", 0
        self._backlog = Backlog(ports, rates, self._settings.early_s)
        self._layout = lay_out(rank, wires, flows)
        self._far = {f: lay_out(flow.dst, wires, flows) for f, flow in enumerate(flows) if flow.src == rank}
        self._strides = [slot_stride(flow) for flow in flows]
        self._bytes = memoryview(mmap.mmap(-1, self._layout.size))
        self._base = address_of(self._bytes)
        self._payload = (0, 0)  # address and bytes of what is registered
        self._immediates = Immediates([w for w, wire in enumerate(wires) if rank in (wire.src, wire.dst)], flows)
        self._records = Records(self._bytes, self._base, self._layout, self._far)
        self._opened = OpenedEnds()
        self._waiter = Waiter()
        try:
            open_ends(self._opened, rank, wires, flows, nics, (self._base, self._layout.size), self._settings)
            connect_ends(self._opened, rank, wires, self._base, exchange, self._settings)
        except BaseException:
            self.close()
            raise
        self._nics, self._ends = self._opened.nics, self._opened.ends
        self._leaving: defaultdict[int, dict[int, End]] = defaultdict(dict)  # by port, its outgoing ends by wire
        for end in self._ends.values():
            self._adopt(end)
        self._collected: dict[int, End] = {}  # by wire: what was written waits until it is posted
        self._full: set[int] = set()  # ports that had as many chunks as they may, in this poll
        self._reports = NicReports(
            rank, wires, self._opened, self._immediates, self._records, self._backlog, self.clock, self._discard
        )
        self._polling = Polling(self._nics, self._reports, self._waiter, watch, self.clock, self._backlog)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, memory: memoryview) -> None:
        """See `Wires`. Raises TransportError when writes from the old memory are under way, or the system refuses."""
        given = (address_of(memory), memory.nbytes)
        if given == self._payload:
            return
        if any(end.under_way for end in self._ends.values()):
            raise TransportError("payloads were moved while writes of them are under way")
        self._payload = given
        for nic in self._nics.values():
            try:
                nic.register(*given)
            except VerbsError as why:
                if why.number in (errno.ENOMEM, errno.EPERM, errno.EAGAIN, errno.EFAULT):
                    what = f"{nic.address.device} cannot register {memory.nbytes} bytes"
                    raise TransportError(f"{what}: {why}; is `ulimit -l` large enough?") from why
                self._reports.device_lost(nic, str(why))

    def write(self, wire: int, flow: int, seq: int, header: bytes, payload: memoryview, ready: float) -> None:
        """See `Wires`. Posted by the next `flush`, with what else is written until then."""
        end = self._ends.get(wire)
        if end is None or end.state is not OPEN:
            return
        start, size = address_of(payload), payload.nbytes
        first, length = self._payload
        if size and not first <= start <= start + size <= first + length:
            raise TransportError("a payload lies outside the memory that was registered")
        slot = end.remote[0] + self._far[flow].slots[flow] + seq % self._flows[flow].window * self._strides[flow]
        self._backlog.give(self._wires[wire].out, self._wires[wire].into, size, self.clock.now)
        end.write(ChunkWrite(flow, seq, header, (start, size), slot, self._immediates.pack(wire, flow, seq)))
        self._collected[wire] = end

    def flush(self) -> None:
        """Post what was written, a chain for each wire. `poll` does it, too."""
        if self._collected:
            for end in self._collected.values():
                self._reports.do(end, end.flush)
            self._collected.clear()

    def hasten(self, wire: int, flow: int, seq: int) -> None:
        """Completed comes by itself only for some chunks, and now for this one as soon as it has landed."""
        end = self._ends.get(wire)
        if end is not None and end.state is OPEN:
            self._reports.do(end, end.ask)

    def credit(self, wire: int, flow: int, folded: int) -> None:
        """See `Wires`. At once, since folds may come between this and the next poll."""
        end = self._ends.get(wire)
        if end is not None and end.state is OPEN:
            end.owe(flow, self._immediates.pack(wire, flow, folded))
            self._reports.do(end, end.flush)

    def publish(self, flow: int, epoch: int, landed: int, folded: int) -> None:
        """See `Wires`."""
        self._records.publish(flow, epoch, landed, folded)

    def ask_record(self, wire: int, flow: int) -> bool:
        """See `Wires`."""
        end = self._ends.get(wire)
        if end is None or not end.is_open or not end.has_room:
            return False
        self._reports.do(end, lambda: self._records.ask(end, flow))
        return True

    def fence(self, wire: int) -> None:
        """See `Wires`. What was not posted yet never is."""
        end = self._ends.get(wire)
        if end is None or end.state is DRAINED:
            self._reports.happened.append(Drained(wire))
        elif end.state is not FENCING:
            self._reports.fence(end)

    def slot(self, flow: int, seq: int) -> memoryview:
        """See `Wires`."""
        spec = self._flows[flow]
        at = self._layout.slots[flow] + seq % spec.window * self._strides[flow]
        return self._bytes[at : at + HEADER_BYTES + spec.slot_bytes]

    def free_at(self, wire: int, now: float) -> float:
        """See `Wires`: a moment before the NIC will have sent what it was given, and the other end's NIC taken it.

        Not when it has been acknowledged: a chunk may lie in a queue at a slower receiver, with the NIC idle. A NIC
        that is slower than we think would pile up work; so no more than `VerbsSettings.ahead` chunks are given to it.
        These do not hold up a wire on which nothing is under way, for they may be on a dead one.
        """
        end, out = self._ends.get(wire), self._wires[wire].out
        self.clock.now = now
        if end is not None and end.under_way and self._backlog.under_way[out] >= self._settings.ahead:
            self._hear_of(out)
            return inf
        return self._backlog.next_at(out, self._wires[wire].into)

    def look_again(self) -> float:
        """The time by a look of its own; `clock` has it from now on. Folds since the last look may have taken long."""
        self.clock.turn()
        return self.clock()

    def poll(self, until: float) -> Sequence[Happening]:
        """See `Wires`. Waits in the system, never in a loop."""
        if self._bug:
            raise TransportError(self._bug)
        self.flush()
        self._full.clear()
        return self._polling.poll(until)

    def close(self) -> None:
        """See `Wires`. Landing slots that somebody still looks at stay readable.

        What a device does not close is logged, and no error: nothing that the rank does next needs it closed.
        """
        self._waiter.close()
        try:
            self._opened.close()
        except VerbsError as why:
            log.warning("rank %d: %s", self._rank, why)

    def _hear_of(self, port: int) -> None:
        """Every wire that leaves by a port has some completion to come, as long as something is under way on it."""
        if port not in self._full:
            self._full.add(port)
            for end in self._leaving[port].values():
                if end.under_way and not end.will_tell:
                    self._reports.do(end, end.ask)

    def _adopt(self, end: End) -> None:
        """The end of its wire from now on."""
        at = self._layout.headers.get(end.wire)
        if at is not None:
            end.headers, end.headers_at = self._bytes[at:], self._base + at
            self._leaving[self._wires[end.wire].out][end.wire] = end
        self._ends[end.wire] = end

    def _discard(self, nic: VerbsNic) -> None:
        """Hear no more of this one."""
        self._waiter.discard(nic.completions_fd)
        self._waiter.discard(nic.events_fd)
