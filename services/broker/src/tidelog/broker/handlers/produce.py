"""Produce v3 to v13: append each partition's batch, answer when `acks` is met.

acks=0 has no answer; an error then closes the connection, as Kafka does, so that the client refreshes
its metadata. acks=all waits in the purgatory until the high watermark has passed the batch.
UNKNOWN_SERVER_ERROR is never answered: clients would send the batch again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.connection import ClosedByProtocolError
from tidelog.broker.partition.record_validation import RecordValidationError
from tidelog.broker.request import NO_REPLY, PARKED, DelayedRequest, RequestContext
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.replica import Replica

_VALID_ACKS = (0, 1, -1)
_FIRST_VERSION_WITH_TOPIC_ID = 13
_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def handle(broker: Broker, request: ProduceRequest, context: RequestContext) -> object:
    version, acks = context.api_version, request.acks
    now_ms = broker.clock.now_ms()
    waiting: list[tuple[Replica, int, PartitionProduceResponse]] = []
    failed: PartitionProduceResponse | None = None
    topics = []
    for topic in request.topic_data:
        name: str | None = topic.name
        if version >= _FIRST_VERSION_WITH_TOPIC_ID:
            name = broker.metadata.topic_names.get(topic.topic_id)
        partitions = []
        for data in topic.partition_data:
            answer = PartitionProduceResponse(data.index)
            try:
                replica = _leader(broker, name, data.index)
                _append(broker, replica, data, acks, version, now_ms, answer, waiting)
            except KafkaError as error:
                failed = _refused(broker, answer, name, error)
            partitions.append(answer)
        topics.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions)
        )
    if acks == 0:
        if failed is not None:
            raise ClosedByProtocolError(
                f"produce with acks=0 failed on partition {failed.index}: {ErrorCode(failed.error_code).name}"
            )
        return NO_REPLY
    response = ProduceResponse(responses=topics)
    if not waiting:
        return response
    operation = DelayedProduce(context, response, waiting)
    context.park(on_abandoned=lambda: broker.produce_purgatory.cancel(operation))
    broker.produce_purgatory.watch(
        operation,
        [replica.topic_partition for replica, _, _ in waiting],
        broker.timer.now_ms() + max(request.timeout_ms, 0),
    )
    return PARKED


def _leader(broker: Broker, name: str | None, partition: int) -> Replica:
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    replica = broker.replicas.get(TopicPartition(name, partition))
    if replica is None:
        raise broker.no_replica_error(name, partition)
    return replica


def _append(
    broker: Broker,
    replica: Replica,
    data: PartitionProduceData,
    acks: int,
    version: int,
    now_ms: int,
    answer: PartitionProduceResponse,
    waiting: list[tuple[Replica, int, PartitionProduceResponse]],
) -> None:
    if acks not in _VALID_ACKS:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    records = data.records
    if records is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a Produce request's partition holds no batch")
    appended = replica.append(records, acks, version, now_ms)
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time_ms
    answer.log_start_offset = replica.core.log_start_offset
    if acks == -1 and not replica.core.is_acknowledged(appended.required_offset):
        waiting.append((replica, appended.required_offset, answer))


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
    if error.code in _MOVED and topic is not None:
        state = broker.metadata.partition(topic, answer.index)
        if state is not None:
            answer.current_leader = LeaderIdAndEpoch(state.leader, state.leader_epoch)
    broker.telemetry.produce_failed(topic)
    return answer


class DelayedProduce(DelayedRequest):
    """acks=all: answered when each partition's high watermark has passed what was appended, or with
    REQUEST_TIMED_OUT.
    """

    __slots__ = ("_pending", "_response")

    def __init__(
        self,
        context: RequestContext,
        response: ProduceResponse,
        pending: list[tuple[Replica, int, PartitionProduceResponse]],
    ) -> None:
        super().__init__(context)
        self._response = response
        self._pending = pending

    def try_complete(self) -> bool:
        still = []
        for entry in self._pending:
            replica, required_offset, answer = entry
            if not replica.core.is_leader:
                answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif not replica.core.is_acknowledged(required_offset):
                still.append(entry)
        self._pending = still
        return not still

    def on_expire(self) -> None:
        for _, _, answer in self._pending:
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT

    def on_complete(self) -> None:
        self.context.reply(self._response)
