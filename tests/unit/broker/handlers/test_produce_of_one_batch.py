"""A request with one batch is decoded as the codec decodes it, also if its prefix is known, and its response
is encoded as the codec encodes it.
"""

from __future__ import annotations

from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.broker.requests import one_batch
from tidelog.broker.requests.one_batch import OneBatch
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import MalformedMessageError
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

VERSIONS = range(3, 14)
FLEXIBLE = range(9, 14)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from(["", "t", "topic", "t" * 126, "t" * 127, "t" * 300])
RECORDS = st.one_of(st.none(), st.sampled_from([0, 1, 126, 127, 128, 300, 20_000]).map(lambda n: b"r" * n))
PARTITIONS = st.lists(st.builds(PartitionProduceData, st.integers(0, 3), RECORDS), min_size=0, max_size=2)
TOPICS = st.builds(TopicProduceData, NAMES, st.sampled_from([UUID(int=0), UUID(int=2)]), PARTITIONS)
REQUESTS = st.builds(
    ProduceRequest,
    st.sampled_from([None, None, None, "", "id"]),
    st.sampled_from([-1, 0, 1]),
    st.sampled_from([0, 30_000]),
    st.lists(TOPICS, min_size=0, max_size=2),
)
DAMAGES = st.one_of(
    st.none(), st.tuples(st.sampled_from(["cut", "longer", "byte"]), st.integers(0, 400), st.integers(0, 255))
)


def encoded(request: ProduceRequest, version: int, damage: tuple[str, int, int] | None = None) -> bytes:
    body = b"".join(map(bytes, codec.request_encoder(ApiKey.PRODUCE, version)(request)))
    match damage:
        case ("cut", at, _):
            return body[:at]
        case ("longer", at, byte):
            return body + bytes((byte,)) * at
        case ("byte", at, byte) if at < len(body):
            return body[:at] + bytes((byte,)) + body[at + 1 :]
    return body


def read(decode: Any, body: bytes) -> object:
    """Returns the fields that a handler uses, or that the request is malformed."""
    prefix = b"head"
    try:
        request, end = decode(memoryview(prefix + body), len(prefix))
    except MalformedMessageError:
        return "malformed"
    topics = [
        (
            t.name,
            t.topic_id,
            [(p.index, None if p.records is None else bytes(p.records)) for p in t.partition_data],
        )
        for t in request.topic_data
    ]
    return end, request.transactional_id, request.acks, request.timeout_ms, topics


def of_one(records: bytes = b"r" * 100, name: str = "t") -> ProduceRequest:
    return ProduceRequest(
        None, -1, 1000, [TopicProduceData(name, UUID(int=9), [PartitionProduceData(3, records)])]
    )


@given(st.sampled_from(VERSIONS), st.lists(st.tuples(REQUESTS, DAMAGES), min_size=1, max_size=6))
@example(9, [(of_one(), ("byte", 7, 0x82)), (of_one(), None)])
@example(13, [(of_one(), None), (of_one(b"r" * 20_000), None), (of_one(b""), None)])
def test_a_known_prefix_is_decoded_like_a_new_one(
    version: int, sent: list[tuple[ProduceRequest, tuple[str, int, int] | None]]
) -> None:
    decode, decode_any = one_batch.decoder(version), codec.request_decoder(ApiKey.PRODUCE, version)
    with mock.patch.object(one_batch, "MAX_KNOWN_PREFIXES", 2):
        for request, damage in [*sent, *sent]:
            body = encoded(request, version, damage)
            assert read(decode, body) == read(decode_any, body)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_known_prefixes_take_the_short_path(version: int) -> None:
    decode = one_batch.decoder(version)
    body = memoryview(encoded(of_one(), version))
    assert type(decode(body, 0)[0]) is ProduceRequest
    assert (type(decode(body, 0)[0]) is OneBatch) == (version in FLEXIBLE)
    other = memoryview(encoded(of_one(b"r" * 20_000), version))
    assert (type(decode(other, 0)[0]) is OneBatch) == (version in FLEXIBLE)


def test_an_array_whose_length_takes_two_bytes_is_not_remembered() -> None:
    """Kafka accepts such an array, too. The records then begin at another position."""
    decode = one_batch.decoder(9)
    body = encoded(of_one(), 9)
    odd = memoryview(body[:7] + b"\x82\x00" + body[8:])
    for _ in range(2):
        assert type(decode(odd, 0)[0]) is ProduceRequest


@given(st.sampled_from(FLEXIBLE), NAMES.filter(lambda name: 0 < len(name) < 127), INT64, INT64, INT64)
def test_the_response_equals_the_codecs(
    version: int, name: str, base: int, append_ms: int, start: int
) -> None:
    decode = one_batch.decoder(version)
    body = memoryview(encoded(of_one(name=name), version))
    decode(body, 0)
    request, _ = decode(body, 0)
    assert isinstance(request, OneBatch)
    answer = PartitionProduceResponse(3, 0, base, append_ms, start)
    topic = TopicProduceResponse(request.name, request.topic_id, [answer])
    expected = codec.response_encoder(ApiKey.PRODUCE, version)(ProduceResponse(responses=[topic]))
    assert request.encoded_response(answer) == b"".join(map(bytes, expected))
