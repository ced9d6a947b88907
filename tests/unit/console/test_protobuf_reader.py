"""Protobuf messages as JSON, chosen by name, by index or by default."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from tidelog.console.core.decoded import MisfitError, SchemaError
from tidelog.console.core.protobuf_reader import ProtobufReader

ID = b"\0\0\0\0\7"
SCALARS = {
    "id": FieldDescriptorProto.TYPE_UINT64,
    "name": FieldDescriptorProto.TYPE_STRING,
    "raw": FieldDescriptorProto.TYPE_BYTES,
    "ratio": FieldDescriptorProto.TYPE_DOUBLE,
    "vip": FieldDescriptorProto.TYPE_BOOL,
}
MESSAGES = {
    "at": ".google.protobuf.Timestamp",
    "extra": ".google.protobuf.Struct",
    "limit": ".google.protobuf.Int64Value",
    "parent": ".shop.Order",
}


def _field(
    message: DescriptorProto, name: str, kind: Any, type_name: str | None = None, *, many: bool = False
) -> None:
    label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
    message.field.add(name=name, number=len(message.field) + 1, type=kind, type_name=type_name, label=label)


def _shop() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("timestamp", "struct", "wrappers"))
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    colour.value.add(name="BLUE", number=1)
    order = file.message_type.add(name="Order")
    for name, kind in SCALARS.items():
        _field(order, name, kind)
    for name, type_name in MESSAGES.items():
        _field(order, name, FieldDescriptorProto.TYPE_MESSAGE, type_name)
    _field(order, "colours", FieldDescriptorProto.TYPE_ENUM, ".shop.Colour", many=True)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    _field(entry, "key", FieldDescriptorProto.TYPE_BOOL)
    _field(entry, "value", FieldDescriptorProto.TYPE_INT32)
    _field(order, "counts", FieldDescriptorProto.TYPE_MESSAGE, ".shop.Order.CountsEntry", many=True)
    line = order.nested_type.add(name="Line")
    _field(line, "sku", FieldDescriptorProto.TYPE_STRING)
    other = file.message_type.add(name="Refund")
    _field(other, "amount", FieldDescriptorProto.TYPE_SINT32)
    return file


SHOP = _shop()
SET = descriptor_pb2.FileDescriptorSet(file=[SHOP]).SerializeToString()


def _new(name: str) -> Any:
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(name))()


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for name in SHOP.dependency:
        file = descriptor_pb2.FileDescriptorProto()
        descriptor_pool.Default().FindFileByName(name).CopyToProto(file)
        pool.Add(file)
    pool.Add(SHOP)
    return pool


def test_fields_become_json_with_their_own_names_and_numbers() -> None:
    order = _new("shop.Order")
    order.id = 2**64 - 1
    order.name, order.raw, order.ratio, order.vip = "Ada", b"\x00\xff", 1.5, True
    order.at.FromJsonString("2026-01-31T14:00:00Z")
    order.extra.update({"a": [1, None, "x"], "b": {"c": True}})
    order.limit.value = 0
    order.parent.id = 7
    order.colours.extend([1, 9])
    order.counts[True] = 3
    name, found = ProtobufReader.of_set(SET).read(order.SerializeToString())
    assert name == "shop.Order"
    assert found == {
        "id": 2**64 - 1,
        "name": "Ada",
        "raw": "AP8=",
        "ratio": 1.5,
        "vip": True,
        "at": "2026-01-31T14:00:00Z",
        "extra": {"a": [1.0, None, "x"], "b": {"c": True}},
        "limit": 0,
        "parent": {
            "id": 7,
            "name": "",
            "raw": "",
            "ratio": 0.0,
            "vip": False,
            "colours": [],
            "counts": {},
        },
        "colours": ["BLUE", 9],
        "counts": {"true": 3},
    }


def test_the_indexes_before_a_message_choose_its_type() -> None:
    reader = ProtobufReader.of_set(SET)
    refund, line = _new("shop.Refund"), _new("shop.Order.Line")
    refund.amount, line.sku = -5, "A7"
    assert reader.read_framed(ID + b"\x02\x02" + refund.SerializeToString()) == (
        "shop.Refund",
        {"amount": -5},
    )
    assert reader.read_framed(ID + b"\x04\x00\x02" + line.SerializeToString()) == (
        "shop.Order.Line",
        {"sku": "A7"},
    )
    assert reader.read_framed(ID + b"\x00")[0] == "shop.Order"
    with pytest.raises(MisfitError, match="no message with the index 5"):
        reader.read_framed(ID + b"\x02\x0a")


def test_a_named_message_precedes_the_indexes() -> None:
    reader = ProtobufReader.of_set(SET, "shop.Refund")
    assert reader.read(b"\x08\x09") == ("shop.Refund", {"amount": -5})
    assert reader.read_framed(ID + b"\x00\x08\x09") == ("shop.Refund", {"amount": -5})


def test_times_outside_the_calendar_are_shown_as_fields() -> None:
    order = _new("shop.Order")
    order.at.seconds = 2**62
    found: Any = ProtobufReader.of_set(SET).read(order.SerializeToString())[1]
    assert found["at"] == {"seconds": 2**62, "nanos": 0}


def test_numbers_that_json_lacks_are_shown() -> None:
    order = _new("shop.Order")
    order.ratio = math.inf
    found: Any = ProtobufReader.of_set(SET).read(order.SerializeToString())[1]
    assert json.dumps(found["ratio"]) == "Infinity"


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = ProtobufReader.of_set(SET).read(data)
    except MisfitError:
        return
    json.dumps(found)


def _nested(levels: int) -> bytes:
    data = b""
    for _ in range(levels):
        order = _new("shop.Order")
        order.parent.ParseFromString(data)
        data = order.SerializeToString()
    return data


def test_deep_and_large_messages_are_refused() -> None:
    reader = ProtobufReader.of_set(SET)
    assert reader.read(_nested(20))
    with pytest.raises(MisfitError, match="it is nested more than 64 deep"):
        reader.read(_nested(70))
    colours = b"\x52\xc0\x9a\x0c" + b"\x01" * 200_000
    with pytest.raises(MisfitError, match="it has more than 100,000 fields"):
        reader.read(colours)


@pytest.mark.parametrize(
    ("data", "message", "problem"),
    [
        (b"\xff", None, "it is not a Protobuf descriptor set"),
        (b"", None, "it is an empty Protobuf descriptor set"),
        (SET, "shop.Nothing", r"it has no message shop\.Nothing; it has Order, Refund"),
        (
            descriptor_pb2.FileDescriptorSet(
                file=[descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["b.proto"])]
            ).SerializeToString(),
            None,
            "Was protoc given --include_imports",
        ),
        (
            descriptor_pb2.FileDescriptorSet(
                file=[descriptor_pb2.FileDescriptorProto(name="a.proto")]
            ).SerializeToString(),
            None,
            "it has no message",
        ),
    ],
)
def test_unusable_descriptor_sets_are_refused(data: bytes, message: str | None, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        ProtobufReader.of_set(data, message)
