"""C structures of verbs, against what a C compiler says of rdma-core's infiniband/verbs.h (44.0, x86-64 and arm64)."""

from __future__ import annotations

import ctypes
import struct
from ctypes import Structure, c_int, c_uint32, c_uint64

import pytest

from optcc.runtime.verbs import structs

SIZES = {
    structs.QpCapacity: 20,
    structs.QpInit: 64,
    structs.GlobalRoute: 24,
    structs.AddressHandle: 32,
    structs.QpAttributes: 144,
    structs.AsyncEvent: 16,
}
OFFSETS = {
    structs.QpInit: {"cap": 32, "qp_type": 52, "sq_sig_all": 56},
    structs.GlobalRoute: {"sgid_index": 20, "hop_limit": 21},
    structs.AddressHandle: {"dlid": 24, "is_global": 29, "port_num": 30},
    structs.QpAttributes: {
        "path_mtu": 8,
        "rq_psn": 20,
        "sq_psn": 24,
        "dest_qp_num": 28,
        "qp_access_flags": 32,
        "cap": 36,
        "ah_attr": 56,
        "alt_ah_attr": 88,
        "pkey_index": 120,
        "max_rd_atomic": 126,
        "max_dest_rd_atomic": 127,
        "min_rnr_timer": 128,
        "port_num": 129,
        "timeout": 130,
        "retry_cnt": 131,
        "rnr_retry": 132,
    },
    structs.PortAttributes: {"state": 0, "active_mtu": 8, "lid": 34},
    structs.AsyncEvent: {"event_type": 8},
}


class SendRequest(Structure):
    """struct ibv_send_wr, as far as RDMA operations use it, and two elements behind it."""

    _fields_ = (
        ("wr_id", c_uint64),
        ("next", c_uint64),
        ("sg_list", c_uint64),
        ("num_sge", c_int),
        ("opcode", c_int),
        ("send_flags", c_uint32),
        ("imm_data", c_uint32),
        ("remote_addr", c_uint64),
        ("rkey", c_uint32),
        ("rest", ctypes.c_uint8 * 76),
        ("elements", ctypes.c_uint8 * 32),
    )


@pytest.mark.parametrize("kind", SIZES, ids=lambda kind: kind.__name__)
def test_structures_are_as_long_as_in_c(kind: type[Structure]) -> None:
    assert ctypes.sizeof(kind) == SIZES[kind]


@pytest.mark.parametrize("kind", OFFSETS, ids=lambda kind: kind.__name__)
def test_fields_lie_where_they_do_in_c(kind: type[Structure]) -> None:
    assert {name: getattr(kind, name).offset for name in OFFSETS[kind]} == OFFSETS[kind]


def test_a_packed_request_is_what_c_reads() -> None:
    packed = structs.SEND_REQUEST.pack(1, 2, 3, 2, 1, 2, 7, 1 << 40, 9, 10, 11, 12, 13, 14, 15)
    read = SendRequest.from_buffer_copy(packed)
    assert len(packed) == 128 + 2 * 16
    assert [read.wr_id, read.next, read.sg_list, read.num_sge, read.opcode] == [1, 2, 3, 2, 1]
    assert [read.send_flags, read.imm_data, read.remote_addr, read.rkey] == [2, 7, 1 << 40, 9]
    assert struct.unpack("=QIIQII", bytes(read.elements)) == (10, 11, 12, 13, 14, 15)
    assert SendRequest.next.offset == structs.SEND_NEXT
    assert SendRequest.send_flags.offset == structs.SEND_FLAGS
    assert SendRequest.elements.offset == structs.SEND_ELEMENTS


def test_a_completion_is_read_as_c_writes_it() -> None:
    written = struct.pack("=QIIIIIIII8x", 5, 12, 1, 129, 4096, 7, 42, 0, 0)
    assert structs.Completion._make(structs.COMPLETION.unpack(written)) == structs.Completion(5, 12, 129, 7, 42)
    assert structs.status_name(12) == "RETRY_EXC_ERR"
    assert structs.status_name(99) == "status 99"
