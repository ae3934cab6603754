"""A plan as Chakra execution traces, one file per rank, for ASTRA-sim's custom collectives.

A transfer is a send node at one rank and a receive node at the other, joined by a tag of their own; both wait for what
has to be there before (data_deps, in the same file). Attributes are typed as the feeder reads them
(src/feeder/et_feeder_node.cpp). A send waits for the one before it at its ports, too (ctrl_deps), since the order of
sends is part of a plan. Three more attributes, which the feeder keeps and does not use, allow checks of sums and order:
`optcc_offset`, `optcc_reduce`, `optcc_port`. They say which bytes move, whether they are added, and by which port. A
fourth, `optcc_beside`, is there where bytes land beside those that they are added to (`LandsAs.BESIDE`).

Here is the part of Chakra's schema that sends and receives need (mlcommons/chakra, schema/protobuf/et_def.proto). Its
descriptor is built when first needed: no compiler at build time, no generated code tied to a protobuf version. A file
with other fields of the schema is refused: they might change what it does.
"""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import Any

from optcc.errors import InputError
from optcc.export.sends import Node, chained, parted
from optcc.plans.plan import Plan
from optcc.schedule.columns import BESIDE
from optcc.simulation.simulator import simulate

VERSION = "0.0.4"
COMM_SEND, COMM_RECV = 5, 6
VALUES = {"int32_val": (7, "INT32"), "int64_val": (9, "INT64"), "bool_val": (27, "BOOL"), "string_val": (29, "STRING")}
_KINDS = {
    **dict.fromkeys(("comm_size", "comm_dst", "comm_src", "comm_tag", "optcc_offset", "optcc_port"), int),
    **dict.fromkeys(("is_cpu_op", "optcc_reduce", "optcc_beside"), bool),
}
"""Of a node's attributes. One that is not here might change what the node does."""


def export(plan: Plan) -> tuple[bytes, ...]:
    """The files of `plan`, one per rank."""
    schedule = plan.schedule()
    nodes: list[list[Node]] = [[] for _ in plan.cluster.ranks]
    landed: dict[int, int] = {}  # transfer -> id of its receive node
    columns = zip(
        schedule.src.tolist(), schedule.dst.tolist(), schedule.offset.tolist(), schedule.length.tolist(),
        schedule.reduce.tolist(), strict=True,
    )  # fmt: skip
    leaves = [tuple(sorted({lane.out for lane in route.lanes})) for route in schedule.routes]
    for row, (src, dst, offset, length, reduce) in enumerate(columns):
        deps = tuple(landed[dep] for dep in schedule.deps(row).tolist())
        port = leaves[schedule.route[row]][0]
        nodes[src].append(Node(len(nodes[src]), True, dst, row, length, offset, reduce, deps, (), port))
        landed[row] = len(nodes[dst])
        nodes[dst].append(Node(len(nodes[dst]), False, src, row, length, offset, reduce, ()))
    starts = simulate(schedule).start.tolist()
    return tuple(dump(chained(mine, starts, lambda node: leaves[schedule.route[node.tag]])) for mine in nodes)


def dump(nodes: list[Node]) -> bytes:
    """A file: the metadata, then the nodes, each with its length in front."""
    made, out = messages(), BytesIO()
    from google.protobuf.proto import serialize_length_prefixed

    serialize_length_prefixed(made["GlobalMetadata"](version=VERSION), out)
    for node in nodes:
        raw = made["Node"](id=node.id, name=f"{'SEND' if node.sends else 'RECV'}_{node.tag}")
        raw.type = COMM_SEND if node.sends else COMM_RECV
        raw.data_deps.extend(node.deps)
        raw.ctrl_deps.extend(node.order)
        raw.attr.add(name="is_cpu_op", bool_val=False)
        raw.attr.add(name="comm_size", int64_val=node.nbytes)
        raw.attr.add(name="comm_dst" if node.sends else "comm_src", int32_val=node.peer)
        raw.attr.add(name="comm_tag", int32_val=node.tag)
        raw.attr.add(name="optcc_offset", int64_val=node.offset)
        raw.attr.add(name="optcc_reduce", bool_val=bool(node.reduce))
        raw.attr.add(name="optcc_port", int32_val=node.port)
        if node.reduce == BESIDE:
            raw.attr.add(name="optcc_beside", bool_val=True)
        serialize_length_prefixed(raw, out)
    return out.getvalue()


def load(content: bytes, where: str = "trace") -> tuple[Node, ...]:
    """Read a rank's file back. Raises InputError for what is not a trace of sends and receives like ours."""
    made = messages()
    from google.protobuf.message import DecodeError

    try:
        source = BytesIO(content)
        metadata = _next(made["GlobalMetadata"], source)
        if metadata is None or metadata.version != VERSION or metadata.attr:
            raise ValueError(f"expected metadata of version {VERSION} and nothing else")
        nodes = []
        while source.tell() < len(content):
            nodes.append(_node_in(_next(made["Node"], source)))
        return tuple(parted(nodes))
    except (DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        expected = "a Chakra trace of sends and receives"
        raise InputError("cannot be read", where=where, expected=expected, got=repr(error)[:200]) from None


def _next(kind: Any, source: BytesIO) -> Any:
    """The next message of that kind. ValueError for one with a field that the schema here does not have."""
    from google.protobuf.proto import parse_length_prefixed
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = parse_length_prefixed(kind, source)
    for part in () if found is None else (found, *found.attr):
        if len(others := UnknownFieldSet(part)):
            raise ValueError(f"field {others[0].field_number} of {part.DESCRIPTOR.name}, which is not read here")
    return found


def _node_in(raw: Any) -> Node:
    attrs: dict[str, Any] = {}
    for attr in raw.attr:
        value = getattr(attr, attr.WhichOneof("value") or "value")
        if attr.name in attrs or type(value) is not _KINDS.get(attr.name):
            raise ValueError(
                f"node {raw.id} has an attribute {attr.name[:40]!r} twice, of another type, or not known here"
            )
        attrs[attr.name] = value
    if raw.type not in (COMM_SEND, COMM_RECV) or attrs["is_cpu_op"]:
        raise ValueError(f"node {raw.id} is neither a send nor a receive of a GPU")
    sends = raw.type == COMM_SEND
    if ("comm_src" if sends else "comm_dst") in attrs:
        raise ValueError(f"node {raw.id} has a peer of both kinds")
    beside = attrs.get("optcc_beside", False)
    if beside and not attrs["optcc_reduce"]:
        raise ValueError(f"node {raw.id} lands beside, and is not added")
    return Node(
        id=raw.id,
        sends=sends,
        peer=attrs["comm_dst" if sends else "comm_src"],
        tag=attrs["comm_tag"],
        nbytes=attrs["comm_size"],
        offset=attrs["optcc_offset"],
        reduce=BESIDE if beside else attrs["optcc_reduce"],
        deps=tuple(raw.data_deps),
        order=tuple(raw.ctrl_deps),
        port=attrs.get("optcc_port", 0),
    )


@cache
def messages() -> dict[str, Any]:
    """Message classes by name: GlobalMetadata, Node, AttributeProto. Raises InputError where protobuf is missing."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto
    except ImportError:
        hint = "pip install 'protobuf>=5.29', or install optcc with its extra chakra."
        raise InputError(
            "protobuf is missing or old", where="--format chakra", expected="5.29 or later", hint=hint
        ) from None
    assert proto is not None  # which reads and writes messages with their length in front, from 5.29 on
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="optcc/et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    attribute = file.message_type.add(name="AttributeProto")
    attribute.field.add(name="name", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    attribute.oneof_decl.add(name="value")
    for name, (number, kind) in VALUES.items():
        one = attribute.field.add(name=name, number=number, label=kinds.LABEL_OPTIONAL, oneof_index=0)
        one.type = kinds.Type.Value(f"TYPE_{kind}")
    metadata = file.message_type.add(name="GlobalMetadata")
    metadata.field.add(name="version", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    node = file.message_type.add(name="Node")
    for name, number, type_ in (
        ("id", 1, kinds.TYPE_UINT64),
        ("name", 2, kinds.TYPE_STRING),
        ("type", 3, kinds.TYPE_INT32),
    ):
        node.field.add(name=name, number=number, type=type_, label=kinds.LABEL_OPTIONAL)
    for name, number in (("ctrl_deps", 4), ("data_deps", 5)):
        node.field.add(name=name, number=number, type=kinds.TYPE_UINT64, label=kinds.LABEL_REPEATED)
    for holder in (node, metadata):
        holder.field.add(
            name="attr", number=10 if holder is node else 2, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_REPEATED,
            type_name=".ChakraProtoMsg.AttributeProto",
        )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("GlobalMetadata", "Node", "AttributeProto")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}")) for name in names
    }
