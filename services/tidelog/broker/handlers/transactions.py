"""InitProducerId, TxnOffsetCommit, WriteTxnMarkers and DescribeProducers: producers and transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from tidelog.broker.coordination.batched import WholeRequest
from tidelog.broker.coordination.coordination import client_call, forward_body
from tidelog.broker.partition.producer_state import TransactionMarker
from tidelog.broker.requests.error_responses import error_response
from tidelog.broker.requests.request import PARKED
from tidelog.kernel.slices import in_slices
from tidelog.model.acl import ANONYMOUS
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition, topic_name_problem
from tidelog.records.batch import EndTransactionMarker
from tidelog.rpc.coordinator_session import Marker
from tidelog.settings.listeners import is_loopback_host
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.view import CurrentSettings, MetadataView
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.coordination.questions import Errors
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.requests.request import Answer, RequestContext
    from tidelog.kernel.steps import Steps
    from tidelog.settings.broker_settings import BrokerSettings
    from tidelog.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

_NONE: Final = -1
FIRST_VERSION_WITH_ABORTABLE: Final = 4
FIRST_VERSION_THAT_ADDS: Final = 5
_FOR_NOW: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
MAX_PRODUCERS_IN_ANSWER: Final = 50_000
"""The most producers that one answer describes, except that its first partition is always described. That is
as many as one partition remembers.
"""

_log = structlog.get_logger(__name__)


class InitProducerIdHandler:
    """InitProducerId v0 to v5. This broker gives an idempotent producer a new producer id with epoch 0. The
    coordinator answers a transactional producer. Version 6 is unstable in Kafka 4.3.
    """

    def __init__(self, controller: ControllerConnection, coordination: Coordination) -> None:
        self._controller = controller
        self._coordination = coordination

    def handle(self, request: WholeRequest, context: RequestContext) -> Answer:
        message: InitProducerIdRequest = request.message
        if (message.producer_id == _NONE) != (message.producer_epoch == _NONE):
            return _refused(ErrorCode.INVALID_REQUEST)
        if message.transactional_id is None:
            return self._new_id()
        if not message.transactional_id:
            return _refused(ErrorCode.INVALID_REQUEST)
        return forward_body(
            self._coordination, ShardKind.TRANSACTION, message.transactional_id, request.body, context
        )

    async def _new_id(self) -> InitProducerIdResponse:
        try:
            return InitProducerIdResponse(
                producer_id=await self._controller.next_producer_id(), producer_epoch=0
            )
        # the controller moved or cannot be reached, so the client retries
        except (KafkaError, ConnectionError):
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)


class TxnOffsetCommitHandler:
    """TxnOffsetCommit v0 to v6: offsets that become valid when their transaction is committed. The group's
    coordinator answers.

    Before the first commit of a transaction, the broker asks the transaction's coordinator whether the
    group's partition belongs to the transaction; otherwise, no marker would ever end the offsets. From v5 on,
    the question also adds the partition, because the client no longer sends AddOffsetsToTxn (KIP-890). If the
    transaction's coordinator cannot answer, the client gets COORDINATOR_LOAD_IN_PROGRESS, which all clients
    retry.
    """

    def __init__(
        self,
        settings: CurrentSettings,
        metadata: MetadataView,
        hosted: HostedPartitions,
        coordination: Coordination,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._hosted = hosted
        self._coordination = coordination

    def handle(self, request: WholeRequest, context: RequestContext) -> Answer:
        message, body = request.message, request.body
        refused = self._refused_at_once(message)
        if refused:
            return error_response(ApiKey.TXN_OFFSET_COMMIT, context.api_version, message, refused)
        adds = context.api_version >= FIRST_VERSION_THAT_ADDS
        coordination = self._coordination
        shard = coordination.shard_of(ShardKind.GROUP, message.group_id)
        replica = None if shard is None else self._hosted.replicas.get(shard.topic_partition)
        is_asked_for = adds or self._settings.broker.transaction_partition_verification_enable
        if (
            shard is None
            or replica is None
            or not is_asked_for
            or coordination.refusal(shard) is ErrorCode.NOT_COORDINATOR
            or replica.core.producers.has_open_transaction(message.producer_id, message.producer_epoch)
        ):
            return forward_body(self._coordination, ShardKind.GROUP, message.group_id, body, context)
        call = client_call(body, context)
        context.park(on_abandoned=call.abandon)

        def on_result(error: ErrorCode) -> None:
            error = coordination.pass_on(shard, call) if not error else _told(error, context.api_version)
            if error:
                call.answered(None, error)

        coordination.verification.add_one(
            message.transactional_id,
            message.producer_id,
            message.producer_epoch,
            shard.topic_partition,
            verify_only=not adds,
            on_result=on_result,
        )
        return PARKED

    def _refused_at_once(self, message: TxnOffsetCommitRequest) -> ErrorCode:
        """Returns why the transaction need not be asked about, or NONE. Topics that exist beside unknown ones
        are committed; the group's coordinator refuses the others.
        """
        if not message.group_id:
            return ErrorCode.INVALID_GROUP_ID
        known = self._metadata.topics
        if message.topics and all(topic.name and topic.name not in known for topic in message.topics):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE


def _told(error: ErrorCode, version: int) -> ErrorCode:
    """Returns the error of the transaction's coordinator as clients know it."""
    if error in _FOR_NOW:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return error


class WriteTxnMarkersHandler:
    """WriteTxnMarkers v1 to v2: writes the markers that end transactions, in partitions that this broker
    leads. Coordinators send their markers over their sessions. This API serves Kafka's tool that aborts
    hanging transactions (KIP-664), and does no more than the tool needs (ADR 0035): a client that has not
    authenticated is refused, unless nobody else reaches its listener, and a marker may only abort a
    transaction that is open.

    The response is sent when all markers are replicated. Markers for `__consumer_offsets` are passed on to
    the owners of the groups.
    """

    def __init__(
        self,
        coordination: Coordination,
        hosted: HostedPartitions,
        settings: BrokerSettings,
        *,
        has_authorizer: bool,
    ) -> None:
        self._coordination = coordination
        self._hosted = hosted
        # Without an authorizer, whoever reaches a loopback listener is on this machine and may do everything.
        self._trusted_listeners = (
            frozenset()
            if has_authorizer
            else frozenset(
                endpoint.listener_name
                for endpoint in settings.listener_plan().bind
                if is_loopback_host(endpoint.host)
            )
        )

    async def handle(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> WriteTxnMarkersResponse:
        done: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
        asked = [_marker(marker) for marker in request.markers]
        if context.principal == ANONYMOUS and context.listener_name not in self._trusted_listeners:
            refused = [
                dict.fromkeys(marker.partitions, ErrorCode.CLUSTER_AUTHORIZATION_FAILED) for marker in asked
            ]
        else:
            refused = self._refusals(asked)
        markers = [
            marker._replace(partitions=tuple(p for p in marker.partitions if p not in denied))
            for marker, denied in zip(asked, refused, strict=True)
        ]

        def on_written(errors: Errors) -> None:
            if not done.done():
                done.set_result(errors)

        self._coordination.markers.write(markers, on_written)
        errors = await done
        return WriteTxnMarkersResponse(
            [
                _result(marker, {**denied, **dict(zip(written.partitions, codes, strict=True))})
                for marker, denied, written, codes in zip(
                    request.markers, refused, markers, errors, strict=True
                )
            ]
        )

    def _refusals(self, markers: list[Marker]) -> list[dict[TopicPartition, ErrorCode]]:
        """Returns for each marker the partitions in which a client may not end the transaction like this."""
        refused: list[dict[TopicPartition, ErrorCode]] = []
        reasons: list[str] = []
        for marker in markers:
            end = EndTransactionMarker(marker.is_commit, marker.coordinator_epoch)
            received = TransactionMarker(
                marker.producer_id, marker.producer_epoch, end, marker.transaction_version
            )
            denied: dict[TopicPartition, ErrorCode] = {}
            for topic_partition in marker.partitions:
                try:
                    replica = self._hosted.leader_replica(*topic_partition)
                    replica.core.producers.check_marker_of_client(received)
                except KafkaError as error:
                    denied[topic_partition] = error.code
                    reasons.append(f"{topic_partition}: {error}")
            refused.append(denied)
        if reasons:  # one line, because a request may name 1,000 partitions
            _log.info("a client's markers are refused", markers=len(reasons), first=reasons[0])
        return refused


def _marker(marker: WritableTxnMarker) -> Marker:
    return Marker(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version,
        tuple(
            TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes
        ),
    )


def _result(marker: WritableTxnMarker, errors: dict[TopicPartition, int]) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        marker.producer_id,
        [
            WritableTxnMarkerTopicResult(
                topic.name,
                [
                    WritableTxnMarkerPartitionResult(index, errors[TopicPartition(topic.name, index)])
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )


class DescribeProducersHandler:
    """DescribeProducers v0: the idempotent and transactional producers that a replica of a partition
    remembers (KIP-664). As in Kafka, followers answer, too.

    Deviation: an answer describes at most MAX_PRODUCERS_IN_ANSWER producers. For further partitions it has
    UNKNOWN_TOPIC_OR_PARTITION, which is the only error after which Kafka's clients ask the same broker again,
    for these partitions alone. Each request gets the producers of at least one partition, so they end.
    """

    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted

    def handle(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse | Coroutine[object, None, DescribeProducersResponse]:
        return in_slices(self._answer(request))

    def _answer(self, request: DescribeProducersRequest) -> Steps[DescribeProducersResponse]:
        # A partition that is named repeatedly is described once, so that a small request has no large answer.
        asked = dict.fromkeys(
            TopicPartition(topic.name, index) for topic in request.topics for index in topic.partition_indexes
        )
        topics: dict[str, TopicResponse] = {}
        described = 0
        for topic, index in asked:
            answer = yield from self._partition(topic, index, described)
            described += len(answer.active_producers)
            topics.setdefault(topic, TopicResponse(topic)).partitions.append(answer)
            yield
        return DescribeProducersResponse(topics=list(topics.values()))

    def _partition(self, topic: str, index: int, described: int) -> Steps[PartitionResponse]:
        """Describes one partition. `described` is the number of producers that the answer has already."""
        problem = topic_name_problem(topic)
        if problem is not None:
            return PartitionResponse(index, ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        try:
            producers = self._hosted.replica(topic, index).core.producers
        except KafkaError as error:
            return PartitionResponse(index, error.code, error.message)
        if described and described + len(producers) > MAX_PRODUCERS_IN_ANSWER:
            return PartitionResponse(
                index,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"one answer describes at most {MAX_PRODUCERS_IN_ANSWER:,} producers; ask again",
            )
        answer = PartitionResponse(index)
        for producer in producers.each_described():
            answer.active_producers.append(
                ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.current_txn_start_offset,
                )
            )
            yield
        return answer
