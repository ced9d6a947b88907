"""The decisions of one replica: may this batch be appended and where, how far may readers see, who is in
sync, what has to be cut off.

`step(event, now_ms) -> effects`. The shell carries the effects out and reports what became of them as
further events, so the same core runs in the broker and in the simulator. What leader and follower know
beyond this file is in `leader_role.py` and `follower_role.py`. SPEC: A2, A7, B10, C1-C4, C7, C8, C13.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

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
    EpochDiverged,
    EpochEndReceived,
    Event,
    FetchedOutOfRange,
    FollowerFetched,
    IndexAborted,
    IsrCheckDue,
    IsrRefused,
    IsrWritten,
    LeaderAndIsrReceived,
    LogStartOffsetMoved,
    MarkerReceived,
    MinInSyncReplicasChanged,
    PersistLeaderEpochs,
    ProduceReceived,
    ProduceTurnedAway,
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
)
from tidelog.broker.partition.follower_role import FetchState, truncation_for
from tidelog.broker.partition.leader_epochs import (
    UNDEFINED_EPOCH,
    UNDEFINED_EPOCH_OFFSET,
    EpochEndOffset,
    LeaderEpochs,
)
from tidelog.broker.partition.leader_role import LeaderRole, eligible_after
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.broker.partition.refused_batches import RefusedBatches
from tidelog.broker.partition.transactional_appends import (
    on_batches_appended,
    on_marker_received,
    on_shard_append_received,
    on_verification_asked,
    taken_in,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import NO_PRODUCER_ID, TRANSACTIONAL_BIT, BatchHeader

NO_EPOCH: Final = -1
NO_LEADER: Final = -1
ACKS_ALL: Final = -1
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
UP_TO_HIGH_WATERMARK: Final = -1
DEFAULT_REPLICA_LAG_TIME_MAX_MS: Final = 30_000


class PartitionCore:
    """State of one replica. Only `step` changes it; every attribute may be read, settings may be set.

    `now_ms` of events that tell of followers, the ISR and roles is of a clock that never jumps; of a batch's
    events, the wall clock.

    `truncates_by_epoch` False is how Kafka was before KIP-101: for tests that show what it loses.
    """

    __slots__ = (
        "_asks_again",
        "_fetch_from",
        "_handlers",
        "_leading",
        "_refused",
        "broker_id",
        "effective_min_in_sync_replicas",
        "elr",
        "fetch_state",
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
        "replica_lag_max_messages",
        "replica_lag_time_max_ms",
        "replicas",
        "truncates_by_epoch",
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
        self.min_in_sync_replicas = min_in_sync_replicas
        # No more than there are replicas (KIP-966).
        self.effective_min_in_sync_replicas = min_in_sync_replicas
        self.replica_lag_time_max_ms = replica_lag_time_max_ms
        self.replica_lag_max_messages = replica_lag_max_messages
        self.truncates_by_epoch = truncates_by_epoch
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.in_sync_replicas: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.elr: tuple[int, ...] = ()
        self.fetch_state = FetchState.NONE
        self._leading: LeaderRole | None = None
        self._asks_again = False
        self._fetch_from = UNDEFINED_EPOCH_OFFSET
        self._refused = RefusedBatches()
        self._handlers: dict[type, Callable[[Any, int], list[Effect]]] = {
            ProduceReceived: self._on_produce_received,
            ProduceTurnedAway: self._on_produce_turned_away,
            AppendFailed: self._on_append_failed,
            VerificationAsked: partial(on_verification_asked, self),
            VerificationRefused: self._on_verification_refused,
            MarkerReceived: partial(on_marker_received, self),
            ShardAppendReceived: partial(on_shard_append_received, self),
            BatchAppended: self._on_batch_appended,
            BatchesAppended: partial(on_batches_appended, self),
            FollowerFetched: self._on_follower_fetched,
            RecordsReceived: self._on_records_received,
            ReceivedAppended: self._on_received_appended,
            LeaderAndIsrReceived: self._on_leader_and_isr_received,
            DeleteRecordsReceived: self._on_delete_records_received,
            LogStartOffsetMoved: self._on_log_start_offset_moved,
            MinInSyncReplicasChanged: self._on_min_in_sync_replicas_changed,
            IsrCheckDue: self._on_isr_check_due,
            IsrWritten: self._on_isr_written,
            IsrRefused: self._on_isr_refused,
            EpochEndReceived: self._on_epoch_end_received,
            EpochDiverged: self._on_epoch_diverged,
            Truncated: self._on_truncated,
            FetchedOutOfRange: self._on_fetched_out_of_range,
        }

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """`now_ms`: the wall clock's for batches, which age their producers; the monotonic clock's for roles,
        followers' fetches and the ISR, which must not depend on a clock that may jump.
        """
        return self._handlers[type(event)](event, now_ms)

    # -- what may be asked without changing anything

    @property
    def is_leader(self) -> bool:
        return self.leader == self.broker_id

    @property
    def is_follower(self) -> bool:
        return self.leader not in (NO_LEADER, self.broker_id)

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, else the high watermark; never above the latter
        (SPEC A7), nor below the log's start.
        """
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return max(min(unstable, self.high_watermark), self.log_start_offset)

    @property
    def is_high_watermark_known(self) -> bool:
        """False while a new leader can't tell yet how much of what it found in its log is acknowledged."""
        leading = self._leading
        return leading is None or self.high_watermark >= leading.epoch_start_offset

    @property
    def low_watermark(self) -> int:
        """The least log start offset of all replicas, as far as the leader was told; -1: not yet."""
        leading = self._leading
        return self.log_start_offset if leading is None else leading.low_watermark(self.log_start_offset)

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.in_sync_replicas) < self.effective_min_in_sync_replicas

    @property
    def pending_isr(self) -> ProposeIsr | None:
        """The ISR change that is under way."""
        return None if self._leading is None else self._leading.pending

    @property
    def fetch_offset(self) -> int:
        """Where a follower goes on. Above its log's end only while that waits for a batch within which the
        leader's log begins.
        """
        return max(self.log_end_offset, self._fetch_from)

    @property
    def last_fetched_epoch(self) -> int:
        """What a follower's Fetch says of its log's end; -1 for an empty log."""
        return self.leader_epochs.latest_epoch if self.truncates_by_epoch else UNDEFINED_EPOCH

    def follower_end_offset(self, replica_id: int) -> int:
        """How far that follower has come, -1 if the leader does not know."""
        progress = None if self._leading is None else self._leading.followers.get(replica_id)
        return -1 if progress is None else progress.log_end_offset

    def follower_start_offset(self, replica_id: int) -> int:
        """Where that follower's log begins, -1 if the leader does not know."""
        return -1 if self._leading is None else self._leading.log_start_offset_of(replica_id)

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

    def epoch_end(self, epoch: int) -> EpochEndOffset:
        """Where the largest epoch not above `epoch` ends in this log (SPEC C8)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> EpochEndOffset | None:
        """Where a log that ends at `fetch_offset` in `last_fetched_epoch` leaves this one; None if it is a
        part of it. Raises KafkaError OFFSET_OUT_OF_RANGE for an epoch that this log knows nothing of.
        """
        if last_fetched_epoch == UNDEFINED_EPOCH:
            return None
        end = self.epoch_end(last_fetched_epoch)
        if end.epoch == UNDEFINED_EPOCH:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"epoch {last_fetched_epoch} is not known here")
        return end if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset else None

    # -- roles

    def _on_leader_and_isr_received(self, event: LeaderAndIsrReceived, now_ms: int) -> list[Effect]:
        is_older = event.leader_epoch == self.leader_epoch and event.partition_epoch < self.partition_epoch
        if is_older or event.leader_epoch < self.leader_epoch:
            # A command overtaken by a later one. (Of a newer leader epoch a deposed leader may have read a
            # later partition epoch in the store than the command has.)
            return []
        is_new_epoch = event.leader_epoch > self.leader_epoch
        has_moved = is_new_epoch or event.leader != self.leader
        if has_moved:
            self._fetch_from = UNDEFINED_EPOCH_OFFSET
            self.producers.forget_verifications()
        self.leader = event.leader
        self.leader_epoch = event.leader_epoch
        self.partition_epoch = event.partition_epoch
        self.in_sync_replicas = event.isr
        self.replicas = event.replicas
        self.elr = event.elr
        self.effective_min_in_sync_replicas = min(self.min_in_sync_replicas, len(self.replicas))
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
        self._leading.keep_to(event.replicas, event.isr, now_ms)
        return effects + self.advanced_high_watermark()

    def _follow(self) -> list[Effect]:
        """The own log may hold what the new leader's does not: find out before anything is appended."""
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

    # -- leading: appends

    def _on_produce_received(self, event: ProduceReceived, now_ms: int) -> list[Effect]:
        header, required_acks, guard = event
        if self.leader != self.broker_id:
            return self._refuse_for_now(
                header, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead the partition", now_ms
            )
        in_sync, least = len(self.in_sync_replicas), self.effective_min_in_sync_replicas
        if in_sync < least and required_acks == ACKS_ALL:
            message = f"{in_sync} replicas are in sync, {least} have to be"
            return self._refuse_for_now(header, ErrorCode.NOT_ENOUGH_REPLICAS, message, now_ms)
        if header.producer_id != NO_PRODUCER_ID:
            if self._refused and not self.producers.has_all_before(header):
                reason = self._refused.reason_to_refuse(header, now_ms)
                if reason is not None:
                    return [Refuse(reason, "the producer's batch before this one was refused")]
            try:
                duplicate = self.producers.check(header, now_ms)
                if duplicate is None and header.attributes & TRANSACTIONAL_BIT:
                    self.producers.check_guard(header, guard)
            except KafkaError as refusal:
                return [Refuse(refusal.code, str(refusal))]
            if duplicate is not None:
                return [AnswerDuplicate(duplicate.base_offset, duplicate.last_offset, duplicate.timestamp)]
        return [AppendBatch(self.log_end_offset, self.leader_epoch)]

    def _on_produce_turned_away(self, event: ProduceTurnedAway, now_ms: int) -> list[Effect]:
        message = "this broker's role for the partition is changing"
        return self._refuse_for_now(event.header, ErrorCode.NOT_LEADER_OR_FOLLOWER, message, now_ms)

    def _on_append_failed(self, event: AppendFailed, now_ms: int) -> list[Effect]:
        self._refuse_for_now(event.header, ErrorCode.KAFKA_STORAGE_ERROR, "the disk refuses", now_ms)
        return []

    def _on_verification_refused(self, event: VerificationRefused, now_ms: int) -> list[Effect]:
        message = f"the transaction can't be verified now: {event.error.name}"
        return self._refuse_for_now(event.header, event.error, message, now_ms)

    def _refuse_for_now(
        self, header: BatchHeader, error: ErrorCode, message: str, now_ms: int
    ) -> list[Effect]:
        """It will come again: what its producer sent after it must not be taken for the end of a gap."""
        if header.producer_id != NO_PRODUCER_ID:
            self._refused.refused(header, error, now_ms)
        return [Refuse(error, message)]

    def _on_batch_appended(self, event: BatchAppended, now_ms: int) -> list[Effect]:
        header, marker = event
        self.log_end_offset = header.last_offset + 1
        completed = self.producers.update(header, now_ms, marker)
        # With others in the ISR it is their fetches that move the high watermark.
        effects = self.advanced_high_watermark() if len(self.in_sync_replicas) == 1 else []
        if completed is not None and completed.is_aborted:
            effects.insert(0, IndexAborted(completed))
        return effects

    # -- leading: followers and the ISR

    def _on_follower_fetched(self, event: FollowerFetched, now_ms: int) -> list[Effect]:
        leading = self._leading
        if leading is None:
            return []
        log_start_before = leading.log_start_offset_of(event.replica_id)
        if not leading.follower_fetched(event, self.log_end_offset, now_ms):
            return []
        replica_id = event.replica_id
        effects = self.advanced_high_watermark()
        if leading.may_join(replica_id, self.in_sync_replicas, self.high_watermark, now_ms):
            isr = (*self.in_sync_replicas, replica_id)
            effects.append(self._propose(isr, ((replica_id, event.broker_epoch),)))
        if event.log_start_offset != log_start_before:
            effects.append(AdvanceLowWatermark())
        return effects

    def _on_isr_check_due(self, event: IsrCheckDue, now_ms: int) -> list[Effect]:
        leading = self._leading
        if leading is None:
            return []
        laggards = leading.laggards(
            self.in_sync_replicas,
            self.log_end_offset,
            now_ms,
            self.replica_lag_time_max_ms,
            self.replica_lag_max_messages,
        )
        if not laggards:
            return []
        return [self._propose(tuple(r for r in self.in_sync_replicas if r not in laggards), ())]

    def _propose(self, isr: tuple[int, ...], added: tuple[tuple[int, int], ...]) -> ProposeIsr:
        assert self._leading is not None, "only a leader proposes"
        leaving = set(self.in_sync_replicas) - set(isr)
        elr = eligible_after(isr, leaving, self.elr, self.effective_min_in_sync_replicas)
        proposal = ProposeIsr(self.leader_epoch, self.partition_epoch, isr, elr, added)
        self._leading.pending = proposal
        return proposal

    def _on_isr_written(self, event: IsrWritten, now_ms: int) -> list[Effect]:
        proposal = event.proposal
        if self._leading is None or self._leading.pending != proposal:
            return []  # of an earlier term of leading
        self._leading.pending = None
        if event.partition_epoch > self.partition_epoch:  # else the controller has written since
            self.partition_epoch = event.partition_epoch
            self.in_sync_replicas = proposal.isr
            self.elr = proposal.elr
        return [ReportIsrChange(bool(proposal.added)), *self.advanced_high_watermark()]

    def _on_isr_refused(self, event: IsrRefused, now_ms: int) -> list[Effect]:
        state = event.state
        if self._leading is None or self._leading.pending != event.proposal:
            return []
        if state is None or (state.leader, state.leader_epoch) != (self.leader, self.leader_epoch):
            # Deposed, or the topic is gone (another of its name begins with epoch 0). The pending change
            # stays: this broker acknowledges nothing more.
            self.leader = NO_LEADER
            self._leading = None
            self.partition_epoch = max(self.partition_epoch, event.partition_epoch)
            return [StepDown()]
        self._leading.pending = None
        if event.partition_epoch == event.proposal.partition_epoch:
            self._leading.join_refused(event.proposal, now_ms)
        if event.partition_epoch > self.partition_epoch:
            self.partition_epoch = event.partition_epoch
            self.in_sync_replicas = state.isr
            self.elr = state.elr
        return self.advanced_high_watermark()

    def advanced_high_watermark(self) -> list[Effect]:
        """The least log end offset of the replicas in sync, if that is further than before (SPEC C2).

        It stands while fewer are in sync than `min.insync.replicas` asks for (SPEC C13). As long as others
        are eligible to lead it does, too, whatever the setting says here: it may have changed, and they
        must have all that is acknowledged.
        """
        leading = self._leading
        if leading is None or self.elr or len(self.in_sync_replicas) < self.effective_min_in_sync_replicas:
            return []
        least = leading.least_end_offset(self.in_sync_replicas, self.log_end_offset)
        if least <= self.high_watermark:
            return []
        self.high_watermark = least
        self.producers.on_high_watermark(least)
        return [AdvanceHighWatermark(least)]

    # -- following

    def _on_epoch_end_received(self, event: EpochEndReceived, now_ms: int) -> list[Effect]:
        if (
            not self._is_current(event.leader_epoch, FetchState.TRUNCATING)
            or event.asked_epoch != self.leader_epochs.latest_epoch
        ):
            return []
        return self._truncate_by(event.epoch, event.end_offset)

    def _on_epoch_diverged(self, event: EpochDiverged, now_ms: int) -> list[Effect]:
        if not self._is_current(event.leader_epoch, FetchState.FETCHING):
            return []
        self.fetch_state = FetchState.TRUNCATING
        return self._truncate_by(event.epoch, event.end_offset)

    def _on_fetched_out_of_range(self, event: FetchedOutOfRange, now_ms: int) -> list[Effect]:
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
        # This broker may have begun an epoch as leader and written nothing in it: no other log knows of it.
        # It has to go from the disk, too, before batches of another epoch come to stand where it began.
        has_empty_epoch = latest is not None and latest.start_offset >= end_offset
        if offset < end_offset or has_empty_epoch:
            return [TruncateTo(min(offset, end_offset))]
        return self._end_truncation()

    def _on_truncated(self, event: Truncated, now_ms: int) -> list[Effect]:
        self.log_start_offset, self.log_end_offset = event
        self.leader_epochs.truncate_from_end(event.log_end_offset)
        self.high_watermark = max(min(self.high_watermark, event.log_end_offset), event.log_start_offset)
        return self._end_truncation() if self.fetch_state is FetchState.TRUNCATING else []

    def _end_truncation(self) -> list[Effect]:
        if self._asks_again:
            self._asks_again = False
            return self._ask_or_fetch()
        self.fetch_state = FetchState.FETCHING
        return []

    def _on_records_received(self, event: RecordsReceived, now_ms: int) -> list[Effect]:
        """PersistLeaderEpochs means: flush it, then report the same batches again. They count only once the
        epochs that begin with them are on disk.
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

    def _on_received_appended(self, event: ReceivedAppended, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if event.headers:
            effects = taken_in(self, event.headers, event.markers, now_ms)
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
        """Whether the leader's log begins in the middle of this batch, and nothing here is part of it:
        DeleteRecords names any offset, and a log has to hold its batches whole. What lies here below the
        leader's beginning may even be of an epoch that it never knew.
        """
        end = self.log_end_offset
        has_nothing = self.log_start_offset == end or leader_log_start_offset >= end
        return has_nothing and header.base_offset < end <= header.last_offset

    def _is_current(self, leader_epoch: int, state: FetchState) -> bool:
        return self.is_follower and leader_epoch == self.leader_epoch and self.fetch_state is state

    # -- the log's beginning, settings

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
        return self.advanced_high_watermark()
