"""Which path a rank's bytes take: the native engine in host memory, else compiled code, or Python, the reference."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from optcc.errors import InputError
from optcc.runtime.devices.host import name_of
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import Program
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.cuda import CudaWires
from optcc.runtime.wires.local import LocalWires

PATHS = ("auto", "native", "compiled", "python")
"""What can be asked for; auto is the native engine where it serves, else compiled code where it can be had."""
VARIABLE = "OPTCC_PATH"
TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
"""Element types whose folds are compiled for host memory. A GPU has its own."""
NO_NUMBA = "numba is not installed"


class ChunkPath(NamedTuple):
    """name : of PATHS but auto; why : where Python was not asked for, why it is taken; over : the transport."""

    name: str
    why: str = ""
    over: str = "local"

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


def path_asked(environ: Mapping[str, str]) -> str:
    """What OPTCC_PATH says; auto where it says nothing. InputError for no path."""
    return path_named(environ.get(VARIABLE, PATHS[0]), VARIABLE)


def path_named(name: str, where: str) -> str:
    """`name`, one of PATHS; InputError for another, which came from `where`."""
    if name not in PATHS:
        raise InputError("no such path", where=where, expected=" or ".join(PATHS), got=name)
    return name


def path_of(asked: str, transport: str, device: str, dtype: str | None = None) -> ChunkPath:
    """The path that is taken: decided here alone, for `warm` and `engines` are given what this says.

    `asked` : one of PATHS; `dtype` : of the elements; None: of each operation another.

    Raises InputError where the compiled one is asked for and numba is missing.
    """
    if asked == "python" and transport != "tcp":
        return ChunkPath("python")
    if asked in ("auto", "native") and (device == "cpu" or transport == "local"):
        return ChunkPath("native")
    if asked == "native" or transport == "tcp":
        got = f"{asked}, {transport}, {device}"
        raise InputError("this path of chunks is not for that", where="path of chunks", expected="native, cpu", got=got)
    if device == "cpu" and dtype is not None and dtype not in TYPES:
        return ChunkPath("python", f"{dtype} is folded by numpy")
    if not sys.platform.startswith("linux") or sys.byteorder != "little":
        return ChunkPath("python", "the compiled path is for Linux on a little-endian machine")
    if importlib.util.find_spec("numba") is None:
        if asked == "auto":
            return ChunkPath("python", NO_NUMBA)
        raise InputError(
            "the compiled path needs numba",
            where="path of chunks",
            expected="numba, or the path python",
            got=NO_NUMBA,
            hint="pip install numba",
        )
    return ChunkPath("compiled", over=transport)


def warm(path: ChunkPath) -> None:
    """Compile what ranks run, if that has not been done on this machine: before anybody waits, and people are told."""
    if path.name != "compiled":
        return
    from optcc.runtime.compiled.compiling import compile_all

    compile_all(path.over)


def engines(path: ChunkPath, flows: FlowTransport, wires: Any) -> Callable[..., Engine]:
    """What makes an engine over these flows, with `Engine`'s arguments: Python's for elements that are not in TYPES.

    Virtual wires, for tests, stay with Python.
    """
    if path.name == "python" or not (type(wires) in (LocalWires, CudaWires) or _has_queue_pairs(wires)):
        return Engine
    from optcc.runtime.compiled.engine import CompiledEngine
    from optcc.runtime.compiled.path import CompiledPath

    compiled = CompiledPath(flows, wires)

    def engine(program: Program, buffer: Any, *rest: Any) -> Engine:
        if isinstance(wires, CudaWires) or name_of(buffer.dtype) in TYPES:
            return CompiledEngine(compiled, program, buffer, *rest)
        return Engine(program, buffer, *rest)

    return engine


def _has_queue_pairs(wires: Any) -> bool:
    """Whether these are wires over verbs. Who has such has loaded them; others may lack libibverbs."""
    verbs = sys.modules.get("optcc.runtime.verbs.wires")
    return verbs is not None and isinstance(wires, verbs.VerbsWires)
