"""Measurements of degraded clusters in the form in which nccl-tests print them, their times from optcc's simulator."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache

from optcc.schedule.ring import NicSpread, PlainRing
from optcc.schedule.simple import all_gather
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster, Nic, Server

SIZES = (1 << 29, 1 << 30)
PROBE = 1 << 22
"""Bytes that are simulated; without latency times go by the size."""
FACTOR = {"sendrecv": lambda n: 1.0, "all_reduce": lambda n: 2 * (n - 1) / n, "alltoall": lambda n: (n - 1) / n}
HEAD = """# nccl-tests version 2.17.1 nccl-headers=22807 nccl-library=22807
# Collective test starting: {kind}_perf
# nThread 1 nGpus 1 minBytes {low} maxBytes {high} step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
"""
COLUMNS = """#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
"""  # noqa: W291
FAILED = (
    "{host}:4100:4160 [0] NCCL WARN NET/IB: Got completion from peer 192.0.2.{peer}<40000> with "
    "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  hca {nic}\n"
    "{host}: Test NCCL failure common.cu:1057 'unhandled system error'\n"
)


@dataclass
class Lab:
    """A cluster of equal servers with faults: (server, NIC) -> the part that is left of its rate, both ways.

    reached : what a healthy run reaches of nameplate
    apart : standard deviation between runs, drawn once for each table; noise : of each printed time within a run
    """

    servers: int
    nics: int
    faults: Mapping[tuple[int, int], float]
    apart: float = 0.03
    noise: float = 0.003
    reached: float = 1.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def cluster(self) -> Cluster:
        """As it should be."""
        return Cluster.uniform(servers=self.servers, nics=self.nics, rate="400Gb/s")

    def left(self, server: int, nic: int) -> float:
        return self.faults.get((server, nic), 1.0)

    def seconds(self, kind: str, servers: Sequence[int], nics: Sequence[int], nbytes: int) -> float:
        """Of one collective over these NICs of these servers; infinite where one is dead."""
        longest = 0.0
        for nic in nics:  # each NIC's channel carries its part, and the last one ends the collective
            rates = tuple(round(self.left(s, nic), 6) for s in servers)
            if min(rates) == 0:
                return math.inf
            longest = max(longest, _probe(kind, rates))
        if kind == "all_reduce" and len(nics) > 1:  # every GPU is a rank then: one ring of all passes each server
            ranks, alone = len(servers) * self.nics, len(servers)
            longest *= (ranks - 1) / ranks / ((alone - 1) / alone)
        return longest * nbytes / len(nics) / PROBE / self.reached

    def table(self, kind: str, servers: Sequence[int], nics: Sequence[int], sizes: Sequence[int] = SIZES) -> str:
        """What nccl-tests print, one GPU a server where one NIC is in use, else all of them."""
        gpus = [nics[0]] if len(nics) == 1 else list(range(self.nics))
        ranks = [(s, g) for s in servers for g in gpus]
        lines = [HEAD.format(kind=kind, low=sizes[0], high=sizes[-1])]
        for rank, (server, gpu) in enumerate(ranks):
            pid = 4000 + rank
            lines.append(
                f"#  Rank {rank:2d} Group  0 Pid {pid:6d} on {f'server{server}':>10s} device {gpu:2d} "
                f"[0000:{gpu:02x}:00] NVIDIA H100 80GB HBM3\n"
            )
        if len(nics) < self.nics:
            names = ",".join(f"nic{nic}" for nic in nics)
            for server in servers:
                lines.append(f"server{server}:4000:4010 [0] NCCL INFO NCCL_IB_HCA set to ={names}\n")
        lines.append(COLUMNS)
        run = math.exp(self.rng.gauss(0, self.apart))
        for nbytes in sizes:
            seconds = run * self.seconds(kind, servers, nics, nbytes)
            if seconds == math.inf:
                dead = next(s for s in servers if any(self.left(s, n) == 0 for n in nics))
                host = next(s for s in servers if s != dead) if self.rng.random() < 0.5 else dead
                peer = next(s for s in servers if s != host)
                nic = next(n for n in nics if self.left(dead, n) == 0)
                lines.append(FAILED.format(host=f"server{host}", peer=peer + 1, nic=f"nic{nic}"))
                break
            cells = []
            for _ in range(2):
                time_us = seconds * 1e6 * math.exp(self.rng.gauss(0, self.noise))
                algbw = nbytes / time_us / 1e3
                cells.append(f"{time_us:9.1f} {algbw:7.2f} {algbw * FACTOR[kind](len(ranks)):7.2f}      0")
            lines.append(f"{nbytes:12d} {nbytes // 4:13d}     float     sum      -1 {cells[0]} {cells[1]}\n")
        return "".join(lines)

    def survey(self, far: Sequence[int] = (1, 2)) -> Iterator[tuple[str, str]]:
        """Each NIC with its neighbours, one AllReduce for each NIC, all-to-all over half of the servers: name, text."""
        everyone = list(range(self.servers))
        for nic in range(self.nics):
            for hop in far:
                for server in everyone:
                    peer = (server + hop) % self.servers
                    yield f"sendrecv-{server}-{peer}-nic{nic}.txt", self.table("sendrecv", [server, peer], [nic])
            yield f"all_reduce-nic{nic}.txt", self.table("all_reduce", everyone, [nic])
            for half in (everyone[: self.servers // 2], everyone[self.servers // 2 :]):
                yield f"alltoall-{half[0]}-nic{nic}.txt", self.table("alltoall", half, [nic])


@cache
def _probe(kind: str, rates: tuple[float, ...]) -> float:
    """Simulated seconds of PROBE bytes over one NIC of each server, at these parts of 400 Gb/s."""
    whole = Fraction(50 * 10**9)
    servers = []
    for i, left in enumerate(rates):
        rate = whole * Fraction(left).limit_denominator(10**6)
        servers.append(Server(f"s{i}", (Nic("n", rate, rate),)))
    cluster = Cluster(tuple(servers))
    if kind == "all_reduce":
        schedule = PlainRing(8, NicSpread.EQUAL).lower(cluster, PROBE)
    elif kind == "alltoall":
        schedule = all_gather(cluster, PROBE // len(rates))  # the same bytes between the same ranks
    else:
        schedule = replace(all_gather(cluster, PROBE))
    return simulate(schedule, receivers="packets").time_s


def random_faults(rng: random.Random, servers: int, nics: int) -> dict[tuple[int, int], float]:
    """One to three NICs with 0 to 90 % of their rate, one in five of them dead."""
    places = rng.sample([(s, n) for s in range(servers) for n in range(nics)], rng.randint(1, 3))
    return {place: 0.0 if rng.random() < 0.2 else round(rng.uniform(0.01, 0.9), 4) for place in places}
