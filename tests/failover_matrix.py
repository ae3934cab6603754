"""The sixteen rows of docs/failover.md: every fault at the moment that hurts most, each run with proof that it hit.

A row is a function of how wires are opened and of what varies in it; it returns what proves that the fault hit at its
moment. It raises InconclusiveError when it did not hit, and AssertionError when anything was lost, doubled or hung.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.failover_leaks import many
from tests.failover_several import both_ends, second_failure, two_flows, two_jobs, two_servers
from tests.failover_single import (
    black_hole,
    device,
    flap,
    idle,
    last_acknowledgement,
    lost_acknowledgement,
    pause,
    slow_fold,
)


@dataclass(frozen=True)
class Row:
    """A row of the matrix. variants : what is tried, as arguments of `run`; needed, what hits, in words for people."""

    fault: str
    catches: str
    run: Callable[..., str]
    variants: tuple[Mapping[str, Any], ...] = field(default=({},))


def variants(**each: tuple[Any, ...]) -> tuple[Mapping[str, Any], ...]:
    ((name, values),) = each.items()
    return tuple({name: value} for value in values)


ROWS: Mapping[int, Row] = {
    1: Row(
        "acknowledgements lost, at each window position",
        "resend of a delivered chunk",
        lost_acknowledgement,
        variants(position=(0, 1, 2, 3)),
    ),
    2: Row(
        "the last acknowledgement lost",
        "hang at the end",
        last_acknowledgement,
        ({"another": False}, {"another": True}, {"another": True, "window": 1}),
    ),
    3: Row("flap with the window full, against the retry time", "ghost writes", flap, variants(heals=(0.5, 0.9, 1.1))),
    4: Row(
        "both ends' NICs cut at once, messages lost",
        "diverging resume points, deadlock",
        both_ends,
        variants(drop=(0.0, 0.5, 1.0)),
    ),
    5: Row("two flows on the NIC, noticed 50 ms apart", "starvation after the first notice", two_flows),
    6: Row("sends and receives on the NIC, two jobs open", "stolen messages", two_jobs),
    7: Row(
        "black hole, before and in the middle of a chunk",
        "detection by progress",
        black_hole,
        ({"wait_s": 0.0}, {"wait_s": 0.0006}, {"wait_s": 0.0006, "at_receiver": True}),
    ),
    8: Row("a peer paused for twice the deadline", "false failover", pause, variants(rank=(0, 1))),
    9: Row("NIC cut during a slow fold", "lost flush, double fold", slow_fold, variants(number=(3, 30))),
    10: Row(
        "the backup fails during failover, then all NICs",
        "second failure",
        second_failure,
        variants(then_all=(False, True)),
    ),
    11: Row(
        "two servers lose NICs at once, in every stage", "plan agreement", two_servers, variants(stage=(1, 2, 3, 4))
    ),
    13: Row(
        "device fatal, failing post, ineligible status",
        "clean typed errors, no hang",
        device,
        variants(what=("fatal", "post", "status")),
    ),
    14: Row(
        "NIC lost when idle, then small and large operations", "stale state", idle, variants(noticed=(False, True))
    ),
    16: Row("1000 failovers in one process", "leaks", many, variants(failovers=(1000,))),
}
"""12 is the pure machines' own (tests/test_protocol.py); 15 and parts of 8, 11 and 13 need processes."""


MANY = 1000
"""Failovers that take long."""


def cases(which: Iterable[tuple[int, Mapping[str, Any]]], slow: pytest.MarkDecorator) -> list[Any]:
    """Row and variant as parameters ``number, how`` of a test; `slow` : the mark of the one with most failovers."""
    return [
        pytest.param(
            number,
            how,
            id="-".join((f"row{number:02}", *(f"{name}={value}" for name, value in how.items()))),
            marks=slow if how.get("failovers", 0) >= MANY else (),
        )
        for number, how in which
    ]


def every(rows: Mapping[int, Sequence[Mapping[str, Any]]] | None = None) -> list[tuple[int, Mapping[str, Any]]]:
    """Each variant of each row; of ROWS, if no others are given."""
    rows = {number: row.variants for number, row in ROWS.items()} if rows is None else rows
    return [(number, how) for number, variants in rows.items() for how in variants]
