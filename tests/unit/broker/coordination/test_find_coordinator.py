"""FindCoordinator: the leader of the shard's partition, and the creation of internal topics."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from brokerlab.in_memory_broker import BROKER_ID, OTHER_BROKER_ID, Asked, InMemoryBroker, until
from brokerlab.scripted_coordinator import ScriptedCoordinator, shard_partitions
from tidelog.broker.handlers import coordinators
from tidelog.model.coordinator_shards import ShardId, ShardKind, shard_for
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import PartitionState, TopicState
from tidelog.rpc.coordinator_session import ServedShard, ServeShards
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest

GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2


@pytest.fixture(autouse=True)
def no_coordinator_is_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "FIRST_CLAIM_MS", 20)


def ask(lab: InMemoryBroker, request: FindCoordinatorRequest, version: int) -> Any:
    async def answered() -> Any:
        asked = Asked(lab.broker, request, version)
        await until(lambda: asked.answer is not None)
        return asked.answer

    return lab.runner.run(answered())


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize(
    ("key_type", "kind"), [(GROUP_KEY, ShardKind.GROUP), (TRANSACTION_KEY, ShardKind.TRANSACTION)]
)
def test_the_response_names_the_leader_of_the_shards_partition(
    lab: InMemoryBroker, version: int, key_type: int, kind: ShardKind
) -> None:
    if version == 0 and kind is ShardKind.TRANSACTION:
        return  # version 0 knows groups only
    leaders = (BROKER_ID, OTHER_BROKER_ID) * 5
    shard_partitions(lab, kind, leaders=leaders)
    for key in ("a", "b", "my-group", "Äpfel", ""):
        if version < 4:
            found = ask(lab, FindCoordinatorRequest(key, key_type), version)
        else:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            (found,) = ask(lab, request, version).coordinators
            assert found.key == key
        leader = leaders[shard_for(kind, key, 10).partition]
        assert (found.error_code, found.node_id, found.port) == (0, leader, 9092), key


def test_several_keys_are_answered_in_order(lab: InMemoryBroker) -> None:
    shard_partitions(lab, leaders=(BROKER_ID, -1, OTHER_BROKER_ID))
    keys = [f"group-{number}" for number in range(9)]
    answer = ask(lab, FindCoordinatorRequest(coordinator_keys=keys), 4)
    assert [found.key for found in answer.coordinators] == keys
    for found in answer.coordinators:
        partition = shard_for(ShardKind.GROUP, found.key, 3).partition
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if partition == 1 else 0
        assert found.error_code == code
        assert found.node_id == (BROKER_ID, -1, OTHER_BROKER_ID)[partition]


@pytest.mark.parametrize(
    ("kind", "key_type", "key"),
    [
        (ShardKind.GROUP, GROUP_KEY, "g"),
        (ShardKind.TRANSACTION, TRANSACTION_KEY, "t"),
        (ShardKind.SHARE, SHARE_KEY, "g:AAAAAAAAAAAAAAAAAAAAAQ:0"),
    ],
    ids=lambda value: getattr(value, "value", None),
)
def test_a_broker_that_is_not_registered_is_not_named(
    lab: InMemoryBroker, kind: ShardKind, key_type: int, key: str
) -> None:
    shard_partitions(lab, kind, leaders=(9,))
    answer = ask(lab, FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 6)
    (found,) = answer.coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    shard_partitions(lab, kind, leaders=(OTHER_BROKER_ID,), leader_epoch=4, partition_epoch=2)
    (found,) = ask(lab, FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 6).coordinators
    assert (found.error_code, found.node_id) == (0, OTHER_BROKER_ID)


@pytest.mark.parametrize("version", [3, 4, 6])
@pytest.mark.parametrize("key_type", [SHARE_KEY, 3, -1])  # "g" is not the key of a share partition
def test_other_keys_have_no_coordinator(lab: InMemoryBroker, version: int, key_type: int) -> None:
    request = FindCoordinatorRequest("g", key_type, ["g"] if version >= 4 else [])
    answer = ask(lab, request, version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)


def creation(lab: InMemoryBroker, then: Callable[[], None]) -> list[CreateTopicsRequest]:
    made = []

    def answer(request: CreateTopicsRequest) -> CreateTopicsResponse:
        made.append(request)
        then()
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=request.topics[0].name)])

    lab.controller.answer = answer
    return made


@pytest.mark.parametrize(
    ("key_type", "kind", "configs"),
    [
        (
            GROUP_KEY,
            ShardKind.GROUP,
            {"cleanup.policy": "compact", "segment.bytes": "104857600", "compression.type": "producer"},
        ),
        (
            TRANSACTION_KEY,
            ShardKind.TRANSACTION,
            {
                "cleanup.policy": "compact",
                "segment.bytes": "104857600",
                "compression.type": "uncompressed",
                "min.insync.replicas": "2",
                "unclean.leader.election.enable": "false",
            },
        ),
    ],
)
def test_the_first_request_creates_the_topic_with_kafkas_settings(
    lab: InMemoryBroker, key_type: int, kind: ShardKind, configs: dict[str, str]
) -> None:
    made = creation(lab, lambda: None)
    answer = ask(lab, FindCoordinatorRequest("g", key_type), 3)
    # The controller answered before its commands arrived, so the leader is not known yet.
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (topic,) = made[0].topics
    assert (topic.name, topic.num_partitions) == (kind.topic, 50)
    assert topic.replication_factor == 2  # there are no three brokers
    assert {config.name: config.value for config in topic.configs} == configs
    assert {key for key, _ in lab.controller.forwarded} == {ApiKey.CREATE_TOPICS}


def test_settings_determine_the_internal_topics(make_broker: Callable[..., InMemoryBroker]) -> None:
    lab = make_broker(
        {
            "offsets.topic.num.partitions": "7",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.segment.bytes": "1048576",
            "transaction.state.log.num.partitions": "3",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "2",
        }
    )
    made = creation(lab, lambda: None)
    for key_type in (GROUP_KEY, TRANSACTION_KEY):
        ask(lab, FindCoordinatorRequest("g", key_type), 3)
    offsets, transactions = (request.topics[0] for request in made)
    assert (offsets.num_partitions, offsets.replication_factor) == (7, 1)
    assert (transactions.num_partitions, transactions.replication_factor) == (3, 1)
    settings = {config.name: config.value for config in transactions.configs}
    assert settings["min.insync.replicas"] == "1"  # at most the number of replicas


def test_a_configured_replication_factor_applies_even_with_fewer_brokers(
    make_broker: Callable[..., InMemoryBroker],
) -> None:
    factors = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
    lab = make_broker(dict.fromkeys(factors, "3"))
    made = creation(lab, lambda: None)
    for key_type in (GROUP_KEY, TRANSACTION_KEY):
        ask(lab, FindCoordinatorRequest("g", key_type), 3)
    # Otherwise a cluster that is still starting would keep its groups on one broker forever.
    assert [request.topics[0].replication_factor for request in made] == [3, 3]


def test_concurrent_requests_create_one_topic(lab: InMemoryBroker) -> None:
    made = creation(lab, lambda: None)

    async def all_at_once() -> None:
        asked = [Asked(lab.broker, FindCoordinatorRequest(f"g{number}"), 3) for number in range(20)]
        await until(lambda: all(one.answer is not None for one in asked))

    lab.runner.run(all_at_once())
    assert len(made) == 1


@pytest.mark.parametrize("failure", [KafkaError(ErrorCode.NOT_CONTROLLER), ConnectionError("away")])
def test_without_a_controller_the_error_is_retriable(lab: InMemoryBroker, failure: Exception) -> None:
    def answer(_: Any) -> Any:
        raise failure

    lab.controller.answer = answer
    assert ask(lab, FindCoordinatorRequest("g"), 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_first_client_is_answered_when_its_shard_is_served(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "FIRST_CLAIM_MS", 60_000)
    shard = ShardId(ShardKind.GROUP, 0)
    state = PartitionState(
        shard.kind.topic, uuid.uuid4(), 0, OTHER_BROKER_ID, 0, (OTHER_BROKER_ID,), (OTHER_BROKER_ID,), 7, 1
    )
    metadata = lab.broker.metadata

    def appear() -> None:
        metadata.topics = {state.topic: TopicState(state.topic, state.topic_id, (state,), {})}

    creation(lab, appear)
    coordinator = ScriptedCoordinator(lab)

    async def ask_then_serve() -> Asked:
        asked = Asked(lab.broker, FindCoordinatorRequest("g"), 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert state.topic in metadata.topics and asked.answer is None
        coordinator.say(ServeShards((ServedShard(shard, 1),)))
        await until(lambda: asked.answer is not None)
        return asked

    assert lab.runner.run(ask_then_serve()).answer.node_id == OTHER_BROKER_ID


def test_long_keys_are_not_kept(lab: InMemoryBroker) -> None:
    shard_partitions(lab, ShardKind.GROUP, leaders=(BROKER_ID,) * 5)
    long = "x" * 32_000
    known = sys.getrefcount(long)
    assert lab.broker.coordination.shard_of(ShardKind.GROUP, long) == shard_for(ShardKind.GROUP, long, 5)
    assert sys.getrefcount(long) == known
