"""What our wires move over queue pairs against a plain pyverbs loop of the same writes, in the lab, in real time.

Writes docs/bench-verbs-loop.md. Exit status 1 when less than 95 % is moved, or bytes did not arrive.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.pages import interval, parser, write
from optcc.values.units import format_size

SIZES = {1 << 12: 64, 1 << 17: 32, 1 << 20: 16}
"""Bytes of a chunk, and how many make a run: so few that other jobs of the machine slow all runs of a turn alike."""
LEAST = 0.95

Turn = dict[str, float]


@dataclass(frozen=True)
class Found:
    """`turns` : seconds of each way. `counts` : of ours, by rank, for each chunk: calls that post sends, that post
    receives, that poll; completions."""

    turns: list[Turn]
    counts: list[list[float]]


def measure(chunk: int, chunks: int, seconds: float, share: Path) -> Found:
    """All ways in turns; the lab is started for it."""
    share.mkdir(parents=True, exist_ok=True)
    found = share / "plain_loop.json"
    found.unlink(missing_ok=True)
    loop = ["python3", "-m", "lab.plain_loop", "--chunk", str(chunk), "--chunks", str(chunks)]
    lab = ["lab/run.sh", "--real-time", "--nics", "2", "--limit", "900", "--results", str(share), "--"]
    subprocess.run([*lab, *loop, "--seconds", str(seconds), "-o", "/results/plain_loop.json"], check=True)
    return Found(**json.loads(found.read_text(encoding="utf-8")))


def against(turns: list[Turn], way: str) -> tuple[float, str]:
    """What ours move in the time of `way`: the median of the turns, and with its 95 % interval as text."""
    ratios = [turn[way] / turn["ours"] for turn in turns]
    return interval(ratios)


def row(chunk: int, chunks: int, found: Found) -> tuple[str, float]:
    """The table's row, and what is moved in a plain loop's time."""
    turns = found.turns
    rates = [chunk * chunks / median(turn[way] for turn in turns) / 1e6 for way in ("plain", "gathered", "ours")]
    ratio, text = against(turns, "plain")
    cells = [format_size(chunk), *(f"{rate:.1f} MB/s" for rate in rates), text, against(turns, "gathered")[1]]
    return f"| {' | '.join([*cells, str(len(turns))])} |", ratio


def counts_row(chunk: int, found: Found) -> str:
    """The row of the table of calls: those of both ranks."""
    return f"| {format_size(chunk)} | {' | '.join(f'{count:.2f}' for rank in found.counts for count in rank)} |"


def main() -> int:
    asked = parser(__doc__, "bench-verbs-loop")
    asked.add_argument("--share", type=Path, default=Path("out/lab"), help="where results are left")
    asked.add_argument("--seconds", type=float, default=75.0, help="for each size of chunk")
    options = asked.parse_args()
    found = {chunk: measure(chunk, chunks, options.seconds, options.share) for chunk, chunks in SIZES.items()}
    rows = [row(chunk, chunks, found[chunk]) for chunk, chunks in SIZES.items()]
    lines = [
        "# Our wires against a plain loop of the same writes",
        "",
        "Made by `make bench-verbs-loop`: two processes of the lab ([lab.md](lab.md)) in real time, each with a NIC",
        "of soft-RoCE, no rate. Rank 0 writes chunks into a window of eight slots, rank 1 returns a credit for each,",
        "a write of no bytes.",
        "",
        "* *Plain* is what one would write by hand with pyverbs (`lab/plain_loop.py`): a write of the payload",
        "and, posted",
        "  with it, one of a header with an immediate value, which asks for a completion; requests are made once.",
        "* *Gathered* is that with one write of header and payload for a chunk, as ours have it.",
        "* *Ours* is `VerbsWires`, which calls libibverbs itself ([verbs.md](verbs.md)).",
        "",
        "In the same processes, in turns of short runs, every order of the three as often; what lands is checked.",
        "Rates are medians; of the turns' ratios the median +- its 95 % interval (quartiles).",
        "",
        "| chunk | plain | gathered | ours | ours over plain | ours over gathered | turns |",
        "|---|---|---|---|---|---|---|",
        *(line for line, _ in rows),
        "",
        "What ours call for a chunk, counted in a run of its own:",
        "",
        "| chunk | sender: posts | of receives | polls | completions | receiver: posts | of receives | polls "
        "| completions |",
        "|---|---|---|---|---|---|---|---|---|",
        *(counts_row(chunk, found[chunk]) for chunk in SIZES),
        "",
        "Ours also look at the clock when a poll brings a chunk, a system call there, keep account of what is",
        "under way,",
        "and listen for events of NICs and for messages; plain makes an object for every completion, asks for",
        "one of every",
        "chunk, and posts every chunk by a call of its own.",
        "",
        f"{os.cpu_count()} CPUs, of which the lab uses one.",
        "",
    ]
    write(options.output, lines)
    return 0 if all(ratio >= LEAST for _, ratio in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
