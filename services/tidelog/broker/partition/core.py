"""The decisions of one replica: which batches are appended and where, how far readers see, who is in sync,
what must be cut off.

`step(event) -> effects`. The shell (`broker/hosting/replica.py`) carries the effects out and reports the
outcome as further events, so the same core runs in the broker and in the simulator. The rest of the leader's
state and the follower's rule for truncation are in `roles.py`. Sources: KIP-98,
KIP-101, KIP-279, KIP-320, KIP-497, KIP-890, KIP-903, KIP-966; Kafka's `Partition` and `UnifiedLog`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidelog.broker.partition.events import (
    AdvanceHighWatermark,
    AdvanceLogStartOffset,
    AdvanceLowWatermark,
    AnswerDuplicate,
    AppendBatch,
    AppendFailed,
    AppendReceived,
    AskEpochEnd,
    BatchAppended,
    BatchesAppended,
    DeleteRecordsReceived,
    Effect,
    EligibleLeadersSwitched,
    EpochDiverged,
    EpochEndReceived,
    Event,
    FetchedOutOfRange,
    Flushed,
    FlushLog,
    FlushMessagesChanged,
    FollowerFetched,
    IndexAborted,
    IsrCheckDue,
    IsrRefused,
    IsrWritten,
    LeaderAndIsrReceived,
    LogRestarted,
    LogStartOffsetMoved,
    MarkerReceived,
    Markers,
    MinInSyncReplicasChanged,
    PersistLeaderEpochs,
    ProduceDuringRoleChange,
    ProduceReceived,
    ProposeIsr,
    ReceivedAppended,
    RecordsReceived,
    Refuse,
    ReportIsrChange,
    RestartLogAt,
    ShardAppendReceived,
    StepDown,
    Truncated,
    TruncateTo,
    VerificationAsked,
    VerificationRefused,
    VerifyTransaction,
)
from tidelog.broker.partition.producer_state import ProducerState, TransactionMarker
from tidelog.broker.partition.roles import (
    FetchState,
    LeaderRole,
    RefusedBatches,
    eligible_after,
    truncation_for,
)
from tidelog.kernel.instants import WallMs
from tidelog.log_format.leader_epochs import (
    UNDEFINED_EPOCH,
    UNDEFINED_EPOCH_OFFSET,
    EpochEndOffset,
    LeaderEpochs,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import (
    ACKS_ALL,
    NO_LEADER,
    READ_COMMITTED,
    UNKNOWN_EPOCH,
    UP_TO_HIGH_WATERMARK,
)
from tidelog.model.topics import effective_min_in_sync_replicas
from tidelog.records.batch import NO_PRODUCER_ID, TRANSACTIONAL_BIT, BatchHeader

NO_FLUSH_MESSAGES: Final = (1 << 63) - 1
NOT_LEADING: Final = "this broker does not lead the partition"
DEFAULT_REPLICA_LAG_TIME_MAX_MS: Final = 30_000


class PartitionCore:
    """The state of one replica, its leader epochs and producers included.

    Only `step` changes it. Every attribute may be read; the settings may be set. With `truncates_by_epoch`
    False it behaves like Kafka before KIP-101, for tests that show which records that loses.
    """

    __slots__ = (
        "_asks_again",
        "_fetch_from",
        "_leading",
        "_refused",
        "broker_id",
        "effective_min_in_sync_replicas",
        "elr",
        "fetch_state",
        "flush_messages",
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
        "recovery_point",
        "replica_lag_max_messages",
        "replica_lag_time_max_ms",
        "replicas",
        "truncates_by_epoch",
        "uses_elr",
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
        recovery_point: int = 0,
        min_in_sync_replicas: int = 1,
        replica_lag_time_max_ms: int = DEFAULT_REPLICA_LAG_TIME_MAX_MS,
        replica_lag_max_messages: int | None = None,
        truncates_by_epoch: bool = True,
    ) -> None:
        self.broker_id = broker_id
        self.producers = producers
        self.leader_epochs = leader_epochs
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = max(log_start_offset, min(high_watermark, log_end_offset))
        producers.on_high_watermark(self.high_watermark)
        self.recovery_point = recovery_point
        self.flush_messages = NO_FLUSH_MESSAGES  # until FlushMessagesChanged
        self.min_in_sync_replicas = min_in_sync_replicas
        self.effective_min_in_sync_replicas = min_in_sync_replicas  # until the replicas are known
        self.replica_lag_time_max_ms = replica_lag_time_max_ms
        self.replica_lag_max_messages = replica_lag_max_messages
        self.truncates_by_epoch = truncates_by_epoch
        self.leader = NO_LEADER
        self.leader_epoch = UNKNOWN_EPOCH
        self.partition_epoch = UNKNOWN_EPOCH
        self.in_sync_replicas: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.elr: tuple[int, ...] = ()
        self.uses_elr = True
        self.fetch_state = FetchState.NONE
        self._leading: LeaderRole | None = None
        self._asks_again = False
        self._fetch_from = UNDEFINED_EPOCH_OFFSET
        self._refused = RefusedBatches()

    def step(self, event: Event) -> list[Effect]:
        """Takes an event into account and returns its effects."""
        return _HANDLERS[type(event)](self, event)

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.leader == self.broker_id

    @property
    def is_follower(self) -> bool:
        """Whether another broker leads the partition."""
        return self.leader not in (NO_LEADER, self.broker_id)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the high watermark if that is lower.

        It is never below the log start offset.
        """
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return max(min(unstable, self.high_watermark), self.log_start_offset)

    @property
    def is_high_watermark_known(self) -> bool:
        """False while a new leader does not know yet how much of its log is acknowledged."""
        leading = self._leading
        return leading is None or self.high_watermark >= leading.epoch_start_offset

    @property
    def is_flush_due(self) -> bool:
        """Whether `flush.messages` records were appended since the last flush.

        Until they are on the disk, they do not count as replicated: a follower does not report them, and a
        leader's high watermark does not pass them.
        """
        return self.log_end_offset - self.recovery_point >= self.flush_messages

    @property
    def low_watermark(self) -> int:
        """The least log start offset of all replicas, -1 if the leader does not know it yet."""
        leading = self._leading
        return self.log_start_offset if leading is None else leading.low_watermark(self.log_start_offset)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few replicas are in sync for acks=all."""
        return len(self.in_sync_replicas) < self.effective_min_in_sync_replicas

    @property
    def pending_isr(self) -> ProposeIsr | None:
        """The ISR change that is being written to the store."""
        return None if self._leading is None else self._leading.pending

    @property
    def fetch_offset(self) -> int:
        """The offset from which a follower fetches next.

        It is above the end of its log only while it waits for a batch within which the leader's log begins.
        """
        return max(self.log_end_offset, self._fetch_from)

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last batch, which a follower's Fetch contains; -1 for an empty log."""
        return self.leader_epochs.latest_epoch if self.truncates_by_epoch else UNDEFINED_EPOCH

    def follower_end_offset(self, replica_id: int) -> int:
        """Returns the end of a follower's log, -1 if the leader does not know it."""
        progress = None if self._leading is None else self._leading.followers.get(replica_id)
        return -1 if progress is None else progress.log_end_offset

    def follower_start_offset(self, replica_id: int) -> int:
        """Returns the start of a follower's log, -1 if the leader does not know it."""
        return -1 if self._leading is None else self._leading.log_start_offset_of(replica_id)

    def read_limit(self, isolation_level: int) -> int:
        """Returns the offset up to which (exclusively) a client's fetch may read."""
        return self.last_stable_offset if isolation_level == READ_COMMITTED else self.high_watermark

    def leadership_error(self, current_leader_epoch: int) -> ErrorCode:
        """Returns the error for a request that knows this leader epoch (-1: none), or NONE (KIP-320)."""
        if current_leader_epoch != UNKNOWN_EPOCH:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def is_acknowledged(self, required_offset: int) -> bool:
        """Returns whether every replica in sync has everything below `required_offset`."""
        return self.high_watermark >= required_offset

    def epoch_end(self, epoch: int) -> EpochEndOffset:
        """Returns where the largest epoch not above `epoch` ends in this log (KIP-101)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> EpochEndOffset | None:
        """Returns where a log that ends at `fetch_offset` in `last_fetched_epoch` diverges from this one.

        Returns None if that log is a part of this one. Raises KafkaError OFFSET_OUT_OF_RANGE for an epoch
        that this log does not know.
        """
        if last_fetched_epoch == UNDEFINED_EPOCH:
            return None
        end = self.epoch_end(last_fetched_epoch)
        if end.epoch == UNDEFINED_EPOCH:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"this log does not know leader epoch {last_fetched_epoch}"
            )
        return end if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset else None

    def _on_leader_and_isr_received(self, event: LeaderAndIsrReceived) -> list[Effect]:
        is_older = event.leader_epoch == self.leader_epoch and event.partition_epoch < self.partition_epoch
        if is_older or event.leader_epoch < self.leader_epoch:
            # A later command has overtaken this one. (If the leader epoch is newer, the partition epoch may
            # be older: a deposed leader has possibly read a later one in the store.)
            return []
        is_new_epoch = event.leader_epoch > self.leader_epoch
        has_moved = is_new_epoch or event.leader != self.leader
        if has_moved:
            self._fetch_from = UNDEFINED_EPOCH_OFFSET
            if self.producers.guards is not None:
                self.producers.guards.clear()
        self.leader = event.leader
        self.leader_epoch = event.leader_epoch
        self.partition_epoch = event.partition_epoch
        self.in_sync_replicas = event.isr
        self.replicas = event.replicas
        self.elr = event.elr
        self._set_effective_min_in_sync_replicas()
        if not self.is_leader:
            self._leading = None
            if not self.is_follower:
                self.fetch_state = FetchState.NONE
            return self._follow() if self.is_follower and has_moved else []
        effects: list[Effect] = []
        if is_new_epoch or self._leading is None:
            self._leading = LeaderRole(self.broker_id, self.log_end_offset)
            self.fetch_state = FetchState.NONE
            if self.leader_epochs.assign(event.leader_epoch, self.log_end_offset):
                effects.append(PersistLeaderEpochs())
        self._leading.keep_to(event.replicas, event.isr, event.monotonic_ms)
        return effects + self._advanced_high_watermark() + self._flush_if_due()

    def _follow(self) -> list[Effect]:
        """Finds out, before anything is appended, whether the log has batches that the leader's has not."""
        if self.truncates_by_epoch:
            return self._ask_or_fetch()
        self.fetch_state = FetchState.TRUNCATING
        self._asks_again = False
        return self._truncate_to(self.high_watermark)

    def _ask_or_fetch(self) -> list[Effect]:
        if not len(self.leader_epochs):
            self.fetch_state = FetchState.FETCHING
            return []
        self.fetch_state = FetchState.TRUNCATING
        return [AskEpochEnd(self.leader_epoch, self.leader_epochs.latest_epoch)]

    def _on_produce_received(self, event: ProduceReceived) -> list[Effect]:
        header, required_acks, wall_ms, guard = event
        if self.leader != self.broker_id:
            return self._refuse_for_now(header, ErrorCode.NOT_LEADER_OR_FOLLOWER, NOT_LEADING, wall_ms)
        if required_acks == ACKS_ALL and len(self.in_sync_replicas) < self.effective_min_in_sync_replicas:
            return self._refuse_for_now(
                header, ErrorCode.NOT_ENOUGH_REPLICAS, self._too_few_in_sync(), wall_ms
            )
        if header.producer_id != NO_PRODUCER_ID:
            if self._refused and not self.producers.has_all_before(header):
                reason = self._refused.reason_to_refuse(header, wall_ms)
                if reason is not None:
                    return [Refuse(reason, "the previous batch of this producer was refused")]
            try:
                duplicate = self.producers.check(header, wall_ms)
                if duplicate is None and header.attributes & TRANSACTIONAL_BIT:
                    self.producers.check_guard(header, guard)
            except KafkaError as refusal:
                return [Refuse(refusal.code, str(refusal))]
            if duplicate is not None:
                return [AnswerDuplicate(duplicate.base_offset, duplicate.last_offset, duplicate.timestamp)]
        return [AppendBatch(self.log_end_offset, self.leader_epoch)]

    def _on_produce_during_role_change(self, event: ProduceDuringRoleChange) -> list[Effect]:
        message = "the role of this broker for the partition is changing"
        return self._refuse_for_now(event.header, ErrorCode.NOT_LEADER_OR_FOLLOWER, message, event.wall_ms)

    def _on_append_failed(self, event: AppendFailed) -> list[Effect]:
        self._refuse_for_now(event.header, ErrorCode.KAFKA_STORAGE_ERROR, "the disk failed", event.wall_ms)
        return []

    def _on_verification_refused(self, event: VerificationRefused) -> list[Effect]:
        message = f"the transaction cannot be verified at present: {event.error.name}"
        return self._refuse_for_now(event.header, event.error, message, event.wall_ms)

    def _refuse_for_now(
        self, header: BatchHeader, error: ErrorCode, message: str, wall_ms: WallMs
    ) -> list[Effect]:
        """Refuses a batch that the client will send again.

        The refusal is remembered, so that the producer's following batches do not look like a gap.
        """
        if header.producer_id != NO_PRODUCER_ID:
            self._refused.refused(header, error, wall_ms)
        return [Refuse(error, message)]

    def _on_batch_appended(self, event: BatchAppended) -> list[Effect]:
        header, wall_ms, marker = event
        self.log_end_offset = header.last_offset + 1
        completed = self.producers.update(header, wall_ms, marker)
        # If others are in the ISR, their fetches advance the high watermark.
        effects = self._advanced_high_watermark() if len(self.in_sync_replicas) == 1 else []
        if self.is_flush_due:
            effects.append(FlushLog())
        if completed is not None and completed.is_aborted:
            effects.insert(0, IndexAborted(completed))
        return effects

    def _on_verification_asked(self, event: VerificationAsked) -> list[Effect]:
        """Returns VerifyTransaction, or nothing if the transaction already is open here.

        Other problems of the batch are found when it is to be appended.
        """
        if not self.is_leader:
            return []
        guard = self.producers.begin_verification(event.header, event.wall_ms, bumps_epoch=event.bumps_epoch)
        return [] if guard is None else [VerifyTransaction(guard)]

    def _on_marker_received(self, event: MarkerReceived) -> list[Effect]:
        """A marker counts only after it is replicated, so it needs as many replicas in sync as acks=all."""
        try:
            self._check_leads_in_sync()
            self.producers.check_marker(event.marker)
        except KafkaError as refusal:
            return [Refuse(refusal.code, refusal.message or "")]
        return [AppendBatch(self.log_end_offset, self.leader_epoch)]

    def _on_shard_append_received(self, event: ShardAppendReceived) -> list[Effect]:
        """A shard's owner knows the log up to its end. If it does not, it is no longer the owner."""
        try:
            self._check_leads_in_sync()
            error = self.leadership_error(event.leader_epoch)
            if error:
                raise KafkaError(error, f"the leader epoch is {self.leader_epoch}, not {event.leader_epoch}")
            if event.expected_offset != self.log_end_offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"the log ends at {self.log_end_offset}, not at {event.expected_offset}",
                )
            for header in event.headers:
                if header.is_control:
                    end = event.markers.get(header.base_offset)
                    if end is not None:
                        marker = TransactionMarker(header.producer_id, header.producer_epoch, end)
                        self.producers.check_marker(marker)
                elif header.is_transactional:
                    self.producers.check_of_coordinator(header)
        except KafkaError as refusal:
            return [Refuse(refusal.code, refusal.message or "")]
        return [AppendBatch(self.log_end_offset, self.leader_epoch)]

    def _on_batches_appended(self, event: BatchesAppended) -> list[Effect]:
        effects = self._update_producers(event.headers, event.markers, event.wall_ms)
        self.log_end_offset = event.headers[-1].last_offset + 1
        return effects + self._advanced_high_watermark() + self._flush_if_due()

    def _update_producers(
        self, headers: Sequence[BatchHeader], markers: Markers, wall_ms: WallMs
    ) -> list[Effect]:
        update = self.producers.update
        effects: list[Effect] = []
        for header in headers:
            completed = update(header, wall_ms, markers.get(header.base_offset) if markers else None)
            if completed is not None and completed.is_aborted:
                effects.append(IndexAborted(completed))
        return effects

    def _check_leads_in_sync(self) -> None:
        """Raises KafkaError unless this broker leads and acks=all would be accepted."""
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, NOT_LEADING)
        if self.is_under_min_isr:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, self._too_few_in_sync())

    def _too_few_in_sync(self) -> str:
        in_sync, least = len(self.in_sync_replicas), self.effective_min_in_sync_replicas
        return f"{in_sync} replicas are in sync, {least} are required"

    def _on_follower_fetched(self, event: FollowerFetched) -> list[Effect]:
        leading = self._leading
        if leading is None:
            return []
        log_start_before = leading.log_start_offset_of(event.replica_id)
        if not leading.follower_fetched(event, self.log_end_offset):
            return []
        replica_id = event.replica_id
        effects = self._advanced_high_watermark()
        if leading.may_join(replica_id, self.in_sync_replicas, self.high_watermark, event.monotonic_ms):
            isr = (*self.in_sync_replicas, replica_id)
            effects.append(self._propose(isr, ((replica_id, event.broker_epoch),)))
        if event.log_start_offset != log_start_before:
            effects.append(AdvanceLowWatermark())
        return effects

    def _on_isr_check_due(self, event: IsrCheckDue) -> list[Effect]:
        leading = self._leading
        if leading is None:
            return []
        laggards = leading.laggards(
            self.in_sync_replicas,
            self.log_end_offset,
            event.monotonic_ms,
            self.replica_lag_time_max_ms,
            self.replica_lag_max_messages,
        )
        if not laggards:
            return []
        return [self._propose(tuple(r for r in self.in_sync_replicas if r not in laggards), ())]

    def _propose(self, isr: tuple[int, ...], added: tuple[tuple[int, int], ...]) -> ProposeIsr:
        assert self._leading is not None, "only a leader proposes an ISR"
        leaving = set(self.in_sync_replicas) - set(isr)
        least = self.effective_min_in_sync_replicas if self.uses_elr else 0
        elr = eligible_after(isr, leaving, self.elr, least)
        proposal = ProposeIsr(self.leader_epoch, self.partition_epoch, isr, elr, added)
        self._leading.pending = proposal
        return proposal

    def _on_isr_written(self, event: IsrWritten) -> list[Effect]:
        proposal = event.proposal
        if self._leading is None or self._leading.pending != proposal:
            return []  # the outcome belongs to an earlier leader epoch
        self._leading.pending = None
        if event.partition_epoch > self.partition_epoch:  # else the controller has written a later state
            self.partition_epoch = event.partition_epoch
            self.in_sync_replicas = proposal.isr
            self.elr = proposal.elr
        return [ReportIsrChange(bool(proposal.added)), *self._advanced_high_watermark()]

    def _on_isr_refused(self, event: IsrRefused) -> list[Effect]:
        state = event.state
        if self._leading is None or self._leading.pending != event.proposal:
            return []
        if state is None or (state.leader, state.leader_epoch) != (self.leader, self.leader_epoch):
            # Another broker leads, or the topic was deleted (a new one of its name begins with epoch 0). The
            # role ends, so this broker acknowledges nothing more.
            self.leader = NO_LEADER
            self._leading = None
            self.partition_epoch = max(self.partition_epoch, event.partition_epoch)
            return [StepDown()]
        self._leading.pending = None
        if event.partition_epoch == event.proposal.partition_epoch:
            self._leading.join_refused(event.proposal, event.monotonic_ms)
        if event.partition_epoch > self.partition_epoch:
            self.partition_epoch = event.partition_epoch
            self.in_sync_replicas = state.isr
            self.elr = state.elr
        return self._advanced_high_watermark()

    def _advanced_high_watermark(self) -> list[Effect]:
        """Advances the high watermark to the least log end offset of the replicas in sync.

        It does not advance while fewer are in sync than `min.insync.replicas` demands (KIP-966). Nor does it
        while other replicas are eligible to lead, even if the setting has changed: they must have everything
        that is acknowledged. While a flush of this log is due, only what is on its disk counts: followers may
        have flushed faster, and a power failure of all machines can make this replica the leader again.
        """
        leading = self._leading
        if leading is None or self.elr or len(self.in_sync_replicas) < self.effective_min_in_sync_replicas:
            return []
        end_offset = self.recovery_point if self.is_flush_due else self.log_end_offset
        least = leading.least_end_offset(self.in_sync_replicas, end_offset)
        if least <= self.high_watermark:
            return []
        self.high_watermark = least
        self.producers.on_high_watermark(least)
        return [AdvanceHighWatermark(least)]

    def _on_epoch_end_received(self, event: EpochEndReceived) -> list[Effect]:
        if (
            not self._is_current(event.leader_epoch, FetchState.TRUNCATING)
            or event.asked_epoch != self.leader_epochs.latest_epoch
        ):
            return []
        return self._truncate_by(event.epoch, event.end_offset)

    def _on_epoch_diverged(self, event: EpochDiverged) -> list[Effect]:
        if not self._is_current(event.leader_epoch, FetchState.FETCHING):
            return []
        self.fetch_state = FetchState.TRUNCATING
        return self._truncate_by(event.epoch, event.end_offset)

    def _on_fetched_out_of_range(self, event: FetchedOutOfRange) -> list[Effect]:
        if not self._is_current(event.leader_epoch, FetchState.FETCHING):
            return []
        self._fetch_from = UNDEFINED_EPOCH_OFFSET
        is_empty_above = not len(self.leader_epochs) and self.log_end_offset > event.leader_log_end_offset
        if self.log_end_offset < event.leader_log_start_offset or is_empty_above:
            self.fetch_state = FetchState.TRUNCATING
            self._asks_again = False
            return [RestartLogAt(event.leader_log_start_offset)]
        return self._ask_or_fetch()

    def _truncate_by(self, epoch: int, end_offset: int) -> list[Effect]:
        offset, is_final = truncation_for(
            self.leader_epochs, self.log_end_offset, self.log_start_offset, epoch, end_offset
        )
        self._asks_again = not is_final
        self._fetch_from = UNDEFINED_EPOCH_OFFSET
        return self._truncate_to(offset)

    def _truncate_to(self, offset: int) -> list[Effect]:
        latest, end_offset = self.leader_epochs.latest, self.log_end_offset
        # As leader, this broker may have begun an epoch and written nothing in it, so no other log knows that
        # epoch. It must be removed, also from the disk, before batches of another epoch are written there.
        has_empty_epoch = latest is not None and latest.start_offset >= end_offset
        if offset < end_offset or has_empty_epoch:
            return [TruncateTo(min(offset, end_offset))]
        return self._end_truncation()

    def _on_truncated(self, event: Truncated) -> list[Effect]:
        self.log_start_offset, self.log_end_offset, producers = event
        self.leader_epochs.truncate_from_end(event.log_end_offset)
        self.leader_epochs.truncate_from_start(event.log_start_offset)
        self.high_watermark = max(min(self.high_watermark, event.log_end_offset), event.log_start_offset)
        self.recovery_point = min(self.recovery_point, event.log_end_offset)
        if producers is not None:
            self._replace_producers(producers)
        return self._end_truncation() if self.fetch_state is FetchState.TRUNCATING else []

    def _on_log_restarted(self, event: LogRestarted) -> list[Effect]:
        self.log_start_offset = self.log_end_offset = self.high_watermark = event.log_start_offset
        self.recovery_point = min(self.recovery_point, event.log_start_offset)
        self.leader_epochs.clear()
        self._replace_producers(ProducerState())
        return self._end_truncation() if self.fetch_state is FetchState.TRUNCATING else []

    def _replace_producers(self, producers: ProducerState) -> None:
        producers.expiration_ms = self.producers.expiration_ms
        producers.on_high_watermark(self.high_watermark)
        self.producers = producers

    def _end_truncation(self) -> list[Effect]:
        if self._asks_again:
            self._asks_again = False
            return self._ask_or_fetch()
        self.fetch_state = FetchState.FETCHING
        return []

    def _on_records_received(self, event: RecordsReceived) -> list[Effect]:
        """Returns AppendReceived, or PersistLeaderEpochs if an epoch begins with these batches.

        Such batches count only after their epochs are on disk. So the caller flushes the checkpoint, then
        reports the same batches again.
        """
        if not self._is_current(event.leader_epoch, FetchState.FETCHING):
            return []
        epochs, next_offset = self.leader_epochs, self.log_end_offset
        if event.headers and self._begins_within(event.headers[0], event.log_start_offset):
            self._fetch_from = next_offset
            self.fetch_state = FetchState.TRUNCATING
            self._asks_again = False
            return [RestartLogAt(event.headers[0].base_offset)]
        latest = epochs.epoch_for_offset(next_offset - 1)
        begun: list[tuple[int, int]] = []
        for header in event.headers:
            epoch = header.partition_leader_epoch
            if header.base_offset < next_offset or epoch < latest or epoch > self.leader_epoch:
                return [
                    Refuse(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"the leader sent a batch at {header.base_offset} of epoch {epoch},"
                        f" expected from {next_offset}, epoch {latest} to {self.leader_epoch}",
                    )
                ]
            if epoch != latest:
                latest = epoch
                if epochs.epoch_for_offset(header.base_offset) != epoch:
                    begun.append((epoch, header.base_offset))
            next_offset = header.last_offset + 1
        for epoch, start_offset in begun:
            epochs.assign(epoch, start_offset)
        return [PersistLeaderEpochs()] if begun else [AppendReceived()]

    def _on_received_appended(self, event: ReceivedAppended) -> list[Effect]:
        effects: list[Effect] = []
        if event.headers:
            effects = self._update_producers(event.headers, event.markers, event.wall_ms)
            self.log_end_offset = event.headers[-1].last_offset + 1
            self._fetch_from = UNDEFINED_EPOCH_OFFSET
        high_watermark = min(event.high_watermark, self.log_end_offset)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self.producers.on_high_watermark(high_watermark)
            effects.append(AdvanceHighWatermark(high_watermark))
        log_start_offset = min(event.log_start_offset, self.high_watermark)
        if log_start_offset > self.log_start_offset:
            effects.append(AdvanceLogStartOffset(log_start_offset))
        return effects

    def _begins_within(self, header: BatchHeader, leader_log_start_offset: int) -> bool:
        """Returns whether the leader's log begins within this batch, and this log has no part of it.

        DeleteRecords can name any offset, but a log has whole batches. What this log has below the leader's
        log start can even be of an epoch that the leader never knew.
        """
        end = self.log_end_offset
        has_nothing = self.log_start_offset == end or leader_log_start_offset >= end
        return has_nothing and header.base_offset < end <= header.last_offset

    def _is_current(self, leader_epoch: int, state: FetchState) -> bool:
        return self.is_follower and leader_epoch == self.leader_epoch and self.fetch_state is state

    def _on_flushed(self, event: Flushed) -> list[Effect]:
        self.recovery_point = event.recovery_point
        return self._advanced_high_watermark()

    def _on_flush_messages_changed(self, event: FlushMessagesChanged) -> list[Effect]:
        self.flush_messages = event.flush_messages
        return self._advanced_high_watermark() + self._flush_if_due()

    def _flush_if_due(self) -> list[Effect]:
        """A follower asks for no flush here: its fetcher flushes before it fetches again."""
        return [FlushLog()] if self.is_leader and self.is_flush_due else []

    def _on_delete_records_received(self, event: DeleteRecordsReceived) -> list[Effect]:
        if not self.is_leader:
            return [Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, NOT_LEADING)]
        offset = self.high_watermark if event.offset == UP_TO_HIGH_WATERMARK else event.offset
        if offset < 0 or offset > self.high_watermark:
            return [
                Refuse(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} is above the high watermark {self.high_watermark} or negative",
                )
            ]
        return [AdvanceLogStartOffset(offset)] if offset > self.log_start_offset else []

    def _on_log_start_offset_moved(self, event: LogStartOffsetMoved) -> list[Effect]:
        self.log_start_offset = max(self.log_start_offset, event.log_start_offset)
        return (
            [PersistLeaderEpochs()] if self.leader_epochs.truncate_from_start(event.log_start_offset) else []
        )

    def _on_min_in_sync_replicas_changed(self, event: MinInSyncReplicasChanged) -> list[Effect]:
        self.min_in_sync_replicas = event.min_in_sync_replicas
        self._set_effective_min_in_sync_replicas()
        return self._advanced_high_watermark()

    def _on_eligible_leaders_switched(self, event: EligibleLeadersSwitched) -> list[Effect]:
        self.uses_elr = event.is_on
        return []

    def _set_effective_min_in_sync_replicas(self) -> None:
        self.effective_min_in_sync_replicas = effective_min_in_sync_replicas(
            self.min_in_sync_replicas, len(self.replicas)
        )


# A table for each partition would cost 3 kB and a cycle of references, because it would hold bound methods.
# The handlers' parameters differ: each takes the event type that is its key.
_HANDLERS: Final[dict[type, Callable[..., list[Effect]]]] = {
    ProduceReceived: PartitionCore._on_produce_received,
    ProduceDuringRoleChange: PartitionCore._on_produce_during_role_change,
    AppendFailed: PartitionCore._on_append_failed,
    VerificationAsked: PartitionCore._on_verification_asked,
    VerificationRefused: PartitionCore._on_verification_refused,
    MarkerReceived: PartitionCore._on_marker_received,
    ShardAppendReceived: PartitionCore._on_shard_append_received,
    BatchAppended: PartitionCore._on_batch_appended,
    BatchesAppended: PartitionCore._on_batches_appended,
    FollowerFetched: PartitionCore._on_follower_fetched,
    RecordsReceived: PartitionCore._on_records_received,
    ReceivedAppended: PartitionCore._on_received_appended,
    LeaderAndIsrReceived: PartitionCore._on_leader_and_isr_received,
    DeleteRecordsReceived: PartitionCore._on_delete_records_received,
    LogStartOffsetMoved: PartitionCore._on_log_start_offset_moved,
    MinInSyncReplicasChanged: PartitionCore._on_min_in_sync_replicas_changed,
    FlushMessagesChanged: PartitionCore._on_flush_messages_changed,
    Flushed: PartitionCore._on_flushed,
    EligibleLeadersSwitched: PartitionCore._on_eligible_leaders_switched,
    IsrCheckDue: PartitionCore._on_isr_check_due,
    IsrWritten: PartitionCore._on_isr_written,
    IsrRefused: PartitionCore._on_isr_refused,
    EpochEndReceived: PartitionCore._on_epoch_end_received,
    EpochDiverged: PartitionCore._on_epoch_diverged,
    Truncated: PartitionCore._on_truncated,
    LogRestarted: PartitionCore._on_log_restarted,
    FetchedOutOfRange: PartitionCore._on_fetched_out_of_range,
}
