"""kio, another codec that is generated from the same protocol, reads our bytes, and we read its bytes, for
every API in every version.

Values are compared field by field in the order on the wire, so that two swapped fields of the same type are
detected. Where kio converts numbers to timestamps, durations and error codes, the test converts them back.
"""

from __future__ import annotations

import io
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from kio.index import load_entity_schema, load_payload_module
from kio.schema.request_header.v1.header import RequestHeader as ShortRequestHeader
from kio.schema.request_header.v2.header import RequestHeader as LongRequestHeader
from kio.schema.response_header.v0.header import ResponseHeader as ShortResponseHeader
from kio.schema.response_header.v1.header import ResponseHeader as LongResponseHeader
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from brokerlab.messages import messages_of, record_classes, versions_of
from tidelog.wire import codec, headers
from tidelog.wire.api_keys import API_SPECS, ApiKey
from tidelog.wire.schema import ZERO_UUID, Message, Struct

EXAMPLES = 6
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

UNKNOWN_TO_KIO = {
    ApiKey.API_VERSIONS: 5,
    ApiKey.TXN_OFFSET_COMMIT: 6,
    ApiKey.DELETE_GROUPS: 3,
    ApiKey.STREAMS_GROUP_HEARTBEAT: 1,
    ApiKey.STREAMS_GROUP_DESCRIBE: 1,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: 0,
    ApiKey.UNREGISTER_CONTROLLER: 0,
}
"""The versions that are new in Kafka 4.4, by their first number. kio 0.6.5 has those of Kafka 4.3. For these,
`test_oracle_kafka.py` is the only oracle.
"""


def _versions(key: int) -> range:
    """Returns the versions of an API that kio knows."""
    spec = API_SPECS[key]
    return range(spec.min_version, UNKNOWN_TO_KIO.get(ApiKey(key), spec.max_version + 1))


API_VERSIONS = [
    pytest.param(key, version, kind, id=f"{spec.name}{kind.name.capitalize()}-{version}")
    for key, spec in API_SPECS.items()
    for version in _versions(key)
    for kind in (EntityType.request, EntityType.response)
]
DATA_RECORDS = [m for m in record_classes() if not hasattr(m, "API_KEY")]


def _ours(value: Any, version: int) -> Any:
    """Returns nested lists of plain values in the order on the wire. A tagged struct that is not set equals
    one with defaults.
    """
    if isinstance(value, list):
        return [_ours(element, version) for element in value]
    if isinstance(value, memoryview):
        return bytes(value)
    if hasattr(value, "FIELDS"):
        known = [field for field in value.FIELDS if field.is_in(version) and not field.is_own]
        return [_ours_field(value, field, version) for field in known]
    return value


def _ours_field(holder: Struct, field: Any, version: int) -> Any:
    value = getattr(holder, field.name)
    if value is None and field.is_tagged_in(version) and not isinstance(field.kind, (str, tuple)):
        value = field.kind()
    return _ours(value, version)


def _theirs(value: Any, kafka_type: str = "") -> Any:
    if isinstance(value, tuple):
        return [_theirs(element, kafka_type) for element in value]
    if hasattr(value, "__dataclass_fields__"):
        return [_theirs(getattr(value, f.name), f.metadata.get("kafka_type", "")) for f in fields(value)]
    if kafka_type == "uuid":
        return ZERO_UUID if value is None else UUID(int=value.int)
    if kafka_type == "datetime_i64" and value is None:
        return -1
    if isinstance(value, datetime):
        return round((value - EPOCH) / MILLISECOND)
    if isinstance(value, timedelta):
        return round(value / MILLISECOND)
    return value.value if isinstance(value, Enum) else value


def _written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def _agree(message: type[Message], version: int, theirs: type[Any]) -> None:
    encode, decode, read = (
        codec.encoder(message, version),
        codec.decoder(message, version),
        entity_reader(theirs),
    )

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(messages_of(message, version, tame=True))
    def check(value: Any) -> None:
        body = b"".join(encode(value))
        entity, size = read(body, 0)
        assert size == len(body)
        assert _theirs(entity) == _ours(value, version)
        written = _written(entity)
        decoded, end = decode(written, 0)
        assert end == len(written)
        assert _ours(decoded, version) == _ours(value, version)
        assert written == body

    check()


@pytest.mark.parametrize(("api_key", "version", "kind"), API_VERSIONS)
def test_payload(api_key: int, version: int, kind: Any) -> None:
    message = (codec.request_class if kind is EntityType.request else codec.response_class)(api_key)
    module = load_payload_module(api_key, version, kind)
    _agree(message, version, getattr(module, message.__name__))


@pytest.mark.parametrize(("message", "version"), [(m, v) for m in DATA_RECORDS for v in versions_of(m)])
def test_data_record(message: type[Message], version: int) -> None:
    name = "".join("_" + c.lower() if c.isupper() else c for c in message.__name__).lstrip("_")
    _agree(message, version, load_entity_schema(name, version, EntityType.data))


@pytest.mark.parametrize("kind", [EntityType.request, EntityType.response])
def test_headers(kind: Any) -> None:
    for key, spec in API_SPECS.items():
        for version in _versions(key):
            theirs = load_payload_module(key, version, kind)
            header = getattr(theirs, spec.name + kind.name.capitalize()).__header_schema__
            if kind is EntityType.request:
                expected: Any = (
                    LongRequestHeader if spec.request_header_version(version) == 2 else ShortRequestHeader
                )
                assert header is expected
                _request_header_agrees(key, version, header)
            else:
                expected = (
                    LongResponseHeader if spec.response_header_version(version) == 1 else ShortResponseHeader
                )
                assert header is expected
                made = headers.response_begin(key, version).pack(0, 77)[headers.SIZE_BYTES :]
                assert made == _written(header(correlation_id=77))
                assert headers.decode_response_header(made, 0, key, version) == (77, len(made))


def _request_header_agrees(key: int, version: int, header: Any) -> None:
    for client_id in (None, "", "tide-é"):
        theirs = header(
            request_api_key=key, request_api_version=version, correlation_id=-5, client_id=client_id
        )
        made = headers.encode_request_header(key, version, -5, client_id)
        assert made == _written(theirs)
        assert headers.decode_request_header(b"__" + made, 2) == (key, version, -5, client_id, 2 + len(made))
