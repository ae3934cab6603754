"""Plans as files: JSON with a version and an id, read back with every field checked.

docs/plan-format.md describes the fields and the version policy, optcc/schema/plan-1.schema.json what may be written.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from optcc.errors import InputError
from optcc.files.reading import json_object, read_file, shown, text_of
from optcc.files.writing import write_file
from optcc.plans.plan import Plan
from optcc.schedule.families import FAMILIES
from optcc.schedule.recipe import OfFamily, Recipe
from optcc.values.bound import Bound, Certificate, ProgramCertificate
from optcc.values.cluster import InFile
from optcc.values.json_records import (
    MAX_BYTES,
    Bytes,
    FieldError,
    agree,
    canonical,
    lines,
    parse,
    read_json,
    write_json,
)

# The fields of a plan file: what a plan's id is made of.


@dataclass(frozen=True)
class BoundFields:
    """A bound as plans have it, without what proves that it is reached: an executor needs neither.

    seconds : no AllReduce takes less; fault_free_s : the same before any failure
    bottleneck : the certificate in words
    """

    seconds: Fraction
    fault_free_s: Fraction
    bottleneck: str
    certificate: Certificate | ProgramCertificate


@dataclass(frozen=True)
class PlanFields:
    """A plan as files have it.

    nbytes : bytes of the buffer on each rank
    """

    nbytes: Bytes
    recipe: Annotated[Recipe, OfFamily("recipe", FAMILIES)]
    bound: BoundFields
    cluster: InFile


def plan_out(plan: Plan) -> dict[str, Any]:
    """The fields of `plan` as JSON values."""
    bound = plan.bound
    told = BoundFields(bound.seconds, bound.fault_free_s, bound.bottleneck, bound.certificate)
    return write_json(PlanFields, PlanFields(bound.nbytes, plan.recipe, told, plan.cluster))  # type: ignore[no-any-return]


def plan_in(raw: dict[str, Any]) -> Plan:
    """The plan whose fields are `raw`. FieldError or InputError for anything else."""
    read: PlanFields = read_json(PlanFields, raw)
    told = read.bound
    bound = Bound(read.nbytes, told.seconds, told.fault_free_s, told.bottleneck, told.certificate)
    plan = Plan(read.cluster, bound, read.recipe)
    plan.recipe.check(plan.cluster)
    return plan


FORMAT = "optcc-plan"
MAJOR, MINOR = 1, 0
"""Of the format: a reader takes every minor of its own major, and no other major."""
_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")
_OUTSIDE_ID = {"plan_id", "lowered"}


def plan_content(plan: Plan) -> dict[str, Any]:
    """Everything that a plan's id is made of, as JSON values."""
    return {"format": FORMAT, "version": f"{MAJOR}.{MINOR}", "family": plan.recipe.family, **plan_out(plan)}


def content_id(content: dict[str, Any]) -> str:
    """Sixteen hex digits of SHA-256 over the canonical JSON of a plan's fields, without the id and the lowered part."""
    own = {name: value for name, value in content.items() if name not in _OUTSIDE_ID}
    return hashlib.sha256(canonical(own).encode()).hexdigest()[:16]


def write_plan(plan: Plan, lowered: str | None = None) -> str:
    """The text of a plan file; `lowered` as in `Plan.to_json`."""
    content = plan_content(plan)
    content = {"format": FORMAT, "version": content["version"], "plan_id": content_id(content), **content}
    if lowered is not None:
        from optcc.plans.lowered import lowered_content

        content["lowered"] = lowered_content(plan, lowered)
    return lines(content, 0)


def read_plan(text: str, where: str) -> Plan:
    """Read a plan back. Raises InputError for anything that is not an intact plan of a version that is known.

    Fields that a newer minor version has added are passed over. A lowered part must be what the plan lowers to.
    """
    try:
        raw = parse(text)
    except ValueError as error:
        hint = "Was it copied whole? `optcc plan TOPOLOGY --size SIZE -o FILE` writes one."
        raise InputError("not JSON", where=where, expected="a plan file", got=str(error), hint=hint) from None
    minor = _minor(raw, where)
    try:
        plan = plan_in(raw)
        known: dict[str, Any] = plan_content(plan)
        if "lowered" in raw:
            from optcc.plans.lowered import lowered_content

            lowered = raw["lowered"]
            known["lowered"] = lowered_content(plan, lowered.get("depth") if isinstance(lowered, dict) else lowered)
    except InputError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise InputError(error.what, where=place, expected=error.expected, got=error.got, hint=error.hint) from None
    except FieldError as error:
        newer = f"It is of version {raw['version']}: a newer optcc may read it." if minor > MINOR else None
        place = f"{where}: {error.place}" if error.place else where
        raise InputError(
            "not an intact plan", where=place, expected=error.expected, got=error.got, hint=newer
        ) from None
    own = content_id(raw)
    said = {name: value for name, value in raw.items() if name not in ("plan_id", "format", "version")}
    known = {name: known[name] for name in known if name not in ("format", "version")}
    if raw.get("plan_id") != own or not agree(known, said, strictly=minor <= MINOR):
        raise InputError(
            "the plan was changed after it was made",
            where=where,
            expected=f"plan_id {own}" if raw.get("plan_id") != own else "what optcc writes for this plan",
            got=str(raw.get("plan_id"))[:60] if raw.get("plan_id") != own else "other fields, or another lowered part",
            hint="Make it anew with optcc plan.",
        )
    return plan


def _minor(raw: Any, where: str) -> int:
    """The minor version of a file of our major. Raises InputError for anything else."""
    said = raw.get("version") if isinstance(raw, dict) else type(raw).__name__
    found = _VERSION.fullmatch(said) if isinstance(said, str) else None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT or not found or int(found[1]) != MAJOR:
        newer = found is not None and int(found[1]) > MAJOR
        raise InputError(
            "not a plan of this version",
            where=where,
            expected=f'"format": "{FORMAT}", "version": "{MAJOR}.x"',
            got=str(said)[:60],
            hint="A newer optcc reads it." if newer else "Make it anew with optcc plan.",
        )
    return int(found[2])


def load_plan(path: Path | str) -> Plan:
    """Read a plan file; ``-`` is standard input. Raises InputError for anything that is not an intact plan."""
    hint = "`optcc plan TOPOLOGY --size SIZE -o FILE` writes one."
    data = read_file(path, MAX_BYTES, what="plan", expected="a plan file", hint=hint)
    try:
        text = text_of(data)
    except UnicodeDecodeError:
        raise InputError(
            "cannot be read", where=shown(path), expected="a plan file", got="not text", hint=hint
        ) from None
    return Plan.from_json(json_object(text, "format", "plan_id") or text, where=shown(path))


def save_plan(plan: Plan, path: Path, lowered: str | None = None) -> None:
    """Write a plan file, whole or not at all; ``-`` is standard output; `lowered` as in `Plan.to_json`.

    Raises InputError where it cannot be written, and for one that `load_plan` would not read again, of its size.
    """
    data = write_plan(plan, lowered).encode() + b"\n"
    if len(data) > MAX_BYTES:
        raise InputError(
            "too large for a plan",
            where="--lowered" if lowered else str(path),
            expected=f"at most {MAX_BYTES} bytes",
            got=len(data),
            hint="Fewer --segments, or less of --lowered." if lowered else None,
        )
    write_file(path, data)
