"""A family of schedules on one cluster with its number of segments left open, for the planner to climb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from optcc.schedule.columns import Schedule
from optcc.schedule.recipe import Recipe

LARGE = 16
"""Above so many ranks a server's NICs are simulated as one, which is eight times less work for eight NICs."""
MANY = 64
"""Above so many ranks only one form of direct exchange is tried: transfers grow with the square of the ranks."""


@dataclass(frozen=True)
class Ladder:
    """One family on one cluster: `make(segments)` is its recipe; `name` says which, for people.

    guess : segments to begin with, where a formula knows about how many are best
    sure : the formula is good: only so many numbers are tried, the first one less than the guess
    only : if there are any, just these numbers are tried
    between : and if no ladder has a faster one, so many more between every two of them
    both : times differ between kinds of receivers, and the longer one counts
    by_rate : transfers are striped over NICs by their rates, so that a server's NICs may be simulated as one
    costly : finding the recipe may take long
    deepest : most segments that are tried, where more would be too many transfers
    settle : makes the best recipe that was tried better, if there is one, with the seconds of any schedule's simulation
    """

    name: str
    make: Callable[[int], Recipe]
    guess: int | Callable[[], int] | None = None
    sure: int = 0
    only: Sequence[int] = ()
    between: int = 0
    both: bool = False
    by_rate: bool = True
    costly: bool = False
    deepest: int | None = None
    settle: Callable[[Recipe, Callable[[Schedule], float]], Recipe] | None = None

    def finer(self) -> Ladder | None:
        """With the numbers in between; None where there are none."""
        known = sorted(set(self.only))
        parts = [Fraction(part, self.between + 1) for part in range(1, self.between + 1)]
        more = {round(low + part * (high - low)) for low, high in pairwise(known) for part in parts}
        return replace(self, only=sorted(more.difference(known))) if more.difference(known) else None


def starves(rates: list[Fraction]) -> bool:
    """The slowest rank alone sets the bound: it is a hub of nothing."""
    return max(rates) > min(rates) and sum(rates) >= min(rates) * 2 * (len(rates) - 1)
