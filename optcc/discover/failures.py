"""Failures as typed: ``--fail server1/mlx5_0`` is a dead NIC, ``--fail server1/mlx5_0=3/8`` one with 3/8 left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from optcc.cluster import Cluster
from optcc.errors import InputError

# Plain decimals only: an exponent such as 1e999999999 would be expanded to its digits.
_DECIMAL = re.compile(r"([0-9]{1,9}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(%?)")
_RATIO = re.compile(r"([0-9]{1,18})/([0-9]{1,18})")


def parse_fail(text: str) -> tuple[str, Fraction]:
    """``SERVER/NIC[=FRACTION_LEFT]`` to ("SERVER/NIC", fraction of its rate left); 0 when not given.

    The fraction is written 0.37, 37% or 3/8. Raises InputError for anything else, or outside 0 to 1.
    """
    nic, given, left = text.partition("=")
    if nic.count("/") != 1 or nic.startswith("/") or nic.endswith("/"):
        raise InputError("not a NIC", where="--fail", expected="SERVER/NIC or SERVER/NIC=FRACTION_LEFT", got=text[:300])
    fraction = _fraction(left) if given else Fraction(0)
    if fraction is None or fraction > 1:
        expected = "0 to 1 of the rate, written 0.37, 37% or 3/8"
        raise InputError("not a fraction left", where=f"--fail {nic[:300]}", expected=expected, got=left[:40])
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
        if nic in seen:
            raise InputError("the same NIC twice", where="--fail", expected="each NIC once", got=nic)
        seen.add(nic)
        cluster = cluster.degrade(nic, left)
    return cluster
