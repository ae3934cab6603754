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

from optcc.communicator.buffers import Flat, InPlace, Scratch, room_of, words_of
from optcc.communicator.prepared import SIZES, SMALL, Prepared
from optcc.diagnose.late import late_ranks
from optcc.runtime.control.member import Member, Turn
from optcc.runtime.devices.gpu_array import DeviceArray, address_of
from optcc.runtime.devices.host import Op, Reduction
from optcc.runtime.messages import Note
from optcc.runtime.native.library import Copy, NativeCall

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

    name : as ranks compare it; schedule : of which kind of `Prepared.call`; parts_in : the source has a part for each
    rank; parts_out : the target has one of each rank; folds : by a reduction
    """

    name: str
    schedule: str
    parts_in: bool = False
    parts_out: bool = False
    folds: bool = False

    def words(self, source: Flat | DeviceArray, reduction: Reduction, root: int | None) -> str:
        """A call as ranks compare it and as people read it."""
        if self is BARRIER:
            return "barrier()"
        return words_of(self.name, source, reduction if self.folds else "" if root is None else f"root {root}")


ALL_REDUCE = CallKind("all_reduce", "all_reduce", folds=True)
BARRIER = CallKind("barrier", "all_reduce")
BROADCAST = CallKind("broadcast", "broadcast")
ALL_GATHER = CallKind("all_gather", "all_gather", parts_out=True)
REDUCE_SCATTER = CallKind("reduce_scatter", "reduce_scatter", parts_in=True, folds=True)
ALL_TO_ALL = CallKind("all_to_all", "all_gather", parts_in=True, parts_out=True)
"""By the schedule of all_gather, of which each rank sends every other one its part."""


class Collectives(ABC):
    """Of one rank.

    wrote : since whoever calls has last set it to False, a target has been written to
    """

    wrote = False

    @abstractmethod
    def do(
        self, kind: CallKind, source: InPlace, target: InPlace, reduction: Reduction = COPY, root: int | None = None
    ) -> None:
        """A call of this kind: `source` is read and `target` written; they may be the same.

        root : of a broadcast, whose elements all get; None where every rank waits for all others
        """


class Alone(Collectives):
    """Of the only rank: a copy."""

    def do(
        self, kind: CallKind, source: InPlace, target: InPlace, reduction: Reduction = COPY, root: int | None = None
    ) -> None:
        if target.address != source.address:
            target.memory[:] = source.memory


@dataclass(slots=True)
class HeldCall:
    """A call on arrays of one type and length: of small ones kept, for they come again and again.

    room : bytes of a part of the memory that the schedule runs on; own : that memory, the target itself where that is
    large; padded : memory that the source's parts go to; None: there are none, or the source is read as it is
    copies : what goes between these and the caller's arrays, as of `NativeCall`
    made : the call over the wires that there are, by `Prepared.age` when it was made
    """

    turn: Turn
    room: int
    large: bool
    own: Flat
    padded: Flat | None
    copies: dict[str, Any]
    made: NativeCall | None = None
    age: int = -1


class Together(Collectives):
    """Of one rank among several, over the wires of `member`. `tell` : called with ranks that come late."""

    def __init__(self, member: Member, prepared: Prepared, tell: Callable[[Sequence[Note]], None]) -> None:
        self._member, self._prepared = member, prepared
        self._punctuality = Punctuality(member.exchange, tell)
        self._rank, self._world = member.rank, member.world
        self._scratch, self._padded = Scratch(), Scratch()
        self._held: dict[tuple[object, ...], HeldCall] = {}  # SIZES at most

    def do(
        self, kind: CallKind, source: InPlace, target: InPlace, reduction: Reduction = COPY, root: int | None = None
    ) -> None:
        x = source.memory
        key = kind.name, x.dtype, len(x), reduction.fold, reduction.mean, root
        call = self._held.get(key) or self._hold(key, kind, x, target.memory, reduction, root)
        with call.turn:
            if call.age != self._prepared.age:
                self._make(call, kind, target.memory, reduction, root or 0)
            made = call.made
            assert made
            self.wrote = call.large and root != self._rank
            seconds = self._member.run(made, x, source.address, target.address)
            if root is None:
                self._punctuality.took(seconds)
            if call.large and kind is ALL_REDUCE:
                self._prepared.took(x.nbytes, seconds)

    def _hold(
        self,
        key: tuple[object, ...],
        kind: CallKind,
        source: Flat,
        target: Flat,
        reduction: Reduction,
        root: int | None,
    ) -> HeldCall:
        """One that is not made yet."""
        ranks, rank, dtype = self._world, self._rank, source.dtype
        nbytes = source.nbytes // ranks if kind.parts_in else source.nbytes
        small = nbytes <= SMALL
        room = room_of(nbytes) if small else nbytes
        step = room // dtype.itemsize
        own, padded, copies = target, None, {}
        if small:
            own = self._scratch.array(step * ranks if kind.parts_out else step, dtype)
            if root != rank:
                copies["out"] = Copy(address_of(own), 0, ranks if kind.parts_out else 1, nbytes, room, nbytes)
            if kind.parts_in and room != nbytes:
                padded = self._padded.array(step * ranks, dtype)
                copies["parts"] = Copy(address_of(padded), 0, ranks, nbytes, room, nbytes)
        if root in (None, rank):
            place = address_of(own) + (rank * room if kind.parts_out else 0)
            copies["in"] = Copy(place, rank * nbytes if kind.parts_in else 0, 1, nbytes)
        call = HeldCall(self._member.turn(kind.words(source, reduction, root)), room, not small, own, padded, copies)
        if small:
            if len(self._held) >= SIZES:
                self._held.clear()
            self._held[key] = call
        return call

    def _make(self, call: HeldCall, kind: CallKind, target: Flat, reduction: Reduction, root: int) -> None:
        """Over the wires that there are, or are made for it; within its turn."""
        program = self._prepared.call(kind.schedule, call.room, root)
        call.made = self._member.call(
            program,
            call.own,
            reduction.fold,
            parts=call.padded,
            from_source=kind.parts_in and call.padded is None,
            at=self._rank * call.room if kind.parts_in and not kind.parts_out else 0,  # no other part is touched
            mean=self._world if reduction.mean else 0,
            elements=len(target),
            copies=call.copies,
        )
        call.age = self._prepared.age
