"""What each collective does, and how with flat arrays in host memory. All ranks do the same, one after the other.

Small data goes through separate memory, rounded up to a power of two. So few schedules serve all sizes, and nobody
waits until a peer has taken the last byte; what is large goes where it is. Small calls are kept as they were made: what
Python does again for each takes longer than the call itself.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from optcc.communicator.buffers import Flat, Scratch, fill, room_of, words_of
from optcc.communicator.prepared import SIZES, SMALL, Prepared
from optcc.diagnose.late import late_ranks
from optcc.runtime.control.member import Member, Turn
from optcc.runtime.devices.host import Array, Op, Reduction
from optcc.runtime.messages import Note
from optcc.runtime.native.library import NativeCall

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


class CallKind(NamedTuple):
    """Of collectives.

    schedule : of which kind of `Prepared.call`; parts_in : the source has a part for each rank; parts_out : the target
    has one of each rank
    """

    schedule: str
    parts_in: bool
    parts_out: bool


ALL_REDUCE = CallKind("all_reduce", parts_in=False, parts_out=False)
BROADCAST = CallKind("broadcast", parts_in=False, parts_out=False)
ALL_GATHER = CallKind("all_gather", parts_in=False, parts_out=True)
REDUCE_SCATTER = CallKind("reduce_scatter", parts_in=True, parts_out=False)
ALL_TO_ALL = CallKind("all_gather", parts_in=True, parts_out=True)
"""By the schedule of all_gather, of which each rank sends every other one its part."""


class Collectives(ABC):
    """Of one rank. `source` is read and `target` written, flat; they are the same array where a call is in place.

    wrote : since whoever calls has last set it to False, a target has been written to
    """

    wrote = False

    def all_reduce(self, source: Any, target: Any, reduction: Reduction, call: str = "all_reduce") -> None:
        """The reduction of all ranks' source. `call` : what ranks must agree to be calling."""
        words = words_of(call, source, reduction) if call != "barrier" else "barrier()"
        self._do(ALL_REDUCE, words, source, target, reduction)

    def broadcast(self, buffer: Any, root: int) -> None:
        """The root's buffer."""
        self._do(BROADCAST, words_of("broadcast", buffer, f"root {root}"), buffer, buffer, COPY, root)

    def all_gather(self, source: Any, target: Any) -> None:
        """All ranks' sources, by rank."""
        self._do(ALL_GATHER, words_of("all_gather", source), source, target, COPY)

    def reduce_scatter(self, source: Any, target: Any, reduction: Reduction) -> None:
        """The reduction of this rank's part of all ranks' sources."""
        self._do(REDUCE_SCATTER, words_of("reduce_scatter", source, reduction), source, target, reduction)

    def all_to_all(self, source: Any, target: Any) -> None:
        """Of each rank's source the part that is for this one, by rank."""
        self._do(ALL_TO_ALL, words_of("all_to_all", source), source, target, COPY)

    @abstractmethod
    def _do(
        self, kind: CallKind, words: str, source: Any, target: Any, reduction: Reduction, root: int | None = None
    ) -> None:
        """A call of this kind; `words` : as ranks compare it; `root` : None where every rank waits for all others."""


class Alone(Collectives):
    """Of the only rank: a copy."""

    def _do(
        self, kind: CallKind, words: str, source: Flat, target: Flat, reduction: Reduction, root: int | None = None
    ) -> None:
        fill(target, source)


@dataclass(slots=True)
class HeldCall:
    """A call on arrays of one type and length: of small ones kept, for they come again and again.

    room : bytes of a part of the memory that the schedule runs on; own : that memory, the target itself where that is
    large; given : where in it this rank's own elements go, `mine` of the source; None: nowhere
    padded, parts : memory that the source's parts go to, and where, shape (ranks, elements); None: there are none, or
    the source is read as it is; found : where the result is, like `parts` or flat; None: in the target
    made : the call over the wires that there are, by `Prepared.age` when it was made
    """

    turn: Turn
    room: int
    own: Flat
    given: Flat | None
    mine: slice
    padded: Flat | None
    parts: Array | None
    found: Array | None
    made: NativeCall | None = None
    age: int = 0


class Together(Collectives):
    """Of one rank among several, over the wires of `member`. `tell` : called with ranks that come late."""

    def __init__(self, member: Member, prepared: Prepared, tell: Callable[[Sequence[Note]], None]) -> None:
        self._member, self._prepared = member, prepared
        self._punctuality = Punctuality(member.exchange, tell)
        self._rank, self._world = member.rank, member.world
        self._scratch, self._padded = Scratch(), Scratch()
        self._held: dict[str, HeldCall] = {}  # by words, SIZES at most

    def _do(
        self, kind: CallKind, words: str, source: Flat, target: Flat, reduction: Reduction, root: int | None = None
    ) -> None:
        call = self._held.get(words) or self._hold(kind, words, source, target, root)
        large = call.own is target
        with call.turn:
            if call.age != self._prepared.age or call.made is None:
                self._make(call, kind, reduction, root or 0)
            made = call.made
            assert made
            self.wrote = large and root != self._rank
            if call.given is not None:
                if large:
                    fill(call.given, source[call.mine])
                else:
                    call.given[:] = source[call.mine]
            if call.parts is not None:
                call.parts[:] = source.reshape(call.parts.shape)
            elif kind.parts_in:
                made.read(source)
            start = time.monotonic()
            self._member.run(made)
            seconds = time.monotonic() - start
            if root is None:
                self._punctuality.took(seconds)
            if large and kind is ALL_REDUCE:
                self._prepared.took(source.nbytes, seconds)
            if call.found is not None:
                (target.reshape(call.found.shape) if kind.parts_out else target)[:] = call.found

    def _hold(self, kind: CallKind, words: str, source: Flat, target: Flat, root: int | None) -> HeldCall:
        """One that is not made yet."""
        ranks, rank, dtype = self._world, self._rank, source.dtype
        size = source.size // ranks if kind.parts_in else source.size
        nbytes = size * dtype.itemsize
        small = nbytes <= SMALL
        room = room_of(nbytes) if small else nbytes
        step = room // dtype.itemsize
        own, padded, parts, found = target, None, None, None
        if small:
            own = self._scratch.array(step * ranks if kind.parts_out else step, dtype)
            found = own.reshape(ranks, step)[:, :size] if kind.parts_out else own[:size]
            if kind.parts_in and step != size:
                padded = self._padded.array(step * ranks, dtype)
                parts = padded.reshape(ranks, step)[:, :size]
        given = own[rank * step if kind.parts_out else 0 :][:size]
        call = HeldCall(
            self._member.turn(words),
            room,
            own,
            given if root in (None, rank) else None,
            slice(rank * size, (rank + 1) * size) if kind.parts_in else slice(None),
            padded,
            parts,
            None if root == rank else found,
        )
        if small:
            if len(self._held) >= SIZES:
                self._held.clear()
            self._held[words] = call
        return call

    def _make(self, call: HeldCall, kind: CallKind, reduction: Reduction, root: int) -> None:
        """Over the wires that there are, or are made for it; within its turn."""
        program = self._prepared.call(kind.schedule, call.room, root)
        at = self._rank * call.room if kind.parts_in and not kind.parts_out else 0  # no other part is touched
        mean = self._world if reduction.mean else 0
        call.made = self._member.call(program, call.own, reduction.fold, parts=call.padded, at=at, mean=mean)
        call.age = self._prepared.age
