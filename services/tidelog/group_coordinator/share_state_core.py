"""The core of one shard of `__share_group_state`: the APIs about the states of share partitions (KIP-932).

The group coordinator initializes and deletes states, and the leader of a share partition reads and writes
its state. Two epochs keep an old leader from overwriting newer state: a reset of the offsets raises the state
epoch, and each new leader raises the leader epoch by its first read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    CoordinatorRecord,
    Effect,
    EffectOutcome,
    Producer,
    ReplayedRecord,
    Reply,
    SetTimer,
    ShardDecision,
    ShardRequest,
    TrimLog,
    UnknownRecordError,
)
from tidelog.group_coordinator.share_log import (
    FIRST_EPOCH,
    NO_COUNT,
    SharePartitionState,
    ShareUpdate,
    batches_of,
    combine,
    read_record,
    snapshot_record,
    tombstone,
    update_record,
    updated,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import UNKNOWN_EPOCH, UNKNOWN_OFFSET
from tidelog.model.topics import ZERO_TOPIC_ID, SharePartitionKey
from tidelog.settings.coordinator_settings import ShareSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import delete_share_group_state as deleting
from tidelog.wire.messages import initialize_share_group_state as initializing
from tidelog.wire.messages import read_share_group_state as reading
from tidelog.wire.messages import read_share_group_state_summary as summarizing
from tidelog.wire.messages import write_share_group_state as writing

MAX_STATE_BATCHES: Final = 10_000
"""The most batches of one share partition in a request: a batch for each of the most records in flight."""
MIN_TRIM_RECORDS: Final = 1_000
"""The least number of records that are deleted at once. A log that is shorter is left alone."""
_TIDYING: Final = "tidying"
_NO_IMAGE: Final = ClusterImage(0, {}, {})
Records: TypeAlias = list[CoordinatorRecord]


class ShareStateCore:
    """A ShardCore. Every request is answered by its own decision."""

    def __init__(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._image = _NO_IMAGE
        self.states: dict[SharePartitionKey, SharePartitionState] = {}
        self._snapshots_at: dict[SharePartitionKey, int] = {}
        """The offset of the last snapshot of each share partition."""
        self._next_offset = 0
        self._trimmed_to = 0
        self._apis: dict[int, _Api] = {
            ApiKey.INITIALIZE_SHARE_GROUP_STATE: _Api(
                initializing.InitializeShareGroupStateResponse,
                initializing.InitializeStateResult,
                self._initialize,
            ),
            ApiKey.READ_SHARE_GROUP_STATE: _Api(
                reading.ReadShareGroupStateResponse, reading.ReadStateResult, self._read
            ),
            ApiKey.WRITE_SHARE_GROUP_STATE: _Api(
                writing.WriteShareGroupStateResponse, writing.WriteStateResult, self._write
            ),
            ApiKey.DELETE_SHARE_GROUP_STATE: _Api(
                deleting.DeleteShareGroupStateResponse, deleting.DeleteStateResult, self._delete
            ),
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _Api(
                summarizing.ReadShareGroupStateSummaryResponse,
                summarizing.ReadStateSummaryResult,
                self._summarize,
            ),
        }

    def replay(self, record: ReplayedRecord, offset: int) -> None:
        key, found = read_record(record)
        if not self.states and not self._trimmed_to:
            self._trimmed_to = offset  # the log begins here
        if found is None:
            self.states.pop(key, None)
            self._snapshots_at.pop(key, None)
        elif isinstance(found, SharePartitionState):
            self.states[key] = found
            self._snapshots_at[key] = offset
        else:
            known = self.states.get(key)
            if known is None:
                raise UnknownRecordError(f"an update of {key} is not preceded by a snapshot")
            self.states[key] = updated(known, found)

    def replay_marker(self, producer: Producer, is_commit: bool) -> None:
        """Does nothing, because no transaction writes to this topic."""

    def activate(self, image: ClusterImage, now_ms: WallMs) -> ShardDecision:
        self._image = image
        return ShardDecision(timers=[self._next_tidying()])

    def log_ends_at(self, offset: int) -> None:
        self._next_offset = offset

    def handle(self, request: ShardRequest[Any], now_ms: WallMs) -> ShardDecision:
        api, message, records = self._apis[request.api_key], request.message, Records()
        results = [
            api.topic_result(
                topic.topic_id,
                [
                    api.decide(
                        SharePartitionKey(message.group_id, topic.topic_id, wanted.partition),
                        wanted,
                        records,
                        now_ms,
                    )
                    for wanted in topic.partitions
                ],
            )
            for topic in message.topics
        ]
        decision = ShardDecision(records=records, replies=[Reply(request.reply_to, api.response(results))])
        self._next_offset += len(decision.records)
        return decision

    def timer_fired(self, key: Hashable, now_ms: WallMs) -> ShardDecision:
        """Deletes the states of deleted topics and the records that no state needs."""
        decision = ShardDecision(timers=[self._next_tidying()])
        self._delete_orphans(decision.records)
        self._snapshot_cold(decision.records, now_ms)
        self._next_offset += len(decision.records)
        needed_from = min(self._snapshots_at.values(), default=self._next_offset)
        if needed_from - self._trimmed_to >= MIN_TRIM_RECORDS:
            decision.effects.append(TrimLog(needed_from))
            self._trimmed_to = needed_from
            self._next_offset += 1  # the claim, which the runtime appends again
        return decision

    def _next_tidying(self) -> SetTimer:
        return SetTimer(_TIDYING, self._settings.share_coordinator_state_topic_prune_interval_ms)

    def _delete_orphans(self, records: Records) -> None:
        """Deletes the states of topics that do not exist. An image may be older than a new topic, but by less
        than the interval of this timer.
        """
        for key in [key for key in self.states if key.topic_id not in self._image.topic_names]:
            del self.states[key]
            del self._snapshots_at[key]
            records.append(tombstone(key))

    def _snapshot_cold(self, records: Records, now_ms: WallMs) -> None:
        """Writes snapshots of states whose last snapshot is old and holds up the trimming of a long log."""
        if self._next_offset - self._trimmed_to < MIN_TRIM_RECORDS + 2 * len(self.states):
            return
        cold_ms = self._settings.share_coordinator_cold_partition_snapshot_interval_ms
        for key, state in list(self.states.items()):
            if now_ms - state.write_timestamp_ms >= cold_ms:
                snapshot = replace(
                    state,
                    snapshot_epoch=state.snapshot_epoch + 1,
                    write_timestamp_ms=now_ms,
                    update_count=0,
                )
                self._put_snapshot(key, snapshot, records)

    def effect_done(self, effect: Effect, outcome: EffectOutcome, now_ms: WallMs) -> ShardDecision:
        """Returns an empty decision, because such a shard has no effects."""
        return ShardDecision()

    def image_changed(self, image: ClusterImage, now_ms: WallMs) -> ShardDecision:
        self._image = image
        return ShardDecision()

    def deactivate(self) -> list[Reply]:
        """Returns nothing, because no request waits."""
        self._apis.clear()
        return []

    def _initialize(
        self, key: SharePartitionKey, wanted: initializing.PartitionData, records: Records, now_ms: WallMs
    ) -> initializing.PartitionResult:
        """Sets the start offset and the state epoch of share partitions, and forgets deliveries."""
        known = self.states.get(key)
        error = _malformed(key)
        if not error and known is not None and UNKNOWN_EPOCH < wanted.state_epoch < known.state_epoch:
            error = ErrorCode.FENCED_STATE_EPOCH
        error = error or self._unknown_partition(key)
        # The group coordinator repeats a request that was not answered. Its state epoch is the same.
        if not error and (known is None or known.state_epoch != wanted.state_epoch):
            state = SharePartitionState(
                snapshot_epoch=FIRST_EPOCH if known is None else known.snapshot_epoch + 1,
                state_epoch=wanted.state_epoch,
                leader_epoch=FIRST_EPOCH,
                start_offset=wanted.start_offset,
                delivery_complete_count=NO_COUNT if wanted.start_offset == UNKNOWN_OFFSET else 0,
                create_timestamp_ms=now_ms,
                write_timestamp_ms=now_ms,
            )
            self._put_snapshot(key, state, records)
        return initializing.PartitionResult(key.partition, error, _text(error))

    def _read(
        self, key: SharePartitionKey, wanted: reading.PartitionData, records: Records, now_ms: WallMs
    ) -> reading.PartitionResult:
        """Returns states, and fences the leaders of older leader epochs."""
        known = self.states.get(key)
        error = _malformed(key) or _refused(known, wanted.leader_epoch) or self._unknown_partition(key)
        if error or known is None:
            return reading.PartitionResult(key.partition, error, _text(error))
        if wanted.leader_epoch not in (UNKNOWN_EPOCH, known.leader_epoch):
            update = ShareUpdate(
                known.snapshot_epoch,
                wanted.leader_epoch,
                known.start_offset,
                known.delivery_complete_count,
                (),
                known.paused_until_ms,
            )
            self._put_update(key, known, update, now_ms, records)
        return reading.PartitionResult(
            key.partition,
            state_epoch=known.state_epoch,
            start_offset=known.start_offset,
            state_batches=[reading.StateBatch(*batch) for batch in known.batches],
            paused_until=known.paused_until_ms,
        )

    def _write(
        self, key: SharePartitionKey, wanted: writing.PartitionData, records: Records, now_ms: WallMs
    ) -> writing.PartitionResult:
        """Adds the deliveries of a leader, and moves start offsets."""
        known = self.states.get(key)
        error = _malformed(key) or _refused(known, wanted.leader_epoch, wanted.state_epoch)
        if not error and len(wanted.state_batches) > MAX_STATE_BATCHES:
            error = ErrorCode.INVALID_REQUEST
        error = error or self._unknown_partition(key)
        if not error and known is not None:
            update = ShareUpdate(
                known.snapshot_epoch,
                known.leader_epoch,
                wanted.start_offset,
                wanted.delivery_complete_count,
                combine(batches_of(wanted.state_batches), wanted.start_offset),
                wanted.paused_until,
            )
            self._put_update(key, known, update, now_ms, records)
        return writing.PartitionResult(key.partition, error, _text(error))

    def _delete(
        self, key: SharePartitionKey, wanted: deleting.PartitionData, records: Records, now_ms: WallMs
    ) -> deleting.PartitionResult:
        """Deletes states, also of topics that are deleted. The deletion of an absent state succeeds."""
        error = _malformed(key)
        if not error and self.states.pop(key, None) is not None:
            del self._snapshots_at[key]
            records.append(tombstone(key))
        return deleting.PartitionResult(key.partition, error, _text(error))

    def _summarize(
        self, key: SharePartitionKey, wanted: summarizing.PartitionData, records: Records, now_ms: WallMs
    ) -> summarizing.PartitionResult:
        """Returns states without deliveries. An absent state has the start offset -1."""
        error = _malformed(key) or self._unknown_partition(key)
        known = None if error else self.states.get(key)
        if known is None:
            return summarizing.PartitionResult(
                key.partition, error, _text(error), start_offset=UNKNOWN_OFFSET
            )
        return summarizing.PartitionResult(
            key.partition,
            state_epoch=known.state_epoch,
            leader_epoch=known.leader_epoch,
            start_offset=known.start_offset,
            delivery_complete_count=known.delivery_complete_count,
        )

    def _put_snapshot(self, key: SharePartitionKey, state: SharePartitionState, records: Records) -> None:
        self.states[key] = state
        self._snapshots_at[key] = self._next_offset + len(records)
        records.append(snapshot_record(key, state))

    def _put_update(
        self,
        key: SharePartitionKey,
        known: SharePartitionState,
        update: ShareUpdate,
        now_ms: WallMs,
        records: Records,
    ) -> None:
        """Applies an update. It becomes a snapshot if enough updates follow the last one."""
        after = updated(known, update)
        if known.update_count < self._settings.share_coordinator_snapshot_update_records_per_snapshot:
            self.states[key] = after
            records.append(update_record(key, update))
            return
        snapshot = replace(
            after,
            snapshot_epoch=known.snapshot_epoch + 1,
            create_timestamp_ms=now_ms,
            write_timestamp_ms=now_ms,
            update_count=0,
        )
        self._put_snapshot(key, snapshot, records)

    def _unknown_partition(self, key: SharePartitionKey) -> ErrorCode:
        """Returns UNKNOWN_TOPIC_OR_PARTITION unless the partition exists."""
        name = self._image.topic_names.get(key.topic_id)
        topic = None if name is None else self._image.topics.get(name)
        if topic is None or key.partition >= topic.partition_count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE


class _Api(NamedTuple):
    """One of the five APIs, whose messages have the same form."""

    response: Callable[..., object]
    topic_result: Callable[..., object]
    decide: Callable[[SharePartitionKey, Any, Records, WallMs], object]
    """Decides on one share partition, adds its record, and returns the result. The type of the partition in
    the request depends on the API.
    """


def _malformed(key: SharePartitionKey) -> ErrorCode:
    is_valid = key.group_id and key.topic_id != ZERO_TOPIC_ID and key.partition >= 0
    return ErrorCode.NONE if is_valid else ErrorCode.INVALID_REQUEST


def _refused(
    known: SharePartitionState | None, leader_epoch: int, state_epoch: int = UNKNOWN_EPOCH
) -> ErrorCode:
    """Returns why a leader with these epochs may not use the state."""
    if known is None:
        return ErrorCode.INVALID_REQUEST
    if UNKNOWN_EPOCH < leader_epoch < known.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if UNKNOWN_EPOCH < state_epoch < known.state_epoch:
        return ErrorCode.FENCED_STATE_EPOCH
    return ErrorCode.NONE


_TEXTS: Final = {
    ErrorCode.INVALID_REQUEST: "The share partition is not initialized, or the request is not valid.",
    ErrorCode.FENCED_LEADER_EPOCH: "The leader epoch is older than that of the share partition's state.",
    ErrorCode.FENCED_STATE_EPOCH: "The state epoch is older than that of the share partition's state.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "The topic or partition does not exist.",
}


def _text(error: ErrorCode) -> str | None:
    return _TEXTS.get(error)
