"""Produce v9 to v13 with one batch and no transaction: what a producer sends over and over.

From one such request to the next nothing changes before the records but the correlation id. So what stands
there is decoded once and found by its bytes from then on, and the answer is one `pack` behind bytes that are
known. Everything else about it is any Produce request's (`produce.py`). What it saves: docs/adr/0002.
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

MAX_KNOWN: Final = 10_000
"""Beginnings of requests that a version's decoder remembers; each partition and setting of `acks` has one."""
_FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_TOPIC_ID: Final = 13
_NO_TAGS: Final = b"\0\0\0"  # of the partition, its topic and the request: what ends a request
_NULL: Final = 0
_ONE: Final = 2
"""The length of an array of one element."""
_TOPICS_AT: Final = 7  # behind a null transactional id, acks and the timeout
_ID_BYTES: Final = 16
_PARTITIONS_BYTES: Final = 5  # how many, and the index of the first

# index, error, base offset, append time, start offset; then no record errors, no message, three ends of
# tagged fields with the throttle time before the last
_pack_answer = struct.Struct(">ihqqqB8x").pack
_NO_RECORD_ERRORS: Final = 1


class Beginning:
    """All of a request but its records."""

    __slots__ = ("acks", "answer_begins", "index", "name", "timeout_ms", "topic_id")

    def __init__(self, request: ProduceRequest, topic_bytes: bytes) -> None:
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.name = topic.name
        self.topic_id = topic.topic_id
        self.index = partition.index
        self.answer_begins = bytes((_ONE, *topic_bytes, _ONE))


class OneBatch:
    """A ProduceRequest, its one TopicProduceData and its one PartitionProduceData in one."""

    __slots__ = ("acks", "beginning", "index", "records", "timeout_ms")
    transactional_id: ClassVar[None] = None

    def __init__(self, beginning: Beginning, records: memoryview) -> None:
        self.beginning = beginning
        self.records = records
        self.acks = beginning.acks
        self.timeout_ms = beginning.timeout_ms
        self.index = beginning.index

    @property
    def name(self) -> str:
        return self.beginning.name

    @property
    def topic_id(self) -> UUID:
        return self.beginning.topic_id

    @property
    def topic_data(self) -> list[TopicProduceData]:
        return [TopicProduceData(self.name, self.topic_id, [PartitionProduceData(self.index, self.records)])]

    def encoded_answer(self, answer: PartitionProduceResponse) -> bytes:
        """The body of the response to a batch that was appended."""
        return self.beginning.answer_begins + _pack_answer(
            answer.index,
            answer.error_code,
            answer.base_offset,
            answer.log_append_time_ms,
            answer.log_start_offset,
            _NO_RECORD_ERRORS,
        )


Decode = Callable[[memoryview, int], tuple[ProduceRequest | OneBatch, int]]


def decoder(version: int) -> Decode:
    """Decodes any Produce request of the version; see `codec.request_decoder` for its errors."""
    decode_any = codec.request_decoder(ApiKey.PRODUCE, version)
    if version < _FIRST_FLEXIBLE:
        return decode_any
    has_id = version >= _FIRST_WITH_TOPIC_ID
    known: dict[bytes, Beginning] = {}

    def decode(frame: memoryview, position: int) -> tuple[ProduceRequest | OneBatch, int]:
        end = len(frame)
        topic_at = position + _TOPICS_AT + 1
        if end < topic_at + _ID_BYTES or frame[position] != _NULL:
            return decode_any(frame, position)
        # A compact string's length counts itself.
        records_at = topic_at + (_ID_BYTES if has_id else frame[topic_at]) + _PARTITIONS_BYTES
        if records_at + MAX_UVARINT_BYTES >= end:
            return decode_any(frame, position)
        beginning = known.get(key := bytes(frame[position:records_at]))
        if beginning is None:
            request, after = decode_any(frame, position)
            if key[_TOPICS_AT] == key[-_PARTITIONS_BYTES] == _ONE and (has_id or frame[topic_at] < 128):
                if len(known) == MAX_KNOWN:
                    known.clear()
                known[key] = Beginning(request, key[_TOPICS_AT + 1 : -_PARTITIONS_BYTES])
            return request, after
        length = frame[records_at]
        first = records_at + 1
        if length >= 128:
            length, first = read_long_uvarint(frame, first, length)
        after = first + length - 1
        if length == _NULL or after + len(_NO_TAGS) != end or bytes(frame[after:]) != _NO_TAGS:
            return decode_any(frame, position)
        return OneBatch(beginning, frame[first:after]), end

    return decode
