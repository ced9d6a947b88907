"""The Fetch between brokers that is encoded by hand agrees with the codec, for valid and damaged messages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.broker.log.segment import FileRange
from tidelog.broker.replication import fetch_wire
from tidelog.broker.replication.fetch_wire import (
    FETCH_VERSION,
    FetchPosition,
    FollowerAnswer,
    FollowerRequest,
    PartitionNews,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    follower_request,
)
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import MalformedMessageError
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
    SnapshotId,
)

PREFIX = b"header"
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOPIC_IDS = st.sampled_from([UUID(int=0), UUID(int=1), UUID(int=2**127 + 5)])
MANY = st.sampled_from([0, 0, 0, 130])
RECORDS = st.sampled_from([None, b"", b"r", b"r" * 126, b"r" * 127, b"r" * 300, b"r" * 20_000])

POSITIONS = st.builds(
    FetchPartition, INT32, INT32, INT64, INT32, INT64, INT32, st.sampled_from([UUID(int=0), UUID(int=3)])
)
TOPICS = st.builds(
    lambda topic_id, partitions, more: FetchTopic("", topic_id, [*partitions, *[FetchPartition(7)] * more]),
    TOPIC_IDS,
    st.lists(POSITIONS, max_size=3),
    MANY,
)
FORGOTTEN = st.builds(ForgottenTopic, st.just(""), TOPIC_IDS, st.lists(INT32, max_size=3))
STATES = st.one_of(st.none(), st.builds(ReplicaState, INT32, INT64))
REQUESTS = st.builds(
    FetchRequest,
    cluster_id=st.sampled_from([None, None, None, "c"]),
    replica_state=STATES,
    max_wait_ms=INT32,
    min_bytes=INT32,
    max_bytes=INT32,
    session_id=INT32,
    session_epoch=INT32,
    topics=st.lists(TOPICS, max_size=3),
    forgotten_topics_data=st.one_of(st.just([]), st.lists(FORGOTTEN, max_size=2)),
    rack_id=st.sampled_from(["", "", "", "rack"]),
)
NEWS = st.builds(
    PartitionData,
    INT32,
    st.integers(-1, 120),
    INT64,
    INT64,
    INT64,
    st.one_of(st.none(), st.none(), st.builds(EpochEndOffset, INT32, INT64)),
    st.one_of(st.none(), st.none(), st.builds(LeaderIdAndEpoch, INT32, INT32)),
    st.one_of(st.none(), st.none(), st.builds(SnapshotId, INT64, INT32)),
    st.sampled_from([None, None, [], [AbortedTransaction(1, 2)]]),
    st.sampled_from([-1, 2]),
    RECORDS,
)
ANSWERED_TOPICS = st.builds(
    lambda topic_id, parts, more: FetchableTopicResponse(
        "", topic_id, [*parts, *[PartitionData(aborted_transactions=None, records=b"")] * more]
    ),
    TOPIC_IDS,
    st.lists(NEWS, max_size=3),
    MANY,
)
ANSWERS = st.builds(
    FetchResponse,
    throttle_time_ms=INT32,
    error_code=st.integers(-1, 120),
    session_id=INT32,
    responses=st.lists(ANSWERED_TOPICS, max_size=3),
    node_endpoints=st.sampled_from([[], [], [NodeEndpoint(1, "h", 9092, None)]]),
)
DAMAGES = st.one_of(
    st.none(), st.tuples(st.sampled_from(["cut", "longer", "byte"]), st.integers(0, 400), st.integers(0, 255))
)


def damaged(body: bytes, damage: tuple[str, int, int] | None) -> bytes:
    match damage:
        case ("cut", at, _):
            return body[: max(0, len(body) - at)]
        case ("longer", at, byte):
            return body + bytes((byte,)) * at
        case ("byte", at, byte) if at < len(body):
            return body[:at] + bytes((byte,)) + body[at + 1 :]
    return body


def state(thing: Any) -> Any:
    """Returns all fields, for comparison."""
    if isinstance(thing, list | tuple):
        return [state(each) for each in thing]
    if isinstance(thing, FetchPosition | FollowerRequest | PartitionNews | FollowerAnswer):
        return {name: state(getattr(thing, name)) for name in type(thing).__slots__}
    return bytes(thing) if isinstance(thing, memoryview) else thing


def read(decode: Any, body: bytes) -> Any:
    """Returns the decoded message and its end, or None if it is malformed."""
    try:
        message, end = decode(memoryview(PREFIX + body), len(PREFIX))
    except MalformedMessageError:
        return None
    if isinstance(message, FetchRequest):
        message = follower_request(message, has_topic_ids=True)
    elif isinstance(message, FetchResponse):
        message = fetch_wire._answer_of(message)
    return state(message), end


def encoded(encoder: Any, message: Any) -> bytes:
    return b"".join(map(bytes, encoder(ApiKey.FETCH, FETCH_VERSION)(message)))


@given(REQUESTS, DAMAGES)
@example(FetchRequest(replica_state=ReplicaState(2, 5), topics=[FetchTopic("", UUID(int=1), [])]), None)
def test_a_request_is_read_as_the_codec_reads_it(
    request: FetchRequest, damage: tuple[str, int, int] | None
) -> None:
    body = damaged(encoded(codec.request_encoder, request), damage)
    assert read(decode_request, body) == read(codec.request_decoder(ApiKey.FETCH, FETCH_VERSION), body)


@given(ANSWERS, DAMAGES)
def test_a_response_is_read_as_the_codec_reads_it(
    answer: FetchResponse, damage: tuple[str, int, int] | None
) -> None:
    body = damaged(encoded(codec.response_encoder, answer), damage)
    assert read(decode_answer, body) == read(codec.response_decoder(ApiKey.FETCH, FETCH_VERSION), body)


@given(REQUESTS, st.builds(ReplicaState, st.integers(0, 2**31 - 1), INT64))
def test_a_followers_request_has_the_codecs_bytes(message: FetchRequest, who: ReplicaState) -> None:
    message.replica_state = who
    request = follower_request(message, has_topic_ids=True)
    body = b"".join(encode_request(request))
    again, end = codec.request_decoder(ApiKey.FETCH, FETCH_VERSION)(body, 0)
    assert end == len(body)
    assert isinstance(again, FetchRequest)
    assert encoded(codec.request_encoder, again) == body, "the bytes are the codec's"

    def by_key(asked: FollowerRequest) -> Any:
        """An id that occurs twice is merged into one topic."""
        whole = state(asked)
        whole["positions"].sort(key=lambda position: position["topic_id"])
        whole["forgotten"].sort(key=lambda key: key[0])
        return whole

    assert by_key(follower_request(again, has_topic_ids=True)) == by_key(request)


@given(st.integers(0, 2**31 - 1), st.lists(st.tuples(TOPIC_IDS, NEWS), max_size=4))
def test_a_leaders_response_has_the_codecs_bytes(
    session_id: int, told: list[tuple[UUID, PartitionData]]
) -> None:
    news, message = [], FetchResponse(session_id=session_id)
    topics: dict[UUID, FetchableTopicResponse] = {}
    for topic_id, data in told:
        each = PartitionNews(topic_id.bytes, data.partition_index)
        each.error_code, each.records = data.error_code, bytes(data.records or b"")
        each.high_watermark, each.log_start_offset = data.high_watermark, data.log_start_offset
        news.append(each)
        topics.setdefault(topic_id, FetchableTopicResponse("", topic_id, [])).partitions.append(
            PartitionData(
                data.partition_index,
                data.error_code,
                data.high_watermark,
                log_start_offset=data.log_start_offset,
                last_stable_offset=-1,
                aborted_transactions=None,
                records=data.records or b"",
            )
        )
    message.responses = list(topics.values())
    body = b"".join(map(bytes, encode_answer(session_id, news)))
    assert body == encoded(codec.response_encoder, message)


def test_usual_messages_do_not_use_the_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the hand-written code would save nothing, and no other test would notice."""

    def codec_is_asked(*_: Any) -> Any:
        raise AssertionError("the codec is asked")

    monkeypatch.setattr(fetch_wire, "_decode_any_request", codec_is_asked)
    monkeypatch.setattr(fetch_wire, "_decode_any_answer", codec_is_asked)
    positions = [
        FetchPosition(UUID(int=t).bytes, p, 3, 10**12, 2, 5, 1 << 20) for t in (1, 2) for p in range(200)
    ]
    request = FollowerRequest(2, 77, 500, 1, 10 << 20, 12, 13, positions, ())
    (body,) = encode_request(request)
    assert read(decode_request, body) == (state(request) | {"forgotten": []}, len(PREFIX) + len(body))
    news = []
    for position in positions:
        each = PartitionNews(position.topic_id, position.index)
        each.records, each.high_watermark, each.log_start_offset = b"r" * position.index * 100, 9, 4
        news.append(each)
    chunks = encode_answer(12, news)
    answer, _ = read(decode_answer, b"".join(map(bytes, chunks)))
    assert answer == state(FollowerAnswer(0, 12, news))


def test_a_range_of_a_file_stays_a_range(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file:
        segment: Any = SimpleNamespace(references=0, fd=file.fileno())
        file_range = FileRange(segment, 2, 5, 7)
        news = PartitionNews(UUID(int=1).bytes, 0)
        news.records = file_range
        begins, records, ends = encode_answer(1, [news])
        assert records is file_range
        answer, _ = read(decode_answer, bytes(begins) + file_range.read() + bytes(ends))
    assert answer["partitions"][0]["records"] == b"23456"
