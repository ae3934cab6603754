"""The compiled path against Python's: the same bits, the same protocol, and every planted fault noticed."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.errors import InputError
from optcc.runtime.compiled import basics, gpu, loop, tables
from optcc.runtime.compiled.choice import TYPES, ChunkPath, path_asked, path_of
from optcc.runtime.compiled.compiling import compile_all
from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.folds import fold_of
from optcc.runtime.compiled.path import CompiledPath
from optcc.runtime.compiled.program_tables import ProgramTables
from optcc.runtime.compiled.stores import Queue
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import run_schedules
from optcc.runtime.devices import host, launches
from optcc.runtime.devices.host import DTYPES, Array, Op, dtype_of
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.priority import ReadyQueue
from optcc.runtime.engine.program import program_of
from optcc.runtime.evidence.payload import peculiar
from optcc.runtime.flows import ends
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.wires import contract, local_replies, local_waits, slots
from optcc.runtime.wires.layout import layout_of
from optcc.runtime.wires.lent import SharedBuffer
from optcc.runtime.wires.local import LocalWires
from optcc.runtime.wires.pacing import Rates
from optcc.schedule import Schedule
from optcc.schedule.simple import one_tree
from tests import compiled_rig
from tests.failover_cuts import cut
from tests.failover_matrix import ROWS
from tests.failover_rig import Mailbox, Rig
from tests.failover_runs import InconclusiveError, conclusive
from tests.fold_contract import random_bits
from tests.test_architecture import ROOT
from tests.test_wires import connect, joined

BOUND_S = 120.0
"""No run here takes as long, on whatever machine."""


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Before anything waits for it: it takes a while where it has not been done before."""
    compile_all()


def test_what_is_compiled_is_kept_for_these_sources_alone(tmp_path: Path) -> None:
    folder = Path(tables.__file__).parent
    shutil.copytree(folder, tmp_path / "same")
    assert tables.stamp_of(tmp_path / "same") == tables.STAMP
    with open(tmp_path / "same" / "machine.py", "a", encoding="utf-8") as file:
        file.write("#")
    assert tables.stamp_of(tmp_path / "same") != tables.STAMP
    assert tables.STAMP in str(loop.advance.signatures)


def test_formats_are_those_of_the_reference() -> None:
    assert (contract.HEADER_BYTES, slots.NOTICE.size, slots.BACK.size) == (basics.HEADER, basics.NOTICE, basics.BACK)
    assert (slots.LENT_BYTES, slots.LENT.format) == (basics.LENT, "<qqq")
    assert (basics.MARK, basics.CALL, basics.ACK, basics.CREDIT) == (
        ends.CHUNK_MARK,
        local_replies.CALL,
        local_replies.ACK,
        local_replies.CREDIT,
    )
    assert (basics.SEQ_BITS, basics.LOOK_S) == (slots._SEQ_BITS, local_waits.LOOK_S)
    assert (gpu.LINE, gpu.THREADS) == (launches.LINE, launches.THREADS)
    assert [ends.CHUNK_HEADER.unpack(bytes(range(64)))[i] for i in (4, 5, 6)] == [
        int.from_bytes(bytes(range(at, at + 8)), "little") for at in (16, 24, 32)
    ]
    assert set(TYPES) == set(DTYPES) - {"float16", "bfloat16"}


# --- folds -----------------------------------------------------------------------------------------------------------


def folded(op: Op, name: str, own: Array, landed: Array) -> Array:
    result = own.copy()
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(fold_of(op, name).address)
    call(result.ctypes.data, landed.ctypes.data, len(result))
    return result


def operands(name: str, seed: int) -> tuple[Array, Array]:
    """Any bits, and every pair of peculiar values."""
    own, landed = random_bits(name, 3001, seed), random_bits(name, 3001, seed + 1)
    if dtype_of(name).kind == "f":
        odd = peculiar(dtype_of(name))
        pairs = np.array([(a, b) for a in odd for b in odd])
        own, landed = np.concatenate((own, pairs[:, 0])), np.concatenate((landed, pairs[:, 1]))
    return own, landed


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("name", TYPES)
def test_folds_have_the_bits_of_the_reference(name: str, op: Op) -> None:
    own, landed = operands(name, seed=7)
    expected = own.copy()
    host.fold(op, expected, landed)
    assert folded(op, name, own, landed).tobytes() == expected.tobytes()


def test_another_fold_has_other_bits() -> None:
    own, landed = operands("float32", seed=7)
    expected = own.copy()
    host.fold(Op.SUM, expected, landed)
    assert folded(Op.MAX, "float32", own, landed).tobytes() != expected.tobytes()


def test_types_without_a_compiled_fold_are_python() -> None:
    assert fold_of(Op.SUM, "float16") is None
    assert str(path_of("compiled", "local", "cpu", "bfloat16")) == "python (bfloat16 is folded by numpy)"


# --- runs ------------------------------------------------------------------------------------------------------------


def run_both(
    schedule: Schedule,
    dtype: str,
    op: Op,
    paced: bool,
    slot_bytes: int = 4096,
    before: Callable[[int, list[CompiledPath]], None] = lambda rank, paths: None,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
) -> tuple[Any, list[Any], int]:
    """The results of all ranks by Python, and compiled, as bytes, over the same wires; chunks that were compiled.

    Compiled it runs three times: by way of slots; from buffers that are lent; so, but for rank 0, which is Python's.
    The chunks of the last run do not count.
    before : called by every rank before it begins a run in which all are compiled
    """
    layout = layout_of({"it": schedule}, slot_bytes)
    rates = layout.rates if paced else [Rates(math.inf, math.inf)] * len(layout.nics)
    boxes = [Mailbox() for _ in range(schedule.ranks)]
    shared = [SharedBuffer(schedule.nbytes) for _ in range(schedule.ranks)]
    wires = joined(
        schedule.ranks,
        lambda rank, exchange: LocalWires(
            rank, layout.wires, layout.flows, rates, exchange=exchange, watch=boxes[rank], lent=shared[rank]
        ),
    )
    flows: list[FlowTransport] = []

    def send(to: int, rank: int, value: Any) -> None:
        boxes[to].put(lambda: flows[to].message(rank, value))

    for rank in range(schedule.ranks):
        flows.append(
            FlowTransport(
                rank,
                layout,
                {"it": schedule.routes},
                wires[rank],
                lambda to, value, rank=rank: send(to, rank, value),  # type: ignore[misc]
                time.monotonic,
                timeouts,
            )
        )
    paths = [CompiledPath(each, end) for each, end in zip(flows, wires, strict=True)]
    results, chunks = [], 0
    nobody = [None] * schedule.ranks
    for compiled, lends in ((nobody, False), (paths, False), (paths, True), ([None, *paths[1:]], True)):
        buffers = [
            random_bits(dtype, schedule.nbytes // dtype_of(dtype).itemsize, rank) for rank in range(schedule.ranks)
        ]
        if lends:
            for rank, values in enumerate(buffers):
                buffers[rank] = shared[rank].elements(values.dtype)
                buffers[rank][:] = values
        _run(schedule, buffers, op, flows, compiled, before)
        results.append([buffer.tobytes() for buffer in buffers])
        if None not in compiled:
            chunks = sum(path.chunks for path in paths)
        if None not in compiled or not lends:
            assert lends == any(_has_lent(end, flows[rank]) for rank, end in enumerate(wires))
    for each in (*wires, *boxes, *shared):  # not after a failure: a rank that still runs writes to their memory
        each.close()
    return results[0], results[1:], chunks


def _has_lent(end: LocalWires, flows: FlowTransport) -> bool:
    """Whether some of the last chunks that came to a rank were lent, and not fetched by Python."""
    last = ((flow, into.receiver.landed - 1 - back) for flow, into in flows._ins.items() for back in range(4))
    return any(end._slots.lent(flow, seq) for flow, seq in last if seq >= 0)


def _run(
    schedule: Schedule, buffers: Sequence[Array], op: Op, flows: Sequence[FlowTransport], paths: Any, before: Any
) -> None:
    ranks = schedule.ranks
    errors: list[BaseException] = []
    ready, over = threading.Barrier(ranks), threading.Barrier(ranks)

    def one(rank: int) -> None:
        try:
            program = program_of(schedule, rank, buffers[rank].itemsize)
            flows[rank].begin("it", program.receives)
            rest = (program, buffers[rank], op, flows[rank], time.monotonic)
            engine = CompiledEngine(paths[rank], *rest) if paths[rank] else Engine(*rest)
            ready.wait(BOUND_S)
            if None not in paths:
                before(rank, paths)
            engine.run()
            over.wait(BOUND_S)
        except BaseException as error:
            errors.append(error)
            ready.abort()
            over.abort()

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def schedule_of(weak: int, nics: int, nbytes: int, servers: int = 3) -> Schedule:
    cluster = optcc.Cluster.uniform(servers=servers, nics=nics, rate=Fraction(10**9))
    for server in range(weak):
        cluster = cluster.degrade(f"server{server}/nic0")
    return optcc.plan(cluster, nbytes, segments=3).schedule()


def direct(nbytes: int) -> Schedule:
    """Every rank gets three pieces to fold, which come before their turn as often as not."""
    cluster = optcc.Cluster.uniform(servers=4, nics=1, rate=Fraction(10**9))
    return optcc.plan(cluster, nbytes, family="direct-exchange").schedule()


CASES = {
    "direct": (direct, {"nbytes": 128_000}),
    "ring": (schedule_of, {"weak": 0, "nics": 1, "nbytes": 120_000}),
    "lanes": (schedule_of, {"weak": 0, "nics": 2, "nbytes": 120_000}),
    "degraded": (schedule_of, {"weak": 1, "nics": 2, "nbytes": 120_000}),
}


@pytest.mark.parametrize("paced", [False, True], ids=["unlimited", "paced"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits(case: str, paced: bool) -> None:
    make, how = CASES[case]
    expected, made, chunks = run_both(make(**how), "float32", Op.SUM, paced)
    assert made == [expected] * 3
    assert chunks > 0


FIRST = 3
"""In `star`, all send to rank 0 first, which folds in the order of rows."""


def held_back(until: Callable[[list[CompiledPath]], bool]) -> Callable[[int, list[CompiledPath]], None]:
    """The rank whose pieces rank 0 folds first does not begin until this is so."""

    def before(rank: int, paths: list[CompiledPath]) -> None:
        end = time.monotonic() + BOUND_S
        while rank == FIRST and not until(paths):
            assert time.monotonic() < end, "what was to come before its turn has not come"
            time.sleep(0.001)

    return before


def star(nbytes: int) -> Schedule:
    return one_tree(optcc.Cluster.uniform(servers=4, nics=1, rate=Fraction(10**9)), nbytes)


def test_pieces_before_their_turn_wait_in_their_slots() -> None:
    """And are folded in their turn, all by compiled code."""

    def both_wait(paths: list[CompiledPath]) -> bool:
        return int(paths[0].flows.tables.flows["parked"].sum()) >= 2

    schedule = star(4096)
    assert (schedule.src[0], schedule.dst[0]) == (FIRST, 0)
    expected, made, chunks = run_both(schedule, "float32", Op.SUM, False, before=held_back(both_wait))
    assert made == [expected] * 3
    assert chunks == 2 * 2 * len(schedule.src)  # each sent and taken, in both runs


def test_more_pieces_than_half_a_window_are_copied_for_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a flow whose slots are full of them could not bring what their turn waits for."""
    kept: list[int] = []
    whole = Engine.keep

    def counted(self: Engine, row: int, offset: int, data: Any) -> None:
        kept.append(row)
        whole(self, row, offset, data)

    monkeypatch.setattr(Engine, "keep", counted)

    def is_kept(paths: list[CompiledPath]) -> bool:
        return len(kept) > int(paths[0].flows.tables.flows["window"].max()) // 2

    def before(rank: int, paths: list[CompiledPath]) -> None:
        held_back(is_kept)(rank, paths)
        if rank == FIRST:
            kept.clear()

    rare = Timeouts(progress=100 * BOUND_S)  # no look at progress, which would give Python a turn
    expected, made, _ = run_both(star(1 << 18), "float32", Op.SUM, False, slot_bytes=512, before=before, timeouts=rare)
    assert made == [expected] * 3


@pytest.mark.parametrize(("name", "op"), [("int8", Op.PROD), ("float64", Op.MIN), ("uint32", Op.MAX)])
def test_the_same_bits_of_other_types(name: str, op: Op) -> None:
    expected, made, _ = run_both(schedule_of(weak=1, nics=2, nbytes=24_000), name, op, paced=False, slot_bytes=512)
    assert made == [expected] * 3


def test_a_wrong_fold_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optcc.runtime.compiled.path.fold_of", lambda op, name: fold_of(Op.MAX, name))
    expected, made, _ = run_both(schedule_of(weak=0, nics=1, nbytes=24_000), "float32", Op.SUM, paced=False)
    assert made[0] != expected


def lost_count(planted: bool) -> None:
    """A machine that is told of one chunk less than compiled code has sent numbers the next one wrongly."""

    def forgets(self: CompiledPath, engine: CompiledEngine, code: int) -> None:
        posted = self.flows.tables.flows["posted"]
        posted[posted > 0] -= planted
        whole(self, engine, code)

    whole, CompiledPath._write_back = CompiledPath._write_back, forgets  # type: ignore[method-assign]
    expected, made, _ = run_both(
        schedule_of(weak=0, nics=1, nbytes=24_000), "float32", Op.SUM, paced=False, slot_bytes=512
    )
    assert made == [expected] * 3


@pytest.mark.long
def test_a_lost_count_is_noticed() -> None:
    """In a process of its own, which it may end: nobody stops a rank that writes where it must not."""
    ends = []
    for planted in (True, False):
        bound_s = 5.0 if planted else BOUND_S
        what = f"import tests.test_compiled_path as it; it.BOUND_S = {bound_s}; it.lost_count({planted})"
        ends.append(subprocess.run([sys.executable, "-c", what], cwd=ROOT, capture_output=True, timeout=600).returncode)
    assert ends[0] != 0
    assert ends[1] == 0


# --- failover --------------------------------------------------------------------------------------------------------

LENT_BYTES = 1 << 20
"""More than any buffer of the matrix."""
LEAKS = 16
"""The row that looks for leaks takes a thousand failovers."""


@pytest.mark.parametrize(
    ("number", "how"),
    [
        pytest.param(
            number,
            how,
            id="-".join((f"row{number:02}", *(f"{name}={value}" for name, value in how.items()))),
            marks=pytest.mark.long if number == LEAKS else (),
        )
        for number, row in ROWS.items()
        for how in row.variants
    ],
)
def test_failover(number: int, how: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of the matrix of faults, from buffers that are lent; its strikes are at moments that the compiled path
    goes through."""
    monkeypatch.setattr(Rig, "engine", compiled_rig.engine)
    compiled_rig.taken.clear()
    assert conclusive(lambda: ROWS[number].run(partial(connect, lent_bytes=LENT_BYTES), **how))
    assert sum(compiled_rig.taken) > 0


def test_random_cuts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "engine", compiled_rig.engine)
    first = int(request.config.getoption("--hypothesis-seed"))
    hits = 0
    for seed in range(first, first + 6):
        try:
            hits += bool(cut(partial(connect, lent_bytes=seed % 2 * LENT_BYTES), seed).moved)
        except InconclusiveError:
            continue
        except Exception as error:
            raise AssertionError(f"cut({seed}): {error}") from error
    assert hits > 0


# --- what is asked for -----------------------------------------------------------------------------------------------


def test_ready_queues_agree() -> None:
    rng = np.random.default_rng(1)
    schedule = schedule_of(weak=0, nics=1, nbytes=24_000)
    program = program_of(schedule, 0, 4)
    known = ProgramTables(program)
    place, routes, rows = known.place, known.routes, known.arrays
    route = next(iter(routes))
    mine, theirs = Queue(rows, place, routes[route]), ReadyQueue()
    free = 0.0
    for row in rng.permutation([row for row, move in program.sends.items() if move.route == route]).tolist():
        since = float(rng.integers(0, 20))
        mine.push(row, since)
        theirs.push(row, since)
    while theirs:
        free += float(rng.integers(0, 3))
        assert mine.first(free) == theirs.first(free)
        mine.pop()
        theirs.pop()
    assert not mine


def test_what_is_not_compiled_is_said() -> None:
    assert path_of("compiled", "local", "cpu", "float32") == ChunkPath("compiled")
    assert path_of("auto", "local", "cpu", "float32") == ChunkPath("compiled")
    assert path_of("python", "local", "cpu") == ChunkPath("python")
    assert str(path_of("auto", "verbs", "cpu")) == "python (verbs has no compiled path)"
    assert str(path_of("compiled", "verbs", "cpu")) == "python (verbs has no compiled path)"
    assert path_of("compiled", "local", "cuda", "bfloat16") == ChunkPath("compiled")


def test_no_such_path() -> None:
    assert path_asked({}) == "auto"
    assert path_asked({"OPTCC_PATH": "compiled"}) == "compiled"
    with pytest.raises(InputError, match="OPTCC_PATH: no such path, expected auto or compiled or python, got 'fast'"):
        path_asked({"OPTCC_PATH": "fast"})
    with pytest.raises(InputError, match="--chunk-path: no such path"):
        Job({"it": schedule_of(weak=0, nics=1, nbytes=24_000)}, "float32", "sum", paced=False, path="fast")


def test_without_numba_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="numba is not installed"):
        path_of("compiled", "local", "cpu", "float32")
    assert path_of("auto", "local", "cpu", "float32") == ChunkPath("python", "numba is not installed")


@pytest.mark.long
def test_processes_over_the_compiled_path() -> None:
    schedule = schedule_of(weak=1, nics=2, nbytes=1 << 20)
    done = run_schedules({"it": schedule}, repeat=2, paced=False, path="compiled", stall_s=60.0)
    assert all(done["it"].exact)
