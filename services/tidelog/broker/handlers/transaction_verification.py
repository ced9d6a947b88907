"""The check of a transactional Produce request: before a partition's first batch of a transaction, the
transaction's coordinator must confirm that the partition belongs to it (KIP-890).

Up to v11 the client has already told the coordinator (AddPartitionsToTxn), so the broker only asks. From v12
on the question also adds the partition. If the coordinator cannot answer, the batch is refused with
NOT_ENOUGH_REPLICAS, so that the client retries; from v12 on with CONCURRENT_TRANSACTIONS if the previous
transaction is still ending.

`produce.py` hands over the batches and later asks for the guard of each. This module appends nothing and
knows nothing of requests and responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.partition.events import VerificationAsked, VerificationRefused, VerifyTransaction
from tidelog.broker.partition.producer_state import NO_GUARD, UNGUARDED
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CURRENT_MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    parse_header,
)

if TYPE_CHECKING:
    from tidelog.broker.coordination.verification import Verification

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
