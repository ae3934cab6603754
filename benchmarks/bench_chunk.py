"""What a piece of a transfer costs the processor beside its bytes. Writes docs/bench-chunk.md.

The same bytes go in rows of more and more pieces; what processor time grows by is the pieces'.
Exit status 1 when a result is wrong, or a piece costs more than the target.
"""

from __future__ import annotations

import os
import sys
from statistics import median

import numpy as np

from benchmarks.pages import made_with, parser, table, write
from optcc.runtime import run_schedules
from optcc.runtime.native.layout import SEGMENT_BYTES
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from optcc.values.units import format_size
from tests import fabrics

NBYTES = 64 << 20
PIECES = (8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, SEGMENT_BYTES[1])
TARGET_S = 2e-6


def ring(ranks: int, piece: int) -> Schedule:
    """Each of its transfers is one piece, which the engine sends as one segment."""
    cluster = Cluster.uniform(servers=ranks, nics=1, rate=10**9)
    return fabrics.ring(cluster, NBYTES, segments=NBYTES // (ranks * piece))


def seconds(ranks: int, repeat: int) -> tuple[dict[int, list[float]], bool]:
    """By piece, processor seconds of all ranks for one, sent and received, of each run; whether all was right."""
    found: dict[int, list[float]] = {}
    right = True
    for piece in PIECES:  # one at a time: a job's segments are as long as the longest of its schedules wants
        schedule = ring(ranks, piece)
        result = run_schedules({"it": schedule}, repeat=repeat, paced=False, stall_s=60.0)["it"]
        right = right and all(result.exact)
        found[piece] = [spent / len(schedule) for spent in result.cpu_s]
    return found, right


def fitted(found: dict[int, list[float]]) -> tuple[float, float]:
    """(seconds of a piece beside its bytes, seconds of a byte): least squares over the medians, relative to them."""
    sizes = np.array([*found], float)
    each = np.array([median(runs) for runs in found.values()])
    terms = np.stack((1 / each, sizes / each), axis=1)
    (piece, byte), *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    return float(piece), float(byte)


def main() -> int:
    asked = parser(__doc__, "bench-chunk")
    asked.add_argument("--repeat", type=int, default=15, help="runs of each size")
    options = asked.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core for all ranks, so that none waits awake
    rows, right, costs = [], True, []
    for ranks in (2, 4):
        found, exact = seconds(ranks, options.repeat)
        piece_s, byte_s = fitted(found)
        right, costs = right and exact, [*costs, piece_s]
        for piece, runs in found.items():
            middle = median(runs)
            beside = middle - byte_s * piece
            rows.append(
                [ranks, format_size(piece), f"{1e6 * middle:.1f}", f"{1e6 * byte_s * piece:.1f}", f"{1e6 * beside:.1f}"]
            )
    said = " and ".join(f"{1e6 * cost:.1f} us" for cost in costs)
    write(
        options.output,
        [
            "# What a piece of a transfer costs",
            "",
            f"Made by `make bench-chunk`: a ring of {format_size(NBYTES)} of float32 over the local transport, without"
            " rates, all ranks on one core.",
            "Processor time of both ends together, in microseconds; the bytes' part is what grows with them: a copy or"
            " fold at one end, and with buffers of the caller's a copy into shared memory at the other.",
            "",
            *table(["ranks", "piece", "in all", "its bytes", "beside them"], rows),
            "",
            f"With 2 and 4 ranks a piece costs {said} beside its bytes (least squares over all sizes).",
            f"The target is {1e6 * TARGET_S:g} us. Starting and ending the operation is in it, and taking turns on the"
            " core.",
            "",
            made_with(),
        ],
    )
    return 0 if right and max(costs) <= TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
