"""Metadata responses are kept while they are valid, and their number and size are bounded."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerlab.in_memory_broker import InMemoryBroker, make_context
from tidelog.broker.handlers.metadata import MAX_ANSWER_BYTES, MAX_ANSWERS, MetadataAnswers
from tidelog.broker.requests.request import EncodedBody
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import PartitionState, TopicState
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

VERSION = 12


def handle(
    lab: InMemoryBroker, *names: str, listener_name: str = "PLAINTEXT", edit: Any = None, **fields: Any
) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, **{"allow_auto_topic_creation": False, **fields})
    route = SimpleNamespace(encode=codec.response_encoder(ApiKey.METADATA, VERSION))
    context = make_context(
        VERSION,
        listener_name=listener_name,
        route=route,
        edit=edit,
    )
    return lab.handle(ApiKey.METADATA, request, context)


def decoded(body: EncodedBody) -> MetadataResponse:
    encoded = b"".join(bytes(chunk) for chunk in body.chunks)
    message, _ = codec.response_decoder(ApiKey.METADATA, VERSION)(encoded, 0)
    return cast(MetadataResponse, message)


def test_responses_are_kept_until_the_metadata_changes(lab: InMemoryBroker) -> None:
    lab.add_topic("a")
    first = handle(lab, "a", "b")
    assert handle(lab, "a", "b") is first
    lab.add_topic("b")
    later = handle(lab, "a", "b")
    assert later is not first
    assert [topic.error_code for topic in decoded(later).topics] == [0, 0]


def test_a_response_that_will_be_edited_is_not_one_that_is_kept(lab: InMemoryBroker) -> None:
    """The edit would have to decode it, and a large one in one turn of the event loop."""
    handle(lab, "a")
    assert isinstance(handle(lab, "a", edit=lambda _: None), MetadataResponse)


def test_each_listener_gets_its_own_addresses(lab: InMemoryBroker) -> None:
    ports = [
        [broker.port for broker in decoded(handle(lab, listener_name=name)).brokers]
        for name in ("PLAINTEXT", "INTERNAL")
    ]
    assert ports == [[9092, 9092], [9093]]


@pytest.mark.parametrize(
    ("name", "code"),
    [("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("no/where", ErrorCode.INVALID_TOPIC_EXCEPTION)],
)
def test_unknown_and_invalid_topics(lab: InMemoryBroker, name: str, code: ErrorCode) -> None:
    assert decoded(handle(lab, name)).topics[0].error_code == code


def test_by_topic_id(lab: InMemoryBroker) -> None:
    topic_id = lab.add_topic("a")
    asked = [MetadataRequestTopic(name=None, topic_id=named) for named in (topic_id, uuid.UUID(int=7))]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=True)
    route = SimpleNamespace(encode=codec.response_encoder(ApiKey.METADATA, VERSION))
    context = make_context(VERSION, route=route)
    topics = decoded(lab.handle(ApiKey.METADATA, request, context)).topics
    assert [(topic.name, topic.error_code) for topic in topics] == [
        ("a", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize("name", [None, "", "other"])
def test_a_topic_id_decides_whatever_the_name_is(lab: InMemoryBroker, name: str | None) -> None:
    """Kafka's Java client leaves the name at its default, "", when it asks by id."""
    lab.add_topic("a")
    lab.add_topic("other")
    known, unknown = lab.broker.metadata.topics["a"].topic_id, uuid.UUID(int=5)
    topics = [MetadataRequestTopic(known, name), MetadataRequestTopic(unknown, name)]
    answer = lab.call(MetadataRequest(topics=topics), VERSION)
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in answer.topics] == [
        ("a", known, ErrorCode.NONE),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


def test_a_topic_is_created_if_that_is_allowed(lab: InMemoryBroker) -> None:
    def create(request: Any) -> CreateTopicsResponse:
        (topic,) = request.topics
        lab.broker.metadata.topics[topic.name] = lab.broker.metadata.topics["known"]
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=topic.name)])

    lab.add_topic("known")
    lab.controller.answer = create
    answer = lab.runner.run(handle(lab, "new", "new", allow_auto_topic_creation=True))
    assert [topic.error_code for topic in answer.topics] == [0]
    assert len(lab.controller.forwarded) == 1


def test_internal_topics_are_created_with_their_own_settings(lab: InMemoryBroker) -> None:
    made = []

    def create(request: Any) -> CreateTopicsResponse:
        made.extend(request.topics)
        return CreateTopicsResponse()

    lab.controller.answer = create
    lab.runner.run(handle(lab, "__consumer_offsets", "new", allow_auto_topic_creation=True))
    assert [(topic.name, topic.num_partitions) for topic in made] == [("__consumer_offsets", 50), ("new", -1)]


@pytest.mark.parametrize(
    "failure", [KafkaError(ErrorCode.NOT_CONTROLLER), ConnectionError("the controller is away")]
)
def test_the_client_retries_if_the_controller_cannot_be_reached(
    lab: InMemoryBroker, failure: Exception
) -> None:
    def fail(_: Any) -> CreateTopicsResponse:
        raise failure

    lab.controller.answer = fail
    answer = lab.runner.run(handle(lab, "new", allow_auto_topic_creation=True))
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.LEADER_NOT_AVAILABLE]


# -- kept responses


def test_the_number_of_kept_responses_is_bounded() -> None:
    answers, body = MetadataAnswers(), EncodedBody([b"x"])
    for number in range(10 * MAX_ANSWERS):
        answers.put((number,), 1, body)
        assert answers.get((number,), 1) is body
        kept = sum(answers.get((known,), 1) is not None for known in range(number + 1))
        assert kept <= MAX_ANSWERS


def test_the_bytes_of_kept_responses_are_bounded() -> None:
    answers, body = MetadataAnswers(), EncodedBody([bytes(MAX_ANSWER_BYTES // 3)])
    for number in range(20):
        answers.put((number,), 1, body)
        known = (answers.get((earlier,), 1) for earlier in range(number + 1))
        assert sum(len(kept.chunks[0]) for kept in known if kept is not None) <= MAX_ANSWER_BYTES
    answers.put(("large",), 1, EncodedBody([bytes(MAX_ANSWER_BYTES + 1)]))
    assert answers.get(("large",), 1) is None


def test_a_response_of_another_version_is_not_returned() -> None:
    answers, body = MetadataAnswers(), EncodedBody([b"x"])
    answers.put(("key",), 1, body)
    assert answers.get(("key",), 2) is None
    answers.put(("other",), 2, body)
    assert answers.get(("key",), 1) is None
    assert answers.get(("key",), 2) is None


def test_a_topic_that_is_named_often_is_described_once(lab: InMemoryBroker) -> None:
    lab.add_topic("a")
    answer = decoded(handle(lab, *["a"] * 5, "b", "a"))
    assert [topic.name for topic in answer.topics] == ["a", "b"]


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("named", [(None, 0), ("a", 7)])
def test_a_null_name_or_an_id_before_v12_is_an_invalid_request(
    lab: InMemoryBroker, version: int, named: tuple[str | None, int]
) -> None:
    lab.add_topic("a")
    name, topic_id = named
    request = MetadataRequest(topics=[MetadataRequestTopic(uuid.UUID(int=topic_id), name)])
    (topic,) = lab.call(request, version).topics
    assert (topic.error_code, topic.name) == (ErrorCode.INVALID_REQUEST, name or "")


def test_many_topics_are_described_in_slices(lab: InMemoryBroker) -> None:
    names = [f"t{number}" for number in range(20_000)]
    answer = handle(lab, *names)
    assert asyncio.iscoroutine(answer)
    assert [topic.name for topic in decoded(lab.runner.run(answer)).topics] == names


def test_the_oldest_version_leaves_out_replicas_at_dead_brokers(lab: InMemoryBroker) -> None:
    dead = 99
    topic_id = lab.add_topic("t")
    state = PartitionState("t", topic_id, 0, 1, 3, (1, dead), (1, dead), 7, partition_epoch=1)
    lab.update_metadata(topics=(TopicState("t", topic_id, (state,), {}),))
    request = MetadataRequest([MetadataRequestTopic(name="t")])
    (old,) = lab.call(request, 0).topics[0].partitions
    assert (old.error_code, old.replica_nodes, old.isr_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1], [1])
    (new,) = lab.call(request, 5).topics[0].partitions
    assert (new.error_code, new.replica_nodes, new.offline_replicas) == (0, [1, dead], [dead])
