"""Sends batches to the leaders of a topic's partitions, with one request in flight for each leader.

Requests are retried until the timeout. With acks=all, batches have a producer id and sequence numbers, so
that the broker stores a repeated batch only once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.client.answers import error_of, raise_on_error
from tidelog.client.cluster import RETRY_BACKOFF_S, Cluster, Topic
from tidelog.client.errors import ClientError, ConnectionLostError, NoAnswerError, UnreachableError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from tidelog.records.builder import build_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
ACKS_NONE: Final = 0
MAX_SEQUENCE: Final = 2**31 - 1
UNKNOWN_OFFSET: Final = -1
_PRODUCE_SINCE: Final = 3  # magic 2
_ZSTD_SINCE: Final = 7
_NO_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Batch:
    data: bytearray
    record_count: int


class BatchSender:
    """A sender for one topic. It is not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        topic: Topic,
        *,
        acks: int = ACKS_ALL,
        compression: Compression = Compression.NONE,
        is_idempotent: bool | None = None,
    ) -> None:
        """Obtains a producer id if needed. Raises KafkaError, ClientError.

        If `is_idempotent` is None, batches are idempotent with acks=all if the broker supports it.
        """
        self._cluster = cluster
        self.topic = topic
        self._acks = acks
        self._compression = compression
        self._producer_id, self._producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        self._next_sequence: dict[int, int] = {}
        if acks == ACKS_ALL if is_idempotent is None else is_idempotent:
            self._producer_id, self._producer_epoch = _new_producer_id(cluster)

    def send(self, records: Mapping[int, Sequence[Record]]) -> dict[int, int]:
        """Sends one batch to each partition and returns their base offsets, which are -1 with acks=0.

        The records' offsets must count from 0. Raises KafkaError for the first rejected batch, ClientError if
        a response does not arrive in time.
        """
        unsent = {partition: self._build(partition, rows) for partition, rows in records.items() if rows}
        offsets: dict[int, int] = {}
        deadline_s = time.monotonic() + self._cluster.timeout_s
        while unsent:
            failure = self._try_all(unsent, offsets)
            if failure is None:
                continue
            if time.monotonic() > deadline_s:
                raise failure
            time.sleep(RETRY_BACKOFF_S)
            with contextlib.suppress(ConnectionLostError, UnreachableError):  # the next attempt reports it
                self.topic = self._cluster.topic(self.topic.name)
        return offsets

    def _build(self, partition: int, records: Sequence[Record]) -> _Batch:
        sequence = NO_SEQUENCE
        if self._producer_id != NO_PRODUCER_ID:
            sequence = self._next_sequence.get(partition, 0)
            self._next_sequence[partition] = (sequence + len(records)) & MAX_SEQUENCE
        batch = build_batch(
            records,
            base_offset=0,
            compression=self._compression,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
        )
        return _Batch(batch, len(records))

    def _try_all(self, unsent: dict[int, _Batch], offsets: dict[int, int]) -> ClientError | KafkaError | None:
        """Sends to each leader, and moves stored batches from `unsent` to `offsets`.

        Returns the last retriable failure.
        """
        failure: ClientError | KafkaError | None = None
        groups: dict[int, list[int]] = {}
        for partition in self.topic.partitions:
            if partition.index in unsent:
                groups.setdefault(partition.leader, []).append(partition.index)
        for leader, indexes in groups.items():
            try:
                rows = self._ask(leader, {index: unsent[index] for index in indexes})
            except (ConnectionLostError, NoAnswerError, UnreachableError) as error:
                failure = error
                continue
            for row in rows:
                if row.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    offsets[row.index] = row.base_offset
                    del unsent[row.index]
                    continue
                refused = error_of(
                    row.error_code, f"topic '{self.topic.name}' partition {row.index}", _details(row)
                )
                if not refused.is_retriable:
                    raise refused
                failure = refused
        if (
            unsent and failure is None
        ):  # the topic was created again without the partition, or no row names it
            place = f"topic '{self.topic.name}' partition {min(unsent)}"
            failure = error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, place)
        return failure

    def _ask(self, leader: int, batches: dict[int, _Batch]) -> list[PartitionProduceResponse]:
        rows = [PartitionProduceData(index, batch.data) for index, batch in batches.items()]
        timeout_ms = int(self._cluster.timeout_s * 1000)
        topic = TopicProduceData(self.topic.name, self.topic.topic_id, rows)
        request = ProduceRequest(None, self._acks, timeout_ms, [topic])
        since = _ZSTD_SINCE if self._compression is Compression.ZSTD else _PRODUCE_SINCE
        connection = self._cluster.broker(leader)
        pending = connection.send(request, at_least=since, wait_ms=timeout_ms)
        if self._acks == ACKS_NONE:
            return [PartitionProduceResponse(index, base_offset=UNKNOWN_OFFSET) for index in batches]
        return connection.receive(pending, ProduceResponse).responses[0].partition_responses


def _details(row: PartitionProduceResponse) -> str | None:
    texts = [row.error_message or ""]
    texts += [f"record {error.batch_index}: {error.batch_index_error_message}" for error in row.record_errors]
    return "; ".join(text for text in texts if text) or None


def _new_producer_id(cluster: Cluster) -> tuple[int, int]:
    request = InitProducerIdRequest(None, _NO_TRANSACTION_TIMEOUT_MS)
    deadline_s = time.monotonic() + cluster.timeout_s
    while True:
        answer = cluster.any_broker().call(request, InitProducerIdResponse)
        try:
            raise_on_error(answer.error_code, "producer id")
            return answer.producer_id, answer.producer_epoch
        except KafkaError as error:
            if not error.is_retriable or time.monotonic() > deadline_s:
                raise
        time.sleep(RETRY_BACKOFF_S)
