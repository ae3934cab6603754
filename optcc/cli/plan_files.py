"""Plan files that commands read: their bound is printed only when its certificate proves it."""

from __future__ import annotations

from pathlib import Path

from optcc.errors import CertificateError
from optcc.files.reading import shown
from optcc.plans.plan import Plan
from optcc.values.bound import ProgramCertificate
from optcc.values.units import format_seconds

NOT_CHECKED = "not checked: the fault-free bound, and that it is reached (optcc.check_bound solves for them)"


def load_proved(path: Path) -> Plan:
    """Read a plan file whose certificate proves its bound. Raises InputError for none, CertificateError where not."""
    from optcc.plans.files import load_plan
    from optcc.theory.bound_check import check_seconds

    plan = load_plan(path)
    try:
        check_seconds(plan.cluster, plan.bound)
    except CertificateError as error:
        raise CertificateError(f"{shown(path)}: the bound in this plan is false: {error}") from None
    return plan


def bound_in_words(plan: Plan) -> str:
    """The bound of a plan that `load_proved` has read, and what of it was checked."""
    told = f"{format_seconds(float(plan.bound.seconds))}, proved by its certificate"
    return f"{told}; {NOT_CHECKED}" if isinstance(plan.bound.certificate, ProgramCertificate) else told
