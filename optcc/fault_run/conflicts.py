"""Faults that cannot all happen: one leaves another nothing to hit, or two contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from optcc.errors import InputError

if TYPE_CHECKING:
    from optcc.runtime.messages import Strike


def check_together(strikes: Sequence[Strike]) -> None:
    """Raise InputError where one fault leaves another of the same NIC nothing to hit, or two contradict each other.

    Flaps of a NIC go together: where they overlap or touch they are one. A fault of a NIC goes before its cut or hole.
    """
    for i, one in enumerate(strikes):
        for other in strikes[i + 1 :]:
            first, second = (one, other) if one.at <= other.at else (other, one)
            clash = _clash(first, second)
            if clash:
                raise InputError(
                    clash,
                    where=f"--{second.kind}",
                    expected="faults that can all happen",
                    got=f"{_told(first)} and {_told(second)}",
                    hint="Leave one out, or run each by itself.",
                )


def _clash(first: Strike, second: Strike) -> str:
    """What is wrong with two faults, the earlier one first; empty: nothing."""
    killed = {strike.nic.partition("/")[0] for strike in (first, second) if strike.kind == "kill"}
    common = {first.nic, first.far} & {second.nic, second.far} - {""}
    if killed:
        ends = {end.partition("/")[0] for end in (second.nic, second.far)}
        if first.kind == "kill" and first.nic.partition("/")[0] in ends:
            return "the server is killed before"
        return ""
    if not common:
        return ""
    if first.kind in ("cut", "hole"):
        return "the NIC is lost already"
    if first.at == second.at and second.kind in ("cut", "hole"):
        return "two faults of a NIC at the same moment"
    if (first.kind, second.kind) == ("slow", "slow"):
        return "the NIC is slow already"
    if (first.kind, second.kind) == ("path", "path") and {first.nic, first.far} == {second.nic, second.far}:
        return "the path is broken already"
    if {first.kind, second.kind} == {"path", "flap"}:
        return "a flap of a NIC would heal its path"
    return ""


def _told(strike: Strike) -> str:
    far = f",{strike.far}" if strike.far else ""
    return f"--{strike.kind} {strike.nic}{far}@{strike.at:g}"
