"""What each collective does with flat arrays in host memory. All ranks do the same, one after the other.

Small data goes through separate memory, rounded up to a power of two. So few schedules serve all sizes, and nobody
waits until a peer has taken the last byte; what is large goes where it is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from optcc.communicator.buffers import Flat, Scratch, fill, room_of, words_of
from optcc.communicator.prepared import SMALL, Prepared
from optcc.diagnose.late import late_ranks
from optcc.runtime.control.member import Member
from optcc.runtime.devices.host import Op, Reduction
from optcc.runtime.messages import Note
from optcc.runtime.native.library import NativeProgram

FIRST, SELDOM = 16, 256
"""Calls after which ranks tell each other: 16, 32, 64, 128, then every 256. It costs a message by way of the hub."""
LEAST_S = 0.01
"""Seconds from which a rank is late: processes of a busy machine get a processor within a few milliseconds."""


COPY = Reduction(Op.MAX)
"""Of what is not folded: any."""


class Punctuality:
    """Of one rank. `exchange` : all ranks' values, by rank, where all call it; `tell` : called with what is found."""

    def __init__(
        self, exchange: Callable[[list[float]], list[list[float]]], tell: Callable[[Sequence[Note]], None]
    ) -> None:
        self._exchange, self._tell = exchange, tell
        self._seconds: deque[float] = deque(maxlen=FIRST)
        self._calls = 0
        self._late: set[int] = set()

    def took(self, seconds: float) -> None:
        """A call in which every rank waits for all others took so long here. Within a turn, on all ranks alike."""
        self._seconds.append(seconds)
        self._calls += 1
        often = self._calls < SELDOM and self._calls & (self._calls - 1) == 0
        if self._calls < FIRST or not (often or self._calls % SELDOM == 0):
            return
        calls = zip(*self._exchange(list(self._seconds)), strict=True)
        late = late_ranks([dict(enumerate(call)) for call in calls], LEAST_S)
        self._tell([Note(time.monotonic(), "late", "", text=str(one)) for one in late if one.rank not in self._late])
        self._late = {one.rank for one in late}


class Collectives(Protocol):
    """Of one rank. `source` is read and `target` written; they are the same array where a call is in place.

    wrote : since whoever calls has last set it to False, a target has been written to
    """

    wrote: bool

    def all_reduce(self, source: Flat, target: Flat, reduction: Reduction, call: str = "all_reduce") -> None:
        """The reduction of all ranks' source. `call` : what ranks must agree to be calling."""

    def broadcast(self, buffer: Flat, root: int) -> None:
        """The root's buffer."""

    def all_gather(self, source: Flat, target: Flat) -> None:
        """All ranks' sources, by rank."""

    def reduce_scatter(self, source: Flat, target: Flat, reduction: Reduction) -> None:
        """The reduction of this rank's part of all ranks' sources."""

    def all_to_all(self, source: Flat, target: Flat) -> None:
        """Of each rank's source the part that is for this one, by rank."""


class Alone:
    """Of the only rank: a copy."""

    wrote = False

    def all_reduce(self, source: Flat, target: Flat, reduction: Reduction, call: str = "") -> None:
        """See Collectives."""
        fill(target, source)

    def broadcast(self, buffer: Flat, root: int) -> None:
        """See Collectives."""

    def all_gather(self, source: Flat, target: Flat) -> None:
        """See Collectives."""
        fill(target, source)

    def reduce_scatter(self, source: Flat, target: Flat, reduction: Reduction) -> None:
        """See Collectives."""
        fill(target, source)

    def all_to_all(self, source: Flat, target: Flat) -> None:
        """See Collectives."""
        fill(target, source)


class Together:
    """Of one rank among several, over the wires of `member`. `tell` : called with ranks that come late."""

    def __init__(self, member: Member, prepared: Prepared, tell: Callable[[Sequence[Note]], None]) -> None:
        self._member, self._prepared = member, prepared
        self._punctuality = Punctuality(member.exchange, tell)
        self._rank, self._world, self.wrote = member.rank, member.world, False
        self._scratch, self._padded = Scratch(), Scratch()

    def all_reduce(self, source: Flat, target: Flat, reduction: Reduction, call: str = "all_reduce") -> None:
        """See Collectives."""
        words, nbytes = words_of(call, source, reduction) if call != "barrier" else "barrier()", source.nbytes
        with self._member.turn(words):
            if nbytes <= SMALL:
                room = room_of(nbytes)
                own = self._scratch.array(room // source.itemsize, source.dtype)
                own[: source.size] = source
                self._run(self._prepared.call("all_reduce", room), own, reduction)
                target[:] = own[: source.size]
                return
            program = self._prepared.call("all_reduce", nbytes)
            self.wrote = True
            fill(target, source)
            self._prepared.took(nbytes, self._run(program, target, reduction))

    def _parts(self, source: Flat, step: int) -> Flat:
        """A small array's parts, `step` elements from one to the next."""
        if source.size == self._world * step:
            return source
        padded = self._padded.array(self._world * step, source.dtype)
        size = source.size // self._world
        padded.reshape(self._world, step)[:, :size] = source.reshape(self._world, size)
        return padded

    def _take_parts(self, target: Flat, padded: Flat, step: int) -> None:
        """The other way round: all of `target`."""
        if target.size == self._world * step:
            target[:] = padded
        else:
            target.reshape(self._world, -1)[:] = padded.reshape(self._world, step)[:, : target.size // self._world]

    def _run(
        self, program: NativeProgram, buffer: Flat, reduction: Reduction, *, parts: Any = None, at: int = 0
    ) -> float:
        """`Member.run` of a collective in which every rank waits for all others; seconds that it took here."""
        start = time.monotonic()
        mean = self._world if reduction.mean else 0
        self._member.run(program, buffer, reduction.fold, parts=parts, at=at, mean=mean)
        seconds = time.monotonic() - start
        self._punctuality.took(seconds)
        return seconds

    def broadcast(self, buffer: Flat, root: int) -> None:
        """See Collectives."""
        room = room_of(buffer.nbytes) if buffer.nbytes <= SMALL else 0
        words = words_of("broadcast", buffer, f"root {root}")
        with self._member.turn(words):
            own = buffer
            if room:
                own = self._scratch.array(room // buffer.itemsize, buffer.dtype)
                own[: buffer.size] = buffer
            program = self._prepared.call("broadcast", room or buffer.nbytes, root)
            self.wrote = not room and self._rank != root
            self._member.run(program, own, Op.MAX)
            if room and self._rank != root:
                buffer[:] = own[: buffer.size]

    def all_gather(self, source: Flat, target: Flat) -> None:
        """See Collectives."""
        size = source.size
        room = room_of(source.nbytes) if source.nbytes <= SMALL else 0
        words = words_of("all_gather", source)
        with self._member.turn(words):
            program = self._prepared.call("all_gather", room or source.nbytes)
            step = room // source.itemsize or size
            own = self._scratch.array(step * self._world, source.dtype) if room else target
            self.wrote = not room
            if room:
                own[self._rank * step : self._rank * step + size] = source
            else:
                fill(own[self._rank * step :][:size], source)
            self._run(program, own, COPY)
            if room:
                self._take_parts(target, own, step)

    def reduce_scatter(self, source: Flat, target: Flat, reduction: Reduction) -> None:
        """See Collectives."""
        size = target.size
        room = room_of(target.nbytes) if target.nbytes <= SMALL else 0
        words = words_of("reduce_scatter", source, reduction)
        with self._member.turn(words):
            program = self._prepared.call("reduce_scatter", room or target.nbytes)
            step, parts, own = size, source, target
            if room:
                step = room // source.itemsize
                parts, own = self._parts(source, step), self._scratch.array(step, source.dtype)
            self.wrote = not room
            own[:size] = source[self._rank * size :][:size]
            at = self._rank * step * source.itemsize  # no other part of the plan's buffer is touched
            self._run(program, own, reduction, parts=parts, at=at)
            if room:
                target[:] = own[:size]

    def all_to_all(self, source: Flat, target: Flat) -> None:
        """See Collectives. It goes by the schedule of all_gather, of which each rank sends every other one its part."""
        size, part = source.size // self._world, source.nbytes // self._world
        room = room_of(part) if part <= SMALL else 0
        words = words_of("all_to_all", source)
        with self._member.turn(words):
            program = self._prepared.call("all_gather", room or part)
            step = room // source.itemsize or size
            parts, own = source, target
            if room:
                parts, own = self._parts(source, step), self._scratch.array(self._world * step, source.dtype)
            self.wrote = not room
            mine = slice(self._rank * step, (self._rank + 1) * step)
            own[mine] = parts[mine]
            self._run(program, own, COPY, parts=parts)
            if room:
                self._take_parts(target, own, step)
