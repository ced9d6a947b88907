"""The decisions of one replica: may this batch be appended and where, how far may readers see, what is
gone.

`step(event, now_ms) -> effects`. The shell carries the effects out and reports what became of them as
further events, so the same core runs in the broker and in the simulator. SPEC: A2, A7, B10, C2, C7, C8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidelog.broker.partition.events import (
    AdvanceHighWatermark,
    AdvanceLogStartOffset,
    AnswerDuplicate,
    AppendBatch,
    BatchAppended,
    DeleteRecordsReceived,
    Effect,
    Event,
    LeaderAndIsrReceived,
    LogStartOffsetMoved,
    MinInSyncReplicasChanged,
    PersistLeaderEpochs,
    ProduceReceived,
    Refuse,
)
from tidelog.broker.partition.leader_epochs import LeaderEpochs
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import NO_PRODUCER_ID, TRANSACTIONAL_BIT

NO_EPOCH: Final = -1
NO_LEADER: Final = -1
ACKS_ALL: Final = -1
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
UP_TO_HIGH_WATERMARK: Final = -1


class PartitionCore:
    """State of one replica. Only `step` changes it; every attribute may be read."""

    __slots__ = (
        "_followers",
        "_handlers",
        "broker_id",
        "effective_min_in_sync_replicas",
        "high_watermark",
        "in_sync_replicas",
        "leader",
        "leader_epoch",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "min_in_sync_replicas",
        "partition_epoch",
        "producers",
        "replicas",
    )

    def __init__(
        self,
        broker_id: int,
        producers: ProducerState,
        leader_epochs: LeaderEpochs,
        *,
        log_start_offset: int,
        log_end_offset: int,
        high_watermark: int,
        min_in_sync_replicas: int = 1,
    ) -> None:
        self.broker_id = broker_id
        self.producers = producers
        self.leader_epochs = leader_epochs
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = max(log_start_offset, min(high_watermark, log_end_offset))
        producers.on_high_watermark(self.high_watermark)
        self.min_in_sync_replicas = min_in_sync_replicas
        # No more than there are replicas (KIP-966).
        self.effective_min_in_sync_replicas = min_in_sync_replicas
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.in_sync_replicas: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self._followers: dict[
            int, int
        ] = {}  # log end offsets of the other replicas in sync, as their fetches told
        self._handlers: dict[type, Callable[[Any, int], list[Effect]]] = {
            ProduceReceived: self._on_produce_received,
            BatchAppended: self._on_batch_appended,
            LeaderAndIsrReceived: self._on_leader_and_isr_received,
            DeleteRecordsReceived: self._on_delete_records_received,
            LogStartOffsetMoved: self._on_log_start_offset_moved,
            MinInSyncReplicasChanged: self._on_min_in_sync_replicas_changed,
        }

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        return self._handlers[type(event)](event, now_ms)

    # -- what may be asked without changing anything

    @property
    def is_leader(self) -> bool:
        return self.leader == self.broker_id

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, else the high watermark; never above the latter
        (SPEC A7).
        """
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    def read_limit(self, isolation_level: int) -> int:
        """The offset a client's fetch may read up to, exclusive."""
        return self.last_stable_offset if isolation_level == READ_COMMITTED else self.high_watermark

    def leadership_error(self, current_leader_epoch: int) -> ErrorCode:
        """What a request that names the leader epoch it knows (-1: none) is told before anything is read or
        written (KIP-320).
        """
        if current_leader_epoch != NO_EPOCH:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def is_acknowledged(self, required_offset: int) -> bool:
        """Whether every replica in sync has all below `required_offset`."""
        return self.high_watermark >= required_offset

    # -- events

    def _on_produce_received(self, event: ProduceReceived, now_ms: int) -> list[Effect]:
        header, required_acks = event
        if self.leader != self.broker_id:
            return [Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead the partition")]
        in_sync, least = len(self.in_sync_replicas), self.effective_min_in_sync_replicas
        if in_sync < least and required_acks == ACKS_ALL:
            return [
                Refuse(ErrorCode.NOT_ENOUGH_REPLICAS, f"{in_sync} replicas are in sync, {least} have to be")
            ]
        if header.attributes & TRANSACTIONAL_BIT:
            # There is no transaction coordinator yet that could ever end this transaction.
            return [Refuse(ErrorCode.INVALID_TXN_STATE, "the transaction is not known to any coordinator")]
        if header.producer_id != NO_PRODUCER_ID:
            try:
                duplicate = self.producers.check(header, now_ms)
            except KafkaError as refusal:
                return [Refuse(refusal.code, str(refusal))]
            if duplicate is not None:
                return [AnswerDuplicate(duplicate.base_offset, duplicate.last_offset, duplicate.timestamp)]
        return [AppendBatch(self.log_end_offset, self.leader_epoch)]

    def _on_batch_appended(self, event: BatchAppended, now_ms: int) -> list[Effect]:
        header = event.header
        self.log_end_offset = header.last_offset + 1
        self.producers.update(header, now_ms)
        return self._advanced_high_watermark()

    def _on_leader_and_isr_received(self, event: LeaderAndIsrReceived, now_ms: int) -> list[Effect]:
        if event.leader_epoch < self.leader_epoch or event.partition_epoch < self.partition_epoch:
            return []  # a command overtaken by a later one
        newly_leading = event.leader == self.broker_id and event.leader_epoch > self.leader_epoch
        self.leader = event.leader
        self.leader_epoch = event.leader_epoch
        self.partition_epoch = event.partition_epoch
        self.in_sync_replicas = event.isr
        self.replicas = event.replicas
        self.effective_min_in_sync_replicas = min(self.min_in_sync_replicas, len(self.replicas))
        effects: list[Effect] = []
        if newly_leading:
            self._followers = {}
            if self.leader_epochs.assign(event.leader_epoch, self.log_end_offset):
                effects.append(PersistLeaderEpochs())
        if self.is_leader:
            effects += self._advanced_high_watermark()
        return effects

    def _on_delete_records_received(self, event: DeleteRecordsReceived, now_ms: int) -> list[Effect]:
        if not self.is_leader:
            return [Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead the partition")]
        offset = self.high_watermark if event.offset == UP_TO_HIGH_WATERMARK else event.offset
        if offset < 0 or offset > self.high_watermark:
            return [
                Refuse(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} is above the high watermark {self.high_watermark} or negative",
                )
            ]
        return [AdvanceLogStartOffset(offset)] if offset > self.log_start_offset else []

    def _on_log_start_offset_moved(self, event: LogStartOffsetMoved, now_ms: int) -> list[Effect]:
        self.log_start_offset = max(self.log_start_offset, event.log_start_offset)
        return []

    def _on_min_in_sync_replicas_changed(self, event: MinInSyncReplicasChanged, now_ms: int) -> list[Effect]:
        self.min_in_sync_replicas = event.min_in_sync_replicas
        self.effective_min_in_sync_replicas = min(self.min_in_sync_replicas, len(self.replicas))
        return []

    def _advanced_high_watermark(self) -> list[Effect]:
        """The least log end offset of the replicas in sync, if that is further than before (SPEC C2)."""
        least = self.log_end_offset
        in_sync_replicas = self.in_sync_replicas
        if len(in_sync_replicas) > 1:
            for replica in in_sync_replicas:
                if replica != self.broker_id:
                    least = min(least, self._followers.get(replica, self.log_start_offset))
        if least <= self.high_watermark:
            return []
        self.high_watermark = least
        self.producers.on_high_watermark(least)
        return [AdvanceHighWatermark(least)]
