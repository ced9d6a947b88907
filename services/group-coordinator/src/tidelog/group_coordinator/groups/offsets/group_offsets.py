"""The offsets that the groups of a shard have committed, plainly or as part of transactions.

Source: Kafka's `OffsetMetadataManager`; KIP-98 (transactions), KIP-211 (expiry), KIP-447 (members commit in
transactions), KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidelog.group_coordinator.groups.offsets import committing
from tidelog.group_coordinator.groups.offsets.fetching import OffsetFetching
from tidelog.group_coordinator.groups.offsets.offset_records import (
    CommittedOffset,
    Position,
    read_record,
    record_of,
)
from tidelog.group_coordinator.groups.offsets.offset_table import OffsetTable
from tidelog.group_coordinator.groups.offsets.transaction_markers import MarkerWriting
from tidelog.group_coordinator.groups.shared import Group, Groups, TimerKey, answer
from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    Decision,
    Producer,
    ReplayedRecord,
    Reply,
    ShardRequest,
)
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


class GroupOffsets:
    """OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit, and the end of transactions."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._table = OffsetTable()
        self._markers = MarkerWriting(self._table)

    # -- requests

    def commit(self, request: ShardRequest, now_ms: int) -> Decision:
        decision = Decision()
        error = committing.check(self._groups, request, decision, now_ms)
        commits, response = committing.decide(self._groups, request, error, now_ms)
        for position, committed in commits:
            self._decide(position, committed, decision, now_ms)
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def commit_in_transaction(self, request: ShardRequest, now_ms: int) -> Decision:
        """The broker has asked the transaction's coordinator whether it is open. An older epoch than was seen
        here is refused, as the broker would refuse the append.
        """
        decision = Decision()
        message = request.message
        producer = Producer(message.producer_id, message.producer_epoch)
        if producer.producer_epoch < self._table.newest_epoch(producer.producer_id):
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        else:
            error = committing.check(self._groups, request, decision, now_ms)
        commits, response = committing.decide(self._groups, request, error, now_ms)
        if commits:
            decision.transaction = producer
        for position, committed in commits:
            decision.records.append(record_of(position, committed))
            self._table.apply(position, committed, producer, now_ms)
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def fetch(self, request: ShardRequest, now_ms: int) -> Decision:
        del now_ms
        return answer(request, OffsetFetching(self._groups, self._table, request).response())

    def delete(self, request: ShardRequest, now_ms: int) -> Decision:
        message: OffsetDeleteRequest = request.message
        group = self._groups.by_id.get(message.group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_offset_delete()
        if group is None or error is not ErrorCode.NONE:
            return answer(request, OffsetDeleteResponse(error_code=error))
        decision = Decision()
        topics = []
        for topic in message.topics:
            is_subscribed = group.is_subscribed_to(topic.name)
            refused = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
            results = []
            for partition in topic.partitions:
                position = Position(message.group_id, topic.name, partition.partition_index)
                if not is_subscribed and (self._table.get(position) or self._table.is_unstable(position)):
                    self._decide(position, None, decision, now_ms)
                results.append(OffsetDeleteResponsePartition(partition.partition_index, refused))
            topics.append(OffsetDeleteResponseTopic(topic.name, results))
        decision.replies.append(Reply(request.reply_to, OffsetDeleteResponse(topics=topics)))
        return decision

    def end_transactions(self, request: ShardRequest, now_ms: int) -> Decision:
        """WriteTxnMarkers."""
        return self._markers.write(request, now_ms)

    # -- of the groups

    def has_offsets(self, group_id: str) -> bool:
        return bool(self._table.of_group(group_id) or self._table.open_positions(group_id))

    def delete_group(self, group_id: str, decision: Decision) -> None:
        self._delete(
            {
                *(
                    Position(group_id, topic, partition)
                    for topic, partition in self._table.of_group(group_id)
                ),
                *self._table.open_positions(group_id),
            },
            decision,
        )

    def expire(self, group: Group, now_ms: int, decision: Decision) -> None:
        retention_ms = self._groups.settings.offsets_retention_minutes * 60_000
        expired = set()
        for (topic, partition), entry in self._table.of_group(group.group_id).items():
            position = Position(group.group_id, topic, partition)
            since_ms = group.offsets_expire_from(topic, entry.committed.commit_timestamp_ms)
            if since_ms is None or self._table.is_unstable(position):
                continue
            own_limit_ms = entry.committed.expire_timestamp_ms
            if (own_limit_ms if own_limit_ms >= 0 else since_ms + retention_ms) <= now_ms:
                expired.add(position)
        self._delete(expired, decision)
        self._table.forget_producers(now_ms)

    def committed_positions(self) -> Iterator[tuple[Position, CommittedOffset]]:
        """Everything that lag is counted for."""
        return self._table.all()

    # -- of the shard

    def replay(self, kind: int, record: ReplayedRecord, offset: int) -> None:
        """Kinds 0 and 1."""
        position, committed = read_record(kind, record)
        self._table.apply(position, committed, record.transaction, record.timestamp_ms, offset)

    def replay_marker(self, producer: Producer, is_commit: bool) -> None:
        self._table.end(producer, is_commit, -1)

    def activate(self, now_ms: int) -> Decision:
        """Groups that consist of nothing but offsets have no record of their own."""
        for group_id in sorted(self._table.group_ids() - self._groups.by_id.keys()):
            self._groups.new_simple_group(group_id, now_ms)
        self._table.date_producers(now_ms)
        return Decision()

    def image_changed(self, before: ClusterImage, now_ms: int) -> Decision:
        """Topics may be gone: their offsets go, too."""
        after = self._groups.image
        gone = {
            name
            for name, topic in before.topics.items()
            if name not in after.topics or after.topics[name].topic_id != topic.topic_id
        }
        decision = Decision()
        if gone:
            self._delete(self._table.positions_of(gone), decision)
        return decision

    def timer_fired(self, key: TimerKey, now_ms: int) -> Decision:
        """Offsets have no timer of their own."""
        del key, now_ms
        return Decision()

    def deactivate(self) -> list[Reply]:
        """Everything is answered at once."""
        return []

    # -- state

    def _delete(self, positions: Iterable[Position], decision: Decision) -> None:
        for position in sorted(positions):
            self._decide(position, None, decision, -1)

    def _decide(
        self, position: Position, committed: CommittedOffset | None, decision: Decision, now_ms: int
    ) -> None:
        decision.records.append(record_of(position, committed))
        self._table.apply(position, committed, None, now_ms)
