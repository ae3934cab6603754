"""Failures as typed: ``--fail server1/mlx5_0`` is a dead NIC, ``--fail server1/mlx5_0=3/8`` one with 3/8 left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

from optcc.cluster import Cluster
from optcc.errors import InputError
from optcc.units import parse_seconds

if TYPE_CHECKING:
    from optcc.faults import Fault

# Plain decimals only: an exponent such as 1e999999999 would be expanded to its digits.
_DECIMAL = re.compile(r"([0-9]{1,9}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(%?)")
_RATIO = re.compile(r"([0-9]{1,18})/([0-9]{1,18})")


def parse_fail(text: str, option: str = "--fail") -> tuple[str, Fraction]:
    """``SERVER/NIC[=FRACTION_LEFT]`` to ("SERVER/NIC", fraction of its rate left); 0 when not given.

    The fraction is written 0.37, 37% or 3/8. Raises InputError for anything else, or outside 0 to 1.
    """
    nic, given, left = text.partition("=")
    if nic.count("/") != 1 or nic.startswith("/") or nic.endswith("/"):
        raise InputError("not a NIC", where=option, expected="SERVER/NIC or SERVER/NIC=FRACTION_LEFT", got=text[:300])
    fraction = _fraction(left) if given else Fraction(0)
    if fraction is None or fraction > 1:
        expected = "0 to 1 of the rate, written 0.37, 37% or 3/8"
        raise InputError("not a fraction left", where=f"{option} {nic[:300]}", expected=expected, got=left[:40])
    return nic, fraction


def _fraction(text: str) -> Fraction | None:
    if match := _DECIMAL.fullmatch(text):
        return Fraction(match[1]) / (100 if match[2] else 1)
    if (match := _RATIO.fullmatch(text)) and int(match[2]):
        return Fraction(int(match[1]), int(match[2]))
    return None


def apply_failures(cluster: Cluster, texts: Iterable[str]) -> Cluster:
    """`cluster` with every ``--fail`` of `texts` applied. Raises InputError for an unknown NIC, or one given twice."""
    seen: set[str] = set()
    for text in texts:
        nic, left = parse_fail(text)
        same = nic.removesuffix(":1")  # of NCCL_IB_HCA; port 1 goes by the name alone
        if same in seen:
            raise InputError("the same NIC twice", where="--fail", expected="each NIC once", got=nic)
        seen.add(same)
        try:
            cluster = cluster.degrade(nic, left)
        except InputError as error:
            where = f"--fail {nic}"
            raise InputError(error.what, where=where, expected=error.expected, got=error.got, hint=error.hint) from None
    return cluster


def parse_fault(text: str, detect_s: Fraction) -> Fault:
    """``SERVER/NIC@TIME[=FRACTION_LEFT]``: what happens to a NIC while a collective runs.

    Raises InputError for anything else.
    """
    head, given, left = text.partition("=")
    nic, at, time = head.rpartition("@")
    if not at:
        expected = "SERVER/NIC@TIME or SERVER/NIC@TIME=FRACTION_LEFT, such as server1/nic0@0.4ms"
        raise InputError("not a fault", where="--fault", expected=expected, got=text[:300])
    _, fraction = parse_fail(f"{nic}={left}" if given else nic, "--fault")
    from optcc.faults import Fault  # loads compiled code, which other commands do without

    return Fault(nic, parse_seconds(time, where="--fault"), fraction, detect_s)
