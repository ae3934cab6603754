"""A family of schedules on one cluster with its number of segments left open, for the planner to try."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from optcc.schedule.effort import DEFAULT_SEGMENTS, MIN_CHUNK, MIN_GPU_CHUNK

if TYPE_CHECKING:
    from optcc.schedule.recipe import Recipe


def default_segments(nbytes: int, ranks: int, *, gpus: bool = False) -> int:
    """64 (the pipeline's fill costs about 1/64), fewer when sections would fall under 16 KiB (256 KiB between GPUs)."""
    return max(1, min(DEFAULT_SEGMENTS, nbytes // ((MIN_GPU_CHUNK if gpus else MIN_CHUNK) * ranks)))


class Costs(NamedTuple):
    """What a chunk, or a message, costs besides its bytes.

    alpha : seconds from its sender to its receiver; per_chunk : seconds that either end spends on it
    """

    alpha: Fraction = Fraction(0)
    per_chunk: Fraction = Fraction(0)

    def __bool__(self) -> bool:
        return bool(self.alpha or self.per_chunk)


@dataclass(frozen=True)
class CandidateFamily:
    """One family on one cluster: `make(segments)` is its recipe; `name` says which, for people.

    guess : segments to begin with, where a formula knows about how many are best
    shortlist : where there is one, just these recipes are tried, which a family's own reckoning puts first
    by_rate : transfers are striped over NICs by their rates, so that a server's NICs may be simulated as one
    costly : finding the recipe may take long
    deepest : most segments that are tried, where more would be too many transfers
    least_s : none of them takes fewer seconds, so that they are not tried after what is faster
    """

    name: str
    make: Callable[[int], Recipe]
    guess: int | None = None
    shortlist: Callable[[], Sequence[Recipe]] | None = None
    by_rate: bool = True
    costly: bool = False
    deepest: int | None = None
    least_s: float = 0.0
