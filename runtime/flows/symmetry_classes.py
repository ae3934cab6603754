"""Which lanes of a plan must be as fast as each other as long as all NICs are.

Two lanes of a route are alike when nothing in the plan distinguishes them. They have the same share and NICs of the
same rates; other traffic through these NICs is alike again, and so on to its far ends. Then both wait for the same
things at the same time: transfers are cut over all lanes of a route at once. A lane that shares a NIC with another one
of its route is like none, for one of the two waits for the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple


class Span(NamedTuple):
    """A lane: its share of its route, and its two NICs."""

    share: Fraction
    out: int
    into: int


def lane_classes(routes: Sequence[Sequence[Span]], rates: Sequence[Hashable]) -> list[list[int]]:
    """By route, a number for each of its lanes; those with the same one are alike. `rates` : by NIC, how fast it is.

    By colour refinement (Weisfeiler and Leman, 1968). Classes of equal lanes are split by the traffic through their
    NICs, until no class splits any more.
    """
    spans = [(number, span) for number, route in enumerate(routes) for span in route]
    kinds = _numbered(
        (number, span.share, i if sharing else -1)
        for number, route in enumerate(routes)
        for i, (span, sharing) in enumerate(zip(route, _sharing(route), strict=True))
    )
    while True:
        through: dict[tuple[str, int], list[int]] = defaultdict(list)
        for kind, (_, span) in zip(kinds, spans, strict=True):
            through["out", span.out].append(kind)
            through["into", span.into].append(kind)
        sides = {(side, nic): (rates[nic], *sorted(many)) for (side, nic), many in through.items()}
        finer = _numbered(
            (kind, sides["out", span.out], sides["into", span.into])
            for kind, (_, span) in zip(kinds, spans, strict=True)
        )
        if finer == kinds:
            of = iter(kinds)
            return [[next(of) for _ in route] for route in routes]
        kinds = finer


def _sharing(route: Sequence[Span]) -> list[bool]:
    """By lane, whether another one of the route uses one of its NICs the same way."""
    outs, intos = Counter(span.out for span in route), Counter(span.into for span in route)
    return [outs[span.out] > 1 or intos[span.into] > 1 for span in route]


def _numbered(looks: Iterable[Hashable]) -> list[int]:
    """A number for each, the same for the same."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(look, len(numbers)) for look in looks]
