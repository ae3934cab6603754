"""Plans as files: JSON with a version and an id, read back with every field checked."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from optcc.bound import Bound, Certificate, DualCut, Price, ProgramCertificate
from optcc.cluster import Cluster, Fabric, Nic, Server
from optcc.errors import InputError
from optcc.plans import Plan
from optcc.schedule.families import FAMILIES
from optcc.schedule.recipe import exact

VERSION = 2


def plan_content(plan: Plan) -> dict[str, Any]:
    """Everything that a plan's id is made of, as JSON values."""
    return {
        "version": VERSION,
        "family": plan.recipe.family,
        "nbytes": plan.bound.nbytes,
        "recipe": plan.recipe.content(),
        "bound": {
            "seconds": str(plan.bound.seconds),
            "fault_free_s": str(plan.bound.fault_free_s),
            "bottleneck": plan.bound.bottleneck,
            "certificate": _plain(asdict(plan.bound.certificate)),
        },
        "fabric": _plain(asdict(plan.cluster.fabric)),
        "gpu_ranks": plan.cluster.gpu_ranks,
        "cluster": _servers_out(plan.cluster),
        "pristine": _servers_out(plan.cluster.pristine) if plan.cluster.pristine else None,
    }


def read_plan(text: str, where: str) -> Plan:
    """Read a plan back. Raises InputError for anything that is not an intact plan of this version."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("not JSON", where=where, expected="a plan written by optcc plan", got=str(error)) from None
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        got = raw.get("version") if isinstance(raw, dict) else type(raw).__name__
        raise InputError(
            "not a plan of this version",
            where=where,
            expected=f'"version": {VERSION}',
            got=str(got),
            hint="Make it anew with optcc plan.",
        )
    try:
        plan = _plan_in(raw)
    except InputError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise InputError(error.what, where=place, expected=error.expected, got=error.got, hint=error.hint) from None
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InputError(
            "not an intact plan", where=where, expected="the fields of optcc plan", got=repr(error)[:200]
        ) from None
    if raw != {"plan_id": plan.plan_id, **plan_content(plan)}:
        raise InputError(
            "the plan was changed after it was made",
            where=where,
            expected=f"plan_id {plan.plan_id}",
            got=str(raw.get("plan_id")),
            hint="Make it anew with optcc plan.",
        )
    return plan


def _plan_in(raw: dict[str, Any]) -> Plan:
    fabric = Fabric(
        raw["fabric"]["rails"],
        *(None if raw["fabric"][k] is None else exact(raw["fabric"][k]) for k in ("spine", "pod_oversubscription")),
    )
    whole = Cluster(_servers_in(raw["cluster"]), fabric=fabric, gpu_ranks=raw["gpu_ranks"])
    pristine = replace(whole, servers=_servers_in(raw["pristine"])) if raw["pristine"] else None
    plan = Plan(
        cluster=replace(whole, pristine=pristine),
        bound=Bound(
            raw["nbytes"],
            exact(raw["bound"]["seconds"]),
            exact(raw["bound"]["fault_free_s"]),
            raw["bound"]["bottleneck"],
            _certificate_in(raw["bound"]["certificate"]),
        ),
        recipe=FAMILIES[raw["family"]].read(raw["recipe"]),
    )
    plan.recipe.check(plan.cluster)
    return plan


def load_plan(path: Path) -> Plan:
    """Read a plan file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("cannot be read", where=str(path), expected="a plan file", got=str(error)) from None
    return Plan.from_json(text, where=str(path))


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan file, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(plan.to_json() + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        expected = "a folder that exists and may be written to"
        raise InputError("cannot be written", where=str(path), expected=expected, got=error.strerror) from None


def _servers_out(cluster: Cluster) -> list[dict[str, Any]]:
    return [
        {
            "name": server.name,
            "gpus": server.gpus,
            "nvlink_rate": str(server.nvlink_rate),
            "pod": server.pod,
            "nics": [
                {"name": n.name, "out": str(n.out_rate), "in": str(n.in_rate), "rail": n.rail, "gpu": n.gpu}
                for n in server.nics
            ],
        }
        for server in cluster.servers
    ]


def _servers_in(raw: list[dict[str, Any]]) -> tuple[Server, ...]:
    return tuple(
        Server(
            name=s["name"],
            nics=tuple(Nic(n["name"], exact(n["out"]), exact(n["in"]), n["rail"], n["gpu"]) for n in s["nics"]),
            gpus=s["gpus"],
            nvlink_rate=exact(s["nvlink_rate"]),
            pod=s["pod"],
        )
        for s in raw
    )


def _plain(value: Any) -> Any:
    """Dataclass fields as JSON values: exact numbers become strings."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Fraction) else value


def _certificate_in(raw: dict[str, Any]) -> Certificate | ProgramCertificate:
    if raw["kind"] != "program":
        return Certificate(raw["kind"], raw["direction"], tuple(raw["ranks"]), raw["nbytes"], exact(raw["rate"]))
    return ProgramCertificate(
        rate=exact(raw["rate"]),
        reached=exact(raw["reached"]),
        nbytes=raw["nbytes"],
        prices=tuple(
            Price(p["what"], exact(p["share"]), p["count"], exact(p["gain"]), tuple(p["nics"])) for p in raw["prices"]
        ),
        cuts=tuple(DualCut(c["side"], c["seen_from"], tuple(c["inside"]), c["weight"]) for c in raw["cuts"]),
        resource_prices=tuple(raw["resource_prices"]),
        denominator=raw["denominator"],
        collective=raw["collective"],
        root=raw["root"],
    )
