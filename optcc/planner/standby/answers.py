"""What a planner that is told of events answers: plans for what is left, how they were come by, what is prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from optcc.plans.plan import Plan
from optcc.values.cluster import Cluster


class Basis(StrEnum):
    """How a plan was come by, the best first.

    PREPARED : the whole planner decided in advance
    CLOSED_FORM : nested rings at (without latency and chunk costs: within 2 % of) the bound; nothing to decide
    SOLVED : the whole planner ran now, however long that took
    NEAREST : what the plan before the event becomes here, or what a family's formulas give at once, until this cluster
        is decided
    """

    PREPARED = "prepared"
    CLOSED_FORM = "closed-form"
    SOLVED = "solved"
    NEAREST = "nearest"


@dataclass(frozen=True)
class Replanned:
    """The answer to an event.

    event : how many events there have been; cluster : what is left after them
    plans : size in bytes -> plan; basis : of the plan that is worst off, in the order of `Basis`
    took_s : seconds from event to answer
    """

    event: int
    cluster: Cluster
    plans: Mapping[int, Plan]
    basis: Basis
    took_s: float

    @property
    def plan(self) -> Plan:
        """The plan of the largest size."""
        return self.plans[max(self.plans)]


@dataclass(frozen=True)
class Progress:
    """How many of the shapes that may come next are decided; `error`: why the last preparation failed, if it did."""

    ready: int
    wanted: int
    error: str | None = None
