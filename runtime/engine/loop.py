"""The loop of one rank: what has landed is folded, what has become ready is posted.

It follows the rules in `optcc.schedule.columns` and does no I/O; time comes from the clock it is given.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from optcc.runtime.devices.host import Op
from optcc.runtime.devices.memory import HOST, Memory
from optcc.runtime.engine.priority import ReadyQueue
from optcc.runtime.engine.program import Move, Program
from optcc.runtime.engine.transport import Attendant, Transport
from optcc.runtime.errors import TransportError


class Engine:
    """One run of `program` on `buffer`, shape (elements,), in `memory`, in place.

    parts : what is sent is read from here, not from the buffer: to rank p the p-th part as long as the transfer
    linger : it is finished only when all that was sent has landed, so that the buffer may be written again; else when
        it has been given to wires, for buffers that nobody writes again
    """

    def __init__(
        self,
        program: Program,
        buffer: Any,
        op: Op,
        transport: Transport,
        clock: Callable[[], float],
        memory: Memory = HOST,
        linger: bool = True,
        parts: Any = None,
    ) -> None:
        self.lingers = linger
        self._done: Callable[[], bool] = transport.drain if linger else transport.given
        self._program, self._buffer, self._op = program, buffer, op
        self._transport, self._clock, self._memory = transport, clock, memory
        self._bytes, self._dtype, self._itemsize = memory.bytes_of(buffer), buffer.dtype, buffer.itemsize
        self._parts = None if parts is None else memory.bytes_of(parts)
        # Pieces of reduces that came before their turn: (where they belong, the piece).
        self._early: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
        self._begin_tables()

    def _begin_tables(self) -> None:
        program = self._program
        self._waits = dict(program.waits)
        self._awaits = dict(program.awaits)
        self._expected = set(program.receives)
        self._ready: dict[int, ReadyQueue] = defaultdict(ReadyQueue)  # by route
        self._since: dict[int, float] = {}  # row -> the latest landing among what it has waited for
        self._unsent, self._unfinished = len(program.sends), len(program.receives)

    @property
    def finished(self) -> bool:
        """Everything received and folded, everything sent."""
        return self._unfinished == 0 and self._unsent == 0 and self._done()

    @property
    def progress(self) -> int:
        """A number that grows while anything moves."""
        program = self._program
        return len(program.sends) - self._unsent + len(program.receives) - self._unfinished

    @property
    def awaited(self) -> int | None:
        """The rank that the first transfer still to come comes from; else one that something goes to."""
        moves = self._program.receives if self._expected else self._program.sends
        return moves[min(self._expected or moves)].peer if moves else None

    def landings(self) -> dict[int, float]:
        """When each transfer that this rank received has landed and been folded."""
        return {row: self._since[row] for row in self._program.receives}

    def waiting_for(self) -> str:
        """For people: what is missing."""
        text = f"{self._unfinished} transfers to receive, {self._unsent} to send"
        if self._expected:
            row = min(self._expected)
            text += f", first transfer {row} from rank {self._program.receives[row].peer}"
        return text

    def begin(self) -> None:
        """The run starts now: what waits for nothing is ready since now.

        What waited for something that has landed already, from a peer that started a moment earlier, is so since then.
        """
        now = self._clock()
        for row, count in self._program.waits.items():
            if count == 0:
                self._now_ready(row, now)

    def run(self, attendant: Attendant | None = None) -> None:
        """Post what may go, wait, take in what has landed, until all is done; raises what the transport raises."""
        self.begin()
        total = len(self._program.sends) + len(self._program.receives)
        while True:
            wake = self.post_ready()
            if self.finished:  # asked before every wait: the last thing a rank does may be to post
                return
            if attendant:
                # Never all of it: when the last transfer is done, there is nothing left to hit.
                attendant.look(min(self.progress, total - 1) / total)
                wake = min(wake, attendant.wake())
            self.serve(wake)

    def serve(self, until: float) -> None:
        """One wait, and what has landed by then. Also before the start, for peers that start a moment earlier."""
        for row, at in self._transport.poll(until, self.take):
            self.landed(row, at)

    def post_ready(self) -> float:
        """Post, in their order, all ready transfers whose ports are free; returns when to look again."""
        now = self._clock()
        while True:
            wake, first = math.inf, None
            for route, queue in self._ready.items():
                if queue:
                    free = self._transport.free_at(route, now)
                    if free <= now:
                        candidate = (*queue.first(free), route)
                        if first is None or candidate < first:
                            first = candidate
                    elif free < wake:
                        wake = free
            if first is None:
                return wake
            _, row, route = first
            self._ready[route].pop()
            move = self._program.sends[row]
            self._transport.post(move, self._payload(move), self._since[row])
            self._unsent -= 1

    def _payload(self, move: Move) -> Any:
        if self._parts is None:
            return self._bytes[move.offset : move.offset + move.length]
        return self._parts[move.peer * move.length : (move.peer + 1) * move.length]

    def take(self, row: int, offset: int, data: Any) -> None:
        """A piece of transfer `row` is here: copy it, or fold it, or keep it until its turn to be folded."""
        if row not in self._expected:
            raise TransportError(f"rank {self._program.rank} got transfer {row}, which it does not expect (again)")
        own, piece = self._own(offset, data)
        if not self._program.receives[row].reduce:
            self._memory.copy(own, piece)
        elif self._awaits[row] == 1:  # every fold before it is done, only its own landing is missing
            self._memory.fold(self._op, own, piece)
        else:
            self.keep(row, offset, data)

    def _own(self, offset: int, data: Any) -> tuple[Any, Any]:
        """The elements of the buffer that a piece is for, and the piece as elements."""
        size = self._itemsize
        start = offset // size
        return self._buffer[start : start + len(data) // size], self._memory.elements(data, self._dtype)

    def keep(self, row: int, offset: int, data: Any) -> None:
        """A copy of a piece of transfer `row`, until it is its turn to be folded."""
        own, piece = self._own(offset, data)
        self._early[row].append((own, self._memory.keep(piece)))

    def landed(self, row: int, at: float) -> None:
        """Transfer `row` has landed: finish it and whatever waited for it, or leave it until its turn to be folded."""
        self._expected.remove(row)
        turns = [(row, at)]
        while turns:
            row, at = turns.pop()
            at = self._since[row] = max(at, self._since.get(row, at))
            self._awaits[row] -= 1
            if self._awaits[row] == 0:
                for own, piece in self._early.pop(row, ()):
                    self._memory.fold(self._op, own, piece)
                self._release(row, at)
                turns += [(after, at) for after in self._program.folds_after.get(row, ())]
                self._unfinished -= 1

    def _release(self, row: int, at: float) -> None:
        """Received `row` is finished: what waits for it has one thing less to wait for."""
        for sent in self._program.releases.get(row, ()):
            self._since[sent] = max(at, self._since.get(sent, at))
            self._waits[sent] -= 1
            if self._waits[sent] == 0:
                self._now_ready(sent, self._since[sent])

    def _now_ready(self, row: int, since: float) -> None:
        self._since[row] = since
        self._ready[self._program.sends[row].route].push(row, since)
