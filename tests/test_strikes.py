"""Faults by name: every kind does what it says to the wires, at its moment and with a note."""

from __future__ import annotations

from typing import Any

import pytest

from optcc.errors import InputError
from optcc.runtime import strikes
from optcc.runtime.messages import Note, Strike
from optcc.runtime.strikes import KINDS, Saboteur
from optcc.runtime.virtual_wires import VirtualNet
from optcc.runtime.wires import Cause
from tests.test_wires import layout

NIC = "rank0/nic0"


class Recorder:
    """Wires that write down what is done to them."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: self.done.append((name, *args, *named.items()))


class Machine:
    """A saboteur, what it does, and its clock."""

    def __init__(self, *planned: Strike, rank: int = 0) -> None:
        self.now, self.wires = 5.0, Recorder()
        self.journal: list[Note] = []
        self.saboteur = Saboteur(rank, layout(), planned, self.wires, self.journal, lambda: self.now)


@pytest.mark.parametrize(
    ("kind", "does"),
    [
        ("cut", ("cut", 0)),
        ("hole", ("darken", 0)),
        ("no data", ("darken", 0, ("acks", False))),
        ("no acks", ("darken", 0, ("data", False))),
        ("flap", ("darken", 0)),
        ("fatal", ("cut", 0, Cause.DEVICE, "device fatal")),
        ("post", ("fail_out", 0, Cause.DEVICE, "post failed")),
        ("retries", ("fail_out", 0)),
        ("receiver", ("fail_in", 0)),
        ("status", ("betray", f"{NIC}: remote access error")),
        ("slow", ("slow", 0, 0.25)),
    ],
)
def test_a_kind_does_what_it_says(kind: str, does: tuple[Any, ...]) -> None:
    it = Machine(Strike(kind, NIC, 0.5, 0.25))
    it.saboteur.look(0.49)
    assert it.journal == it.wires.done == []
    it.saboteur.look(0.5)
    assert it.wires.done == [does]
    assert it.journal == [Note(5.0, "struck", NIC, cause=kind, text=KINDS[kind])]
    it.saboteur.look(0.6)
    assert len(it.wires.done) == 1, "once"


def test_a_pause_and_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    killed: list[int] = []
    monkeypatch.setattr(strikes.time, "sleep", slept.append)
    monkeypatch.setattr(strikes.os, "kill", lambda pid, number: killed.append(number))
    it = Machine(Strike("pause", NIC, 0.1, 3.0), Strike("kill", NIC, 0.2))
    it.saboteur.look(1.0)
    assert (slept, killed) == ([3.0], [9])
    assert [note.cause for note in it.journal] == ["pause", "kill"]


def test_a_flap_heals_in_time() -> None:
    it = Machine(Strike("flap", NIC, 0.0, 2.0))
    assert it.saboteur.wake() == float("inf")
    it.saboteur.look(0.0)
    assert it.saboteur.wake() == 7.0
    it.now = 6.9
    it.saboteur.look(0.5)
    assert it.wires.done == [("darken", 0)]
    it.now = 7.0
    it.saboteur.look(0.5)
    assert it.wires.done == [("darken", 0), ("heal", 0)]
    assert it.saboteur.wake() == float("inf")


def test_a_flap_that_outlives_its_operation_heals_in_the_next() -> None:
    healing: list[tuple[float, int]] = []
    it, wires = layout(), Recorder()
    Saboteur(0, it, [Strike("flap", NIC, 0.0, 2.0)], wires, [], lambda: 5.0, healing).look(1.0)
    assert healing == [(7.0, 0)]
    after = Saboteur(0, it, [], wires, [], lambda: 7.5, healing)
    assert after.wake() == 7.0
    after.look(0.0)
    assert wires.done == [("darken", 0), ("heal", 0)]
    assert healing == []


def test_a_rank_strikes_its_own_nics_only_in_order() -> None:
    planned = (Strike("slow", NIC, 0.9, 0.5), Strike("cut", "rank1/nic0", 0.0), Strike("hole", "rank0/nic1", 0.1))
    it = Machine(*planned)
    it.saboteur.look(1.0)
    assert [note.nic for note in it.journal] == ["rank0/nic1", NIC]
    it = Machine(*planned, rank=1)
    it.saboteur.look(1.0)
    assert [note.nic for note in it.journal] == ["rank1/nic0"]


@pytest.mark.parametrize(("kind", "nic"), [("cot", NIC), ("cut", "rank9/nic0")])
def test_what_cannot_be_struck_is_refused(kind: str, nic: str) -> None:
    with pytest.raises(InputError, match=r"no such fault, expected cut, .* of one of rank0/nic0, "):
        Machine(Strike(kind, nic, 0.5))


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"pause", "kill"}))
def test_emulated_wires_know_every_kind(kind: str) -> None:
    it = layout()
    saboteur = Saboteur(0, it, [Strike(kind, NIC, 0.0, 0.5)], VirtualNet(it).ends[0], [], lambda: 0.0)
    saboteur.look(0.0)
