"""The tables of the failover protocol's machines: what is not in them is an error, and the page shows all that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optcc.errors import InputError
from optcc.runtime.protocol import ProtocolError, Receiver, Sender, SenderState
from optcc.runtime.protocol.events import Found, Landed, Lost, Send
from optcc.runtime.protocol.table import Row, table
from optcc.runtime.wires.contract import Cause
from tests.protocol_ends import sender
from tools.protocol_tables import document, update

PAGE = Path(__file__).resolve().parent.parent / "docs" / "failover-protocol.md"


def test_an_event_that_the_table_lacks_is_an_error() -> None:
    machine = sender(1)
    machine.handle(Lost(7, Cause.PORT))
    with pytest.raises(ProtocolError, match="fencing"):
        machine.handle(Send())
    with pytest.raises(ProtocolError, match="Landed"):
        machine.handle(Landed(7, 0, 0))


def test_two_rules_for_one_pair_are_an_error() -> None:
    row = Row((SenderState.ACTIVE,), (Send,), Sender._send)
    with pytest.raises(ValueError, match="Send in active"):
        table((row, row))


@pytest.mark.parametrize("make", [lambda: Sender((), 1), lambda: Sender((1, 1), 1), lambda: Sender((1,), 0)])
def test_a_flow_without_wires_or_window_is_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize("make", [lambda: Receiver((), 1), lambda: Receiver((1,), 2, credit_every=3)])
def test_a_receiver_that_could_not_return_its_credits_is_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()


def test_the_page_is_what_the_tables_say() -> None:
    assert update(PAGE.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8"), "run tools/protocol_tables.py"


def test_the_page_shows_every_rule() -> None:
    shown = document()
    for machine in (Sender, Receiver):
        for state, event in machine.TABLE:
            assert f"`{event.__name__}`" in shown
            assert f"| {state} |" in shown


def test_the_page_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = dict(Sender.TABLE)
    del rules[SenderState.STRANDED, Found]
    monkeypatch.setattr(Sender, "TABLE", rules)
    assert update(PAGE.read_text(encoding="utf-8")) != PAGE.read_text(encoding="utf-8")
