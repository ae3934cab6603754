"""What our wires move over queue pairs against a plain pyverbs loop of the same writes, in the lab, in real time.

Writes docs/bench-verbs-loop.md. Exit status 1 when less than 95 % is moved, or bytes did not arrive.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import median, quantiles

from optcc.units import format_size

SIZES = {1 << 17: 100, 1 << 20: 16}
"""Bytes of a chunk, and how many make a run."""
LEAST = 0.95


def pairs_of(chunk: int, chunks: int, pairs: int, share: Path) -> list[dict[str, float]]:
    """Seconds of each way, pair by pair; the lab is started for it."""
    share.mkdir(parents=True, exist_ok=True)
    found = share / "plain_loop.json"
    found.unlink(missing_ok=True)
    loop = ["python3", "-m", "lab.plain_loop", "--chunk", str(chunk), "--chunks", str(chunks), "--pairs", str(pairs)]
    lab = ["lab/run.sh", "--real-time", "--nics", "2", "--limit", "900", "--results", str(share), "--"]
    subprocess.run([*lab, *loop, "-o", "/results/plain_loop.json"], check=True)
    pairs_found: list[dict[str, float]] = json.loads(found.read_text(encoding="utf-8"))
    return pairs_found


def row(chunk: int, chunks: int, pairs: list[dict[str, float]]) -> tuple[str, float]:
    """The table's row, and what is moved in a plain loop's time: the median of the pairs."""
    ratios = [pair["plain"] / pair["ours"] for pair in pairs]
    low, ratio, high = quantiles(ratios)
    within = 1.57 * (high - low) / math.sqrt(len(ratios))
    rates = [chunk * chunks / median(pair[way] for pair in pairs) / 1e6 for way in ("plain", "ours")]
    cells = [format_size(chunk), *(f"{rate:.1f} MB/s" for rate in rates)]
    return f"| {' | '.join(cells)} | {ratio:.3f} +- {within:.3f} ({low:.2f}-{high:.2f}) |", ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/bench-verbs-loop.md"))
    parser.add_argument("--share", type=Path, default=Path("out/lab"), help="where results are left")
    parser.add_argument("--pairs", type=int, default=60)
    options = parser.parse_args()
    rows = [
        row(chunk, chunks, pairs_of(chunk, chunks, options.pairs, options.share)) for chunk, chunks in SIZES.items()
    ]
    lines = [
        "# Our wires against a plain loop of the same writes",
        "",
        "Made by `make bench-verbs-loop`: two processes of the lab ([lab.md](lab.md)) in real time, each with a NIC",
        "of soft-RoCE, no rate. Rank 0 writes chunks (a header of 64 bytes and a payload) with an immediate value into",
        "a window of eight slots, rank 1 returns a credit for each. *Plain* is what one would write by hand with",
        "pyverbs (`lab/plain_loop.py`): one request and its elements, made once, posted again and again; waiting for",
        f"the completion channel. *Ours* is `VerbsWires`. In the same processes, in turns, {options.pairs} pairs;",
        "what lands is checked. Medians, and of the pairs' ratios the median +- its 95 % interval (quartiles).",
        "",
        "| chunk | plain | ours | ours over plain |",
        "|---|---|---|---|",
        *(line for line, _ in rows),
        "",
        f"{os.cpu_count()} CPUs, of which the lab uses one.",
        "",
    ]
    options.output.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))
    return 0 if all(ratio >= LEAST for _, ratio in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
