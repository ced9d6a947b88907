"""What a leader decides of transactions: whose batches go in, which markers, what a shard's owner may append.

Part of `PartitionCore`, which calls these with itself. Source: KIP-98, KIP-890; Kafka's `UnifiedLog`,
`ProducerAppendInfo`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.partition.events import (
    AppendBatch,
    BatchesAppended,
    Effect,
    IndexAborted,
    MarkerReceived,
    Markers,
    Refuse,
    ShardAppendReceived,
    VerificationAsked,
    VerifyTransaction,
)
from tidelog.broker.partition.producer_state import TransactionMarker
from tidelog.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog.broker.partition.core import PartitionCore
    from tidelog.records.batch import BatchHeader


def on_verification_asked(core: PartitionCore, event: VerificationAsked, now_ms: int) -> list[Effect]:
    """VerifyTransaction, or nothing where the transaction is open here already. Whatever else is wrong with
    the batch is found when it is to be appended.
    """
    if not core.is_leader:
        return []
    guard = core.producers.begin_verification(event.header, now_ms, bumps_epoch=event.bumps_epoch)
    return [] if guard is None else [VerifyTransaction(guard)]


def on_marker_received(core: PartitionCore, event: MarkerReceived, now_ms: int) -> list[Effect]:
    """A marker counts only once it is replicated, so that it needs as many in sync as acks=all."""
    try:
        _check_leads_in_sync(core)
        core.producers.check_marker(event.marker)
    except KafkaError as refusal:
        return [Refuse(refusal.code, refusal.message or "")]
    return [AppendBatch(core.log_end_offset, core.leader_epoch)]


def on_shard_append_received(core: PartitionCore, event: ShardAppendReceived, now_ms: int) -> list[Effect]:
    """A shard has one owner, which knows the log to its end: anything that it doesn't know ends its hold."""
    try:
        _check_leads_in_sync(core)
        error = core.leadership_error(event.leader_epoch)
        if error:
            raise KafkaError(error, f"the leader epoch is {core.leader_epoch}, not {event.leader_epoch}")
        if event.expected_offset != core.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log ends at {core.log_end_offset}, not at {event.expected_offset}",
            )
        for header in event.headers:
            if header.is_control:
                end = event.markers.get(header.base_offset)
                if end is not None:
                    marker = TransactionMarker(header.producer_id, header.producer_epoch, end)
                    core.producers.check_marker(marker)
            elif header.is_transactional:
                core.producers.check_of_coordinator(header)
    except KafkaError as refusal:
        return [Refuse(refusal.code, refusal.message or "")]
    return [AppendBatch(core.log_end_offset, core.leader_epoch)]


def on_batches_appended(core: PartitionCore, event: BatchesAppended, now_ms: int) -> list[Effect]:
    effects = taken_in(core, event.headers, event.markers, now_ms)
    core.log_end_offset = event.headers[-1].last_offset + 1
    return effects + core.advanced_high_watermark()


def taken_in(
    core: PartitionCore, headers: Sequence[BatchHeader], markers: Markers, now_ms: int
) -> list[Effect]:
    """What stands in the log now is known to the producer state, too."""
    update = core.producers.update
    effects: list[Effect] = []
    for header in headers:
        completed = update(header, now_ms, markers.get(header.base_offset) if markers else None)
        if completed is not None and completed.is_aborted:
            effects.append(IndexAborted(completed))
    return effects


def _check_leads_in_sync(core: PartitionCore) -> None:
    if not core.is_leader:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead the partition")
    if core.is_under_min_isr:
        raise KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{len(core.in_sync_replicas)} replicas are in sync,"
            f" {core.effective_min_in_sync_replicas} have to be",
        )
