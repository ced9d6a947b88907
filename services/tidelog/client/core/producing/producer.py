"""The core of a producer: it collects records in batches, and decides which batches to send, when and again.

`append` is the hot path: it adds one record to the open batch of its partition. `step` takes an event and
`poll` the time; both return effects. The core knows no clock and does no I/O. The names of the parts follow
Kafka's RecordAccumulator, Sender and TransactionManager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from tidelog.client.core.cluster_view import PARTITIONS_A_REQUEST, ClusterView, MetadataReceived
from tidelog.client.core.producing.producer_batch import (
    BatchState,
    CompleteBatch,
    Effect,
    Event,
    MetadataFailed,
    PartitionAnswer,
    PartitionQueue,
    ProduceAnswered,
    ProduceFailed,
    ProducerBatch,
    ProducerIdReceived,
    ProducerIdRefused,
    RequestMetadata,
    RequestProducerId,
    SendProduce,
)
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import (
    DeliveryTimeoutError,
    NetworkError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestTimeoutError,
    TransactionAbortableError,
    request_error,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER, UNKNOWN_OFFSET
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.records.batch import BATCH_HEADER_BYTES, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.records.record_writer import MAX_RECORD_OVERHEAD_BYTES, Header, headers_size_bound

REQUEST_OVERHEAD_BYTES: Final = 512
"""The part of `max.request.size` that is left for the names in a request."""
ROW_OVERHEAD_BYTES: Final = 320
"""The most bytes of a partition in a request beside its batch: the name of a topic and some numbers."""

_OPEN: Final = BatchState.OPEN  # a member of an Enum is slow to look up

_SEQUENCE_ERRORS: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
"""The answers of a broker that compared a batch's numbers with those that it knows and stored nothing."""
_UNKNOWN_FATE: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""The answers after which a batch may be stored. A disk may fail in the flush that follows the append."""
_METADATA_KEPT: Final = frozenset(
    {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT}
)
"""Retriable errors that do not suggest that the leader has moved."""


@dataclass(slots=True)
class _Topic:
    """A topic that the producer uses."""

    queues: list[PartitionQueue]
    """The queues of all partitions that the topic ever had."""
    count: int
    """The number of its partitions. A topic that was created again may have fewer than before."""
    sticky: int
    """The partition of records without a key."""
    topic_id: UUID


@dataclass(slots=True)
class ProducerCounts:
    """Totals since the start."""

    record_send_total: int = 0
    record_error_total: int = 0
    record_retry_total: int = 0
    batch_total: int = 0
    batch_split_total: int = 0
    request_total: int = 0
    byte_total: int = 0
    epoch_bump_total: int = 0


@dataclass(slots=True)
class _InFlight:
    node_id: int
    ended_topics: int
    """The `ended_topics` of the view when the request was made."""
    batches: dict[TopicPartition, ProducerBatch] = field(default_factory=dict)


class ProducerCore:
    """A producer. It is not thread-safe.

    Times are milliseconds of a monotonic clock, except the timestamps of records.
    """

    def __init__(
        self, settings: ProducerSettings, *, choose: Callable[[int], int], jitter: Callable[[], float]
    ) -> None:
        """`choose(n)` returns a random number below n, and `jitter()` one between 0 and 1."""
        self.settings = settings
        self.view: ClusterView = ClusterView()
        self.counts: ProducerCounts = ProducerCounts()
        self.is_due: bool = False
        """Whether `poll` has something to do now, or another time to wait for."""
        self.free_bytes: int = settings.buffer_memory
        self.blocked_count = 0
        """The number of sends that wait for free memory. While there are any, no batch waits for records."""
        self.is_flushing = False
        self.abort_error: KafkaError | None = None
        """Why every further record fails."""
        self._choose = choose
        self._backoff = settings.retry_backoff(jitter)
        self._topics: dict[str, _Topic] = {}
        self._wanted: dict[str, None] = {}
        """Topics without known partitions, until a response names their partitions or an error."""
        self._active: dict[PartitionQueue, None] = {}
        """The queues that are not empty."""
        self._requests: dict[int, _InFlight] = {}
        self._in_flight: dict[int, int] = {}
        """The number of requests in flight by node."""
        self._last_request_id = 0
        self._producer_id, self._producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        self._is_identity_requested = False
        self._identity_attempts = 0
        self._identity_not_before_ms = 0
        self._is_metadata_requested = False
        self._needs_metadata = False
        self._metadata_attempts = 0
        self._metadata_not_before_ms = 0
        self._metadata_expires_ms: int | None = None
        self._answer_counts: dict[str, int] = {}
        """The number of Metadata responses so far that name a topic."""
        self._batch_limit = min(settings.batch_size, settings.max_request_size - REQUEST_OVERHEAD_BYTES)
        self._is_idempotent = settings.enable_idempotence
        self._is_transactional = settings.transactional_id is not None
        self._keeps_order = self._is_idempotent or settings.max_in_flight_requests_per_connection == 1

    # -- records

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
        return self._append_to_new(queue, size, timestamp, key, value, headers, now_ms)

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

    def _append_to_new(
        self,
        queue: PartitionQueue,
        size: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
        now_ms: int,
    ) -> ProducerBatch | None:
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
        if reserved > self.free_bytes:
            self.is_due = True
            return None
        batch = ProducerBatch(queue.place, timestamp, self.settings.compression, now_ms, reserved)
        batch.append(timestamp, key, value, headers)  # it raises an error for what is not bytes
        self.free_bytes -= reserved
        queue.waiting.append(batch)
        self._active[queue] = None
        self.is_due = True
        return batch

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
            self._needs_metadata = True
        self.is_due = True

    def _turn_sticky(self, topic: _Topic) -> None:
        """Chooses another partition for records without a key, one with a leader if possible (KIP-480)."""
        count = topic.count
        first = self._choose(count)
        for step in range(count):
            index = (first + step) % count
            if index != topic.sticky and self.view.leader(topic.queues[index].place).leader != NO_LEADER:
                topic.sticky = index
                return

    # -- events

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Takes an event and returns what follows at once."""
        effects: list[Effect] = []
        match event:
            case ProduceAnswered():
                self._answered(event, now_ms, effects)
            case ProduceFailed():
                self._failed(event, now_ms, effects)
            case MetadataReceived():
                self._take_metadata(event, now_ms)
            case MetadataFailed():
                self._is_metadata_requested = False
                self._needs_metadata = True
                self._delay_metadata(now_ms)
            case ProducerIdReceived():
                self._is_identity_requested = False
                self._identity_attempts = 0
                self._producer_id, self._producer_epoch = event
            case ProducerIdRefused():
                self._refused_identity(event.error, now_ms, effects)
        return effects + self.poll(now_ms)

    def fail_all(self, error: KafkaError) -> list[Effect]:
        """Ends all batches, as at a close without a flush or when a transaction is aborted."""
        effects: list[Effect] = []
        for queue in list(self._active):
            while queue.waiting:
                self._finish(queue.waiting.popleft(), effects, error=error)
            for batch in list(queue.unacknowledged):
                if not batch.is_done:
                    self._fail(queue, batch, error, effects)
        return effects

    @property
    def identity(self) -> ProducerIdReceived:
        return ProducerIdReceived(self._producer_id, self._producer_epoch)

    def _answered(self, event: ProduceAnswered, now_ms: int, effects: list[Effect]) -> None:
        request = self._end_request(event.request_id)
        is_current = request.ended_topics == self.view.ended_topics
        for place, batch in request.batches.items():
            queue = self._queue(place)
            batch.is_on_wire = False
            answer = event.answers.get(place)
            if answer is None:
                reason = "the response does not name the partition"
                answer = PartitionAnswer(ErrorCode.UNKNOWN_SERVER_ERROR, UNKNOWN_OFFSET, -1, reason, None)
            if answer.leader is not None:
                self.view.learn_leader(place, answer.leader, request.ended_topics)
            if answer.base_offset != UNKNOWN_OFFSET:
                # With an error: the leader stored the batch and was then replaced (Kafka's DelayedProduce).
                batch.is_fate_unknown = True
            is_stored = answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
            if is_stored:
                queue.stored(batch)
                if not batch.is_done:
                    queue.is_known |= is_current
                    batch.log_append_time_ms = answer.log_append_time_ms
                    self.counts.record_send_total += batch.count
                    self._finish(batch, effects, base_offset=answer.base_offset)
            elif batch.is_done:
                queue.unacknowledged.remove(batch)
            else:
                error = request_error(answer.error_code, f"topic partition {place}", answer.message)
                self._refused(queue, batch, error, now_ms, effects)
            self._fail_lost(queue, effects)

    def _failed(self, event: ProduceFailed, now_ms: int, effects: list[Effect]) -> None:
        request = self._end_request(event.request_id)
        self._needs_metadata = True
        for place, batch in request.batches.items():
            queue = self._queue(place)
            batch.is_on_wire = False
            if event.was_written:
                batch.is_fate_unknown = True
            else:
                batch.attempts -= 1
            if batch.is_done:
                queue.unacknowledged.remove(batch)
                continue
            error = NetworkError(f"topic partition {place}: {event.reason}")
            if event.is_permanent:
                self._fail(queue, batch, error, effects)
            else:
                self._retry(queue, batch, error, now_ms, effects)
            self._fail_lost(queue, effects)

    def _refused(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        error: KafkaError,
        now_ms: int,
        effects: list[Effect],
    ) -> None:
        code = error.code
        if code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            self._split(queue, batch, now_ms)
        elif self._is_idempotent and code in _SEQUENCE_ERRORS and not self._is_transactional:
            batch.is_fate_unknown = False
            if queue.unacknowledged[0] is batch:  # no earlier batch explains the gap
                queue.needs_new_epoch = True
            self._retry(queue, batch, error, now_ms, effects)
        elif (
            self._is_transactional
            and code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            and queue.unacknowledged[0] is not batch
        ):
            self._retry(queue, batch, error, now_ms, effects)
        elif error.is_retriable:
            if code in _UNKNOWN_FATE:
                batch.is_fate_unknown = True
            if code not in _METADATA_KEPT:
                self._needs_metadata = True
            self._retry(queue, batch, error, now_ms, effects)
        else:
            if code is ErrorCode.UNKNOWN_SERVER_ERROR:
                batch.is_fate_unknown = True
            self._fail(queue, batch, error, effects)

    def _split(self, queue: PartitionQueue, batch: ProducerBatch, now_ms: int) -> None:
        """Sends the records in two batches at the same place of the order, as Kafka's producer does."""
        parts = batch.split()
        for part in parts:
            part.not_before_ms = now_ms
        at = queue.unacknowledged.index(batch)
        queue.unacknowledged[at : at + 1] = parts
        self.counts.batch_split_total += 1

    def _retry(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        error: KafkaError,
        now_ms: int,
        effects: list[Effect],
    ) -> None:
        if batch.attempts > self.settings.retries:
            self._fail(queue, batch, error, effects)
            return
        self._forget_fate_in_earlier_topic(batch)
        batch.move_to(BatchState.RETRYING)
        batch.not_before_ms = now_ms + self._backoff.delay_ms(batch.attempts)
        batch.error = error
        self.counts.record_retry_total += batch.count

    def _forget_fate_in_earlier_topic(self, batch: ProducerBatch) -> None:
        """A topic that was created again does not have the batches that were sent to the earlier one by its
        id. Its brokers do not know the producer and would accept a batch with any numbers, so one whose fate
        counts as unknown would be stored before earlier ones, which would then fail.
        """
        if batch.topic_id not in (ZERO_TOPIC_ID, self._topics[batch.place.topic].topic_id):
            batch.is_fate_unknown = batch.is_overtaken = False

    def _fail_lost(self, queue: PartitionQueue, effects: list[Effect]) -> None:
        """Ends the batches that would be stored after later ones. Only a broker that has forgotten the
        producer accepts a batch before an earlier one: its topic was created again, or it has lost records.
        Without topic ids in Produce, a batch for the earlier topic may be stored in the next one.
        """
        if self._is_idempotent:
            for batch in queue.lost_batches():
                text = (
                    f"{batch.count} records for {batch.place} are not stored, and a repetition would store "
                    "them after later ones: the topic was created again, or the broker has lost records"
                )
                self._fail(queue, batch, OutOfOrderSequenceError(text), effects)

    def _fail(
        self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError, effects: list[Effect]
    ) -> None:
        """Ends a sent batch with an error. Its numbers leave a gap in those of the partition."""
        if not batch.is_on_wire:
            queue.unacknowledged.remove(batch)
        if self._is_idempotent and not self._is_transactional:
            queue.needs_new_epoch = True
        if self._is_transactional:
            self._spoil_transaction(error)
        self._finish(batch, effects, error=error)

    def _spoil_transaction(self, error: KafkaError) -> None:
        if error.code is ErrorCode.PRODUCER_FENCED:
            self.abort_error = ProducerFencedError(f"the producer was replaced by a newer one ({error})")
        elif self.abort_error is None:
            self.abort_error = TransactionAbortableError(f"the transaction must be aborted: {error}")

    def _finish(
        self,
        batch: ProducerBatch,
        effects: list[Effect],
        *,
        base_offset: int = -1,
        error: KafkaError | None = None,
    ) -> None:
        batch.finish(base_offset=base_offset, error=error)
        self.free_bytes += batch.reserved_bytes
        if error is not None:
            self.counts.record_error_total += batch.count
        effects.append(CompleteBatch(batch))
        whole = batch.whole
        while whole is not None and all(part.is_done for part in whole.parts):
            errors = [part.error for part in whole.parts if part.error is not None]
            whole.finish(base_offset=whole.parts[0].base_offset, error=errors[0] if errors else None)
            self.free_bytes += whole.reserved_bytes
            effects.append(CompleteBatch(whole))
            whole = whole.whole

    def _end_request(self, request_id: int) -> _InFlight:
        request = self._requests.pop(request_id)
        self._in_flight[request.node_id] -= 1
        return request

    def _queue(self, place: TopicPartition) -> PartitionQueue:
        return self._topics[place.topic].queues[place.partition]

    # -- metadata and identity

    def _take_metadata(self, event: MetadataReceived, now_ms: int) -> None:
        self._is_metadata_requested = False
        known = frozenset(self.view.topics)
        self.view.update(event)
        for answer in event.topics:
            self._answer_counts[answer.name] = self.answer_count(answer.name) + 1
        self._metadata_expires_ms = now_ms + self.settings.metadata_max_age_ms
        for name, topic in self.view.topics.items():
            if not topic.partitions:
                continue
            self._wanted.pop(name, None)
            found = self._topics.get(name)
            if found is None:
                found = self._topics[name] = _Topic(
                    [], 0, self._choose(len(topic.partitions)), topic.topic_id
                )
            if name not in known or found.topic_id != topic.topic_id:  # leaders know no batch of the producer
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
        # A send that still waits asks for its topic again, unless the error is permanent.
        refused = {answer.name for answer in event.topics} & self._wanted.keys() & self.view.errors.keys()
        for name in refused:
            del self._wanted[name]
        is_incomplete = bool(self._wanted) or any(
            self.view.leader(queue.place).leader == NO_LEADER for queue in self._active
        )
        self._needs_metadata = is_incomplete
        if is_incomplete or refused:
            self._delay_metadata(now_ms)
        else:
            self._metadata_attempts = 0
            self._metadata_not_before_ms = now_ms + self._backoff.delay_ms(1)

    def _delay_metadata(self, now_ms: int) -> None:
        self._metadata_attempts += 1
        self._metadata_not_before_ms = now_ms + self._backoff.delay_ms(self._metadata_attempts)

    def _refused_identity(self, error: KafkaError, now_ms: int, effects: list[Effect]) -> None:
        self._is_identity_requested = False
        self._identity_attempts += 1
        self._identity_not_before_ms = now_ms + self._backoff.delay_ms(self._identity_attempts)
        if not error.is_retriable:
            self.abort_error = error
            effects += self.fail_all(error)

    # -- time

    def poll(self, now_ms: int) -> list[Effect]:
        """Returns the effects that are due at `now_ms`. `next_wake_ms` tells when to call it again."""
        self.is_due = False
        effects: list[Effect] = []
        self._expire(now_ms, effects)
        for queue in [queue for queue in self._active if queue.is_empty]:
            del self._active[queue]
        if self._metadata_expires_ms is not None and now_ms >= self._metadata_expires_ms:
            self._metadata_expires_ms = None
            self._needs_metadata = True
        if self._active and self._is_idempotent and not self._is_transactional:
            self._keep_identity(now_ms, effects)
        if not self._is_idempotent or self._producer_id != NO_PRODUCER_ID:
            self._send(now_ms, effects)
        if (
            self._needs_metadata
            and (self._topics or self._wanted)
            and not self._is_metadata_requested
            and now_ms >= self._metadata_not_before_ms
        ):
            self._is_metadata_requested = True
            deleted = {
                queue.place.topic: None for queue in self._active if queue.place.topic not in self.view.topics
            }
            wanted = {**self._wanted, **deleted}
            known = tuple(name for name in self._topics if name not in wanted)
            effects.append(RequestMetadata(known, tuple(wanted)))
        return effects

    def next_wake_ms(self, now_ms: int) -> int | None:
        """Returns the next time at which `poll` has something to do, if no event comes before."""
        times: list[int] = []
        if self._needs_metadata and not self._is_metadata_requested and (self._topics or self._wanted):
            times.append(self._metadata_not_before_ms)
        if self._metadata_expires_ms is not None:
            times.append(self._metadata_expires_ms)
        if self._active and self._identity_not_before_ms > now_ms:
            times.append(self._identity_not_before_ms)
        for queue in self._active:
            for batch in queue.unacknowledged:
                if not batch.is_done:
                    times.append(batch.created_ms + self.settings.delivery_timeout_ms)
                if batch.state is BatchState.RETRYING and batch.not_before_ms > now_ms:
                    times.append(batch.not_before_ms)
            if queue.waiting:
                first = queue.waiting[0]
                times.append(first.created_ms + self.settings.delivery_timeout_ms)
                if len(queue.waiting) == 1 and first.state is BatchState.OPEN:
                    due_ms = first.created_ms + self.settings.linger_ms
                    if due_ms > now_ms:
                        times.append(due_ms)
        return min(times, default=None)

    def _expire(self, now_ms: int, effects: list[Effect]) -> None:
        limit_ms = now_ms - self.settings.delivery_timeout_ms
        for queue in self._active:
            for batch in list(queue.unacknowledged):
                if batch.created_ms <= limit_ms and not batch.is_done:
                    self._fail(queue, batch, self._timeout_of(batch), effects)
            while queue.waiting and queue.waiting[0].created_ms <= limit_ms:
                batch = queue.waiting.popleft()
                error = self._timeout_of(batch)
                if self._is_transactional:
                    self._spoil_transaction(error)
                self._finish(batch, effects, error=error)

    def _timeout_of(self, batch: ProducerBatch) -> RequestTimeoutError:
        reason = f": {batch.error}" if batch.error is not None else ""
        return DeliveryTimeoutError(
            f"{batch.count} records for {batch.place} were not acknowledged in "
            f"{self.settings.delivery_timeout_ms} ms{reason}"
        )

    def _keep_identity(self, now_ms: int, effects: list[Effect]) -> None:
        is_used_up = False
        for queue in self._active:
            if queue.needs_new_epoch:
                is_used_up |= queue.renew_epoch(self._producer_id)
                self.counts.epoch_bump_total += not queue.needs_new_epoch
        if (
            (self._producer_id == NO_PRODUCER_ID or is_used_up)
            and not self._is_identity_requested
            and now_ms >= self._identity_not_before_ms
        ):
            self._is_identity_requested = True
            effects.append(RequestProducerId())

    def _send(self, now_ms: int, effects: list[Effect]) -> None:
        by_node: dict[int, list[PartitionQueue]] = {}
        most = self.settings.max_in_flight_requests_per_connection
        for queue in self._active:
            if not self._is_ready(queue, now_ms):
                continue
            leader = self.view.leader(queue.place).leader
            if leader == NO_LEADER or leader not in self.view.nodes:
                self._needs_metadata = True
            elif self._in_flight.get(leader, 0) < most:
                by_node.setdefault(leader, []).append(queue)
        for node_id, queues in by_node.items():
            while queues and self._in_flight.get(node_id, 0) < most:
                count = self._send_one(node_id, queues, effects)
                if count < len(queues):  # the next request begins with the others
                    for queue in queues[:count]:
                        self._active[queue] = self._active.pop(queue)
                    queues = queues[count:] + queues[:count]
                queues = [queue for queue in queues if self._is_ready(queue, now_ms)]

    def _is_ready(self, queue: PartitionQueue, now_ms: int) -> bool:
        """Returns whether a batch of the queue can be sent now."""
        if queue.unacknowledged:
            again = queue.repetition(keeps_order=self._keeps_order)
            if again is not None:
                return again.not_before_ms <= now_ms
            if queue.is_repeating or queue.needs_new_epoch:
                return False
            most = self.settings.max_in_flight_requests_per_connection
            if self._is_idempotent and not queue.is_known:
                return False
            if self._keeps_order and queue.sent_since_oldest >= most:
                return False
        elif queue.needs_new_epoch:
            return False
        if not queue.waiting:
            return False
        if self._is_idempotent:
            queue.adopt(self._producer_id, self._producer_epoch)
            if queue.producer_id != self._producer_id or (
                self._is_transactional and queue.producer_epoch != self._producer_epoch
            ):
                return False  # batches with the previous identity are not answered yet
        if len(queue.waiting) > 1 or queue.waiting[0].state is BatchState.CLOSED:
            return True
        return (
            self.is_flushing
            or self.blocked_count > 0
            or now_ms - queue.waiting[0].created_ms >= self.settings.linger_ms
        )

    def _send_one(self, node_id: int, queues: list[PartitionQueue], effects: list[Effect]) -> int:
        """Sends one batch of each queue in one request, as far as `max.request.size` permits. Returns the
        number of queues, which are the first ones.
        """
        size = REQUEST_OVERHEAD_BYTES
        request = _InFlight(node_id, self.view.ended_topics)
        for queue in queues:
            again = queue.repetition(keeps_order=self._keeps_order)
            if again is not None:
                batch = again
            else:
                batch = queue.waiting[0]
                if batch.state is BatchState.OPEN:
                    batch.close()
                    topic = self._topics[queue.place.topic]
                    if topic.sticky == queue.place.partition:
                        self._turn_sticky(topic)
            size += batch.wire_bytes + ROW_OVERHEAD_BYTES
            if request.batches and (
                size > self.settings.max_request_size or len(request.batches) == PARTITIONS_A_REQUEST
            ):
                break
            if again is None:
                queue.take(is_idempotent=self._is_idempotent)
            batch.move_to(BatchState.SENT)
            batch.attempts += 1
            batch.is_on_wire = True
            batch.topic_id = self._topics[queue.place.topic].topic_id
            request.batches[queue.place] = batch
        self._last_request_id += 1
        self._requests[self._last_request_id] = request
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        self.counts.request_total += 1
        self.counts.batch_total += len(request.batches)
        self.counts.byte_total += sum(batch.wire_bytes for batch in request.batches.values())
        effects.append(SendProduce(self._last_request_id, node_id, tuple(request.batches.values())))
        return len(request.batches)
