"""The compiled path over queue pairs against Python's, on devices that are played: the same bits, every chunk."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import optcc
from optcc.runtime.compiled import completions
from optcc.runtime.compiled.choice import ChunkPath, warm
from optcc.runtime.compiled.folds import fold_of
from optcc.runtime.devices.host import Op, dtype_of
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster, Fabric
from tests.compiled_runs import schedule_of
from tests.fold_contract import random_bits
from tests.loop_runs import LoopRun
from tests.test_compiled_path import direct, star


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm(ChunkPath("compiled", over="verbs"))


CASES = {
    "direct": direct(128_000),
    "ring": schedule_of(weak=0, nics=1, nbytes=120_000),
    "lanes": schedule_of(weak=0, nics=2, nbytes=120_000),
    "degraded": schedule_of(weak=1, nics=2, nbytes=120_000),
    "star": star(1 << 16),
}


def bits(schedule: Schedule, dtype: str) -> list[Any]:
    return [random_bits(dtype, schedule.nbytes // dtype_of(dtype).itemsize, rank) for rank in range(schedule.ranks)]


@pytest.mark.parametrize(("dtype", "op"), [("float32", Op.SUM), ("int8", Op.PROD), ("float64", Op.MIN)])
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits(case: str, dtype: str, op: Op) -> None:
    schedule, results = CASES[case], []
    with LoopRun(schedule, 4096) as ranks:
        for compiled in (False, True, True, False):
            buffers = bits(schedule, dtype)
            ranks.run(buffers, op, compiled)
            results.append([buffer.tobytes() for buffer in buffers])
        chunks = sum(path.chunks for path in ranks.paths)
        assert ranks.device.starved() == 0
    assert results == [results[0]] * 4
    assert chunks >= 2 * 2 * len(schedule.src)  # sent and taken, in both runs


def test_a_rank_that_folds_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the bits."""
    schedule = CASES["ring"]
    expected, made = bits(schedule, "int8"), bits(schedule, "int8")
    with LoopRun(schedule, 4096) as ranks:
        ranks.run(expected, Op.SUM, compiled=True)
        monkeypatch.setattr("optcc.runtime.compiled.path.fold_of", lambda op, name: fold_of(Op.MAX, name))
        ranks.run(made, Op.SUM, compiled=True)
    assert [a.tobytes() for a in made] != [b.tobytes() for b in expected]


def test_what_compiled_code_leaves_in_the_buffer_python_reads_first() -> None:
    """It stops after every chunk, with completions polled and not read."""
    schedule, left = CASES["lanes"], []
    with LoopRun(schedule, 4096) as ranks:
        for path in ranks.paths:
            path.most = 1
            write_back = path._write_back

            def noted(engine: Any, code: int, path: Any = path, write_back: Any = write_back) -> None:
                write_back(engine, code)
                left.extend(to - at for at, to in (nic.left for nic in path._wires._nics.values()))

            path._write_back = noted  # type: ignore[method-assign]
        expected, made = bits(schedule, "float32"), bits(schedule, "float32")
        ranks.run(expected, Op.SUM, compiled=False)
        ranks.run(made, Op.SUM, compiled=True)
    assert [a.tobytes() for a in made] == [b.tobytes() for b in expected]
    assert 0 < max(left) < completions.BATCH


def test_a_nic_that_no_wire_uses() -> None:
    """The last of the layout: rail 1 of server1, whose peer has lost its own."""
    servers = optcc.Cluster.uniform(servers=2, nics=2, rate=Fraction(10**9)).servers
    cluster = Cluster(servers, fabric=Fabric(rails=True)).degrade("server0/nic1")
    schedule, results = optcc.plan(cluster, 96_000, segments=2).schedule(), []
    with LoopRun(schedule, 4096) as ranks:
        for compiled in (False, True):
            buffers = bits(schedule, "float32")
            ranks.run(buffers, Op.SUM, compiled)
            results.append([buffer.tobytes() for buffer in buffers])
        assert sum(path.chunks for path in ranks.paths) > 0
    assert results[0] == results[1]


@pytest.mark.parametrize("calls", [0, 1, 2])
@pytest.mark.parametrize("nic", [0, 1])
def test_a_device_that_refuses_work_is_left_and_nothing_is_lost_on_others(nic: int, calls: int) -> None:
    """Rank 0 sends by two NICs to each of the others; one refuses after so many calls, and the other one goes on.

    Chunks that come together go by one call: in a run with fewer calls nothing is refused, and it is made again.
    """
    assert any(refused(nic, calls) for _ in range(TRIES))


TRIES = 10


def refused(nic: int, calls: int) -> bool:
    """Whether the device has refused something, and so is left."""
    schedule = CASES["lanes"]
    expected, made = bits(schedule, "float32"), bits(schedule, "float32")
    with LoopRun(schedule, 4096) as ranks:
        ranks.run(expected, Op.SUM, compiled=True)
        ends = [end for end in ranks.ends[0]._ends.values() if end.nic.index == nic]
        ranks.device.refuse((end.queue_pair.number for end in ends), calls)
        ranks.run(made, Op.SUM, compiled=True)
        notes = {note.kind for flows in ranks.flows for note in flows.journal}
    assert [a.tobytes() for a in made] == [b.tobytes() for b in expected]
    return {"nic down", "moved"} <= notes
