"""Random calls over shared memory and TCP, with and without faults: no wrong byte, nothing left behind."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optcc
from tests import loopback
from tests.communicator_contract import KINDS, Call, calls_of, play
from tests.communicators import Ranks
from tests.effort import cases

NICS = 3


def left() -> dict[str, object]:
    """What a process could leave behind: threads, descriptors (memory that ranks share is among them), maps."""
    gc.collect()
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd.isdigit()]
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "shared memory": sum("memfd:optcc" in link for link in links),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": sum("memfd:optcc" in line for line in Path("/proc/self/maps").read_text().splitlines()),
    }


def play_round(
    seed: int, calls: int, largest: int, world: int = 3, *, break_pause_s: float = 0.0, **options: Any
) -> tuple[list[str], list[str]]:
    """A communicator and so many calls, in which up to two of three NICs of every server die; then a few by its parts.

    Over TCP no NIC of this machine can be cut: `break_pause_s` : so long apart, at most, NICs lose their connections
    instead. Returns what was wrong, and the kinds of all events.
    """
    random = np.random.default_rng(seed)
    tcp = options.get("transport") == "tcp"
    lost = [random.choice(NICS, int(random.integers(0, NICS)), replace=False) for _ in range(world)]
    nics = [] if tcp else [f"server{server}/nic{nic}" for server, some in enumerate(lost) for nic in some]
    when = random.choice(calls, len(nics), replace=False).tolist()
    strikes = {at: (nic, float(random.random())) for at, nic in zip(when, nics, strict=True)}
    addresses = [loopback.address(rank, nic, NICS) for rank in range(world) for nic in range(NICS)]
    cluster = loopback.cluster(world, NICS) if tcp else f"uniform:servers={world},nics={NICS},rate=1Gb/s"
    with (
        Ranks(world, cluster, timeout_s=600.0, **options) as ranks,
        loopback.Breaker(addresses, seed, break_pause_s) if break_pause_s else nullcontext(),
    ):
        wrong = ranks.good(lambda comm: play(comm, calls_of(seed, calls, world, largest), strikes))
        wrong += ranks.good(lambda comm: play_in_parts(comm, seed, largest))
        return [each for rank in wrong for each in rank], [
            event.kind for comm in ranks.comms for event in comm.events()
        ]


def play_in_parts(comm: optcc.Communicator, seed: int, largest: int) -> list[str]:
    """All ranks but one, in the other order, and that one: calls of their own, and calls of all in between."""
    part = comm.split(color=comm.rank == seed % comm.world, key=-comm.rank)
    assert part
    with part:
        wrong = play(part, calls_of(seed, 3, part.world, largest))
        wrong += play(comm, calls_of(seed + 1, 2, comm.world, largest))
        return wrong + play(part, calls_of(seed + 2, 2, part.world, largest))


@pytest.mark.parametrize(("world", "seed"), [(2, 13), (3, 11), (4, 11)])
def test_random_calls(world: int, seed: int) -> None:
    """40 of them, of all kinds, half of them on arrays of the communicator's; NICs die."""
    play_round(1, 8, 1 << 12, world)  # what the first use of anything leaves, such as pools, is no leak
    before = left()
    wrong, events = play_round(seed, 40, 1 << 21, world)
    assert wrong == []
    assert {call.kind for call in calls_of(seed, 40, world, 1 << 21)} == {*KINDS}
    assert "nic down" in events, "the faults met something"
    assert left() == before


@pytest.mark.parametrize("world", [2, 3, 4])
def test_random_calls_over_tcp(world: int) -> None:
    """Over addresses of the loopback interface."""
    play_round(1, 8, 1 << 12, world, transport="tcp")
    before = left()
    wrong, events = play_round(11, 40, 1 << 21, world, transport="tcp")
    assert wrong == []
    assert not {"nic down", "lost"} & {*events}, "nothing befell them"
    assert left() == before


@pytest.mark.parametrize("world", [2, 3, 4])
def test_random_calls_over_connections_that_break(world: int) -> None:
    """Again and again NICs lose all their connections, in the middle of whatever these carry."""
    play_round(1, 8, 1 << 12, world, transport="tcp")
    before = left()
    wrong, events = play_round(11, 40, 1 << 21, world, transport="tcp", break_pause_s=0.03)
    assert wrong == []
    assert {"lost", "fenced", "made anew"} <= {*events}, "the faults met something"
    assert {"moved", "waiting"} & {*events}, "to NICs that have a way, or for one"
    assert left() == before


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_thousand_random_calls_with_random_faults(world: int) -> None:
    """Of up to 8 MiB, 20 on each communicator, on every ninth 64 MiB; every other one is reproducible. With `--whole`;
    an eighth of them with `--long`."""
    play_round(0, 8, 1 << 12, world)
    before, rounds = left(), cases(50)
    struck, renewed = 0, 0
    for seed in range(rounds):
        wrong, events = play_round(seed, 20, 1 << (23 if seed % 9 else 26), world, reproducible=bool(seed % 2))
        assert wrong == []
        struck, renewed = struck + events.count("struck"), renewed + events.count("renewed")
    assert struck > 0.8 * rounds, "the faults met something"
    assert renewed > 0.6 * rounds
    assert left() == before


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_thousand_random_calls_over_connections_that_break(world: int) -> None:
    """Likewise, of up to 2 MiB."""
    play_round(1, 8, 1 << 12, world, transport="tcp")
    before, lost = left(), 0
    for seed in range(cases(50)):
        options: dict[str, Any] = {"transport": "tcp", "break_pause_s": 0.03, "reproducible": bool(seed % 2)}
        wrong, events = play_round(seed, 20, 1 << 21, world, **options)
        assert wrong == []
        lost += events.count("lost")
    assert lost > cases(50), "the faults met something"
    assert left() == before


# --- what would show -------------------------------------------------------------------------------------------------


class Spoiling:
    """A communicator of one rank that spoils a result, or an input that is not the result."""

    def __init__(self, comm: optcc.Communicator, what: str) -> None:
        self._comm, self._what, self.rank, self.world = comm, what, comm.rank, comm.world

    def all_reduce(self, x: Any, op: str, *, out: Any, async_op: bool) -> Any:
        made = self._comm.all_reduce(x, op, out=out, async_op=async_op)
        (x if self._what == "input" else out).view(np.uint8)[-1] ^= 1
        return x if self._what == "other" else made


@pytest.mark.parametrize(
    ("what", "words"), [("result", "1 wrong elements, the first at 4"), ("input", "was changed"), ("other", "another")]
)
def test_a_spoilt_buffer_is_noticed(what: str, words: str) -> None:
    call = Call(0, "all_reduce", 5, "float32", "sum", 0, out=True, waits=True)
    with optcc.Communicator() as comm:
        assert play(comm, [call]) == []
        assert words in play(Spoiling(comm, what), [call])[0]


def test_what_is_left_behind_is_noticed() -> None:
    before = left()
    with Ranks(2) as ranks:
        ranks.good(lambda comm: comm.all_reduce(np.zeros(3)))
        now = left()
    for what in ("threads", "shared memory", "descriptors", "maps"):
        assert now[what] != before[what]
