"""WriteTxnMarkers v1 to v2: writes the markers that end transactions, in partitions that this broker leads.
Coordinators send their markers over their sessions. This API serves Kafka's tool that aborts hanging
transactions (KIP-664), and does no more than the tool needs (ADR 0035): a client that has not authenticated
is refused, unless nobody else reaches its listener, and a marker may only abort a transaction that is open.

The response is sent when all markers are replicated. Markers for `__consumer_offsets` are passed on to the
owners of the groups.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tidelog.broker.partition.producer_state import TransactionMarker
from tidelog.model.acl import ANONYMOUS
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import EndTransactionMarker
from tidelog.rpc.coordinator_session import Marker
from tidelog.settings.listeners import is_loopback_host
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.coordination.markers import Errors
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.requests.request import RequestContext
    from tidelog.settings.broker_settings import BrokerSettings

_log = structlog.get_logger(__name__)


class WriteTxnMarkersHandler:
    """Answers WriteTxnMarkers."""

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
