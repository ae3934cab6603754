"""What travels over the control channel: messages and jobs come back as they were, and nothing else is believed."""

from __future__ import annotations

import ast
import io
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optcc.runtime.codec import MessageError, decode, encode, plain, typed
from optcc.runtime.control.job import Assignment, Job
from optcc.runtime.messages import (
    FROM_RANK,
    TO_RANK,
    AskCall,
    AskTime,
    Broken,
    Halt,
    Halted,
    HasCalled,
    Here,
    Late,
    Left,
    LostNics,
    Note,
    Payload,
    Post,
    RankJournal,
    RankMessage,
    Regroup,
    Renew,
    Report,
    RunCall,
    RunFailed,
    Saw,
    Share,
    SharedValues,
    Shrink,
    Strike,
    Time,
)
from optcc.schedule import Lane, Link, Route
from tests.broken_schedules import nested

ROOT = Path(__file__).resolve().parent.parent

EVERY_MESSAGE = [
    Here(),
    RunFailed(3, "killed"),
    RankMessage(1, {"ask": [1, None, "x", True, 2.5]}),
    SharedValues(4, [None, [1], {"a": {}}]),
    Payload(5),
    Saw("rank 3 failed"),
    RankJournal(None, [Note(2.5, "healed", "server1/nic0", held=3)]),
    Report({"figures": [1.5, 2]}),
    Left(),
    Broken("no memory"),
    Broken("lost rank 1", blames=1),
    Post(2, "text"),
    Share(4, [1]),
    AskTime(6),
    Time(6, 1000.25),
    Halt(),
    Halted(17),
    LostNics(["server1/nic0"], ["server1/nic1"]),
    Renew(17, ["server1/nic0"]),
    Late(2, "not done"),
    AskCall(17),
    HasCalled(17, "barrier()"),
    Shrink(300.0),
    Regroup([0, 2], 29700),
]


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=lambda m: type(m).__name__)
def test_messages_come_back_as_they_were(message: Any) -> None:
    assert decode(encode(message), (*TO_RANK, *FROM_RANK)) == message


def test_every_message_is_tried() -> None:
    assert {type(message) for message in EVERY_MESSAGE} == {*TO_RANK, *FROM_RANK}


@dataclass(frozen=True)
class Part:
    place: tuple[str, int]
    note: str | None = None


@dataclass(frozen=True)
class Figures:
    start_s: float
    sent: Mapping[int, int]
    parts: list[Part]


FIGURES = Figures(1.0, {3: 4096}, [Part(("nic0", 1)), Part(("nic1", 2), "slow")])


def test_values_inside_reports_come_back_typed() -> None:
    assert typed(Figures, decode(encode(Report(FIGURES)), (Report,)).value) == FIGURES


@pytest.mark.parametrize(
    ("but", "complaint"),
    [
        ({"start_s": "soon"}, "start_s is not float: 'soon'"),
        ({"sent": {"one": 7}}, "sent has a key that is not a number: 'one'"),
        ({"sent": [1]}, "sent is not Mapping"),
        ({"parts": [{"place": ["nic0", 1]}]}, "parts is not Part"),
        ({"parts": [{"place": ["nic0"], "note": None}]}, "parts.place is not tuple"),
        ({"parts": [{"place": ["nic0", 1], "note": 2}]}, "parts.note is not"),
    ],
)
def test_values_of_another_type_are_refused(but: dict[str, Any], complaint: str) -> None:
    with pytest.raises(MessageError, match=complaint):
        typed(Figures, {**plain(FIGURES), **but})


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x80\x04garbage", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"kind": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[1, 2]", "not a message"),
        (b'{"kind": "Halted"}', "not a message"),
        (b'{"kind": "system", "is": {}}', "unexpected kind of message 'system'"),
        (b'{"kind": [], "is": {}}', "unexpected kind"),
        (encode(Halt()), "unexpected kind of message 'Halt'"),
        (b'{"kind": "HasCalled", "is": {"operation": "1", "call": ""}}', "operation is not int"),
        (b'{"kind": "HasCalled", "is": {"operation": true, "call": ""}}', "operation is not int"),
        (b'{"kind": "HasCalled", "is": {"operation": 1}}', "message is not HasCalled"),
        (b'{"kind": "HasCalled", "is": {"operation": 1, "call": "", "more": 1}}', "message is not HasCalled"),
        (b'{"kind": "Broken", "is": {"cause": "x", "blames": "1"}}', "blames is not"),
    ],
)
def test_malformed_messages_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(MessageError, match=re.escape(complaint)):
        decode(data, FROM_RANK)


def test_what_is_not_plain_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="set cannot be sent as JSON"):
        encode(Report({1, 2}))


def unpickles(source: str) -> list[str]:
    """What in `source` could unpickle: modules, the pickling halves of Connection, numpy's switch."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            found += sorted(str(name) for name in names & {"pickle", "marshal", "shelve", "dill", "cPickle"})
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found += ["allow_pickle"] * (not (isinstance(node.value, ast.Constant) and node.value.value is False))
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "runtime").rglob("*.py")), ids=lambda p: p.name)
def test_nothing_in_the_runtime_unpickles(path: Path) -> None:
    assert unpickles(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("source", ["import pickle", "from pickle import loads", "np.load(f, allow_pickle=True)"])
def test_the_search_for_pickles_can_fail(source: str) -> None:
    assert unpickles(source)


# --- jobs -----------------------------------------------------------------------------------------------------------


def test_a_job_arrives_as_it_was() -> None:
    schedule = nested()
    linked = replace(
        schedule,
        links=(Link("uplink", 12.5),),
        routes=tuple(Route(r.src, r.dst, tuple(replace(x, links=(0,)) for x in r.lanes)) for r in schedule.routes),
    )
    job = Job({"it": schedule, "odd/../name": linked}, "float16", "max", paced=False)
    calls = [RunCall("it", [Strike("cut", "server1/nic0", 0.4)], timed=True)]
    assigned = Assignment.from_bytes(Assignment(job, calls, 2.5, {"--op": "max"}, "wrong").to_bytes())
    assert (assigned.calls, assigned.patience_s, assigned.terms, assigned.wrong) == (
        calls,
        2.5,
        {"--op": "max"},
        "wrong",
    )
    back = assigned.job
    assert back
    assert (back.dtype, back.op, back.paced) == ("float16", "max", False)
    assert list(back.schedules) == list(job.schedules)
    for name, sent in job.schedules.items():
        got = back.schedules[name]
        assert (got.ranks, got.nbytes) == (sent.ranks, sent.nbytes)
        assert (got.ports, got.routes, got.links) == (sent.ports, sent.routes, sent.links)
        assert isinstance(got.routes[0].lanes[0], Lane)
        for column in ("route", "offset", "length", "reduce", "stage", "segment", "dep_ptr", "dep_idx"):
            assert getattr(got, column).dtype == getattr(sent, column).dtype
            assert np.array_equal(getattr(got, column), getattr(sent, column))


def test_what_is_not_a_job_is_refused() -> None:
    good = Assignment(Job({"it": nested()}, "float32", "sum", True), (), 1.0).to_bytes()
    assert Assignment.from_bytes(Assignment(None, (), 1.0).to_bytes()).job is None
    objects = io.BytesIO()
    np.savez(objects, tables=np.array([{"a": 1}], object))
    for bad in (b"", good[: len(good) // 2], pickle.dumps({}), objects.getvalue()):
        with pytest.raises(MessageError, match="not a job"):
            Assignment.from_bytes(bad)
