"""The failures of a grid as typed, to sets of failed NICs."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import msgspec

from optcc.discover.given import fits_nic, parts_of
from optcc.errors import InputError
from optcc.sweep.failures import Counted, FailureEntry, MonteCarlo, Named, Place
from optcc.sweep.grid import MAX_CELLS
from optcc.sweep.typed import Texts, Where, read_each, whole_number
from optcc.values.cluster import MAX_NICS
from optcc.values.units import parse_seconds, parse_share


class FailuresEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One way to fail: exactly one of `nics`, `count` and `monte_carlo`, and the fields that go with it."""

    nics: Texts | None = None
    count: Texts | None = None
    left: Texts | None = None
    place: Place | None = None
    draws: str | None = None
    monte_carlo: str | None = None
    mttf: str | None = None
    repair_time: str | None = None
    nic_share: str | None = None
    mttf_nics: str | None = None


def read_failures(entry: FailuresEntry, at: str, where: Where, known: set[str]) -> FailureEntry:
    """What `entry`, at the place `at`, says; `known` are the NICs of all topologies. Raises InputError."""
    kinds = {
        "nics": (),
        "count": ("left", "place", "draws"),
        "monte_carlo": ("mttf", "repair_time", "nic_share", "mttf_nics"),
    }
    given = {name for name in entry.__struct_fields__ if getattr(entry, name) is not None}
    chosen = given & kinds.keys()
    if len(chosen) != 1:
        got = " and ".join(map(where.named, sorted(chosen))) or f"only {where.listed(sorted(given))}"
        expected = f"one of {where.listed(kinds)}"
        raise InputError("not one way to fail", where=where(at), expected=expected, got=got if given else "none")
    kind = chosen.pop()
    for name in sorted(given - {kind, *kinds[kind]}):
        mine = where.named(kind)
        expected = f"beside {mine} only {where.listed(kinds[kind])}" if kinds[kind] else f"nothing beside {mine}"
        got = where.named(name)
        raise InputError("a field of another way to fail", where=where(f"{at}.{name}"), expected=expected, got=got)
    if entry.nics is not None:
        return Named(_named(entry.nics, f"{at}.nics", where, known))
    if entry.count is not None:
        return _counted(entry, at, where)
    return _monte_carlo(entry, at, where)


def _named(texts: Texts, at: str, where: Where, known: set[str]) -> tuple[tuple[str, Fraction], ...]:
    parts = tuple(part for parts in read_each(texts, at, where, _as_fail) for part in parts)
    names = [name for name, _ in parts]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InputError("the same NIC twice", where=where(at), expected="each NIC once", got=name)
        if not any(fits_nic(name, nic) for nic in known):
            raise InputError("no such NIC in any topology", where=where(at), expected="SERVER/NIC of one", got=name)
    return parts


def _counted(entry: FailuresEntry, at: str, where: Where) -> Counted:
    assert entry.count is not None
    if entry.draws is not None and entry.place != "random":
        expected = f"{where.named('draws')} with {where.field('place', 'random')} only"
        raise InputError("nothing is drawn", where=where(f"{at}.draws"), expected=expected)
    counts = tuple(n for counts in read_each(entry.count, f"{at}.count", where, _range) for n in counts)
    twice = [n for n, times in Counter(counts).items() if times > 1]
    if twice:
        raise InputError("the same twice", where=where(f"{at}.count"), expected="each number once", got=twice[0])
    return Counted(
        counts=counts,
        lefts=read_each("0" if entry.left is None else entry.left, f"{at}.left", where, _left),
        place=entry.place or "one-server",
        draws=1 if entry.draws is None else whole_number(entry.draws, where(f"{at}.draws"), 1, MAX_CELLS),
    )


def _monte_carlo(entry: FailuresEntry, at: str, where: Where) -> MonteCarlo:
    assert entry.monte_carlo is not None
    times: list[Fraction] = []
    for name, text in (("mttf", entry.mttf), ("repair_time", entry.repair_time)):
        if text is None:
            hint = f"For example {where.field(name, '2.7h' if name == 'mttf' else '24h')}."
            what = "no time between failures" if name == "mttf" else "no time of repairs"
            raise InputError(what, where=where(f"{at}.monte_carlo"), expected=where.field(name), hint=hint)
        times.append(parse_seconds(text, where(f"{at}.{name}")))
    if not times[0]:
        raise InputError("no time between failures", where=where(f"{at}.mttf"), expected="above 0", got=entry.mttf)
    share = Fraction(1) if entry.nic_share is None else parse_share(entry.nic_share, where(f"{at}.nic_share"))
    nics = entry.mttf_nics
    return MonteCarlo(
        draws=whole_number(entry.monte_carlo, where(f"{at}.monte_carlo"), 1, MAX_CELLS),
        mttf_s=times[0],
        repair_s=times[1],
        nic_share=share,
        mttf_nics=None if nics is None else whole_number(nics, where(f"{at}.mttf_nics"), 1, 10**9),
    )


def _as_fail(text: str, where: str) -> tuple[tuple[str, Fraction], ...]:
    try:
        return parts_of(text)
    except InputError as error:  # parts_of takes it for a --fail
        raise InputError(error.what, where=where, expected=error.expected, got=error.got, hint=error.hint) from None


def _range(text: str, where: str) -> range:
    """``3``, or ``0..8`` with both ends."""
    first, dots, last = text.partition("..")
    low = whole_number(first, where, 0, MAX_NICS)
    high = whole_number(last, where, low, MAX_NICS) if dots else low
    return range(low, high + 1)


def _left(text: str, where: str) -> Fraction:
    (_, left), *_ = _as_fail(f"any/nic={text}", where)
    return left
