"""What NICs report, as happenings: completions and asynchronous events, and calls that a device refuses."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from socket import ntohl

from optcc.runtime.errors import TransportError
from optcc.runtime.verbs.backlog import Backlog
from optcc.runtime.verbs.binding import VerbsError
from optcc.runtime.verbs.end import DRAINED, FENCING, LOST, OPEN, End, PostedWork
from optcc.runtime.verbs.immediate import Immediates
from optcc.runtime.verbs.meeting import OpenedEnds
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.poll_clock import PollClock
from optcc.runtime.verbs.ports import PortStates
from optcc.runtime.verbs.posting import RECEIVE
from optcc.runtime.verbs.records import Records
from optcc.runtime.verbs.structs import STATUS, SUCCESS, Completion, status_name
from optcc.runtime.wires.contract import (
    Arrived,
    Cause,
    Completed,
    Credited,
    Drained,
    Failed,
    Happening,
    PortDown,
    Wire,
)

_BUGS = frozenset(
    STATUS.index(f"{name}_ERR")
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


class NicReports:
    """Those of one rank.

    Parameters
    ----------
    opened : its NICs and ends, and what could not be opened
    is_gone : called with a NIC that is no more, once

    Attributes
    ----------
    happened : in this order, not told yet
    gone : NICs that are no more
    """

    def __init__(
        self,
        rank: int,
        wires: Sequence[Wire],
        opened: OpenedEnds,
        immediates: Immediates,
        records: Records,
        backlog: Backlog,
        clock: PollClock,
        is_gone: Callable[[VerbsNic], None],
    ) -> None:
        self._rank, self._wires, self._ends = rank, wires, opened.ends
        self._immediates, self._records, self._backlog, self._clock = immediates, records, backlog, clock
        self._is_gone = is_gone
        self._by_number = {(end.nic.index, end.queue_pair.number): end for end in opened.ends.values()}
        self._ports = PortStates(opened.nics)
        self.gone: set[int] = set()
        self.happened: list[Happening] = [PortDown(port, Cause.DEVICE, why) for port, why in opened.absent.items()]
        self.happened += self._ports.without_link(opened.nics)
        self.happened += [Failed(w, cause, why) for w, (cause, why) in opened.lost.items()]

    def learn(self, end: End) -> None:
        """A new end."""
        self._by_number[end.nic.index, end.queue_pair.number] = end

    def forget(self, end: End) -> None:
        """One that is no more."""
        self._by_number.pop((end.nic.index, end.queue_pair.number), None)

    def take(self) -> list[Happening]:
        """What has happened and was not told."""
        happened, self.happened = self.happened, []
        return happened

    def collect(self, nic: VerbsNic) -> None:
        """All completions of a NIC."""
        try:
            completions = nic.completions()
        except VerbsError as why:
            self.device_lost(nic, str(why))
            return
        if completions:
            self._read(nic, completions)

    def _read(self, nic: VerbsNic, completions: Iterable[Completion]) -> None:
        came: Counter[End] = Counter()  # receives to be posted again, by one call for an end
        touched: dict[End, None] = {}
        for completion in completions:
            request, status, _, immediate, number = completion
            end = self._by_number.get((nic.index, number))
            if end is None or end.state is DRAINED:
                continue  # its queue pair has been abandoned
            if status != SUCCESS:
                self._failed(end, completion)
            elif request == RECEIVE:
                end.receives -= 1
                came[end] += 1
                self._came(end, immediate)
            else:
                self._done(end, end.done(request))
            touched[end] = None
        # Before anybody can give credits for what has come: each allows a chunk more, which needs a receive.
        for end, count in came.items():
            if end.state is OPEN:
                self.do(end, partial(end.receive, count))
        for end in touched:
            if end.waits:
                self.do(end, end.flush)
            if end.state is FENCING:
                self.see_drained(end)

    def _came(self, end: End, immediate: int) -> None:
        flow, number = self._immediates.unpack(end.wire, ntohl(immediate))
        if self._wires[end.wire].src == self._rank:
            self.happened.append(Credited(end.wire, flow, number))
        else:
            now = self._clock()
            self._backlog.arrived(end.nic.index, now)
            self.happened.append(Arrived(end.wire, flow, number, now))

    def _done(self, end: End, done: Iterable[PostedWork]) -> None:
        """What is done: of chunks the last of each flow, which stands for those before it."""
        last: dict[int, int] = {}
        chunks = 0
        for _, flow, seq in done:
            if seq >= 0:
                chunks += 1
                last.pop(flow, None)  # so that they are told in the order of the last ones
                last[flow] = seq
            elif flow >= 0:
                record = self._records.came(end, flow)
                self.happened += [record] if record is not None else []
        if chunks:
            self._backlog.under_way[self._wires[end.wire].out] -= chunks
            self.happened += [Completed(end.wire, flow, seq) for flow, seq in last.items()]

    def _failed(self, end: End, completion: Completion) -> None:
        """Of a completion in error only request, status, queue pair and the vendor's code mean anything."""
        if end.state is OPEN:
            self.hear(end.nic)  # it may say why, and then that comes first
        if completion.request == RECEIVE:
            end.receives -= 1
        else:
            self._done(end, end.done(completion.request - 1))  # what was posted before is fine
            self._abandoned(end, end.done(completion.request))
        name = status_name(completion.status)
        detail = f"{name} on {end.nic.address.device}, vendor's code {completion.vendor_error}"
        if completion.status in _BUGS:
            raise TransportError(f"wire {end.wire}: {detail}; this is a bug, not a lost NIC")
        self.lose(end, Cause.ERROR, detail)

    def _abandoned(self, end: End, works: Iterable[PostedWork]) -> None:
        """What will not be done: nobody is told of chunks, which the flows have to ask about."""
        for _, flow, seq in works:
            if seq >= 0:
                self._backlog.under_way[self._wires[end.wire].out] -= 1
            elif flow >= 0:
                self._records.failed([flow])

    def hear(self, nic: VerbsNic) -> None:
        """All asynchronous events of a NIC. One that cannot even be asked what they mean is gone."""
        try:
            news = self._ports.read(nic)
            ends = [end for end in self._ends.values() if end.nic is nic] if news.queue_pairs else []
            failed = [end for end in ends if end.queue_pair.in_error()]
        except VerbsError as why:
            self.device_lost(nic, f"{nic.address.device} does not answer: {why}")
            return
        self.happened += news.port
        if news.gone:
            self.device_lost(nic, f"{nic.address.device}: device fatal")
        for end in failed:
            self.lose(end, Cause.ERROR, f"{nic.address.device}: queue pair error")

    def do(self, end: End, what: Callable[[], None]) -> None:
        """Have something posted; a device that refuses work is gone. Raises TransportError for a queue's overrun."""
        try:
            what()
        except VerbsError as why:
            if why.number == errno.ENOMEM:
                raise TransportError(f"wire {end.wire}: its queue has overrun; this is a bug") from why
            self.device_lost(end.nic, f"{end.nic.address.device} refuses work: {why}")

    def lose(self, end: End, cause: Cause, detail: str) -> None:
        """A wire is lost, unless it was."""
        if end.is_open:
            end.state = LOST
            self.happened.append(Failed(end.wire, cause, detail))

    def device_lost(self, nic: VerbsNic, detail: str) -> None:
        """A NIC is no more, with all its wires."""
        if nic.index not in self.gone:
            self.gone.add(nic.index)
            self._is_gone(nic)
            self.happened.append(PortDown(nic.index, Cause.DEVICE, detail))
            for end in self._ends.values():
                if end.nic is nic:
                    self.lose(end, Cause.DEVICE, detail)

    def fence(self, end: End) -> None:
        """Put an end into error; Drained follows."""
        try:
            end.fence()
        except VerbsError as why:
            self.device_lost(end.nic, str(why))
        if end.nic.index in self.gone:
            # It may never give back what was posted. Without its queue pair nothing can reach memory, either.
            self.collect(end.nic)
            self._records.failed(work.flow for work in end.work if work.seq < 0)
            end.abandon()
        self.see_drained(end)

    def see_drained(self, end: End) -> None:
        """Whether all that was posted has come back."""
        if end.state is FENCING and end.is_empty:
            end.state = DRAINED
            self._backlog.under_way[self._wires[end.wire].out] -= end.under_way
            end.under_way = 0
            self.happened.append(Drained(end.wire))
