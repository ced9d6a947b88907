"""The charges of requests, with a broker's real handlers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerlab.in_memory_broker import Asked, InMemoryBroker, until
from tidelog.broker.security.client_quotas import MAX_THROTTLE_MS
from tidelog.metadata.entries import ClientQuotaEntry, QuotaEntity
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.messages import create_topics, describe_cluster, fetch, produce


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[InMemoryBroker]:
    lab = InMemoryBroker(tmp_path)
    lab.add_topic("t")
    yield lab
    lab.close()


def limit(lab: InMemoryBroker, **values: float) -> None:
    entry = ClientQuotaEntry(QuotaEntity((("client-id", "test"),)), values)
    lab.broker.quotas.quotas.update({entry.key: entry})
    lab.broker.quotas.is_enforced = True


def ask(lab: InMemoryBroker, request: object, version: int) -> Asked:
    async def send() -> Asked:
        asked = Asked(lab.broker, request, version)
        await until(lambda: asked.answer is not None)
        return asked

    return lab.runner.run(send())


def batch(lab: InMemoryBroker, value: bytes) -> produce.ProduceRequest:
    records = build_batch([Record(0, lab.clock.wall_ms(), None, value)])
    data = produce.PartitionProduceData(0, memoryview(records))
    return produce.ProduceRequest(None, 1, 1000, [produce.TopicProduceData("t", partition_data=[data])])


@pytest.mark.parametrize("version", [8, 9])
def test_the_longest_throttle_time_fits_into_the_response(lab: InMemoryBroker, version: int) -> None:
    limit(lab, producer_byte_rate=1)
    request = batch(lab, bytes(400_000))
    for _ in range(12):
        asked = ask(lab, request, version)
        assert asked.answer.responses[0].partition_responses[0].error_code == 0
    assert asked.answer.throttle_time_ms == MAX_THROTTLE_MS
    assert asked.muted_s == MAX_THROTTLE_MS / 1000


def test_an_exceeded_fetch_is_empty_and_not_charged(lab: InMemoryBroker) -> None:
    ask(lab, batch(lab, bytes(1000)), 9)
    limit(lab, consumer_byte_rate=50)
    partition = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=10_000)
    request = fetch.FetchRequest(topics=[fetch.FetchTopic("t", partitions=[partition])], max_bytes=10_000)
    for _ in range(3):
        asked = ask(lab, request, 12)
        assert asked.answer.responses == []
        assert 10_000 < asked.answer.throttle_time_ms < 20_000, "the earlier attempts were not charged"
        assert asked.answer.session_id == 0
    limit(lab, consumer_byte_rate=5000)
    asked = ask(lab, request, 12)
    assert len(asked.answer.responses) == 1
    assert asked.answer.throttle_time_ms == 0


def test_each_response_states_the_throttle_time_of_the_request_time(lab: InMemoryBroker) -> None:
    limit(lab, request_percentage=1e-6)
    asked = ask(lab, describe_cluster.DescribeClusterRequest(), 1)
    assert asked.answer.throttle_time_ms == 1000, "at most one sample"
    assert asked.muted_s == 1


def test_an_impossible_topic_is_not_charged(lab: InMemoryBroker) -> None:
    limit(lab, controller_mutation_rate=1)
    lab.controller.answer = lambda request: create_topics.CreateTopicsResponse(
        topics=[create_topics.CreatableTopicResult("huge", error_code=ErrorCode.INVALID_PARTITIONS)]
    )
    huge = create_topics.CreateTopicsRequest([create_topics.CreatableTopic("huge", 2**31 - 1, 1)])
    for _ in range(3):
        asked = ask(lab, huge, 7)
        assert asked.answer.topics[0].error_code == ErrorCode.INVALID_PARTITIONS
        assert asked.answer.throttle_time_ms == 0


@pytest.mark.parametrize(
    "values",
    [
        {"consumer_byte_rate": 1.7e308},
        {"producer_byte_rate": 1.7e308},
        {"request_percentage": 1e-320},
        {"controller_mutation_rate": 1e-320},
    ],
    ids=str,
)
def test_requests_are_answered_whatever_number_a_quota_is(
    lab: InMemoryBroker, values: dict[str, float]
) -> None:
    limit(lab, **values)
    assert ask(lab, batch(lab, bytes(1000)), 9).answer.responses[0].partition_responses[0].error_code == 0
    partition = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=10_000)
    request = fetch.FetchRequest(topics=[fetch.FetchTopic("t", partitions=[partition])], max_bytes=10_000)
    assert ask(lab, request, 12).answer.error_code == ErrorCode.NONE
    lab.controller.answer = lambda request: create_topics.CreateTopicsResponse()
    for _ in range(2):
        created = create_topics.CreateTopicsRequest([create_topics.CreatableTopic("new", 100, 1)])
        assert ask(lab, created, 5).answer.throttle_time_ms <= MAX_THROTTLE_MS
