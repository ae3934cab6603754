"""What others run on a degraded cluster, by name: recipes that go through the same verifier and simulator as ours.

docs/baselines.md tells what each does, its closed form and its source.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from optcc.errors import InputError
from optcc.schedule.optcc_paper import OptccPaper, paper_share
from optcc.schedule.r2cc import R2cc
from optcc.schedule.recipe import Recipe
from optcc.schedule.ring import NicSpread, PlainRing
from optcc.values.cluster import Cluster


def ring(cluster: Cluster, segments: int) -> PlainRing:
    """A ring in cluster order, every live NIC with the same part of every transfer."""
    return PlainRing(segments, NicSpread.EQUAL)


def balance(cluster: Cluster, segments: int) -> PlainRing:
    """The same ring, transfers spread over live NICs by their rates: T = T0/(1-X) (proof id ``rivals``)."""
    return PlainRing(segments, NicSpread.RATE)


def hot_repair(cluster: Cluster, segments: int) -> PlainRing:
    """The fault-free ring with a dead NIC's channel on one backup NIC: T = 2 T0 (proof id ``rivals``).

    Raises InputError where no NIC is dead: nothing was repaired then.
    """
    if all(nic.out_rate and nic.in_rate for server in cluster.servers for nic in server.nics):
        raise InputError("nothing to repair", where="hot-repair", expected="a dead NIC", got="none")
    return PlainRing(segments, NicSpread.REPAIRED)


def r2cc(cluster: Cluster, segments: int) -> R2cc:
    """R2CC-AllReduce with Y = X and as many chunks as segments: T/T0 = 1 + X (1 + 1/K) P/(2(P-1)(1-X)) (proof id
    ``rivals``). Raises InputError unless one server of 3 or more is degraded.
    """
    weak, left = one_degraded(cluster, "r2cc")
    return R2cc(segments, segments, weak, 1 - left)


def optcc_published(cluster: Cluster, segments: int) -> OptccPaper:
    """OptCC with `segments` equal segments: at most (k+1)/k of the bound. Raises InputError as `r2cc` does."""
    weak, left = one_degraded(cluster, "optcc-published")
    return OptccPaper(segments, weak, paper_share(len(cluster.ranks), left))


BASELINES: dict[str, Callable[[Cluster, int], Recipe]] = {
    "ring": ring,
    "balance": balance,
    "hot-repair": hot_repair,
    "r2cc": r2cc,
    "optcc-published": optcc_published,
}
"""Name -> maker of (cluster, segments). `Recipe.check` says what else a baseline asks of the cluster."""


def one_degraded(cluster: Cluster, scheme: str) -> tuple[int, Fraction]:
    """The one degraded rank among equals, and the part of their rate that it keeps, the lesser of out and in.

    Raises InputError when there are fewer than 3 ranks, or another number of ranks is below the best.
    """
    rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
    weak = [r for r, rate in enumerate(rates) if rate < max(rates)]
    if len(rates) < 3 or len(weak) != 1 or not rates[weak[0]]:
        raise InputError(
            "published for one degraded server only",
            where=scheme,
            expected="3 or more servers, one of them with less than the others' rate and more than none",
            got=f"{len(rates)} servers, {len(weak)} with less than the best",
        )
    return weak[0], rates[weak[0]] / max(rates)
