"""What bench-steady compares the compiled path with: its edits fit the sources, and leave nothing of failover."""

from __future__ import annotations

import dis
from types import ModuleType

import pytest

from benchmarks.bare_compiled import (
    LOCAL_LOOP,
    LOCAL_PARTS,
    LOOP,
    RECEIVING,
    SENDING,
    bare_advance,
    edited,
)
from optcc.runtime.compiled import local_parts, receiving, sending

FAILOVER = {"mark", "epoch", "call", "acked", "kept", "numbered", "closed"}
"""Fields of the tables that only failover needs."""


def fields(*modules: ModuleType) -> set[str]:
    """What the functions of these modules read or write by a name behind a dot."""
    functions = [it.py_func for module in modules for it in vars(module).values() if hasattr(it, "py_func")]
    steps = [step for function in functions for step in dis.get_instructions(function)]
    return {step.argval for step in steps if step.opname in ("LOAD_ATTR", "STORE_ATTR")}


def test_every_edit_fits() -> None:
    assert bare_advance().signatures == [], "compiled by the benchmark alone, for it takes some 15 s"


def test_nothing_of_what_only_failover_needs_is_left() -> None:
    assert FAILOVER & fields(receiving, sending, local_parts) == FAILOVER
    bare_sending = edited("sending", SENDING)
    bare = edited("local_parts", LOCAL_PARTS, put_header=bare_sending.put_header)
    del bare.say_landed  # nobody calls it
    assert FAILOVER & fields(edited("receiving", RECEIVING), bare_sending, bare) == set()


@pytest.mark.parametrize(
    ("name", "edits"), [("receiving", RECEIVING), ("sending", SENDING), ("loop", LOOP), ("local_loop", LOCAL_LOOP)]
)
def test_an_edit_whose_line_has_changed_is_told(name: str, edits: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(ValueError, match=rf"{name}.py has this 0 times, not once: 'no such line'"):
        edited(name, (*edits, ("no such line", "")))
