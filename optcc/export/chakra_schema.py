"""The part of Chakra's schema that sends and receives need (mlcommons/chakra, schema/protobuf/et_def.proto).

Its descriptor is built when first needed: no compiler at build time, no generated code tied to a protobuf version.
A file with other fields of the schema is refused: they might change what it does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from optcc.errors import InputError

VERSION = "0.0.4"
COMM_SEND, COMM_RECV = 5, 6
VALUES = {"int32_val": (7, "INT32"), "int64_val": (9, "INT64"), "bool_val": (27, "BOOL"), "string_val": (29, "STRING")}


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
