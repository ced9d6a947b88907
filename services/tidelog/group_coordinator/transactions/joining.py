"""AddPartitionsToTxn and AddOffsetsToTxn: adding partitions to a transaction, and verifying them.

Source: KIP-98. From version 4 on a request holds many transactions and can only verify them (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from tidelog.group_coordinator.transactions.transaction import (
    BUMPING_VERSION,
    PREPARED,
    Transaction,
    TransactionStatus,
    with_partitions,
)
from tidelog.model.coordinator_shards import ShardKind, shard_for
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

FIRST_BATCHED_VERSION: Final = 4
_KNOWS_ABORTABLE_FROM: Final = 5
"""The version of AddPartitionsToTxn from which clients know TRANSACTION_ABORTABLE."""

Errors: TypeAlias = Mapping[TopicPartition, ErrorCode]


class Joiner(NamedTuple):
    """The producer that adds partitions to its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def version_of(api_version: int) -> int:
    """Returns the `transaction.version` of a client.

    Only brokers send the batched versions, on behalf of clients that support KIP-890.
    """
    return BUMPING_VERSION if api_version >= FIRST_BATCHED_VERSION else 0


def partitions_of(topics: Sequence[AddPartitionsToTxnTopic]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def offsets_partition(group_id: str, partition_count: int) -> TopicPartition:
    return shard_for(ShardKind.GROUP, group_id, partition_count).topic_partition


def _check(current: Transaction | None, joiner: Joiner) -> ErrorCode:
    if not joiner.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if current is None or current.producer_id != joiner.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if current.producer_epoch != joiner.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if current.status in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def joined(
    current: Transaction | None,
    joiner: Joiner,
    partitions: frozenset[TopicPartition],
    version: int,
    now_ms: WallMs,
) -> tuple[ErrorCode, Transaction | None]:
    """Returns an error, and the next state; None if nothing changes."""
    error = _check(current, joiner)
    if error is not ErrorCode.NONE or current is None:
        return error, None
    if current.status is TransactionStatus.ONGOING and partitions <= current.partitions:
        return ErrorCode.NONE, None
    return ErrorCode.NONE, with_partitions(current, partitions, version, now_ms)


def verified(
    current: Transaction | None,
    joiner: Joiner,
    topics: Sequence[AddPartitionsToTxnTopic],
    api_version: int,
) -> Errors:
    """Returns for each partition whether it is part of the producer's transaction."""
    partitions = partitions_of(topics)
    error = _check(current, joiner)
    if error is not ErrorCode.NONE or current is None:
        return dict.fromkeys(partitions, error)
    is_under_way = current.status is TransactionStatus.ONGOING
    missing = (
        ErrorCode.TRANSACTION_ABORTABLE
        if api_version >= _KNOWS_ABORTABLE_FROM
        else ErrorCode.INVALID_TXN_STATE
    )
    return {
        partition: ErrorCode.NONE if is_under_way and partition in current.partitions else missing
        for partition in partitions
    }


def topic_results(
    topics: Sequence[AddPartitionsToTxnTopic], errors: Errors
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            topic.name,
            [
                AddPartitionsToTxnPartitionResult(index, int(errors[TopicPartition(topic.name, index)]))
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def result_of(asked: AddPartitionsToTxnTransaction, errors: Errors) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(asked.transactional_id, topic_results(asked.topics, errors))


def batched_response(results: list[AddPartitionsToTxnResult]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_transaction=results)
