"""What runs under faults share: schedules, when to strike, and what proves that it hit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from optcc.runtime.errors import RankFailedError
from optcc.runtime.messages import Note
from optcc.runtime.wires.contract import Cause
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from tests.broken_schedules import nested
from tests.fabrics import ring
from tests.failover_rig import Moment, Rig

MB = 1_000_000


class InconclusiveError(AssertionError):
    """The fault did not hit at its moment: the run says nothing."""


def hit(proof: object, what: str) -> None:
    if not proof:
        raise InconclusiveError(f"inconclusive: {what}")


TRIES = 8
"""Runs, at most, until a fault has hit at its moment: on a busy machine a thread may come late."""


def conclusive(run: Callable[[], str]) -> str:
    """What a row has proved; a run that says nothing is made anew. Any other error is the row's."""
    for _ in range(TRIES - 1):
        with suppress(InconclusiveError):
            return run()
    return run()


@cache
def rings(servers: int = 3, nics: int = 2, nbytes: int = 1 << 17, rate: int = 8 * MB) -> Schedule:
    return ring(Cluster.uniform(servers=servers, nics=nics, rate=rate), nbytes, segments=2)


@cache
def leaves(nbytes: int = 1 << 17, rate: int = 4 * MB) -> Schedule:
    """Nested rings: four stages, several peers behind every NIC."""
    return nested(ranks=4, nbytes=nbytes, segments=4, rate=rate, weak=1)


def at(kind: str, rank: int, number: int, strike: Callable[[Rig, Moment], None], flow: int | None = None) -> Any:
    """A hook: strike when something happens at a rank for the `number`-th time (from 0), or to chunk `number`."""
    count = [0]

    def hook(rig: Rig, moment: Moment) -> None:
        if moment.kind != kind or moment.rank != rank or (flow is not None and moment.flow != flow):
            return
        count[0] += 1
        if (count[0] - 1 if flow is None else moment.seq) == number and not rig.struck:
            strike(rig, moment)

    return hook


def all_right(ended: list[BaseException | None]) -> None:
    for error in ended:
        if error is not None:
            raise error


def same_error(ended: list[BaseException | None]) -> str:
    """All ranks have raised the same; its text."""
    texts = {f"{type(error).__name__}: {error}" for error in ended}
    assert len(texts) == 1, f"the ranks raise different things: {texts}"
    assert isinstance(ended[0], RankFailedError)
    return texts.pop()


def of(rig: Rig, nic: str, cause: Cause | None = None) -> list[Note]:
    """Flows that have left a NIC."""
    return [note for note in rig.notes("moved") if nic in (note.nic, note.far) and cause in (None, note.cause)]


def home(rig: Rig, flow: int) -> tuple[str, str]:
    """The names of the NICs of a flow's home wire."""
    wire = rig.layout.wires[rig.layout.flows[flow].wires[0]]
    return rig.layout.nics[wire.out].name, rig.layout.nics[wire.into].name


def ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
