"""Schemes that ns-3 puts in another order than the simulator: which, by how much, and what goes with it.

For `bench_packet_level`. A pair is tied if both say that one takes at most `TIE` longer than the other, which is as far
as times may be away without being looked into. Ties are listed with both figures; every other pair is a disagreement,
and one that none of the things below explains by itself ends the script with an error.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from optcc.schedule import Schedule
from optcc.simulation.simulator import stripes_of
from tests.packet_level import Network, inversions, run_packets, simulated

TIE = 0.01
PACKETS = (2048, 1024, 512, 256)
"""Bytes of data in a packet with which a pair is run again."""
NONE_ALONE = "none alone"
JITTER, DRAWS = 0.001, 20
"""By which part rates are lower to see rows that are tied, and how often."""


@dataclass(frozen=True)
class Swap:
    """Two schemes of one job; the simulator says that the first one is faster, ns-3 that it is not.

    where : what else there is to say of the job; ours, theirs : the first one's time over the second one's
    """

    job: str
    where: str
    first: str
    second: str
    ours: float
    theirs: float
    tied: bool

    def __str__(self) -> str:
        return (
            f"{self.job}, {self.where}: {self.first} takes {self.ours:.4f} of {self.second} here, "
            f"{self.theirs:.4f} in ns-3"
        )


def swaps(job: str, where: str, names: Sequence[str], ours: Sequence[float], theirs: Sequence[float]) -> list[Swap]:
    """Of the schemes of one job. A pair without a verdict in ns-3, with equal times there, is one, too."""
    apart = inversions(ours, theirs, TIE)
    return [
        Swap(job, where, names[i], names[j], ours[i] / ours[j], theirs[i] / theirs[j], (i, j) not in apart)
        for i, j in inversions(ours, theirs)
    ]


@dataclass(frozen=True)
class Cause:
    """What a pair does when one thing is different; figures are the first one's time over the second one's.

    smaller : ns-3 with packets of `PACKETS`
    stripes : our simulator with receivers that serve whole stripes
    rows : least and most by our simulator when rates are a little lower
    median : bytes of a stripe of each
    """

    swap: Swap
    smaller: tuple[float, ...]
    stripes: float
    rows: tuple[float, float]
    median: tuple[int, int]

    @property
    def goes_with(self) -> str:
        """What alone gives both the same order: the size of packets, how receivers serve, which row is first."""
        found = {"packets": self.smaller[-1] < 1, "receivers": self.stripes >= 1, "rows": self.rows[1] >= 1}
        return ", ".join(name for name, same in found.items() if same) or NONE_ALONE

    def __str__(self) -> str:
        swap = self.swap
        figures = [f"{swap.ours:.4f}", f"{self.stripes:.4f}", "{:.4f} to {:.4f}".format(*self.rows)]
        figures += [f"{theirs:.4f}" for theirs in (swap.theirs, *self.smaller)]
        return (
            f"| {swap.job}, {swap.where} | {swap.first} / {swap.second} | {self.median[0]} / {self.median[1]} "
            f"| {' | '.join(figures)} | {self.goes_with} | {'tied' if swap.tied else 'NOT tied'} |"
        )


HEAD = [
    "| job | schemes | median stripe, bytes | optcc | optcc, stripes | optcc, rows | ns-3 | "
    + " | ".join(f"ns-3, {size} B" for size in PACKETS)
    + " | goes with | |",
    "|" + "---|" * (9 + len(PACKETS)),
]


def cause(executor: Path, swap: Swap, first: Schedule, second: Schedule, network: Network) -> Cause:
    """Run both again, with one thing changed at a time."""
    pair = (first, second)
    small = [replace(network, payload=size) for size in PACKETS]
    times = [[run_packets(executor, schedule, net).time_s for schedule in pair] for net in small]
    stripes = [simulated(schedule, network, "stripes") for schedule in pair]
    rows = [a / b for a, b in zip(*(lowered(schedule, network, JITTER) for schedule in pair), strict=True)]
    medians = [int(np.median(stripes_of(schedule).length)) for schedule in pair]
    return Cause(swap, tuple(a / b for a, b in times), stripes[0] / stripes[1], (min(rows), max(rows)), tuple(medians))


def lowered(schedule: Schedule, network: Network, by: float) -> list[float]:
    """Our simulator's times when every port's rates are lower by up to this part, at random."""
    draw, times = random.Random(0), []
    for _ in range(DRAWS):
        ports = tuple(
            replace(
                port,
                out_rate=port.out_rate * (1 - by * draw.random()),
                in_rate=port.in_rate * (1 - by * draw.random()),
            )
            for port in schedule.ports
        )
        times.append(simulated(schedule.replace(ports=ports), network))
    return times


def slower(schedule: Schedule, network: Network, by: float) -> tuple[float, float]:
    """Least and most of our simulator's time, over its time, when every port's rates are lower by up to this part."""
    times, as_it_is = lowered(schedule, network, by), simulated(schedule, network)
    return min(times) / as_it_is, max(times) / as_it_is


def apart(found: Iterable[Swap]) -> list[Swap]:
    """Those that are disagreements."""
    return [swap for swap in found if not swap.tied]


def tied(found: Iterable[Swap]) -> list[Swap]:
    """The others."""
    return [swap for swap in found if swap.tied]
