"""Schemas of a directory, by the names of topics or by assignment."""

from __future__ import annotations

import json
from pathlib import Path

import fastavro
import pytest
from google.protobuf import descriptor_pb2

from tidelog.console.core.decoded import Decoded, SchemaError
from tidelog.console.record_decoder import MAX_SCHEMA_BYTES, RecordDecoder, load_schemas

SEAT = '{"type": "record", "name": "Seat", "fields": [{"name": "row", "type": "int"}]}'


def shop() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    for name in ("Order", "Refund"):
        file.message_type.add(name=name).field.add(name="id", number=1, type=13, label=1)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "seats-value.avsc").write_text(SEAT)
    (tmp_path / "orders-key.avsc").write_text('"string"')
    (tmp_path / "orders-value.desc").write_bytes(shop())
    (tmp_path / "README.md").write_text("These are schemas.")
    (tmp_path / "shop.desc").write_bytes(shop())
    return tmp_path


def test_files_belong_to_keys_and_values_by_their_names(directory: Path) -> None:
    decoder = RecordDecoder(load_schemas(directory), None)
    assert decoder.of_topic("nothing") is None
    seats, orders = decoder.of_topic("seats"), decoder.of_topic("orders")
    assert seats is not None and orders is not None
    assert seats(False, b"\x0e") == Decoded("avro", {"row": 7}, "The schema is seats-value.avsc.")
    assert seats(True, b"\x0e") is None
    assert orders(True, b"\x04ab") == Decoded("avro", "ab", "The schema is orders-key.avsc.")
    order = Decoded("protobuf", {"id": 5}, "The message is shop.Order of orders-value.desc.")
    assert orders(False, b"\x08\x05") == order
    assert orders(False, b"\0\0\0\0\1\0\x08\x05") == order


def test_avro_is_read_with_and_without_what_serializers_write_before_it(directory: Path) -> None:
    decode = RecordDecoder(load_schemas(directory), None).of_topic("seats")
    assert decode is not None
    canonical = fastavro.schema.to_parsing_canonical_form(json.loads(SEAT))
    fingerprint = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
    for data in (b"\x0e", b"\0\0\0\0\1\x0e", b"\xc3\x01" + fingerprint + b"\x0e"):
        found = decode(False, data)
        assert found is not None and found.value == {"row": 7}
    assert decode(False, b"\0") == Decoded("avro", {"row": 0}, "The schema is seats-value.avsc.")
    wrong = decode(False, b"\0\0\0\0\1\x0e\x0e")
    assert wrong == Decoded(None, None, "It does not fit seats-value.avsc: 1 bytes are left over.")


def test_large_values_are_not_decoded(directory: Path) -> None:
    decode = RecordDecoder(load_schemas(directory), None).of_topic("seats")
    assert decode is not None
    assert decode(False, b"x" * (1024 * 1024 + 1)) == Decoded(
        None, None, "The console decodes at most 1,024 KiB."
    )


def test_assignments_precede_names_and_choose_the_message(directory: Path) -> None:
    assigned = ["orders-value=shop.desc:shop.Refund", "returns-value=shop.desc"]
    decoder = RecordDecoder(load_schemas(directory, assigned), None)
    for topic, message in (("orders", "Refund"), ("returns", "Order")):
        decode = decoder.of_topic(topic)
        assert decode is not None
        assert decode(False, b"\x08\x05") == Decoded(
            "protobuf", {"id": 5}, f"The message is shop.{message} of shop.desc."
        )


@pytest.mark.parametrize(
    ("name", "content", "assigned", "problem"),
    [
        ("a-value.avsc", b"{", [], "a-value.avsc: it is not an Avro schema"),
        ("a-value.avsc", b"\xff", [], "a-value.avsc: it is not UTF-8 text"),
        ("a-value.desc", b"\xff", [], "a-value.desc: it is not a Protobuf descriptor set"),
        ("a-value.avsc", b" " * (MAX_SCHEMA_BYTES + 1), [], "a-value.avsc is larger than 1024 KiB"),
        ("a-value.proto", b"", [], "protoc --include_imports -o a-value.desc a-value.proto"),
        ("orders-value.pb", shop(), [], "orders-value.pb and orders-value.desc are for the same bytes"),
        ("a.avsc", b'"int"', ["orders=a.avsc"], "orders=a.avsc is not TOPIC-key=FILE or TOPIC-value=FILE"),
        ("a.avsc", b'"int"', ["orders-key=a.avsc:M"], "a.avsc: an Avro schema has no message to choose"),
        ("a.avsc", b'"int"', ["orders-key=b.avsc"], "b.avsc: No such file or directory"),
        ("a.avsc", b'"int"', ["orders-value=shop.desc:M"], "shop.desc: it has no message M; it has Order"),
    ],
)
def test_unusable_files_are_named(
    directory: Path, name: str, content: bytes, assigned: list[str], problem: str
) -> None:
    (directory / name).write_bytes(content)
    with pytest.raises(SchemaError) as refused:
        load_schemas(directory, assigned)
    assert problem in str(refused.value)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="missing: No such file or directory"):
        load_schemas(tmp_path / "missing")
