"""Which wire a flow takes next: of those left the first that shares least with what is lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def choice(wires: Sequence[int], lost: Collection[int], ends: Mapping[int, tuple[int, int]]) -> int | None:
    """Of `wires`, first choice first; None when all are `lost`. `ends` : the two NICs of each wire, where known.

    Every NIC that a wire shares with a lost one counts, once for each: a NIC that has swallowed one swallows all.
    """

    def tainted(wire: int) -> int:
        pairs = (zip(ends[wire], ends[other], strict=True) for other in lost)
        return sum(mine == theirs for pair in pairs for mine, theirs in pair)

    return min((wire for wire in wires if wire not in lost), key=tainted if ends else lambda _: 0, default=None)
