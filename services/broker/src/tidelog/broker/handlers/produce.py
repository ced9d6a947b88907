"""Produce v3 to v13: append each partition's batch, answer when `acks` is met.

acks=0 has no answer; an error then closes the connection, as Kafka does, so that the client refreshes
its metadata. acks=all waits in the purgatory until the high watermark has passed the batch. Where
`flush.messages` asks for it, the answer waits for the disk, too (but not with acks=0).
UNKNOWN_SERVER_ERROR is never answered: clients would send the batch again. What a transaction asks for
besides is in `transactional_produce.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.broker.connection import ClosedByProtocolError
from tidelog.broker.handlers import transactional_produce
from tidelog.broker.handlers.one_batch import OneBatch
from tidelog.broker.handlers.one_batch import decoder as decoder
from tidelog.broker.partition.record_validation import RecordValidationError
from tidelog.broker.partition.verifications import NO_GUARD, NOT_IN_ONE
from tidelog.broker.request import NO_REPLY, PARKED, DelayedRequest, EncodedBody, RequestContext
from tidelog.model.errors import ErrorCode, KafkaError
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
    from tidelog.broker.broker import Broker
    from tidelog.broker.replica import Replica

ACKS_ALL: Final = -1
ADMIN_CLIENT_ID: Final = "__admin_client"
"""Who calls itself so may write to internal topics, as in Kafka; their owners then load them anew."""
Pending: TypeAlias = "tuple[Replica, int, PartitionProduceResponse]"
"""Whose high watermark has to reach which offset, and the answer that waits for it."""
_VALID_ACKS = (0, 1, ACKS_ALL)
_FIRST_VERSION_WITH_TOPIC_ID = 13
_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def handle(broker: Broker, request: ProduceRequest | OneBatch, context: RequestContext) -> object:
    produce = Produce(broker, request, context)
    if request.transactional_id is not None:
        return transactional_produce.answer(produce)
    return produce.answer()


class Produce:
    """One Produce request: appends what it brings and gathers what its answer has to wait for."""

    __slots__ = (
        "acks",
        "broker",
        "context",
        "failed",
        "guards",
        "leaders",
        "now_ms",
        "refusals",
        "request",
        "unflushed",
        "waiting",
    )

    def __init__(self, broker: Broker, request: ProduceRequest | OneBatch, context: RequestContext) -> None:
        self.broker = broker
        self.request = request
        self.context = context
        self.acks = request.acks
        self.now_ms = broker.clock.now_ms()
        self.waiting: list[Pending] = []
        self.unflushed: list[tuple[Replica, PartitionProduceResponse]] = []
        self.failed: PartitionProduceResponse | None = None
        self.leaders: set[int] = set()
        """Those that the answer names."""
        self.guards: dict[TopicPartition, int]
        self.refusals: dict[TopicPartition, KafkaError]
        """What came of asking the coordinator: who is vouched for, and who is not. Only in a transaction."""

    def answer(self) -> object:
        request = self.request
        if type(request) is not OneBatch:
            return self._answer(self.append_all())
        appended = self._append(self.topic_name(request), request)
        if self.acks == 0 or self.failed is not None or self.unflushed:
            return self._answer(_response_to_one(request, appended))
        if not self.waiting:
            return EncodedBody((request.encoded_answer(appended),))
        self._park(lambda: self._answer_to_one(request, appended))
        return PARKED

    def _answer_to_one(self, request: OneBatch, appended: PartitionProduceResponse) -> object:
        """Once it has waited."""
        if appended.error_code:
            return self._with_leaders(_response_to_one(request, appended))
        return EncodedBody((request.encoded_answer(appended),))

    def _answer(self, response: ProduceResponse) -> object:
        if self.acks == 0:
            if self.failed is not None:
                error = ErrorCode(self.failed.error_code).name
                raise ClosedByProtocolError(f"acks=0 failed on partition {self.failed.index}: {error}")
            return NO_REPLY
        if self.unflushed:
            return self.acknowledged(response)
        if not self.waiting:
            return self._with_leaders(response)
        self._park(lambda: self._with_leaders(response))
        return PARKED

    def topic_name(self, topic: TopicProduceData | OneBatch) -> str | None:
        if self.context.api_version >= _FIRST_VERSION_WITH_TOPIC_ID:
            return self.broker.metadata.topic_names.get(topic.topic_id)
        return topic.name

    def append_all(self) -> ProduceResponse:
        topics = []
        for topic in self.request.topic_data:
            name = self.topic_name(topic)
            answers = [self._append(name, data) for data in topic.partition_data]
            topics.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
            )
        return ProduceResponse(responses=topics)

    def _append(self, topic: str | None, data: PartitionProduceData | OneBatch) -> PartitionProduceResponse:
        answer = PartitionProduceResponse(data.index)
        try:
            replica = self.leader(topic, data.index)
            if self.acks not in _VALID_ACKS:
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
            if topic in INTERNAL_TOPICS and self.context.client_id != ADMIN_CLIENT_ID:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}"
                )
            if data.records is None:
                raise KafkaError(ErrorCode.INVALID_RECORD, "a Produce request's partition holds no batch")
            guard = self._guard(replica.topic_partition) if self.request.transactional_id else NOT_IN_ONE
            appended = replica.append(
                data.records,  # type: ignore[arg-type]  # Produce's decoder leaves memoryviews
                self.acks,
                self.context.api_version,
                self.now_ms,
                guard,
            )
        except KafkaError as error:
            self.failed = _refused(self.broker, answer, topic, error)
            if error.code in _MOVED and topic is not None:
                self.moved(answer, topic)
            return answer
        answer.base_offset = appended.base_offset
        answer.log_append_time_ms = appended.log_append_time_ms
        answer.log_start_offset = replica.core.log_start_offset
        if self.acks == ACKS_ALL and not replica.core.is_acknowledged(appended.required_offset):
            self.waiting.append((replica, appended.required_offset, answer))
        if replica.log.is_flush_due_by_messages:
            self.unflushed.append((replica, answer))
        return answer

    def _guard(self, topic_partition: TopicPartition) -> int:
        refusal = self.refusals.get(topic_partition)
        if refusal is not None:
            raise refusal
        return self.guards.get(topic_partition, NO_GUARD)

    def leader(self, topic: str | None, partition: int) -> Replica:
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        topic_partition = TopicPartition(topic, partition)
        replica = self.broker.replicas.get(topic_partition) or self.broker.settling.get(topic_partition)
        if replica is None:
            raise self.broker.no_replica_error(topic, partition)
        return replica

    async def acknowledged(self, response: ProduceResponse) -> ProduceResponse:
        """The answer, when its time has come.

        `flush.messages`: what was appended is on the disk before it is acknowledged. A leader that has
        followed meanwhile may have cut it off again.
        """
        epochs = [replica.core.leader_epoch for replica, _, _ in self.waiting]
        for replica, answer in self.unflushed:
            try:
                await asyncio.to_thread(replica.log.flush, None, now_ms=self.now_ms)
            except KafkaError as error:
                answer.error_code = error.code
        for (replica, _, answer), epoch in zip(self.waiting, epochs, strict=True):
            if replica.core.leader_epoch != epoch:
                answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                self.moved(answer, replica.topic_partition.topic)
        self.waiting = [entry for entry in self.waiting if not entry[2].error_code]
        if self.waiting:
            acknowledged = self.context.connection.loop.create_future()
            self._watch(DelayedProduce(self, self.waiting, lambda: acknowledged.set_result(None)))
            await acknowledged
        return self._with_leaders(response)

    def moved(self, answer: PartitionProduceResponse, topic: str) -> None:
        """The client came to the wrong broker: it is told which one it is (KIP-951)."""
        known = self.broker.leader_of(topic, answer.index)
        if known is not None:
            answer.current_leader = LeaderIdAndEpoch(*known)
            self.leaders.add(known[0])

    def _with_leaders(self, response: ProduceResponse) -> ProduceResponse:
        """Their addresses, so that the client needn't ask for them."""
        if self.leaders:
            response.node_endpoints = [
                NodeEndpoint(node.broker_id, endpoint.host, endpoint.port, node.rack)
                for node, endpoint in self.broker.metadata.nodes(self.leaders, self.context.listener_name)
            ]
        return response

    def _park(self, answer: Callable[[], object]) -> None:
        operation = DelayedProduce(self, self.waiting, lambda: self.context.reply(answer()))
        self.context.park(on_abandoned=lambda: self.broker.produce_purgatory.cancel(operation))
        self._watch(operation)

    def wait_on(self, response: ProduceResponse) -> None:
        """As `_park`, where the request has its place in the order of answers already."""
        operation = DelayedProduce(
            self, self.waiting, lambda: self.context.reply(self._with_leaders(response))
        )

        def give_up() -> None:
            self.broker.produce_purgatory.cancel(operation)

        self.context.on_abandoned = give_up
        self._watch(operation)

    def _watch(self, operation: DelayedProduce) -> None:
        self.broker.produce_purgatory.watch(
            operation,
            [replica.topic_partition for replica, _, _ in self.waiting],
            self.broker.timer.now_ms() + max(self.request.timeout_ms, 0),
        )


def _response_to_one(request: OneBatch, appended: PartitionProduceResponse) -> ProduceResponse:
    return ProduceResponse([TopicProduceResponse(request.name, request.topic_id, [appended])])


def _refused(
    broker: Broker, answer: PartitionProduceResponse, topic: str | None, error: KafkaError
) -> PartitionProduceResponse:
    answer.error_code = error.code
    answer.error_message = error.message
    answer.record_errors = [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
        for index, message in (error.record_errors if isinstance(error, RecordValidationError) else ())
    ]
    answer.base_offset = -1
    answer.log_start_offset = -1
    broker.telemetry.produce_failed(topic, error.code)
    return answer


class DelayedProduce(DelayedRequest):
    """acks=all: answered when each partition's high watermark has passed what was appended, or with
    REQUEST_TIMED_OUT.
    """

    __slots__ = ("_on_acknowledged", "_pending", "_produce")

    def __init__(self, produce: Produce, pending: list[Pending], on_acknowledged: Callable[[], None]) -> None:
        super().__init__(produce.context)
        self._produce = produce
        self._pending = pending
        self._on_acknowledged = on_acknowledged

    def try_complete(self) -> bool:
        still = []
        for entry in self._pending:
            replica, required_offset, answer = entry
            core = replica.core
            if not core.is_leader:
                answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                self._produce.moved(answer, replica.topic_partition.topic)
            elif not core.is_acknowledged(required_offset):
                still.append(entry)
            elif core.is_under_min_isr:
                answer.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        self._pending = still
        return not still

    def on_expire(self) -> None:
        for _, _, answer in self._pending:
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT

    def on_complete(self) -> None:
        self._on_acknowledged()
