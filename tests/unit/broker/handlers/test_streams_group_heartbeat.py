"""StreamsGroupHeartbeat at the broker: it passes heartbeats on, and has internal topics created."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from brokerlab.in_memory_broker import Asked, InMemoryBroker, until
from brokerlab.scripted_coordinator import shard_partitions
from tidelog.broker.handlers import streams_groups
from tidelog.broker.handlers.streams_groups import MISSING_INTERNAL_TOPICS
from tidelog.metadata.entries import ClientQuotaEntry, QuotaEntity
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.streams_group_heartbeat import (
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

GROUP = "application"
TOPICS = ["a-changelog", "b-changelog"]
Beat = Callable[..., Any]
MISSING = Status(MISSING_INTERNAL_TOPICS, "Internal topics are missing")


def answer_with(monkeypatch: pytest.MonkeyPatch, topics: list[str] | None) -> None:
    """Lets the coordinator answer heartbeats, and miss these topics."""
    response = StreamsGroupHeartbeatResponse(member_id="m", member_epoch=2)
    if topics:
        response.status = [Status(MISSING.status_code, MISSING.status_detail)]
    body = b"".join(map(bytes, codec.response_encoder(ApiKey.STREAMS_GROUP_HEARTBEAT, 0)(response)))
    if topics:
        creation = CreateTopicsRequest([CreatableTopic(name, 4, -1) for name in topics], 30_000)
        body += b"".join(map(bytes, codec.request_encoder(ApiKey.CREATE_TOPICS, 7)(creation)))

    async def ask(*_: object) -> tuple[bytes, ErrorCode]:
        return body, ErrorCode.NONE

    monkeypatch.setattr(streams_groups, "ask_shard_for_bytes", ask)


@pytest.fixture
def beat(lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> Beat:
    """Returns beat(topics), which returns the answer to a heartbeat whose coordinator misses these topics."""

    def one(topics: list[str] | None = None) -> Any:
        answer_with(monkeypatch, topics)
        answer = lab.call(StreamsGroupHeartbeatRequest(GROUP, "m", 2), 0)
        lab.runner.run(asyncio.sleep(0.01))  # the creation goes on after the answer
        return answer

    return one


def created(codes: dict[str, ErrorCode]) -> Any:
    def answer(request: CreateTopicsRequest) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(
                    topic.name,
                    error_code=codes.get(topic.name, ErrorCode.NONE),
                    error_message="no" if topic.name in codes else None,
                )
                for topic in request.topics
            ]
        )

    return answer


def test_an_answer_is_passed_on(lab: InMemoryBroker, beat: Beat) -> None:
    answer = beat()
    assert (answer.member_id, answer.member_epoch, answer.status) == ("m", 2, [])
    assert lab.controller.forwarded == []


def test_missing_topics_are_created_in_the_clients_name(lab: InMemoryBroker, beat: Beat) -> None:
    lab.controller.answer = created({})
    answer = beat(TOPICS)
    assert [status.status_detail for status in answer.status] == [MISSING.status_detail]
    ((api_key, forwarded),) = lab.controller.forwarded
    assert api_key == ApiKey.CREATE_TOPICS
    assert [(topic.name, topic.num_partitions) for topic in forwarded.message.topics] == [
        (name, 4) for name in TOPICS
    ]
    assert (str(forwarded.principal), forwarded.client_id) == ("User:ANONYMOUS", "test")


def test_failures_are_told_and_not_repeated_for_two_heartbeats(lab: InMemoryBroker, beat: Beat) -> None:
    lab.controller.answer = created({TOPICS[0]: ErrorCode.INVALID_REPLICATION_FACTOR})
    beat(TOPICS)
    answer = beat(TOPICS[:1])
    (status,) = answer.status
    assert status.status_detail == f"{MISSING.status_detail}; Creation failed: {TOPICS[0]} (no)."
    assert len(lab.controller.forwarded) == 1
    lab.clock.advance(10_001)
    lab.controller.answer = created({})
    beat(TOPICS[:1])
    assert len(lab.controller.forwarded) == 2
    answer = beat(TOPICS[:1])
    assert [status.status_detail for status in answer.status] == [MISSING.status_detail]


def test_a_topic_that_exists_meanwhile_is_no_failure(lab: InMemoryBroker, beat: Beat) -> None:
    lab.controller.answer = created({TOPICS[0]: ErrorCode.TOPIC_ALREADY_EXISTS})
    beat(TOPICS)
    answer = beat(TOPICS)
    assert [status.status_detail for status in answer.status] == [MISSING.status_detail]


def test_a_controller_that_cannot_be_reached_is_a_failure(lab: InMemoryBroker, beat: Beat) -> None:
    def fail(request: CreateTopicsRequest) -> CreateTopicsResponse:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "away")

    lab.controller.answer = fail
    beat(TOPICS)
    answer = beat(TOPICS)
    assert answer.status[0].status_detail == (
        f"{MISSING.status_detail}; Creation failed: {TOPICS[0]} (away), {TOPICS[1]} (away)."
    )


def test_many_failures_are_counted(lab: InMemoryBroker, beat: Beat) -> None:
    names = [f"t{number}" for number in range(5)]
    lab.controller.answer = created(dict.fromkeys(names, ErrorCode.POLICY_VIOLATION))
    beat(names)
    answer = beat(names)
    assert answer.status[0].status_detail.endswith("; Creation failed: t0 (no), t1 (no), t2 (no) and 2 more.")


def test_topics_that_the_client_may_not_create_are_counted(
    lab: InMemoryBroker, beat: Beat, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(5)]
    handler = streams_groups.StreamsGroupHeartbeatHandler
    monkeypatch.setattr(handler, "_denied", lambda *_: names)
    (status,) = beat(names).status
    assert status.status_detail.endswith("; Unauthorized to CREATE on topics t0, t1, t2 and 2 more.")
    assert lab.controller.forwarded == []


def test_no_more_topics_are_created_at_a_time_than_the_limit(
    lab: InMemoryBroker, beat: Beat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_groups, "MAX_CREATIONS", 2)
    lab.controller.answer = created({})
    names = [f"t{number}" for number in range(5)]
    beat(names)
    beat(names[2:])
    asked_for = [[topic.name for topic in sent.message.topics] for _, sent in lab.controller.forwarded]
    assert asked_for == [names[:2], names[2:4]]


def test_creations_are_charged_to_the_quota_of_the_client(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, [f"t{number}" for number in range(20)])
    lab.controller.answer = created({})
    quota = ClientQuotaEntry(QuotaEntity((("client-id", "test"),)), {"controller_mutation_rate": 1.0})
    lab.broker.quotas.quotas.update({quota.key: quota})
    lab.broker.quotas.is_enforced = True

    async def ask() -> Asked:
        asked = Asked(lab.broker, StreamsGroupHeartbeatRequest(GROUP, "m", 2), 0)
        await until(lambda: asked.answer is not None)
        await asyncio.sleep(0.01)  # the creation goes on after the answer
        return asked

    asked = lab.runner.run(ask())
    ((_, forwarded),) = lab.controller.forwarded
    assert 0 < len(forwarded.message.topics) < 20
    assert asked.answer.throttle_time_ms > 0
    assert asked.answer.member_epoch == 2


def test_without_an_owner_the_heartbeat_is_refused(lab: InMemoryBroker) -> None:
    shard_partitions(lab)

    async def ask() -> Any:
        asked = Asked(lab.broker, StreamsGroupHeartbeatRequest(GROUP, "m", 2), 0)
        await until(lambda: asked.answer is not None)
        return asked.answer

    assert lab.runner.run(ask()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
