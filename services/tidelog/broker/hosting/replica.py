"""One replica on this broker: the shell around the partition's core and its log.

The core decides and the log does the I/O. This shell reports events to the core and carries out its effects.
Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from tidelog.broker.cluster.view import append_rules, log_config
from tidelog.broker.hosting.hosting_state import SETTLING, HostingMachine
from tidelog.broker.log.cleaning.segment_swap import SegmentSwap
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.log.segment import FileRange
from tidelog.broker.partition.batch_validation import (
    WALK_ON_LOOP_BYTES,
    control_markers,
    numbered_headers,
    validate_batches,
    validate_records,
)
from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import (
    AdvanceHighWatermark,
    AdvanceLogStartOffset,
    AdvanceLowWatermark,
    AnswerDuplicate,
    AppendBatch,
    AppendFailed,
    AskEpochEnd,
    BatchAppended,
    BatchesAppended,
    DeleteRecordsReceived,
    Effect,
    Event,
    Flushed,
    FlushLog,
    FlushMessagesChanged,
    IndexAborted,
    LeaderAndIsrReceived,
    LogRestarted,
    LogStartOffsetMoved,
    MarkerReceived,
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
)
from tidelog.broker.partition.guards import NO_GUARD
from tidelog.broker.partition.producer_state import TransactionMarker
from tidelog.broker.partition.roles import FetchState
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.metrics.telemetry import TopicTraffic
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import TopicPartition
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import (
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    EndTransactionMarker,
    assign_offset_and_epoch,
    parse_header,
    set_log_append_time,
)
from tidelog.records.builder import build_end_transaction_batch
from tidelog.rpc.broker_commands import PartitionState
from tidelog.settings.topic_settings import TopicSettings

WalkedBatch: TypeAlias = tuple[memoryview, BatchHeader]
"""A batch whose records have been checked, as it is to be appended."""


class Appended(NamedTuple):
    """The result of an append. With acks=all, the request waits for the high watermark to reach
    `required_offset`.
    """

    base_offset: int
    required_offset: int
    log_append_time_ms: int  # -1 unless the topic uses LogAppendTime


class PartitionWaiters(Protocol):
    """The requests that wait for a partition to change."""

    def high_watermark_advanced(self, topic_partition: TopicPartition) -> None:
        """Wakes waiting fetches and produces with acks=all."""

    def log_end_advanced(self, topic_partition: TopicPartition) -> None:
        """Wakes the fetches of followers: the leader has new batches."""

    def low_watermark_advanced(self, topic_partition: TopicPartition) -> None:
        """Wakes DeleteRecords requests that wait for all replicas."""

    def leadership_changed(self, topic_partition: TopicPartition) -> None:
        """Has all requests that wait for the partition check whether they still can be answered."""


class IsrChanges(Protocol):
    """Writes a leader's ISR changes. No method waits."""

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        """Starts to write the proposal to the store. The outcome is always IsrWritten or IsrRefused."""

    def isr_changed(self, topic_partition: TopicPartition, *, is_expansion: bool) -> None:
        """Counts an ISR change and notifies the controller."""


class LogWork(Protocol):
    """Slow work on a replica's log. No method waits; the outcome comes back to the replica as an event."""

    def ask_epoch_end(self, replica: Replica, question: AskEpochEnd) -> None:
        """Asks the leader until it answers or another broker leads. The answer is EpochEndReceived."""

    def cut_log(self, replica: Replica, cut: TruncateTo | RestartLogAt, leader_epoch: int) -> None:
        """Starts `Replica.cut_log`."""

    def flush_log(self, replica: Replica) -> None:
        """Starts `Replica.flush`, unless that is under way. Repeats it until it succeeds."""


class Replica:
    """A replica that this broker hosts. Methods raise KafkaError with Kafka's code for refused requests."""

    __slots__ = (
        "_hosting",
        "_isr",
        "_log_work",
        "_may_need_records",
        "_one_flush_at_a_time",
        "_one_role_at_a_time",
        "_waiters",
        "append_rules",
        "core",
        "log",
        "settings",
        "storage",
        "topic_id",
        "topic_partition",
        "traffic",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        core: PartitionCore,
        storage: PartitionLog,
        settings: TopicSettings,
        traffic: TopicTraffic,
        hosting: HostingMachine,
        waiters: PartitionWaiters,
        isr: IsrChanges,
        log_work: LogWork,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.core = core
        self.storage = storage
        self.log = storage.log
        self.traffic = traffic
        self._hosting = hosting
        self._waiters = waiters
        self._isr = isr
        self._log_work = log_work
        self._one_role_at_a_time = asyncio.Lock()
        self._one_flush_at_a_time = asyncio.Lock()
        self.apply_settings(settings)

    def append(
        self,
        records: memoryview,
        required_acks: int,
        produce_version: int,
        now_ms: WallMs,
        guard: int = NO_GUARD,
        most_bytes_to_walk: int = WALK_ON_LOOP_BYTES,
        walked: WalkedBatch | None = None,
    ) -> Appended:
        """Appends the one batch of a Produce request. Raises LongWalkError if the topic needs a walk over
        more than `most_bytes_to_walk` of records. The caller then walks them by `walk` in a thread and
        passes the result as `walked`.

        Changes the bytes of the batch in place (offset, epoch, time) and does not keep them. `guard` is the
        guard of the transaction's verification.
        """
        rules = self.append_rules
        if walked is None:
            header = validate_batches(records, rules=rules, produce_version=produce_version, now_ms=now_ms)
        else:
            records, header = walked
        if (
            walked is None
            and (self._may_need_records or header[8] <= 0 or header[8] < header[7])  # max and base timestamp
            and rules.needs_records(header)
        ):
            records, header = validate_records(
                records, header, rules=rules, now_ms=now_ms, most_bytes=most_bytes_to_walk
            )
        elif len(records) != header.batch_length + LOG_OVERHEAD_BYTES:
            records = records[: header.size_bytes]  # Kafka, too, drops an incomplete second batch
        received = (
            ProduceDuringRoleChange(header, now_ms)
            if self._hosting.state is SETTLING
            else ProduceReceived(header, required_acks, now_ms, guard)
        )
        decision = self.core.step(received)[0]
        if type(decision) is AppendBatch:
            try:
                appended = self._append_decided(records, header, decision, None, now_ms)
            except LogStorageError:
                self.core.step(AppendFailed(header, now_ms))
                raise
            self.traffic.produced(header.record_count, len(records))
            return appended
        if type(decision) is AnswerDuplicate:
            return Appended(decision.base_offset, decision.last_offset + 1, NO_TIMESTAMP)
        raise _refusal(decision)

    def walk(self, records: memoryview, produce_version: int, now_ms: WallMs) -> WalkedBatch:
        """Checks the records of a batch and returns what `append` takes as `walked`. It only reads `records`
        and the rules, so it may run in a thread. Raises KafkaError.
        """
        rules = self.append_rules
        header = validate_batches(records, rules=rules, produce_version=produce_version, now_ms=now_ms)
        return validate_records(records, header, rules=rules, now_ms=now_ms)

    def _append_decided(
        self,
        records: memoryview,
        header: BatchHeader,
        decision: AppendBatch,
        marker: EndTransactionMarker | None,
        now_ms: WallMs,
    ) -> Appended:
        base_offset = decision.base_offset
        assign_offset_and_epoch(records, 0, base_offset, decision.leader_epoch)
        header = tuple.__new__(BatchHeader, (base_offset, header[1], decision.leader_epoch, *header[3:]))
        log_append_time_ms = NO_TIMESTAMP
        if self.append_rules.is_log_append_time:
            header = set_log_append_time(records, header, 0, now_ms)
            log_append_time_ms = now_ms
        if not self.log.append(records, header, now_ms):
            self._roll(header, now_ms)
            self.log.append(records, header, now_ms)
        self._carry_out(self.core.step(BatchAppended(header, now_ms, marker)))
        if len(self.core.replicas) > 1:
            self._waiters.log_end_advanced(self.topic_partition)
        return Appended(base_offset, self.core.log_end_offset, log_append_time_ms)

    def _append_to_segment(self, records: memoryview, headers: Sequence[BatchHeader], now_ms: WallMs) -> int:
        """Appends as many of the batches as fit into one segment. Returns how many, at least one."""
        count = self.log.append_received(records, headers, now_ms)
        if not count:
            self._roll(headers[0], now_ms)
            count = self.log.append_received(records, headers, now_ms)
        return count

    def _roll(self, header: BatchHeader, now_ms: WallMs) -> None:
        """Begins a new segment for this batch, with a snapshot of the producers at the log end."""
        self.storage.roll(header.base_offset, now_ms, self.core.producers.snapshot())

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        transaction_version: int,
        now_ms: WallMs,
    ) -> Appended:
        """Ends a producer's transaction in this partition, as its coordinator demands.

        The marker counts once the high watermark has reached `required_offset`. A marker may be repeated.
        """
        self._refuse_while_settling()
        received = TransactionMarker(producer_id, producer_epoch, marker, transaction_version)
        decision = self.core.step(MarkerReceived(received))[0]
        if type(decision) is not AppendBatch:
            raise _refusal(decision)
        batch = memoryview(
            build_end_transaction_batch(
                marker,
                base_offset=0,
                timestamp_ms=now_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )
        )
        return self._append_decided(batch, parse_header(batch), decision, marker, now_ms)

    def append_for_shard(
        self, batches: memoryview, leader_epoch: int, expected_offset: int, now_ms: WallMs
    ) -> int:
        """Appends whole batches for the owner of this shard's partition. Returns the new log end offset.

        Refuses them unless the log ends at `expected_offset` in `leader_epoch`, and whenever acks=all would
        be refused.
        """
        self._refuse_while_settling()
        records = memoryview(bytearray(batches))
        headers = numbered_headers(records, expected_offset, leader_epoch)
        markers = control_markers(records, headers)
        event = ShardAppendReceived(headers, markers, leader_epoch, expected_offset)
        decision = self.core.step(event)[0]
        if type(decision) is not AppendBatch:
            raise _refusal(decision)
        while headers:  # more than once only if a segment becomes full in between
            count = self._append_to_segment(records, headers, now_ms)
            written = sum(header.size_bytes for header in headers[:count])
            records = records[written:]
            self._carry_out(self.core.step(BatchesAppended(headers[:count], markers, now_ms)))
            headers = headers[count:]
        if len(self.core.replicas) > 1:
            self._waiters.log_end_advanced(self.topic_partition)
        return self.core.log_end_offset

    def _refuse_while_settling(self) -> None:
        if self._hosting.state is SETTLING:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the role of this broker for the partition is changing"
            )

    def read(
        self, fetch_offset: int, max_bytes: int, isolation_level: int, *, at_least_one_batch: bool
    ) -> FileRange | None:
        """Returns the batches from `fetch_offset` as far as a client may see them, None if there are none."""
        core = self.core
        if not core.log_start_offset <= fetch_offset <= core.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log has offsets {core.log_start_offset} to {core.log_end_offset}, not {fetch_offset}",
            )
        limit = core.read_limit(isolation_level)
        if fetch_offset >= limit:
            return None
        return self.log.read(fetch_offset, max_bytes, limit, at_least_one_batch=at_least_one_batch)

    def aborted_within(
        self, fetch_offset: int, file_range: FileRange, most: int, *, at_least_one_batch: bool
    ) -> tuple[list[AbortedTransaction], FileRange | None]:
        """Returns the aborted transactions of a range that `read` returned, and the range. With more than
        `most` transactions, the range ends before the next one begins. It is None if no batch is left, but
        with `at_least_one_batch`, it has the first batch nevertheless. Takes the given range over. Raises
        KafkaError.
        """
        log, next_offset = self.log, file_range.next_offset
        shorter = None
        try:
            found, complete_to = log.first_aborted(fetch_offset, next_offset, most)
            if complete_to >= next_offset:
                return found, file_range
            shorter = log.read(fetch_offset, len(file_range), complete_to, at_least_one_batch=True)
            if shorter is None and at_least_one_batch:
                # More than `most` transactions have records in the first batch's range. The reader gets this
                # batch nevertheless, because it could never continue otherwise.
                shorter = log.read(fetch_offset, 0, next_offset, at_least_one_batch=True)
            if shorter is None:
                found = []
            elif shorter.next_offset > complete_to:
                found = log.aborted_transactions(fetch_offset, shorter.next_offset)
        except KafkaError:
            file_range.release()
            if shorter is not None:
                shorter.release()
            raise
        file_range.release()
        return found, shorter

    def read_for_follower(
        self, fetch_offset: int, max_bytes: int, *, at_least_one_batch: bool
    ) -> FileRange | None:
        """Returns the batches from `fetch_offset` to the log end: followers read past the high watermark."""
        return self.log.read(
            fetch_offset, max_bytes, self.core.log_end_offset, at_least_one_batch=at_least_one_batch
        )

    def append_received(
        self,
        records: memoryview,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
        now_ms: WallMs,
    ) -> bool:
        """Appends, on a follower, the records of a Fetch response of the leader.

        `records` are the complete, validated batches of `headers`. Returns False if a leader epoch begins
        with them. The caller then awaits `flush_leader_epochs` and calls this again.
        """
        core = self.core
        effects = core.step(RecordsReceived(leader_epoch, headers, high_watermark, log_start_offset))
        if not effects:
            return True  # another broker leads now
        first = effects[0]
        if type(first) is PersistLeaderEpochs:
            return False
        if type(first) is Refuse:
            raise _refusal(first)
        if type(first) is RestartLogAt:
            self._carry_out(effects)
            return True
        if headers:
            # If only some were written (the segment is full), the follower fetches the rest again.
            count = self._append_to_segment(records, headers, now_ms)
            headers = headers[:count]
        markers = control_markers(records, headers)
        effects = core.step(ReceivedAppended(headers, high_watermark, log_start_offset, now_ms, markers))
        if effects:
            self._carry_out(effects)
        return True

    async def flush(self, now_ms: WallMs) -> None:
        """Flushes what the log has now to disk. Raises LogStorageError.

        Callers that wait at the same time share the next flush.
        """
        end_offset = self.log.log_end_offset
        async with self._one_flush_at_a_time:
            if self.storage.recovery_point < min(end_offset, self.log.log_end_offset):
                await asyncio.to_thread(self.storage.flush, None, now_ms=now_ms)
        self.step(Flushed(self.storage.recovery_point))

    async def flush_leader_epochs(self) -> None:
        """Flushes the leader-epoch checkpoint to disk, as is necessary before a batch of a new epoch counts.

        Raises LogStorageError.
        """
        async with self._one_role_at_a_time:
            self.storage.leader_epoch_checkpoint = self.core.leader_epochs.encode()
            await asyncio.to_thread(self.storage.persist_leader_epochs, syncs=True)

    async def cut_log(
        self,
        cut: TruncateTo | RestartLogAt,
        leader_epoch: int,
        now_ms: WallMs,
        log_was_cut: Callable[[TopicPartition], Awaitable[None]],
    ) -> None:
        """Carries out a truncation that the core asked for in `leader_epoch`. Raises LogStorageError.

        `log_was_cut` is awaited before anything can be appended.
        """
        async with self._one_role_at_a_time:
            core, storage = self.core, self.storage
            if core.leader_epoch != leader_epoch or core.fetch_state is not FetchState.TRUNCATING:
                return
            event: Truncated | LogRestarted
            if type(cut) is TruncateTo:
                epochs = core.leader_epochs.copy()
                event = await asyncio.to_thread(storage.truncate_to, cut.offset, epochs, now_ms)
            else:
                event = await asyncio.to_thread(storage.restart_at, cut.offset, now_ms)
            await log_was_cut(self.topic_partition)
            self.step(event)

    async def swap_in(self, swap: SegmentSwap, cut_count: int, now_ms: WallMs) -> bool:
        """Replaces segments by their cleaned segment. Returns False if the log has lost them in the meantime.

        Raises LogStorageError, OSError.
        """
        async with self._one_role_at_a_time:  # prevents a truncation meanwhile
            if self.storage.cut_count != cut_count:
                return False
            await asyncio.to_thread(swap.announce)
            if not swap.install():
                await asyncio.to_thread(swap.call_off)
                return False
            await asyncio.to_thread(swap.finish)
            swap.finished(now_ms)
            return True

    def step(self, event: Event) -> None:
        """Reports any other event to the core and carries out the effects."""
        self._carry_out(self.core.step(event))

    async def lead_or_follow(self, state: PartitionState, now_ms: MonotonicMs) -> None:
        """Takes the role that the controller assigns. Raises LogStorageError.

        The epoch of a new leader is in its checkpoint file when this returns. Until then, no request may use
        the replica.
        """
        async with self._one_role_at_a_time:  # waits for a truncation of the previous role
            event = LeaderAndIsrReceived(
                state.leader,
                state.leader_epoch,
                state.partition_epoch,
                state.isr,
                state.replicas,
                now_ms,
                state.elr,
            )
            effects = self.core.step(event)
            others = [effect for effect in effects if type(effect) is not PersistLeaderEpochs]
            if len(others) < len(effects):
                self.storage.leader_epoch_checkpoint = self.core.leader_epochs.encode()
                await asyncio.to_thread(self.storage.persist_leader_epochs)
            self._carry_out(others)

    def resign(self, now_ms: MonotonicMs) -> None:
        """Ends the role, because the replica is about to be closed."""
        core = self.core
        event = LeaderAndIsrReceived(
            NO_LEADER,
            core.leader_epoch,
            core.partition_epoch,
            core.in_sync_replicas,
            core.replicas,
            now_ms,
        )
        self.step(event)

    def apply_settings(self, settings: TopicSettings) -> None:
        """Applies the topic's settings, at the start and after each change."""
        self.settings = settings
        self.append_rules = append_rules(settings)
        self._may_need_records = self.append_rules.needs_records_of_sound_batches
        self.log.config = log_config(settings)
        self.step(MinInSyncReplicasChanged(settings.min_insync_replicas))
        self.step(FlushMessagesChanged(settings.flush_messages))

    def delete_records(self, offset: int) -> int:
        """Moves the log start offset to `offset` (-1: the high watermark). Returns the log start offset."""
        self.step(DeleteRecordsReceived(offset))
        return self.core.log_start_offset

    def delete_old_segments(self, now_ms: WallMs) -> int:
        """Deletes segments by the topic's retention settings. Returns how many.

        Deletes none while another thread may be truncating the log.
        """
        if self.core.fetch_state is FetchState.TRUNCATING:
            return 0
        deleted = self.storage.delete_old_segments(
            now_ms, self.core.high_watermark, self.core.producers.snapshot
        )
        self.step(LogStartOffsetMoved(self.log.log_start_offset))
        return deleted

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is AdvanceHighWatermark:
                self._waiters.high_watermark_advanced(self.topic_partition)
            else:
                self._carry_out_rare(effect)

    def _carry_out_rare(self, effect: Effect) -> None:
        topic_partition = self.topic_partition
        match effect:
            case IndexAborted():
                self.log.index_aborted(effect.transaction)
            case AdvanceLogStartOffset():
                self.storage.increment_log_start_offset(effect.log_start_offset)
                self.step(LogStartOffsetMoved(effect.log_start_offset))
            case PersistLeaderEpochs():
                self.storage.leader_epoch_checkpoint = self.core.leader_epochs.encode()
                self.storage.persist_leader_epochs()
            case AdvanceLowWatermark():
                self._waiters.low_watermark_advanced(topic_partition)
            case ProposeIsr():
                self._isr.propose(self, effect)
            case ReportIsrChange():
                self._isr.isr_changed(topic_partition, is_expansion=effect.is_expansion)
            case StepDown():
                self._waiters.leadership_changed(topic_partition)
            case AskEpochEnd():
                self._log_work.ask_epoch_end(self, effect)
            case TruncateTo() | RestartLogAt():
                self._log_work.cut_log(self, effect, self.core.leader_epoch)
            case FlushLog():
                self._log_work.flush_log(self)
            case Refuse():
                raise _refusal(effect)
            case _:
                raise AssertionError(f"unexpected effect {effect}")


def _refusal(effect: Effect) -> KafkaError:
    assert type(effect) is Refuse
    return KafkaError(effect.error, effect.message)
