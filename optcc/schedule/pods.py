"""Pods: the ranks of each pod, their uplinks, and the part of the data that direct exchange sends over them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from optcc.values.cluster import Cluster


def pod_numbers(cluster: Cluster) -> list[int]:
    """Of each rank its pod's number, from 0; all 0 where no uplink limits anything."""
    if cluster.fabric.pod_oversubscription is None:
        return [0] * len(cluster.ranks)
    pods = [cluster.servers[rank.server].pod for rank in cluster.ranks]
    number = {pod: i for i, pod in enumerate(dict.fromkeys(pods))}
    return [number[pod] for pod in pods]


def uplinks(cluster: Cluster, groups: Sequence[int]) -> list[Fraction | None]:
    """Of each group, bytes per second each way of its pod's uplink; None: no uplink, or the group is no pod."""
    rates: dict[object, Fraction] = {}
    for (kind, which, _), rate in cluster.uplinks.items():
        if kind == "pod":
            rates[which] = min(rate, rates.get(which, rate))
    found: list[Fraction | None] = []
    for group in range(max(groups) + 1):
        mine = [rank for rank, own in zip(cluster.ranks, groups, strict=True) if own == group]
        pods = {cluster.servers[rank.server].pod for rank in mine}
        found.append(rates.get(next(iter(pods))) if len(pods) == 1 else None)
    return found


def direct_uplink_s(cluster: Cluster, shares: Sequence[Fraction], nbytes: int) -> Fraction:
    """Seconds of the busiest uplink if everybody exchanges directly with every hub; 0 without pods.

    shares : each rank's part of the data as a hub, sum 1
    """
    pods = pod_numbers(cluster)
    across = zip(direct_across(pods, shares), uplinks(cluster, pods), strict=True)
    return max((much / uplink for much, uplink in across if uplink is not None), default=Fraction(0)) * nbytes


def direct_across(pods: Sequence[int], shares: Sequence[Fraction]) -> list[Fraction]:
    """The part of the data that each pod's uplink carries each way in direct exchange.

    Let a pod have S of the P servers, hubs of the part X. It sends S (1 - X) of the data to other hubs, and the results
    of X to P - S servers; it receives as much. A rank that adds last to a part receives sums instead of results, and
    sends results instead of data: the same amounts.
    """
    found = []
    for pod in sorted({*pods}):
        inside = pods.count(pod)
        mine = sum((x for x, own in zip(shares, pods, strict=True) if own == pod), Fraction(0))
        found.append(inside * (1 - mine) + (len(pods) - inside) * mine)
    return found
