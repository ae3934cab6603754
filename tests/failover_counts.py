"""Faults counted, for the pages: each at a random moment of a collective, after which another one must be right."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from optcc.runtime.control.fault_injection import KINDS
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Collective, Session
from optcc.runtime.control.links import GRACE_S, SUSPECT_S
from optcc.runtime.messages import Strike
from tests.failover_runs import InconclusiveError
from tests.test_failover_session import STALL_S, Scene, check, ended, ends, strike_of

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
        cells = [kind, KINDS[kind], str(self.runs), str(self.missed), str(self.ended), losses]
        return f"| {' | '.join(cells)} |"


def first_told(done: Collective, strike: Strike) -> tuple[str, float] | None:
    """How the loss was noticed first, and how many seconds after the strike; None: it was not."""
    struck = next(note.at for note in done.notes if note.kind == "struck")
    about = (note for note in done.notes if strike.nic in (note.nic, note.far) and note.at >= struck)
    first = next((note for note in about if note.kind in TOLD), None)
    return (first.cause, first.at - struck) if first else None


def scene_of(kind: str, seed: int, shapes: Sequence[tuple[int, int]]) -> Scene:
    """One strike of a kind, at one of these clusters of so many ranks and NICs."""
    draw = random.Random(seed)
    ranks, nics = draw.choice(shapes)
    return Scene(ranks, nics, (strike_of(kind, draw, ranks, nics, ()),), (False,))


def count(scene: Scene, counts: Counts, job: Callable[[Scene, Sequence[str]], Job]) -> None:
    """A strike in a session of its own; what comes of it goes into `counts`."""
    (strike,) = scene.strikes
    counts.runs += 1
    try:
        with Session(job(scene, []), stall_s=STALL_S) as session:
            if ends([strike], scene.nics):
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
        print(f"{scene}", flush=True)
        traceback.print_exc()


def page(title: str, made: str, found: Mapping[str, Counts], more: Sequence[str] = ()) -> str:
    """The document. made : how, and of what ranks; more : lines behind the first table"""
    runs, missed = sum(each.runs for each in found.values()), sum(each.missed for each in found.values())
    wrong = sum(each.wrong for each in found.values())
    lines = [
        f"# {title}",
        "",
        made,
        f"{runs} runs, a process per rank; {missed} strikes met nothing, and say nothing; {wrong} results were wrong,"
        " missing, or came too late.",
        "Where a strike leaves a rank no way to another, the run ends, and all ranks that live say the same of it.",
        "",
        "| fault | what it does | runs | met nothing | ended the run | losses |",
        "|---|---|---|---|---|---|",
        *(each.row(kind) for kind, each in found.items()),
        "",
        *more,
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
