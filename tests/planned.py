"""Plans that must stay what they are: `golden_plans/planned.json` has their ids, from before planning moved into C.

`python -m tests.planned` writes the file anew, after a change that is meant to change plans.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import optcc
from optcc.values.cluster import Cluster, Fabric
from tests.direct_cases import RATE
from tests.fabrics import pods_of

KEPT = Path(__file__).parent / "golden_plans" / "planned.json"
MIB = 2**20


def hurt(servers: int, nics: int, *lost: tuple[int, ...], rails: bool = False, slow: int = 0) -> Cluster:
    """Of the servers after the first, the i-th has lost the NICs lost[i]; the `slow` last ones have a NIC at a half."""
    cluster = replace(Cluster.uniform(servers=servers, nics=nics, rate=RATE), fabric=Fabric(rails=rails))
    for server, dead in enumerate(lost, 1):
        for nic in dead:
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    for server in range(servers - slow, servers):
        cluster = cluster.degrade(f"server{server}/nic0", Fraction(1, 2))
    return cluster


def cases() -> Iterator[tuple[str, Cluster, int, str, str]]:
    """(name, cluster, bytes, alpha, a chunk's cost) of all kinds of clusters that direct exchange knows, and others."""
    half = tuple(range(4))
    clusters = {
        "healthy": hurt(8, 4),
        "one": hurt(8, 8, (0,)),
        "two": hurt(6, 4, (0,), (3,)),
        "different": hurt(9, 8, (0, 1), (2,), (5, 6, 7)),
        "half": hurt(8, 8, half),
        "half of three": hurt(3, 4, (0, 1)),
        "half and one": hurt(8, 8, half, (7,)),
        "one left": hurt(7, 4, (0, 1, 2)),
        "two halves": hurt(8, 8, half, half),
        "other halves": hurt(10, 8, half, (4, 5, 6, 7)),
        "three halves": hurt(12, 4, (0, 1), (0, 1), (0, 1)),
        "quiet": hurt(12, 8, (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5)),
        "rails": hurt(8, 4, (0,), rails=True),
        "rails, half": hurt(8, 4, (0, 1), rails=True),
        "rails, two halves": hurt(8, 4, (0, 1), (2,), (0, 1), rails=True),
        "lanes": hurt(6, 4, (0,), slow=1),
        "many": hurt(20, 8, (0,)),
        "many, half": hurt(18, 4, (0, 1)),
        "pods": pods_of(hurt(8, 4, (0,)), 4),
        "pods, half": pods_of(hurt(8, 4, (0, 1)), 4),
        "gpus": replace(Cluster.uniform(servers=2, nics=4, rate=RATE, nvlink_rate=9 * RATE), gpu_ranks=True),
    }
    for name, cluster in clusters.items():
        yield name, cluster, 256 * MIB, "5us", "1us"
    for name in ("one", "different", "half", "two halves", "rails, half", "pods"):
        yield f"{name}, small", clusters[name], MIB + 8, "2us", "0.1us"
        yield f"{name}, free", clusters[name], 64 * MIB, "0us", "0us"


def chosen(cluster: Cluster, nbytes: int, alpha: str, per_chunk: str) -> str:
    """Family, segments and id of the plan."""
    plan = optcc.plan(cluster, nbytes, alpha=alpha, per_chunk=per_chunk)
    return f"{plan.family} {plan.segments} {plan.plan_id}"


if __name__ == "__main__":
    found = {case[0]: chosen(*case[1:]) for case in cases()}
    KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
