"""Avro values: the reader agrees with fastavro, and hostile bytes cost little."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.console.core.avro_reader import AvroReader
from tidelog.console.core.decoded import MAX_DECODED_BYTES, MAX_VALUES, MisfitError, SchemaError
from tidelog.records.varint import append_varint

LIST = {"type": "record", "name": "List", "fields": [{"name": "next", "type": ["null", "List"]}]}
PROMPT_S = 5.0


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def reader(schema: Any) -> AvroReader:
    return AvroReader(json.dumps(schema))


LEAVES = st.one_of(
    st.tuples(st.just("null"), st.none()),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("int"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("long"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("double"), st.floats(allow_nan=False)),
    st.tuples(st.just("float"), st.floats(allow_nan=False, width=32)),
    st.tuples(st.just("string"), st.text()),
    st.tuples(st.just("bytes"), st.binary()),
)
NAMES = st.from_regex(r"\A[a-z]{1,6}\Z")


@st.composite
def _records(draw: st.DrawFn, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    fields = draw(st.dictionaries(NAMES, inner, max_size=4))
    name = f"R{draw(st.uuids()).hex}"
    kinds = [{"name": field, "type": kind} for field, (kind, _) in fields.items()]
    return {"type": "record", "name": name, "fields": kinds}, {
        field: value for field, (_, value) in fields.items()
    }


def _containers(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    return st.one_of(
        _records(inner),
        st.tuples(inner, st.integers(0, 3)).map(
            lambda pair: ({"type": "array", "items": pair[0][0]}, [pair[0][1]] * pair[1])
        ),
        st.tuples(inner, NAMES).map(
            lambda pair: ({"type": "map", "values": pair[0][0]}, {pair[1]: pair[0][1]})
        ),
    )


SCHEMAS_AND_VALUES = st.recursive(LEAVES, _containers, max_leaves=10)


def as_json(value: Any) -> Any:
    """Returns what fastavro read in the form of the console."""
    if isinstance(value, bytes):
        return value.decode("iso-8859-1")
    if isinstance(value, list):
        return [as_json(each) for each in value]
    if isinstance(value, dict):
        return {name: as_json(each) for name, each in value.items()}
    return value


@given(SCHEMAS_AND_VALUES)
def test_it_reads_what_fastavro_reads(given_pair: tuple[Any, Any]) -> None:
    schema, value = given_pair
    data = encoded(schema, value)
    found = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema), None)
    assert reader(schema).read(data) == as_json(found)
    assert reader(schema).read(b"frame" + data, 5) == as_json(found)


@given(SCHEMAS_AND_VALUES, st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(given_pair: tuple[Any, Any], data: bytes) -> None:
    try:
        found = reader(given_pair[0]).read(data)
    except MisfitError:
        return
    json.dumps(found)


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, b"\xff\x85", "-1.23"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, b"\x05", "0.05"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 6}, b"\x30\x39", "12345"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5}, b"0", "0"),
        ({"type": "bytes", "logicalType": "decimal"}, b"0", "0"),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 9}, b"ab", "ab"),
        (
            {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4},
            b"\x04\xd2",
            "1234",
        ),
        ({"type": "int", "logicalType": "date"}, 20_000, "2024-10-04"),
        ({"type": "int", "logicalType": "time-millis"}, 3_723_004, "01:02:03.004"),
        ({"type": "long", "logicalType": "time-micros"}, -1, -1),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        ({"type": "long", "logicalType": "timestamp-millis"}, -1, "1969-12-31T23:59:59.999Z"),
        ({"type": "long", "logicalType": "timestamp-micros"}, 2**62, 2**62),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, 1, "1970-01-01T00:00:00.000001"),
        ({"type": "long", "logicalType": "of-tomorrow"}, 7, 7),
        ({"type": "fixed", "name": "F", "size": 2}, b"\x00\xff", "\x00\xff"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, 1, "B"),
    ],
)
def test_logical_and_named_types(schema: Any, value: Any, text: Any) -> None:
    data = bytearray()
    if isinstance(value, int):
        append_varint(data, value)
    else:
        if schema["type"] == "bytes":
            append_varint(data, len(value))
        data += value
    assert reader(schema).read(bytes(data)) == text


def test_a_schema_may_contain_itself() -> None:
    assert reader(LIST).read(b"\x02\x02\x00") == {"next": {"next": {"next": None}}}


def test_references_have_the_types_that_a_schema_uses() -> None:
    seat = {"type": "record", "name": "air.Seat", "fields": [{"name": "row", "type": "int"}]}
    flight = {"type": "record", "name": "air.Flight", "fields": [{"name": "seat", "type": "air.Seat"}]}
    assert AvroReader(json.dumps(flight), [json.dumps(seat)]).read(b"\x04") == {"seat": {"row": 2}}
    with pytest.raises(SchemaError, match=r"it has no type air\.Seat"):
        reader(flight)


def test_the_fingerprint_of_single_object_encoding_is_recognized() -> None:
    data = b"\xc3\x01\x8f\x5c\x39\x3f\x1a\xd5\x75\x72"  # the specification's own example: "int"
    assert not reader("long").begins_single_object(data)
    fingerprint = fastavro.schema.fingerprint('"int"', "CRC-64-AVRO")
    assert reader("int").begins_single_object(b"\xc3\x01" + bytes.fromhex(fingerprint) + b"\x02")


@pytest.mark.parametrize(
    ("schema", "data", "problem"),
    [
        ("int", b"", "it ends too early"),
        ("int", b"\x02\x02", "1 bytes are left over"),
        ("double", b"\x02\x02", "it ends too early"),
        ("string", b"\x09abc", "a length of -5 exceeds"),
        ("string", b"\x64abc", "a length of 50 exceeds"),
        ("string", b"\x02\xff", "a string is not UTF-8"),
        ("boolean", b"\x02", "a boolean is 2"),
        (["null", "int"], b"\x01", "a union of 2 types has no type -1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "an enum of 1 symbols has no symbol -1"),
        (LIST, b"\x02" * MAX_DECODED_BYTES, "it is nested more than 64 deep"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]},
            b"",
            "it is nested more than 64 deep",
        ),
        (
            {"type": "array", "items": "null"},
            b"\xfe\xff\xff\xff\xff\xff\xff\x7f\x00",
            "more than 100,000 fields",
        ),
        (
            {"type": "array", "items": {"type": "array", "items": "null"}},
            b"\xc0\x9a\x0c" + b"\xc0\x9a\x0c\x00" * 1_000,
            "more than 100,000 fields",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9},
            b"\x80\x80\x40" + b"\x7f" * 524_288,
            "a decimal has more than 1024 bytes",
        ),
    ],
)
def test_hostile_bytes_are_refused_soon(schema: Any, data: bytes, problem: str) -> None:
    begin_s = time.monotonic()
    with pytest.raises(MisfitError, match=problem):
        reader(schema).read(data)
    assert time.monotonic() - begin_s < PROMPT_S


def test_a_value_of_the_largest_size_is_read_within_the_limits() -> None:
    data = bytearray()
    append_varint(data, MAX_VALUES)
    data += b"\x02" * MAX_VALUES + b"\x00"
    assert reader({"type": "array", "items": "int"}).read(bytes(data)) == [1] * MAX_VALUES


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "it is not an Avro schema"),
        ('{"type": "rec"}', "it has no type"),
        ("5", "it is not an Avro schema"),
        ('{"type": "array"}', "it is not an Avro schema"),
        ('{"type": "fixed", "name": "f", "size": "a"}', "a fixed type has no size a"),
        ('["null", ["int"]]', "a union contains a union"),
        ('{"type": "array", "items": ' * 70 + '"int"' + "}" * 70, "it is nested more than 64 deep"),
        ('{"type": "array", "items": ' * 9_000 + '"int"' + "}" * 9_000, "it is nested too deep"),
    ],
)
def test_unusable_schemas_are_refused(text: str, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        AvroReader(text)
