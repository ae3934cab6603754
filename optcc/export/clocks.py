"""What interpreters share: threads with vector clocks, and memory that knows who added what and who may touch it when.

An access is safe when every conflicting access before it *happened before* it: a chain of waits leads from the one to
the other (Lamport, 1978; vector clocks: Fidge, Mattern, 1988). That is checked for every access, so that one replayed
order speaks for all orders. Bytes are known by where in the buffer they belong and by whose contributions they sum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.errors import VerifyError

Clock = NDArray[np.int32]
"""Shape (threads,): how far each thread is known to have come."""


class HeldSum(NamedTuple):
    """What a piece holds: bytes of the chunks from `home` on, summed over `ranks`, bits of an integer."""

    home: int
    ranks: int


class BufferPieces:
    """One buffer of one rank in pieces between cut points, within which all bytes fare alike.

    name : for messages; cuts : ascending, at least two; fill : the rank whose bytes it holds at first (None: nobody's)
    """

    def __init__(self, name: str, cuts: Iterable[int], fill: int | None) -> None:
        self.name = name
        self.cuts = sorted(set(cuts))
        pieces = len(self.cuts) - 1
        self.held: list[HeldSum | None] = [None if fill is None else HeldSum(cut, 1 << fill) for cut in self.cuts[:-1]]
        self._writer: list[tuple[int, int]] = [(-1, 0)] * pieces
        self._readers: list[dict[int, int]] = [{} for _ in range(pieces)]

    def pieces(self, start: int, count: int) -> range:
        """The pieces of chunks start..start+count-1; both ends must be cuts. Raises VerifyError outside the buffer."""
        if start < self.cuts[0] or count < 1 or start + count > self.cuts[-1]:
            raise VerifyError(f"chunks {start}..{start + count - 1} are outside {self.name}, which has {self.cuts[-1]}")
        return range(bisect_left(self.cuts, start), bisect_left(self.cuts, start + count))

    def read(self, piece: int, clock: Clock, who: str) -> HeldSum:
        """What a piece holds. Raises VerifyError for bytes that nobody wrote, or that may still be written."""
        self._after_writer(piece, clock, who)
        held = self.held[piece]
        if held is None:
            raise VerifyError(f"{who} reads {self._place(piece)}, which nothing was written to")
        return held

    def may_write(self, piece: int, clock: Clock, who: str) -> None:
        """Raise VerifyError when someone may still be reading or writing the piece."""
        self._after_writer(piece, clock, who)
        for thread, stamp in self._readers[piece].items():
            if clock[thread] < stamp:
                raise VerifyError(f"race: {who} writes {self._place(piece)}, which may still be read")

    def note_read(self, piece: int, thread: int, stamp: int) -> None:
        """`thread` reads the piece at its time `stamp`."""
        self._readers[piece][thread] = stamp

    def write(self, piece: int, held: HeldSum, thread: int, stamp: int) -> None:
        """`thread` writes the piece at its time `stamp`."""
        self.held[piece] = held
        self._writer[piece] = (thread, stamp)
        self._readers[piece] = {}

    def _after_writer(self, piece: int, clock: Clock, who: str) -> None:
        thread, stamp = self._writer[piece]
        if thread >= 0 and clock[thread] < stamp:
            raise VerifyError(f"race: {who} touches {self._place(piece)}, which may still be written")

    def _place(self, piece: int) -> str:
        return f"chunks {self.cuts[piece]}..{self.cuts[piece + 1] - 1} of {self.name}"


def added(one: HeldSum, other: HeldSum, where: str) -> HeldSum:
    """The sum of two pieces. Raises VerifyError when they belong to different chunks, or when a rank is in both."""
    if one.home != other.home:
        raise VerifyError(f"{where} adds chunk {one.home} to chunk {other.home}")
    twice = one.ranks & other.ranks
    if twice:
        raise VerifyError(f"{where} adds the contribution of rank {(twice & -twice).bit_length() - 1} a second time")
    return HeldSum(one.home, one.ranks | other.ranks)


def check_result(memory: BufferPieces, ranks: int) -> None:
    """Raise VerifyError unless every piece holds its own bytes, with every rank's contribution."""
    for piece, held in enumerate(memory.held):
        place = f"chunks {memory.cuts[piece]}..{memory.cuts[piece + 1] - 1} of {memory.name}"
        if held is None or held.home != memory.cuts[piece]:
            raise VerifyError(f"{place} hold chunks from {held.home if held else None} on")
        missing = ~held.ranks & ((1 << ranks) - 1)
        if missing:
            raise VerifyError(f"{place}: the contribution of rank {(missing & -missing).bit_length() - 1} is missing")
