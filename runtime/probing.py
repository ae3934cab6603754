"""Which NIC is at fault, and what every NIC is worth now: measured between operations, over real transfers.

Every NIC sends to, and receives from, NICs of two other servers, one pair at a time per NIC. A NIC over which nothing
comes through, whoever is at the other end, is lost; of the others the best rate seen counts, because the slower end of
a pair holds back both. Two peers tell a NIC from the NIC at the other end of its cable: the third server is the
witness.

A pair's transfers are a small one and a large one; the rate is the large one's bytes over the time between the two
landings, by the receiver's clock alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from optcc.runtime.messages import Note
from optcc.schedule import Lane, Port, Route, Schedule, Stage

PROBE_S = 0.02
"""What the large transfer takes at the NICs' nominal rate: many times a process's wake-up."""

SMALL = 4096
"""Bytes of the small transfer."""

NOISE = 0.9
"""A NIC that is measured at this part of its rate, or more, is taken to be whole."""


@dataclass(frozen=True)
class Evidence:
    """One pair: from NIC `out` to NIC `into`. rate : bytes per second; None: nothing came through."""

    out: str
    into: str
    rate: float | None


@dataclass(frozen=True)
class Round:
    """Probes that go at the same time: pairs of ports, and the schedule, of which rows 2 i and 2 i + 1 are pair i's."""

    pairs: tuple[tuple[Port, Port], ...]
    schedule: Schedule


def rounds_of(ports: Sequence[Port], probe_s: float = PROBE_S) -> list[Round]:
    """The rounds that probe all NICs of `ports`, numbered by rank; none where no two can reach each other."""
    planes: dict[int | None, dict[int, list[Port]]] = {}
    for port in ports:
        if not port.nvlink and port.out_rate > 0 and port.in_rate > 0:
            planes.setdefault(port.rail, {}).setdefault(port.rank, []).append(port)
    # A rail joins its own NICs only, of whichever servers: each is gone through by itself, all of them at once.
    turns = itertools.zip_longest(*(_turns([nics[rank] for rank in sorted(nics)]) for nics in planes.values()))
    rounds = [list(itertools.chain.from_iterable(filter(None, turn))) for turn in turns]
    return [round_of(ports, pairs, probe_s) for pairs in rounds]


def _turns(nics: Sequence[Sequence[Port]]) -> list[list[tuple[Port, Port]]]:
    """Pairs that go at the same time, of NICs by server that all reach each other."""
    spread = max(map(len, nics)) - min(map(len, nics))
    made = []
    for shift in range(1, min(3, len(nics))):
        for offset in range(spread + 1):
            pairs = []
            for at, mine in enumerate(nics):
                theirs = nics[(at + shift) % len(nics)]
                for k in range(min(len(mine), len(theirs))):
                    pairs.append((mine[(k + offset) % len(mine)], theirs[(k + offset) % len(theirs)]))
            made.append(pairs)
    return made


def round_of(ports: Sequence[Port], pairs: Sequence[tuple[Port, Port]], probe_s: float = PROBE_S) -> Round:
    """A round of just these pairs, in each of which `probe_s` is what the large transfer takes at the nominal rate."""
    return Round(tuple(pairs), _schedule(tuple(ports), pairs, probe_s))


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


def evidence_of(probes: Round, landed: Mapping[int, float], notes: Iterable[Note]) -> list[Evidence]:
    """What a round has shown. `landed` : row -> when; `notes` : of all ranks; over a lost wire nothing came through."""
    lost = {frozenset((note.nic, note.far)) for note in notes if note.kind == "lost"}
    down = {note.nic for note in notes if note.kind == "nic down"}
    found = []
    for i, (out, into) in enumerate(probes.pairs):
        rate = None
        if frozenset((out.name, into.name)) not in lost and not {out.name, into.name} & down:
            seconds = landed[2 * i + 1] - landed[2 * i]
            rate = float(probes.schedule.length[2 * i + 1]) / max(seconds, 1e-9)
        found.append(Evidence(out.name, into.name, rate))
    return found


def left_of(ports: Iterable[Port], evidence: Sequence[Evidence]) -> dict[str, Fraction]:
    """NICs that are not whole: name -> fraction left of the rate, 0: lost. In hundredths, rounded down."""
    left: dict[str, Fraction] = {}
    for port in ports:
        seen = [e for e in evidence if port.name in (e.out, e.into)]
        if not seen:
            continue
        rates = [e.rate / (port.out_rate if e.out == port.name else port.in_rate) for e in seen if e.rate is not None]
        best = max(rates, default=0.0)
        if best < NOISE:
            left[port.name] = Fraction(int(best * 100), 100)
    return left
