"""The most frequent Produce request: v9 to v13, one batch, no transaction.

From one such request to the next, only the correlation id changes before the records. Therefore those bytes
are decoded once and recognized afterwards, and the response is one `pack` after known bytes. docs/adr/0002
states the savings.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import ClassVar, Final
from uuid import UUID

from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.wire.primitives import MAX_UVARINT_BYTES, read_long_uvarint

FIRST_VERSION_WITH_TOPIC_ID: Final = 13
NO_RECORDS: Final = memoryview(b"")
MAX_KNOWN_PREFIXES: Final = 10_000
"""The request prefixes that a version's decoder remembers. Each pair of partition and `acks` has its own."""
_FIRST_FLEXIBLE_VERSION: Final = 9
_NO_TAGS: Final = (
    b"\0\0\0"  # the tagged fields of the partition, its topic and the request, which end a request
)
_NULL: Final = 0
_ONE: Final = 2
"""The encoded length of an array with one element."""
_TOPICS_AT: Final = 7  # after a null transactional id, acks and the timeout
_ID_BYTES: Final = 16
_PARTITIONS_BYTES: Final = 5  # the number of partitions, and the index of the first

# index, error, base offset, append time, start offset; then no record errors, no message, and the tagged
# fields of three structures with the throttle time before the last
_pack_response = struct.Struct(">ihqqqB8x").pack
_NO_RECORD_ERRORS: Final = 1


class RequestPrefix:
    """Everything in a request before its records."""

    __slots__ = ("acks", "index", "name", "response_prefix", "timeout_ms", "topic_id")

    def __init__(self, request: ProduceRequest, topic_bytes: bytes) -> None:
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.name = topic.name
        self.topic_id = topic.topic_id
        self.index = partition.index
        self.response_prefix = bytes((_ONE, *topic_bytes, _ONE))


class OneBatch:
    """A ProduceRequest, its only TopicProduceData and its only PartitionProduceData in one object."""

    __slots__ = ("acks", "index", "prefix", "records", "timeout_ms")
    transactional_id: ClassVar[None] = None

    def __init__(self, prefix: RequestPrefix, records: memoryview) -> None:
        self.prefix = prefix
        self.records = records
        self.acks = prefix.acks
        self.timeout_ms = prefix.timeout_ms
        self.index = prefix.index

    @property
    def name(self) -> str:
        return self.prefix.name

    @property
    def topic_id(self) -> UUID:
        return self.prefix.topic_id

    @property
    def topic_data(self) -> list[TopicProduceData]:
        return [TopicProduceData(self.name, self.topic_id, [PartitionProduceData(self.index, self.records)])]

    def encoded_response(self, response: PartitionProduceResponse) -> bytes:
        """Returns the body of the response to a batch that was appended."""
        return self.prefix.response_prefix + _pack_response(
            response.index,
            response.error_code,
            response.base_offset,
            response.log_append_time_ms,
            response.log_start_offset,
            _NO_RECORD_ERRORS,
        )


Decode = Callable[[memoryview, int], tuple[ProduceRequest | OneBatch, int]]


def decoder(version: int) -> Decode:
    """Returns a decoder for every Produce request of the version. It raises what `codec.request_decoder`
    raises.
    """
    decode_any = codec.request_decoder(ApiKey.PRODUCE, version)
    if version < _FIRST_FLEXIBLE_VERSION:
        return decode_any
    has_id = version >= FIRST_VERSION_WITH_TOPIC_ID
    known: dict[bytes, RequestPrefix] = {}

    def decode(frame: memoryview, position: int) -> tuple[ProduceRequest | OneBatch, int]:
        end = len(frame)
        topic_at = position + _TOPICS_AT + 1
        if end < topic_at + _ID_BYTES or frame[position] != _NULL:
            return decode_any(frame, position)
        # A compact string's length counts itself.
        records_at = topic_at + (_ID_BYTES if has_id else frame[topic_at]) + _PARTITIONS_BYTES
        if records_at + MAX_UVARINT_BYTES >= end:
            return decode_any(frame, position)
        prefix = known.get(key := bytes(frame[position:records_at]))
        if prefix is None:
            request, after = decode_any(frame, position)
            if key[_TOPICS_AT] == key[-_PARTITIONS_BYTES] == _ONE and (has_id or frame[topic_at] < 128):
                if len(known) == MAX_KNOWN_PREFIXES:
                    known.clear()
                known[key] = RequestPrefix(request, key[_TOPICS_AT + 1 : -_PARTITIONS_BYTES])
            return request, after
        length = frame[records_at]
        first = records_at + 1
        if length >= 128:
            length, first = read_long_uvarint(frame, first, length)
        after = first + length - 1
        if length == _NULL or after + len(_NO_TAGS) != end or bytes(frame[after:]) != _NO_TAGS:
            return decode_any(frame, position)
        return OneBatch(prefix, frame[first:after]), end

    return decode
