"""Plan files that commands read: their bound is printed only when its certificate proves it."""

from __future__ import annotations

from pathlib import Path

from optcc.errors import CertificateError
from optcc.files.reading import shown
from optcc.plans.plan import Plan
from optcc.values.bound import LARGEST_GAP, ProgramCertificate, closed_form_s
from optcc.values.units import format_seconds

NOT_CHECKED = "not checked: that none is higher, and the fault-free bound (optcc.check_bound solves for them)"


def load_proved(path: Path) -> Plan:
    """Read a plan file whose certificate proves its bound. Raises InputError for none, CertificateError where not."""
    from optcc.plans.files import load_plan
    from optcc.theory.bounds import check_seconds

    plan = load_plan(path)
    try:
        check_seconds(plan.cluster, plan.bound)
    except CertificateError as error:
        raise CertificateError(f"{shown(path)}: the bound in this plan is false: {error}") from None
    return plan


def bound_in_words(plan: Plan) -> str:
    """The bound of a plan that `load_proved` has read, and what of it was checked."""
    seconds, cluster = plan.bound.seconds, plan.cluster
    told = format_seconds(float(seconds))
    if not isinstance(plan.bound.certificate, ProgramCertificate):
        return f"{told}, the optimum, proved by its certificate"
    flat = cluster.fabric.flat and not cluster.gpu_ranks
    if flat and (best := closed_form_s(cluster.ranks, plan.bound.nbytes)) > seconds * (1 + LARGEST_GAP):
        return f"{told}, a valid lower bound, but not the best known: {format_seconds(float(best))}"
    return f"{told}, a valid lower bound by its certificate; {NOT_CHECKED}"
