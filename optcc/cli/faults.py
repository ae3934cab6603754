"""Faults of `optcc run` on the command line: the options, and what each of them names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from optcc.cli.options import (
    stack,
)
from optcc.errors import InputError

if TYPE_CHECKING:
    from optcc.plans.plan import Plan
    from optcc.runtime.messages import Strike


_STRIKES = {
    "cut": ("NIC@PART", "The NIC's link goes down (PART of the transfers, such as 0.4)."),
    "hole": ("NIC@PART", "The NIC swallows everything and says nothing."),
    "slow": ("NIC@PART=LEFT", "The NIC keeps a fraction of its rate."),
    "flap": ("NIC@PART=TIME", "The NIC swallows everything for a while, then comes back."),
    "path": ("NIC,NIC@PART", "What goes between the two NICs is swallowed; both work with others (local only)."),
    "kill": ("SERVER@PART", "The server's process is killed."),
}
strike_options = stack(
    *(
        click.option(f"--{kind}", multiple=True, metavar=form, help=f"{what} PART 0.4: at 40 % of a collective.")
        for kind, (form, what) in _STRIKES.items()
    )
)


def parse_strike(kind: str, text: str, plan: Plan) -> Strike:
    """``server1/nic3@0.4``, ``server1/nic3@0.4=0.25``, ``server0/nic3,server1/nic3@0.4``, ``server2@0.5``."""
    from optcc.runtime.messages import Strike
    from optcc.values.units import parse_fraction, parse_seconds

    option = f"--{kind}"
    form = _STRIKES[kind][0]
    name, at_sign, when = text.partition("@")
    part, equals, amount = when.partition("=")
    needs = "=" in form
    name, _, far = name.partition(",") if kind == "path" else (name, "", "")
    if not at_sign or not name or bool(equals) != needs or bool(far) != (kind == "path"):
        raise InputError("not a fault", where=option, expected=form, got=text)
    at = float(parse_fraction(part, f"{option}: PART"))
    left = 0.0
    if needs:
        left = float(parse_fraction(amount, f"{option}: LEFT") if kind == "slow" else parse_seconds(amount, option))
    if kind == "slow" and not 0 < left < 1:
        raise InputError("not a fraction left", where=option, expected="above 0 and below 1", got=amount)
    if far and name.partition("/")[0] == far.partition("/")[0]:
        raise InputError("not a path", where=option, expected="NICs of two servers", got=f"{name},{far}")
    return Strike(kind, _nic(option, name, plan), at, left, _nic(option, far, plan) if far else "")


def _nic(option: str, name: str, plan: Plan) -> str:
    """A NIC that the plan uses; of a server to be killed, its first one."""
    ports = [port.name for port in plan.schedule().ports if not port.nvlink]
    firsts: dict[str, str] = {}
    for port in ports:
        firsts.setdefault(port.partition("/")[0], port)
    if option == "--kill":
        names, found = list(firsts), firsts.get(name)
    else:
        server = name.partition("/")[0]
        names = [port for port in ports if port.partition("/")[0] == server] or ports
        found = name if name in ports else None
    if found is None:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise InputError("the plan does not use it", where=option, expected=f"one of {shown}", got=name)
    return found
