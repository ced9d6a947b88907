"""Encodes and decodes Fetch v17 between brokers by hand: followers' requests and leaders' responses.

With three replicas, each acknowledged record needs two such exchanges, and the codec for all messages makes
13 objects for one. Here, a request or response is encoded and decoded in one pass over objects that its users
keep anyway. Rare content (a diverging epoch, another version) goes through the codec and results in the same
objects. docs/adr/0021 states the savings.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, cast

from tidelog.broker.net.socket_io import Chunk
from tidelog.model.protocol_values import NO_REPLICA, UNKNOWN_EPOCH, UNKNOWN_OFFSET
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.malformed import MalformedMessageError
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse
from tidelog.wire.primitives import read_uvarint, uvarint
from tidelog.wire.schema import Buffer

FETCH_VERSION: Final = 17
FetchPositionKey: TypeAlias = "tuple[bytes | str, int]"
"""The topic id (before v13 the topic name) and the partition."""

_ID_BYTES: Final = 16
# max wait, min bytes, max bytes, isolation level, session id, session epoch
_REQUEST = struct.Struct(">iiibii")
# partition, current leader epoch, fetch offset, last fetched epoch, log start offset, max bytes, no tags
_POSITION = struct.Struct(">iiqiqib")
_INDEX = struct.Struct(">i")
# no rack, one tagged field: the replica state, tag 1 of 13 bytes
_REPLICA_STATE = struct.Struct(">BBBBiqB")
_NO_RACK: Final = 1
_REPLICA_STATE_BEGINS: Final = (_NO_RACK, 1, 1, 13)
_NO_TAGS: Final = b"\0"
_EMPTY_ARRAY: Final = b"\1"

# throttle time, error, session id
_ANSWER = struct.Struct(">ihi")
# partition, error, high watermark, last stable offset, log start offset, aborted transactions, preferred
# replica
_PARTITION = struct.Struct(">ihqqqBi")
_NULL: Final = 0

_decode_any_request = codec.request_decoder(ApiKey.FETCH, FETCH_VERSION)
_decode_any_answer = codec.response_decoder(ApiKey.FETCH, FETCH_VERSION)


class FetchPosition:
    """The position from which a follower fetches one partition.

    `topic_id` has 16 bytes. Versions before 13 have the name `topic` in its place.
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic_id: bytes,
        index: int,
        current_leader_epoch: int,
        fetch_offset: int,
        last_fetched_epoch: int,
        log_start_offset: int,
        max_bytes: int,
        topic: str = "",
    ) -> None:
        self.topic_id = topic_id
        self.index = index
        self.current_leader_epoch = current_leader_epoch
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.max_bytes = max_bytes
        self.topic = topic

    @property
    def key(self) -> FetchPositionKey:
        return self.topic or self.topic_id, self.index


class FollowerRequest:
    """A follower's Fetch request. `broker_epoch` is -1 if the version does not contain it."""

    __slots__ = (
        "broker_epoch",
        "forgotten",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "positions",
        "replica_id",
        "session_epoch",
        "session_id",
    )

    def __init__(
        self,
        replica_id: int,
        broker_epoch: int,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        session_id: int,
        session_epoch: int,
        positions: Sequence[FetchPosition],
        forgotten: Sequence[FetchPositionKey],
    ) -> None:
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.positions = positions
        self.forgotten = forgotten


class PartitionNews:
    """The part of a response about one partition. `diverging` is an epoch and its end offset."""

    __slots__ = (
        "diverging",
        "error_code",
        "high_watermark",
        "index",
        "log_start_offset",
        "records",
        "topic_id",
    )

    def __init__(self, topic_id: bytes, index: int) -> None:
        self.topic_id = topic_id
        self.index = index
        self.error_code = 0
        self.high_watermark = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.diverging: tuple[int, int] | None = None
        self.records: Chunk = b""


class FollowerAnswer:
    """A leader's response to a follower's Fetch."""

    __slots__ = ("error_code", "partitions", "session_id")

    def __init__(self, error_code: int, session_id: int, partitions: list[PartitionNews]) -> None:
        self.error_code = error_code
        self.session_id = session_id
        self.partitions = partitions


def encode_request(request: FollowerRequest) -> list[bytes]:
    """Returns the request's body."""
    parts = [
        _REQUEST.pack(
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            0,
            request.session_id,
            request.session_epoch,
        )
    ]
    if request.positions:
        _add_positions(parts, request.positions)
    else:
        parts.append(_EMPTY_ARRAY)
    if request.forgotten:
        _add_forgotten(parts, request.forgotten)
    else:
        parts.append(_EMPTY_ARRAY)
    parts.append(_REPLICA_STATE.pack(*_REPLICA_STATE_BEGINS, request.replica_id, request.broker_epoch, 0))
    return [b"".join(parts)]


def _add_positions(parts: list[bytes], positions: Iterable[FetchPosition]) -> None:
    topics: dict[bytes, list[FetchPosition]] = {}
    for position in positions:
        topics.setdefault(position.topic_id, []).append(position)
    parts.append(uvarint(len(topics) + 1))
    for topic_id, of_topic in topics.items():
        parts.append(topic_id)
        parts.append(uvarint(len(of_topic) + 1))
        parts.extend([_position_bytes(position) for position in of_topic])
        parts.append(_NO_TAGS)


def _position_bytes(position: FetchPosition) -> bytes:
    return _POSITION.pack(
        position.index,
        position.current_leader_epoch,
        position.fetch_offset,
        position.last_fetched_epoch,
        position.log_start_offset,
        position.max_bytes,
        0,
    )


def _add_forgotten(parts: list[bytes], forgotten: Iterable[FetchPositionKey]) -> None:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in forgotten:
        assert isinstance(topic_id, bytes), "v17 names topics by id"
        topics.setdefault(topic_id, []).append(index)
    parts.append(uvarint(len(topics) + 1))
    for topic_id, indexes in topics.items():
        parts += (topic_id, uvarint(len(indexes) + 1), *map(_INDEX.pack, indexes), _NO_TAGS)


def decode_request(buffer: Buffer, position: int) -> tuple[FollowerRequest | FetchRequest, int]:
    """Returns a FollowerRequest if the request has the usual form of followers, else the codec's message."""
    end = len(buffer)
    tail = end - _REPLICA_STATE.size
    if tail > position and buffer[tail] == _NO_RACK:
        *begins, replica_id, broker_epoch, tags = _REPLICA_STATE.unpack_from(buffer, tail)
        if tuple(begins) == _REPLICA_STATE_BEGINS and replica_id >= 0 and not tags:
            try:
                request = _usual_request(buffer, position, tail, replica_id, broker_epoch)
            except (struct.error, IndexError, MalformedMessageError):
                request = None
            if request is not None:
                return request, end
    any_request: FetchRequest
    any_request, after = _decode_any_request(buffer, position)
    return any_request, after


def _usual_request(
    buffer: Buffer, position: int, tail: int, replica_id: int, broker_epoch: int
) -> FollowerRequest | None:
    max_wait_ms, min_bytes, max_bytes, _, session_id, session_epoch = _REQUEST.unpack_from(buffer, position)
    topics, at = read_uvarint(buffer, position + _REQUEST.size)
    positions: list[FetchPosition] = []
    for _ in range(1, topics):
        topic_end = at + _ID_BYTES
        topic_id = bytes(buffer[at:topic_end])
        count, at = read_uvarint(buffer, topic_end)
        for _ in range(1, count):
            index, epoch, offset, last_epoch, start, most, tags = _POSITION.unpack_from(buffer, at)
            at += _POSITION.size
            if tags:
                return None
            positions.append(FetchPosition(topic_id, index, epoch, offset, last_epoch, start, most))
        if count == _NULL or buffer[at]:
            return None
        at += 1
    if topics == _NULL or buffer[at] != 1 or at + 1 != tail:  # Forgotten partitions are rare.
        return None
    return FollowerRequest(
        replica_id, broker_epoch, max_wait_ms, min_bytes, max_bytes, session_id, session_epoch, positions, ()
    )


def follower_request(request: FetchRequest, *, has_topic_ids: bool) -> FollowerRequest:
    """Returns the follower's request for a message of the codec, of any version."""
    state = request.replica_state
    positions = [
        FetchPosition(
            topic.topic_id.bytes,
            wanted.partition,
            wanted.current_leader_epoch,
            wanted.fetch_offset,
            wanted.last_fetched_epoch,
            wanted.log_start_offset,
            wanted.partition_max_bytes,
            topic.topic,
        )
        for topic in request.topics
        for wanted in topic.partitions
    ]
    forgotten: list[FetchPositionKey] = [
        (topic.topic_id.bytes if has_topic_ids else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    return FollowerRequest(
        request.replica_id if state is None else state.replica_id,
        UNKNOWN_EPOCH if state is None else state.replica_epoch,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.session_id,
        request.session_epoch,
        positions,
        forgotten,
    )


def encode_answer(session_id: int, partitions: Sequence[PartitionNews]) -> list[Chunk]:
    """Returns the response's body in chunks, without `diverging`. A range of a file is a chunk of its own."""
    topics: dict[bytes, list[PartitionNews]] = {}
    for news in partitions:
        topics.setdefault(news.topic_id, []).append(news)
    chunks: list[Chunk] = []
    parts = [_ANSWER.pack(0, 0, session_id), uvarint(len(topics) + 1)]
    for topic_id, of_topic in topics.items():
        parts.append(topic_id)
        parts.append(uvarint(len(of_topic) + 1))
        for news in of_topic:
            records = news.records
            parts.append(
                _PARTITION.pack(
                    news.index,
                    news.error_code,
                    news.high_watermark,
                    UNKNOWN_OFFSET,
                    news.log_start_offset,
                    _NULL,
                    NO_REPLICA,
                )
            )
            parts.append(uvarint(len(records) + 1))
            if type(records) is bytes:
                parts.append(records)
            else:
                chunks.append(b"".join(parts))
                chunks.append(records)
                parts = []
            parts.append(_NO_TAGS)
        parts.append(_NO_TAGS)
    parts.append(_NO_TAGS)
    chunks.append(b"".join(parts))
    return chunks


def decode_answer(buffer: memoryview, position: int) -> tuple[FollowerAnswer, int]:
    """Returns the response, whose `records` are views into `buffer`. Raises MalformedMessageError."""
    try:
        answer = _usual_answer(buffer, position)
    except (struct.error, IndexError, MalformedMessageError):
        answer = None
    if answer is not None:
        return answer, len(buffer)
    message: FetchResponse
    message, after = _decode_any_answer(buffer, position)
    return _answer_of(message), after


def _usual_answer(buffer: memoryview, position: int) -> FollowerAnswer | None:
    _, error_code, session_id = _ANSWER.unpack_from(buffer, position)
    topics, at = read_uvarint(buffer, position + _ANSWER.size)
    partitions: list[PartitionNews] = []
    for _ in range(1, topics):
        topic_end = at + _ID_BYTES
        topic_id = bytes(buffer[at:topic_end])
        count, at = read_uvarint(buffer, topic_end)
        for _ in range(1, count):
            index, error, high_watermark, _, start, aborted, _ = _PARTITION.unpack_from(buffer, at)
            length, at = read_uvarint(buffer, at + _PARTITION.size)
            records_end = at + length - 1
            if aborted > 1 or length == _NULL or buffer[records_end]:
                return None
            news = PartitionNews(topic_id, index)
            news.error_code, news.high_watermark, news.log_start_offset = error, high_watermark, start
            news.records = buffer[at:records_end]
            partitions.append(news)
            at = records_end + 1
        if count == _NULL or buffer[at]:
            return None
        at += 1
    if topics == _NULL or buffer[at] or at + 1 != len(buffer):
        return None
    return FollowerAnswer(error_code, session_id, partitions)


def _answer_of(message: FetchResponse) -> FollowerAnswer:
    partitions = []
    for topic in message.responses:
        for data in topic.partitions:
            news = PartitionNews(topic.topic_id.bytes, data.partition_index)
            news.error_code = data.error_code
            news.high_watermark, news.log_start_offset = data.high_watermark, data.log_start_offset
            if data.diverging_epoch is not None:
                news.diverging = data.diverging_epoch.epoch, data.diverging_epoch.end_offset
            if data.records:
                news.records = cast(Chunk, data.records)
            partitions.append(news)
    return FollowerAnswer(message.error_code, message.session_id, partitions)
