"""Protocols to try the count of proof id coding on: the common one, and random ones that mix everything they have."""

from __future__ import annotations

import numpy as np

from optcc.theory.protocols import Execution, Group, Labels, Message, View, run, start


def gather_and_spread(group: Group, ranks: int) -> Execution:
    """Every rank sends its input to rank 0, which sends the sum to everybody: 2(P-1) n, the least (proof id coding)."""

    def own(view: View) -> int:
        return view[0]

    def total(view: View) -> int:
        return int(group.sum(np.array([view]))[0])

    others = range(1, ranks)
    return run(group, ranks, [*(Message(r, 0, own) for r in others), *(Message(0, r, total) for r in others)])


def random_chatter(begun: Execution, messages: int, rng: np.random.Generator) -> Execution:
    """`messages` more, each between random ranks and a random function of all that its sender has, of 2 or 3 values."""
    for _ in range(messages):
        sender, receiver = (int(r) for r in rng.choice(begun.ranks, 2, replace=False))
        values = int(rng.integers(2, 4))
        table = {view: int(rng.integers(values)) for view in sorted(set(begun.views(sender)))}
        begun = begun.then(Message(sender, receiver, table.__getitem__))
    return begun


def random_protocol(group: Group, ranks: int, messages: int, rng: np.random.Generator) -> Execution:
    """`random_chatter`, and then for each part of the group, in turns, a random tree that adds up and one that spreads.

    On the trees a rank sends no more than the next one lacks, as codes that depend on all its data: few bits, in no way
    linear. In the end every rank knows the sum.
    """
    done = random_chatter(start(group, ranks), messages, rng)
    parts = [_trees(done, part, rng) for part in range(len(group.moduli))]
    turns = rng.permutation([part for part, steps in enumerate(parts) for _ in steps])
    for part in turns:
        sender, receiver, about = parts[part].pop(0)
        done = done.then(Message(sender, receiver, _telling(done, sender, receiver, about, rng).__getitem__))
    return done


def _trees(begun: Execution, part: int, rng: np.random.Generator) -> list[tuple[int, int, Labels]]:
    """(sender, receiver, what the receiver shall know then), in order, up one random tree and down another."""
    ranks, modulus = begun.ranks, begun.group.moduli[part]
    order = [int(r) for r in rng.permutation(ranks)]
    sums = [begun.group.part(begun.inputs[:, rank], part) for rank in range(ranks)]
    steps = []
    for place in range(ranks - 1, 0, -1):
        child, parent = order[place], order[int(rng.integers(place))]
        steps.append((child, parent, sums[child]))
        sums[parent] = (sums[parent] + sums[child]) % modulus
    order[1:] = [order[i] for i in rng.permutation(range(1, ranks))]
    down = [(order[int(rng.integers(place))], order[place], sums[order[0]]) for place in range(1, ranks)]
    return steps + down


def _telling(begun: Execution, sender: int, receiver: int, about: Labels, rng: np.random.Generator) -> dict[View, int]:
    """A message from which the receiver, with what it has, knows `about`, which the sender knows: views to values.

    Views of the sender need different values only if the receiver takes both for possible and they differ in `about`.
    This is a colouring, made greedily in random order.
    """
    mine, theirs = begun.views(sender), begun.views(receiver)
    names = sorted(set(mine))
    number = {view: i for i, view in enumerate(names)}
    others = {view: i for i, view in enumerate(sorted(set(theirs)))}
    possible = np.zeros((len(number), len(others)), bool)
    meaning = np.zeros(len(number), np.int64)
    for view, other, value in zip(mine, theirs, about.tolist(), strict=True):
        possible[number[view], others[other]] = True
        meaning[number[view]] = value
    clash = (possible.astype(int) @ possible.T.astype(int) > 0) & (meaning[:, None] != meaning)
    colour = np.full(len(number), -1)
    for i in rng.permutation(len(number)):
        taken = set(colour[clash[i]].tolist())
        used = sorted(set(colour.tolist()) - taken - {-1})
        colour[i] = rng.choice(used) if used else colour.max() + 1
    return {view: int(colour[i]) for view, i in number.items()}
