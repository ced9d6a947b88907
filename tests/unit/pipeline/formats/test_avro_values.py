"""Framings, several writer schemas, logical types and unions of Avro values."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.avro_values import AvroReader, fingerprint_of
from tidelog.pipeline.formats.decoder import DecodePlan, decode
from tidelog.pipeline.formats.value_format import Framing, NamedSchema, ValueFormat, ValueKind

V1 = {"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "string"}]}
V2 = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
    ],
}


def schema(plain: Any, schema_id: int | None = None, name: str = "flight.avsc") -> NamedSchema:
    return NamedSchema(name, json.dumps(plain), schema_id)


def avro(*schemas: NamedSchema, framing: Framing = Framing.PLAIN) -> ValueFormat:
    return ValueFormat(ValueKind.AVRO, framing, avro_schemas=schemas)


def encoded(plain: Any, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), record)
    return out.getvalue()


def run(value_format: ValueFormat, values: list[bytes | None]) -> list[tuple[Any, str | None]]:
    kind = AvroReader(value_format).kind
    found = decode(pa.array(values, pa.binary()), DecodePlan.of(value_format, kind)).to_pylist()
    return [(row["fields"], row["error_reason"]) for row in found]


def test_plain_values() -> None:
    value_format = avro(schema(V2))
    rows = run(
        value_format,
        [encoded(V2, {"carrier": "AA", "delay": 5}), None, b"", encoded(V2, {"carrier": "U"}) + b"x"],
    )
    assert rows[0] == ({"carrier": "AA", "delay": 5}, None)
    assert rows[1] == (None, None)
    assert (rows[2][1] or "").startswith("the value is not Avro of schema flight.avsc")
    assert rows[3][1] == "the value is not Avro of schema flight.avsc: 1 bytes are left over"


def test_single_objects_of_two_writers_are_distinguished_by_fingerprint() -> None:
    first, second = schema(V1, name="v1.avsc"), schema(V2, name="v2.avsc")
    values: list[bytes | None] = [
        b"\xc3\x01" + fingerprint_of(first) + encoded(V1, {"carrier": "AA"}),
        b"\xc3\x01" + fingerprint_of(second) + encoded(V2, {"carrier": "UA", "delay": 3}),
        b"\xc3\x01" + bytes(8) + b"\x00",
        b"\x00",
    ]
    rows = run(avro(first, second, framing=Framing.SINGLE_OBJECT), values)
    assert rows[0] == ({"carrier": "AA", "delay": None}, None)
    assert rows[1] == ({"carrier": "UA", "delay": 3}, None)
    assert (
        rows[2][1] == "the value is Avro of the schema with fingerprint 0000000000000000, which was not given"
    )
    assert "does not begin with C3 01" in (rows[3][1] or "")


def test_the_fingerprint_equals_avros_specification() -> None:
    # This is CRC-64-AVRO of "int", little-endian in the header, from the specification's test vectors.
    assert fingerprint_of(NamedSchema("int", '"int"'))[::-1].hex() == "7275d51a3f395c8f"


def test_confluent_s_ids() -> None:
    value_format = avro(schema(V1, 17, "17.avsc"), schema(V2, 18, "18.avsc"), framing=Framing.CONFLUENT)
    values: list[bytes | None] = [
        b"\x00" + (17).to_bytes(4, "big") + encoded(V1, {"carrier": "AA"}),
        b"\x00" + (19).to_bytes(4, "big") + b"\x00",
        b"\x00\x00",
    ]
    rows = run(value_format, values)
    assert rows[0] == ({"carrier": "AA", "delay": None}, None)
    assert rows[1][1] == "the value is Avro of the schema with id 19, which was not given"
    assert "does not begin with 0 and a schema id" in (rows[2][1] or "")


def test_logical_types_unions_and_nesting() -> None:
    plain = {
        "type": "record",
        "name": "All",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
            },
            {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "tags", "type": {"type": "map", "values": "long"}},
            {
                "name": "path",
                "type": {
                    "type": "array",
                    "items": {"type": "record", "name": "P", "fields": [{"name": "x", "type": "double"}]},
                },
            },
            {"name": "number", "type": ["null", "int", "double"]},
            {"name": "either", "type": ["null", "string", "long", "P"]},
            {"name": "nothing", "type": "null"},
        ],
    }
    record = {
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("12.30"),
        "time": datetime(2026, 1, 1, 1, 0, 0, 5000).time(),
        "kind": "B",
        "tags": {"a": 1},
        "path": [{"x": 1.5}],
        "number": 3,
        "either": {"x": 2.5},
        "nothing": None,
    }
    (row, why), (second, _) = run(
        avro(schema(plain)),
        [encoded(plain, record), encoded(plain, record | {"either": "text", "number": None})],
    )
    assert why is None
    assert row["at"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert (row["day"], row["price"], row["time"]) == (date(2026, 1, 2), Decimal("12.30"), 3_600_005)
    assert (row["kind"], row["tags"], row["path"], row["number"]) == ("B", [("a", 1)], [{"x": 1.5}], 3.0)
    assert row["either"] == {"member0": None, "member1": None, "member2": {"x": 2.5}}
    assert second["either"]["member0"] == "text"
    assert "nothing" not in row


@pytest.mark.parametrize(
    ("invalid", "value"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5}, b"\x04\xd2"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": -1}, b"\x04\xd2"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, b"\x04\xd2"),
        ({"type": "bytes", "logicalType": "decimal", "precision": "6"}, b"\x04\xd2"),
        ({"type": "bytes", "logicalType": "decimal"}, b"\x04\xd2"),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5}, b"\x04\xd2"),
        ({"type": "string", "logicalType": "decimal", "precision": 5}, "text"),
        ({"type": "string", "logicalType": "date"}, "text"),
        ({"type": "int", "logicalType": "timestamp-millis"}, 5),
        ({"type": "long", "logicalType": "time-millis"}, 5),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, bytes(range(16))),
    ],
)
def test_a_value_of_an_invalid_logical_type_is_that_of_its_underlying_type(invalid: Any, value: Any) -> None:
    """A decimal with more decimal places than digits made the whole schema unusable."""
    plain_type = {name: each for name, each in invalid.items() if name in ("type", "name", "size")}
    fields = [
        {"name": "one", "type": plain_type},
        {"name": "list", "type": {"type": "array", "items": "int"}},
    ]
    data = encoded({"type": "record", "name": "R", "fields": fields}, {"one": value, "list": [1]})
    fields[0]["type"] = invalid
    given = schema({"type": "record", "name": "R", "fields": fields})
    assert run(avro(given), [data]) == [({"one": value, "list": [1]}, None)]
    assert fingerprint_of(given) == fingerprint_of(
        schema({"type": "record", "name": "R", "fields": [fields[0] | {"type": plain_type}, fields[1]]})
    )


def test_two_records_in_a_union_are_distinguished() -> None:
    def record(name: str) -> Any:
        return {
            "type": "record",
            "name": name,
            "fields": [{"name": "x", "type": "int"}, {"name": name, "type": "int"}],
        }

    plain = {"type": "record", "name": "R", "fields": [{"name": "u", "type": [record("One"), record("Two")]}]}
    ((row, why),) = run(avro(schema(plain)), [encoded(plain, {"u": ("Two", {"x": 1, "Two": 2})})])
    assert why is None
    assert row["u"] == {"member0": None, "member1": {"x": 1, "Two": 2}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "Avro schema s.avsc: Expecting"),
        ('"int"', "is not a record"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "nope"}]}', "nope"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "kafka_key", "type": "int"}]}',
            "reserved for the archive",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}',
            "within itself",
        ),
    ],
)
def test_schemas_that_cannot_be_columns_are_reported_in_one_sentence(text: str, expected: str) -> None:
    with pytest.raises(PipelineError, match=r"Avro schema s\.avsc") as caught:
        AvroReader(avro(NamedSchema("s.avsc", text)))
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 400
