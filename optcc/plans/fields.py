"""A plan out of the JSON values of its file, the kind of every value checked."""

from __future__ import annotations

from typing import Any

from optcc.errors import InputError
from optcc.plans.plan import Plan
from optcc.schedule.families import FAMILIES, REMOVED
from optcc.values.bound import Bound, Certificate, DualCut, Price, ProgramCertificate
from optcc.values.cluster_json import cluster_in
from optcc.values.json_fields import MOST_BYTES, MOST_INDEX, exact, one_of, text, whole

FLAGS = {"rails", "gpu_ranks", "hand_on", "straight", "nvlink", "each"}
"""The only fields that are true or false."""


def plan_in(raw: dict[str, Any]) -> Plan:
    """The plan whose fields are `raw`. InputError, KeyError, TypeError, ValueError and their like for anything else."""
    if raw["family"] in REMOVED:
        raise InputError(
            "a family of an earlier version",
            where="family",
            expected="one that this version lowers",
            got=raw["family"],
            hint="Make the plan anew with optcc plan: other families serve its cluster as well.",
        )
    plan = Plan(
        cluster=cluster_in(raw),
        bound=Bound(
            whole(raw["nbytes"], MOST_BYTES),
            exact(raw["bound"]["seconds"]),
            exact(raw["bound"]["fault_free_s"]),
            text(raw["bound"]["bottleneck"]),
            _certificate_in(raw["bound"]["certificate"]),
        ),
        recipe=FAMILIES[one_of(raw["family"], tuple(FAMILIES))].read(raw["recipe"]),
    )
    plan.recipe.check(plan.cluster)
    return plan


def _certificate_in(raw: dict[str, Any]) -> Certificate | ProgramCertificate:
    if raw["kind"] != "program":
        return Certificate(
            one_of(raw["kind"], ("cut", "traffic", "trivial")),
            one_of(raw["direction"], ("out", "in")),
            tuple(whole(rank, MOST_INDEX) for rank in raw["ranks"]),
            whole(raw["nbytes"]),
            exact(raw["rate"]),
        )
    return ProgramCertificate(
        rate=exact(raw["rate"]),
        reached=exact(raw["reached"]),
        nbytes=whole(raw["nbytes"], MOST_BYTES),
        prices=tuple(
            Price(
                text(p["what"]),
                exact(p["share"]),
                whole(p["count"]),
                exact(p["gain"]),
                tuple(map(text, p["nics"])),
            )
            for p in raw["prices"]
        ),
        cuts=tuple(
            DualCut(
                one_of(c["side"], ("broadcast", "reduce")),
                whole(c["seen_from"], MOST_INDEX),
                tuple(map(whole, c["inside"])),
                whole(c["weight"]),
            )
            for c in raw["cuts"]
        ),
        resource_prices=tuple(map(whole, raw["resource_prices"])),
        denominator=whole(raw["denominator"]),
        collective=text(raw["collective"]),
        root=None if raw["root"] is None else text(raw["root"]),
    )


def demand_flags(value: Any, name: str = "") -> None:
    """Python takes true for 1; a recipe that holds it would be written as it was read."""
    if isinstance(value, dict):
        for inner, part in value.items():
            demand_flags(part, inner)
    elif isinstance(value, list):
        for part in value:
            demand_flags(part)
    elif isinstance(value, bool) and name not in FLAGS:
        raise ValueError(f"{name}: true or false where a number belongs")
