"""Faults by name: every kind does what it says to the NICs, at its moment and with a note."""

from __future__ import annotations

from typing import Any

import pytest

from optcc.errors import InputError
from optcc.runtime.control import fault_injection
from optcc.runtime.control.fault_injection import ANYWHERE, KINDS, FaultInjector, demand_strike
from optcc.runtime.messages import Cause, Note, Strike
from optcc.runtime.native import wires
from optcc.runtime.native.layout import Layout
from optcc.runtime.native.wires import PlayedNics
from optcc.schedule import Port

NIC = "rank0/nic0"
FAR = "rank1/nic0"


def layout() -> Layout:
    """Two ranks, two NICs each: NIC i of rank r is number 2 r + i."""
    nics = tuple(Port(f"rank{nic // 2}/nic{nic % 2}", nic // 2, 1e9, 1e9) for nic in range(4))
    return Layout(2, nics, {(0, 1): tuple((here, there) for here in range(2) for there in range(2))}, 1 << 16)


class Recorder:
    """NICs that write down what is done to them."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.waiting: dict[int, int] = {}  # NIC or wire -> messages

    def held(self, nic: int) -> dict[int, int]:
        return self.waiting

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: self.done.append((name, *args, *named.items()))


class Machine:
    """A injector, what it does, and its clock."""

    def __init__(self, *planned: Strike, rank: int = 0) -> None:
        self.now, self.played = 5.0, Recorder()
        self.journal: list[Note] = []
        self.sent: dict[int, int] = {}
        self.last_words: list[list[Note]] = []
        self.injector = FaultInjector(
            rank,
            layout(),
            planned,
            self.played,
            self.journal,
            lambda: self.now,
            sent=lambda: self.sent,
            farewell=lambda: self.last_words.append([*self.journal]),
        )


@pytest.mark.parametrize(
    ("kind", "does"),
    [
        ("cut", ("cut", 0)),
        ("hole", ("darken", 0)),
        ("path", ("break_path", 0, 2)),
        ("no data", ("darken", 0, ("acks", False))),
        ("no acks", ("darken", 0, ("data", False))),
        ("flap", ("darken", 0)),
        ("fatal", ("cut", 0, Cause.DEVICE, "device fatal")),
        ("post", ("fail_out", 0, Cause.DEVICE, "post failed")),
        ("retries", ("fail_out", 0)),
        ("receiver", ("fail_in", 0)),
        ("status", ("fail_nic", f"{NIC}: remote access error")),
        ("slow", ("slow", 0, 0.25)),
    ],
)
def test_a_kind_does_what_it_says(kind: str, does: tuple[Any, ...]) -> None:
    far = FAR if kind == "path" else ""
    it = Machine(Strike(kind, NIC, 0.5, 0.25, far))
    it.injector.look(0.49)
    assert it.journal == it.played.done == []
    it.injector.look(0.5)
    assert it.played.done == [does]
    assert it.journal == [Note(5.0, "struck", NIC, far, kind, KINDS[kind])]
    it.injector.look(0.6)
    assert len(it.played.done) == 1, "once"


def test_a_pause_and_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    killed: list[int] = []
    monkeypatch.setattr(fault_injection.time, "sleep", slept.append)
    monkeypatch.setattr(fault_injection.os, "kill", lambda pid, number: killed.append(number))
    it = Machine(Strike("pause", NIC, 0.1, 3.0), Strike("kill", NIC, 0.2))
    it.injector.look(1.0)
    assert (slept, killed) == ([3.0], [9])
    assert [note.cause for note in it.journal] == ["pause", "kill"]
    assert it.last_words == [it.journal], "who is killed says so before"


def test_a_flap_heals_in_time() -> None:
    it = Machine(Strike("flap", NIC, 0.0, 2.0))
    assert it.injector.wake() == float("inf")
    it.injector.look(0.0)
    assert it.injector.wake() == 7.0
    it.now = 6.9
    it.injector.look(0.5)
    assert it.played.done == [("darken", 0)]
    it.now = 7.0
    it.injector.look(0.5)
    assert it.played.done == [("darken", 0), ("heal", 0)]
    assert it.injector.wake() == float("inf")


@pytest.mark.parametrize(
    ("before", "then", "held"), [({}, {}, 0), ({1: 3}, {1: 3}, 0), ({1: 3, 2: 1}, {1: 5, 4: 1}, 3), ({1: 3}, {}, 0)]
)
def test_a_flap_tells_what_it_has_held_back(before: dict[int, int], then: dict[int, int], held: int) -> None:
    """What was waiting when it struck does not count; nor what was, over wires that are lost by now."""
    it = Machine(Strike("flap", NIC, 0.0, 2.0))
    it.played.waiting = before
    it.injector.look(0.0)
    it.played.waiting, it.now = then, 6.0
    it.injector.finish()
    it.now = 7.5
    it.injector.tend()
    assert [(note.at, note.kind, note.cause, note.held) for note in it.journal[1:]] == [
        (6.0, "held", "flap", held),
        (7.5, "healed", "flap", held),
    ]


def test_a_slow_nic_tells_what_has_left_since() -> None:
    it = Machine(Strike("slow", NIC, 0.1, 0.5), Strike("slow", NIC, 0.2, 0.5))
    it.sent = {0: 1000, 1: 5}
    it.injector.look(0.1)
    it.sent[0] = 1400
    it.injector.look(0.2)
    it.sent[0] = 1500
    it.injector.finish()
    assert [(note.kind, note.nbytes) for note in it.journal] == [
        ("struck", 0),
        ("slowed", 400),
        ("struck", 0),
        ("slowed", 100),
    ]


def test_a_flap_that_outlives_its_operation_heals_in_the_next() -> None:
    healing: list[tuple[float, int]] = []
    it, nics = layout(), Recorder()
    FaultInjector(0, it, [Strike("flap", NIC, 0.0, 2.0)], nics, [], lambda: 5.0, healing).look(1.0)
    assert healing == [(7.0, 0)]
    after = FaultInjector(0, it, [], nics, [], lambda: 7.5, healing)
    assert after.wake() == 7.0
    after.look(0.0)
    assert nics.done == [("darken", 0), ("heal", 0)]
    assert healing == []


def test_a_rank_strikes_its_own_nics_only_in_order() -> None:
    planned = (Strike("slow", NIC, 0.9, 0.5), Strike("cut", "rank1/nic0", 0.0), Strike("hole", "rank0/nic1", 0.1))
    it = Machine(*planned)
    it.injector.look(1.0)
    assert [note.nic for note in it.journal] == ["rank0/nic1", NIC]
    it = Machine(*planned, rank=1)
    it.injector.look(1.0)
    assert [note.nic for note in it.journal] == ["rank1/nic0"]


@pytest.mark.parametrize(("kind", "nic"), [("cot", NIC), ("cut", "rank9/nic0")])
def test_what_cannot_be_struck_is_refused(kind: str, nic: str) -> None:
    with pytest.raises(InputError, match=r"no such fault, expected cut, .* of one of rank0/nic0, "):
        Machine(Strike(kind, nic, 0.5))


@pytest.mark.parametrize("kind", KINDS)
def test_over_tcp_only_processes_are_struck(kind: str) -> None:
    nics = {"rank0/nic0": 0, "rank1/nic0": 1}
    strike = Strike(kind, "rank0/nic0", 0.5, 0.5, "rank1/nic0")
    demand_strike(strike, nics, "local")
    if kind in ANYWHERE:
        demand_strike(strike, nics, "tcp")
        return
    with pytest.raises(InputError, match="not over tcp, expected pause or kill"):
        demand_strike(strike, nics, "tcp")


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"pause", "kill"}))
def test_emulated_nics_know_every_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Library:
        """Does everything."""

        def __getattr__(self, name: str) -> Any:
            return lambda *_: done.append(name) or 0

    monkeypatch.setattr(wires, "engine_library", Library)
    played = PlayedNics(None, layout(), 0)
    FaultInjector(0, layout(), [Strike(kind, NIC, 0.0, 0.5, FAR)], played, [], lambda: 0.0).look(0.0)
    assert done or played.bug


def test_a_path_needs_two_ends_and_wires_that_can_break_it() -> None:
    with pytest.raises(InputError, match="no such fault"):
        Machine(Strike("path", NIC, 0.5))
    with pytest.raises(InputError, match="real NICs cannot be told to"):
        FaultInjector(0, layout(), [Strike("path", NIC, 0.5, far=FAR)], object(), [], lambda: 0.0)


@pytest.mark.parametrize(("second_at", "seconds", "ends"), [(5.2, 0.5, 5.7), (5.2, 0.1, 5.5), (5.0, 0.5, 5.5)])
def test_flaps_that_overlap_heal_once_at_the_last_ones_end(second_at: float, seconds: float, ends: float) -> None:
    it = Machine(Strike("flap", NIC, 0.5, 0.5), Strike("flap", NIC, 0.6, seconds))
    it.injector.look(0.5)
    it.now = second_at
    it.injector.look(0.6)
    assert it.injector.wake() == pytest.approx(ends)
    it.now = ends - 0.01
    it.injector.tend()
    assert it.played.done == [("darken", 0)]
    it.now = ends + 0.01
    it.injector.tend()
    assert it.played.done == [("darken", 0), ("heal", 0)]
    assert [note.kind for note in it.journal] == ["struck", "struck", "healed"]


def test_flaps_apart_heal_each_by_itself() -> None:
    it = Machine(Strike("flap", NIC, 0.5, 0.5), Strike("flap", NIC, 0.6, 0.5))
    it.injector.look(0.5)
    it.now = 5.6
    it.injector.look(0.5)
    it.injector.look(0.6)
    it.now = 6.2
    it.injector.tend()
    assert it.played.done == [("darken", 0), ("heal", 0)] * 2


@pytest.mark.parametrize("kind", ["cut", "hole", "fatal"])
def test_what_lasts_ends_a_flap_without_healing(kind: str) -> None:
    it = Machine(Strike("flap", NIC, 0.5, 0.5), Strike(kind, NIC, 0.6))
    it.injector.look(0.6)
    it.now = 9.0
    it.injector.tend()
    assert ("heal", 0) not in it.played.done
    assert [note.kind for note in it.journal] == ["struck", "held", "struck"]
