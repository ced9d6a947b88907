"""Bytes that are not a message raise MalformedMessageError. They never cause another exception, an endless
loop, or much more memory than the frame has.
"""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerlab.messages import messages_of, payload_classes, record_classes, versions_of
from tidelog.wire import codec, headers, primitives
from tidelog.wire.api_keys import ApiKey, max_elements
from tidelog.wire.malformed import MalformedMessageError, UnsupportedVersionError
from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from tidelog.wire.primitives import MAX_TAGGED_FIELDS
from tidelog.wire.schema import Message

EXAMPLES = 12
_quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
_nasty = st.sampled_from(
    [
        b"\xff" * 4,
        b"\xff\xff\xff\xff\x7f",
        b"\xff\xff\xff\xff\x07",
        b"\x7f\xff\xff\xff",
        b"\x80\0\0\0",
        b"\x80" * 9,
    ]
)
ALL = [*payload_classes(), *record_classes()]


def _decodes(decode: codec.Decoder, buffer: bytes) -> bool:
    try:
        _, end = decode(buffer, 0)
    except MalformedMessageError:
        return False
    assert end <= len(buffer)
    return True


@pytest.mark.parametrize("message", ALL, ids=lambda message: message.__name__)
def test_damaged_messages(message: type[Message]) -> None:
    @_quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(versions_of(message)))
        decode = codec.decoder(message, version)
        body = b"".join(codec.encoder(message, version)(data.draw(messages_of(message, version))))
        assert _decodes(decode, body)
        cut = data.draw(st.integers(0, max(len(body) - 1, 0)))
        if body:
            assert not _decodes(decode, body[:cut])
        put = data.draw(_nasty | st.binary(min_size=1, max_size=4))
        _decodes(decode, body[:cut] + put + body[cut + len(put) :])
        _decodes(decode, body[:cut] + put + body[cut:])

    check()


@pytest.mark.parametrize("message", ALL, ids=lambda message: message.__name__)
@_quick
@given(data=st.data())
def test_random_bytes(message: type[Message], data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions_of(message)))
    _decodes(codec.decoder(message, version), data.draw(st.binary(max_size=60)))


@given(
    st.integers(0, 2**31 - 1) | st.integers(0, 31).map(lambda bits: (1 << bits) - 1), st.binary(max_size=2)
)
def test_varints(value: int, around: bytes) -> None:
    written = primitives.uvarint(value)
    assert len(written) == max(1, -(-value.bit_length() // 7))
    assert primitives.read_uvarint(around + written + around, len(around)) == (
        value,
        len(around) + len(written),
    )
    with pytest.raises(IndexError):
        primitives.read_uvarint(written[:-1], 0)


@given(
    st.binary(max_size=40)
    | st.builds(lambda key, rest: struct.pack(">h", key) + rest, st.integers(-1, 95), st.binary())
)
def test_random_request_headers(buffer: bytes) -> None:
    try:
        *_, body = headers.decode_request_header(buffer, 0)
    except MalformedMessageError:
        return
    assert body <= len(buffer)


@given(st.binary(max_size=12), st.integers(-1, 95), st.integers(-1, 20))
def test_random_response_headers(buffer: bytes, api_key: int, version: int) -> None:
    try:
        _, body = headers.decode_response_header(buffer, 0, api_key, version)
    except MalformedMessageError:
        return
    assert body <= len(buffer)


@pytest.mark.parametrize(
    ("message", "version", "body"),
    [
        (MetadataRequest, 4, struct.pack(">i", 2**31 - 1) + bytes(100)),
        (MetadataRequest, 0, struct.pack(">i", -(2**31)) + bytes(100)),
        (MetadataRequest, 12, b"\xff\xff\xff\xff\x07" + bytes(100)),
        (MetadataRequest, 12, b"\xff\xff\xff\xff\x0f" + bytes(100)),
        (MetadataRequest, 12, b"\x80" * 100),
        (FetchRequest, 4, bytes(17) + struct.pack(">i", 2**30) + bytes(1000)),
        (ApiVersionsRequest, 3, b"\x01\x01\xff\xff\xff\xff\x07" + bytes(50)),
        (ApiVersionsRequest, 3, b"\x01\x01\x01\x05\xff\xff\xff\xff\x07" + bytes(50)),
        (ApiVersionsRequest, 3, b"\xff\xff\x02" + bytes(2**16)),
        (ApiVersionsRequest, 3, b"\x02\xff\x01\0"),
    ],
)
def test_a_false_length_allocates_no_memory(message: type[Message], version: int, body: bytes) -> None:
    decode = codec.decoder(message, version)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError):
            decode(body, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("message", ALL, ids=lambda message: message.__name__)
def test_unknown_tagged_fields_are_skipped(message: type[Message]) -> None:
    for version in versions_of(message):
        if version < message.FLEXIBLE_FROM:
            continue
        decode = codec.decoder(message, version)
        plain = b"".join(codec.encoder(message, version)(message()))
        assert plain[-1] == 0
        one = plain[:-1] + b"\x01\x63\x03abc"
        many = plain[:-1] + b"\x7f" + b"\xe4\x01\x01x" * MAX_TAGGED_FIELDS
        for tagged in (one, many):
            assert decode(tagged, 0) == (decode(plain, 0)[0], len(tagged))
        too_many = plain[:-1] + b"\x80\x01" + b"\xe4\x01\x01x" * (MAX_TAGGED_FIELDS + 1)
        known = any(field.is_tagged_in(version) for field in message.FIELDS)
        if not known:
            with pytest.raises(MalformedMessageError, match="more than 127 unknown tagged fields"):
                decode(too_many, 0)


def test_a_request_of_too_many_elements_is_refused_before_they_are_read() -> None:
    decode = codec.request_decoder(ApiKey.METADATA, 1)
    names = 4_000_000
    limit = max_elements(ApiKey.METADATA)
    frame = struct.pack(">i", names) + bytes(2 * names)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError, match=f"more than {limit} elements"):
            decode(frame, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(("topics", "partitions"), [(1, 5_999), (100, 59)])
def test_elements_of_all_arrays_count_together(topics: int, partitions: int) -> None:
    encode = codec.request_encoder(ApiKey.DELETE_RECORDS, 2)
    decode = codec.request_decoder(ApiKey.DELETE_RECORDS, 2)

    def request(count: int) -> bytes:
        rows = [DeleteRecordsPartition(n, 0) for n in range(count)]
        message = DeleteRecordsRequest([DeleteRecordsTopic("t", rows) for _ in range(topics)], 1)
        return b"".join(encode(message))

    assert len(decode(request(partitions), 0)[0].topics) == topics
    with pytest.raises(MalformedMessageError, match="more than 6000 elements"):
        decode(request(partitions + 1), 0)


def test_unknown_tagged_fields_count_as_elements() -> None:
    limit = max_elements(ApiKey.METADATA)
    topics = limit // 100
    tags = b"\x64" + b"\x63\x00" * 100
    body = b"\x00" * 16 + b"\x02a" + tags  # topic id, name
    decode = codec.request_decoder(ApiKey.METADATA, 12)
    count = bytes((topics + 1 & 127 | 128, topics + 1 >> 7)) if topics + 1 >= 128 else bytes((topics + 1,))
    with pytest.raises(MalformedMessageError, match=f"more than {limit} elements"):
        decode(count + body * topics + b"\0\0\0", 0)


@pytest.mark.parametrize("version", [-1, 0, 2, 14, 32767])
def test_versions_that_are_not_served(version: int) -> None:
    for make in (
        codec.request_decoder,
        codec.request_encoder,
        codec.response_decoder,
        codec.response_encoder,
    ):
        with pytest.raises(UnsupportedVersionError, match="Produce"):
            make(0, version)


@pytest.mark.parametrize("api_key", [-1, 4, 5, 6, 7, 95, 999])
def test_apis_that_are_not_served(api_key: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"API key {api_key}"):
        codec.request_decoder(api_key, 0)


def test_record_prefixes() -> None:
    keys, values = codec.record_codec(OffsetCommitKey), codec.record_codec(OffsetCommitValue)
    key = keys.encode(OffsetCommitKey(group="g", topic="t", partition=1))
    assert codec.record_kind(key) == 1
    for wrong in (b"", b"\0"):
        for any_codec in (keys, values):
            with pytest.raises(MalformedMessageError):
                any_codec.decode(wrong)
    with pytest.raises(UnsupportedVersionError):
        keys.decode(b"\0\2" + key[2:])
    with pytest.raises(UnsupportedVersionError):
        values.decode(b"\0\5" + bytes(40))
    newest = values.encode(OffsetCommitValue(offset=7))
    assert values.decode(b"\0\5" + newest[2:] + b"more", newer_as_newest=True) == OffsetCommitValue(offset=7)
