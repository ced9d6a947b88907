"""The Kafka protocol over a plain socket, encoded by `kio` (not by the codec under test), or byte by byte."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import socket
import struct
import typing
from types import TracebackType
from typing import Any

from kio.serial import entity_reader, entity_writer

API_KEYS = {
    "produce": 0,
    "fetch": 1,
    "list_offsets": 2,
    "metadata": 3,
    "offset_commit": 8,
    "find_coordinator": 10,
    "join_group": 11,
    "sync_group": 14,
    "sasl_handshake": 17,
    "sasl_authenticate": 36,
    "describe_delegation_token": 41,
    "expire_delegation_token": 40,
    "renew_delegation_token": 39,
    "create_delegation_token": 38,
    "api_versions": 18,
    "create_topics": 19,
    "delete_topics": 20,
    "delete_records": 21,
    "init_producer_id": 22,
    "offset_for_leader_epoch": 23,
    "describe_acls": 29,
    "create_acls": 30,
    "describe_configs": 32,
    "alter_configs": 33,
    "alter_replica_log_dirs": 34,
    "describe_log_dirs": 35,
    "create_partitions": 37,
    "elect_leaders": 43,
    "incremental_alter_configs": 44,
    "alter_partition_reassignments": 45,
    "list_partition_reassignments": 46,
    "describe_client_quotas": 48,
    "alter_client_quotas": 49,
    "describe_user_scram_credentials": 50,
    "describe_quorum": 55,
    "describe_cluster": 60,
    "describe_producers": 61,
    "list_config_resources": 74,
    "describe_topic_partitions": 75,
}
MAX_FRAME_BYTES = 200 * 1024 * 1024
CLIENT_ID = b"raw-client"


class ConnectionClosedError(ConnectionError):
    """The broker closed the connection instead of answering."""


def _coerced(field: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    """Returns `value` in kio's types: dicts become structs, lists become tuples, milliseconds become
    timedeltas.
    """
    if value is None:
        return None
    kind = field.metadata.get("kafka_type", "")
    if kind.startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    if isinstance(value, list | tuple):
        (element,) = [a for a in typing.get_args(_not_none(hint)) if a is not Ellipsis][:1]
        return tuple(build(element, v) if isinstance(v, dict) else v for v in value)
    if isinstance(value, dict):
        return build(_not_none(hint), value)
    return value


def _not_none(hint: Any) -> Any:
    """Returns X of the type `X | None`."""
    arguments = typing.get_args(hint)
    if type(None) in arguments:
        (only,) = [a for a in arguments if a is not type(None)]
        return only
    return hint


def build(struct_class: Any, values: dict[str, Any]) -> Any:
    """Builds a kio dataclass from nested dicts and lists. Missing fields take the schema's default."""
    hints = typing.get_type_hints(struct_class)
    fields = {f.name: f for f in dataclasses.fields(struct_class)}
    unknown = values.keys() - fields.keys()
    if unknown:
        raise TypeError(f"{struct_class.__name__} has no {sorted(unknown)}, it has {sorted(fields)}")
    return struct_class(
        **{name: _coerced(fields[name], hints[name], value) for name, value in values.items()}
    )


def _schema(api: str, version: int, kind: str) -> Any:
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
    return getattr(module, "".join(part.capitalize() for part in api.split("_")) + kind.capitalize())


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request_header(api_key: int, version: int, correlation_id: int, is_flexible: bool) -> bytes:
    header = struct.pack(">hhih", api_key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    return header + b"\0" if is_flexible else header


def encode_request(api: str, version: int, correlation_id: int, values: dict[str, Any]) -> bytes:
    """Returns a whole frame."""
    schema = _schema(api, version, "request")
    body = io.BytesIO()
    entity_writer(schema)(body, build(schema, values))
    return frame(
        request_header(API_KEYS[api], version, correlation_id, schema.__flexible__) + body.getvalue()
    )


def decode_response(api: str, version: int, payload: bytes) -> tuple[int, Any]:
    """Returns (correlation id, message) of a frame's payload. Raises an error if bytes are left over."""
    schema = _schema(api, version, "response")
    (correlation_id,) = struct.unpack_from(">i", payload)
    has_tagged_header = schema.__flexible__ and api != "api_versions"
    buffer = payload[5 if has_tagged_header else 4 :]
    message, size = entity_reader(schema)(buffer, 0)
    if size != len(buffer):
        raise ValueError(f"{len(buffer) - size} bytes follow the {api} v{version} response")
    return correlation_id, message


def read_frame(connection: socket.socket) -> bytes:
    """Returns the payload of a response. Raises ConnectionClosedError."""
    (size,) = struct.unpack(">i", _read_exactly(connection, 4))
    if not 0 <= size <= MAX_FRAME_BYTES:
        raise ValueError(f"response frame of {size} bytes")
    return _read_exactly(connection, size)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = connection.recv(min(size - len(parts), 1 << 20))
        except (ConnectionResetError, BrokenPipeError) as error:
            raise ConnectionClosedError(str(error)) from error
        if not part:
            raise ConnectionClosedError(f"closed after {len(parts)} of {size} bytes")
        parts += part
    return bytes(parts)


class PayloadClient:
    """Sends the payloads of requests, whatever they contain, from the address `source` of this machine. It
    connects again after the broker has closed its connection.
    """

    def __init__(self, bootstrap: str, timeout_s: float, source: str = "") -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._address = host, int(port)
        self._timeout_s = timeout_s
        self._source = (source, 0) if source else None
        self._socket: socket.socket | None = None

    def ask(self, payload: bytes) -> bytes:
        """Returns the payload of the response. Raises OSError."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, self._timeout_s, self._source)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(frame(payload))
            return read_frame(self._socket)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class RawClient:
    """One connection."""

    def __init__(self, bootstrap: str, timeout_s: float = 15.0) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self._correlation_id = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_frame(self) -> bytes:
        return read_frame(self.socket)

    def send(self, api: str, version: int, **values: Any) -> int:
        """Sends without waiting and returns the correlation id."""
        self._correlation_id += 1
        self.send_bytes(encode_request(api, version, self._correlation_id, values))
        return self._correlation_id

    def receive(self, api: str, version: int) -> tuple[int, Any]:
        return decode_response(api, version, self.read_frame())

    def call(self, api: str, version: int, **values: Any) -> Any:
        sent = self.send(api, version, **values)
        received, message = self.receive(api, version)
        assert received == sent, f"answer to {received}, asked {sent}"
        return message

    def produce(self, topic: str, batch: bytes, *, transactional_id: str | None = None) -> Any:
        """Writes a batch to partition 0 with acks=all, and returns the partition's response."""
        answer = self.call(
            "produce",
            9,
            transactional_id=transactional_id,
            acks=-1,
            timeout=10_000,
            topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
        )
        return answer.responses[0].partition_responses[0]

    def is_closed_by_broker(self, timeout_s: float = 5.0) -> bool:
        """Returns True when the broker has closed the connection, and False if it stays open and silent for
        that long.
        """
        self.socket.settimeout(timeout_s)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def set_quota(bootstrap: str, entity: dict[str, str | None], **values: float | None) -> None:
    """Sets quotas of an entity; None removes one."""
    with RawClient(bootstrap) as raw:
        answer = raw.call(
            "alter_client_quotas",
            1,
            entries=[
                {
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
                    "ops": [
                        {"key": key, "value": value or 0.0, "remove": value is None}
                        for key, value in values.items()
                    ],
                }
            ],
            validate_only=False,
        )
    assert [int(entry.error_code) for entry in answer.entries] == [0]
