"""TxnOffsetCommit: the broker asks the transaction's coordinator before it passes the request on to the
group's.
"""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest

from brokerlab.in_memory_broker import Asked, InMemoryBroker
from brokerlab.scripted_coordinator import ScriptedCoordinator, decoded, shard_partitions
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.rpc.coordinator_session import ForwardedToShard
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidelog.wire.schema import ZERO_UUID

TOPIC_ID = UUID(int=7)
OFFSETS = ShardKind.GROUP.topic
REQUEST = TxnOffsetCommitRequest(
    "copier",
    "group",
    7,
    3,
    topics=[TxnOffsetCommitRequestTopic("t", TOPIC_ID, [TxnOffsetCommitRequestPartition(3, 7)])],
)
WITH_IT = pytest.mark.parametrize("version", range(7))


def verdict(error: ErrorCode) -> AddPartitionsToTxnResponse:
    result = AddPartitionsToTxnPartitionResult(0, error)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult("copier", [AddPartitionsToTxnTopicResult(OFFSETS, [result])])
        ]
    )


def answer(error: ErrorCode = ErrorCode.NONE, version: int = 5) -> TxnOffsetCommitResponse:
    named = ("", TOPIC_ID) if version >= 6 else ("t", ZERO_UUID)
    return TxnOffsetCommitResponse(
        topics=[TxnOffsetCommitResponseTopic(*named, [TxnOffsetCommitResponsePartition(3, error)])]
    )


def both_owned(lab: InMemoryBroker) -> ScriptedCoordinator:
    lab.add_topic("t", 4)
    shards = [*shard_partitions(lab, ShardKind.GROUP), *shard_partitions(lab, ShardKind.TRANSACTION)]
    coordinator = ScriptedCoordinator(lab)
    coordinator.own(*shards)
    return coordinator


@WITH_IT
def test_the_group_receives_offsets_after_the_transaction_has_its_partition(
    lab: InMemoryBroker, version: int
) -> None:
    coordinator = both_owned(lab)
    asked = Asked(lab.broker, REQUEST, version)
    question = coordinator.take_one(ForwardedToShard)
    assert (question.shard, question.api_key) == (
        ShardId(ShardKind.TRANSACTION, 0),
        ApiKey.ADD_PARTITIONS_TO_TXN,
    )
    [transaction] = decoded(question).transactions
    assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == (
        "copier",
        7,
        3,
    )
    assert transaction.topics == [AddPartitionsToTxnTopic(OFFSETS, [0])]
    assert transaction.verify_only is (version < 5)
    coordinator.answer(question, verdict(ErrorCode.NONE))
    forwarded = coordinator.take_one(ForwardedToShard)
    assert (forwarded.shard, forwarded.api_key) == (
        ShardId(ShardKind.GROUP, 0),
        ApiKey.TXN_OFFSET_COMMIT,
    )
    assert forwarded.body == asked.request_body
    assert asked.answer is None
    coordinator.answer(forwarded, answer(version=version))
    assert asked.answer == answer(version=version)


@pytest.mark.parametrize(
    ("version", "said", "told"),
    [
        (5, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (5, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_the_group_never_receives_offsets_outside_a_transaction(
    lab: InMemoryBroker, version: int, said: ErrorCode, told: ErrorCode
) -> None:
    coordinator = both_owned(lab)
    asked = Asked(lab.broker, REQUEST, version)
    coordinator.answer(coordinator.take_one(ForwardedToShard), verdict(said))
    assert asked.answer == answer(told)
    assert not coordinator.take(ForwardedToShard)


# From v6 on, topics have ids, and the group's coordinator refuses an unknown one.
@pytest.mark.parametrize("version", range(6))
def test_nobody_is_asked_about_an_empty_group_or_a_topic_that_does_not_exist(
    lab: InMemoryBroker, version: int
) -> None:
    coordinator = both_owned(lab)
    nowhere = TxnOffsetCommitRequestTopic("nowhere", partitions=[TxnOffsetCommitRequestPartition(3, 7)])
    for changed, code in (
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"topics": [nowhere]}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        asked = Asked(lab.broker, dataclasses.replace(REQUEST, **changed), version)
        assert asked.answer is not None
        [[part]] = [topic.partitions for topic in asked.answer.topics]
        assert part.error_code == code
    assert not coordinator.take(ForwardedToShard)


def test_without_the_transactions_coordinator_the_error_is_retriable(lab: InMemoryBroker) -> None:
    lab.add_topic("t", 4)
    coordinator = ScriptedCoordinator(lab)
    coordinator.own(*shard_partitions(lab, ShardKind.GROUP))
    shard_partitions(lab, ShardKind.TRANSACTION)
    asked = Asked(lab.broker, REQUEST, 5)
    assert asked.answer == answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
