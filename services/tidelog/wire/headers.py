"""Headers of requests (versions 1 and 2) and of responses (0 and 1), as in Kafka's definitions RequestHeader
and ResponseHeader.
"""

from __future__ import annotations

import struct
from typing import Final

from tidelog.wire.api_keys import API_SPECS, api_spec
from tidelog.wire.malformed import MalformedMessageError
from tidelog.wire.primitives import SHORT_TEXT, TEXT_READERS, skip_tagged_fields
from tidelog.wire.schema import Buffer

_REQUEST = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">i")
SIZE_BYTES: Final = 4
"""The size of the field that precedes each request and response and contains its size. The field does not
count itself.
"""
_BEGIN = struct.Struct(">ii")
_BEGIN_FLEXIBLE = struct.Struct(">iix")
_read_request = _REQUEST.unpack_from

_FLEXIBLE_FROM = {spec.api_key.value: spec.flexible_from for spec in API_SPECS.values()}
_LONG_RESPONSE_FROM = {
    spec.api_key.value: next(
        (v for v in range(spec.max_version + 1) if spec.response_header_version(v) == 1), 1 << 16
    )
    for spec in API_SPECS.values()
}
_NEVER: Final = 1 << 16


def decode_request_header(buffer: Buffer, position: int) -> tuple[int, int, int, str | None, int]:
    """Returns (api_key, api_version, correlation_id, client_id, position of the body).

    The header of an unknown API key is read in the short form. The header of an unknown version of a known
    API is read as that of its nearest known version, because clients send it so when they ask for a newer
    ApiVersions. Raises MalformedMessageError.
    """
    try:
        api_key, api_version, correlation_id, length = _read_request(buffer, position)
        start = position + 10
        body = start + length
        client_id: str | None
        if 0 <= length < SHORT_TEXT:
            client_id = TEXT_READERS[length](buffer, start)[0].decode()
        elif length >= 0:
            if body > len(buffer):
                raise MalformedMessageError(
                    f"request header: a client id of {length} bytes, but only {len(buffer) - start} are left"
                )
            client_id = str(buffer[start:body], "utf-8")
        else:
            client_id = None
            body = start
        if api_version >= _FLEXIBLE_FROM.get(api_key, _NEVER):
            tags = buffer[body]
            body += 1
            if tags:
                body = skip_tagged_fields(buffer, body, tags)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessageError(f"request header: {error}") from error
    return api_key, api_version, correlation_id, client_id, body


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Returns the bytes that a client sends before the body."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\0" if api_spec(api_key).request_header_version(api_version) == 2 else b""
    return _REQUEST.pack(api_key, api_version, correlation_id, length) + name + tags


def response_begin(api_key: int, api_version: int) -> struct.Struct:
    """Returns the struct that packs the size of a response (without SIZE_BYTES) and a correlation id into its
    header.
    """
    return _BEGIN_FLEXIBLE if api_version >= _LONG_RESPONSE_FROM.get(api_key, _NEVER) else _BEGIN


def decode_response_header(buffer: Buffer, position: int, api_key: int, api_version: int) -> tuple[int, int]:
    """Returns (correlation_id, position of the body). Raises MalformedMessageError."""
    try:
        (correlation_id,) = _RESPONSE.unpack_from(buffer, position)
        position += 4
        if api_version >= _LONG_RESPONSE_FROM.get(api_key, _NEVER):
            position = skip_tagged_fields(buffer, position + 1, buffer[position])
    except (struct.error, IndexError) as error:
        raise MalformedMessageError(f"response header: {error}") from error
    return correlation_id, position
