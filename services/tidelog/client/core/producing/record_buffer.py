"""The buffer of a producer: the topics that it uses, and the batches of their partitions.

`append` is the hot path: it adds one record to the open batch of its partition. Kafka's class is
RecordAccumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidelog.client.core.cluster_view import ClusterView, MetadataReceived, MetadataSchedule, TopicView
from tidelog.client.core.producing.producer_batch import BatchState, PartitionQueue, ProducerBatch
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import RecordTooLargeError, request_error
from tidelog.kernel.instants import Backoff
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.records.batch import BATCH_HEADER_BYTES
from tidelog.records.record_writer import MAX_RECORD_OVERHEAD_BYTES, Header, headers_size_bound

REQUEST_OVERHEAD_BYTES: Final = 512
"""The part of `max.request.size` that is left for the names in a request."""

_OPEN: Final = BatchState.OPEN  # a member of an Enum is slow to look up


@dataclass(slots=True)
class ProducerTopic:
    """A topic that the producer uses."""

    queues: list[PartitionQueue]
    """The queues of all partitions that the topic ever had."""
    count: int
    """The number of its partitions. A topic that was created again may have fewer than before."""
    sticky: int
    """The partition of records without a key."""
    topic_id: UUID


class RecordBuffer:
    """The part of a producer's core that takes records. It is not thread-safe."""

    def __init__(
        self, settings: ProducerSettings, *, choose: Callable[[int], int], jitter: Callable[[], float]
    ) -> None:
        """`choose(n)` returns a random number below n, and `jitter()` one between 0 and 1."""
        self.settings = settings
        self.view: ClusterView = ClusterView()
        self.is_due: bool = False
        """Whether `poll` has something to do now, or another time to wait for."""
        self.free_bytes: int = settings.buffer_memory
        self.abort_error: KafkaError | None = None
        """Why every further record fails."""
        self._choose = choose
        self._backoff: Backoff = settings.retry_backoff(jitter)
        self.metadata: MetadataSchedule = MetadataSchedule(self._backoff, settings.metadata_max_age_ms)
        self._topics: dict[str, ProducerTopic] = {}
        self._wanted: dict[str, None] = {}
        """Topics without known partitions, until a response names their partitions or an error."""
        self._active: dict[PartitionQueue, None] = {}
        """The queues that are not empty."""
        self._answer_counts: dict[str, int] = {}
        """The number of Metadata responses so far that name a topic."""
        self._batch_limit = min(settings.batch_size, settings.max_request_size - REQUEST_OVERHEAD_BYTES)

    def release(self, size_bytes: int) -> None:
        """Gives back the memory of a batch that is done."""
        self.free_bytes += size_bytes

    def refuse_records(self, error: KafkaError) -> None:
        """Lets every further record fail."""
        self.abort_error = error

    def append(
        self,
        topic: str,
        partition: int | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
        now_ms: int,
    ) -> ProducerBatch | None:
        """Adds a record to a batch and returns the batch; the record is its last one.

        `partition` None is the partition of records without a key, which changes with each batch. Returns
        None if the partition is unknown or the buffer is full: then the caller waits for an event. Raises
        RecordTooLargeError, and the error after which a producer accepts no records.
        """
        found = self._topics.get(topic)
        if found is None:
            self._want(topic)
            return None
        if self.abort_error is not None:
            raise self.abort_error
        if partition is None:
            partition = found.sticky
        elif not 0 <= partition < found.count:
            self._want(topic)
            return None
        queue = found.queues[partition]
        size = MAX_RECORD_OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if headers:
            size += headers_size_bound(headers)
        waiting = queue.waiting
        if waiting:
            batch = waiting[-1]
            if batch.state is _OPEN:
                if batch.records.size_bytes + size <= self._batch_limit:
                    batch.append(timestamp, key, value, headers)
                    return batch
                batch.close()
                self.is_due = True
                if partition == found.sticky:
                    self._turn_sticky(found)
        new = self._new_batch(queue, size, timestamp, now_ms)
        if new is not None:
            new.append(timestamp, key, value, headers)  # it raises an error for what is not bytes
            self.free_bytes -= new.reserved_bytes
            waiting.append(new)
            self._active[queue] = None
        return new

    def append_values(
        self,
        topic: str,
        partition: int | None,
        timestamp: int,
        values: Sequence[bytes | None],
        start: int,
        now_ms: int,
    ) -> tuple[ProducerBatch, int] | None:
        """Adds records without keys and headers, with `values` from index `start` on, to one batch.

        Returns the batch and the number of records, which are its last ones. A call with the rest continues
        in the next batch. None and the errors are those of `append`.
        """
        batch = self.append(topic, partition, timestamp, None, values[start], (), now_ms)
        if batch is None:
            return None
        return batch, 1 + batch.append_values(timestamp, values, start + 1, self._batch_limit)

    def _new_batch(
        self, queue: PartitionQueue, size: int, timestamp: int, now_ms: int
    ) -> ProducerBatch | None:
        """Returns a batch for a record of `size` bytes, None without room. Raises RecordTooLargeError."""
        limit = self.settings.max_request_size - REQUEST_OVERHEAD_BYTES
        if size > limit or size + BATCH_HEADER_BYTES > self.settings.buffer_memory:
            setting, most = "max.request.size", self.settings.max_request_size
            if size <= limit:
                setting, most = "buffer.memory", self.settings.buffer_memory
            raise RecordTooLargeError(
                f"a record of {size} bytes for topic '{queue.place.topic}' exceeds {setting}, {most}", setting
            )
        reserved = max(size, self._batch_limit) + BATCH_HEADER_BYTES
        reserved = min(reserved, self.settings.buffer_memory)
        self.is_due = True
        if reserved > self.free_bytes:
            return None
        return ProducerBatch(queue.place, timestamp, self.settings.compression, now_ms, reserved)

    def partition_count(self, topic: str) -> int | None:
        """Returns the number of partitions, or None if it is not known yet."""
        found = self._topics.get(topic)
        if found is None:
            self._want(topic)
            return None
        return found.count

    def topic_error(self, topic: str) -> KafkaError | None:
        """Returns the error for which a topic has no partitions, None if there was none."""
        code = self.view.errors.get(topic)
        return None if code is None else request_error(code, f"topic '{topic}'")

    def answer_count(self, topic: str) -> int:
        """Returns the number of Metadata responses so far that name a topic."""
        return self._answer_counts.get(topic, 0)

    def pending_batches(self) -> list[ProducerBatch]:
        """Returns the batches that are neither acknowledged nor failed, also while another thread appends."""
        return [
            batch
            for queue in list(self._active)
            for batch in (*queue.unacknowledged, *queue.waiting)
            if not batch.is_done
        ]

    def unacknowledged_count(self) -> int:
        """Returns the number of records that are neither acknowledged nor failed."""
        return sum(batch.count for batch in self.pending_batches())

    def _want(self, topic: str) -> None:
        if topic not in self._wanted:
            self._wanted[topic] = None
            self.metadata.is_needed = True
        self.is_due = True

    def _turn_sticky(self, topic: ProducerTopic) -> None:
        """Chooses another partition for records without a key, one with a leader if possible (KIP-480)."""
        count = topic.count
        first = self._choose(count)
        for step in range(count):
            index = (first + step) % count
            if index != topic.sticky and self.view.leader(topic.queues[index].place).leader != NO_LEADER:
                topic.sticky = index
                return

    def _learn_topics(self, event: MetadataReceived) -> bool:
        """Takes the topics of a response. Returns whether it refuses some for which records wait."""
        known = frozenset(self.view.topics)
        self.view.update(event)
        for answer in event.topics:
            self._answer_counts[answer.name] = self.answer_count(answer.name) + 1
        for name, topic in self.view.topics.items():
            if topic.partitions:
                self._learn_topic(name, topic, is_new=name not in known)
        # A send that still waits asks for its topic again, unless the error is permanent.
        refused = {answer.name for answer in event.topics} & self._wanted.keys() & self.view.errors.keys()
        for name in refused:
            del self._wanted[name]
        return bool(refused)

    def _learn_topic(self, name: str, topic: TopicView, *, is_new: bool) -> None:
        """Takes the partitions of a topic. `is_new` says whether the view did not know the topic before."""
        self._wanted.pop(name, None)
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = ProducerTopic(
                [], 0, self._choose(len(topic.partitions)), topic.topic_id
            )
        if is_new or found.topic_id != topic.topic_id:  # leaders know no batch of the producer
            found.topic_id = topic.topic_id
            for queue in found.queues:
                queue.is_known = False
                for batch in queue.unacknowledged:
                    if not batch.is_on_wire:
                        self._forget_fate_in_earlier_topic(batch)
        found.count = len(topic.partitions)
        if found.sticky >= found.count:
            found.sticky = self._choose(found.count)
        found.queues += [
            PartitionQueue(TopicPartition(name, index)) for index in range(len(found.queues), found.count)
        ]

    def _forget_fate_in_earlier_topic(self, batch: ProducerBatch) -> None:
        """A topic that was created again does not have the batches that were sent to the earlier one by its
        id. Its brokers do not know the producer and would accept a batch with any numbers, so one whose fate
        counts as unknown would be stored before earlier ones, which would then fail.
        """
        if batch.topic_id not in (ZERO_TOPIC_ID, self._topics[batch.place.topic].topic_id):
            batch.is_fate_unknown = batch.is_overtaken = False
