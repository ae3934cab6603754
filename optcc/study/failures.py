"""Sets of failed NICs: named, so many at a place, or drawn as the moment's dead of a cluster in service.

The Monte Carlo model. Failures of NICs occur at a mean distance of `mttf_s` seconds among `mttf_nics` NICs. So one NIC
lives for `mttf_s` x `mttf_nics` on average and is then down for `repair_s` on average. NICs fail and are repaired
independently, at any distributions with these means. At a random moment, long after the start, each NIC is dead with
probability u = repair / (life + repair). This is the limiting unavailability of an alternating renewal process (Barlow
and Proschan, Statistical Theory of Reliability and Life Testing, 1975, ch. 7). The number of dead among N is binomial;
for small u that is the Poisson law of the M/G/infinity queue, of mean N x repair / life. One draw is one such moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from optcc.discover.given import fits_nic
from optcc.values.cluster import Cluster, Nic, Server

Place = Literal["one-server", "spread", "random"]
Renamed = Literal["servers", "nics", "nothing"]
"""Parts of a draw that may be renamed where this changes no result: servers and the NICs of each, NICs alone, or
nothing. `Grid.renamed` says which."""


@dataclass(frozen=True)
class FailureSet:
    """NICs that have failed at once, as (``SERVER/NIC``, fraction of its rate left).

    place : how they were chosen; left : the fraction when it is one for all; draw : which random draw, from 0
    impossible : why there is no such set
    """

    nics: tuple[tuple[str, Fraction], ...] = ()
    place: str = "none"
    left: Fraction | None = None
    draw: int | None = None
    impossible: str | None = None


@dataclass(frozen=True)
class Named:
    """One set, given NIC by NIC, or by patterns of their names (`discover.failures`)."""

    nics: tuple[tuple[str, Fraction], ...]

    def __len__(self) -> int:
        return 1

    def sets(self, cluster: Cluster, seed: int, renamed: Renamed = "nothing") -> Iterator[FailureSet]:
        """The one set, of the NICs of this cluster that are meant; what means none of them stays as it was given."""
        names = [f"{server.name}/{nic.name}" for server in cluster.servers for nic in server.nics]
        meant = [(nic, left) for part, left in self.nics for nic in ([n for n in names if fits_nic(part, n)] or [part])]
        twice = len({nic for nic, _ in meant}) < len(meant)
        impossible = "a NIC is named twice" if twice else None
        yield FailureSet(tuple(meant), "named" if meant else "none", impossible=impossible)


@dataclass(frozen=True)
class Counted:
    """So many failed NICs, each with `left` of its rate, for every pair of the two.

    one-server: the first live NICs of the first server. spread: the first NIC of the first server, of the second, and
    so on; then everybody's second. random: any live NICs, each set as likely as every other, `draws` times.
    """

    counts: tuple[int, ...]
    lefts: tuple[Fraction, ...] = (Fraction(0),)
    place: Place = "one-server"
    draws: int = 1

    def __len__(self) -> int:
        return len(self.counts) * len(self.lefts) * self.draws

    def sets(self, cluster: Cluster, seed: int, renamed: Renamed = "nothing") -> Iterator[FailureSet]:
        """Sets in the order of counts, fractions, draws; nothing is renamed, since places are what was asked for. A set
        that the cluster is too small for says so."""
        live = [(n, s) for s, n in _live(cluster)]
        if self.place == "one-server":
            pool = [(n, s) for n, s in live if s == 0]
        else:
            pool = sorted(live) if self.place == "spread" else live
        for count in self.counts:
            for left in self.lefts:
                for draw in range(self.draws):
                    which = draw if self.place == "random" else None
                    if count > len(pool):
                        few = f"{count} NICs cannot fail: {self.place} has {len(pool)}"
                        yield FailureSet((), self.place, left, which, few)
                        continue
                    chosen = pool[:count]
                    if self.place == "random":
                        rng = np.random.default_rng((seed, 0, count, draw))
                        chosen = [pool[i] for i in np.sort(rng.choice(len(pool), count, replace=False))]
                    nics = tuple((_name(cluster, s, n), left) for n, s in chosen)
                    yield FailureSet(nics, self.place, left, which)


@dataclass(frozen=True)
class MonteCarlo:
    """`draws` moments of a cluster whose NICs fail and are repaired, by the model above.

    mttf_s : mean seconds between failures among `mttf_nics` NICs (None: the cluster's own live NICs)
    nic_share : the fraction of those failures that take a NIC (or its link) out
    """

    draws: int
    mttf_s: Fraction
    repair_s: Fraction
    nic_share: Fraction = Fraction(1)
    mttf_nics: int | None = None

    def __len__(self) -> int:
        return self.draws

    def unavailability(self, cluster: Cluster) -> Fraction:
        """The probability that a NIC is dead at a random moment."""
        life = self.mttf_s * (self.mttf_nics or len(_live(cluster))) / self.nic_share
        return self.repair_s / (life + self.repair_s)

    def expected(self, cluster: Cluster) -> Fraction:
        """The mean number of dead NICs."""
        return len(_live(cluster)) * self.unavailability(cluster)

    def sets(self, cluster: Cluster, seed: int, renamed: Renamed = "nothing") -> Iterator[FailureSet]:
        """One set per draw, with what `renamed` allows renamed. Draw i is the same however many draws there are."""
        live, down = _live(cluster), float(self.unavailability(cluster))
        rename = _Alike(cluster, renamed)
        for draw in range(self.draws):
            dead = np.flatnonzero(np.random.default_rng((seed, 1, draw)).random(len(live)) < down)
            nics = rename.first_of_its_kind([live[i] for i in dead])
            yield FailureSet(
                tuple((_name(cluster, s, n), Fraction(0)) for s, n in nics), "monte-carlo", Fraction(0), draw
            )


FailureEntry = Named | Counted | MonteCarlo


class _Alike:
    """Renames dead NICs where it makes no difference, so that equal cases are computed once.

    On a fabric that only NICs limit, equal NICs of a server that acts as one rank may change places. Where results do
    not depend on the order of servers, equal servers may, too: the hardest hit one becomes the first. Elsewhere nothing
    is renamed.
    """

    def __init__(self, cluster: Cluster, renamed: Renamed) -> None:
        allowed = cluster.fabric.flat and renamed != "nothing"
        first = _unnamed(cluster.servers[0])
        self.servers = allowed and renamed == "servers" and all(_unnamed(s) == first for s in cluster.servers)
        whole = allowed and not cluster.gpu_ranks
        self.nics = [whole and len({_bare(nic) for nic in server.nics}) == 1 for server in cluster.servers]

    def first_of_its_kind(self, dead: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """(server, NIC) pairs, in order, that no rate tells apart from `dead`."""
        by_server: dict[int, list[int]] = {}
        for server, nic in dead:
            by_server.setdefault(server, []).append(nic)
        hit = {server: list(range(len(nics))) if self.nics[server] else nics for server, nics in by_server.items()}
        if self.servers:
            hit = dict(enumerate(sorted(hit.values(), key=lambda nics: (-len(nics), nics))))
        return [(server, nic) for server, nics in hit.items() for nic in nics]


def _unnamed(server: Server) -> Server:
    return replace(server, name="any")


def _bare(nic: Nic) -> Nic:
    """What tells NICs of one server apart when it acts as one rank."""
    return replace(nic, name="any", rail=None, gpu=None)


def _live(cluster: Cluster) -> list[tuple[int, int]]:
    return [(s, n) for s, server in enumerate(cluster.servers) for n, nic in enumerate(server.nics) if nic.alive]


def _name(cluster: Cluster, server: int, nic: int) -> str:
    return f"{cluster.servers[server].name}/{cluster.servers[server].nics[nic].name}"
