#!/usr/bin/env python3
"""Does coding across elements save messages?   python3 coding.py P N [EXTRA]

P ranks own N elements each, over GF(2).  A message is one vector: any combination of what
its sender has.  In the end every rank must have the N sums.  Without mixing elements that
takes 2(P-1)N messages (../written/traffic.md). ../written/coding.md proves that no code does
with fewer; this looks at the small linear ones without that proof.

`fewest(P, N, extra)` finds the least number of messages over ALL linear codes, if it is at
most P N + extra, and None otherwise.  Let S_r be the space that rank r knows, Y the space
of the sums, and dim(S_r + Y) - dim(S_r) the deficit of r.  A message changes one deficit,
by at most 1, and the deficits are P N in the beginning and 0 in the end.  So a code sends
P N messages that lower a deficit, and some extra ones.  What keeps the search small,
without losing any case:

* a message that lowers a deficit may be sent as soon as it can be.  The receiver gains a
  vector of Y.  In the best code from here some later message then tells it nothing new;
  that one is dropped, and the receiver never knows less than it did in that code;
* so only extra messages are tried out, one level of the search for each;
* messages that leave the receiver with the same space are the same;
* renaming the ranks, or taking another basis of the elements, changes nothing, so only
  the smallest of these equivalent states is kept.

(3, 2) and (4, 2) are instant, (3, 3) takes seconds, (5, 2) with 4 extra half a minute and
(4, 3) with 4 extra some minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import permutations, product

Space = tuple[int, ...]  # a reduced basis, largest vector first; vectors are ints
State = tuple[Space, ...]  # what each rank knows


def reduced(vector: int, space: Space) -> int:
    """The vector less what `space` has of it; 0 if it lies in there."""
    for basis in space:
        vector = min(vector, vector ^ basis)
    return vector


def joined(space: Space, vector: int) -> Space:
    """`space` and one vector more, again in reduced form, which is unique."""
    vector = reduced(vector, space)
    if not vector:
        return space
    top = 1 << vector.bit_length() - 1
    return tuple(sorted([*(b ^ vector if b & top else b for b in space), vector], reverse=True))


class Code:
    """P ranks with N elements: the sums, and the symmetries."""

    def __init__(self, ranks: int, elements: int) -> None:
        self.ranks, self.elements = ranks, elements
        self.sums = [sum(1 << (r * elements + e) for r in range(ranks)) for e in range(elements)]
        self.start: State = tuple(
            tuple(1 << (r * elements + e) for e in reversed(range(elements))) for r in range(ranks)
        )
        self._symmetries = [(p, basis) for p in permutations(range(ranks)) for basis in _invertible(elements)]

    def complete(self, state: State) -> bool:
        return all(not reduced(y, space) for space in state for y in self.sums)

    def closed(self, state: State) -> State:
        """After all messages that lower a deficit."""
        spaces = list(state)
        changed = True
        while changed:
            changed = False
            for sender, receiver in permutations(range(self.ranks), 2):
                for vector in self._useful(spaces[sender], spaces[receiver]):
                    spaces[receiver] = joined(spaces[receiver], vector)
                    changed = True
        return tuple(spaces)

    def _useful(self, sender: Space, receiver: Space) -> Iterator[int]:
        """Vectors of the sender in receiver + Y that span all of these modulo the receiver."""
        target = receiver
        for y in self.sums:
            target = joined(target, y)
        if len(target) == len(receiver):
            return
        rest: list[tuple[int, int]] = []  # (remainder modulo target and the rows above, the vector behind it)
        for basis in sender:
            left, behind = reduced(basis, target), basis
            for other, vector in rest:
                if left ^ other < left:
                    left, behind = left ^ other, behind ^ vector
            if left:
                rest.append((left, behind))
                rest.sort(reverse=True)
            elif reduced(behind, receiver):
                yield behind

    def extras(self, state: State) -> Iterator[State]:
        """Every state after one message more."""
        for sender, receiver in permutations(range(self.ranks), 2):
            found = set()
            for vector in _span(state[sender]):
                if reduced(vector, state[receiver]):
                    found.add(joined(state[receiver], vector))
            for space in found:
                yield (*state[:receiver], space, *state[receiver + 1 :])

    def smallest(self, state: State) -> State:
        """The smallest of the states that symmetry makes equal to this one."""
        return min(self._renamed(state, p, basis) for p, basis in self._symmetries)

    def _renamed(self, state: State, p: tuple[int, ...], basis: tuple[int, ...]) -> State:
        n, mask = self.elements, (1 << self.elements) - 1
        spaces: list[Space] = [()] * self.ranks
        for r, space in enumerate(state):
            image: Space = ()
            for vector in space:
                image = joined(image, sum(basis[vector >> (n * c) & mask] << (n * p[c]) for c in range(self.ranks)))
            spaces[p[r]] = image
        return tuple(spaces)


def _span(space: Space) -> Iterator[int]:
    values = [0]
    for basis in space:
        values += [value ^ basis for value in values]
    yield from values[1:]


def _invertible(size: int) -> list[tuple[int, ...]]:
    """Every invertible map of GF(2)^size, as a table of all 2^size images."""
    found = []
    for columns in product(range(1, 1 << size), repeat=size):
        table = [0] * (1 << size)
        for value in range(1 << size):
            for bit in range(size):
                if value >> bit & 1:
                    table[value] ^= columns[bit]
        if len(set(table)) == len(table):
            found.append(tuple(table))
    return found


def fewest(
    ranks: int, elements: int, extra: int, report: Callable[[int, int], None] = lambda level, states: None
) -> int | None:
    """The least number of messages of a linear code, or None if it is more than ranks * elements + extra."""
    code = Code(ranks, elements)
    layer = {code.closed(code.start)}
    for level in range(extra + 1):
        if any(map(code.complete, layer)):
            return ranks * elements + level
        report(level, len(layer))
        if level == extra:
            break
        last = level + 1 == extra  # the states of the last level are only looked at, not kept
        following: set[State] = set()
        for state in layer:
            for after in code.extras(state):
                closed = code.closed(after)
                if code.complete(closed):
                    return ranks * elements + level + 1
                if not last:
                    following.add(code.smallest(closed))
        if last:
            break
        layer = following
    return None


def main() -> int:
    given = sys.argv[1:]
    if len(given) not in (2, 3) or not all(a.isdecimal() for a in given) or int(given[0]) < 2 or int(given[1]) < 1:
        print(
            "usage: coding.py P N [EXTRA]   (P >= 2; by default EXTRA is all that would beat no coding)",
            file=sys.stderr,
        )
        return 2
    ranks, elements = int(given[0]), int(given[1])
    uncoded = 2 * (ranks - 1) * elements
    extra = int(given[2]) if len(given) == 3 else max(0, uncoded - ranks * elements - 1)
    found = fewest(ranks, elements, extra, lambda level, states: print(f"{level} extra: {states} states"))
    if found is None:
        print(f"P = {ranks}, N = {elements}: no linear code with at most {ranks * elements + extra} messages")
        print(f"without coding: {uncoded}")
        return 0
    print(f"P = {ranks}, N = {elements}: {found} messages; without coding {uncoded}")
    return int(found < uncoded)


if __name__ == "__main__":
    sys.exit(main())
