"""Why every AllReduce of a sum sends 2(P-1) n, coded or not: the steps of the proof, in numbers, on a protocol's run.

The steps are those of proof id coding. m is a message; X is all inputs, V_i what rank i has in the end, Pi all messages
before m, and Y the sum. Everything is in bits.

A protocol is a list of messages in a fixed order. What a message says is any function of what its sender has then: its
own input and what it has received. The inputs are elements of a finite abelian group, independent and uniform. So every
row of an `Execution`, one for each choice of inputs, is equally likely, and entropies come from counting rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError

Labels = NDArray[np.int64]
"""A random variable: its value in every row, as a number."""
View = tuple[int, ...]
"""What a rank has: its own input, then what it has received, in order."""

MOST_ROWS = 1 << 16
"""Choices of all inputs, each of which is a row in memory; the tests and notebooks need a thousand."""


@dataclass(frozen=True)
class Group:
    """The product of the integers modulo each of `moduli`; its elements are numbered from 0 to order - 1."""

    moduli: tuple[int, ...]

    @property
    def order(self) -> int:
        """How many elements there are."""
        return prod(self.moduli)

    @property
    def bits(self) -> float:
        """Entropy of a uniform element."""
        return float(np.log2(self.order))

    def part(self, elements: Labels, index: int) -> Labels:
        """Of numbered elements the part that counts modulo `moduli[index]`."""
        return np.asarray(elements // prod(self.moduli[:index]) % self.moduli[index])

    def sum(self, elements: Labels) -> Labels:
        """The sums of the rows of a table of elements."""
        total = np.zeros(len(elements), np.int64)
        for index, modulus in enumerate(self.moduli):
            parts = self.part(elements, index).sum(axis=1) % modulus
            total += parts * prod(self.moduli[:index])
        return total


@dataclass(frozen=True)
class Message:
    """From rank `sender` to rank `receiver`: the whole number `content(view)` of what the sender has then."""

    sender: int
    receiver: int
    content: Callable[[View], int]


@dataclass(frozen=True)
class Sent:
    """A message on all inputs: what it says in every row."""

    sender: int
    receiver: int
    content: Labels


@dataclass(frozen=True, eq=False)
class Execution:
    """A protocol on all inputs: `inputs[row, rank]`, and what has been sent, in order."""

    group: Group
    inputs: NDArray[np.int64]
    sent: tuple[Sent, ...] = ()

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return int(self.inputs.shape[1])

    @cached_property
    def total(self) -> Labels:
        """The sum of all inputs, in every row."""
        return self.group.sum(self.inputs)

    def received(self, rank: int) -> tuple[Labels, ...]:
        """What `rank` has: its own input, then what it has received."""
        return (self.inputs[:, rank], *(m.content for m in self.sent if m.receiver == rank))

    def views(self, rank: int) -> list[View]:
        """What `rank` has, row by row."""
        return list(zip(*(column.tolist() for column in self.received(rank)), strict=True))

    def ignorance(self) -> float:
        """The most that a rank still lacks of the sum: the largest H(sum | what a rank has), bits."""
        return max(entropy(self.total, *self.received(r)) - entropy(*self.received(r)) for r in range(self.ranks))

    def bits(self) -> float:
        """The sum of the entropies of all messages."""
        return sum(entropy(message.content) for message in self.sent)

    def then(self, message: Message) -> Execution:
        """This run with one message more. Raises InputError if it is not between two of the ranks."""
        k, j = message.sender, message.receiver
        if k == j or not {k, j} <= set(range(self.ranks)):
            raise InputError(
                "no such way", where="message", expected=f"two of ranks 0 to {self.ranks - 1}", got=f"{k} to {j}"
            )
        content = np.array([message.content(view) for view in self.views(k)], np.int64)
        return Execution(self.group, self.inputs, (*self.sent, Sent(k, j, content)))

    def fixing(self, elements: Mapping[int, int]) -> Execution:
        """The same protocol where some ranks' inputs are known to be these elements: only those rows."""
        kept = np.all([self.inputs[:, rank] == element for rank, element in elements.items()], axis=0)
        return Execution(self.group, self.inputs[kept], tuple(replace(m, content=m.content[kept]) for m in self.sent))

    def between(self, blocks: Sequence[Sequence[int]]) -> Execution:
        """What passes between blocks of ranks, a block being one rank; of each only the first rank's input may vary.

        Raises InputError if the blocks are no partition of the ranks, or if another input varies.
        """
        of = {rank: block for block, members in enumerate(blocks) for rank in members}
        if sorted(rank for members in blocks for rank in members) != list(range(self.ranks)):
            raise InputError("no partition", where="blocks", expected=f"{self.ranks} ranks, each once", got=str(blocks))
        if any(np.ptp(self.inputs[:, rank]) for members in blocks for rank in members[1:]):
            raise InputError("more than one input of a block varies", where="blocks", expected="one", got=str(blocks))
        crossing = (Sent(of[m.sender], of[m.receiver], m.content) for m in self.sent)
        free = self.inputs[:, [members[0] for members in blocks]]
        return Execution(self.group, free, tuple(m for m in crossing if m.sender != m.receiver))


def start(group: Group, ranks: int) -> Execution:
    """Nothing sent yet. Raises InputError if there are more than MOST_ROWS choices of inputs."""
    rows = group.order**ranks
    if rows > MOST_ROWS:
        raise InputError(
            "too many inputs to try all", where="group, ranks", expected=f"at most {MOST_ROWS}", got=f"{rows}"
        )
    return Execution(group, np.array(list(product(range(group.order), repeat=ranks)), np.int64))


def run(group: Group, ranks: int, protocol: Sequence[Message]) -> Execution:
    """The protocol on all inputs; raises InputError as `start` and `Execution.then` do."""
    done = start(group, ranks)
    for message in protocol:
        done = done.then(message)
    return done


def joint(*variables: Labels) -> Labels:
    """Several random variables as one."""
    together = np.zeros(len(variables[0]), np.int64)
    for variable in variables:
        values, numbered = np.unique(variable, return_inverse=True)
        together = np.unique(together * len(values) + numbered, return_inverse=True)[1]
    return together


def entropy(*variables: Labels) -> float:
    """Joint entropy of the variables, bits: from whole counts of rows, so exact but for the logarithms."""
    counts = np.bincount(joint(*variables))
    return float(np.log2(counts.sum()) - (counts * np.log2(counts)).sum() / counts.sum())


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


@dataclass(frozen=True)
class News:
    """What one message says that was not known before.

    entropy : H(m)
    beside_sum : H(m | Y, Pi), the news to one who has the sum and what was sent before
    to_ranks : H(m | V_i, Pi) for each rank i, the news to a rank that has, besides, all that it has in the end
    """

    sender: int
    receiver: int
    entropy: float
    beside_sum: float
    to_ranks: tuple[float, ...]


def news(run: Execution) -> list[News]:
    """The news in each message of the run, in order. Source: step 3 of proof id coding."""
    views = [joint(*run.received(rank)) for rank in range(run.ranks)]
    transcript = np.zeros(len(run.inputs), np.int64)
    found = []
    for message in run.sent:
        m = message.content
        found.append(
            News(
                sender=message.sender,
                receiver=message.receiver,
                entropy=entropy(m),
                beside_sum=given(m, run.total, transcript),
                to_ranks=tuple(given(m, view, transcript) for view in views),
            )
        )
        transcript = joint(transcript, m)
    return found


def lacks(run: Execution) -> list[float]:
    """H(X | V_i) for each rank i: what it lacks of all inputs in the end."""
    inputs = joint(*run.inputs.T)
    return [given(inputs, *run.received(rank)) for rank in range(run.ranks)]


def slacks(run: Execution) -> dict[str, float]:
    """Of each step of proof id coding by how many bits it holds: none is negative where every rank learns the sum.

    Where a step says that two numbers are equal, minus their difference.
    """
    n, ranks = run.group.bits, run.ranks
    inputs, told, lack = joint(*run.inputs.T), news(run), lacks(run)
    beside_sum = given(inputs, run.total)
    transcript = joint(np.zeros(len(run.inputs), np.int64), *(message.content for message in run.sent))
    received = [sum(m.entropy for m in told if m.receiver == rank) for rank in range(ranks)]
    return {
        "1 product sets": -_dependence(run),
        "2 one case": -given(inputs, transcript),
        "3 news": min((_spare(m, rank) for m in told for rank in range(ranks)), default=0.0),
        "4 added up": (ranks - 2) * beside_sum - sum(lack),
        "5 in bits": min(
            -abs(beside_sum - (ranks - 1) * n),
            *(less - ((ranks - 1) * n - bits) for less, bits in zip(lack, received, strict=True)),
        ),
        "6 total": run.bits() - 2 * (ranks - 1) * n,
    }


def given(variable: Labels, *known: Labels) -> float:
    """H(variable | known), bits."""
    return entropy(variable, *known) - entropy(*known)


def _spare(message: News, rank: int) -> float:
    """By how much the news to a rank is less than step 3 allows: none to sender and receiver."""
    allowed = 0.0 if rank in (message.sender, message.receiver) else message.beside_sum
    return allowed - message.to_ranks[rank]


def _dependence(run: Execution) -> float:
    """The most, over all moments, by which inputs depend on each other, or a message on another than its sender's.

    Both given what was sent before, in bits.
    """
    transcript = np.zeros(len(run.inputs), np.int64)
    inputs = list(run.inputs.T)
    worst = 0.0
    for message in run.sent:
        worst = max(worst, given(message.content, transcript, inputs[message.sender]))
        transcript = joint(transcript, message.content)
        worst = max(worst, sum(given(x, transcript) for x in inputs) - given(joint(*inputs), transcript))
    return worst
