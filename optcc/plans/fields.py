"""The fields of a plan file: what a plan's id is made of."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from optcc.plans.plan import Plan
from optcc.schedule.families import FAMILIES
from optcc.schedule.recipe import OfFamily, Recipe
from optcc.values.bound import Bound, Certificate, ProgramCertificate
from optcc.values.cluster_json import InFile
from optcc.values.json_records import read_json, write_json
from optcc.values.json_types import Bytes


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
