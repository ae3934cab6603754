"""Failures as typed. ``--fail server1/mlx5_0`` is a dead NIC, ``server1/mlx5_0=3/8`` one with 3/8 of its rate.
``server[0-2]/nic*=150Gb/s`` are several with 150 Gb/s each, ``server3=50%`` a server's NICs at half.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn

from optcc.errors import InputError
from optcc.values.cluster import MAX_COUNT, Cluster
from optcc.values.units import parse_fraction, parse_rate, parse_seconds

if TYPE_CHECKING:
    from optcc.simulation.faults import Fault

NAMED = "SERVER/NIC[=LEFT], such as server1/nic0, server1/nic[0-3]=50% or server1=150Gb/s"
_RANGES = re.compile(r"\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\]")


def parse_fail(text: str, option: str = "--fail") -> tuple[str, Fraction]:
    """``SERVER/NIC[=LEFT]`` to ("SERVER/NIC", fraction of its rate left); 0 when not given.

    For one NIC by its name, where no cluster is known yet. Raises InputError for anything else, or outside 0 to 1.
    """
    nic, given, left = text.partition("=")
    if nic.count("/") != 1 or nic.startswith("/") or nic.endswith("/"):
        raise InputError("not a NIC", where=option, expected="SERVER/NIC or SERVER/NIC=FRACTION_LEFT", got=text[:300])
    return nic, parse_fraction(left, f"{option} {nic[:300]}") if given else Fraction(0)


def parts_of(text: str, option: str = "--fail") -> tuple[tuple[str, Fraction], ...]:
    """``SERVER/NIC[=LEFT]`` or ``SERVER=LEFT`` to (SERVER/NIC or SERVER, fraction left), one for each of its ranges.

    For one pattern and several clusters; `fits` says whom a part means. Raises InputError as `parse_fail` does.
    """
    pattern, given, left = text.partition("=")
    if "/" not in pattern and not (pattern and given):
        expected = "SERVER/NIC, SERVER/NIC=FRACTION_LEFT or SERVER=FRACTION_LEFT, such as server1=37%"
        hint = "A server without a NIC takes no part in an AllReduce."
        raise InputError("not a NIC", where=option, expected=expected, got=text[:300], hint=hint)
    if "/" in pattern:
        pattern, fraction = parse_fail(text, option)
    else:
        fraction = parse_fraction(left, f"{option} {pattern[:300]}")
        if not fraction:
            _refuse_whole(text, option)
    server, slash, nic = pattern.partition("/")
    nics = _expanded(nic, option) if slash else [""]
    return tuple((f"{each}{slash}{one}", fraction) for each in _expanded(server, option) for one in nics)


def fits(part: str, nic: str) -> bool:
    """Whether a part of ``--fail`` means the NIC of this name, SERVER/NIC."""
    name = nic if "/" in part else nic.partition("/")[0]
    return name in (part, part.removesuffix(":1")) or bool(_glob(part).fullmatch(name))


def _refuse_whole(text: str, where: str) -> NoReturn:
    raise InputError(
        "a server without a NIC takes no part in an AllReduce",
        where=where,
        expected="SERVER=LEFT with more than 0 left, such as server1=37%",
        got=text[:300],
        hint="Leave the server out of the topology, or name the NICs that failed.",
    )


def apply_failures(cluster: Cluster, texts: Iterable[str]) -> Cluster:
    """`cluster` with every ``--fail`` of `texts` applied.

    Names may hold ``*``, ``?`` and ranges as Slurm writes them, ``[0-3,5]``; without a NIC all of the server are meant.
    Raises InputError for a name that fits no NIC of the cluster, a NIC given twice, and more than a NIC's rate. It is
    also raised for a server without a NIC left because it was named whole.
    """
    seen: set[str] = set()
    for text in texts:
        pattern, given, left = text.partition("=")
        where = f"--fail {pattern[:300]}"
        names = _named(cluster, pattern, text)
        if "/" not in pattern and (not given or _is_none(left)):
            _refuse_whole(text, where)
        for nic in names:
            if nic in seen:
                raise InputError("the same NIC twice", where="--fail", expected="each NIC once", got=nic)
            seen.add(nic)
            try:
                cluster = cluster.degrade(nic, left if given else 0)
            except InputError as error:
                raise InputError(
                    error.what, where=where, expected=error.expected, got=error.got, hint=error.hint
                ) from None
    return cluster


def _is_none(left: str) -> bool:
    for parse in (parse_fraction, parse_rate):
        try:
            return parse(left) == 0
        except InputError:
            continue
    return False


def _named(cluster: Cluster, pattern: str, text: str) -> list[str]:
    """SERVER/NIC names of the NICs that SERVER or SERVER/NIC fits, in the cluster's order."""
    server_pattern, slash, nic_pattern = pattern.partition("/")
    if not server_pattern or (slash and not nic_pattern) or "/" in nic_pattern:
        raise InputError("not a NIC", where="--fail", expected=NAMED, got=text[:300])
    names = [server.name for server in cluster.servers]
    wanted = set(_fitting(names, server_pattern, "server in the cluster", pattern))
    servers = [server for server in cluster.servers if server.name in wanted]
    found = []
    for server in servers:
        nics = [nic.name for nic in server.nics]
        fitting = _fitting(nics, nic_pattern, f"NIC in {server.name}", pattern) if slash else nics
        found += [f"{server.name}/{nic}" for nic in fitting]
    return found


def _fitting(names: list[str], pattern: str, what: str, whole: str) -> list[str]:
    """The names that are meant, in their order. InputError where a part of the pattern fits none."""
    found: set[str] = set()
    for each in _expanded(pattern, f"--fail {whole[:300]}"):
        # NCCL_IB_HCA's NAME:1 is NAME, whose port 1 it is.
        fits = {name for name in names if name in (each, each.removesuffix(":1")) or _glob(each).fullmatch(name)}
        if not fits:
            shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            where = f"--fail {whole[:300]}"
            raise InputError(f"no such {what}", where=where, expected=f"one of {shown}", got=each[:300])
        found |= fits
    return [name for name in names if name in found]


def _expanded(pattern: str, where: str) -> list[str]:
    """A pattern with each [0-3,5] as the numbers that it lists, of as many digits as are written."""
    match = _RANGES.search(pattern)
    if match is None:
        return [pattern]
    numbers: list[str] = []
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        start, end = int(first), int(last or first)
        if not start <= end < start + MAX_COUNT:
            raise InputError("not a range", where=where, expected="first-last, the lower one first", got=part)
        numbers += [str(number).zfill(len(first)) for number in range(start, end + 1)]
    rest = _expanded(pattern[match.end() :], where)
    if len(numbers) * len(rest) > MAX_COUNT:
        raise InputError("too many names", where=where, expected=f"at most {MAX_COUNT}", got=pattern[:300])
    return [f"{pattern[: match.start()]}{number}{tail}" for number in numbers for tail in rest]


def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern))


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
    from optcc.simulation.faults import Fault  # loads compiled code, which other commands do without

    return Fault(nic, parse_seconds(time, where="--fault"), fraction, detect_s)
