"""Simulated time over bound at k segments and alpha = 0, for 4 to 64 servers. Writes docs/bench-simulate.md.

Exit status 1 when a case is over its limit: 1 + 1/k for one degraded server (1 + 1.5/k where it has more than half its
rate left), 1 + 2/k for several.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from rich.progress import track

import optcc
from benchmarks.pages import made_with, parser, write

SEGMENTS = 64
SIZE = 2**30
HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
CASES: tuple[tuple[Fraction, ...], ...] = (
    (Fraction(7, 8),),
    (3 * QUARTER,),
    (HALF,),
    (QUARTER,),
    (HALF, HALF),
    (HALF, 3 * QUARTER),
    (3 * QUARTER, 3 * QUARTER),
    (HALF, HALF, HALF),
    (HALF, 3 * QUARTER, Fraction(7, 8)),
    (HALF,) * 4,
    (HALF,) * 6,
    (HALF,) * 8,
    (Fraction(3, 8),) * 7,
)
DRAWN = ((4, 12, 500, (16, 64, 128)), (13, 24, 60, (16, 64)))
CROWDED = ((10, 24, 150, (2, 8, 16, 64)), (25, 64, 60, (2, 8, 16)))
"""Random clusters with up to eight degraded servers and with more: servers from and to, how many, segments."""
MANY: tuple[tuple[int, int, Fraction], ...] = (
    (20, 18, Fraction(1, 5)),
    (24, 21, QUARTER),
    (30, 28, Fraction(1, 8)),
    (34, 32, Fraction(1, 10)),
    (40, 38, Fraction(1, 16)),
    (64, 58, Fraction(1, 8)),
    (64, 60, Fraction(1, 5)),
    (64, 63, HALF),
)
"""Servers, how many of them degraded, what those have left: the worst that have been found, and all but one."""
Loss = tuple[float, int, int, tuple[Fraction, ...]]
"""(time over bound - 1) k, servers, k, left."""


def limit(left: Sequence[Fraction], segments: int) -> float:
    """The most that time over bound may be."""
    return 1 + (2.0 if len(left) > 1 else 1.5 if left[0] > HALF else 1.0) / segments


def drawn() -> list[Loss]:
    """Random clusters with two to eight degraded servers, worst first.

    Up to three rates occur in a cluster: where all differ, fewer ports are saturated, and less is lost.
    """
    draw, found = random.Random(7), []
    jobs = [(low, high, depths) for low, high, count, depths in DRAWN for _ in range(count)]
    for low, high, depths in track(jobs, description="drawing"):
        servers, segments, parts = draw.randint(low, high), draw.choice(depths), draw.choice((4, 6, 8, 10, 16, 32))
        rates = [Fraction(draw.randint(1, parts - 1), parts) for _ in range(draw.randint(1, 3))]
        left = tuple(sorted(draw.choice(rates) for _ in range(draw.randint(2, min(8, servers - 1)))))
        found.append(lost(servers, left, segments))
    return sorted(found, reverse=True)


def crowded() -> list[Loss]:
    """Random clusters with nine degraded servers to all but one, worst first; every other one has up to four full ones,
    which lose most."""
    draw, found = random.Random(8), []
    jobs = [(low, high, depths) for low, high, count, depths in CROWDED for _ in range(count)]
    for i, (low, high, depths) in enumerate(track(jobs, description="drawing more")):
        servers, segments, parts = draw.randint(low, high), draw.choice(depths), draw.choice((4, 5, 8, 10, 16, 32))
        full = draw.randint(1, min(4, servers - 9) if i % 2 else servers - 9)
        rates = [Fraction(draw.randint(1, parts - 1), parts) for _ in range(draw.choice((1, 1, 2, 3)))]
        left = tuple(sorted(draw.choice(rates) for _ in range(servers - full)))
        found.append(lost(servers, left, segments))
    return sorted(found, reverse=True)


def lost(servers: int, left: tuple[Fraction, ...], segments: int) -> Loss:
    """What the servers lose with the first of them at `left` of their rate."""
    made = nested(servers, left, segments)
    over = optcc.simulate(made.schedule()).time_s / float(made.bound.seconds) - 1
    return over * segments, servers, segments, left


def counted(left: Sequence[Fraction]) -> str:
    """What is left, each rate once: 18 x 1/5, 2 x 1/2."""
    return ", ".join(f"{count} x {rate}" for rate, count in sorted(Counter(left).items()))


def table(found: Sequence[Loss]) -> list[str]:
    """Rows of servers, left, segments and loss."""
    return [f"| {p} | {counted(left)} | {k} | {over:.2f} |" for over, p, k, left in found]


def nested(servers: int, left: Sequence[Fraction], segments: int) -> optcc.Plan:
    """Nested rings with the first servers at `left` of their rate."""
    cluster = optcc.Cluster.uniform(servers=servers, rate=Fraction(50_000_000_000))
    for i, fraction in enumerate(left):
        cluster = cluster.degrade(f"server{i}/nic0", fraction)
    return optcc.plan(cluster, SIZE, segments=segments, family="nested-rings")


def measure(servers: int, left: Sequence[Fraction]) -> tuple[float, float]:
    """(optcc over bound, ring over bound) with the first servers at `left` of their rate."""
    plan = nested(servers, left, SEGMENTS)
    schedules = (plan.schedule(), plan.baseline("ring").schedule())
    optcc_s, ring_s = (optcc.simulate(schedule).time_s for schedule in schedules)
    return optcc_s / float(plan.bound.seconds), ring_s / float(plan.bound.seconds)


def main() -> int:
    asked = parser(__doc__, "bench-simulate")
    output = asked.parse_args().output
    rows, over = [], []
    jobs = [(servers, left) for servers in (4, 8, 16, 32, 64) for left in CASES if len(left) < servers]
    for servers, left in track(jobs, description="simulating"):
        reached, ring = measure(servers, left)
        most = limit(left, SEGMENTS)
        rows.append(f"| {servers} | {', '.join(map(str, left))} | {reached:.4f} | {ring:.4f} | {most:.4f} |")
        if reached > most:
            over.append(rows[-1])
    found, more = drawn(), crowded()
    named = [lost(p, (left,) * slow, k) for p, slow, left in MANY for k in ((8, 16, 64) if p <= 40 else (8, 16))]
    over += table([one for one in (*found, *more, *named) if one[0] > 2])
    text = [
        "# Simulated time over bound",
        "",
        f"Made by `make bench-simulate`. Simulated, not measured: 1 GiB per rank, {SEGMENTS} segments, alpha = 0,",
        'one NIC of 400 Gb/s per server. "Left" is what the degraded servers have of that. The ring is one ring over',
        "all servers with equal shards, on the same degraded NICs.",
        "",
        "| servers | left | optcc / bound | ring / bound | limit for optcc |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "## Random clusters",
        "",
        f"{len(found)} clusters of {DRAWN[0][0]} to {DRAWN[-1][1]} servers, two to eight of them degraded, up to three",
        "rates in each, seed 7. Lost is (time / bound - 1) k; the limit is 2, the mean "
        f"{np.mean([lost for lost, *_ in found]):.2f}. The worst:",
        "",
        "| servers | left | k | lost |",
        "|---|---|---|---|",
        *table(found[:8]),
        "",
        "## More than eight degraded servers",
        "",
        f"{len(more)} clusters of {CROWDED[0][0]} to {CROWDED[-1][1]} servers, from nine of them degraded to all but",
        "one, up to three rates in each, every other one with up to four full servers, seed 8. The limit is 2, the",
        f"mean {np.mean([over for over, *_ in more]):.2f}. The worst:",
        "",
        "| servers | left | k | lost |",
        "|---|---|---|---|",
        *table(more[:8]),
        "",
        "Chosen by hand, as the worst that were found, and all but one at 1/2:",
        "",
        "| servers | left | k | lost |",
        "|---|---|---|---|",
        *table(named),
        "",
        made_with(f"numpy {np.__version__}"),
    ]
    write(output, text, lambda c: c["left"] == "1/2")
    for row in over:
        print(f"over its limit: {row}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
