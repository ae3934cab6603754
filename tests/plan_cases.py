"""Plans of every family, small and always the same, and the parts of plan files, bent on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import optcc
from optcc.plans.files import BESIDE_MAJOR, HEADER, MAJOR, MINOR, _id, archive
from optcc.plans.plan import Plan
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.recipe import Costs
from optcc.values.cluster import Cluster, Fabric
from tests.fabrics import pods_of
from tests.test_families import offered

GOLDEN = Path(__file__).parent / "golden_plans"


NAMES = (
    *(
        "nested-rings",
        "striped-exchange",
        "trees",
        "packed-trees",
        "whole-vectors",
        "halving",
        "ring-equal",
        "ring-rate",
    ),
    *("nccl-tree", "r2cc-allreduce", "optcc-published", "ring-repaired", "inside-servers", "grouped-exchange"),
    *("direct-exchange-none-starves", "direct-exchange-one-starves", "direct-exchange-several-starve"),
    *("nested-rings-pace", "packed-trees-rails"),
)
"""Of `cases`, which are not planned before a test asks for one."""


@cache
def cases() -> dict[str, Plan]:
    """A plan of every family and spread, by name: 4 servers of 2 NICs, one NIC at a third, 2 segments of 1000 bytes."""
    flat = Cluster.uniform(servers=4, nics=2, gpus=2, rate=3000, nvlink_rate=9000).degrade(
        "server1/nic0", Fraction(1, 3)
    )
    rails = Cluster(flat.servers, fabric=Fabric(rails=True, spine=Fraction(2)))
    # A repaired ring needs a dead NIC, GPUs as ranks a cluster that was made so.
    dead = Cluster.uniform(servers=4, nics=2, rate=3000).degrade("server1/nic0")
    gpus = replace(Cluster.uniform(servers=2, nics=2, rate=3000, nvlink_rate=9000), gpu_ranks=True)
    starving = dead.degrade("server2/nic0")
    found: dict[str, Plan] = {}
    for cluster in (flat, dead, starving, gpus.degrade("server1/nic0", Fraction(1, 3)), rails):
        for plan in offered(cluster, 2000, 2):
            if plan.family == "direct-exchange":
                continue
            found.setdefault("-".join([plan.family, *_spread(plan)]), plan)
    pods = pods_of(dead, 2)
    bound = optcc.lower_bound(pods, 2000)
    (grouped, *_) = GroupedExchange.candidates(pods, bound, Costs())
    found["grouped-exchange"] = Plan(pods, bound, grouped.make(2))
    hurt = Cluster.uniform(servers=4, nics=3, rate=3000).degrade("server1/nic0").degrade("server2/nic2")
    for cluster in (hurt, dead, starving):
        made = next(p for p in offered(cluster, 2000, 4) if p.family == "direct-exchange")
        found[f"direct-exchange-{made.choices['steps']}"] = made
    two = flat.degrade("server2/nic0", Fraction(1, 4))
    found["nested-rings-pace"] = next(p for p in offered(two, 2000, 2) if p.family == "nested-rings")
    found["packed-trees-rails"] = next(p for p in offered(rails, 2000, 2) if p.family == "packed-trees")
    return found


def _spread(plan: Plan) -> list[str]:
    return [str(spread)] if (spread := getattr(plan.recipe, "spread", None)) else []


Parts = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""Header and columns of a plan file."""


def parts(data: bytes) -> Parts:
    """Those of a file."""
    with np.load(BytesIO(data)) as found:
        columns = {name: found[name] for name in found.files if name != HEADER}
        return json.loads(found[HEADER]), columns


def again(header: dict[str, Any], columns: dict[str, NDArray[Any]], *, packed: bool = False) -> bytes:
    """A plan file of these parts, with the id that fits them."""
    return unlike({**header, "plan_id": _id(header, columns)}, columns, packed=packed)


def unlike(header: dict[str, Any], columns: dict[str, NDArray[Any]], *, packed: bool = False) -> bytes:
    """The same with the id that is there."""
    arrays = {f"{name}.npy": npy(column) for name, column in columns.items()}
    return archive({HEADER: json.dumps(header, indent=1).encode(), **arrays}, packed)


def npy(column: NDArray[Any]) -> bytes:
    """A column as numpy.save writes it."""
    file = BytesIO()
    np.save(file, column)
    return file.getvalue()


def write_golden() -> None:
    """Add this version's golden files. What is there stays: a published version's files are never written again."""
    names = ("direct-exchange-one-starves", "inside-servers", "nested-rings-pace", "packed-trees-rails")
    for major, name in [*((MAJOR, name) for name in names), (BESIDE_MAJOR, "whole-vectors")]:
        path = GOLDEN / f"{major}.{MINOR}" / f"{name}.plan"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(cases()[name].to_bytes())


def change_at(place: int, value: int | str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """What writes this there, into a column."""

    def change(column: NDArray[Any]) -> NDArray[Any]:
        column[place] = value
        return column

    return change


def bent(content: dict[str, Any], path: Sequence[int | str], value: Any) -> dict[str, Any]:
    """A copy with `value` at `path`; ... takes away what is there."""
    copy: Any = json.loads(json.dumps(content))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


if __name__ == "__main__":
    write_golden()
