"""The positions of a consumer: how they are looked up, and whether the leaders' logs still contain them."""

from __future__ import annotations

from typing import Final

from tidelog.client.core.cluster_view import EpochEnd
from tidelog.client.core.consuming.assigned_partitions import ConsumerState
from tidelog.client.core.consuming.consumed_partition import ConsumedPartition, PositionState
from tidelog.client.core.consuming.consumer_events import (
    CommittedFound,
    Effect,
    LookUpCommitted,
    LookupFailed,
    LookUpOffsets,
    OffsetsFound,
    PositionCheck,
    PositionsChecked,
    RecordsReady,
    TruncationFound,
)
from tidelog.client.errors import LogTruncationError, OffsetOutOfRangeError, request_error
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_LEADER
from tidelog.model.topics import TopicPartition

METADATA_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""The errors of a leader after which the consumer asks for metadata and tries again."""


class Positions:
    """Looks up positions and checks them. Kafka's classes are `OffsetFetcher` and `SubscriptionState`."""

    def __init__(self, state: ConsumerState) -> None:
        self._settings = state.settings
        self._backoff = state.backoff
        self._view = state.view
        self._partitions = state.partitions
        self._metadata = state.metadata

    def look_up(self, now_ms: int, effects: list[Effect]) -> None:
        committed: dict[TopicPartition, int] = {}
        resetting: dict[TopicPartition, int] = {}
        timestamps: dict[TopicPartition, int] = {}
        for place, partition in self._partitions.items():
            if partition.is_looked_up or partition.is_revoked or now_ms < partition.not_before_ms:
                continue
            if partition.state is PositionState.UNKNOWN:
                partition.topic_id = self._view.topic_id(place.topic)
                if self._settings.group_id is None:
                    self.reset_by_policy(partition)
                else:
                    partition.is_looked_up = True
                    committed[place] = partition.generation
            if partition.state is PositionState.RESETTING:
                if self._view.leader(place).leader == NO_LEADER:
                    self._metadata.is_needed = True
                else:
                    partition.is_looked_up = True
                    partition.topic_id = self._view.topic_id(place.topic)
                    resetting[place] = partition.generation
                    timestamps[place] = partition.reset_timestamp
        if committed:
            effects.append(LookUpCommitted(committed))
        if resetting:
            effects.append(LookUpOffsets(resetting, timestamps))

    def found_committed(self, event: CommittedFound, effects: list[Effect]) -> None:
        for partition in self._partitions.unchanged(event.request.generations):
            place = partition.place
            offset, epoch = event.offsets[place]
            if offset >= 0:
                partition.seek(offset, epoch, partition.topic_id)
                self._partitions.committed_offsets[place] = offset
            elif self.reset_by_policy(partition):
                effects.append(RecordsReady())

    def found_offsets(self, event: OffsetsFound) -> None:
        for partition in self._partitions.unchanged(event.request.generations):
            partition.seek(event.offsets[partition.place], topic_id=partition.topic_id)

    def lookup_failed(self, event: LookupFailed, now_ms: int, effects: list[Effect]) -> None:
        self._metadata.is_needed = True
        for partition in self._partitions.unchanged(event.request.generations):
            partition.is_looked_up = False
            partition.not_before_ms = now_ms + self._backoff.delay_ms(2)
            if not event.error.is_retriable:
                self._partitions.fail(partition, event.error)
                effects.append(RecordsReady())

    def checked(self, event: PositionsChecked, now_ms: int, effects: list[Effect]) -> None:
        generations = {place: each.generation for place, each in event.asked.items()}
        for partition in self._partitions.unchanged(generations):
            place, check = partition.place, event.asked[partition.place]
            partition.is_checking = False
            end = event.ends.get(place)
            error = None if end is None else request_error(end.error_code, f"check of {place}")
            if end is not None and not end.error_code:
                self._compare(partition, check, end, effects)
            elif error is None or error.is_retriable or error.code in METADATA_ERRORS:
                self._metadata.is_needed = True
                partition.not_before_ms = now_ms + self._backoff.delay_ms(1)
            else:
                self._partitions.fail(partition, error)
                effects.append(RecordsReady())

    def _compare(
        self, partition: ConsumedPartition, check: PositionCheck, end: EpochEnd, effects: list[Effect]
    ) -> None:
        """Goes on if the leader's log contains the position, and otherwise where the logs diverge. Source:
        `SubscriptionState.maybeCompleteValidation`.
        """
        is_known = end.epoch >= 0 and end.end_offset >= 0
        if is_known and end.end_offset >= partition.fetch_offset:
            partition.checked_epoch = check.leader_epoch
            return
        if partition.fetch_offset > partition.position:
            partition.drop_fetched()  # the position itself is checked next
            return
        place, position = partition.place, partition.position
        end_offset = end.end_offset if is_known else None
        if self._settings.auto_offset_reset == "none":
            where = "" if end_offset is None else f" from offset {end_offset} on"
            text = f"{place} has lost records that were read before offset {position}{where}"
            self._partitions.fail(partition, LogTruncationError(text, end_offset))
            effects.append(RecordsReady())
            return
        effects.append(TruncationFound(place, position, end_offset))
        if end_offset is None:
            self.reset_by_policy(partition)
        else:
            partition.seek(end_offset, end.epoch, partition.topic_id)
            partition.checked_epoch = check.leader_epoch

    def reset_by_policy(self, partition: ConsumedPartition) -> bool:
        """Returns whether the application gets an error."""
        policy = self._settings.auto_offset_reset
        if policy == "none":
            text = (
                f"{partition.place} has no committed offset, or no offset {partition.position}, and "
                "auto.offset.reset is none"
            )
            self._partitions.fail(partition, OffsetOutOfRangeError(text))
            return True
        partition.reset(EARLIEST_TIMESTAMP if policy == "earliest" else LATEST_TIMESTAMP)
        return False
