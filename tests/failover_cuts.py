"""One NIC, or several, lost anyhow in the middle of a collective over real wires, all from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from optcc.runtime.devices.host import Op
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.wires.contract import Cause
from optcc.schedule import Schedule
from tests.failover_mail import Post
from tests.failover_rig import Moment, Open, Rig
from tests.failover_runs import InconclusiveError, leaves, of, rings

TIMEOUTS = Timeouts(progress=0.25, grace=0.15, answer=0.05)

KINDS = {
    "cut": "link down, the NIC says so",
    "fatal": "device fatal, the NIC says so",
    "retries": "the sender's completion error",
    "flushed": "the receiver's completion error",
    "closed": "the far end is gone",
    "hole": "black hole",
    "no data": "chunks lost one way",
    "no acks": "acknowledgements lost one way",
}
OFTEN = ("cut",) * 6
"""Most are cuts."""


@dataclass(frozen=True)
class Hit:
    """What a run has shown.

    kinds : what struck
    moved : of each flow that left a struck NIC, how that was noticed, and seconds since the strike
    waited : likewise, of every flow that moved, the seconds in which nothing of it came through
    messages : whether none was lost
    folding : seconds that a fold takes, in which a rank does nothing else
    """

    kinds: tuple[str, ...]
    moved: tuple[tuple[Cause, float], ...]
    replayed: int
    waited: tuple[tuple[Cause, float], ...]
    messages: bool
    folding: float


@cache
def jobs() -> tuple[Schedule, ...]:
    """Two to four ranks, two or three NICs each, a tenth of a second or less."""
    return (
        rings(2, 2, 1 << 16, 4_000_000),
        rings(2, 3, 1 << 17, 8_000_000),
        rings(3, 2, 1 << 17, 8_000_000),
        rings(3, 3, 1 << 17, 20_000_000),
        leaves(1 << 17, 8_000_000),
    )


def strike(rig: Rig, kind: str, nic: str) -> None:
    how: dict[str, Any] = {
        "fatal": {"cause": Cause.DEVICE, "detail": "device fatal"},
        "flushed": {"told": True},
        "no data": {"acks": False},
        "no acks": {"data": False},
    }.get(kind, {})
    does = {"retries": "fail_out", "flushed": "fail_in", "closed": "fail_in", "cut": "cut", "fatal": "cut"}
    rig.later(does.get(kind, "darken"), nic, **how)


def cut(connect: Open, seed: int) -> Hit:
    """One run. Raises AssertionError for a lost or doubled element and a hang, InconclusiveError for a miss."""
    rng = random.Random(seed)
    schedule = rng.choice(jobs())
    kinds = [rng.choice((*KINDS, *OFTEN)) for _ in range(rng.choice((1, 1, 1, 2)))]
    post = rng.choice((None, None, Post(0.3, 0.2, 0.2, seed)))
    how: dict[str, Any] = {"slot_bytes": rng.choice((500, 2048, 10_000)), "window": rng.choice((1, 2, 4, 16))}
    how["op"] = (Op.SUM, Op.MIN, Op.MAX)[seed % 3]
    with Rig({"it": schedule}, connect, timeouts=TIMEOUTS, post=post, **how) as rig:
        flow = rng.randrange(len(rig.layout.flows))
        spec = rig.layout.flows[flow]
        wire = rig.layout.wires[spec.wires[0]]
        spare = [n.rank for n in rig.layout.nics]
        rig.delay_s = rng.choice((0.0, 0.0, 0.001))
        moment, rank = rng.choice(
            (("posted", spec.src), ("landed", spec.dst), ("folded", spec.dst), ("acked", spec.src))
        )
        nics = [rng.choice([nic for nic in (wire.out, wire.into) if spare.count(spare[nic]) > 1])]
        # A second one on another server, which leaves everybody a way.
        others = [i for i, n in enumerate(rig.layout.nics) if spare.count(n.rank) > 1 and n.rank != spare[nics[0]]]
        if spare.count(spare[nics[0]]) > 2 or not others:
            others += [i for i, n in enumerate(rig.layout.nics) if n.rank == spare[nics[0]] and i != nics[0]]
        others = [i for i in others if spare.count(spare[i]) > (2 if spare[i] == spare[nics[0]] else 1)]
        if len(kinds) > 1 and others:
            nics.append(rng.choice(others))
        number, wait = rng.randrange(12), rng.choice((0.0, 0.005 * rng.random()))

        def hook(rig: Rig, what: Moment) -> None:
            nonlocal number
            if (what.kind, what.rank, what.flow) != (moment, rank, flow):
                return
            number -= 1
            if number == -1:
                for i, (kind, nic) in enumerate(zip(kinds, nics, strict=False)):
                    name = rig.layout.nics[nic].name
                    rig.after(wait * i, spare[nic], lambda kind=kind, name=name: strike(rig, kind, name))

        rig.hook = hook
        for _ in range(2):
            ended = rig.run()
            for error in ended:
                if error is not None:
                    raise AssertionError(f"{error}") from error
        struck = min((at for at, _ in rig.struck), default=0.0)
        early = [note for note in rig.notes("lost") if note.at < struck]
        assert not early, f"lost before anything was struck: {early[:3]}"
        moved = [(at, note) for at, what in rig.struck for note in of(rig, what.rpartition(" ")[2]) if note.at >= at]
        if not moved:
            raise InconclusiveError(f"inconclusive: {kinds} at {moment} {number}")
        return Hit(
            tuple(kinds[: len(nics)]),
            tuple((Cause(note.cause), note.at - at) for at, note in moved),
            sum(note.nbytes for note in rig.notes("moved")),
            tuple((Cause(felt.note.cause), felt.waited) for felt in rig.felt),
            not rig.post.drop,
            rig.delay_s,
        )
