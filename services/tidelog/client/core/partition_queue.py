"""The batches of one partition, and the sequence numbers of the idempotent producer in it.

With idempotence, a queue sends batches so that the broker can refuse every repetition and every gap:

- Batches get their sequence numbers when they are first sent, in the order of the sends.
- A batch that must be repeated keeps its numbers. Until all repetitions are acknowledged, the queue sends one
  batch at a time, the oldest first.
- A broker remembers the last five batches of a producer. So no more batches follow the oldest one without an
  outcome, even if most of them are acknowledged.
- A broker without a memory of the producer accepts any number. So the first batch is acknowledged before a
  second one is sent.
- If a batch fails for good, or if the broker has lost earlier records, the numbers have a gap. The queue then
  continues with the next producer epoch from sequence 0 (as Kafka's TransactionManager does). It waits until
  the outcome of every sent batch is known, because a batch with new numbers is not recognised as a
  repetition.
- A broker that has forgotten the producer may store a batch before an earlier one, which is then overtaken.
  It fails if it is not stored, because a repetition would change the order.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidelog.client.core.producer_batch import BatchState, ProducerBatch, following_sequence
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

MAX_EPOCH: Final = 2**15 - 1


class PartitionQueue:
    """The batches of a partition: `waiting` were never sent, `unacknowledged` were."""

    __slots__ = (
        "is_known",
        "needs_new_epoch",
        "next_sequence",
        "place",
        "producer_epoch",
        "producer_id",
        "sent_count",
        "unacknowledged",
        "waiting",
    )

    def __init__(self, place: TopicPartition) -> None:
        self.place: TopicPartition = place
        self.waiting: deque[ProducerBatch] = deque()
        self.unacknowledged: list[ProducerBatch] = []
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch: int = NO_PRODUCER_EPOCH
        self.next_sequence: int = 0
        self.needs_new_epoch: bool = False
        self.sent_count: int = 0
        self.is_known: bool = False
        """Whether the broker has stored a batch of this producer and epoch."""

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.unacknowledged

    def adopt(self, producer_id: int, producer_epoch: int) -> None:
        """Takes the producer's identity if no sent batch has the previous one."""
        if self.producer_id != producer_id or (self.producer_epoch < producer_epoch):
            if self.unacknowledged:
                return
            self.producer_id, self.producer_epoch = producer_id, producer_epoch
            self.next_sequence = 0
            self.needs_new_epoch = False
            self.is_known = False

    def renew_epoch(self, fresh_producer_id: int) -> bool:
        """Continues with the next epoch if a gap makes this necessary and no outcome is open.

        Returns whether the queue needs a fresh producer id, because this one has no more epochs.
        """
        if not self.needs_new_epoch or any(
            batch.is_on_wire or batch.is_fate_unknown for batch in self.unacknowledged
        ):
            return False
        if self.producer_epoch < MAX_EPOCH:
            self.producer_epoch += 1
        elif fresh_producer_id != self.producer_id:
            self.producer_id, self.producer_epoch = fresh_producer_id, 0
        else:
            return True
        self.needs_new_epoch = False
        self.is_known = False
        self.next_sequence = 0
        for batch in self.unacknowledged:
            self._number(batch)
        return False

    def repetition(self, *, keeps_order: bool) -> ProducerBatch | None:
        """Returns the batch that has to be repeated next, if any and if the order permits it now."""
        for batch in self.unacknowledged:
            if self.needs_new_epoch:
                if batch.is_fate_unknown and batch.state is BatchState.RETRYING:
                    return batch
                if batch.is_on_wire:
                    return None
                continue
            if batch.state is BatchState.RETRYING:
                return batch
            if keeps_order and self.is_repeating:
                return None
        return None

    @property
    def sent_since_oldest(self) -> int:
        """The number of batches that were first sent with or after the oldest unacknowledged one."""
        return self.sent_count - self.unacknowledged[0].ordinal if self.unacknowledged else 0

    @property
    def is_repeating(self) -> bool:
        return any(batch.state is BatchState.RETRYING for batch in self.unacknowledged)

    def take(self, *, is_idempotent: bool) -> ProducerBatch:
        """Moves the oldest waiting batch to the sent ones and numbers it."""
        batch = self.waiting.popleft()
        if batch.state is BatchState.OPEN:
            batch.close()
        batch.ordinal = self.sent_count
        self.sent_count += 1
        self.unacknowledged.append(batch)
        if is_idempotent:
            self._number(batch)
        return batch

    def stored(self, batch: ProducerBatch) -> None:
        """Removes a sent batch that a broker has stored. The earlier ones are overtaken."""
        at = self.unacknowledged.index(batch)
        for earlier in self.unacknowledged[:at]:
            earlier.is_overtaken = True
        del self.unacknowledged[at]

    def lost_batches(self) -> list[ProducerBatch]:
        """Returns the overtaken batches that no broker has stored."""
        return [
            batch
            for batch in self.unacknowledged
            if batch.is_overtaken and batch.state is BatchState.RETRYING and not batch.is_fate_unknown
        ]

    def _number(self, batch: ProducerBatch) -> None:
        batch.number(self.producer_id, self.producer_epoch, self.next_sequence)
        self.next_sequence = following_sequence(self.next_sequence, batch.count)
