"""A plan as Chakra execution traces, one file per rank, for ASTRA-sim's custom collectives.

A transfer is a send node at one rank and a receive node at the other, joined by a tag of their own; both wait for what
has to be there before (data_deps, in the same file). Attributes are typed as the feeder reads them
(src/feeder/et_feeder_node.cpp). Two more, which it keeps and does not use, say which bytes move and whether they are
added, so that the file can be checked for sums as well: `optcc_offset` and `optcc_reduce`.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

from optcc.errors import InputError
from optcc.export.chakra_schema import COMM_RECV, COMM_SEND, VERSION, messages
from optcc.plans import Plan


@dataclass(frozen=True)
class Node:
    """A send (`sends`) or receive of `nbytes` bytes at `offset`, to or from `peer`, after `deps` (ids in this file)."""

    id: int
    sends: bool
    peer: int
    tag: int
    nbytes: int
    offset: int
    reduce: bool
    deps: tuple[int, ...]


def export(plan: Plan) -> tuple[bytes, ...]:
    """The files of `plan`, one per rank."""
    schedule = plan.schedule()
    nodes: list[list[Node]] = [[] for _ in plan.cluster.ranks]
    landed: dict[int, int] = {}  # transfer -> id of its receive node
    columns = zip(
        schedule.src.tolist(), schedule.dst.tolist(), schedule.offset.tolist(), schedule.length.tolist(),
        schedule.reduce.tolist(), strict=True,
    )  # fmt: skip
    for row, (src, dst, offset, length, reduce) in enumerate(columns):
        deps = tuple(landed[dep] for dep in schedule.deps(row).tolist())
        nodes[src].append(Node(len(nodes[src]), True, dst, row, length, offset, reduce, deps))
        landed[row] = len(nodes[dst])
        nodes[dst].append(Node(len(nodes[dst]), False, src, row, length, offset, reduce, ()))
    return tuple(dump(mine) for mine in nodes)


def dump(nodes: list[Node]) -> bytes:
    """A file: the metadata, then the nodes, each with its length in front."""
    made, out = messages(), BytesIO()
    from google.protobuf.proto import serialize_length_prefixed

    serialize_length_prefixed(made["GlobalMetadata"](version=VERSION), out)
    for node in nodes:
        raw = made["Node"](id=node.id, name=f"{'SEND' if node.sends else 'RECV'}_{node.tag}")
        raw.type = COMM_SEND if node.sends else COMM_RECV
        raw.data_deps.extend(node.deps)
        raw.attr.add(name="is_cpu_op", bool_val=False)
        raw.attr.add(name="comm_size", int64_val=node.nbytes)
        raw.attr.add(name="comm_dst" if node.sends else "comm_src", int32_val=node.peer)
        raw.attr.add(name="comm_tag", int32_val=node.tag)
        raw.attr.add(name="optcc_offset", int64_val=node.offset)
        raw.attr.add(name="optcc_reduce", bool_val=node.reduce)
        serialize_length_prefixed(raw, out)
    return out.getvalue()


def load(content: bytes, where: str = "trace") -> tuple[Node, ...]:
    """Read a rank's file back. Raises InputError for what is not a trace of sends and receives."""
    made = messages()
    from google.protobuf.message import DecodeError

    try:
        source = BytesIO(content)
        metadata = _next(made["GlobalMetadata"], source)
        if metadata is None or metadata.version != VERSION:
            raise ValueError(f"expected metadata of version {VERSION}")
        nodes = []
        while source.tell() < len(content):
            nodes.append(_node_in(_next(made["Node"], source)))
        return tuple(nodes)
    except (DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        expected = "a Chakra trace of sends and receives"
        raise InputError("cannot be read", where=where, expected=expected, got=repr(error)[:200]) from None


def _next(kind: Any, source: BytesIO) -> Any:
    from google.protobuf.proto import parse_length_prefixed

    return parse_length_prefixed(kind, source)


def _node_in(raw: Any) -> Node:
    attrs = {attr.name: getattr(attr, attr.WhichOneof("value")) for attr in raw.attr}
    if raw.type not in (COMM_SEND, COMM_RECV) or attrs["is_cpu_op"]:
        raise ValueError(f"node {raw.id} is neither a send nor a receive of a GPU")
    sends = raw.type == COMM_SEND
    return Node(
        id=raw.id,
        sends=sends,
        peer=attrs["comm_dst" if sends else "comm_src"],
        tag=attrs["comm_tag"],
        nbytes=attrs["comm_size"],
        offset=attrs["optcc_offset"],
        reduce=attrs["optcc_reduce"],
        deps=(*raw.data_deps, *raw.ctrl_deps),
    )
