"""The check of a transactional Produce request: before a partition's first batch of a transaction, the
transaction's coordinator must confirm that the partition belongs to it (KIP-890).

Up to v11 the client has already told the coordinator (AddPartitionsToTxn), so the broker only asks. From v12
on the question also adds the partition. If the coordinator cannot answer, the batch is refused with
NOT_ENOUGH_REPLICAS, so that the client retries; from v12 on with CONCURRENT_TRANSACTIONS if the previous
transaction is still ending.

`produce.py` hands over the batches to a `TransactionVerification` and later asks it for the guard of each.
`Verification` sends the questions, also those of TxnOffsetCommit. This module appends nothing and knows
nothing of the requests of clients and their responses.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from tidelog.broker.coordination.attachment import ShardCall
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.partition.events import VerificationAsked, VerificationRefused, VerifyTransaction
from tidelog.broker.partition.guards import NO_GUARD, UNGUARDED
from tidelog.kernel.instants import WallMs
from tidelog.kernel.timer import Timer
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CURRENT_MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    parse_header,
)
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

_VERSION: Final = 5
"""The version of the questions."""
FIRST_VERSION_WITH_ABORTABLE: Final = 11
FIRST_VERSION_THAT_ADDS: Final = 12
_TEMPORARY: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class TransactionalBatch(NamedTuple):
    """A batch of a transaction, and the replica that it is for."""

    replica: Replica
    header: BatchHeader


def transactional_header(records: memoryview | None) -> BatchHeader | None:
    """Returns the header of a transactional batch. Returns None for any other batch, and for an invalid one,
    which the append refuses later.
    """
    if records is None or len(records) < BATCH_HEADER_BYTES:
        return None
    header = parse_header(records)
    if header.magic != CURRENT_MAGIC or not header.is_transactional or header.producer_id == NO_PRODUCER_ID:
        return None
    return header


class TransactionVerification:
    """The verification of one request's transactional batches. If it `is_pending` after construction, `ask`
    must be awaited before `guard_of` is called.
    """

    def __init__(
        self,
        transactional_id: str,
        version: int,
        batches: Sequence[TransactionalBatch],
        now_ms: WallMs,
        *,
        is_enabled: bool,
    ) -> None:
        """`is_enabled` is `transaction.partition.verification.enable`; from v12 on it has no effect."""
        self._transactional_id = transactional_id
        self._version = version
        self._now_ms = now_ms
        self._guards: dict[TopicPartition, int] = {}
        self._refusals: dict[TopicPartition, KafkaError] = {}
        self._unverified: dict[TopicPartition, TransactionalBatch] = {}
        if len({batch.header.producer_id for batch in batches}) > 1:
            refusal = KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "The request holds batches of several producers"
            )
            self._refusals.update((batch.replica.topic_partition, refusal) for batch in batches)
            return
        adds = version >= FIRST_VERSION_THAT_ADDS
        for batch in batches:
            topic_partition = batch.replica.topic_partition
            if not (adds or is_enabled):
                self._guards[topic_partition] = UNGUARDED
                continue
            effects = batch.replica.core.step(VerificationAsked(batch.header, adds, now_ms))
            for effect in effects:
                assert type(effect) is VerifyTransaction
                self._guards[topic_partition] = effect.guard
                self._unverified[topic_partition] = batch

    @property
    def is_pending(self) -> bool:
        """Whether the coordinator must be asked. A batch in the middle of a transaction needs no question."""
        return bool(self._unverified)

    async def ask(self, coordinator: Verification, timeout_ms: int) -> None:
        """Asks the coordinator about the unverified partitions, for `timeout_ms` at most."""
        errors = await self._errors(coordinator, timeout_ms)
        for topic_partition, batch in self._unverified.items():
            error = errors.get(topic_partition, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if error:
                self._refusals[topic_partition] = refusal = refusal_for(error, self._version)
                if error in _TEMPORARY:
                    batch.replica.core.step(VerificationRefused(batch.header, refusal.code, self._now_ms))

    async def _errors(self, coordinator: Verification, timeout_ms: int) -> Mapping[TopicPartition, ErrorCode]:
        header = next(iter(self._unverified.values())).header
        try:
            async with asyncio.timeout(max(timeout_ms, 0) / 1000):
                return await coordinator.add_partitions(
                    self._transactional_id,
                    header.producer_id,
                    header.producer_epoch,
                    tuple(self._unverified),
                    verify_only=self._version < FIRST_VERSION_THAT_ADDS,
                )
        except TimeoutError:
            return {}
        except KafkaError as error:
            return dict.fromkeys(self._unverified, error.code)

    def guard_of(self, topic_partition: TopicPartition) -> int:
        """Returns the guard with which the partition's batch is appended. Raises KafkaError if the batch is
        refused.
        """
        refusal = self._refusals.get(topic_partition)
        if refusal is not None:
            raise refusal
        return self._guards.get(topic_partition, NO_GUARD)


def refusal_for(error: ErrorCode, version: int) -> KafkaError:
    """Returns the error for the client. Producers know fewer errors than coordinators have (Kafka:
    ReplicaManager, AddPartitionsToTxnManager).
    """
    if error == ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    elif error == ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        error = ErrorCode.INVALID_TXN_STATE
    if error == ErrorCode.INVALID_TXN_STATE:
        return KafkaError(error, "Partition was not added to the transaction")
    is_known = error == ErrorCode.CONCURRENT_TRANSACTIONS and version >= FIRST_VERSION_THAT_ADDS
    if error in _TEMPORARY and not is_known:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"The transaction cannot be verified now: {ErrorCode(error).name}. Retry.",
        )
    return KafkaError(error, "The transaction is not verified")


class Verification:
    """Sends AddPartitionsToTxn requests of this broker to the coordinators of transactions.

    `ask_owner` passes a call on to the coordinator of a transactional id. It returns NONE, or why it did not.
    An answer that takes longer than `timeout_ms` (request.timeout.ms) is REQUEST_TIMED_OUT.
    """

    def __init__(
        self, ask_owner: Callable[[str, ShardCall], ErrorCode], timer: Timer, timeout_ms: int
    ) -> None:
        self._ask_owner = ask_owner
        self._timer = timer
        self._timeout_ms = timeout_ms

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Returns the coordinator's error code for each partition. A failure between the services is an error
        code of coordinators, too.
        """
        body = _question(transactional_id, producer_id, producer_epoch, partitions, verify_only=verify_only)
        call = ShardCall(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION, body)
        pass_on = partial(self._ask_owner, transactional_id)
        answer, error = await call.ask_within(pass_on, self._timer, self._timeout_ms)
        return _results(answer, error, partitions)

    def add_one(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
        *,
        verify_only: bool,
        on_result: Callable[[ErrorCode], None],
    ) -> None:
        """Asks about one partition without a task. `on_result` is called as soon as the answer
        arrives, and therefore before all items that the coordinator sends later.
        """

        def on_answered(answer: bytes | None, error: ErrorCode) -> None:
            on_result(_results(answer, error, (partition,))[partition])

        body = _question(transactional_id, producer_id, producer_epoch, (partition,), verify_only=verify_only)
        call = ShardCall(ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION, body, on_answered)
        refused = self._ask_owner(transactional_id, call)
        if refused:
            on_result(refused)


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


def _results(
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
