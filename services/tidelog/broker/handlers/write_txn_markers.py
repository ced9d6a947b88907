"""WriteTxnMarkers v1 to v2: writes the markers that end transactions, in partitions that this broker leads.
Coordinators send their markers over their sessions. This API serves Kafka's tool that aborts hanging
transactions (KIP-664).

The response is sent when all markers are replicated. Markers for `__consumer_offsets` are passed on to the
owners of the groups.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import Marker
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
    from tidelog.broker.request import RequestContext


class WriteTxnMarkersHandler:
    """Answers WriteTxnMarkers."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def handle(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> WriteTxnMarkersResponse:
        written: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
        markers = [_marker(marker) for marker in request.markers]

        def on_written(errors: Errors) -> None:
            if not written.done():
                written.set_result(errors)

        self._coordination.markers.write(markers, on_written)
        errors = await written
        return WriteTxnMarkersResponse(
            [
                _result(marker, dict(zip(asked.partitions, codes, strict=True)))
                for marker, asked, codes in zip(request.markers, markers, errors, strict=True)
            ]
        )


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
