"""Faults that are planted in the Python client on purpose, to show that tests and the simulator find them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import patch

from tidelog.client.core.consuming.assigned_partitions import AssignedPartitions
from tidelog.client.core.consuming.consumed_partition import ConsumedPartition, OffsetToCommit
from tidelog.client.core.consuming.consumer_events import AcknowledgeType, ShareSession
from tidelog.client.core.consuming.membership import ConsumerMembership
from tidelog.client.core.consuming.share_consumer import ShareConsumerCore
from tidelog.client.core.producing.producer import ProducerCore
from tidelog.client.core.producing.producer_batch import PartitionQueue, ProducerBatch
from tidelog.model.topics import TopicPartition

# -- the producer


@contextlib.contextmanager
def numbers_of_parts_kept() -> Iterator[None]:
    """Both halves of a batch that was split have the sequence number of the whole."""
    original = ProducerBatch.split

    def split(batch: ProducerBatch) -> Any:
        parts = original(batch)
        for part in parts:
            part.base_sequence = batch.base_sequence
        return parts

    with patch.object(ProducerBatch, "split", split):
        yield


@contextlib.contextmanager
def sequence_reset() -> Iterator[None]:
    """After a timeout, the sequence begins again at 0 in the same epoch."""

    def renew_epoch(queue: PartitionQueue, fresh_producer_id: int) -> bool:
        if queue.needs_new_epoch:
            queue.needs_new_epoch = False
            queue.next_sequence = 0
        return False

    with patch.object(PartitionQueue, "renew_epoch", renew_epoch):
        yield


@contextlib.contextmanager
def fates_in_earlier_topics_kept() -> Iterator[None]:
    """A batch that an earlier topic of the name may have stored precedes the others in the next topic."""
    with patch.object(ProducerCore, "_forget_fate_in_earlier_topic", lambda core, batch: None):
        yield


@contextlib.contextmanager
def overtaken_batches_repeated() -> Iterator[None]:
    """A batch is repeated although a later one was stored before it."""
    with patch.object(PartitionQueue, "lost_batches", lambda queue: []):
        yield


@contextlib.contextmanager
def new_numbers_for_repetitions() -> Iterator[None]:
    """A repeated batch gets new numbers, so the broker does not recognise it."""
    original = ProducerBatch.encode

    def encode(batch: ProducerBatch, *, is_transactional: bool) -> Any:
        if batch.attempts > 1:
            batch.number(batch.producer_id, batch.producer_epoch + batch.attempts, 0)
        return original(batch, is_transactional=is_transactional)

    with patch.object(ProducerBatch, "encode", encode):
        yield


@contextlib.contextmanager
def no_wait_for_open_outcomes() -> Iterator[None]:
    """The epoch changes while the outcome of a sent batch is open."""
    original = PartitionQueue.renew_epoch

    def renew_epoch(queue: PartitionQueue, fresh_producer_id: int) -> bool:
        for batch in queue.unacknowledged:
            batch.is_fate_unknown = False
        return original(queue, fresh_producer_id)

    with patch.object(PartitionQueue, "renew_epoch", renew_epoch):
        yield


@contextlib.contextmanager
def no_wait_for_the_first_batch() -> Iterator[None]:
    """A second batch is sent before the broker has stored the first one."""
    original = PartitionQueue.adopt

    def adopt(queue: PartitionQueue, producer_id: int, producer_epoch: int) -> None:
        original(queue, producer_id, producer_epoch)
        queue.is_known = True

    with patch.object(PartitionQueue, "adopt", adopt):
        yield


@contextlib.contextmanager
def batches_in_flight_counted() -> Iterator[None]:
    """Batches follow an old one without an outcome as long as few are in flight."""
    count = property(lambda queue: len(queue.unacknowledged))
    with patch.object(PartitionQueue, "sent_since_oldest", count):
        yield


# -- the consumer


@contextlib.contextmanager
def commit_before_delivery() -> Iterator[None]:
    """A commit stores the position, although the application has not dealt with the last records."""
    original = AssignedPartitions.commitable

    def commitable(
        partitions: AssignedPartitions, places: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetToCommit]:
        for partition in partitions.values():
            partition.finish_delivered()
        return original(partitions, places)

    with patch.object(AssignedPartitions, "commitable", commitable):
        yield


@contextlib.contextmanager
def commit_of_fetched() -> Iterator[None]:
    """A commit stores the offset up to which records were fetched."""

    def finish_delivered(partition: ConsumedPartition) -> None:
        partition.consumed = partition.fetch_offset

    with patch.object(ConsumedPartition, "finish_delivered", finish_delivered):
        yield


@contextlib.contextmanager
def revoked_partitions_kept() -> Iterator[None]:
    """The member says that it gave up partitions, and goes on to deliver their records."""
    with patch.object(AssignedPartitions, "remove", lambda partitions, place: None):
        yield


@contextlib.contextmanager
def revocation_not_said() -> Iterator[None]:
    """The member never says what it gave up, so the other members wait for ever."""
    with patch.object(ConsumerMembership, "_say_owned", lambda membership, now_ms: None):
        yield


# -- the share consumer


@contextlib.contextmanager
def accept_at_delivery() -> Iterator[None]:
    """The consumer accepts records when it delivers them."""
    original = ShareConsumerCore.take

    def take(core: ShareConsumerCore, most: int, now_ms: int) -> Any:
        found = original(core, most, now_ms)
        core.send_acknowledgements([])
        return found

    with patch.object(ShareConsumerCore, "take", take):
        yield


@contextlib.contextmanager
def gaps_forgotten() -> Iterator[None]:
    """The consumer does not say that an offset has no record."""
    original = ShareSession.acknowledge

    def acknowledge(session: ShareSession, place: TopicPartition, types: dict[int, int]) -> None:
        real = {offset: kind for offset, kind in types.items() if kind != AcknowledgeType.GAP}
        if real:
            original(session, place, real)

    with patch.object(ShareSession, "acknowledge", acknowledge):
        yield


@contextlib.contextmanager
def share_session_survives() -> Iterator[None]:
    """The consumer goes on with the epochs of a session after its connection was lost."""
    original = ShareSession.end

    def end(session: ShareSession) -> Any:
        epoch = session.epoch
        failed = original(session)
        session.epoch = epoch
        return failed

    with patch.object(ShareSession, "end", end):
        yield
