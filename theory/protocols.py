"""Protocols as functions, tried on all inputs: what their messages say, in exact counts.

A protocol is a list of messages in a fixed order. What a message says is any function of what its sender has then: its
own input and what it has received. The inputs are elements of a finite abelian group, independent and uniform. So every
row of an `Execution`, one for each choice of inputs, is equally likely, and entropies come from counting rows. This is
the model of proof id coding.
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
