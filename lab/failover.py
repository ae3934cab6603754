"""Faults over queue pairs, counted: `make failover-verbs` runs this inside and keeps its page.

Kinds come in turns, each at a random moment of a collective, as in tests/verbs/test_native_session.py; then another one
must be right. In virtual time all of it repeats to the microsecond.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from lab import network
from lab.allreduce import Forked
from optcc.runtime.control import launch
from optcc.runtime.control.fault_injection import KINDS as MEANT
from optcc.runtime.control.launch import Collective, Session
from optcc.runtime.control.links import GRACE_S, SUSPECT_S
from optcc.runtime.messages import Strike
from tests.failover_runs import InconclusiveError
from tests.test_failover_session import STALL_S, Scene, check, ended, ends, strike_of
from tests.verbs.test_native_session import KINDS, SHAPES, job, over_devices, prepare

TOLD = ("nic down", "lost")
"""Notes that say that a NIC, or a wire of it, is left."""


@dataclass
class Counts:
    """What has come of one kind of fault. told : how it was noticed first, and how many seconds after it."""

    runs: int = 0
    missed: int = 0
    ended: int = 0
    wrong: int = 0
    told: list[tuple[str, float]] = field(default_factory=list)

    def row(self, kind: str) -> str:
        """Of the table."""
        losses = f"**{self.wrong}**" if self.wrong else "0"
        cells = [kind, MEANT[kind], str(self.runs), str(self.missed), str(self.ended), losses]
        return f"| {' | '.join(cells)} |"


def first_told(done: Collective, strike: Strike) -> tuple[str, float] | None:
    """How the loss was noticed first, and how many seconds after the strike; None: it was not."""
    struck = next(note.at for note in done.notes if note.kind == "struck")
    about = (note for note in done.notes if strike.nic in (note.nic, note.far) and note.at >= struck)
    first = next((note for note in about if note.kind in TOLD), None)
    return (first.cause, first.at - struck) if first else None


def one(kind: str, seed: int, counts: Counts) -> None:
    """A strike in a session of its own; what comes of it goes into `counts`."""
    draw = random.Random(seed)
    ranks, nics = draw.choice(SHAPES)
    scene = over_devices(Scene(ranks, nics, (strike_of(kind, draw, ranks, nics, ()),), (False,)))
    (strike,) = scene.strikes
    counts.runs += 1
    try:
        prepare(network, scene)
        with Session(job(scene, []), stall_s=STALL_S) as session:
            if ends([strike], nics):
                hit = ended(session, strike)
                counts.ended += hit
                counts.missed += not hit
                return
            done = session.run("it", [strike])
            assert all(session.run("it").exact), "a wrong result after it"
            check(strike, done)
            if found := first_told(done, strike):
                counts.told.append(found)
    except InconclusiveError:
        counts.missed += 1
    except Exception:
        counts.wrong += 1
        print(f"seed {seed}: {scene}", flush=True)
        traceback.print_exc()


def page(found: Mapping[str, Counts]) -> str:
    """The document."""
    runs, missed = sum(each.runs for each in found.values()), sum(each.missed for each in found.values())
    wrong = sum(each.wrong for each in found.values())
    lines = [
        "# What a collective survives over queue pairs",
        "",
        "Made by `make failover-verbs` in the lab ([lab.md](lab.md)): links and packets are really disturbed,"
        " in virtual time.",
        f"{runs} runs of 2 and 4 ranks with 1 to 3 NICs, a process per rank; {missed} strikes met nothing, and say"
        f" nothing; {wrong} results were wrong, missing, or came too late.",
        "Where a strike leaves a rank no way to another, the run ends, and all ranks that live say the same of it.",
        "",
        "| fault | what it does | runs | met nothing | ended the run | losses |",
        "|---|---|---|---|---|---|",
        *(each.row(kind) for kind, each in found.items()),
        "",
        "## From the strike to the first wire that is left",
        "",
        f"A wire that moves nothing is doubted after {SUSPECT_S:g} s, and left when others have answered for"
        f" {GRACE_S:g} s more; both are longer where NICs are slow ([native-engine.md](native-engine.md)).",
        "A fault that another wire's answers make good is not noticed, and is not here.",
        "",
        "| fault | noticed by | times | median | worst |",
        "|---|---|---|---|---|",
    ]
    for kind, each in found.items():
        for cause in sorted({cause for cause, _ in each.told}):
            lines.append(f"| {kind} | {cause} | {times([s for by, s in each.told if by == cause])} |")
    return "\n".join([*lines, ""])


def times(seconds: Sequence[float]) -> str:
    """Cells: how many, the median, the worst."""
    return f"{len(seconds)} | {1000 * median(seconds):.1f} ms | {1000 * max(seconds):.1f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strikes", type=int, default=200)
    options = parser.parse_args()
    launch.start_rank = Forked  # type: ignore[assignment]
    found = {kind: Counts() for kind in KINDS}
    for seed in range(options.strikes):
        kind = KINDS[seed % len(KINDS)]
        one(kind, seed, found[kind])
        Path("/results/failover.md").write_text(page(found), encoding="utf-8")  # what is done stays, whatever comes
        print(f"{seed + 1} of {options.strikes}: {kind}", flush=True)
    print(page(found), flush=True)
    return 1 if any(each.wrong for each in found.values()) else 0


if __name__ == "__main__":
    if "OPTCC_LAB" not in os.environ:
        sys.exit("only in the lab: make failover-verbs")
    sys.exit(main())
