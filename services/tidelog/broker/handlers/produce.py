"""Produce v3 to v13: appends each partition's batch, and responds when `acks` is met.

acks=0 has no response. An error then closes the connection, as in Kafka, so that the client refreshes its
metadata. acks=all waits in the purgatory until the high watermark has passed the batch. If `flush.messages`
requires it, the response also waits for the disk, except with acks=0. UNKNOWN_SERVER_ERROR is never sent,
because clients would send the batch again.

A transactional request may have to wait for its coordinator first (`coordination/verification.py`). Later
requests of the connection then wait until its batches are appended; in Kafka they wait for its response.
Transactional batches in a request without a transactional id are refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED.

The most frequent request, of one batch without a transaction, is a `OneBatch` (`requests/one_batch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.broker.coordination.verification import (
    TransactionalBatch,
    TransactionVerification,
    transactional_header,
)
from tidelog.broker.hosting.replica import Appended, Replica
from tidelog.broker.net.connection import ClosedByProtocolError
from tidelog.broker.net.socket_io import CAUTIOUS_ALLOCATION_BYTES
from tidelog.broker.partition.batch_validation import (
    WALK_ON_LOOP_BYTES,
    LongWalkError,
    RecordValidationError,
)
from tidelog.broker.partition.guards import NO_TRANSACTIONAL_ID
from tidelog.broker.requests.one_batch import FIRST_VERSION_WITH_TOPIC_ID, NO_RECORDS, OneBatch
from tidelog.broker.requests.request import (
    NO_REPLY,
    PARKED,
    Answer,
    EncodedBody,
    Reply,
    RequestContext,
)
from tidelog.broker.requests.waiting import DelayedRequest
from tidelog.broker.security.authorizer import Authorizer
from tidelog.kernel.clock import JUMP_MS
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.kernel.slices import run_in_slices
from tidelog.model.acl import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import ACKS_ALL
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition
from tidelog.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.parts import BrokerParts

WRITE: Final = AclOperation.WRITE
Pending: TypeAlias = "tuple[Replica, int, PartitionProduceResponse]"
"""A replica, the offset that its high watermark must reach, and the response that waits for it."""
LongWalk: TypeAlias = "tuple[Replica, memoryview, int, PartitionProduceResponse, WallMs]"
"""A batch that is appended after a thread has walked over its records: the replica, the records, the guard of
the transaction, the response, and the time of the append.
"""
MAX_WALK_WITHOUT_ACKS_BYTES: Final = 1024 * 1024
"""The most decompressed bytes of records that a batch with acks=0 may have on a topic whose records are
checked. Such a request has no response that could wait for a thread.
"""
MAX_BATCHES_AT_ONCE: Final = 500
"""The most batches of a request that are appended without a turn of the event loop, in about 10 ms."""
_VALID_ACKS: Final = (0, 1, ACKS_ALL)
_MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class ProduceHandler:
    """Answers Produce, with the parts of the broker that it needs."""

    __slots__ = (
        "authorizer",
        "clock",
        "coordinator",
        "hosted",
        "metadata",
        "record_walks",
        "settings",
        "steady_clock",
        "telemetry",
        "waiting",
    )

    def __init__(self, parts: BrokerParts) -> None:
        self.hosted = parts.hosted
        self.metadata = parts.metadata
        self.waiting = parts.waiting
        self.coordinator = parts.coordination.verification
        self.settings = parts.current_settings
        self.telemetry = parts.telemetry
        self.clock = parts.clock
        self.steady_clock = parts.steady_clock
        self.record_walks = parts.record_walks
        self.authorizer = parts.authorizer

    def handle(self, request: ProduceRequest | OneBatch, context: RequestContext) -> Answer:
        produce = Produce(self, request, context)
        transactional_id, authorizer = request.transactional_id, self.authorizer
        if (
            transactional_id is not None
            and authorizer is not None
            and _has_transactional_batch(request)
            and not authorizer.may(context, WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        ):
            return produce.refuse_all(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if request.transactional_id:  # not of an empty id, with which transactional batches are refused
            produce.verify(request.transactional_id)
        return produce.respond()


class Produce:
    """One Produce request: appends its batches and collects what the response must wait for."""

    __slots__ = (
        "_acks",
        "_appended",
        "_context",
        "_epochs",
        "_failed",
        "_forget_copies",
        "_handler",
        "_has_copies",
        "_leaders",
        "_long_walks",
        "_now_ms",
        "_request",
        "_response",
        "_unflushed",
        "_verification",
        "_waiting",
    )

    def __init__(
        self, handler: ProduceHandler, request: ProduceRequest | OneBatch, context: RequestContext
    ) -> None:
        self._handler = handler
        self._request = request
        self._context = context
        self._acks = request.acks
        self._now_ms = handler.clock.wall_ms()
        self._waiting: list[Pending] = []
        self._epochs: list[int] = []
        """The leader epoch of each element of `_waiting`, if the response comes from a coroutine."""
        self._unflushed: list[tuple[Replica, PartitionProduceResponse]] = []
        self._long_walks: list[LongWalk] | None = None
        """The batches that are appended after a thread has walked over their records."""
        self._failed: PartitionProduceResponse | None = None
        self._has_copies = False
        """Whether the records of the request are copies."""
        self._forget_copies: Callable[[], object] | None = None
        """Ends the count of the copies of records that a coroutine keeps, if they are large."""
        self._leaders: set[int] = set()
        """The leaders that the response names."""
        self._verification: TransactionVerification | None = None
        """Only of a request with a transactional id."""
        self._response: ProduceResponse
        self._appended: PartitionProduceResponse
        """The result of the only batch, if the request is a `OneBatch`. Any other has `_response`."""

    def respond(self) -> Answer:
        """Appends the batches and finishes. Returns a coroutine if the coordinator must be asked first, or if
        the append or the disk takes long.
        """
        request, verification = self._request, self._verification
        if type(request) is OneBatch:
            self._appended = self._append(self._topic_name(request), request)
        elif verification is not None and verification.is_pending:
            if self._acks == 0:
                raise ClosedByProtocolError("a transactional request with acks=0 must be verified first")
            self._keep_records()
            return self._finish_later(is_appended=False)
        elif _has_many_batches(request):
            self._keep_records()
            return self._finish_later(is_appended=False)
        else:
            self._response = self._append_all()
        if self._long_walks is not None or self._unflushed:
            self._forget_records()
            self._count_copies(sum(len(records) for _, records, _, _, _ in self._long_walks or ()))
            self._remember_epochs()
            return self._finish_later(is_appended=True)
        return self._finish()

    def verify(self, transactional_id: str) -> None:
        """Finds out which batches the coordinator of the transaction has to be asked about."""
        self._verification = TransactionVerification(
            transactional_id,
            self._context.api_version,
            list(self._transactional_batches()),
            self._now_ms,
            is_enabled=self._handler.settings.broker.transaction_partition_verification_enable,
        )

    async def _finish_later(self, *, is_appended: bool) -> Reply:
        """Appends the batches, unless `respond` has, and then those whose records need a long walk. Waits for
        the disk: with `flush.messages`, the batches are there before they are acknowledged.
        """
        try:
            if not is_appended:
                await self._append_in_slices()
            for walk in self._long_walks or ():
                await self._append_walked(walk)
                self._remember_epochs()
            for replica, answer in self._unflushed:
                try:
                    await replica.flush(self._now_ms)
                except KafkaError as error:
                    answer.error_code = error.code
            self._refuse_moved()
            return self._finish(is_later=True)
        finally:
            self._drop_copies()
            if self._forget_copies is not None:
                self._forget_copies()

    async def _append_in_slices(self) -> None:
        """Appends the batches after the coordinator has answered, many without holding the event loop for
        long.
        """
        verification = self._verification
        if verification is not None and verification.is_pending:
            await verification.ask(self._handler.coordinator, self._request.timeout_ms)
        self._response = await run_in_slices(self._append_steps())

    def _finish(self, *, is_later: bool = False) -> Reply:
        """Ends the request: now, or when the replicas have acknowledged its batches. `is_later` says that a
        coroutine calls it. The response has a place in the order of the connection then.
        """
        context = self._context
        if self._acks == 0:
            if self._failed is None:
                return NO_REPLY
            if not is_later:
                raise ClosedByProtocolError(self._failure_without_acks)
            context.connection.refuse(self._failure_without_acks)
            return NO_REPLY
        if not self._waiting:
            return self.response()
        waiter, purgatory = DelayedProduce(self, context, self._waiting), self._handler.waiting.produce
        if is_later:
            context.on_abandoned = lambda: purgatory.cancel(waiter)
        else:
            context.park(on_abandoned=lambda: purgatory.cancel(waiter))
        # The batches are in the log, so the request lets go of them: its frame no longer counts in the memory
        # for requests.
        self._forget_records()
        if context.steps is not None:
            context.steps.wait_began("replication wait")
        purgatory.watch(
            waiter,
            [replica.topic_partition for replica, _, _ in self._waiting],
            MonotonicMs(self._handler.waiting.timer.monotonic_ms() + max(self._request.timeout_ms, 0)),
        )
        return PARKED

    def response(self) -> ProduceResponse | EncodedBody:
        """Returns the response. It has the addresses of the leaders that it names."""
        request = self._request
        if type(request) is not OneBatch:
            response = self._response
        elif not self._appended.error_code:
            return EncodedBody((request.encoded_response(self._appended),))
        else:
            topic = TopicProduceResponse(request.name, request.topic_id, [self._appended])
            response = ProduceResponse([topic])
        if self._leaders:
            response.node_endpoints = [
                NodeEndpoint(node.broker_id, endpoint.host, endpoint.port, node.rack)
                for node, endpoint in self._handler.metadata.nodes(self._leaders, self._context.listener_name)
            ]
        return response

    def _keep_records(self) -> None:
        """Copies the records, because the buffer that holds the request is reused while it waits."""
        self._has_copies = True
        size_bytes = 0
        for topic in self._request.topic_data:
            for data in topic.partition_data:
                if data.records is not None:
                    data.records = memoryview(bytearray(data.records))
                    size_bytes += len(data.records)
        self._count_copies(size_bytes)

    def _count_copies(self, size_bytes: int) -> None:
        """Counts copies of records in the memory for requests, as the buffers of incomplete requests. Raises
        NoMemoryForRequestError, which closes the connection.
        """
        if size_bytes > CAUTIOUS_ALLOCATION_BYTES:
            self._forget_copies = self._context.connection.keep_copy(size_bytes, self._drop_copies)

    def _drop_copies(self) -> None:
        """Drops the records that are not appended yet. Their connection ends, or nothing needs them."""
        self._forget_records()
        if self._long_walks is not None:
            self._long_walks.clear()

    def _forget_records(self) -> None:
        """Lets go of the records in the request, which may be views of the buffer that it arrived in."""
        request = self._request
        if isinstance(request, OneBatch):
            request.records = NO_RECORDS
            return
        for topic in request.topic_data:
            topic.partition_data.clear()
        request.topic_data.clear()

    def _transactional_batches(self) -> Iterator[TransactionalBatch]:
        for topic in self._request.topic_data:
            name = self._topic_name(topic)
            for data in topic.partition_data:
                header = transactional_header(data.records)  # type: ignore[arg-type]  # the decoder leaves views
                if header is None:
                    continue
                try:
                    if self._handler.authorizer is not None:
                        self._check_access(self._handler.authorizer, name)
                    yield TransactionalBatch(self._replica(name, data.index), header)
                except KafkaError:  # the append fails with the same error and reports it
                    continue

    def _remember_epochs(self) -> None:
        """Remembers the leader epochs under which batches were appended, before they may change."""
        for replica, _, _ in self._waiting[len(self._epochs) :]:
            self._epochs.append(replica.core.leader_epoch)

    def _refuse_moved(self) -> None:
        """Refuses the batches whose leader epoch has changed since they were appended. A leader that was a
        follower meanwhile may have truncated them, and would acknowledge other records in their place.
        """
        left, epochs = [], []
        for entry, epoch in zip(self._waiting, self._epochs, strict=True):
            replica, _, answer = entry
            if replica.core.leader_epoch != epoch:
                answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                self.add_current_leader(answer, replica.topic_partition.topic)
            if not answer.error_code:
                left.append(entry)
                epochs.append(epoch)
        self._waiting, self._epochs = left, epochs

    def _append_all(self) -> ProduceResponse:
        topics = []
        for topic in self._request.topic_data:
            name = self._topic_name(topic)
            answers = [self._append(name, data) for data in topic.partition_data]
            topics.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
            )
        return ProduceResponse(responses=topics)

    def _append_steps(self) -> Generator[None, None, ProduceResponse]:
        """Does what `_append_all` does, with a step for each batch."""
        topics = []
        for topic in self._request.topic_data:
            name = self._topic_name(topic)
            answers = []
            for data in topic.partition_data:
                answers.append(self._append(name, data))
                self._remember_epochs()
                yield
            topics.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
            )
        return ProduceResponse(responses=topics)

    @property
    def _failure_without_acks(self) -> str:
        assert self._failed is not None
        error = ErrorCode(self._failed.error_code).name
        return f"acks=0 failed on partition {self._failed.index}: {error}"

    def _append(self, topic: str | None, data: PartitionProduceData | OneBatch) -> PartitionProduceResponse:
        steps = self._context.steps
        if steps is None:
            return self._append_batch(topic, data, self._now_ms)
        steps.append_began(topic, data.index, data.records)
        answer = self._append_batch(topic, data, self._now_ms)
        steps.append_ended(answer.error_code, answer.base_offset)
        return answer

    def _append_batch(
        self, topic: str | None, data: PartitionProduceData | OneBatch, now_ms: WallMs
    ) -> PartitionProduceResponse:
        answer = PartitionProduceResponse(data.index)
        verification = self._verification
        try:
            if self._handler.authorizer is not None:
                self._check_access(self._handler.authorizer, topic)
            replica = self._replica(topic, data.index)
            if self._acks not in _VALID_ACKS:
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
            if topic in INTERNAL_TOPICS:  # their coordinators write to them over sessions
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}"
                )
            if data.records is None:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"Partition {data.index} has no batch")
            guard = (
                NO_TRANSACTIONAL_ID
                if verification is None
                else verification.guard_of(replica.topic_partition)
            )
            appended = replica.append(
                data.records,  # type: ignore[arg-type]  # Produce's decoder leaves memoryviews
                self._acks,
                self._context.api_version,
                now_ms,
                guard,
                WALK_ON_LOOP_BYTES if self._acks else MAX_WALK_WITHOUT_ACKS_BYTES,
            )
        except LongWalkError:
            if not self._acks:
                error = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "The records are too long for acks=0")
                self._refuse(answer, topic, error)
                return answer
            records = data.records
            assert records is not None
            # The buffer of the request is reused while a thread walks over the records.
            kept = memoryview(records if self._has_copies else bytearray(records))
            self._long_walks = self._long_walks or []
            self._long_walks.append((replica, kept, guard, answer, now_ms))
            return answer
        except KafkaError as error:
            if error.code is ErrorCode.INVALID_TIMESTAMP and now_ms == self._now_ms:
                # After a jump of the wall clock, timestamps that would have been taken before it still are.
                steady_ms = self._handler.steady_clock.wall_ms()
                if abs(steady_ms - now_ms) >= JUMP_MS:
                    return self._append_batch(topic, data, steady_ms)
            self._refuse(answer, topic, error)
            return answer
        self._note_appended(replica, appended, answer)
        return answer

    async def _append_walked(self, walk: LongWalk) -> None:
        """Walks over the records of a batch in a thread, and appends the batch."""
        replica, records, guard, answer, now_ms = walk
        handler, version = self._handler, self._context.api_version
        loop = self._context.connection.loop
        try:
            walked = await loop.run_in_executor(handler.record_walks, replica.walk, records, version, now_ms)
            appended = replica.append(records, self._acks, version, now_ms, guard, walked=walked)
        except KafkaError as error:
            self._refuse(answer, replica.topic_partition.topic, error)
        else:
            self._note_appended(replica, appended, answer)

    def _note_appended(self, replica: Replica, appended: Appended, answer: PartitionProduceResponse) -> None:
        """Fills in the answer, and remembers what the response must wait for."""
        answer.base_offset = appended.base_offset
        answer.log_append_time_ms = appended.log_append_time_ms
        answer.log_start_offset = replica.core.log_start_offset
        if self._acks == ACKS_ALL and not replica.core.is_acknowledged(appended.required_offset):
            self._waiting.append((replica, appended.required_offset, answer))
        if replica.core.is_flush_due and self._acks:
            self._unflushed.append((replica, answer))

    def _check_access(self, authorizer: Authorizer, topic: str | None) -> None:
        """Raises KafkaError(TOPIC_AUTHORIZATION_FAILED) if the client may not write to the topic."""
        context = self._context
        if topic is None or authorizer.decisions(context.connection, WRITE, ResourceType.TOPIC).get(topic):
            return
        if not authorizer.may(context, WRITE, ResourceType.TOPIC, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def refuse_all(self, error: ErrorCode) -> Answer:
        """Returns the response that refuses every batch."""
        topics = []
        for topic in self._request.topic_data:
            answers = [PartitionProduceResponse(data.index) for data in topic.partition_data]
            for answer in answers:
                self._refuse(answer, self._topic_name(topic), KafkaError(error))
            topics.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
        self._response = ProduceResponse(responses=topics)
        return self._finish()

    def _refuse(self, answer: PartitionProduceResponse, topic: str | None, error: KafkaError) -> None:
        answer.error_code = error.code
        answer.error_message = error.message
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in (error.record_errors if isinstance(error, RecordValidationError) else ())
        ]
        answer.base_offset = -1
        answer.log_start_offset = -1
        self._failed = answer
        self._handler.telemetry.produce_failed(topic, error.code)
        if error.code in _MOVED and topic is not None:
            self.add_current_leader(answer, topic)

    def _topic_name(self, topic: TopicProduceData | OneBatch) -> str | None:
        if self._context.api_version >= FIRST_VERSION_WITH_TOPIC_ID:
            return self._handler.metadata.topic_names.get(topic.topic_id)
        return topic.name

    def _replica(self, topic: str | None, partition: int) -> Replica:
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        topic_partition, hosted = TopicPartition(topic, partition), self._handler.hosted
        replica = hosted.replicas.get(topic_partition) or hosted.find(topic_partition)
        if replica is None:
            raise hosted.no_replica_error(topic, partition)
        return replica

    def add_current_leader(self, answer: PartitionProduceResponse, topic: str) -> None:
        """Names the partition's leader in its response, as far as this broker knows it."""
        known = self._handler.hosted.leader_of(topic, answer.index)
        if known is not None:
            answer.current_leader = LeaderIdAndEpoch(*known)
            self._leaders.add(known[0])


def _has_many_batches(request: ProduceRequest | OneBatch) -> bool:
    count = 0
    for topic in request.topic_data:
        count += len(topic.partition_data)
    return count > MAX_BATCHES_AT_ONCE


def _has_transactional_batch(request: ProduceRequest | OneBatch) -> bool:
    return any(
        transactional_header(data.records) is not None  # type: ignore[arg-type]  # the decoder leaves views
        for topic in request.topic_data
        for data in topic.partition_data
    )


class DelayedProduce(DelayedRequest):
    """A request with acks=all. It completes when each partition's high watermark has passed its batch, or
    with REQUEST_TIMED_OUT.
    """

    __slots__ = ("_by_partition", "_pending", "_produce")

    def __init__(self, produce: Produce, context: RequestContext, pending: list[Pending]) -> None:
        super().__init__(context)
        self._produce = produce
        self._pending = pending
        self._by_partition: dict[Hashable, list[Pending]] | None = None  # of several, since the first change

    def on_change(self, key: Hashable | None) -> bool:
        """Notes the errors of the batches that no longer wait."""
        if key is None or len(self._pending) == 1:
            self._pending = self._unacknowledged(self._pending)
            return not self._pending
        by_partition = self._by_partition
        if by_partition is None:
            by_partition = self._by_partition = {}
            for entry in self._pending:
                by_partition.setdefault(entry[0].topic_partition, []).append(entry)
        still = self._unacknowledged(by_partition.pop(key, []))
        if still:
            by_partition[key] = still
        return not by_partition

    def _unacknowledged(self, pending: list[Pending]) -> list[Pending]:
        """Returns the batches that still wait, and notes the errors of those that do not."""
        still = []
        for entry in pending:
            replica, required_offset, answer = entry
            core = replica.core
            if not core.is_leader:
                answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                self._produce.add_current_leader(answer, replica.topic_partition.topic)
            elif not core.is_acknowledged(required_offset):
                still.append(entry)
            elif core.is_under_min_isr:
                answer.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return still

    def on_expire(self) -> None:
        by_partition = self._by_partition
        for pending in (self._pending,) if by_partition is None else by_partition.values():
            for _, _, answer in pending:
                answer.error_code = ErrorCode.REQUEST_TIMED_OUT

    def on_complete(self) -> None:
        self.context.reply(self._produce.response())
