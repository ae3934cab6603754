"""A rig on which somebody measured OptCC, simulated at its settings, so that the model meets hardware that is not ours.

Source: the design notes of an implementation in NCCL (github.com/1WesleyYou/nccl, docs/optcc/DESIGN.md, section 3,
September 2026): five containers with a 25 Gb/s RoCE function each, of which 23.5 Gb/s are payload; one at half of that;
four channels with chunks of 256 KiB, so that 256 MiB are 256 segments of four sections. How it is related to the
paper's authors is not said.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from optcc.evaluation.cells import ALPHA, FAULT_FREE, OPTCC
from optcc.evaluation.rivals import best, in_stripes
from optcc.schedule.recipe import Recipe
from optcc.values.cluster import Cluster

SERVERS = 5
RATE = Fraction(23_500_000_000, 8)
"""Bytes of payload a second of a 25 Gb/s function, as measured there."""
NBYTES = 256 * 2**20
SEGMENTS = 256
AS_MEASURED = f"optcc-published, k = {SEGMENTS} as there"
SCHEMES = (FAULT_FREE, "balance", AS_MEASURED, "optcc-published", OPTCC)
MEASURED = {"balance": (0.2939, 2.009), AS_MEASURED: (0.1877, 1.279)}
"""Scheme -> seconds for 256 MiB, and the slope of time over size from 8 to 256 MiB over the fault-free ring's."""
MEASURED_RANGE = (1.268, 1.291)
"""Of the implementation's slope, by its authors."""


@dataclass(frozen=True)
class Rig:
    """A scheme on that rig, `per_chunk` seconds for a chunk."""

    scheme: str
    per_chunk: Fraction

    @property
    def weight(self) -> float:
        """See `Cell.weight`; next to nothing."""
        return 1

    @property
    def cluster(self) -> Cluster:
        """One server at half of its rate; none for the fault-free ring."""
        whole = Cluster.uniform(servers=SERVERS, rate=RATE)
        return whole if self.scheme == FAULT_FREE else whole.degrade("server0/nic0", Fraction(1, 2))

    def run(self) -> RigResult:
        """Simulated."""
        from optcc.api import lower_bound_with_costs, plan
        from optcc.simulation.simulator import simulate

        cluster, o = self.cluster, self.per_chunk
        least = lower_bound_with_costs(cluster, NBYTES, alpha=ALPHA, per_chunk=o)
        if self.scheme == OPTCC:
            recipe: Recipe = plan(cluster, NBYTES, alpha=ALPHA, per_chunk=o).recipe
        elif self.scheme == AS_MEASURED:
            recipe = in_stripes("optcc-published", cluster, SEGMENTS)
        else:
            name = "balance" if self.scheme == FAULT_FREE else self.scheme
            recipe = best(name, cluster, NBYTES, alpha=ALPHA, per_chunk=o)
        time_s = simulate(recipe.lower(cluster, NBYTES), alpha=ALPHA, per_chunk=o, receivers="packets").time_s
        return RigResult(time_s, float(least.bound.seconds), float(least.bound.fault_free_s), float(least.seconds))


@dataclass(frozen=True)
class RigResult:
    """Simulated seconds; the bounds with and without the straggler, and the one with costs."""

    time_s: float
    bound_s: float
    fault_free_s: float
    with_costs_s: float
