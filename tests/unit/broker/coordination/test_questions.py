"""Requests of coordinators to brokers that do not concern their shards, and produce's requests to
coordinators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from brokerlab.in_memory_broker import BROKER_ID, OTHER_BROKER_ID, InMemoryBroker, until
from brokerlab.scripted_coordinator import ScriptedCoordinator, decoded, shard_partitions
from tidelog.kernel.timer import VirtualTimer
from tidelog.model.coordinator_shards import ShardKind, shard_for
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import (
    AnswerRequest,
    AskOffsets,
    AskProducerIds,
    ForwardedToShard,
    OffsetsTold,
    PartitionOffsets,
    ProducerIdsTold,
    ServedShard,
    ServeShards,
)
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

WEEK_MS = 7 * 24 * 3600 * 1000
"""The default of retention.ms."""


def answered(lab: InMemoryBroker, coordinator: ScriptedCoordinator, *items: Any) -> None:
    async def ask() -> None:
        coordinator.say(*items)
        await until(lambda: len(coordinator.sent) >= len(items))

    lab.runner.run(ask())


def test_producer_ids_come_from_the_controller(lab: InMemoryBroker) -> None:
    coordinator = ScriptedCoordinator(lab)
    answered(lab, coordinator, AskProducerIds(4))
    assert coordinator.take_one(ProducerIdsTold) == ProducerIdsTold(4, 0, 1000)


@pytest.mark.parametrize("failure", [KafkaError(ErrorCode.NOT_CONTROLLER), ConnectionError("away")])
def test_without_a_controller_there_are_no_producer_ids(
    lab: InMemoryBroker, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(lab.controller, "allocate_producer_ids", fail)
    coordinator = ScriptedCoordinator(lab)
    answered(lab, coordinator, AskProducerIds(4))
    assert coordinator.take_one(ProducerIdsTold) == ProducerIdsTold(4, 0, 0)


def test_offsets_have_the_time_of_the_first_unread_batch(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    lab.add_topic("elsewhere", leader=OTHER_BROKER_ID)
    times = []
    for _ in range(3):
        times.append(lab.clock.wall_ms())
        lab.append("t", 2)
        lab.clock.advance(1000)
    partition = TopicPartition("t", 0)
    coordinator = ScriptedCoordinator(lab)
    asked = [(partition, offset) for offset in (0, 1, 2, 5, 6, 9, -1)]
    answered(lab, coordinator, AskOffsets(1, (*asked, (TopicPartition("elsewhere", 0), 0))))
    told = coordinator.take_one(OffsetsTold)
    assert told.partitions == (
        *(
            PartitionOffsets(0, 6, 6, time, WEEK_MS)
            for time in (times[0], times[0], times[1], times[2], -1, -1, -1)
        ),
        PartitionOffsets(-1, -1, -1, -1),
    )


def test_an_open_transaction_shows_in_the_last_stable_offset(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    lab.append("t", 2)
    lab.append("t", 3, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    coordinator = ScriptedCoordinator(lab)
    answered(lab, coordinator, AskOffsets(1, ((TopicPartition("t", 0), 5),)))
    assert coordinator.take_one(OffsetsTold).partitions[0][:3] == (0, 5, 2)


def test_many_offsets_are_answered_in_order(lab: InMemoryBroker) -> None:
    lab.add_topic("t", 3)
    lab.append("t", 1, 1)
    coordinator = ScriptedCoordinator(lab)
    asked = tuple((TopicPartition("t", number % 4), 0) for number in range(1001))
    answered(lab, coordinator, AskOffsets(1, asked))
    told = coordinator.take_one(OffsetsTold).partitions
    assert [one.high_watermark for one in told] == [(0, 1, 0, -1)[number % 4] for number in range(1001)]


# -- verification


PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 3), TopicPartition("u", 1))


def ask(
    lab: InMemoryBroker, *, verify_only: bool = True
) -> Coroutine[Any, Any, dict[TopicPartition, ErrorCode]]:
    return lab.broker.coordination.verification.add_partitions(
        "tx", 7, 3, PARTITIONS, verify_only=verify_only
    )


def test_without_an_owner_produce_gets_a_retriable_error(lab: InMemoryBroker) -> None:
    told = dict.fromkeys(PARTITIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert lab.runner.run(ask(lab)) == told  # no topic either
    shard_partitions(lab, ShardKind.TRANSACTION, leaders=(OTHER_BROKER_ID,))
    assert lab.runner.run(ask(lab)) == told


@pytest.mark.parametrize("verify_only", [False, True])
def test_the_owner_is_asked_even_if_its_partition_is_led_elsewhere(
    lab: InMemoryBroker, verify_only: bool
) -> None:
    leaders = (OTHER_BROKER_ID, BROKER_ID, OTHER_BROKER_ID)
    shards = shard_partitions(lab, ShardKind.TRANSACTION, leaders=leaders)
    older, owner = ScriptedCoordinator(lab, 1), ScriptedCoordinator(lab, 2)
    owner.say(ServeShards(tuple(ServedShard(shard, 2) for shard in shards)))
    older.say(ServeShards(tuple(ServedShard(shard, 1) for shard in shards)))

    async def produce() -> dict[TopicPartition, ErrorCode]:
        asked = asyncio.ensure_future(ask(lab, verify_only=verify_only))
        await until(lambda: bool(owner.sent))
        forwarded = owner.take_one(ForwardedToShard)
        assert forwarded.shard == shard_for(ShardKind.TRANSACTION, "tx", 3)
        topics = [AddPartitionsToTxnTopic("t", [0, 3]), AddPartitionsToTxnTopic("u", [1])]
        transaction = AddPartitionsToTxnTransaction("tx", 7, 3, verify_only, topics)
        assert decoded(forwarded) == AddPartitionsToTxnRequest([transaction])
        results = [
            AddPartitionsToTxnTopicResult("u", [AddPartitionsToTxnPartitionResult(1, 48)]),
            AddPartitionsToTxnTopicResult("t", [AddPartitionsToTxnPartitionResult(3, 0)]),
        ]
        response = AddPartitionsToTxnResponse(
            results_by_transaction=[AddPartitionsToTxnResult("tx", results)]
        )
        owner.answer(forwarded, response)
        return await asked

    told = lab.runner.run(produce())
    assert told == {
        PARTITIONS[0]: ErrorCode.UNKNOWN_SERVER_ERROR,  # the answer does not contain it
        PARTITIONS[1]: ErrorCode.NONE,
        PARTITIONS[2]: ErrorCode.INVALID_TXN_STATE,
    }


def test_the_owners_refusal_or_loss_applies_to_each_partition(lab: InMemoryBroker) -> None:
    shards = shard_partitions(lab, ShardKind.TRANSACTION)
    for ends in (False, True):
        owner = ScriptedCoordinator(lab)
        owner.say(ServeShards((ServedShard(shards[0], 2),)))

        async def produce(owner: ScriptedCoordinator, ends: bool) -> dict[TopicPartition, ErrorCode]:
            asked = asyncio.ensure_future(ask(lab))
            await until(lambda: bool(owner.sent))
            if ends:
                owner.end.closed()
            else:
                request_id = owner.take_one(ForwardedToShard).request_id
                owner.say(AnswerRequest(request_id, None, ErrorCode.NOT_COORDINATOR))
            return await asked

        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if ends else ErrorCode.NOT_COORDINATOR
        assert lab.runner.run(produce(owner, ends)) == dict.fromkeys(PARTITIONS, code)


def test_the_wait_for_a_silent_owner_is_limited(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab, ShardKind.TRANSACTION)
    owner = ScriptedCoordinator(lab)
    owner.say(ServeShards((ServedShard(shard, 2),)))

    async def produce() -> dict[TopicPartition, ErrorCode]:
        asked = asyncio.ensure_future(ask(lab))
        await until(lambda: bool(owner.sent))
        timer = lab.broker.timer
        assert isinstance(timer, VirtualTimer)
        timer.advance(timer.monotonic_ms() + BrokerSettings().request_timeout_ms + 1000)
        return await asked

    assert lab.runner.run(produce()) == dict.fromkeys(PARTITIONS, ErrorCode.REQUEST_TIMED_OUT)
