"""Random clusters of unequal servers, at costs and sizes nobody tuned anything for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

from optcc.values.cluster import Cluster, Nic, Server
from optcc.values.units import format_seconds, format_size

RATE = Fraction(50 * 10**9)
COSTS = [tuple(Fraction(ns, 10**9) for ns in pair) for pair in ((5000, 1000), (2000, 200), (10000, 500), (3000, 2000))]
COSTS.append((Fraction(25, 10**6), Fraction(25, 10**6)))
"""(alpha, per chunk); the last are what processes that send from Python pay."""
PARTS = [Fraction(n, d) for n, d in ((0, 1), (0, 1), (0, 1), (1, 4), (1, 3), (37, 100), (1, 2), (2, 3), (4, 5))]
"""What may be left of a NIC; dead is as likely as any three others."""


@dataclass(frozen=True)
class Uneven:
    """A cluster, the bytes of its AllReduce, and seconds from NIC to NIC and per chunk."""

    number: int
    cluster: Cluster
    nbytes: int
    alpha: Fraction
    per_chunk: Fraction

    def __str__(self) -> str:
        """Servers of a kind together, as numbers of NICs of each rate in parts of the usual one."""
        kinds: dict[str, int] = {}
        for server in self.cluster.servers:
            kinds[_told(server)] = kinds.get(_told(server), 0) + 1
        servers = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
        costs = f"{format_seconds(self.alpha)}, {format_seconds(self.per_chunk)}"
        return f"{servers}; {format_size(self.nbytes)}; {costs}"


def _told(server: Server) -> str:
    rates = [(nic.out_rate / RATE, nic.in_rate / RATE) for nic in server.nics]
    told = {rate: f"{float(rate[0]):.3g}" + f":{float(rate[1]):.3g}" * (rate[0] != rate[1]) for rate in rates}
    return " + ".join(f"{rates.count(rate)} x {told[rate]}" for rate in dict.fromkeys(rates))


def uneven(number: int, *, least: int = 4, most: int = 32) -> Uneven:
    """The `number`-th case, the same everywhere: `least` to `most` servers, up to half of which differ from others."""
    random = Random(f"uneven {number}")
    count, nics = random.randint(least, most), random.choice([1, 2, 4, 8, 8])
    servers = list(Cluster.uniform(servers=count, nics=nics, rate=RATE).servers)
    kind = random.choice(["failures", "failures", "failures", "other servers", "one way"])
    for i in range(random.choice([1, 1, 2, 3, count // 2])):
        hurt = list(servers[i].nics)
        if kind == "other servers":  # bought in another year
            other = random.choice([Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2)])
            size = random.choice([1, 2, 4, 8])
            hurt = [Nic(f"nic{n}", RATE * other, RATE * other, rail=n) for n in range(size)]
        else:
            for n in range(random.randint(1, max(1, nics - 1))):
                part, back = random.choice(PARTS), random.choice(PARTS)
                if nics == 1:
                    part, back = max(part, Fraction(1, 4)), max(back, Fraction(1, 4))
                both = (part, back if part and back and kind == "one way" else part)
                hurt[n] = replace(hurt[n], out_rate=RATE * both[0], in_rate=RATE * both[1])
        servers[i] = replace(servers[i], nics=tuple(hurt))
    alpha, per_chunk = COSTS[number % len(COSTS)]
    return Uneven(number, Cluster(tuple(servers)), 2 ** random.randint(24, 30), alpha, per_chunk)
