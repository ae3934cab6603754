"""How sure a verdict on a NIC is: what else would explain the measurements, and at which price in faults more."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from optcc.diagnose.fit import Fit, Problem, fit

CERTAIN_BY = 2.0
"""Faults more that every explanation without this NIC needs. A healthy NIC is called certain only where the truth has
two faults more than the simplest explanation."""
ALIKE = 0.5
"""Explanations within half a NIC of each other are as good."""
MOST_ASKED = 128
"""NICs for which another explanation is looked for; of more the first, the others stay undecided."""


class Sure(StrEnum):
    """How sure: `CERTAIN` no other explanation without two faults more, `LIKELY` others need more faults, `POSSIBLE`
    others are as good."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True)
class NicConfidence:
    """Of one NIC: how sure, and which explanation is the best one without it.

    more : faults that it needs beyond the chosen one; instead : the NICs that it blames and the chosen one does not
    twins : NICs each of which could take this one's place
    """

    sure: Sure
    more: float
    instead: tuple[int, ...]
    twins: tuple[int, ...]


def doubts(given: Problem, found: Fit) -> dict[int, NicConfidence]:
    """For each NIC of `found`."""
    return {nic: _doubt(given, found, nic) for nic in found.nics[:MOST_ASKED]} | {
        nic: NicConfidence(Sure.POSSIBLE, 0.0, (), ()) for nic in found.nics[MOST_ASKED:]
    }


def how_sure(more: float) -> Sure:
    """By the faults more that the best other explanation needs."""
    return Sure.CERTAIN if more >= CERTAIN_BY else Sure.POSSIBLE if more <= ALIKE else Sure.LIKELY


def _doubt(given: Problem, found: Fit, nic: int) -> NicConfidence:
    other = fit(given, without=[nic])
    more = other.price - found.price
    instead = tuple(n for n in other.nics if n not in found.nics)
    sure = how_sure(more)
    twins = _twins(given, found, nic) if sure is Sure.POSSIBLE else ()
    return NicConfidence(sure, more, instead, twins)


def _twins(given: Problem, found: Fit, nic: int) -> tuple[int, ...]:
    """NICs each of which alone explains all that is explained by `nic` alone."""
    others = {i for other in found.nics if other != nic for i in given.of_nic(other)}
    needed = given.of_nic(nic) - others
    candidates = {port // 2 for port in given.explains} - set(found.nics)
    twins = [other for other in candidates if needed <= given.of_nic(other)]
    return tuple(sorted(twins))
