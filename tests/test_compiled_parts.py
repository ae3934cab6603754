"""Parts of the compiled path against the reference's: what is kept, formats, folds, queues of what is ready."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest

from optcc.runtime.compiled import basics, gpu, local_loop, tables
from optcc.runtime.compiled.choice import TYPES, path_of
from optcc.runtime.compiled.folds import fold_of
from optcc.runtime.compiled.program_tables import ProgramTables
from optcc.runtime.compiled.stores import Queue
from optcc.runtime.devices import host, launches
from optcc.runtime.devices.host import DTYPES, Array, Op, dtype_of
from optcc.runtime.engine.priority import ReadyQueue
from optcc.runtime.engine.program import program_of
from optcc.runtime.evidence.payload import peculiar
from optcc.runtime.flows import ends
from optcc.runtime.wires import contract, local_replies, local_waits, slots
from tests.compiled_runs import schedule_of
from tests.fold_contract import random_bits

pytestmark = pytest.mark.usefixtures("compiled")


def test_what_is_compiled_is_kept_for_these_sources_alone(tmp_path: Path) -> None:
    folder = Path(tables.__file__).parent
    shutil.copytree(folder, tmp_path / "same")
    assert tables.stamp_of(tmp_path / "same") == tables.STAMP
    with open(tmp_path / "same" / "machine.py", "a", encoding="utf-8") as file:
        file.write("#")
    assert tables.stamp_of(tmp_path / "same") != tables.STAMP
    assert tables.STAMP in str(local_loop.advance.signatures)


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
