"""What is known before anything is concluded: measurements of ports, and signs that something is wrong with one.

A measurement is held against the healthy cluster: which ports it used, and at which part of its healthy rate it ran
each of them. No port is slower than it ran, and the slowest one, for what it had to carry, set the pace. That is all
the model there is; it holds for point-to-point transfers and for every collective whose shares are fixed, as rings and
all-to-alls of collective libraries are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NOTHING = 1e-4
"""The part of its rate that stands for a port through which nothing came."""


@dataclass(frozen=True)
class Observation:
    """One measurement.

    kind : ``sendrecv``, ``all_reduce``, ..., ``link`` for what a driver says of a link's rate, ``calibrate``
    where : file, and line or place in it
    used : port -> the part of its healthy rate at which it ran
    spread : of the measurement itself, as a fraction; 0: that of its kind
    nbytes, time_s : of a collective: bytes as its command says them, seconds; 0 for others
    servers : names of those that took part
    least : it only shows that these ports reach as much: nothing says that one of them set the pace
    root : the server of a broadcast's, reduce's, gather's or scatter's root
    run : what it shares with others: those of one run of a program are one measurement; empty: it is a run by itself
    """

    kind: str
    where: str
    used: Mapping[int, float]
    spread: float = 0.0
    nbytes: int = 0
    time_s: float = 0.0
    servers: tuple[str, ...] = ()
    least: bool = False
    root: str | None = None
    run: str = ""

    @property
    def failed(self) -> bool:
        """Nothing came through."""
        return max(self.used.values(), default=0.0) <= NOTHING


@dataclass(frozen=True)
class Sign:
    """Something said of a NIC that is no rate: errors counted, an event, a process that does not answer.

    nic : its number; None where only the server is known
    grave : it does not happen on a NIC that is well
    """

    where: str
    what: str
    server: str
    nic: int | None = None
    grave: bool = False


@dataclass(frozen=True)
class Evidence:
    """All of it. `read` : a line for each file, for people; `unused` : what was read and says nothing, and why;
    `causes` : what a log shows that slows all NICs alike."""

    observations: tuple[Observation, ...] = ()
    signs: tuple[Sign, ...] = ()
    read: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    @classmethod
    def together(cls, parts: Iterable[Evidence]) -> Evidence:
        """One of several."""
        whole = list(parts)
        return cls(
            tuple(o for part in whole for o in part.observations),
            tuple(s for part in whole for s in part.signs),
            tuple(line for part in whole for line in part.read),
            tuple(line for part in whole for line in part.unused),
            tuple(dict.fromkeys(line for part in whole for line in part.causes)),
        )
