"""What every NIC is worth now, and which path is broken: measured between operations, over real transfers.

Every NIC sends to, and receives from, NICs of two other servers, one pair at a time per NIC. What then looks like a
broken path, and wires that collectives have lost between NICs that work, are tried again from both ends. What follows
from it all: `verdicts_of`.

A pair's transfers are a small one and a large one; the rate is the large one's bytes over the time between the two
landings, by the receiver's clock alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from optcc.runtime.messages import Note
from optcc.schedule import Lane, Port, Route, Schedule, Stage

# What is at fault, by probes between NICs: a NIC, the path between two that work, or what nothing tells apart.
#
# A NIC counts by the best that any probe has shown of it, since the slower end of a pair holds back both. If this is
# not its rate, its peers are the witnesses: those that do better with another NIC, of a third server or of the same
# one. Two of them convict it, for then two paths would have to be broken. A NIC that says itself that its link is down
# needs no witness. A pair between which nothing comes through, although both its NICs work with others, has a broken
# path: a cable, or a switch on the way.

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


# The probes

PROBE_S = 0.02
"""What the large transfer takes at the NICs' nominal rate: many times a process's wake-up."""

SMALL = 4096
"""Bytes of the small transfer."""

SUSPECTS = 2
"""The most wires of a NIC, lost in collectives, that are tried again: a NIC that was gone for a while has lost all."""


@dataclass(frozen=True)
class ProbeRound:
    """Probes that go at the same time: pairs of ports, and the schedule, of which rows 2 i and 2 i + 1 are pair i's."""

    pairs: tuple[tuple[Port, Port], ...]
    schedule: Schedule


def rounds_of(ports: Sequence[Port], probe_s: float = PROBE_S) -> list[ProbeRound]:
    """The rounds that probe all NICs of `ports`, numbered by rank; none where no two can reach each other."""
    planes: dict[int | None, dict[int, list[Port]]] = {}
    for port in ports:
        if not port.nvlink and port.out_rate > 0 and port.in_rate > 0:
            planes.setdefault(port.rail, {}).setdefault(port.rank, []).append(port)
    # A rail joins its own NICs only, of whichever servers: each is gone through by itself, all of them at once.
    turns = itertools.zip_longest(
        *(turns_of([nics[rank] for rank in sorted(nics)]) for nics in planes.values() if len(nics) > 1)
    )
    rounds = [list(itertools.chain.from_iterable(filter(None, turn))) for turn in turns]
    return [round_of(ports, pairs, probe_s) for pairs in rounds]


def turns_of(nics: Sequence[Sequence[Port]]) -> list[list[tuple[Port, Port]]]:
    """Pairs that go at the same time, of NICs by server that all reach each other.

    Each NIC meets NICs of two servers; where there are only two servers, two NICs of the other, if it has them.
    """
    counts = [len(each) for each in nics]
    turns = range(max(counts) - min(counts) + (2 if len(nics) == 2 and max(counts) > 1 else 1))
    made = []
    for shift in range(1, min(3, len(nics))):
        for turn in turns:
            pairs = []
            for at, mine in enumerate(nics):
                theirs = nics[(at + shift) % len(nics)]
                # In turns the longer list is gone through; of two equal ones, the receivers'.
                a, b = (turn, 0) if len(mine) > len(theirs) else (0, turn)
                for k in range(min(len(mine), len(theirs))):
                    pairs.append((mine[(k + a) % len(mine)], theirs[(k + b) % len(theirs)]))
            made.append(pairs)
    return made


def second_look(
    ports: Sequence[Port], evidence: Sequence[ProbeResult], lost: Iterable[tuple[str, str]], probe_s: float = PROBE_S
) -> list[ProbeRound]:
    """Rounds that try from both ends what may be broken although both NICs work.

    evidence : of the first rounds; lost : wires that collectives have lost, by their NICs
    """
    known = {port.name: port for port in ports}
    through = {(e.out, e.into) for e in evidence if e.rate is not None}
    works = {name for ends in through for name in ends}
    chosen = {_pair(e.out, e.into) for e in evidence if e.rate is None and works.issuperset((e.out, e.into))}
    counts = Counter(name for ends in chosen for name in ends)
    for ends in sorted({_pair(*ends) for ends in lost} - chosen):
        tried = {ends, ends[::-1]} <= through
        if not tried and works.issuperset(ends) and all(counts[name] < SUSPECTS for name in ends):
            counts.update(ends)
            chosen.add(ends)
    rounds: list[list[tuple[Port, Port]]] = []
    for one, other in sorted(chosen):
        for out, into in ((known[one], known[other]), (known[other], known[one])):
            free = (pairs for pairs in rounds if all(o is not out and i is not into for o, i in pairs))
            pairs = next(free, None)
            if pairs is None:
                pairs = []
                rounds.append(pairs)
            pairs.append((out, into))
    return [round_of(ports, pairs, probe_s) for pairs in rounds]


def _pair(one: str, other: str) -> tuple[str, str]:
    return min(one, other), max(one, other)


def round_of(ports: Sequence[Port], pairs: Sequence[tuple[Port, Port]], probe_s: float = PROBE_S) -> ProbeRound:
    """A round of just these pairs, in each of which `probe_s` is what the large transfer takes at the nominal rate."""
    return ProbeRound(tuple(pairs), _schedule(tuple(ports), pairs, probe_s))


def _schedule(ports: tuple[Port, ...], pairs: Sequence[tuple[Port, Port]], probe_s: float) -> Schedule:
    """Copies that wait for nothing; what they write does not matter."""
    number = {port.name: i for i, port in enumerate(ports)}
    large = [max(SMALL, int(min(o.out_rate, i.in_rate) * probe_s) // 8 * 8) for o, i in pairs]
    rows = 2 * len(pairs)
    per_rank: dict[int, int] = {}
    offset, length = [], []
    for (_, into), nbytes in zip(pairs, large, strict=True):
        start = per_rank.get(into.rank, 0)
        offset += [start, start + SMALL]
        length += [SMALL, nbytes]
        per_rank[into.rank] = start + SMALL + nbytes
    return Schedule(
        ranks=1 + max(port.rank for port in ports),
        nbytes=max(per_rank.values(), default=8),
        ports=ports,
        routes=tuple(
            Route(out.rank, into.rank, (Lane(number[out.name], number[into.name], Fraction(1)),)) for out, into in pairs
        ),
        route=np.repeat(np.arange(len(pairs), dtype=np.int32), 2),
        offset=np.array(offset, np.int64),
        length=np.array(length, np.int64),
        reduce=np.zeros(rows, np.bool_),
        stage=np.full(rows, Stage.ALLGATHER, np.uint8),
        segment=np.zeros(rows, np.int32),
        dep_ptr=np.zeros(rows + 1, np.int64),
        dep_idx=np.zeros(0, np.int64),
    )


def evidence_of(probes: ProbeRound, landed: Mapping[int, float], notes: Iterable[Note]) -> list[ProbeResult]:
    """What a round has shown. `landed` : row -> when; `notes` : of all ranks; over a lost wire nothing came through."""
    lost = {frozenset((note.nic, note.far)) for note in notes if note.kind == "lost"}
    down = {note.nic for note in notes if note.kind == "nic down"}
    found = []
    for i, (out, into) in enumerate(probes.pairs):
        rate = None
        said = tuple(name for name in (out.name, into.name) if name in down)
        if frozenset((out.name, into.name)) not in lost and not said:
            seconds = landed[2 * i + 1] - landed[2 * i]
            rate = float(probes.schedule.length[2 * i + 1]) / max(seconds, 1e-9)
        found.append(ProbeResult(out.name, into.name, rate, said))
    return found
