"""A registry that answers, refuses, lies, or is silent. It is a real HTTP server."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from tidelog.console.core.avro_reader import AvroReader
from tidelog.console.core.decoded import Decode, Decoded, SchemaError
from tidelog.console.record_decoder import MAX_LOOKUPS, FileSchema, RecordDecoder
from tidelog.console.schema_registry import (
    LOOKUP_TIMEOUT_MS,
    MAX_REQUESTS,
    MAX_RESPONSE_BYTES,
    MAX_SCHEMAS,
    RETRY_MS,
    RegistryError,
    SchemaRegistry,
)
from tidelog.kernel.clock import ManualClock, SystemClock

SEAT = '{"type": "record", "name": "air.Seat", "fields": [{"name": "row", "type": "int"}]}'
FLIGHT = '{"type": "record", "name": "air.Flight", "fields": [{"name": "seat", "type": "air.Seat"}]}'


class Registry:
    """A registry whose answers are set by path: a JSON object, bytes, or a status."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                answer = registry.answers.get(self.path, 404)
                status = answer if isinstance(answer, int) else 200
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.name = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.name}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def registry() -> Iterator[Registry]:
    served = Registry()
    yield served
    served.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def decoding(registry: Registry, clock: ManualClock, file: FileSchema | None = None) -> Decode:
    files = {} if file is None else {"t-value": file}
    decode = RecordDecoder(files, SchemaRegistry(registry.url, clock.monotonic_ms)).of_topic("t")
    assert decode is not None
    return decode


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + body


def test_avro_is_decoded_and_a_schema_is_fetched_once(registry: Registry, clock: ManualClock) -> None:
    registry.answers["/schemas/ids/7"] = {"schema": SEAT}
    decode = decoding(registry, clock)
    for is_key in (True, False):
        assert decode(is_key, framed(7, b"\x04")) == Decoded("avro", {"row": 2}, "The schema has the id 7.")
    assert decode(False, b"text") is None
    assert decode(False, framed(7, b"\x04\x04")) == Decoded(
        None, None, "It does not fit schema 7: 1 bytes are left over."
    )
    assert registry.asked == ["/schemas/ids/7"]


def test_references_of_avro_are_fetched(registry: Registry, clock: ManualClock) -> None:
    registry.answers["/schemas/ids/8"] = {
        "schema": FLIGHT,
        "references": [{"name": "air.Seat", "subject": "air/seat", "version": 3}],
    }
    registry.answers["/subjects/air%2Fseat/versions/3"] = {"schema": SEAT}
    found = decoding(registry, clock)(False, framed(8, b"\x04"))
    assert found is not None and found.value == {"seat": {"row": 2}}


def test_protobuf_and_its_references_are_fetched_serialized(registry: Registry, clock: ManualClock) -> None:
    inner = descriptor_pb2.FileDescriptorProto(package="air", syntax="proto3", name="default")
    inner.message_type.add(name="Seat").field.add(name="row", number=1, type=5, label=1)
    outer = descriptor_pb2.FileDescriptorProto(package="air", syntax="proto3", dependency=["seat.proto"])
    outer.dependency.append("google/protobuf/timestamp.proto")
    flight = outer.message_type.add(name="Flight")
    flight.field.add(name="seat", number=1, type=11, type_name=".air.Seat", label=1)
    flight.field.add(name="at", number=2, type=11, type_name=".google.protobuf.Timestamp", label=1)
    references = [{"name": "seat.proto", "subject": "seat", "version": 1}]
    registry.answers["/schemas/ids/9"] = {"schema": "syntax ...", "schemaType": "PROTOBUF"}
    registry.answers["/schemas/ids/9?format=serialized"] = {
        "schema": base64.b64encode(outer.SerializeToString()).decode(),
        "schemaType": "PROTOBUF",
        "references": references,
    }
    registry.answers["/subjects/seat/versions/1?format=serialized"] = {
        "schema": base64.b64encode(inner.SerializeToString()).decode()
    }
    found = decoding(registry, clock)(False, framed(9, b"\0\x0a\x02\x08\x05\x12\x00"))
    assert found == Decoded(
        "protobuf",
        {"seat": {"row": 5}, "at": "1970-01-01T00:00:00Z"},
        "The message is air.Flight of the schema with the id 9.",
    )


def test_json_needs_no_decoding(registry: Registry, clock: ManualClock) -> None:
    registry.answers["/schemas/ids/7"] = {"schema": "{}", "schemaType": "JSON"}
    assert decoding(registry, clock)(False, framed(7, b"{}")) is None


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (404, "has nothing at /schemas/ids/7."),
        (500, "refuses /schemas/ids/7 with status 500."),
        (302, "refuses /schemas/ids/7 with status 302."),
        (b"<html>", "is not usable: the answer is not JSON with a schema."),
        ([], "is not usable: the answer is not JSON with a schema."),
        (b" " * (MAX_RESPONSE_BYTES + 1), "is larger than 512 KiB."),
        ({"schema": "{"}, "is not usable: it is not an Avro schema"),
        ({"schema": "x", "schemaType": "XML"}, "has the type XML, which the console does not decode."),
        ({"schema": FLIGHT, "references": [{}]}, "a reference lacks its name, subject or version."),
        ({"schema": FLIGHT, "references": 1}, "its references are no list."),
    ],
)
def test_refusals_are_sentences_and_are_not_repeated_at_once(
    registry: Registry, clock: ManualClock, answer: Any, problem: str
) -> None:
    registry.answers["/schemas/ids/7"] = answer
    decode = decoding(registry, clock)
    for _ in range(3):
        found = decode(False, framed(7, b"\x04"))
        assert found is not None and found.kind is None
        assert problem in found.note and registry.name in found.note
    assert registry.asked == ["/schemas/ids/7"]
    registry.answers["/schemas/ids/7"] = {"schema": SEAT}
    clock.advance(RETRY_MS)
    found = decode(False, framed(7, b"\x04"))
    assert found is not None and found.value == {"row": 2}


def test_source_text_of_protobuf_is_refused(registry: Registry, clock: ManualClock) -> None:
    for path in ("/schemas/ids/9", "/schemas/ids/9?format=serialized"):
        registry.answers[path] = {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"}
    found = decoding(registry, clock)(False, framed(9, b"\0"))
    assert found is not None and "Give its descriptor set in --schema-dir." in found.note


def test_a_circle_of_references_ends(registry: Registry, clock: ManualClock) -> None:
    circle = {"schema": SEAT, "references": [{"name": "x", "subject": "x", "version": 1}]}
    registry.answers["/schemas/ids/7"] = circle
    registry.answers["/subjects/x/versions/1"] = circle
    assert decoding(registry, clock)(False, framed(7, b"\x04")) is not None
    assert len(registry.asked) == 2


def test_a_schema_with_too_many_references_is_refused(registry: Registry, clock: ManualClock) -> None:
    names = [f"n{number}" for number in range(2 * MAX_REQUESTS)]
    references = [{"name": name, "subject": name, "version": 1} for name in names]
    registry.answers["/schemas/ids/7"] = {"schema": SEAT, "references": references}
    registry.answers.update({f"/subjects/{name}/versions/1": {"schema": '"int"'} for name in names})
    found = decoding(registry, clock)(False, framed(7, b"\x04"))
    assert found is not None and f"needs more than {MAX_REQUESTS} requests or 3 s." in found.note
    assert len(registry.asked) == MAX_REQUESTS


def test_one_search_looks_up_only_some_schemas(registry: Registry, clock: ManualClock) -> None:
    decode = decoding(registry, clock)
    notes = [decode(False, framed(number, b"\x04")) for number in range(5_000)]
    assert len(registry.asked) == MAX_LOOKUPS
    last = notes[-1]
    assert last is not None and "a search looks up at most 20 schemas." in last.note


def test_only_some_schemas_are_kept(registry: Registry, clock: ManualClock) -> None:
    schemas = SchemaRegistry(registry.url, clock.monotonic_ms)
    for number in range(MAX_SCHEMAS + 1):
        registry.answers[f"/schemas/ids/{number}"] = {"schema": SEAT}
        schemas.reader(number)
    assert schemas.knows(MAX_SCHEMAS) and schemas.knows(1)
    assert not schemas.knows(0)


def test_the_file_of_the_topic_serves_where_the_registry_does_not(
    registry: Registry, clock: ManualClock
) -> None:
    decode = decoding(registry, clock, FileSchema("t-value.avsc", AvroReader(SEAT)))
    assert decode(False, framed(7, b"\x04")) == Decoded("avro", {"row": 2}, "The schema is t-value.avsc.")
    assert decode(False, b"\x04") == Decoded("avro", {"row": 2}, "The schema is t-value.avsc.")


def test_a_registry_that_does_not_listen_is_asked_once_for_all_schemas(clock: ManualClock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    schemas = SchemaRegistry(f"http://127.0.0.1:{port}", clock.monotonic_ms)
    for number in (1, 2):
        with pytest.raises(RegistryError) as refused:
            schemas.reader(number)
        assert str(refused.value) == (
            f"The schema registry 127.0.0.1:{port} does not answer: Connection refused."
        )
    assert schemas.knows(3)
    clock.advance(RETRY_MS)
    assert not schemas.knows(3)


def test_a_registry_that_sends_one_byte_at_a_time_is_left(clock: ManualClock) -> None:
    """A socket's own timeout begins again with each byte."""
    stopping = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                while not stopping.wait(0.2):
                    connection.send(b"H")
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        schemas = SchemaRegistry(f"http://127.0.0.1:{listener.getsockname()[1]}", SystemClock().monotonic_ms)
        begin_s = time.monotonic()
        with pytest.raises(RegistryError, match="does not answer"):
            schemas.reader(1)
        assert time.monotonic() - begin_s < 2 * LOOKUP_TIMEOUT_MS / 1000
        stopping.set()
        thread.join()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("127.0.0.1:8081", "is not an http or https URL"),
        ("ftp://registry", "is not an http or https URL"),
        ("file:///etc/passwd", "is not an http or https URL"),
        ("http://", "is not an http or https URL"),
        ("http://host:99999", "is not an http or https URL"),
        ("http://ada:secret@host", "may have neither a login"),
        ("http://host?x=1", "may have neither a login, a query nor a fragment"),
    ],
)
def test_other_urls_are_refused(url: str, problem: str, clock: ManualClock) -> None:
    with pytest.raises(SchemaError, match=problem) as refused:
        SchemaRegistry(url, clock.monotonic_ms)
    assert "secret" not in str(refused.value)
