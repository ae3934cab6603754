#!/usr/bin/env python3
"""How many bits must P ranks send until all know the exclusive or of their bits?   python3 one_bit.py P

../written/coding.md proves 2(P-1). This tries ALL protocols of P ranks whose messages are single bits, each of them any
function of what its sender has. `fewest(P, most)` finds the least number of messages.

What a rank knows is a partition of the 2^P inputs: those it cannot tell apart are in one class. A message splits the
sender's classes in two parts, in any way, and the receiver's classes by these. What keeps the search small, without
losing any case:

* naming the two values of a message the other way round, or renaming the ranks, changes nothing;
* a rank that does not know the result needs a message more: states with more such ranks than messages left are dropped.

P = 3 takes a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import permutations, product

Classes = tuple[int, ...]  # of each input the number of its class, classes numbered as they first occur
State = tuple[Classes, ...]  # what each rank knows


def parity(inputs: tuple[int, ...]) -> int:
    """The sum over Z_2."""
    return sum(inputs) % 2


def numbered(values: Iterator[object]) -> Classes:
    """Classes of inputs with equal values."""
    names: dict[object, int] = {}
    return tuple(names.setdefault(value, len(names)) for value in values)


def splits(classes: Classes) -> Iterator[tuple[int, ...]]:
    """Every message of one bit that a rank can send: its value on each input; two that differ by names once."""
    count = max(classes) + 1
    for bits in range(1, 1 << (count - 1)):
        yield tuple(bits >> c & 1 for c in classes)


class Search:
    """States of P ranks, and which of them are equal but for the ranks' names."""

    def __init__(self, ranks: int, result: Callable[[tuple[int, ...]], int]) -> None:
        self.ranks = ranks
        self.inputs = list(product((0, 1), repeat=ranks))
        self.result = [result(one) for one in self.inputs]
        place = {one: i for i, one in enumerate(self.inputs)}
        self.renamings = [
            (p, [place[tuple(one[p[r]] for r in range(ranks))] for one in self.inputs])
            for p in permutations(range(ranks))
            if all(result(tuple(one[p[r]] for r in range(ranks))) == result(one) for one in self.inputs)
        ]
        self.start: State = tuple(numbered(one[r] for one in self.inputs) for r in range(ranks))

    def lacking(self, state: State) -> int:
        """How many ranks do not know the result."""
        return sum(len(set(zip(known, self.result, strict=True))) > max(known) + 1 for known in state)

    def following(self, state: State) -> Iterator[State]:
        """Every state that one message leads to."""
        for sender, receiver in permutations(range(self.ranks), 2):
            for bit in splits(state[sender]):
                learnt = numbered(zip(state[receiver], bit, strict=True))
                yield (*state[:receiver], learnt, *state[receiver + 1 :])

    def smallest(self, state: State) -> State:
        """The first of the states that renaming the ranks makes of this one."""
        return min(
            tuple(numbered(state[p.index(r)][i] for i in image) for r in range(self.ranks))
            for p, image in self.renamings
        )


def fewest(ranks: int, most: int, result: Callable[[tuple[int, ...]], int] = parity) -> int | None:
    """The least number of one-bit messages after which all ranks know `result`, or None if it is more than `most`."""
    for messages in range(most + 1):
        search = Search(ranks, result)
        layer = {search.start}
        for left in range(messages, 0, -1):
            after = {state for before in layer for state in search.following(before)}
            layer = {search.smallest(state) for state in after if search.lacking(state) < left}
        if any(not search.lacking(state) for state in layer):
            return messages
    return None


def main() -> int:
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal() or int(sys.argv[1]) < 2:
        print("usage: one_bit.py P   (P >= 2)", file=sys.stderr)
        return 2
    ranks = int(sys.argv[1])
    found = fewest(ranks, 2 * (ranks - 1))
    print(f"P = {ranks}: {found} messages of one bit; the theorem says {2 * (ranks - 1)}")
    return int(found != 2 * (ranks - 1))


if __name__ == "__main__":
    sys.exit(main())
