"""Random calls over local wires and wires in memory, with and without faults: no wrong byte, nothing left behind."""

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
from tests.communicator_contract import KINDS, Call, calls_of, play
from tests.communicators import Ranks, wires_in_memory

WORLD = 3
THREE_NICS = "uniform:servers=3,nics=3,rate=1Gb/s"


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


def play_round(seed: int, calls: int, largest: int, **options: Any) -> tuple[list[str], list[str]]:
    """A communicator and so many calls, in which up to two of three NICs of every server die; then a few by its parts.

    Returns what was wrong, and the kinds of all events.
    """
    random = np.random.default_rng(seed)
    lost = [random.choice(3, int(random.integers(0, 3)), replace=False) for _ in range(WORLD)]
    nics = [f"server{server}/nic{nic}" for server, some in enumerate(lost) for nic in some]
    when = random.choice(calls, len(nics), replace=False).tolist()
    strikes = {at: (nic, float(random.random())) for at, nic in zip(when, nics, strict=True)}
    with Ranks(WORLD, THREE_NICS, timeout_s=600.0, **options) as ranks:
        wrong = ranks.good(lambda comm: play(comm, calls_of(seed, calls, WORLD, largest), strikes))
        wrong += ranks.good(lambda comm: play_in_parts(comm, seed, largest))
        return [each for rank in wrong for each in rank], [
            event.kind for comm in ranks.comms for event in comm.events()
        ]


def play_in_parts(comm: optcc.Communicator, seed: int, largest: int) -> list[str]:
    """Two ranks, in the other order, and the one that is left: calls of their own, and calls of all in between."""
    part = comm.split(color=comm.rank == seed % WORLD, key=-comm.rank)
    assert part
    with part:
        wrong = play(part, calls_of(seed, 3, part.world, largest))
        wrong += play(comm, calls_of(seed + 1, 2, comm.world, largest))
        return wrong + play(part, calls_of(seed + 2, 2, part.world, largest))


@pytest.mark.parametrize("wires", ["local", "local, lent", "in memory"])
@pytest.mark.usefixtures("compiled")
def test_random_calls(wires: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 of them, of all kinds, half of them on arrays of the communicator's; NICs die."""
    monkeypatch.setenv("OPTCC_PATH", "compiled" if wires == "local, lent" else "python")
    with wires_in_memory(monkeypatch) if wires == "in memory" else nullcontext():
        play_round(1, 8, 1 << 12)  # what the first use of anything leaves, such as pools, is no leak
        before = left()
        wrong, events = play_round(11, 40, 1 << 21)
        assert wrong == []
        assert {call.kind for call in calls_of(11, 40, WORLD, 1 << 21)} == {*KINDS}
        assert "nic down" in events, "the faults met something"
        assert left() == before


@pytest.mark.long
@pytest.mark.usefixtures("compiled")
def test_a_thousand_random_calls_with_random_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of up to 8 MiB, on every ninth of 50 communicators 64 MiB; every other one is reproducible."""
    monkeypatch.setenv("OPTCC_PATH", "compiled")
    play_round(0, 8, 1 << 12)
    before = left()
    calls, struck, renewed = 0, 0, 0
    for seed in range(50):
        wrong, events = play_round(seed, 20, 1 << (23 if seed % 9 else 26), reproducible=bool(seed % 2))
        assert wrong == []
        calls, struck, renewed = calls + 20, struck + events.count("struck"), renewed + events.count("renewed")
    assert calls == 1000
    assert struck > 40, "the faults met something"
    assert renewed > 30
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
