"""What comes in: chunks are taken out of their slots, and transfers are complete when all of theirs have been.

A peer may have begun the next operation before this rank has. Its chunks are acknowledged and stay in their slots,
whose window bounds them, until the operation begins here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

from optcc.runtime.engine.program import Move
from optcc.runtime.engine.transport import Landing, Take
from optcc.runtime.errors import CallsDifferError, TransportError
from optcc.runtime.flows.ends import CHUNK_HEADER, CHUNK_MARK, OPERATIONS, In
from optcc.runtime.protocol import events
from optcc.runtime.protocol.table import Commands
from optcc.runtime.wires.contract import HEADER_BYTES, Abilities, Arrived, Happening, Wires

_AT = itemgetter(Landing._fields.index("at"))


def nothing_runs(row: int, offset: int, data: memoryview) -> None:
    """Take nothing: for polls between operations."""
    raise TransportError(f"transfer {row} arrived while nothing runs")


class ReceivePath:
    """Those of one rank.

    Parameters
    ----------
    do : carry out what a flow's machine commands
    take : where pieces of transfers go
    """

    def __init__(self, ins: Mapping[int, In], wires: Wires, do: Callable[[In, Commands], None]) -> None:
        self._ins, self._wires, self._do = ins, wires, do
        # Where payloads land that are not in host memory with their headers.
        self._elsewhere = Abilities.of(wires).payload
        self._operation = 0
        self._early: deque[tuple[int, int, float]] = deque()  # flow, seq, since when: of later operations
        self.due = False  # some of them may belong to the operation that has begun
        self._missing: dict[int, int] = {}  # row -> bytes still to come
        self._landings: list[Landing] = []
        self.take: Take = nothing_runs

    def begin(self, operation: int, receives: Mapping[int, Move]) -> None:
        """From now on everything belongs to this operation, and these transfers will come, by row."""
        self._operation, self.due = operation, bool(self._early)
        self._missing = {row: move.length for row, move in receives.items()}

    def take_early(self) -> None:
        """What had come of this operation before it began; what is of a later one still stays."""
        self.due = False
        for _ in range(len(self._early)):
            number, seq, at = self._early.popleft()
            _, _, operation, nbytes, _, row, offset = CHUNK_HEADER.unpack_from(self._wires.slot(number, seq))
            if operation != self._operation:
                self._demand_later(operation, number)
                self._early.append((number, seq, at))
            else:
                self._hand_on(number, seq, nbytes, row, offset, at)
                self._do(self._ins[number], self._ins[number].receiver.handle(events.Folded(seq)))

    def _hand_on(self, number: int, seq: int, nbytes: int, row: int, offset: int, at: float) -> None:
        """A chunk to the engine."""
        if self._elsewhere:
            self.take(row, offset, self._elsewhere(number, seq, nbytes))
        else:
            self.take(row, offset, self._wires.slot(number, seq)[HEADER_BYTES : HEADER_BYTES + nbytes])
        missing = self._missing[row] = self._missing[row] - nbytes
        if missing == 0:
            self._landings.append(Landing(row, at))

    def _demand_later(self, operation: int, number: int) -> None:
        """Raises where a chunk's operation is over here, or is not the one that runs here by the same number."""
        ahead = (operation - self._operation) % OPERATIONS
        if ahead == 0 or ahead > OPERATIONS // 2:  # all that was awaited of an operation before has come
            raise CallsDifferError(self._ins[number].peer, -ahead % OPERATIONS)

    def landed(self) -> list[Landing]:
        """Transfers that have become complete since this was asked, in order of time."""
        landings, self._landings = self._landings, []
        if len(landings) > 1:
            landings.sort(key=_AT)
        return landings

    def hear(self, happenings: Iterable[Happening], on: Mapping[type, Callable[[Any], None]]) -> None:
        """In their order: a chunk goes to the engine, and its slot back to the sender, unless it is a ghost.

        `on` : who is told of what is no chunk, by its type

        Every chunk pays for this, and with a cold cache, since a payload has just gone through it. So the machine is
        asked without words (`protocol.steady`), as long as it takes that.
        """
        ins, slot_of, take, elsewhere, rows = self._ins, self._wires.slot, self.take, self._elsewhere, self._missing
        for happening in happenings:
            if type(happening) is not Arrived:
                on[type(happening)](happening)
                continue
            wire, number, seq, at = happening
            slot = slot_of(number, seq)
            mark, epoch, operation, nbytes, there, row, offset = CHUNK_HEADER.unpack_from(slot)
            if mark != CHUNK_MARK or there != seq:
                raise TransportError(f"flow {number}: the slot of chunk {seq} holds {there} (canary {mark:#x})")
            receiver = ins[number].receiver
            if operation != self._operation:
                if receiver.handle(events.Landed(wire, epoch, seq)):
                    self._demand_later(operation, number)
                    self._early.append((number, seq, at))
                continue
            folded = receiver.passes(wire, epoch, seq)
            if folded < 0 and not receiver.handle(events.Landed(wire, epoch, seq)):
                continue
            if elsewhere:
                take(row, offset, elsewhere(number, seq, nbytes))
            else:
                take(row, offset, slot[HEADER_BYTES : HEADER_BYTES + nbytes])
            missing = rows[row] = rows[row] - nbytes
            if missing == 0:
                self._landings.append(Landing(row, at))
            if folded > 0:
                self._wires.credit(receiver.wire, number, folded)
            elif folded < 0:
                self._do(ins[number], receiver.handle(events.Folded(seq)))
