"""Faults over the local transport, counted, and the engine played whole from seeds. Writes docs/bench-failover.md.

Kinds come in turns, each at a random moment of a collective of 2 to 8 ranks; then another one must be right.
Exit status 1 when anything was lost or doubled or hung, or most strikes met nothing.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.pages import made_with, parser, write
from optcc.runtime.control.fault_injection import KINDS
from tests.failover_counts import Counts, count, page, scene_of
from tests.native_replay import build, load, play
from tests.test_failover_session import SHAPES, job


def played(seeds: int) -> tuple[list[str], int]:
    """Lines about the engine in virtual time; how many of these seeds went wrong."""
    seen, wrong = Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        lib = load(build(Path(folder)))
        for seed in each(range(seeds), "seeds"):
            outcome = play(lib, seed)
            wrong += bool(outcome.fault)
            seen.update(outcome.counters)
    told = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in seen.items())
    return [
        "## Any interleaving",
        "",
        f"The engine of all ranks over virtual NICs, played from {seeds:,} seeds, each with faults of its own"
        " ([native-engine.md](native-engine.md)):",
        f"{told}. **{wrong}** were wrong." if wrong else f"{told}. None was wrong.",
        "",
    ], wrong


def each(what: Sequence[int], name: str) -> Sequence[int]:
    return track(what, name, console=Console(stderr=True), transient=True)  # type: ignore[return-value]


def main() -> int:
    asked = parser(__doc__, "bench-failover")
    asked.add_argument("--strikes", type=int, default=1000)
    asked.add_argument("--seeds", type=int, default=10_000)
    asked.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    options = asked.parse_args()
    found = {kind: Counts() for kind in KINDS}
    for seed in each(range(options.seed, options.seed + options.strikes), "strikes"):
        kind = [*KINDS][seed % len(KINDS)]
        count(scene_of(kind, seed, SHAPES), found[kind], job)
    lines, wrong = played(options.seeds)
    made = f"Made by `make bench-failover`, seed {options.seed}: 2 to 8 ranks with 1 to 3 emulated NICs."
    write(options.output, page("What a collective survives, counted", made, found, lines) + f"\n{made_with()}")
    missed = sum(counts.missed for counts in found.values())
    return 1 if wrong or any(counts.wrong for counts in found.values()) or 2 * missed > options.strikes else 0


if __name__ == "__main__":
    sys.exit(main())
