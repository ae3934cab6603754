"""Plans of every family, small and always the same, and what a plan file says as JSON, bent on purpose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import optcc
from optcc.plans.files import content_id
from optcc.plans.plan import Plan
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.recipe import Costs
from optcc.values.cluster import Cluster, Fabric
from tests.fabrics import pods_of
from tests.test_families import offered

GOLDEN = Path(__file__).parent / "golden_plans"


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
            if plan.recipe.family == "direct-exchange":
                continue
            found.setdefault("-".join([plan.recipe.family, *_spread(plan)]), plan)
    pods = pods_of(dead, 2)
    bound = optcc.lower_bound(pods, 2000)
    (grouped, *_) = GroupedExchange.candidates(pods, bound, Costs())
    found["grouped-exchange"] = Plan(pods, bound, grouped.make(2))
    hurt = Cluster.uniform(servers=4, nics=3, rate=3000).degrade("server1/nic0").degrade("server2/nic2")
    for cluster in (hurt, dead, starving):
        made = next(p for p in offered(cluster, 2000, 4) if p.recipe.family == "direct-exchange")
        found[f"direct-exchange-{made.recipe.content()['steps']}"] = made
    two = flat.degrade("server2/nic0", Fraction(1, 4))
    found["nested-rings-pace"] = next(p for p in offered(two, 2000, 2) if p.recipe.family == "nested-rings")
    found["packed-trees-rails"] = next(p for p in offered(rails, 2000, 2) if p.recipe.family == "packed-trees")
    return found


def _spread(plan: Plan) -> list[str]:
    return [str(spread)] if (spread := getattr(plan.recipe, "spread", None)) else []


def again(content: dict[str, Any]) -> str:
    """The text of a plan file with this content and the id that fits it."""
    return json.dumps({**content, "plan_id": content_id(content)})


Path_ = tuple[str | int, ...]


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The path of every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in inner:
        yield (*path, step)
        yield from places(part, (*path, step))


def bent(content: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
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


def extended(value: Any) -> Any:
    """A copy with a field more in every object."""
    if isinstance(value, dict):
        return {**{name: extended(part) for name, part in value.items()}, "added_later": [{"x": None}, -7, "\u00e9"]}
    return [extended(part) for part in value] if isinstance(value, list) else value


def write_golden() -> None:
    """Add this version's golden files. What is there stays: a published version's files are never written again."""
    from optcc.plans.files import MAJOR, MINOR

    folder = GOLDEN / f"{MAJOR}.{MINOR}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, plan in cases().items():
        path = folder / f"{name}.plan.json"
        if not path.exists():
            path.write_text(plan.to_json("transfers") + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden()
