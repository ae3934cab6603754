"""Ranks of the native engine over TCP, for tests and benchmarks: threads or processes, a NIC for each address."""

from __future__ import annotations

from ctypes import POINTER, c_int, c_uint8, c_uint32, c_uint64, c_void_p
from ipaddress import ip_address
from typing import Any

from tests import native_replay as native
from tests.native_replay import Config, _struct

MAX_NICS, SECRET, MAX_HANDLE = 16, 32, 384
OPENING, LIVE, GONE = range(3)
MILLISECOND_NS = 10**6

Address = _struct("Address", ("family", c_uint32), ("scope", c_uint32), ("port", c_uint32), ("bytes", c_uint8 * 16))
TcpConfig = _struct(
    "TcpConfig",
    *((name, c_uint32) for name in ("rank", "ranks", "nics", "segment_bytes", "unsent_bytes", "strangers")),
    *((name, c_uint64) for name in ("handshake_ns", "open_ns")),
    ("address", Address * MAX_NICS),
    ("secret", c_uint8 * SECRET),
)
TCP_COUNTERS = ("accepted", "proved", "refused", "late", "died", "malformed")
TcpCounters = _struct("TcpCounters", *((name, c_uint64) for name in TCP_COUNTERS))
Wire = _struct("Wire", *((name, c_uint32) for name in ("peer", "nic", "far_nic", "lane")))


def load(library: Any) -> Any:
    """`native_replay.load`, and what TCP needs."""
    lib = native.load(library)
    u32, u64, pointer = c_uint32, c_uint64, c_void_p
    for name, result, *arguments in (
        ("optcc_tcp_open", c_int, POINTER(TcpConfig), POINTER(pointer)),
        ("optcc_tcp_close", None, pointer),
        ("optcc_tcp_handle", c_int, pointer, pointer, POINTER(u32)),
        ("optcc_tcp_join", c_int, pointer, u32, pointer, u32, POINTER(Wire), u32),
        ("optcc_tcp_wires", u32, pointer),
        ("optcc_tcp_wire", c_int, pointer, u32, POINTER(Wire)),
        ("optcc_tcp_engine", c_int, pointer, POINTER(Config), POINTER(pointer)),
        ("optcc_tcp_ready", c_int, pointer),
        ("optcc_tcp_look", c_int, pointer, u32),
        ("optcc_tcp_fd", c_int, pointer),
        ("optcc_tcp_wait", c_int, pointer, pointer, u64, u64),
        ("optcc_tcp_sent", c_int, pointer),
        ("optcc_tcp_count", None, pointer, POINTER(TcpCounters)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def address(text: str, port: int = 0, scope: int = 0) -> Any:
    """A NIC's, from 127.0.0.2 or ::1."""
    ip = ip_address(text)
    return Address(ip.version, scope, port, (c_uint8 * 16)(*ip.packed))
