"""Calls and clusters that a communicator refuses, and that it goes on afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.communicator import clusters
from optcc.errors import InputError
from optcc.runtime.devices.host import Array
from optcc.runtime.messages import Note
from tests.communicators import Ranks

WORLD = 3


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD) as ranks:
        yield ranks


class OnAnotherDevice:
    """As a Vulkan buffer shows itself by DLPack."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (7, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return np.zeros(3).__dlpack__()


def read_only() -> Array:
    x = np.zeros(3)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.all_reduce(np.zeros((4, 4))[:, 1]), r"x: not contiguous, expected elements in C order .* copy"),
        (lambda c: c.all_reduce(np.zeros(3, complex)), "unknown dtype, expected one of int8"),
        (lambda c: c.all_reduce(read_only()), "x: read-only, .* an input where the result goes elsewhere"),
        (lambda c: c.all_reduce([1.0, 2.0]), "x: not an array"),
        (lambda c: c.all_reduce(OnAnotherDevice()), "x: wrong device, expected memory of a CUDA device or of the host"),
        (lambda c: c.all_reduce(np.zeros(3), "xor"), "unknown operation, expected one of sum, prod, min, max, avg"),
        (
            lambda c: c.all_reduce(np.zeros(3), out=np.zeros(4)),
            "out: .* expected 3 elements of float64, got 4 of float64",
        ),
        (lambda c: c.all_reduce(np.zeros(3), out=np.zeros(3, "i4")), "out: .* got 3 of int32"),
        *(
            (lambda c, root=root: c.broadcast(np.zeros(3), root), f"^root: not a rank, expected 0 to 2, got {words}$")
            for root, words in [
                *((3, "3"), (-1, "-1"), (0.5, "0.5"), (1.0, "1.0"), ("0", "'0'"), (None, "'None'"), (True, "True")),
                *((np.True_, "True"), (np.float32(1), "1.0"), ([0], r"\[0\]"), (1 << 70, str(1 << 70))),
            ]
        ),
        (lambda c: c.all_reduce(np.zeros(3), 1), "^op: unknown operation, expected one of sum, .*avg, got 1$"),
        (lambda c: c.all_reduce(np.zeros(3), None), "^op: unknown operation"),
        (lambda c: c.all_reduce(np.zeros(3), ["sum"]), "^op: unknown operation"),
        (lambda c: c.reduce_scatter(np.zeros(3), np.zeros(1), "SUM"), "^op: unknown operation"),
        (lambda c: c.all_reduce(np.ma.masked_equal([1.0, 2.0], 2)), r"^x: a masked array.*Pass x\.filled\(value\)"),
        (lambda c: c.all_reduce(np.zeros(2), out=np.ma.masked_equal([1.0, 2.0], 2)), "^out: a masked array"),
        (lambda c: c.broadcast(np.zeros(3, complex)), "^x: unknown dtype"),
        (lambda c: c.split("red"), "^color: not a number, expected a whole number, got 'red'"),
        (lambda c: c.split(0.5), "^color: not a number"),
        (lambda c: c.split(0, key=None), "^key: not a number"),
        (lambda c: c.grow("4", "127.0.0.1:1"), "^world: not a number"),
        (lambda c: c.grow(4, "127.0.0.1"), "^rendezvous: not an address, expected HOST:PORT"),
        (lambda c: c.grow(4, "127.0.0.1:1", within_s=0), "^within_s: not such a number, expected seconds, more than 0"),
        (lambda c: c.strike("path", "server0/nic0"), "^far: a path needs it, .*one of server1/nic0, server2/nic0, got"),
        (lambda c: c.strike("path", "server0/nic0", far="server0/nic0"), "^far: a path needs it"),
        (
            lambda c: c.strike("slow", "server0/nic0", amount=2),
            "^amount: a slow needs it, expected the part",
        ),
        (
            lambda c: c.strike("flap", "server0/nic0"),
            "^amount: a flap needs it, expected seconds, .*got 0.0",
        ),
        (lambda c: c.strike("cut", "server0/nic0", 1.5), "^part: not such a number, expected 0 to 1, got 1.5"),
        (lambda c: c.strike("cut", "server0/nic0", math.nan), "^part: not such a number"),
        (lambda c: c.strike(["cut"], "server0/nic0"), "^strike: no such fault"),
        (lambda c: c.all_gather(np.zeros(3), np.zeros(8)), "out: .* expected 9 elements"),
        (lambda c: c.reduce_scatter(np.zeros(8), np.zeros(3)), "x: .* expected 9 elements"),
        (lambda c: c.all_to_all(np.zeros(8), np.zeros(8)), "x: no equal parts, expected .* that 3 divides, got 8"),
        (lambda c: c.all_to_all(np.zeros(9), np.zeros(3)), "out: .* expected 9 elements"),
        (lambda c: c.all_to_all(*[np.zeros(9)] * 2), "out: the same memory as x"),
    ],
)
def test_bad_calls_are_refused_and_cost_nothing(ranks: Ranks, call: Any, words: str) -> None:
    for error in ranks.each(call):
        assert isinstance(error, InputError)
        with pytest.raises(InputError, match=words):
            raise error
    assert ranks.good(lambda comm: int(comm.all_reduce(np.array([1]))[0])) == [WORLD] * WORLD


def test_a_root_may_be_an_integer_of_any_type(ranks: Ranks) -> None:
    for root in (np.int64(2), np.uint8(2), np.array(2)):
        assert (
            ranks.good(lambda comm, root=root: float(comm.broadcast(np.full(2, comm.rank), root)[0])) == [2.0] * WORLD
        )


def test_a_call_that_one_rank_is_refused_ends_nothing(ranks: Ranks) -> None:
    """It has sent nothing, so that its next call is the one that the others are in."""

    def call(comm: optcc.Communicator) -> float:
        if comm.rank == 1:
            for wrong in (lambda: comm.broadcast(np.zeros(3), 1.5), lambda: comm.strike("path", "server1/nic0")):
                with pytest.raises(InputError):
                    wrong()
        return float(comm.all_reduce(np.ones(100_000))[0])

    assert ranks.good(call) == [3.0] * WORLD


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"timeout_s": 0}, "^timeout_s: not such a number, expected seconds, more than 0, got 0$"),
        ({"timeout_s": math.inf}, "^timeout_s: "),
        ({"timeout_s": "15"}, "^timeout_s: .* got '15'"),
        ({"on_event": 3}, "^on_event: cannot be called, expected a function of an event, got 'int'"),
        (
            {"rank": "0", "world": 2, "rendezvous": "127.0.0.1:1"},
            "^rank: not a number, .*got '0'",
        ),
        ({"rank": 0}, "^rank and world: one without the other"),
        ({"rank": 2, "world": 2, "rendezvous": "127.0.0.1:1"}, "^rank: not a rank of this job, expected 0 to 1, got 2"),
        ({"rank": 0, "world": 2, "rendezvous": "127.0.0.1"}, "^rendezvous: not an address"),
        ({"rank": 0, "world": 2, "rendezvous": "127.0.0.1:1", "interface": "none0"}, "^interface: no address there"),
    ],
)
def test_options_are_refused_by_their_names(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        optcc.Communicator(**given)


def test_a_callback_that_raises_is_logged_and_the_job_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def raises(note: Note) -> None:
        raise ValueError(f"of {note.kind}")

    with Ranks(3, "uniform:servers=3,nics=2,rate=100Gb/s", on_event=raises) as ranks:
        ranks.good(lambda comm: comm.strike("cut", "server1/nic0", 0.5))
        for _ in range(2):
            assert ranks.good(lambda comm: float(comm.all_reduce(np.ones(1 << 20))[0])) == [3.0] * WORLD
        kinds = {event.kind for comm in ranks.comms for event in comm.events()}
        assert {"struck", "nic down"} <= kinds
    logged = [record for record in caplog.records if record.exc_info]
    assert {str(record.exc_info[1]) for record in logged if record.exc_info} >= {"of struck", "of nic down"}
    assert all("the job goes on" in record.getMessage() for record in logged)


def test_ranks_on_several_machines_are_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["here", "here", "there"])
    monkeypatch.setattr(clusters, "this_machine", lambda: next(names))
    errors = Ranks(3).errors
    assert len(errors) == 3
    assert len({str(error) for error in errors}) == 1
    assert str(errors[0]).startswith("transport: local is for one machine, expected tcp or verbs for ranks on several")


def test_overlapping_buffers_are_refused(ranks: Ranks) -> None:
    x = np.zeros(10)
    with pytest.raises(InputError, match="out: input and output overlap"):
        ranks.comms[0].all_reduce(x[:6], out=x[2:8])


def test_clusters_that_differ_are_told_on_all_ranks() -> None:
    two = [optcc.Cluster.uniform(servers=2, nics=n, rate="1Gb/s") for n in (1, 2)]
    errors = Ranks(2, two).errors
    assert {str(error) for error in errors} == {
        "cluster: rank 1 was given another one than rank 0, expected the same on all ranks"
    }
    assert len(errors) == 2


def test_another_number_of_ranks_than_the_clusters() -> None:
    with pytest.raises(InputError, match="another number of ranks than processes, expected 1 ranks, got 4"):
        optcc.Communicator("uniform:servers=4,nics=1,rate=1Gb/s")
    with pytest.raises(InputError, match="no such transport"):
        optcc.Communicator(transport="carrier pigeon")
