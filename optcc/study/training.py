"""What a slower AllReduce costs a training job over a week of NIC failures.

Model: a job of `mttf_gpus` GPUs is interrupted by any cause once every `mttf_s`; the share `nic_share` of that are lost
NICs, one per GPU, and NICs fail alike in any job. So NICs fail at rate nic_share / mttf_s x gpus / mttf_gpus in a job
of `gpus` GPUs, as in the Monte Carlo of `optcc.study.failures`. At a failure the job either restarts from a checkpoint,
which loses `restart_s` seconds, or goes on. Then it stops for `failover_s`, until all flows have left the NIC, and has
a slower AllReduce until the NIC is replaced `repair_s` later. Failures are a Poisson process and repairs are
independent (M/G/infinity). So the number of NICs down at a time is Poisson with mean repair x rate, whatever the
distribution of repair times (Kleinrock, "Queueing Systems I", 1975, 3.4). With k down, a step takes longer by (share of
a fault-free step that is exposed AllReduce) x (overhead of the scheme at k).

Inputs that are quoted: LLaMA 3's 54 days on 16384 GPUs had 466 interruptions, 419 of them unexpected, one in about 3 h.
Of these 7 were NICs and 35 switches or cables (Grattafiori et al., "The Llama 3 Herd of Models", 2024, table 5); 2.7 h
and 68 minutes lost by a restart are the figures that the literature on NIC failover works with. 6 s is about what the
same paper's table 4 makes a step: 6 x 405e9 operations for each of 16 million tokens, at 400e12 a second and GPU. 0.3 s
is what the native engine takes from the moment when a NIC goes silent until all flows have left it, 0.1 s until a wire
is doubted and 0.15 s more until it is left (docs/failover.md); one that reports its failure takes some milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, factorial

WEEK_S = 7 * 24 * 3600.0
FAILOVER_S = 0.3


@dataclass(frozen=True)
class TrainingJob:
    """mttf_s : seconds between interruptions, by any cause, of a job of `mttf_gpus` GPUs; nic_share : the share of them
    that are lost NICs; repair_s : until a dead NIC is replaced; restart_s : lost by a restart; exposed : the share of a
    fault-free step that is AllReduce not hidden behind computation; step_s : of a fault-free step; failover_s : lost by
    going on after a failure; gpus : of this job.
    """

    mttf_s: float = 2.7 * 3600
    mttf_gpus: int = 16384
    nic_share: float = 42 / 419
    repair_s: float = 8 * 3600.0
    restart_s: float = 68 * 60.0
    exposed: float = 0.2
    step_s: float = 6.0
    failover_s: float = FAILOVER_S
    gpus: int = 16384

    @property
    def nic_mttf_s(self) -> float:
        """Seconds between NIC failures in this job."""
        return self.mttf_s * self.mttf_gpus / (self.gpus * self.nic_share)

    @property
    def failures(self) -> float:
        """NIC failures expected in a week."""
        return WEEK_S / self.nic_mttf_s

    @property
    def down(self) -> float:
        """NICs that are down at a time, on average."""
        return self.repair_s / self.nic_mttf_s

    def lost_by_restarts(self) -> float:
        """Share of the week that is lost when every NIC failure restarts the job."""
        return self._lost_by_stops(self.restart_s)

    def lost_by_going_on(self, overheads: Sequence[float]) -> float:
        """Share of the week that is lost by failovers, and by what `lost_by_slowdown` says of the time between them."""
        return 1 - (1 - self._lost_by_stops(self.failover_s)) * (1 - self.lost_by_slowdown(overheads))

    def _lost_by_stops(self, stop_s: float) -> float:
        """Share of the week that is lost when every NIC failure stops the job for so long."""
        return stop_s / (self.nic_mttf_s + stop_s)

    def lost_by_slowdown(self, overheads: Sequence[float]) -> float:
        """Share of time that is lost by steps that are slower; `overheads[k - 1]` is that of k NICs down at once, and
        the last one stands for all larger k.
        """
        lost, left = 0.0, 1.0 - exp(-self.down)
        for k, overhead in enumerate(overheads, start=1):
            chance = left if k == len(overheads) else exp(-self.down) * self.down**k / factorial(k)
            slower = self.exposed * overhead
            lost += chance * slower / (1 + slower)
            left -= chance
        return lost

    def per_step_s(self, lost: float) -> float:
        """Seconds that a step takes longer on average over the week when the share `lost` of the week is lost."""
        return self.step_s * lost / (1 - lost)
