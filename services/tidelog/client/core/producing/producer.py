"""The core of a producer: it decides which batches to send, when and again, and what became of them.

`step` takes an event and `poll` the time; both return effects. The core knows no clock and does no I/O. The
names of the parts follow Kafka's RecordAccumulator (the buffer), Sender and TransactionManager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.core.cluster_view import PARTITIONS_A_REQUEST, MetadataReceived
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
from tidelog.client.core.producing.record_buffer import REQUEST_OVERHEAD_BYTES, RecordBuffer
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import (
    DeliveryTimeoutError,
    NetworkError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RequestTimeoutError,
    TransactionAbortableError,
    request_error,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER, UNKNOWN_OFFSET
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

ROW_OVERHEAD_BYTES: Final = 320
"""The most bytes of a partition in a request beside its batch: the name of a topic and some numbers."""

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


class ProducerCore(RecordBuffer):
    """A producer. It is not thread-safe.

    Times are milliseconds of a monotonic clock, except the timestamps of records.
    """

    def __init__(
        self, settings: ProducerSettings, *, choose: Callable[[int], int], jitter: Callable[[], float]
    ) -> None:
        super().__init__(settings, choose=choose, jitter=jitter)
        self.counts: ProducerCounts = ProducerCounts()
        self.blocked_count = 0
        """The number of sends that wait for free memory. While there are any, no batch waits for records."""
        self.is_flushing = False
        self._requests: dict[int, _InFlight] = {}
        self._in_flight: dict[int, int] = {}
        """The number of requests in flight by node."""
        self._last_request_id = 0
        self._producer_id, self._producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        self._is_identity_requested = False
        self._identity_attempts = 0
        self._identity_not_before_ms = 0
        self._is_idempotent = settings.enable_idempotence
        self._is_transactional = settings.transactional_id is not None
        self._keeps_order = self._is_idempotent or settings.max_in_flight_requests_per_connection == 1

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
                self.metadata.failed(now_ms)
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
        self.metadata.is_needed = True
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
            queue.split(batch, now_ms)
            self.counts.batch_split_total += 1
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
                self.metadata.is_needed = True
            self._retry(queue, batch, error, now_ms, effects)
        else:
            if code is ErrorCode.UNKNOWN_SERVER_ERROR:
                batch.is_fate_unknown = True
            self._fail(queue, batch, error, effects)

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
            self.refuse_records(ProducerFencedError(f"the producer was replaced by a newer one ({error})"))
        elif self.abort_error is None:
            self.refuse_records(TransactionAbortableError(f"the transaction must be aborted: {error}"))

    def _finish(
        self,
        batch: ProducerBatch,
        effects: list[Effect],
        *,
        base_offset: int = -1,
        error: KafkaError | None = None,
    ) -> None:
        batch.finish(base_offset=base_offset, error=error)
        self.release(batch.reserved_bytes)
        if error is not None:
            self.counts.record_error_total += batch.count
        effects.append(CompleteBatch(batch))
        whole = batch.whole
        while whole is not None and all(part.is_done for part in whole.parts):
            errors = [part.error for part in whole.parts if part.error is not None]
            whole.finish(base_offset=whole.parts[0].base_offset, error=errors[0] if errors else None)
            self.release(whole.reserved_bytes)
            effects.append(CompleteBatch(whole))
            whole = whole.whole

    def _end_request(self, request_id: int) -> _InFlight:
        request = self._requests.pop(request_id)
        self._in_flight[request.node_id] -= 1
        return request

    def _queue(self, place: TopicPartition) -> PartitionQueue:
        return self._topics[place.topic].queues[place.partition]

    def _take_metadata(self, event: MetadataReceived, now_ms: int) -> None:
        is_refused = self._learn_topics(event)
        is_incomplete = bool(self._wanted) or any(
            self.view.leader(queue.place).leader == NO_LEADER for queue in self._active
        )
        self.metadata.received(is_incomplete, now_ms, is_refused=is_refused)

    def _refused_identity(self, error: KafkaError, now_ms: int, effects: list[Effect]) -> None:
        self._is_identity_requested = False
        self._identity_attempts += 1
        self._identity_not_before_ms = now_ms + self._backoff.delay_ms(self._identity_attempts)
        if not error.is_retriable:
            self.refuse_records(error)
            effects += self.fail_all(error)

    def poll(self, now_ms: int) -> list[Effect]:
        """Returns the effects that are due at `now_ms`. `next_wake_ms` tells when to call it again."""
        self.is_due = False
        effects: list[Effect] = []
        self._expire(now_ms, effects)
        for queue in [queue for queue in self._active if queue.is_empty]:
            del self._active[queue]
        if self._active and self._is_idempotent and not self._is_transactional:
            self._keep_identity(now_ms, effects)
        if not self._is_idempotent or self._producer_id != NO_PRODUCER_ID:
            self._send(now_ms, effects)
        if (self._topics or self._wanted) and self.metadata.is_due(now_ms):
            deleted = {
                queue.place.topic: None for queue in self._active if queue.place.topic not in self.view.topics
            }
            wanted = {**self._wanted, **deleted}
            known = tuple(name for name in self._topics if name not in wanted)
            effects.append(RequestMetadata(known, tuple(wanted)))
        return effects

    def next_wake_ms(self, now_ms: int) -> int | None:
        """Returns the next time at which `poll` has something to do, if no event comes before."""
        metadata_ms = self.metadata.next_wake_ms() if self._topics or self._wanted else None
        times = [] if metadata_ms is None else [metadata_ms]
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
                self.metadata.is_needed = True
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
