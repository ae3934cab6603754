"""Wires made of queue pairs: chunks are RDMA writes with an immediate value, credits such writes of no bytes."""

from __future__ import annotations

import errno
import mmap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Self

from optcc.machine.rdma import NicAddress
from optcc.runtime.engine.transport import Watch
from optcc.runtime.errors import TransportError
from optcc.runtime.verbs.backlog import Backlog
from optcc.runtime.verbs.binding import PyverbsError, enums, error_number, status_name
from optcc.runtime.verbs.end import DRAINED, FENCING, LOST, OPEN, RECEIVE, ChunkWrite, End
from optcc.runtime.verbs.faults import VerbsFaults
from optcc.runtime.verbs.immediate import Immediates
from optcc.runtime.verbs.layout import address_of, lay_out, slot_stride
from optcc.runtime.verbs.meeting import Exchange, OpenedEnds, connect_ends, open_ends
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.ports import PortStates
from optcc.runtime.verbs.records import Records
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.verbs.waiting import Waiter
from optcc.runtime.wires.contract import (
    HEADER_BYTES,
    Arrived,
    Cause,
    Completed,
    Credited,
    Drained,
    Failed,
    FlowSpec,
    Happening,
    PortDown,
    Wire,
)
from optcc.runtime.wires.pacing import Rates

_BUGS = frozenset(
    getattr(enums, f"IBV_WC_{name}_ERR")
    for name in (
        "LOC_LEN",
        "LOC_PROT",
        "MW_BIND",
        "BAD_RESP",
        "LOC_ACCESS",
        "REM_INV_REQ",
        "REM_ACCESS",
        "RNR_RETRY_EXC",
    )
)
"""Completions that no lost NIC explains: a wrong address, key or length, or no receive where one must be."""


_LOOK_EVERY_S = 0.001
"""As long as polls find completions, descriptors are looked at so often: the watch, and events of NICs. By time and not
by the number of polls, since what a rank does between two of them may take long."""


class VerbsWires(VerbsFaults):
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
        self._rank, self._wires, self._flows, self._watch, self._clock = rank, wires, flows, watch, clock
        self._settings = settings or VerbsSettings()
        self._happened: list[Happening] = []
        ports = 1 + max((max(wire.out, wire.into) for wire in wires), default=0)
        self._bits = {port: rates[port].out * 8 if rates else inf for port in range(ports)}
        self._now, self._looked = clock(), True  # as of the last look; whether it was in this poll
        self._look_at: float | None = None  # when to look at descriptors without a wait; None: `clock` says
        self._bug = ""
        self._backlog = Backlog(ports, rates, self._settings.early_s)
        self._layout = lay_out(rank, wires, flows)
        self._far = {f: lay_out(flow.dst, wires, flows) for f, flow in enumerate(flows) if flow.src == rank}
        self._strides = [slot_stride(flow) for flow in flows]
        self._bytes = memoryview(mmap.mmap(-1, self._layout.size))
        self._base = address_of(self._bytes)
        self._payload = (0, 0)  # address and bytes of what is registered
        own = [w for w, wire in enumerate(wires) if rank in (wire.src, wire.dst)]
        self._immediates = Immediates(own, flows)
        self._records = Records(self._bytes, self._base, self._layout, self._far)
        self._gone: set[int] = set()  # NICs that are no more
        self._opened = OpenedEnds()
        self._waiter = Waiter()
        try:
            open_ends(self._opened, rank, wires, flows, nics, (self._base, self._layout.size))
            connect_ends(self._opened, rank, wires, self._base, exchange, self._settings)
        except BaseException:
            self.close()
            raise
        self._nics, self._ends = self._opened.nics, self._opened.ends
        for w, at in self._layout.headers.items():
            if w in self._ends:
                self._ends[w].headers, self._ends[w].headers_at = self._bytes[at:], self._base + at
        self._leaving: defaultdict[int, list[End]] = defaultdict(list)  # outgoing ends by port
        for w, end in self._ends.items():
            if wires[w].src == rank:
                self._leaving[wires[w].out].append(end)
        self._by_number = {(end.nic.index, end.number): end for end in self._ends.values()}
        self._ports = PortStates(self._nics)
        self._heard = watch.check
        self._waiter.add(watch.fileno(), self._heard)
        for nic in self._nics.values():
            self._waiter.add(nic.completions_fd, partial(self._wake, nic))
            self._waiter.add(nic.events_fd, partial(self._hear, nic))
        self._happened += [PortDown(port, Cause.DEVICE, why) for port, why in self._opened.absent.items()]
        self._happened += self._ports.without_link(self._nics)
        self._happened += [Failed(w, cause, why) for w, (cause, why) in self._opened.lost.items()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what the flows ask for ------------------------------------------------------------------------------------

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
            except PyverbsError as why:
                if error_number(why) in (errno.ENOMEM, errno.EPERM, errno.EAGAIN, errno.EFAULT):
                    what = f"{nic.address.device} cannot register {memory.nbytes} bytes"
                    raise TransportError(f"{what}: {why}; is `ulimit -l` large enough?") from why
                self._device_lost(nic, str(why))

    def write(self, wire: int, flow: int, seq: int, header: bytes, payload: memoryview, ready: float) -> None:
        """See `Wires`."""
        end = self._ends.get(wire)
        if end is None or end.state is not OPEN:
            return
        start, size = address_of(payload), payload.nbytes
        first, length = self._payload
        if size and not first <= start <= start + size <= first + length:
            raise TransportError("a payload lies outside the memory that was registered")
        slot = end.remote[0] + self._far[flow].slots[flow] + seq % self._flows[flow].window * self._strides[flow]
        self._backlog.give(self._wires[wire].out, self._wires[wire].into, size, self._now)
        chunk = ChunkWrite(flow, seq, header, (start, size), slot, self._immediates.pack(wire, flow, seq))
        try:
            end.write(chunk)
        except PyverbsError as why:
            self._refused(end, why)

    def credit(self, wire: int, flow: int, folded: int) -> None:
        """See `Wires`."""
        end = self._ends.get(wire)
        if end is not None and end.state is OPEN:
            try:
                end.credit(flow, self._immediates.pack(wire, flow, folded))
            except PyverbsError as why:
                self._refused(end, why)

    def publish(self, flow: int, epoch: int, landed: int, folded: int) -> None:
        """See `Wires`."""
        self._records.publish(flow, epoch, landed, folded)

    def ask_record(self, wire: int, flow: int) -> bool:
        """See `Wires`."""
        end = self._ends.get(wire)
        if end is None or not end.is_open or not end.has_room:
            return False
        try:
            self._records.ask(end, flow)
        except PyverbsError as why:
            self._refused(end, why)
        return True

    def fence(self, wire: int) -> None:
        """See `Wires`."""
        end = self._ends.get(wire)
        if end is None or end.state is DRAINED:
            self._happened.append(Drained(wire))
            return
        if end.state is FENCING:
            return
        try:
            end.fence()
        except PyverbsError as why:
            self._device_lost(end.nic, str(why))
        if end.nic.index in self._gone:
            # It may never give back what was posted. Without its queue pair nothing can reach memory, either.
            self._collect(end.nic)
            self._records.failed(work.flow for work in end.work if work.seq < 0)
            end.abandon()
        self._see_drained(end)

    def slot(self, flow: int, seq: int) -> memoryview:
        """See `Wires`."""
        spec = self._flows[flow]
        at = self._layout.slots[flow] + seq % spec.window * self._strides[flow]
        return self._bytes[at : at + HEADER_BYTES + spec.slot_bytes]

    def free_at(self, wire: int, now: float) -> float:
        """See `Wires`: a moment before the NIC will have sent what it was given, and the other end's NIC taken it.

        Not when it has been acknowledged: a chunk may lie in a queue at a slower receiver, with the NIC idle. A NIC
        that is slower than we think would pile up work; so no more than `VerbsSettings.ahead` chunks are given to it.
        A wire on which nothing is under way is always free, so that a dead one holds up no other.
        """
        end, out = self._ends.get(wire), self._wires[wire].out
        self._now = now
        if end is None or not end.under_way:
            return min(now, self._backlog.sent_at(out))
        if sum(other.under_way for other in self._leaving[out]) >= self._settings.ahead:
            return inf
        return self._backlog.next_at(out, self._wires[wire].into)

    def clock(self) -> float:
        """The time as of the last look: one for every poll, and none where nobody asks.

        For flows and engines over these wires. Looks at the clock may take time, as in the lab's virtual time, or be
        system calls. Then several for every chunk would cost more than the rest of its work.
        """
        if not self._looked:
            self._now, self._looked = self._clock(), True
            if self._look_at is None:
                self._look_at = self._now + _LOOK_EVERY_S
        return self._now

    def look_again(self) -> float:
        """The time by a look of its own; `clock` has it from now on. Folds since the last look may have taken long."""
        self._looked = False
        return self.clock()

    def close(self) -> None:
        """See `Wires`. Landing slots that somebody still looks at stay readable."""
        self._waiter.close()
        self._opened.close()

    # --- what happens ----------------------------------------------------------------------------------------------

    def poll(self, until: float) -> Sequence[Happening]:
        """See `Wires`. Waits in the system, never in a loop.

        Known events are reported without a wait. Descriptors are checked at intervals even so, and always when there is
        no wait anyway (-inf).
        """
        if self._bug:
            raise TransportError(self._bug)
        self._looked = False
        if (until == -inf or not self._happened) and self._is_quiet():
            self._wait(until)
        elif until == -inf or self._is_time_to_look():
            self._look_at = self._now + _LOOK_EVERY_S
            for do in self._waiter.wait(-inf):
                do()
        happened, self._happened = self._happened, []
        return happened

    def _wait(self, until: float) -> None:
        """Until there is something to tell, or the watch speaks. What an event is for may have been told already."""
        began = self._now
        while True:
            todo = self._waiter.wait(until)
            self._looked, self._look_at = False, None
            if not todo and until > began:
                self._backlog.waited(until, self.clock())
            for do in todo:
                do()
            if not todo or self._heard in todo or self._happened or self.clock() >= until or not self._is_quiet():
                return

    def _is_time_to_look(self) -> bool:
        """Whether descriptors have not been looked at for a while, since polls have always found something."""
        if self._look_at is None:  # the last poll has waited, and nobody has asked for the time since
            self._look_at = -inf
            return False
        return self.clock() >= self._look_at

    def _is_quiet(self) -> bool:
        """Whether there is nothing to tell, even now that all NICs have been asked to end a wait.

        Events are requested only here. As long as polls find something, nobody waits for an event; requesting, waiting
        and taking are three system calls.
        """
        for nic in self._nics.values():
            self._collect(nic)
        if self._happened:
            return False
        for nic in self._nics.values():
            try:
                if nic.index not in self._gone and nic.arms():
                    self._collect(nic)
            except PyverbsError as why:
                self._device_lost(nic, str(why))
        return not self._happened

    def _wake(self, nic: VerbsNic) -> None:
        nic.take_event()
        self._collect(nic)

    def _collect(self, nic: VerbsNic) -> None:
        """All completions of a NIC."""
        try:
            completions = nic.completions()
        except PyverbsError as why:
            self._device_lost(nic, str(why))
            return
        for completion in completions:
            end = self._by_number.get((nic.index, completion.qp_num))
            if end is None or end.state is DRAINED:
                continue  # its queue pair has been abandoned
            if completion.status != enums.IBV_WC_SUCCESS:
                self._failed(end, completion)
            elif completion.wr_id == RECEIVE:
                self._came(end, completion.imm_data)
            else:
                self._done(end, completion.wr_id)
                if end.waits:
                    self._flush(end)
            if end.state is FENCING:
                self._see_drained(end)

    def _came(self, end: End, immediate: int) -> None:
        end.receives -= 1
        if end.state is OPEN:
            try:
                end.receive()
            except PyverbsError as why:
                self._refused(end, why)
        flow, number = self._immediates.unpack(end.wire, immediate)
        if self._wires[end.wire].src == self._rank:
            self._happened.append(Credited(end.wire, flow, number))
        else:
            now = self.clock()
            self._backlog.arrived(end.nic.index, now)
            self._happened.append(Arrived(end.wire, flow, number, now))

    def _done(self, end: End, serial: int) -> None:
        """Everything up to this piece of work is done."""
        for work in end.done(serial):
            if work.seq >= 0:
                self._happened.append(Completed(end.wire, work.flow, work.seq))
            elif work.flow >= 0:
                record = self._records.came(end, work.flow)
                self._happened += [record] if record is not None else []

    def _failed(self, end: End, completion: Any) -> None:
        """Of a completion in error only request, status, queue pair and the vendor's code mean anything."""
        if end.state is OPEN:
            self._hear(end.nic)  # it may say why, and then that comes first
        if completion.wr_id == RECEIVE:
            end.receives -= 1
        else:
            self._done(end, completion.wr_id - 1)  # what was posted before is fine
            self._records.failed(work.flow for work in end.done(completion.wr_id) if work.seq < 0)
        name = status_name(completion.status)
        detail = f"{name} on {end.nic.address.device}, vendor's code {completion.vendor_err}"
        if completion.status in _BUGS:
            raise TransportError(f"wire {end.wire}: {detail}; this is a bug, not a lost NIC")
        self._lose(end, Cause.ERROR, detail)

    def _hear(self, nic: VerbsNic) -> None:
        """All asynchronous events of a NIC."""
        news = self._ports.read(nic)
        self._happened += news.port
        if news.gone:
            self._device_lost(nic, f"{nic.address.device}: device fatal")
        if news.queue_pairs:
            for end in self._ends.values():
                if end.nic is nic and end.in_error():
                    self._lose(end, Cause.ERROR, f"{nic.address.device}: queue pair error")

    # --- inside ----------------------------------------------------------------------------------------------------

    def _flush(self, end: End) -> None:
        """There may be room again."""
        try:
            end.flush()
        except PyverbsError as why:
            self._refused(end, why)

    def _refused(self, end: End, why: PyverbsError) -> None:
        """A device that refuses work is gone."""
        if error_number(why) == errno.ENOMEM:
            raise TransportError(f"wire {end.wire}: its send queue has overrun; this is a bug") from why
        self._device_lost(end.nic, f"{end.nic.address.device} refuses work: {why}")

    def _lose(self, end: End, cause: Cause, detail: str) -> None:
        if end.is_open:
            end.state = LOST
            self._happened.append(Failed(end.wire, cause, detail))

    def _device_lost(self, nic: VerbsNic, detail: str) -> None:
        if nic.index not in self._gone:
            self._gone.add(nic.index)
            self._waiter.discard(nic.completions_fd)
            self._waiter.discard(nic.events_fd)
            self._happened.append(PortDown(nic.index, Cause.DEVICE, detail))
            for end in self._ends.values():
                if end.nic is nic:
                    self._lose(end, Cause.DEVICE, detail)

    def _see_drained(self, end: End) -> None:
        if end.state is FENCING and end.is_empty:
            end.state = DRAINED
            end.under_way = 0
            self._happened.append(Drained(end.wire))
