"""Storms of faults over virtual wires: the fault-free bits or a typed error, and planted bugs are caught."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest

from optcc.errors import SimulationError
from optcc.runtime.errors import TransportError
from optcc.runtime.flows import flows
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.measuring import virtual_run
from optcc.runtime.protocol import Receiver, Sender
from optcc.runtime.wires.contract import Cause
from tests import flow_storms, protocol_mutants
from tests.flow_mutants import FoldsTwice, LosesTheQueue, NoFence, SendsTheWrongBytes
from tests.flow_storms import HangError, schedules, storm

STORMS = 300


@pytest.mark.long
def test_storms(request: pytest.FixtureRequest) -> None:
    """Hundreds of runs: the fault-free bits on every rank, or a typed error where no wire is left; and it ends."""
    first = int(request.config.getoption("--hypothesis-seed"))
    seen: Counter[str] = Counter()
    for seed in range(first, first + STORMS):
        try:
            seen += storm(seed)
        except Exception as error:
            raise AssertionError(f"storm({seed}): {error}") from error
    wanted = {*flow_storms.KINDS, "severed", *(f"moved: {cause}" for cause in Cause if cause is not Cause.CLOSED)}
    assert sorted(wanted - seen.keys()) == [], "not seen"


def test_storms_cover_every_family() -> None:
    assert len(schedules()) > 30
    assert {schedule.ranks for schedule in schedules()} >= {2, 3, 4, 5, 6}


def caught(most: int = 150) -> str:
    """What the storms say about a planted bug."""
    for seed in range(most):
        try:
            storm(seed)
        except (AssertionError, TransportError, SimulationError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("mutant", [NoFence, FoldsTwice, LosesTheQueue])
def test_storms_catch_a_broken_part(mutant: type) -> None:
    with mock.patch.object(flows, mutant.__mro__[1].__name__, mutant):
        assert caught()


def test_storms_catch_a_broken_transport() -> None:
    with mock.patch.object(virtual_run, "FlowTransport", SendsTheWrongBytes):
        assert caught()


@pytest.mark.parametrize(
    "mutant",
    [
        protocol_mutants.ClaimsTooMuch,
        protocol_mutants.ForgetsTheLast,
        protocol_mutants.ResumesByItself,
        protocol_mutants.AsksUnfenced,
        protocol_mutants.TrustsTheLast,
        protocol_mutants.LeavesAnyway,
        protocol_mutants.Impatient,
    ],
)
def test_storms_catch_a_broken_protocol(mutant: type[Sender | Receiver]) -> None:
    with mock.patch.object(flows, "Sender" if issubclass(mutant, Sender) else "Receiver", mutant):
        assert caught()


def test_a_storm_can_be_had_again() -> None:
    assert storm(11) == storm(11)


def test_storms_notice_a_hang() -> None:
    with mock.patch.object(FlowTransport, "_look_soon"):
        assert caught().startswith(HangError.__name__)
