"""Protobuf values, read by a FileDescriptorSet and a message name."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.decoder import DecodePlan, decode
from tidelog.pipeline.formats.protobuf_values import ProtobufReader
from tidelog.pipeline.formats.value_format import Framing, ValueFormat, ValueKind

Field = descriptor_pb2.FieldDescriptorProto
IMPORTED = (struct_pb2, timestamp_pb2, wrappers_pb2)


def field(message: Any, number: int, name: str, kind: int, **more: Any) -> None:
    label = more.pop("label", Field.LABEL_OPTIONAL)
    message.field.add(name=name, number=number, type=kind, label=label, **more)


def descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    """Returns the output of protoc --include_imports --descriptor_set_out."""
    files = descriptor_pb2.FileDescriptorSet()
    for module in IMPORTED:
        module.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="flight.proto", package="air", syntax="proto3")
    file.dependency.extend(module.DESCRIPTOR.name for module in IMPORTED)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="UNKNOWN", number=0)
    kind.value.add(name="CARGO", number=1)
    flight = file.message_type.add(name="Flight")
    field(flight, 1, "carrier", Field.TYPE_STRING)
    field(flight, 2, "delay", Field.TYPE_INT32, proto3_optional=True, oneof_index=0)
    flight.oneof_decl.add(name="_delay")
    field(flight, 3, "count", Field.TYPE_UINT64)
    field(flight, 4, "at", Field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    field(flight, 5, "kind", Field.TYPE_ENUM, type_name=".air.Kind")
    field(flight, 6, "seats", Field.TYPE_INT64, label=Field.LABEL_REPEATED)
    entry = flight.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    field(entry, 1, "key", Field.TYPE_STRING)
    field(entry, 2, "value", Field.TYPE_DOUBLE)
    field(
        flight, 7, "tags", Field.TYPE_MESSAGE, label=Field.LABEL_REPEATED, type_name=".air.Flight.TagsEntry"
    )
    field(flight, 8, "weight", Field.TYPE_MESSAGE, type_name=".google.protobuf.DoubleValue")
    field(flight, 9, "more", Field.TYPE_MESSAGE, type_name=".google.protobuf.Struct")
    leg = flight.nested_type.add(name="Leg")
    field(leg, 1, "to", Field.TYPE_STRING)
    field(flight, 10, "legs", Field.TYPE_MESSAGE, label=Field.LABEL_REPEATED, type_name=".air.Flight.Leg")
    field(flight, 11, "raw", Field.TYPE_BYTES)
    tree = file.message_type.add(name="Tree")
    field(tree, 1, "left", Field.TYPE_MESSAGE, type_name=".air.Tree")
    kept = file.message_type.add(name="Kept")
    field(kept, 1, "kafka_key", Field.TYPE_STRING)
    return files


FILES = descriptor_set()


def protobuf(message: str = "air.Flight", framing: Framing = Framing.PLAIN) -> ValueFormat:
    return ValueFormat(ValueKind.PROTOBUF, framing, descriptor_set=FILES.SerializeToString(), message=message)


def flight(**fields: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in FILES.file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("air.Flight"))(**fields)


def run(value_format: ValueFormat, values: list[bytes | None]) -> list[tuple[Any, str | None]]:
    kind = ProtobufReader(value_format).kind
    found = decode(pa.array(values, pa.binary()), DecodePlan.of(value_format, kind)).to_pylist()
    return [(row["fields"], row["error_reason"]) for row in found]


def test_fields_become_columns() -> None:
    message = flight(
        carrier="AA", delay=0, count=2**64 - 1, kind=1, seats=[1, 2], tags={"a": 1.5}, raw=b"\xff"
    )
    message.at.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
    message.weight.value = 2.5
    message.more.update({"x": 1})
    message.legs.add(to="LAX")
    ((row, why),) = run(protobuf(), [message.SerializeToString()])
    assert why is None
    assert json.loads(row.pop("more")) == {"x": 1.0}
    assert row == {
        "carrier": "AA",
        "delay": 0,
        "count": Decimal(2**64 - 1),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "kind": "CARGO",
        "seats": [1, 2],
        "tags": [("a", 1.5)],
        "weight": 2.5,
        "legs": [{"to": "LAX"}],
        "raw": b"\xff",
    }


def test_an_absent_field_is_null_or_the_default_as_the_format_can_tell() -> None:
    ((row, _), tombstone) = run(protobuf(), [b"", None])
    assert (row["delay"], row["at"], row["weight"]) == (None, None, None)
    assert (row["carrier"], row["count"], row["kind"], row["seats"]) == ("", Decimal(0), "UNKNOWN", [])
    assert tombstone == (None, None)


def test_unknown_fields_and_enum_numbers_are_not_errors() -> None:
    value = flight(carrier="AA", kind=7).SerializeToString() + b"\xa0\x06\x01"  # field 100
    ((row, why),) = run(protobuf(), [value])
    assert (row["carrier"], row["kind"], why) == ("AA", "7", None)


@pytest.mark.parametrize("value", [b"\x0a\x05AA", b"\xff", b"\x0a\x01\xff"])
def test_a_value_that_is_no_such_message_is_reported(value: bytes) -> None:
    ((row, why),) = run(protobuf(), [value])
    assert row is None
    assert (why or "").startswith("the value is not Protobuf of message air.Flight")


def test_a_time_that_no_column_can_hold_is_reported_and_not_raised() -> None:
    message = flight(carrier="AA")
    message.at.seconds = 10**15
    ((row, why),) = run(protobuf(), [message.SerializeToString()])
    assert row is None
    assert why


def test_confluent_s_framing_is_skipped() -> None:
    body = flight(carrier="AA").SerializeToString()
    frame = b"\x00" + (5).to_bytes(4, "big")
    values: list[bytes | None] = [
        frame + b"\x00" + body,  # the first message of the file
        frame + b"\x04\x02\x00" + body,  # index [1, 0]
        b"\x01" + frame + body,
        frame + b"\xff\xff\xff\xff\xff\xff",
        frame[:3],
    ]
    rows = run(protobuf(framing=Framing.CONFLUENT), values)
    assert [row["carrier"] for row, _ in rows[:2]] == ["AA", "AA"]
    assert all(
        (why or "").startswith("the value is not Protobuf in Confluent's framing") for _, why in rows[2:]
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("air.Nothing", "has no message air.Nothing; it has air.Flight, air.Kept, air.Tree"),
        ("air.Tree", "within itself"),
        ("air.Kept", "the name of field kafka_key is reserved for the archive's own columns"),
    ],
)
def test_messages_that_cannot_be_columns_are_reported_in_one_sentence(message: str, expected: str) -> None:
    with pytest.raises(PipelineError) as caught:
        ProtobufReader(protobuf(message))
    assert expected in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xff", FILES.file[-1].SerializeToString()])
def test_a_file_that_is_no_descriptor_set_is_reported(content: bytes) -> None:
    with pytest.raises(PipelineError, match="descriptor set"):
        ProtobufReader(ValueFormat(ValueKind.PROTOBUF, descriptor_set=content, message="air.Flight"))


def test_missing_imports_name_the_option() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().CopyFrom(FILES.file[-1])
    with pytest.raises(PipelineError, match="--include_imports"):
        ProtobufReader(
            ValueFormat(ValueKind.PROTOBUF, descriptor_set=files.SerializeToString(), message="air.Flight")
        )
