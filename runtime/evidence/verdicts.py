"""What is at fault, by probes between NICs: a NIC, the path between two that work, or what nothing tells apart.

A NIC counts by the best that any probe has shown of it, since the slower end of a pair holds back both. If this is not
its rate, its peers are the witnesses: those that do better with another NIC, of a third server or of the same one. Two
of them convict it, for then two paths would have to be broken. A NIC that says itself that its link is down needs no
witness. A pair between which nothing comes through, although both its NICs work with others, has a broken path: a
cable, or a switch on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from optcc.schedule import Port

NOISE = 0.9
"""A NIC that is measured at this part of its rate, or more, is taken to be whole."""


@dataclass(frozen=True)
class ProbeResult:
    """One probe: from NIC `out` to NIC `into`.

    rate : bytes per second; None: nothing came through
    down : those of the two that said themselves that their link is down
    """

    out: str
    into: str
    rate: float | None
    down: tuple[str, ...] = ()


@dataclass(frozen=True)
class FaultVerdict:
    """One fault.

    what : "nic", "path", "nic or path", or "path or either end"
    nics : the NIC, or the two ends
    left : what plans have to go by: name of a NIC -> fraction left of its rate, 0: do without it
    why : for people
    """

    what: str
    nics: tuple[str, ...]
    left: Mapping[str, Fraction]
    why: str


def verdicts_of(ports: Iterable[Port], evidence: Sequence[ProbeResult]) -> list[FaultVerdict]:
    """What probes of the NICs `ports` have shown: NICs first, by the order of `ports`, then paths.

    A plan cannot avoid a path, only a NIC. Of a broken path's ends it avoids the one with more such paths, else the one
    whose server has more rate left, the cheaper choice.
    """
    known = {port.name: port for port in ports}
    best: dict[str, float] = {}
    peers: dict[str, dict[str, None]] = {}
    for e in evidence:
        for name, far, rate in ((e.out, e.into, known[e.out].out_rate), (e.into, e.out, known[e.into].in_rate)):
            best[name] = max(best.get(name, 0.0), (e.rate or 0.0) / rate)
            peers.setdefault(name, {})[far] = None
    said = {name for e in evidence for name in e.down}
    made: dict[tuple[str, ...], FaultVerdict] = {}
    for name in known:
        if name in best and best[name] < NOISE:
            verdict = _of_nic(name, list(peers[name]), best, said)
            if verdict:
                made.setdefault(verdict.nics, verdict)
    return [*made.values(), *_of_paths(known, evidence, best)]


def left_of(ports: Iterable[Port], evidence: Sequence[ProbeResult]) -> dict[str, Fraction]:
    """NICs that plans do without, or with less: name -> fraction left, in hundredths, rounded down; 0: none."""
    left: dict[str, Fraction] = {}
    for verdict in verdicts_of(ports, evidence):
        for name, part in verdict.left.items():
            left[name] = min(part, left.get(name, part))
    return left


def _of_nic(name: str, peers: Sequence[str], best: Mapping[str, float], said: set[str]) -> FaultVerdict | None:
    """Of a NIC that has not shown its rate; None: its peers' own words explain it."""
    part = _hundredths(best[name])
    if name in said:
        return FaultVerdict("nic", (name,), {name: part}, "it says that its link is down")
    if said.issuperset(peers):
        return None
    # Against one over which nothing comes any NIC may speak that works at all.
    witnesses = [far for far in peers if best[far] >= NOISE or (best[name] == 0 and best[far] > 0)]
    if len(witnesses) > 1:
        return FaultVerdict("nic", (name,), {name: part}, f"{len(witnesses)} NICs tried it that do better with others")
    if witnesses:
        why = f"{witnesses[0]} tried it, which does better with others; no second such NIC has"
        return FaultVerdict("nic or path", (name,), {name: part}, why)
    far = next(far for far in peers if far not in said)
    ends = (min(name, far), max(name, far))
    left = {end: _hundredths(best[end]) for end in ends}
    return FaultVerdict("path or either end", ends, left, "neither was tried by a NIC that does better with others")


def _of_paths(
    known: Mapping[str, Port], evidence: Sequence[ProbeResult], best: Mapping[str, float]
) -> list[FaultVerdict]:
    """Of pairs that both work, and not with each other when they were last tried."""
    last = {(e.out, e.into): e for e in evidence}
    broken = sorted(
        {
            (min(ends), max(ends))
            for ends, e in last.items()
            if e.rate is None and not e.down and all(best[end] > 0 for end in ends)
        }
    )
    rates: Counter[int] = Counter()  # by rank: what is left of it
    for name, port in known.items():
        rates[port.rank] += int(port.out_rate * min(1.0, best.get(name, 1.0)))
    given_up: set[str] = set()
    while rest := [ends for ends in broken if not given_up.intersection(ends)]:
        counts = Counter(end for ends in rest for end in ends)
        end = max(counts, key=lambda name: (counts[name], rates[known[name].rank], name))
        given_up.add(end)
        rates[known[end].rank] -= int(known[end].out_rate)
    verdicts = []
    for ends in broken:
        tried = [pair for pair in (ends, ends[::-1]) if pair in last]
        ways = "either way" if all(last[pair].rate is None for pair in tried) else "one way"
        tried_by = "tried from both ends" if len(tried) == 2 else f"tried from {tried[0][0]} only"
        why = f"nothing comes through {ways}, {tried_by}; both work with others"
        verdicts.append(FaultVerdict("path", ends, {end: Fraction(0) for end in ends if end in given_up}, why))
    return verdicts


def _hundredths(part: float) -> Fraction:
    return Fraction(int(part * 100), 100)
