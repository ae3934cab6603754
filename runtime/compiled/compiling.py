"""Compile all that Python calls, or load what was compiled before: once on a machine, by one process.

numba keeps compiled code in files. A file of our own beside them says that it is there. Who finds none waits for
others that compile, and tells people before they wait.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from numba import typeof

from optcc.runtime.compiled import local_loop, queue_loop, queues
from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.folds import fold_of
from optcc.runtime.compiled.tables import Flows, Lines, Queues, RowTables
from optcc.runtime.devices.host import Op

LONGEST_S = 300.0
"""To wait for another process that compiles, which takes up to 30 seconds of processor; then this one does it, too."""
LOOK_S = 0.1


def compile_all(say: Callable[[str], object] = lambda text: None, over: str = "local") -> None:
    """The loop, and the fold that is used most. `say` : told what is to be waited for, where something is.

    over : the transport
    """
    mark = _mark(over)
    if mark.exists():
        _compile_all(over)
        return
    with _alone(mark.with_suffix(".lock"), say):
        if not mark.exists():
            say("compiling what handles chunks: 15 to 30 s, once on this machine")
        _compile_all(over)
        with suppress(OSError):  # what cannot be kept is compiled again
            mark.touch()


def is_compiled() -> bool:
    """Whether that has been done on this machine, for local wires."""
    return _mark("local").exists()


def _mark(over: str) -> Path:
    """Its name differs where numba would not take what is there: by sources, by numba, by kind of processor."""
    processor = llvmlite.binding.get_host_cpu_name()
    return (
        Path(str(local_loop.advance.stats.cache_path))
        / f"optcc-{over}-{t.STAMP}-{numba.__version__}-{processor}.compiled"
    )


@contextmanager
def _alone(lock: Path, say: Callable[[str], object]) -> Iterator[None]:
    """No other process of this machine is here; where there can be no lock, some may be."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield
        return
    try:
        end, told = time.monotonic() + LONGEST_S, False
        while not _locked(file) and time.monotonic() < end:
            if not told:
                say("another process compiles what handles chunks: 15 to 30 s, once on this machine")
            told = True
            time.sleep(LOOK_S)
        yield
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _compile_all(over: str) -> None:
    ints, times = np.zeros(1, np.int64), np.zeros(1)
    row, route, queue, stripe = (np.zeros(1, kind) for kind in (t.ROW, t.ROUTE, t.QUEUE, t.STRIPE))
    rows = RowTables(row, route, queue, stripe, ints, ints, ints, ints, np.zeros(1, t.STACK), ints)
    flows = Flows(np.zeros(1, t.FLOW), np.zeros(1, t.KEPT), np.zeros(1, t.PARKED), ints)
    wire, ring, nic, way = (np.zeros(1, kind) for kind in (t.WIRE, t.RING, t.NIC, t.WAY))
    polls = np.zeros((1, 2), np.int32)
    if over == "local":
        kernel, copying, owed = (np.zeros(1, kind) for kind in (t.KERNEL, t.COPYING, t.OWED))
        some = (ints, ints, ints, ints, ints, ints)
        lines = Lines(wire, ring, nic, way, *some, polls, ints, kernel, copying, owed, ints)
        _compile(local_loop.advance, *rows, *flows, *lines, ints, times)
    else:
        end, work, device = (np.zeros(1, kind) for kind in (t.END, t.WORK, t.DEVICE))
        pairs = np.zeros((1, 2), np.int64)
        queues_of = Queues(wire, end, work, nic, device, ints, ints, ints, pairs, polls, ints)
        _compile(queue_loop.advance, *rows, *flows, *queues_of, ints, times)
    _compile(queues.push_ready, route, queue, 0, 0, 0.0)
    _compile(queues.push_each, row, route, queue, ints, 0.0)
    _compile(queues.first_ready, route, queue, 0, 0.0)
    _compile(queues.pop_ready, route, queue, 0)
    fold_of(Op.SUM, "float32")


def _compile(function: Any, *like: Any) -> None:
    function.compile(tuple(typeof(value) for value in like))  # type: ignore[no-untyped-call, unused-ignore]
