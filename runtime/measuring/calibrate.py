"""What NICs and the way between ranks are worth, measured by real transfers while nothing else runs.

Rates: every NIC sends to NICs of two other ranks, first all NICs at once (as in a collective), then one NIC per rank; a
pair's rate is a large transfer's bytes over the time between its landing and a small one's before it, by the receiver's
clock alone. Latency: chains of small messages to and fro of two lengths; the difference in time over the difference in
hops is what one hop costs, whatever a run costs beside. A chunk's cost likewise, from two bursts.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from optcc.errors import InputError
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Collective, Session
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.evidence.probing import ProbeRound, evidence_of, round_of, turns_of
from optcc.runtime.messages import RunCall
from optcc.schedule import Lane, Port, Route, Schedule, Stage

PROBE_S = 0.1
"""What a probe takes at the nominal rate: hundreds of wake-ups of a process."""

MOST_BYTES = 128 << 20
"""Of one probe, so that buffers stay small on fast NICs: 2.7 ms at 400 Gb/s."""

MESSAGE = 64
"""Bytes of a message whose latency is measured."""

HOPS = (8, 64)
"""Messages of the short and of the long chain."""

MOST_CHAINS = 8
"""Pairs of ranks whose latency is measured, one at a time; of more, the first ones."""

BURST = (32, 256)
"""Chunks of the small and of the large burst."""


@dataclass(frozen=True)
class PairRates:
    """From NIC `out` to NIC `into`, in each repetition: bytes per second, None where nothing came through.

    together : all NICs of all ranks were busy, rather than one NIC of each rank
    """

    out: str
    into: str
    together: bool
    rates: tuple[float | None, ...]


@dataclass(frozen=True)
class Measurements:
    """All pairs of NICs, and times in each repetition.

    hop_s : by pair of ranks, seconds of a small message one way; chunk_s : of a chunk at a port beside its bytes
    """

    pairs: tuple[PairRates, ...]
    hop_s: Mapping[tuple[int, int], tuple[float, ...]]
    chunk_s: tuple[float, ...]


def measure(
    ports: Sequence[Port],
    *,
    repeat: int = 5,
    probe_s: float = PROBE_S,
    transport: str = "local",
    left: Mapping[str, Fraction] | None = None,
    membership: Membership | None = None,
    interface: str | None = None,
    stall_s: float = 10.0,
    progress: Callable[[int, int], None] | None = None,
) -> Measurements:
    """Measure the NICs `ports`, numbered by rank. Raises InputError where there is nobody to measure against.

    transport : "local" emulates the rates of `ports`; "verbs" uses the RDMA devices that are called so
    left : by name, the part of its rate at which an emulated NIC really runs: what a measurement should find
    membership, interface, stall_s : see `optcc.runtime.control.launch.Session`
    progress : called with (runs done, runs in all)
    """
    ports = [port for port in ports if not port.nvlink and port.out_rate > 0 and port.in_rate > 0]
    if len({port.rank for port in ports}) < 2:
        raise InputError("nobody to measure against", where="servers", expected="2 or more with a NIC", got="fewer")
    if repeat < 1:
        raise InputError("nothing to time", where="--repeat", expected="1 or more", got=repeat)
    rounds = {f"rates {i}": (together, one) for i, (together, one) in enumerate(rounds_of(ports, probe_s))}
    if not rounds:
        expected = "a rail with NICs of 2 or more"
        raise InputError("nobody to measure against", where="servers", expected=expected, got="each on its own rails")
    schedules = {name: one.schedule for name, (_, one) in rounds.items()}
    chains = {(out.rank, into.rank): (out, into) for out, into in reversed(rounds["rates 0"][1].pairs)}
    chains = dict(sorted(chains.items())[:MOST_CHAINS])
    first = next(iter(chains.values()))
    schedules |= {f"hops {ranks} {n}": chain(ports, pair, n) for ranks, pair in chains.items() for n in HOPS}
    schedules |= {f"burst {n}": burst(ports, first, n) for n in BURST}
    nbytes = max(schedule.nbytes for schedule in schedules.values())
    really = tuple(_really(port, left or {}) for port in ports)
    schedules = {name: replace(s, nbytes=nbytes, ports=really) for name, s in schedules.items()}
    seconds: dict[str, list[float]] = {name: [] for name in schedules}
    seen: dict[tuple[str, str, bool], list[float | None]] = {}
    job = Job(schedules, "uint8", "max", transport == "local", transport)
    calls = [RunCall(name, [], timed=name in rounds) for _ in range(repeat + 1) for name in schedules]

    def took(number: int, ran: Collective) -> None:
        name = calls[number].algorithm
        if progress:
            progress(number + 1, len(calls))
        if number < len(schedules):  # the first time warms up
            return
        seconds[name].append(ran.seconds)
        if name in rounds:
            together, one = rounds[name]
            landed = {row: at for rank in ran.ran for row, at in rank.landed.items()}
            for e in evidence_of(replace(one, schedule=schedules[name]), landed, ran.notes):
                seen.setdefault((e.out, e.into, together), []).append(e.rate)

    with Session(job, stall_s, membership, interface) as session:
        session.run_all(calls, took)
    pairs = tuple(PairRates(out, into, together, tuple(rates)) for (out, into, together), rates in seen.items())
    each = min(first[0].out_rate, first[1].in_rate)
    return Measurements(
        pairs,
        {ranks: tuple(_slope(seconds, f"hops {ranks}", HOPS)) for ranks in chains},
        tuple(max(0.0, s - MESSAGE / each) for s in _slope(seconds, "burst", BURST)),
    )


def _slope(seconds: Mapping[str, Sequence[float]], kind: str, sizes: tuple[int, int]) -> list[float]:
    """Seconds per message, of each repetition."""
    few, many = sizes
    pairs = zip(seconds[f"{kind} {few}"], seconds[f"{kind} {many}"], strict=True)
    return [max(0.0, (long - short) / (many - few)) for short, long in pairs]


def _really(port: Port, left: Mapping[str, Fraction]) -> Port:
    part = float(left.get(port.name, 1))
    return replace(port, out_rate=port.out_rate * part, in_rate=port.in_rate * part)


def rounds_of(ports: Sequence[Port], probe_s: float = PROBE_S) -> list[tuple[bool, ProbeRound]]:
    """(whether all NICs are busy, round): every NIC sends and receives in rounds of both kinds, at most once in each;
    only one that is alone on its rail does not.

    All at once each NIC meets NICs of two ranks; where there are only two ranks, and no rails, two NICs of the other.
    """
    planes: dict[int | None, dict[int, list[Port]]] = {}
    for port in ports:
        planes.setdefault(port.rail, {}).setdefault(port.rank, []).append(port)
    # A rail joins its own NICs only, of whichever servers: each is gone through by itself, all of them at once.
    met = [list(by_rank.values()) for by_rank in planes.values() if len(by_rank) > 1]
    made = [
        (True, [*itertools.chain.from_iterable(turns)])
        for turns in itertools.zip_longest(*map(turns_of, met), fillvalue=())
    ]
    if max(Counter(port.rank for port in ports).values(), default=0) > 1:
        made += [(False, ring) for nics in met for ring in _alone(nics)]
    return [(together, round_of(ports, pairs, _probe_s(pairs, probe_s))) for together, pairs in made if pairs]


def _alone(nics: Sequence[Sequence[Port]]) -> list[list[tuple[Port, Port]]]:
    """As `turns_of`, with one NIC of each server at a time."""
    rings = [(mine, nics[(at + 1) % len(nics)]) for at, mine in enumerate(nics)]
    places = range(max(len(mine) for mine in nics))
    return [[(mine[k], theirs[k]) for mine, theirs in rings if k < min(len(mine), len(theirs))] for k in places]


def _probe_s(pairs: Sequence[tuple[Port, Port]], probe_s: float) -> float:
    fastest = max(min(out.out_rate, into.in_rate) for out, into in pairs)
    return min(probe_s, MOST_BYTES / fastest)


def chain(ports: Sequence[Port], pair: tuple[Port, Port], hops: int) -> Schedule:
    """`hops` small messages to and fro between the ranks of a pair, each when the one before has landed."""
    return _messages(ports, pair, [i % 2 for i in range(hops)], chained=True)


def burst(ports: Sequence[Port], pair: tuple[Port, Port], chunks: int) -> Schedule:
    """`chunks` small messages one way that wait for nothing."""
    return _messages(ports, pair, [0] * chunks, chained=False)


def _messages(ports: Sequence[Port], pair: tuple[Port, Port], ways: Sequence[int], *, chained: bool) -> Schedule:
    number = {port.name: i for i, port in enumerate(ports)}
    there = Route(pair[0].rank, pair[1].rank, (Lane(number[pair[0].name], number[pair[1].name], Fraction(1)),))
    back = Route(pair[1].rank, pair[0].rank, (Lane(number[pair[1].name], number[pair[0].name], Fraction(1)),))
    rows = len(ways)
    after = np.arange(rows + 1, dtype=np.int64) - 1 if chained else np.zeros(rows + 1, np.int64)
    return Schedule(
        ranks=1 + max(port.rank for port in ports),
        nbytes=rows * MESSAGE,
        ports=tuple(ports),
        routes=(there, back) if 1 in ways else (there,),
        route=np.array(ways, np.int32),
        offset=np.arange(rows, dtype=np.int64) * MESSAGE,
        length=np.full(rows, MESSAGE, np.int64),
        reduce=np.zeros(rows, np.bool_),
        stage=np.full(rows, Stage.ALLGATHER, np.uint8),
        segment=np.zeros(rows, np.int32),
        dep_ptr=np.maximum(after, 0),
        dep_idx=np.arange(rows - 1, dtype=np.int64) if chained else np.zeros(0, np.int64),
    )
