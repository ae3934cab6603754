"""What one rank does, step by step: a list that is made before the first byte moves and walked without a decision.

Posting a send costs nothing, and receives wait. So a script says before which wait each send is posted: as soon as its
dependencies are in, but not long before its turn. A message posted early stands in the socket's queue in front of what
is urgent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optcc.runtime.engine.program import Move, Program

LEAD = 4
"""Sends in the queue ahead of their time: what the link carries while the process waits for a processor."""


@dataclass(frozen=True)
class Script:
    """A rank's part of an AllReduce.

    Attributes
    ----------
    receives : in the order in which they are waited for
    sends : before each wait, and after the last: shape (receives + 1), lists of moves
    tags : row -> its tag, the same at both ends
    slot_bytes : the most that a transfer to be folded carries
    """

    receives: tuple[Move, ...]
    sends: tuple[tuple[Move, ...], ...]
    tags: NDArray[np.int32]
    slot_bytes: int


def script_of(
    program: Program, turns: NDArray[np.int32], deps: Mapping[int, Sequence[int]], lead: int = LEAD
) -> Script:
    """The script of `program`'s rank.

    turns : row -> its place in the common order; deps : sent row -> the rows it waits for
    """
    receives = sorted(program.receives.values(), key=lambda move: turns[move.row])
    when = [int(turns[move.row]) for move in receives]
    sends: list[list[Move]] = [[] for _ in range(len(receives) + 1)]
    mine = sorted(program.sends.values(), key=lambda move: turns[move.row])
    latest = 0
    for i, move in enumerate(mine):
        needed = max((bisect_left(when, int(turns[dep])) + 1 for dep in deps[move.row]), default=0)
        due = bisect_left(when, int(turns[mine[i - lead].row])) if i >= lead else 0
        latest = max(latest, due)
        sends[max(needed, latest)].append(move)
    return Script(
        receives=tuple(receives),
        sends=tuple(tuple(moves) for moves in sends),
        tags=turns,
        slot_bytes=max((move.length for move in receives if move.reduce), default=0),
    )


@dataclass(frozen=True)
class Round:
    """What a rank exchanges at once: both lists in the common order."""

    sends: tuple[Move, ...]
    receives: tuple[Move, ...]


def rounds_script(program: Program, turns: NDArray[np.int32], rounds: Sequence[int]) -> tuple[Round, ...]:
    """The rounds of `program`'s rank, those left out in which it has nothing to do."""
    sends: dict[int, list[Move]] = {}
    receives: dict[int, list[Move]] = {}
    for moves, by_round in ((program.sends, sends), (program.receives, receives)):
        for move in sorted(moves.values(), key=lambda move: turns[move.row]):
            by_round.setdefault(rounds[move.row], []).append(move)
    return tuple(
        Round(tuple(sends.get(at, ())), tuple(receives.get(at, ()))) for at in sorted(sends.keys() | receives.keys())
    )
