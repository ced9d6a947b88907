"""Produce within a transaction: before a partition's first batch the coordinator is asked whether it knows of
the transaction and the partition (KIP-890). Called by `produce.py`.

Up to v11 the client has told the coordinator itself (AddPartitionsToTxn), and the coordinator is only asked;
from v12 on the question adds the partition. While the coordinator can't say, the client is told
NOT_ENOUGH_REPLICAS, so that it comes again; from v12 on CONCURRENT_TRANSACTIONS where the transaction before
is still being ended. Transactional batches in a request without a transactional id are refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED.

The requests behind the one that asks wait until its batches are appended (in Kafka: answered); those in the
middle of a transaction need not ask and wait for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.broker.connection import ClosedByProtocolError
from tidelog.broker.partition.events import VerificationAsked, VerificationRefused, VerifyTransaction
from tidelog.broker.partition.verifications import UNGUARDED
from tidelog.broker.replica import Replica
from tidelog.broker.request import PARKED
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CURRENT_MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    parse_header,
)
from tidelog.wire.messages.produce import PartitionProduceData

if TYPE_CHECKING:
    from tidelog.broker.handlers.produce import Produce

FIRST_VERSION_WITH_ABORTABLE: Final = 11
FIRST_VERSION_THAT_ADDS: Final = 12
_FOR_NOW: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class _Batch(NamedTuple):
    replica: Replica
    data: PartitionProduceData
    header: BatchHeader


def answer(produce: Produce) -> object:
    """That of a request which names a transactional id."""
    produce.guards, produce.refusals = {}, {}
    version = produce.context.api_version
    batches = list(_transactional_batches(produce))
    if len({batch.header.producer_id for batch in batches}) > 1:
        refusal = KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "The request holds batches of several producers"
        )
        produce.refusals.update((batch.replica.topic_partition, refusal) for batch in batches)
        return produce.answer()
    adds = version >= FIRST_VERSION_THAT_ADDS
    is_asked_for = adds or produce.broker.settings.transaction_partition_verification_enable
    unverified: dict[TopicPartition, _Batch] = {}
    for batch in batches:
        topic_partition = batch.replica.topic_partition
        if not is_asked_for:
            produce.guards[topic_partition] = UNGUARDED
            continue
        effects = batch.replica.core.step(VerificationAsked(batch.header, bumps_epoch=adds), produce.now_ms)
        for effect in effects:
            assert type(effect) is VerifyTransaction
            produce.guards[topic_partition] = effect.guard
            unverified[topic_partition] = batch
    if not unverified:
        return produce.answer()
    if produce.acks == 0:
        raise ClosedByProtocolError("acks=0 in a transaction that has to be verified")
    # The buffer that holds the request is used again while the coordinator is asked.
    for topic in produce.request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = memoryview(bytearray(data.records))
    return _verify_then_answer(produce, unverified)


def _transactional_batches(produce: Produce) -> Iterator[_Batch]:
    """Whatever is wrong otherwise with a batch is found when it is to be appended."""
    for topic in produce.request.topic_data:
        name = produce.topic_name(topic)
        for data in topic.partition_data:
            records = data.records
            if records is None or len(records) < BATCH_HEADER_BYTES:
                continue
            header = parse_header(records)
            if (
                header.magic != CURRENT_MAGIC
                or not header.is_transactional
                or header.producer_id == NO_PRODUCER_ID
            ):
                continue
            try:
                yield _Batch(produce.leader(name, data.index), data, header)
            except KafkaError:
                continue


async def _verify_then_answer(produce: Produce, unverified: dict[TopicPartition, _Batch]) -> object:
    version = produce.context.api_version
    errors = await _ask(produce, unverified)
    for topic_partition, batch in unverified.items():
        error = errors.get(topic_partition, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if error:
            produce.refusals[topic_partition] = refusal = refusal_for(error, version)
            if error in _FOR_NOW:
                batch.replica.core.step(VerificationRefused(batch.header, refusal.code), produce.now_ms)
    response = produce.append_all()
    if produce.unflushed or not produce.waiting:
        return await produce.acknowledged(response)
    produce.wait_on(response)
    return PARKED


async def _ask(produce: Produce, unverified: dict[TopicPartition, _Batch]) -> dict[TopicPartition, ErrorCode]:
    """No longer than the client waits. Nothing is said of a partition that could not be asked about."""
    transactional_id = produce.request.transactional_id
    assert transactional_id is not None
    header = next(iter(unverified.values())).header
    try:
        async with asyncio.timeout(max(produce.request.timeout_ms, 0) / 1000):
            return dict(
                await produce.broker.coordination.add_partitions_to_transaction(
                    transactional_id,
                    header.producer_id,
                    header.producer_epoch,
                    tuple(unverified),
                    verify_only=produce.context.api_version < FIRST_VERSION_THAT_ADDS,
                )
            )
    except TimeoutError:
        return {}
    except KafkaError as error:
        return dict.fromkeys(unverified, error.code)


def refusal_for(error: ErrorCode, version: int) -> KafkaError:
    """What the client is told: producers know fewer errors than coordinators have (Kafka: ReplicaManager,
    AddPartitionsToTxnManager).
    """
    if error == ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    elif error == ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        error = ErrorCode.INVALID_TXN_STATE
    if error == ErrorCode.INVALID_TXN_STATE:
        return KafkaError(error, "Partition was not added to the transaction")
    is_known = error == ErrorCode.CONCURRENT_TRANSACTIONS and version >= FIRST_VERSION_THAT_ADDS
    if error in _FOR_NOW and not is_known:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS, f"The transaction can't be verified now: {ErrorCode(error).name}"
        )
    return KafkaError(error, "The transaction is not verified")
