"""The dead letter topics of share groups: which may be used, and which are created."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.broker.share.dead_letter_writer import DeadLetterTopics
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY, TopicState
from tidelog.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

ALLOWED = {"errors.deadletterqueue.group.enable": "true"}
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
PREFIX = "errors.deadletterqueue.topic.name.prefix"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InMemoryBroker]:
    broker = InMemoryBroker(tmp_path)
    yield broker
    broker.close()


def topics_of(broker: InMemoryBroker, **settings: str) -> DeadLetterTopics:
    parts = broker.broker
    parts.current_settings.apply({DEFAULT_BROKER_ENTITY: settings})
    return DeadLetterTopics(parts.current_settings, parts.metadata, broker.controller)


def find(broker: InMemoryBroker, name: str, **settings: str) -> TopicState:
    return broker.runner.run(topics_of(broker, **settings).find(name))


def refusal(broker: InMemoryBroker, name: str, **settings: str) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        find(broker, name, **settings)
    assert name in str(refused.value)
    return refused.value


def test_a_topic_that_allows_it_is_found(broker: InMemoryBroker) -> None:
    broker.add_topic("dlq.t", 3, {**ALLOWED, "max.message.bytes": "5000"})
    topics = topics_of(broker)
    found = broker.runner.run(topics.find("dlq.t"))
    assert (found.name, len(found.partitions), topics.max_message_bytes(found)) == ("dlq.t", 3, 5_000)


def test_a_topic_must_allow_it_and_have_the_prefix(broker: InMemoryBroker) -> None:
    broker.add_topic("dlq.closed")
    broker.add_topic("other", 1, ALLOWED)
    broker.add_topic("__internal", 1, ALLOWED)
    assert "errors.deadletterqueue.group.enable" in str(refusal(broker, "dlq.closed"))
    assert PREFIX in str(refusal(broker, "other"))
    assert find(broker, "other", **{PREFIX: ""}).name == "other"
    assert refusal(broker, "__internal", **{PREFIX: ""}).code is ErrorCode.INVALID_CONFIG
    missing = refusal(broker, "dlq.missing")
    assert (missing.code, AUTO_CREATE in str(missing)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)


def test_a_topic_is_created_once(broker: InMemoryBroker) -> None:
    def answer(request: CreateTopicsRequest) -> CreateTopicsResponse:
        (topic,) = request.topics
        assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
        configs = {config.name: config.value for config in topic.configs}
        assert configs == {**ALLOWED, "message.timestamp.type": "CreateTime"}
        return CreateTopicsResponse(topics=[CreatableTopicResult(topic.name)])

    broker.controller.answer = answer
    topics = topics_of(broker, **{AUTO_CREATE: "true"})

    async def ask_twice() -> list[TopicState | BaseException]:
        return await asyncio.gather(topics.find("dlq.t"), topics.find("dlq.t"), return_exceptions=True)

    for error in broker.runner.run(ask_twice()):
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.LEADER_NOT_AVAILABLE, "the broker learns of the topic a little later"
    assert len(broker.controller.forwarded) == 1
    broker.add_topic("dlq.t", 1, ALLOWED)
    assert broker.runner.run(topics.find("dlq.t")).name == "dlq.t"
    assert len(broker.controller.forwarded) == 1


def test_the_refusal_of_the_controller_is_raised(broker: InMemoryBroker) -> None:
    codes = [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_REPLICATION_FACTOR]

    def answer(request: CreateTopicsRequest) -> CreateTopicsResponse:
        result = CreatableTopicResult("dlq.t", error_code=codes.pop(0), error_message="no brokers")
        return CreateTopicsResponse(topics=[result])

    broker.controller.answer = answer
    assert refusal(broker, "dlq.t", **{AUTO_CREATE: "true"}).code is ErrorCode.LEADER_NOT_AVAILABLE
    refused = refusal(broker, "dlq.t", **{AUTO_CREATE: "true"})
    assert (refused.code, "no brokers" in str(refused)) == (ErrorCode.INVALID_REPLICATION_FACTOR, True)
