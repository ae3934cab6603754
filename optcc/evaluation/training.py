"""What a slower AllReduce costs a training job over a week of failures.

Model: NICs fail at rate 1 / MTTF in the whole job. After a failure the job either restarts from a checkpoint, which
loses `restart_s`, or goes on with a slower AllReduce until the NIC is replaced `repair_s` later. Failures are a Poisson
process and repairs do not wait for each other (M/G/infinity), so the number of NICs that are down at a time is Poisson
with mean repair / MTTF, whatever the distribution of repair times (Kleinrock, "Queueing Systems I", 1975, 3.4). With
k down, a step takes longer by (share of a fault-free step that is exposed AllReduce) x (overhead of the scheme at k).

Inputs that are quoted: LLaMA 3's 54 days on 16384 GPUs had 466 interruptions, 419 of them unexpected, one in about 3 h
(Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.4); 2.7 h and 68 minutes lost by a restart are the
figures that the literature on NIC failover works with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, factorial

WEEK_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Job:
    """mttf_s : seconds between NIC failures; repair_s : until a dead NIC is replaced; restart_s : lost by a restart;
    exposed : the share of a fault-free step that is AllReduce not hidden behind computation.
    """

    mttf_s: float = 2.7 * 3600
    repair_s: float = 8 * 3600.0
    restart_s: float = 68 * 60.0
    exposed: float = 0.2

    @property
    def failures(self) -> float:
        """Failures expected in a week."""
        return WEEK_S / self.mttf_s

    @property
    def down(self) -> float:
        """NICs that are down at a time, on average."""
        return self.repair_s / self.mttf_s

    def lost_by_restarts(self) -> float:
        """Share of the week that is lost when every failure restarts the job."""
        return self.restart_s / (self.mttf_s + self.restart_s)

    def lost_by_slowdown(self, overheads: Sequence[float]) -> float:
        """Share of the week that is lost when the job goes on; `overheads[k - 1]` is that of k NICs down at once, and
        the last one stands for all larger k.
        """
        lost, left = 0.0, 1.0 - exp(-self.down)
        for k, overhead in enumerate(overheads, start=1):
            chance = left if k == len(overheads) else exp(-self.down) * self.down**k / factorial(k)
            slower = self.exposed * overhead
            lost += chance * slower / (1 + slower)
            left -= chance
        return lost
