"""The native engine as Python calls it: its structs and functions, as `native/engine.h` has them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from optcc.errors import InputError
from optcc.machine.native import library
from optcc.runtime.devices.gpu_array import DeviceArray, address_of
from optcc.runtime.devices.host import Array, Op, dtype_of
from optcc.runtime.errors import TransportError
from optcc.schedule import Schedule

TYPES = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
"""In the order of enum optcc_type."""
OPS = tuple(Op)
"""In the order of enum optcc_op."""
NONE = 2**32 - 1
"""No rank."""
NEVER = 2**64 - 1
MAX_NICS, MAX_LANES = 16, 64
"""NICs of a rank; wires between two."""


class ResultOf(IntEnum):
    """enum optcc_result"""

    OK = 0
    AGAIN = 1
    LOST = 2
    BAD = 3
    MEMORY = 4
    LATE = 5
    DIFFERS = 6


class Noted(IntEnum):
    """enum optcc_noted"""

    LOST = 0
    FENCED = 1
    MOVED = 2
    ANEW = 3
    ALONE = 4


class CauseOf(IntEnum):
    """enum optcc_cause"""

    PORT = 0
    ERROR = 1
    CLOSED = 2
    DEVICE = 3
    TOLD = 4
    SILENCE = 5


class WireOf(IntEnum):
    """enum optcc_wire_is"""

    UP = 0
    DOUBTED = 1
    FENCING = 2
    DOWN = 3


class LinkOf(IntEnum):
    """enum optcc_link"""

    UP = 0
    DOWN = 1
    REFUSES = 2
    SENDS_NOT = 3


def struct(name: str, *fields: tuple[str, Any]) -> Any:
    """The type of a C struct."""
    return type(name, (ctypes.Structure,), {"_fields_": list(fields), "__doc__": f"`{name}` of native/engine.h."})


Config = struct(
    "optcc_config",
    *((name, c_uint32) for name in ("rank", "ranks", "nics", "wires", "segment_bytes", "window_bytes")),
    *((name, c_uint64) for name in ("job", "suspect_ns", "grace_ns", "knock_ns", "return_ns", "alone_ns", "ack_ns")),
    *((name, c_uint64) for name in ("spin_ns", "yields")),
)
WireEnds = struct("optcc_wire", *((name, c_uint32) for name in ("peer", "nic", "far_nic", "lane")))
Rows = struct(
    "optcc_rows",
    *((name, c_uint32) for name in ("rows", "routes")),
    *(
        (name, c_void_p)
        for name in ("src", "dst", "route", "offset", "length", "reduce", "dep_ptr", "dep_idx", "lanes")
    ),
)
Call = struct(
    "optcc_call", ("buffer", c_void_p), ("parts", c_void_p), ("type", c_uint32), ("op", c_uint32), ("sign", c_uint64)
)
Copy = struct(
    "optcc_copy",
    ("own", c_void_p),
    *((name, c_uint64) for name in ("at", "pieces", "bytes", "own_step", "step")),
)
Collective = struct(
    "optcc_collective",
    *(("program", c_void_p), ("call", Call), ("from_source", c_uint32), ("mean", c_uint32), ("elements", c_uint64)),
    *((name, Copy) for name in ("in", "parts", "out")),
    *((name, c_uint64) for name in ("begun_ns", "took_ns")),
)
Until = struct("optcc_until", ("limit_ns", c_uint64), ("rows", c_uint64), ("watch", c_int32), ("notes", c_uint32))
NoteOf = struct(
    "optcc_note",
    *((name, c_uint64) for name in ("at_ns", "bytes")),
    *((name, c_uint32) for name in ("noted", "wire", "cause", "missed")),
)
Missing = struct("optcc_missing", *((name, c_uint32) for name in ("receives", "sends", "row", "peer")))
COUNTERS = (
    *("sent_bytes", "resent_segments", "landed_segments", "duplicates"),
    *("ghosts", "refused", "doubts", "left", "returned"),
)
Counters = struct("optcc_counters", *((name, c_uint64) for name in COUNTERS))
WireState = struct(
    "optcc_wire_state",
    *((name, c_uint32) for name in ("state", "epoch")),
    *((name, c_uint64) for name in ("acked_bytes", "sent_bytes", "flying")),
)
ShmConfig = struct(
    "optcc_shm_config",
    ("rank", c_uint32),
    ("ranks", c_uint32),
    ("nics", c_void_p),
    ("joined", c_void_p),
    ("ring_bytes", c_uint64),
    ("wires", c_uint32),
    ("wire", c_void_p),
    ("out_rates", c_void_p),
    ("in_rates", c_void_p),
)


TCP_SECRET_BYTES, TCP_HANDLE_BYTES = 32, 384
TcpAddress = struct(
    "optcc_tcp_address", ("family", c_uint32), ("scope", c_uint32), ("port", c_uint32), ("bytes", c_uint8 * 16)
)
TcpConfig = struct(
    "optcc_tcp_config",
    *((name, c_uint32) for name in ("rank", "ranks", "nics", "segment_bytes", "unsent_bytes", "strangers")),
    *((name, c_uint64) for name in ("handshake_ns", "open_ns")),
    ("address", TcpAddress * MAX_NICS),
    ("secret", c_uint8 * TCP_SECRET_BYTES),
)
TCP_COUNTERS = ("tried", "accepted", "proved", "refused", "late", "died", "malformed")
TcpCounters = struct("optcc_tcp_counters", *((name, c_uint64) for name in TCP_COUNTERS))
VERBS_HANDLE_BYTES = 4096
"""More than a handle of 64 lanes."""
VerbsNic = struct(
    "optcc_verbs_nic",
    *(("device", c_char_p), ("port", c_uint32), ("gid_index", c_int32)),
    *(("bytes_per_s", c_uint64), ("shared", c_void_p)),
)
VerbsConfig = struct(
    "optcc_verbs_config",
    *((name, c_uint32) for name in ("rank", "ranks", "nics", "wires")),
    *(("nic", c_void_p), ("wire", c_void_p), ("library", c_char_p)),
    *((name, c_uint32) for name in ("segment_bytes", "window_bytes", "ahead", "lead_bytes")),
    *((name, c_uint32) for name in ("timeout", "retries", "copies")),
)
VerbsState = struct(
    "optcc_verbs_state", ("there", c_uint32), ("up", c_uint32), ("in_hand", c_uint32), ("why", c_char_p)
)


def declare(lib: Any) -> Any:
    """The same library, with the types of what its functions take and return."""
    u32, u64, pointer = c_uint32, c_uint64, c_void_p
    for name, result, *arguments in (
        ("optcc_fold", None, c_int, c_int, pointer, pointer, u64),
        ("optcc_divide", None, c_int, pointer, u64, u32),
        ("optcc_program_open", c_int, POINTER(Rows), u32, u32, pointer, u64, u32, POINTER(pointer)),
        ("optcc_program_close", None, pointer),
        ("optcc_program_receives", u32, pointer),
        ("optcc_program_landings", None, pointer, pointer, pointer),
        ("optcc_count", None, pointer, POINTER(Counters)),
        ("optcc_wire_look", c_int, pointer, u32, POINTER(WireState)),
        ("optcc_hear", None, pointer, u32, pointer, u64),
        ("optcc_test", c_int, pointer, POINTER(u32)),
        ("optcc_begin", c_int, pointer, pointer, POINTER(Call)),
        ("optcc_progress", u64, pointer),
        ("optcc_wait", c_int, pointer, POINTER(Until)),
        ("optcc_run", c_int, pointer, POINTER(Collective), pointer, pointer, POINTER(Until)),
        ("optcc_go_on", c_int, pointer, POINTER(Collective), pointer, POINTER(Until)),
        ("optcc_serve", c_int, pointer, u64),
        ("optcc_abandon", c_int, pointer, u64),
        ("optcc_done", None, pointer, POINTER(u32), POINTER(u32)),
        ("optcc_missing", None, pointer, POINTER(Missing)),
        ("optcc_alone", u32, pointer),
        ("optcc_notes", u32, pointer, pointer, u32),
        ("optcc_close", None, pointer),
        ("optcc_program_use", c_int, pointer, pointer, pointer, pointer),
        ("optcc_program_early", u64, pointer),
        ("optcc_shm_lend", c_int, pointer, pointer, u64, c_int, POINTER(u32)),
        ("optcc_shm_unlend", c_int, pointer, u32),
        ("optcc_shm_reach", c_int, pointer, u32, u32, pointer, u64),
        ("optcc_shm_peek", c_int, pointer),
        ("optcc_shm_lent", u64, pointer),
        ("optcc_shm_peeked", u64, pointer),
        ("optcc_gpu_bytes", u64, u32),
        ("optcc_gpu_slots", u64, u32, POINTER(u64)),
        ("optcc_gpu_open", c_int, pointer, u32, u64, POINTER(pointer)),
        ("optcc_gpu_close", None, pointer),
        ("optcc_gpu_use", c_int, pointer, pointer, pointer),
        ("optcc_gpu_launch", c_int, pointer, c_int, c_int, POINTER(u64)),
        ("optcc_gpu_idle", c_int, pointer),
        ("optcc_gpu_end", c_int, pointer),
        ("optcc_gpu_twin_open", c_int, pointer, u32, c_int, c_int, u64, u64, POINTER(pointer)),
        ("optcc_gpu_twin_step", u32, pointer, u32),
        ("optcc_gpu_twin_close", None, pointer),
        ("optcc_shm_bytes", u64, POINTER(ShmConfig)),
        ("optcc_shm_open", c_int, POINTER(ShmConfig), pointer, POINTER(pointer)),
        ("optcc_shm_close", None, pointer),
        ("optcc_shm_engine", c_int, pointer, POINTER(Config), POINTER(pointer)),
        ("optcc_shm_link", c_int, pointer, u32, c_int, c_int),
        ("optcc_shm_dark", c_int, pointer, u32, u32, u32, c_int, c_int),
        ("optcc_shm_slow", c_int, pointer, u32, c_double),
        ("optcc_shm_dropped", u64, pointer, u32),
        ("optcc_tcp_open", c_int, POINTER(TcpConfig), POINTER(pointer)),
        ("optcc_tcp_close", None, pointer),
        ("optcc_tcp_handle", c_int, pointer, pointer, POINTER(u32)),
        ("optcc_tcp_join", c_int, pointer, u32, pointer, u32, POINTER(WireEnds), u32),
        ("optcc_tcp_wires", u32, pointer),
        ("optcc_tcp_wire", c_int, pointer, u32, POINTER(WireEnds)),
        ("optcc_tcp_engine", c_int, pointer, POINTER(Config), POINTER(pointer)),
        ("optcc_tcp_ready", c_int, pointer),
        ("optcc_tcp_look", c_int, pointer, u32),
        ("optcc_tcp_fd", c_int, pointer),
        ("optcc_tcp_arm", c_int, pointer),
        ("optcc_tcp_sent", c_int, pointer),
        ("optcc_tcp_count", None, pointer, POINTER(TcpCounters)),
        ("optcc_verbs_why", c_char_p),
        ("optcc_verbs_open", c_int, POINTER(VerbsConfig), POINTER(pointer)),
        ("optcc_verbs_close", None, pointer),
        ("optcc_verbs_handle", c_int, pointer, u32, pointer, POINTER(u64)),
        ("optcc_verbs_join", c_int, pointer, u32, pointer, u64),
        ("optcc_verbs_engine", c_int, pointer, POINTER(Config), POINTER(pointer)),
        ("optcc_verbs_register", c_int, pointer, pointer, u64),
        ("optcc_verbs_unregister", c_int, pointer, pointer),
        ("optcc_verbs_fd", c_int, pointer),
        ("optcc_verbs_arm", c_int, pointer),
        ("optcc_verbs_cut", c_int, pointer, u32, c_int),
        ("optcc_verbs_fault", c_char_p, pointer),
        ("optcc_verbs_look", c_int, pointer, u32, POINTER(VerbsState)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


@cache
def engine_library() -> Any:
    """Raises InputError where there is none."""
    return declare(library())


def demand(result: int, what: str) -> None:
    """Raise TransportError, MemoryError or InputError unless `result` is OK."""
    if result == ResultOf.MEMORY:
        raise MemoryError(what)
    if result == ResultOf.BAD:
        raise InputError("not what the engine can do", where=what)
    if result != ResultOf.OK:
        raise TransportError(f"{what}: {ResultOf(result).name.lower()}")


def rows_of(schedule: Schedule, lanes: Array) -> tuple[Any, tuple[Array, ...]]:
    """The struct of a schedule, and the arrays that it points into. lanes : by route, a bit for each."""
    columns: tuple[Array, ...] = (
        *(np.ascontiguousarray(c, np.int32) for c in (schedule.src, schedule.dst, schedule.route)),
        *(np.ascontiguousarray(c, np.int64) for c in (schedule.offset, schedule.length)),
        np.ascontiguousarray(schedule.reduce, np.uint8),
        *(np.ascontiguousarray(c, np.int64) for c in (schedule.dep_ptr, schedule.dep_idx)),
        np.ascontiguousarray(lanes, np.uint64),
    )
    return Rows(len(schedule), len(schedule.routes), *(column.ctypes.data for column in columns)), columns


def wrong_with(schedule: Schedule, rank: int) -> InputError:
    """Why ranks that know only their own rows cannot run a schedule."""
    where, empty = "schedule", np.flatnonzero(schedule.length < 1)
    if len(empty):
        got = f"{schedule.length[empty[0]]} bytes"
        return InputError(f"transfer {empty[0]} is empty", where=where, expected="at least one byte", got=got)
    for row in np.flatnonzero(schedule.src == rank).tolist():
        for dep in schedule.deps(row).tolist():
            if not 0 <= dep < len(schedule) or schedule.dst[dep] != rank:
                return InputError(
                    f"transfer {row} leaves rank {rank} but waits for transfer {dep}, which does not end there",
                    where=where,
                    expected="dependencies that end at the sender",
                )
    return InputError("a transfer is not between two ranks, or not within the buffer", where=where)


def open_program(lib: Any, schedule: Schedule, rank: int, lanes: Array, segment_bytes: int) -> Any:
    """One rank's part of a schedule, to be closed by `optcc_program_close`.

    lanes : by route; segment_bytes : of the engine that it will run on
    Raises InputError for rows that ranks which know only their own cannot run.
    """
    rows, columns = rows_of(schedule, lanes)
    made = c_void_p()
    result = lib.optcc_program_open(
        byref(rows), rank, schedule.ranks, None, schedule.nbytes, segment_bytes, byref(made)
    )
    del columns
    if result == ResultOf.BAD:
        raise wrong_with(schedule, rank)
    demand(result, "a rank's part of a schedule")
    return made


def seconds(at_ns: Any) -> Any:
    """Times of the engine's clock, which is this machine's monotonic one, in seconds: a number or an array."""
    return at_ns / 1e9


class NativeProgram:
    """One rank's part of a schedule, which the library holds for as long as this is there."""

    def __init__(self, schedule: Schedule, rank: int, lanes: Array, segment_bytes: int) -> None:
        """As `open_program`."""
        lib = engine_library()
        self.pointer = open_program(lib, schedule, rank, lanes, segment_bytes)
        weakref.finalize(self, lib.optcc_program_close, self.pointer).atexit = False

    def landings(self) -> dict[int, float]:
        """When each row that came in had come and was folded, seconds of the monotonic clock."""
        lib = engine_library()
        count = lib.optcc_program_receives(self.pointer)
        rows, at_ns = np.empty(count, np.uint32), np.empty(count, np.uint64)
        lib.optcc_program_landings(self.pointer, rows.ctypes.data, at_ns.ctypes.data)
        return dict(zip(rows.tolist(), seconds(at_ns).tolist(), strict=True))


NUMBER_OF_TYPE = {dtype_of(name): number for number, name in enumerate(TYPES)}
NUMBER_OF_OP = {op: number for number, op in enumerate(OPS)}


class NativeCall:
    """A program on these buffers: what the library is told, made once for any number of runs.

    buffer : in place, shape (elements,); parts : of the buffer's kind, or None: what is sent is read from there, to
    rank p the p-th part, as long as the transfer; from_source : likewise from the caller's source
    at : where in the plan's buffer this one begins, bytes: no row touches anything else
    sign : a number that other calls than this one have not; all ranks' are compared
    mean : so many ranks' average is wanted, in host memory: the caller's target is divided, `elements`; 0: none is
    copies : `Copy` by "in" (of the caller's source, to the buffer), "parts" (likewise), "out" (to his target)
    """

    __slots__ = ("buffer", "op", "program", "sent", "struct", "struct_at")

    def __init__(
        self,
        program: NativeProgram,
        buffer: Array | DeviceArray,
        op: Op,
        sign: int,
        *,
        parts: Array | DeviceArray | None = None,
        from_source: bool = False,
        at: int = 0,
        mean: int = 0,
        elements: int = 0,
        copies: Mapping[str, Any] | None = None,
    ) -> None:
        self.program, self.buffer, self.op = program, buffer, op
        self.sent = None if from_source else buffer if parts is None else parts
        parts_at = None if parts is None else address_of(parts)
        call = Call(address_of(buffer) - at, parts_at, NUMBER_OF_TYPE[buffer.dtype], NUMBER_OF_OP[op], sign)
        self.struct = Collective(program.pointer, call, from_source, mean, elements, **(copies or {}))
        self.struct_at = byref(self.struct)
