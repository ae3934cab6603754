"""Whole vectors: every server sends all that it has to others, and adds what it gets, for messages so small that hops
and chunks cost more than bytes.

Ranks are numbers in a mixed radix (`Digits`). In a step the ranks that differ in one digit send each other all they
have, and add it up: one digit of P values is a one-shot exchange, one hop; digits of two values are recursive doubling,
log2 P hops. Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH"
(2005). Here a digit may have any number of values, since a server with k NICs sends to k others at once, and ranks
beyond the largest product of digits, the slowest, hand their data to another one and get the result from it.

What comes lands in receive buffers (`optcc.schedule.columns.BESIDE`), because a rank's own bytes go out meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np

from optcc.schedule.assemble import TemplateRow, assemble, even_cuts
from optcc.schedule.columns import BESIDE, Schedule, Stage
from optcc.schedule.recipe import CandidateFamily, Costs, Recipe, Segments, require
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster
from optcc.values.json_records import Whole

if TYPE_CHECKING:
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

MAX_DIGIT = 4096
Digit = Annotated[int, Whole(2, MAX_DIGIT)]

# Who meets whom, by which NICs.


@dataclass(frozen=True)
class Digits:
    """The ranks of an exchange as numbers in a mixed radix, lowest digit first.

    core : ranks that take part, ascending, as many as the product of `digits`
    partners : of each other rank, the slowest ones, which rank of the core takes its data

    >>> Digits.of([Fraction(2), Fraction(1), Fraction(2)], (2,))
    Digits(core=(0, 2), digits=(2,), partners={1: 0})
    >>> [*Digits.of([Fraction(1)] * 4, (2, 2)).step(1)]
    [(0, 0, 2), (1, 0, 3), (2, 0, 0), (3, 0, 1)]
    """

    core: tuple[int, ...]
    digits: tuple[int, ...]
    partners: dict[int, int]

    @classmethod
    def of(cls, rates: Sequence[Fraction], digits: tuple[int, ...]) -> Digits:
        """For ranks of these rates; the product of `digits` is at most their number and more than half of it."""
        fastest = sorted(range(len(rates)), key=lambda rank: (-rates[rank], rank))
        size = prod(digits)
        return cls(tuple(sorted(fastest[:size])), digits, dict(zip(fastest[size:], fastest, strict=False)))

    def step(self, which: int) -> Iterator[tuple[int, int, int]]:
        """(sender, turn, receiver) of the exchange along one digit, by sender; in every turn each rank sends one
        message, and receives one."""
        stride, digit = prod(self.digits[:which]), self.digits[which]
        for place, rank in enumerate(self.core):
            mine = place // stride % digit
            for turn in range(digit - 1):
                yield rank, turn, self.core[place + ((mine + turn + 1) % digit - mine) * stride]


def pair_rates(cluster: Cluster) -> list[Fraction]:
    """Bytes per second of each rank, the slower way's."""
    return [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]


class Ways:
    """Routes of messages that ranks exchange in turns: on few NICs, so that a message is few chunks.

    Of n messages at once each has its own NIC, or several where there are more NICs than messages; where there are
    fewer, NICs take turns by their rates. Where not every NIC reaches every other one, or `striped`, all NICs share
    each message.
    """

    def __init__(self, cluster: Cluster, striped: bool) -> None:
        self.routes = Routes(cluster)
        self._striped = striped or not cluster.fabric.flat
        self._nics: list[tuple[list[tuple[int, Fraction]], list[tuple[int, Fraction]]]] = []
        for rank in cluster.ranks:
            server = cluster.servers[rank.server].name
            out, into = (
                sorted(
                    ((self.routes.port_index[f"{server}/{nic.name}"], rate) for nic, rate in rates if rate),
                    key=lambda each: -each[1],
                )
                for rates in ([(n, n.out_rate) for n in rank.nics], [(n, n.in_rate) for n in rank.nics])
            )
            self._nics.append((out, into))

    def __call__(self, src: int, dst: int, turn: int = 0, turns: int = 1) -> int:
        """The route of the message of this turn, of `turns` that `src` sends and `dst` receives at once."""
        out, into = self._nics[src][0], self._nics[dst][1]
        if self._striped or not out or not into:
            return self.routes(src, dst)  # which says what is missing
        lanes = max(1, min(len(out), len(into)) // turns)
        pairs = []
        for lane in range(lanes):
            (a, fast), (b, slow) = (_of_turn(side, turn + lane * turns, turns) for side in (out, into))
            pairs.append((a, b, min(fast, slow)))
        total = sum(rate for _, _, rate in pairs)
        return self.routes.pinned(src, dst, [(a, b, rate / total) for a, b, rate in pairs])


def _of_turn(nics: list[tuple[int, Fraction]], place: int, turns: int) -> tuple[int, Fraction]:
    """The NIC of a place in turn, the fastest first; fewer NICs than turns: the one that is done first."""
    return nics[_dealt(tuple(rate for _, rate in nics), turns)[place] if len(nics) < turns else place]


@lru_cache(maxsize=1024)
def _dealt(rates: tuple[Fraction, ...], turns: int) -> tuple[int, ...]:
    """Of each turn the NIC that would finish it first; then in the order in which they finish."""
    busy, found = [0] * len(rates), list[int]()
    for _ in range(turns):
        found.append(min(range(len(rates)), key=lambda nic: (busy[nic] + 1) / rates[nic]))
        busy[found[-1]] += 1
    return tuple(found)


def digit_lists(ranks: int, nics: int) -> list[tuple[int, ...]]:
    """Of each length the list of digits with fewest turns for so many ranks with so many NICs, of a product up to
    `ranks` and above half of it.

    >>> digit_lists(8, 1)
    [(8,), (2, 4), (2, 2, 2)]
    """
    found: list[tuple[int, ...]] = []
    length = 1
    while 2**length <= ranks:
        lists = [each for each in _products(length, ranks, 2) if 2 * prod(each) > ranks]
        turns = [(sum(-(-(d - 1) // nics) for d in each) + 2 * (prod(each) < ranks), -prod(each)) for each in lists]
        if lists:
            found.append(min(zip(turns, lists, strict=True))[1])
        length += 1
    return found


def _products(length: int, most: int, least: int) -> Iterator[tuple[int, ...]]:
    """Ascending lists of `length` numbers from `least` on whose product is at most `most`, the largest last digits."""
    if length == 1:
        if most >= least:
            yield (most,)
        return
    first = least
    while first**length <= most:
        for rest in _products(length - 1, most // first, first):
            yield (first, *rest)
        first += 1


def check_digits(digits: tuple[int, ...], ranks: int) -> None:
    """Raise InputError unless they number more than half of the ranks, and no more than all."""
    size = prod(digits)
    expected = f"a product above {ranks // 2}, at most {ranks}"
    require(size <= ranks < 2 * size, "digits", expected, f"{size}")


def least_seconds(cluster: Cluster, nbytes: int, costs: Costs, vectors: Fraction) -> float:
    """No exchange takes less in which every rank sends what it has, and fast ones receive `vectors` times as much."""
    rates = pair_rates(cluster)
    return float(costs.alpha + costs.per_chunk + max(nbytes / min(rates), vectors * nbytes / max(rates)))


@dataclass(frozen=True)
class DigitRecipe(Recipe):
    """Exchanges digit by digit.

    digits : how many values each digit has; their product is the number of ranks, or less, and more than half of it
    segments : parts of the data, each exchanged by itself
    striped : whether all NICs share each message, instead of one message a NIC
    """

    digits: tuple[Digit, ...]
    segments: Segments
    striped: bool = False

    def check(self, cluster: Cluster) -> None:
        super().check(cluster)
        require(not cluster.gpu_ranks, "cluster", "servers as ranks", "GPUs as ranks")
        check_digits(self.digits, len(cluster.ranks))

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> Self:
        return self  # ranks are told apart by their rates alone

    def _apart(self, cluster: Cluster) -> list[tuple[str, str]]:
        """What there is to tell of ranks that no digits stand for."""
        apart = len(cluster.ranks) - prod(self.digits)
        return [("apart", f"{apart} servers, which hand in and are sent the result")] if apart else []

    @classmethod
    def _candidate(
        cls, first: tuple[int, ...], lists: Sequence[tuple[int, ...]], costs: Costs, least_s: float
    ) -> CandidateFamily:
        """These lists of digits, each message on one NIC or on all; `first` where nothing costs."""

        def tried() -> list[Recipe]:
            return [cls(digits, 1, striped) for digits in lists for striped in (False, True)]

        make = lambda segments: cls(first, segments)  # noqa: E731
        return CandidateFamily(cls.family, make, None, tried if costs else None, by_rate=False, least_s=least_s)


# The family.


@dataclass(frozen=True)
class WholeVectors(DigitRecipe):
    """Whole vectors, exchanged digit by digit."""

    family: ClassVar[str] = "whole-vectors"
    beside: ClassVar[bool] = True

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        way, numbers = Ways(cluster, self.striped), Digits.of(pair_rates(cluster), self.digits)
        rows: list[TemplateRow] = []
        sums: dict[int, tuple[int, ...]] = {}  # rank -> the rows of which its sum so far consists
        for rank, partner in sorted(numbers.partners.items()):
            rows.append(TemplateRow(0, way(rank, partner), 0, BESIDE, Stage.REDUCE_SCATTER, ()))
            sums[partner] = (len(rows) - 1,)
        for which, digit in enumerate(self.digits):
            come: dict[int, tuple[int, ...]] = {}
            for src, turn, dst in numbers.step(which):
                route = way(src, dst, turn, digit - 1)
                rows.append(TemplateRow(0, route, 1 + which, BESIDE, Stage.REDUCE_SCATTER, sums.get(src, ())))
                come[dst] = (*come.get(dst, ()), len(rows) - 1)
            for rank, mine in come.items():
                sums[rank] = (*sums.get(rank, ()), *mine)
        for rank, partner in sorted(numbers.partners.items()):
            hop = 1 + len(self.digits)
            rows.append(TemplateRow(0, way(partner, rank), hop, False, Stage.ALLGATHER, sums[partner]))
        cuts = even_cuts(0, nbytes, self.segments)
        bounds = np.stack([cuts[:-1], cuts[1:]], axis=1)
        return assemble(cluster, nbytes, way.routes, [(rows, np.arange(self.segments), bounds)])

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        ranks, shared = (
            len(cluster.ranks),
            "shared by all NICs" if self.striped else "of one NIC where there are enough",
        )
        how = (
            "everybody to everybody, one hop" if self.digits == (ranks,) else f"in steps of {list(self.digits)} servers"
        )
        told = ("whole vectors", f"{how}, each message {shared}")
        return [told, *self._apart(cluster), ("memory", "receive buffers beside the result")]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """Lists of digits, each message on one NIC or on all; without costs the one-shot exchange alone."""
        rates = pair_rates(cluster)
        if cluster.gpu_ranks or len(rates) < 2 or not min(rates):
            return []
        ranks, nics = len(rates), max(1, min(sum(1 for nic in rank.nics if nic.alive) for rank in cluster.ranks))
        # Whole vectors: a rank of the core receives one for each other value of each digit, log2 of the core or more.
        least_s = least_seconds(cluster, bound.nbytes, costs, Fraction(max(1, ranks.bit_length() - 2)))
        return [cls._candidate((ranks,), digit_lists(ranks, nics), costs, least_s)]
