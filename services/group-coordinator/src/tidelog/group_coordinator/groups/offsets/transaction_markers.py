"""WriteTxnMarkers for the shard's own partition: the end of transactions that committed offsets here.

A marker goes through the shard's owner, as that is the only writer of the partition. It is written whenever
it ends something or is of a newer epoch, so that what comes late under the older one is refused; a repeated
one changes nothing.
"""

from __future__ import annotations

from tidelog.group_coordinator.groups.offsets.offset_table import OffsetTable
from tidelog.group_coordinator.shard_core import Decision, EndMarker, Producer, Reply, ShardRequest
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_BUMPING_VERSION = 2


class MarkerWriting:
    def __init__(self, table: OffsetTable) -> None:
        self._table = table

    def write(self, request: ShardRequest, now_ms: int) -> Decision:
        message: WriteTxnMarkersRequest = request.message
        decision = Decision()
        results = []
        for marker in message.markers:
            error = self._write(marker, decision, now_ms)
            topics = [
                WritableTxnMarkerTopicResult(
                    topic.name,
                    [WritableTxnMarkerPartitionResult(index, error) for index in topic.partition_indexes],
                )
                for topic in marker.topics
            ]
            results.append(WritableTxnMarkerResult(marker.producer_id, topics))
        decision.replies.append(Reply(request.reply_to, WriteTxnMarkersResponse(results)))
        return decision

    def _write(self, marker: WritableTxnMarker, decision: Decision, now_ms: int) -> ErrorCode:
        producer = Producer(marker.producer_id, marker.producer_epoch)
        known_epoch = self._table.newest_epoch(producer.producer_id)
        is_open = self._table.has_open_transaction(producer.producer_id)
        bumps = marker.transaction_version >= _BUMPING_VERSION
        if producer.producer_epoch < known_epoch or (
            producer.producer_epoch == known_epoch and is_open and bumps
        ):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if marker.coordinator_epoch < self._table.newest_coordinator_epoch(producer.producer_id):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if not is_open and producer.producer_epoch == known_epoch:
            return ErrorCode.NONE
        if decision.marker is not None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # one a decision; whoever asked asks again
        decision.marker = EndMarker(producer, marker.transaction_result, marker.coordinator_epoch)
        self._table.end(producer, marker.transaction_result, now_ms, marker.coordinator_epoch)
        return ErrorCode.NONE
