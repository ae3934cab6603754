"""What push-back does, which the simulator does not model: TCP with several windows, for `bench_packet_level`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import track

from benchmarks.packet_orders import Swap, slower, swaps
from optcc.values.cluster import Cluster
from tests.packet_level import Network, run_packets, schemes, simulated

WINDOWS = (256 * 2**10, 2**20, 2**30)
ACKNOWLEDGED = 0.0066  # 54 bytes for every two packets of 4096

PUSH_BACK = """\
ns-3 over optcc when a pair of ports has at most so many bytes under way; a round trip of 400 Gb/s has 110 kB under way.
No slow start, no losses; every connection has carried a packet before, but for those of the last column. *Slower* is
optcc over optcc when every port's rates are lower by up to 0.66 %, at random (seed 0, 20 draws, the least and the
most)."""

WHY_PUSH_BACK = """\
Acknowledgements take up to 0.66 % of a link. That alone can move a time by more than it takes, as *slower* shows:
schedules have ties, and which of two rows is ready first decides what a port does for the next while. Most of what TCP
takes longer than UDP where windows do not limit is that. What smaller windows add is push-back: a sender whose window
to a busy receiver is full turns to another ready row or waits, where the simulator's fabric takes the bytes and keeps
them for the receiver. The simulator does not model it: its times hold for fabrics that let about a stripe per pair be
under way; with tighter windows they are too low by what the table says.

*Fresh* connections have not carried anything. TCP does not scale the window in a SYN (RFC 7323, 2.2), so that a sender
has at most 64 KiB under way until the first acknowledgement has told it more, and that has to pass what waits for the
sender's own port. In direct exchange every port sends to every other from the start, and all of those wait; in rings
each port has one or two connections. Collective libraries open connections once and use them again, so that the other
columns are what to go by. An earlier version of this page had fresh connections only, and could not say why exchange
was up to 18 % slower over TCP: one packet on each connection beforehand, with nothing else changed, takes that away."""


@dataclass(frozen=True)
class Windows:
    """One scheme on one cluster: seconds by our simulator, by ns-3 over UDP and over TCP for each of `WINDOWS`.

    fresh : over TCP with the widest window, on connections that have not carried anything
    slower : least and most of our simulator's time, over `ours`, when rates are lowered at random
    """

    servers: int
    left: str
    scheme: str
    ours: float
    udp: float
    tcp: tuple[float, ...]
    fresh: float
    slower: tuple[float, float]

    @property
    def job(self) -> str:
        return f"P = {self.servers}, {self.left}"

    def __str__(self) -> str:
        ratios = " | ".join(f"{time / self.ours:.4f}" for time in (self.udp, *reversed(self.tcp), self.fresh))
        slower = f"{self.slower[0]:.4f} to {self.slower[1]:.4f}"
        return f"| {self.servers} | {self.left} | {self.scheme} | {self.ours * 1e6:.1f} | {slower} | {ratios} |"


def compare_windows(
    cases: Sequence[tuple[int, str, Cluster]], executor: Path, nbytes: int, depth: int
) -> list[Windows]:
    """Every case with one switch, ring, nested rings of one depth and direct exchange, over UDP and over TCP.

    cases : servers, what the hit ones have left, the cluster
    """
    found, udp, tcp = [], Network(), Network("tcp")
    for servers, left, cluster in track(cases, description="windows"):
        for name, schedule in schemes(cluster, nbytes, depth).items():
            nets = [udp, replace(tcp, fresh=True, window=WINDOWS[-1])]
            nets += [replace(tcp, window=window) for window in WINDOWS]
            at_udp, fresh, *times = (run_packets(executor, schedule, net).time_s for net in nets)
            ours, range_s = simulated(schedule, udp), slower(schedule, udp, ACKNOWLEDGED)
            found.append(Windows(servers, left, name, ours, at_udp, tuple(times), fresh, range_s))
    return found


def over_tcp(rows: list[Windows]) -> list[Swap]:
    """Pairs in another order with each of `WINDOWS`."""
    found = []
    for w, window in enumerate(WINDOWS):
        where = f"windows of {window // 1024} KiB" if window < 2**30 else "no limit to windows"
        for job in dict.fromkeys(row.job for row in rows):
            mine = [row for row in rows if row.job == job]
            times = [row.ours for row in mine], [row.tcp[w] for row in mine]
            found += swaps(job, where, [row.scheme for row in mine], *times)
    return found
