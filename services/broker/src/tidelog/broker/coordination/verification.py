"""Produce asks a transaction's coordinator whether a partition takes part, or has it take part (KIP-890)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from tidelog.broker.coordination.calls import Call, PassedOnRequest
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from tidelog.broker.coordination.coordination import Coordination

TIMEOUT_MS: Final = 30_000
_VERSION: Final = 5


async def add_partitions(
    coordination: Coordination,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Collection[TopicPartition],
    *,
    verify_only: bool,
) -> dict[TopicPartition, ErrorCode]:
    body = _question(transactional_id, producer_id, producer_epoch, partitions, verify_only=verify_only)
    answer, error = await _ask(coordination, transactional_id, body)
    return _told(answer, error, partitions)


def ask_for_one(
    coordination: Coordination,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partition: TopicPartition,
    *,
    verify_only: bool,
    on_told: Callable[[ErrorCode], None],
) -> None:
    """The same without a task: `on_told` is called in the moment in which the answer comes, so before
    anything that the coordinator says later.
    """
    body = _question(transactional_id, producer_id, producer_epoch, (partition,), verify_only=verify_only)

    def on_answered(answer: bytes | None, error: ErrorCode) -> None:
        on_told(_told(answer, error, (partition,))[partition])

    call = Call(PassedOnRequest(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION, body), on_answered)
    refused = coordination.ask_owner(coordination.shard_of(ShardKind.TRANSACTION, transactional_id), call)
    if refused:
        on_told(refused)


def _question(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Collection[TopicPartition],
    *,
    verify_only: bool,
) -> bytes:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition.partition)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id,
        producer_id,
        producer_epoch,
        verify_only,
        [AddPartitionsToTxnTopic(topic, indexes) for topic, indexes in by_topic.items()],
    )
    encode = codec.request_encoder(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION)
    return b"".join(encode(AddPartitionsToTxnRequest([transaction])))


def _told(
    answer: bytes | None, error: ErrorCode, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    if answer is None:
        return dict.fromkeys(partitions, error)
    response: AddPartitionsToTxnResponse = codec.response_decoder(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION)(
        answer, 0
    )[0]
    told = {
        TopicPartition(topic.name, result.partition_index): ErrorCode(result.partition_error_code)
        for transaction_result in response.results_by_transaction
        for topic in transaction_result.topic_results
        for result in topic.results_by_partition
    }
    otherwise = ErrorCode(response.error_code) or ErrorCode.UNKNOWN_SERVER_ERROR
    return {partition: told.get(partition, otherwise) for partition in partitions}


async def _ask(
    coordination: Coordination, transactional_id: str, body: bytes
) -> tuple[bytes | None, ErrorCode]:
    answered: asyncio.Future[tuple[bytes | None, ErrorCode]] = asyncio.get_running_loop().create_future()

    def on_answered(answer: bytes | None, error: ErrorCode) -> None:
        if not answered.done():
            answered.set_result((answer, error))

    call = Call(PassedOnRequest(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION, body), on_answered)
    refused = coordination.ask_owner(coordination.shard_of(ShardKind.TRANSACTION, transactional_id), call)
    if refused:
        return None, refused
    timer = coordination.broker.timer
    expiry = timer.add(lambda: on_answered(None, ErrorCode.REQUEST_TIMED_OUT), timer.now_ms() + TIMEOUT_MS)
    try:
        return await answered
    finally:
        expiry.cancel()
        call.abandon()
