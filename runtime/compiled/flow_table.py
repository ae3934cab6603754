"""One rank's flows as a table of compiled code: filled from the protocol's machines, and written back into them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from ctypes import addressof, c_char
from typing import TYPE_CHECKING, Any

import numpy as np

from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.tables import FLOW_STATE, Flows, FlowState
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.flows.ends import Out, Piece
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.contract import HEADER_BYTES
from optcc.runtime.wires.cuda import CudaWires

if TYPE_CHECKING:
    from optcc.runtime.compiled.engine import CompiledEngine

Questions = dict[tuple[int, int], int]

_LEFT_OUT = FlowState()
_NOTHING_QUEUED = (-1, 0, 0)


class FlowTable(ABC):
    """Over any wires; `LocalFlows` and `verbs_tables.VerbsFlows` know where slots are and what else is said of chunks.

    `tables` : the arrays; of flows that are not this rank's nothing.
    """

    def __init__(self, flows: FlowTransport, wires: Any) -> None:
        self._flows, self._wires = flows, wires
        self._outs, self._ins = flows._outs, flows._ins
        self._specs = flows._ends.layout.flows
        records, kept, parked = np.zeros(len(self._specs), t.FLOW), 0, 0
        self._kept_at: dict[int, int] = {}  # outgoing flow -> where its part of `kept` begins
        self._keeps: dict[int, int] = {}  # and how much that is
        for number in (*self._outs, *self._ins):
            spec, record = self._specs[number], records[number]
            if not self._place(number, record):
                continue
            record["window"], record["most"] = spec.window, spec.slot_bytes
            if number in self._outs:
                record["kept_at"] = self._kept_at[number] = kept
                record["keeps"] = self._keeps[number] = self._kept(number)
                kept += self._keeps[number]
            else:
                record["kept_at"], parked = parked, parked + spec.window
                record["every"] = self._ins[number].receiver.credit_every
        mine = np.array(sorted(self._outs), np.int64)
        self.tables = Flows(records, np.zeros(kept, t.KEPT), np.zeros(parked, t.PARKED), mine)
        self._bytes: memoryview = records.view(np.uint8).data if len(records) else memoryview(bytearray())
        self._posted: dict[int, int] = {}  # by flow: what its machine had posted when the table was filled

    def _put(self, number: int, state: FlowState) -> None:
        FLOW_STATE.pack_into(self._bytes, number * t.FLOW.itemsize, *state)

    def _state(self, number: int) -> FlowState:
        return FlowState._make(FLOW_STATE.unpack_from(self._bytes, number * t.FLOW.itemsize))

    @abstractmethod
    def _place(self, number: int, record: Any) -> bool:
        """Addresses that belong to a flow, into its record. False: it cannot be used."""

    def _kept(self, number: int) -> int:
        """The most chunks of an outgoing flow that are posted and not known to have landed."""
        return self._specs[number].window  # a credit tells it, too

    @abstractmethod
    def _sends(self, wire: int, number: int) -> bool:
        """Whether an outgoing wire works, and nothing waits on it."""

    @abstractmethod
    def _takes(self, wire: int) -> bool:
        """Whether an incoming wire works."""

    def _said(self) -> tuple[Questions, Questions]:
        """Of (wire, flow), the chunk whose landing the far sender wants to be told; and this rank's."""
        return {}, {}

    def _say(self, calls: Questions, asked: Questions) -> None:  # noqa: B027 - most wires have nothing to say
        """What is left of that."""

    def _landed(self, wire: int, number: int, acked: int) -> int:
        """How many chunks of an outgoing flow have landed, `acked` or more."""
        return acked

    def _told(self, wire: int, number: int, acked: int) -> None:  # noqa: B027 - nor to remember
        """So many have, as the flow's machine knows from now on."""

    def _number_at(self, wire: int, number: int) -> int:
        """The flow's place among those of a wire."""
        return 0

    def fill(self, engine: CompiledEngine) -> bool:
        """From the machines. False where an outgoing flow is not in its steady state and has something to do."""
        busy = 0
        calls, asked = self._said()
        questions = len(asked)
        for number, out in self._outs.items():
            sender = out.sender
            wire = sender.wire
            if not sender._is_steady or not self._sends(wire, number):
                if out.queue or sender.outstanding:
                    return False
                self._put(number, _LEFT_OUT)
                continue
            queued = _NOTHING_QUEUED
            if out.queue:
                if not self._is_one_stretch(out, engine):
                    return False
                queued, busy = self._queued(out, engine), busy + 1
            self._posted[number] = posted = sender.posted
            state = (1, 0, wire, sender.epoch, posted, sender.acked, sender.folded, 0, 0)
            place = self._number_at(wire, number)
            self._put(number, FlowState(*state, *queued, asked=asked.pop((wire, number), -1), place=place))
        for number, into in self._ins.items():
            receiver = into.receiver
            wire, landed = receiver.wire, receiver.landed
            if not receiver._is_steady or not self._takes(wire) or landed != receiver.folded:
                self._put(number, _LEFT_OUT)
                continue
            state = (0, 1, wire, receiver.epoch, 0, 0, 0, landed, receiver._returned)
            place = self._number_at(wire, number)
            self._put(number, FlowState(*state, call=calls.pop((wire, number), -1), place=place))
        engine.numbers[t.BUSY], engine.numbers[t.ASKED] = busy, questions
        return not calls and not asked

    def _is_one_stretch(self, out: Out, engine: CompiledEngine) -> bool:
        """Whether what is queued is a stretch of one transfer of this run, in chunks as large as they get."""
        first, last, most = out.queue[0], out.queue[-1], self._specs[out.number].slot_bytes
        if first.row not in engine.tables.place or first.operation != self._flows._send_path._operation:
            return False
        at = first.offset
        for piece in out.queue:
            if piece.row != first.row or piece.offset != at or (piece is not last and len(piece.payload) != most):
                return False
            at += len(piece.payload)
        return True

    def _queued(self, out: Out, engine: CompiledEngine) -> tuple[int, int, int]:
        """Its place, and where in the transfer it starts and stops."""
        first, last = out.queue[0], out.queue[-1]
        place = engine.tables.place[first.row]
        begin = engine.tables.moves[place].offset
        self.tables.flows["ready"][out.number] = first.ready
        return place, first.offset - begin, last.offset + len(last.payload) - begin

    def write_back(self, engine: CompiledEngine) -> None:
        """Into the machines, as if they had seen every chunk."""
        calls: Questions = {}
        asked: Questions = {}
        parked = 0
        for number, out in self._outs.items():
            state = self._state(number)
            if state.out:
                self._write_back_out(engine, out, state)
                if state.asked >= 0:
                    asked[state.wire, number] = state.asked
        for number, into in self._ins.items():
            state, receiver = self._state(number), into.receiver
            if state.into:
                receiver.landed = receiver.folded = state.landed
                receiver._returned = state.returned
                parked += state.parked
                if state.call >= 0:
                    calls[state.wire, number] = state.call
        self._say(calls, asked)
        if parked:
            self._take_parked(engine)

    def _take_parked(self, engine: CompiledEngine) -> None:
        """The engine gets copies of the chunks that wait for their turn, so that none stays in its slot."""
        rows, parked = engine.tables.arrays.rows, self.tables.parked
        for place in np.flatnonzero(rows["parked"]).tolist():
            number, rows["parked"][place] = int(rows["parked"][place]) - 1, 0
            while number >= 0:
                flow, seq, offset, nbytes, following = parked[number].item()
                chunk = self._payload(flow, seq, nbytes)
                engine.keep(int(rows["row"][place]), offset, chunk)
                number = following - 1

    def _payload(self, flow: int, seq: int, nbytes: int) -> Any:
        if isinstance(self._wires, CudaWires):
            return self._wires.payload(flow, seq, nbytes)
        return self._wires.slot(flow, seq)[HEADER_BYTES : HEADER_BYTES + nbytes]

    def give_back(self) -> None:
        """Credits that compiled code left out, for chunks that were parked or for a ring that was full."""
        for number, into in self._ins.items():
            receiver = into.receiver
            if receiver._is_steady and receiver.folded - receiver._returned >= receiver.credit_every:
                receiver._returned = receiver.folded
                self._wires.credit(receiver.wire, number, receiver.folded)

    def _write_back_out(self, engine: CompiledEngine, out: Out, state: FlowState) -> None:
        send_path, sender, number, acked = self._flows._send_path, out.sender, out.number, state.acked
        if acked < state.posted:  # what has landed by now need not be kept
            acked = min(self._landed(state.wire, number, acked), state.posted)
        sender.posted, sender.acked, sender.folded = state.posted, acked, state.folded
        if state.numbered:
            out.numbered += state.numbered
            send_path._posted[sender.wire] += state.numbered
        if acked > out.base:
            for _ in range(min(acked - out.base, len(out.kept))):
                out.kept.popleft()
            out.base = acked
            self._told(sender.wire, number, acked)
        first = max(acked, self._posted[number])
        if first < state.posted:
            at, keeps, kept = self._kept_at[number], self._keeps[number], self.tables.kept
            for seq in range(first, state.posted):
                out.kept.append(self._piece(engine, *kept[at + seq % keeps].item()))
        out.queue.clear()
        if state.queued < 0:
            send_path.busy.discard(number)
            return
        most, ready = self._specs[number].slot_bytes, float(self.tables.flows["ready"][number])
        for start in range(state.start, state.stop, most):
            out.queue.append(self._piece(engine, state.queued, start, min(most, state.stop - start), ready))
        send_path.busy.add(number)

    def _piece(self, engine: CompiledEngine, place: int, start: int, nbytes: int, ready: float) -> Piece:
        move = engine.tables.moves[place]
        payload: Any = engine._payload(move)[start : start + nbytes]
        return Piece(ready, self._flows._send_path._operation, move.row, move.offset + start, payload)


def address_of(memory: Any) -> int:
    """Of the first byte of a memoryview or a DeviceArray; 0 of an empty one."""
    if not len(memory):
        return 0
    if isinstance(memory, DeviceArray):
        return memory.address
    if memory.readonly:
        return int(np.frombuffer(memory, np.uint8).ctypes.data)
    return addressof(c_char.from_buffer(memory))  # a tenth of the time
