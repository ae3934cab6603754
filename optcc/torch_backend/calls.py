"""Which way each call of torch.distributed goes in a group of this backend. docs/pytorch.md shows this table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Way(StrEnum):
    """Of a call."""

    OPTCC = "optcc"
    """By the communicator: it survives a NIC."""
    GLOO = "Gloo"
    """By a Gloo group beside it, which does not."""
    REFUSED = "refused"
    """InputError, with what to call instead."""


@dataclass(frozen=True)
class Call:
    """One row of the table.

    functions : of torch.distributed; methods : of its ProcessGroup, which they call
    note : what of it goes another way; for a refused call, what to call instead
    """

    functions: tuple[str, ...]
    methods: tuple[str, ...]
    way: Way
    note: str = ""


REDUCED = "Bitwise operations, bool, and min, max and product of complex numbers go by Gloo"

CALLS = (
    Call(
        ("all_reduce", "all_reduce_coalesced"),
        ("allreduce", "allreduce_coalesced"),
        Way.OPTCC,
        f"{REDUCED}, and so do sparse tensors",
    ),
    Call(("broadcast", "broadcast_object_list"), ("broadcast",), Way.OPTCC),
    Call(("barrier",), ("barrier",), Way.OPTCC),
    Call(
        ("all_gather", "all_gather_object", "all_gather_coalesced"),
        ("allgather", "allgather_coalesced"),
        Way.OPTCC,
        "Tensors of unequal sizes go by Gloo",
    ),
    Call(
        ("all_gather_into_tensor", "all_gather_single"),
        (
            *("all_gather_single", "_allgather_base"),
            *("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
        ),
        Way.OPTCC,
    ),
    Call(("reduce_scatter",), ("reduce_scatter",), Way.OPTCC, f"{REDUCED}, and so do parts of unequal sizes"),
    Call(
        ("reduce_scatter_tensor", "reduce_scatter_single"),
        (
            *("reduce_scatter_single", "_reduce_scatter_base"),
            *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
        ),
        Way.OPTCC,
        REDUCED,
    ),
    Call(("reduce",), ("reduce",), Way.GLOO),
    Call(("gather", "gather_object"), ("gather",), Way.GLOO),
    Call(("scatter", "scatter_object_list"), ("scatter",), Way.GLOO),
    Call(("all_to_all",), ("alltoall",), Way.GLOO, "Gloo has it for tensors of one shape"),
    Call(
        ("all_to_all_single",),
        ("all_to_all_single", "alltoall_base"),
        Way.OPTCC,
        "With split sizes it goes by Gloo",
    ),
    Call(("send", "isend", "batch_isend_irecv", "send_object_list"), ("send",), Way.GLOO),
    Call(("recv", "irecv", "recv_object_list"), ("recv", "recv_anysource"), Way.GLOO),
    Call(
        ("monitored_barrier",),
        ("monitored_barrier",),
        Way.REFUSED,
        "Call barrier: when a rank does not come, its error names the rank. torch refuses it for all backends but gloo",
    ),
    Call(
        ("shrink_group",),
        (),
        Way.REFUSED,
        "Call optcc.pytorch.shrink after RankFailedError. torch refuses it for all backends but its own",
    ),
    Call(("split_group",), ("split_group", "merge_remote_group"), Way.REFUSED, "Call new_group"),
    Call(
        (),
        ("_start_coalescing", "_end_coalescing"),
        Way.REFUSED,
        "Leave `device` out of the coalescing manager",
    ),
)
"""Every call once."""


def table() -> list[str]:
    """CALLS as lines of Markdown."""
    lines = ["| call | goes by | |", "|---|---|---|"]
    for call in CALLS:
        names = ", ".join(f"`{name}`" for name in call.functions or call.methods)
        lines.append(f"| {names} | {call.way} | {call.note} |")
    return lines
