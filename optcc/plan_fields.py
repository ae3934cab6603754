"""A plan out of the JSON values of its file, the kind of every value checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from optcc.bound import Bound, Certificate, DualCut, Price, ProgramCertificate
from optcc.cluster import Cluster, Fabric, Nic, Server
from optcc.plans import Plan
from optcc.schedule.families import FAMILIES
from optcc.schedule.recipe import exact

FLAGS = {"rails", "gpu_ranks", "hand_on", "straight", "nvlink", "sparse", "stepped", "inside"}
"""The only fields that are true or false."""
MOST_BYTES = 2**63 - 1
MOST_INDEX = 2**31 - 1

T = TypeVar("T")


def plan_in(raw: dict[str, Any]) -> Plan:
    """The plan whose fields are `raw`. InputError, KeyError, TypeError, ValueError and their like for anything else."""
    fabric = Fabric(
        _flag(raw["fabric"]["rails"]),
        *(None if raw["fabric"][k] is None else exact(raw["fabric"][k]) for k in ("spine", "pod_oversubscription")),
    )
    whole = Cluster(_servers_in(raw["cluster"]), fabric=fabric, gpu_ranks=_flag(raw["gpu_ranks"]))
    pristine = replace(whole, servers=_servers_in(raw["pristine"])) if raw["pristine"] else None
    plan = Plan(
        cluster=replace(whole, pristine=pristine),
        bound=Bound(
            _whole(raw["nbytes"], MOST_BYTES),
            exact(raw["bound"]["seconds"]),
            exact(raw["bound"]["fault_free_s"]),
            _text(raw["bound"]["bottleneck"]),
            _certificate_in(raw["bound"]["certificate"]),
        ),
        recipe=FAMILIES[_one_of(raw["family"], tuple(FAMILIES))].read(raw["recipe"]),
    )
    plan.recipe.check(plan.cluster)
    return plan


def _servers_in(raw: list[dict[str, Any]]) -> tuple[Server, ...]:
    return tuple(
        Server(
            name=s["name"],
            nics=tuple(
                Nic(n["name"], exact(n["out"]), exact(n["in"]), _maybe(n["rail"]), _maybe(n["gpu"])) for n in s["nics"]
            ),
            gpus=_whole(s["gpus"]),
            nvlink_rate=exact(s["nvlink_rate"]),
            pod=s["pod"],
        )
        for s in raw
    )


def _certificate_in(raw: dict[str, Any]) -> Certificate | ProgramCertificate:
    if raw["kind"] != "program":
        return Certificate(
            _one_of(raw["kind"], ("cut", "traffic", "trivial")),
            _one_of(raw["direction"], ("out", "in")),
            tuple(_whole(rank, MOST_INDEX) for rank in raw["ranks"]),
            _whole(raw["nbytes"]),
            exact(raw["rate"]),
        )
    return ProgramCertificate(
        rate=exact(raw["rate"]),
        reached=exact(raw["reached"]),
        nbytes=_whole(raw["nbytes"], MOST_BYTES),
        prices=tuple(
            Price(
                _text(p["what"]),
                exact(p["share"]),
                _whole(p["count"]),
                exact(p["gain"]),
                tuple(map(_text, p["nics"])),
            )
            for p in raw["prices"]
        ),
        cuts=tuple(
            DualCut(
                _one_of(c["side"], ("broadcast", "reduce")),
                _whole(c["seen_from"], MOST_INDEX),
                tuple(map(_whole, c["inside"])),
                _whole(c["weight"]),
            )
            for c in raw["cuts"]
        ),
        resource_prices=tuple(map(_whole, raw["resource_prices"])),
        denominator=_whole(raw["denominator"]),
        collective=_text(raw["collective"]),
        root=None if raw["root"] is None else _text(raw["root"]),
    )


def _whole(value: Any, most: int | None = None) -> int:
    if type(value) is not int or value < 0 or (most is not None and value > most):
        raise ValueError(f"not a whole number: {str(value)[:60]}")
    return value


def _maybe(value: Any) -> int | None:
    return None if value is None else _whole(value, MOST_INDEX)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"not true or false: {str(value)[:60]}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"not text: {str(value)[:60]}")
    return value


def _one_of(value: T, known: Sequence[T]) -> T:
    if value not in known:
        raise ValueError(f"{str(value)[:60]} is none of {', '.join(map(str, known))}")
    return value


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
