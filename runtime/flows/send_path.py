"""What goes out: transfers are cut into chunks, chunks numbered and written, kept until they are safe, dealt anew."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from optcc.runtime.engine.program import Move
from optcc.runtime.flows.ends import CHUNK_HEADER, CHUNK_MARK, Ends, Out, Piece
from optcc.runtime.flows.shares import Shares
from optcc.runtime.protocol import events
from optcc.runtime.protocol.table import Commands
from optcc.runtime.wires.contract import Abilities, Completed, Credited, Wires

_SEND = events.Send()


class SendPath:
    """Those of one rank.

    Parameters
    ----------
    do : carry out what a flow's machine commands
    now : the time of the last look: looking takes time, too
    busy : outgoing flows with a queue
    """

    def __init__(
        self,
        ends: Ends,
        wires: Wires,
        shares: Shares,
        do: Callable[[Out, Commands], None],
        clock: Callable[[], float],
    ) -> None:
        self._outs, self._layout, self._wires, self._shares = ends.outs, ends.layout, wires, shares
        self._do, self._clock, self.now = do, clock, clock()
        self.busy: set[int] = set()
        self._operation = 0
        # Where acknowledgements are told late, what has landed can be seen, or be told by the next look.
        able = Abilities.of(wires)
        self._landed, self._hasten = able.landed, able.hasten
        self._posted: Counter[int] = Counter()  # wire -> bytes in this operation

    def begin(self, operation: int) -> None:
        """From now on everything belongs to this operation."""
        self._operation = operation
        self._posted.clear()

    def free_at(self, route: int, now: float) -> float:
        """As soon as one NIC of the route is free: waiting for all of them would leave that one idle.

        Nothing may wait in the route's queues then, so that which transfer goes next is decided late.
        """
        first, self.now = math.inf, now
        for flow in self._shares.live(route):
            out = self._outs[flow]
            if out.queue:
                return math.inf
            first = min(first, self._wires.free_at(out.sender.wire, now))
        return first

    def post(self, move: Move, payload: memoryview, ready: float) -> None:
        """Cut into chunks and begin to send."""
        self._shares.watch(move.route, self.now)
        for flow, start, stop in self._shares.cut(move):
            out, most = self._outs[flow], self._layout.flows[flow].slot_bytes
            for at in range(start, stop, most):
                part = payload[at : min(at + most, stop)]
                out.queue.append(Piece(ready, self._operation, move.row, move.offset + at, part))
            if out.queue:
                self.busy.add(flow)
                self.pump(out)

    def look(self) -> None:
        """See which flows are slow, if it is time to; what has no number yet goes by their rates."""
        monitor = self._shares.monitor
        if self.now < monitor.look_at:
            return
        monitor.look(self.now, self._refresh)
        for peer in {self._outs[flow].peer for flow in self.busy} if monitor.factors else ():
            among = self._shares.at_home(peer)
            if any(out.number in monitor.factors for out in among):
                pieces = sorted((piece for out in among for piece in out.queue), key=lambda piece: piece.row)
                for out in among:
                    out.queue.clear()
                self._deal(pieces, among)

    def _refresh(self, out: Out) -> None:
        if self._landed:
            wire = out.sender.wire
            landed = self._landed(wire, out.number)
            if landed > out.sender.acked:
                self.completed(Completed(wire, out.number, landed - 1))
        elif self._hasten:
            self._hasten(out.sender.wire, out.number, out.sender.posted - 1)

    def _deal(self, pieces: Iterable[Piece], among: Sequence[Out]) -> None:
        self._shares.deal(pieces, among)
        for out in among:
            (self.busy.add if out.queue else self.busy.discard)(out.number)

    def pump_all(self) -> None:
        """Send what can go, first rows first."""
        for flow in sorted(self.busy, key=lambda flow: self._outs[flow].queue[0].row):
            self.pump(self._outs[flow])

    def sent(self) -> dict[int, int]:
        """Bytes of payload that left by each NIC in this operation, replays counted: NIC -> bytes."""
        sent: Counter[int] = Counter()
        for wire, nbytes in self._posted.items():
            sent[self._layout.wires[wire].out] += nbytes
        return dict(sent)

    # Every chunk pays for these three, and with a cold cache, since a payload has just gone through it. So they ask the
    # machines without words (`protocol.steady`), as long as these take it.

    def pump(self, out: Out) -> None:
        """Number and send queued chunks while the window and the NIC take them."""
        now, sender, queue, kept = self.now, out.sender, out.queue, out.kept
        free_at, write, number = self._wires.free_at, self._wires.write, out.number
        wire, epoch, seq, total = sender.wire, sender.epoch, sender.posted, 0
        end = seq + min(sender.room(), len(queue))
        while seq < end and free_at(wire, now) < math.inf:
            ready, operation, row, offset, payload = piece = queue.popleft()
            kept.append(piece)
            nbytes = len(payload)
            total += nbytes
            header = CHUNK_HEADER.pack(CHUNK_MARK, epoch, operation, nbytes, seq, row, offset)
            sender.posted = after = seq + 1
            write(wire, number, seq, header, payload, ready)
            seq = after
        if total:
            out.numbered += total
            self._posted[wire] += total
        while queue and sender.may_send and free_at(sender.wire, now) < math.inf:
            piece = queue.popleft()
            kept.append(piece)
            out.numbered += len(piece.payload)
            self._do(out, sender.handle(_SEND))
        if not queue:
            self.busy.discard(out.number)

    def completed(self, done: Completed) -> None:
        """Chunks are safe at the far end."""
        wire, number, seq = done
        out = self._outs[number]
        if out.sender.acknowledged(wire, seq):
            out.release(seq + 1)
        else:
            self._do(out, out.sender.handle(events.Acked(wire, seq)))

    def credited(self, credit: Credited) -> None:
        """Slots are free at the far end."""
        wire, number, folded = credit
        out = self._outs[number]
        if not out.sender.credited(folded):
            self._do(out, out.sender.handle(events.Credit(wire, folded)))

    def write(self, out: Out, command: events.Write) -> None:
        """Write a chunk that is kept."""
        wire, epoch, seq, again = command
        ready, operation, row, offset, payload = out.kept[seq - out.base]
        nbytes = len(payload)
        self._posted[wire] += nbytes
        header = CHUNK_HEADER.pack(CHUNK_MARK, epoch, operation, nbytes, seq, row, offset)
        self._wires.write(wire, out.number, seq, header, payload, self._clock() if again else ready)

    def moved(self, out: Out) -> None:
        """What had no number yet goes by the flows of the route that are still at home, if there are any."""
        siblings = [other for other in self._shares.at_home(out.peer) if other is not out]
        if siblings:
            self._deal(out.queue, siblings)
            out.queue.clear()
            self.busy.discard(out.number)
