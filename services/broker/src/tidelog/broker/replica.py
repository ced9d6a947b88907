"""One replica on this broker: the partition's core and its log, and the requests that touch both.

The core decides, the log does the I/O, this shell carries effects from one to the other. Everything here
runs on the event loop.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.broker.log.cleaning.segment_swap import SegmentSwap
from tidelog.broker.log.errors import LogStorageError
from tidelog.broker.log.file_range import FileRange
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.partition.append_validation import validate_batches
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
    FollowerFetched,
    IndexAborted,
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
)
from tidelog.broker.partition.follower_role import FetchState
from tidelog.broker.partition.producer_state import TransactionMarker
from tidelog.broker.partition.received_validation import control_markers, numbered_headers
from tidelog.broker.partition.record_validation import validate_records
from tidelog.broker.partition.verifications import NO_GUARD
from tidelog.broker.replica_environment import ReplicaEnvironment
from tidelog.broker.topic_rules import append_rules, log_config
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import (
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    assign_offset_and_epoch,
    parse_header,
    set_log_append_time,
)
from tidelog.records.builder import build_end_transaction_batch
from tidelog.records.control import EndTransactionMarker
from tidelog.rpc.broker_commands import NO_LEADER, PartitionState
from tidelog.runtime.telemetry import TopicTraffic
from tidelog.runtime.topic_settings import TopicSettings


class Appended(NamedTuple):
    """What the producer is told. `required_offset` is what acks=all waits for: the high watermark reaching
    it.
    """

    base_offset: int
    required_offset: int
    log_append_time_ms: int  # -1 unless the topic uses LogAppendTime


class Replica:
    """Raises KafkaError with Kafka's code for whatever is refused."""

    __slots__ = (
        "_environment",
        "_may_need_records",
        "_one_role_at_a_time",
        "append_rules",
        "core",
        "is_settling",
        "log",
        "settings",
        "topic_id",
        "topic_partition",
        "traffic",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        core: PartitionCore,
        log: PartitionLog,
        settings: TopicSettings,
        traffic: TopicTraffic,
        environment: ReplicaEnvironment,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.core = core
        self.log = log
        self.traffic = traffic
        self._environment = environment
        self._one_role_at_a_time = asyncio.Lock()
        self.is_settling = False
        """A new role is on its way to the disk: nothing is appended yet."""
        self.apply_settings(settings, now_ms=0)

    # -- produce

    def append(
        self,
        records: memoryview,
        required_acks: int,
        produce_version: int,
        now_ms: int,
        guard: int = NO_GUARD,
    ) -> Appended:
        """Append the one batch of a Produce request. Its bytes are changed in place (offset, epoch, time)
        and not kept. `guard`: that of the transaction's verification.
        """
        rules = self.append_rules
        header = validate_batches(records, rules=rules, produce_version=produce_version, now_ms=now_ms)
        if self._may_need_records and rules.needs_records(header):
            records, header = validate_records(records, header, rules=rules, now_ms=now_ms)
        elif len(records) != header.batch_length + LOG_OVERHEAD_BYTES:
            records = records[: header.size_bytes]  # a cut-off batch behind the first is dropped, as in Kafka
        asked = (
            ProduceTurnedAway(header) if self.is_settling else ProduceReceived(header, required_acks, guard)
        )
        decision = self.core.step(asked, now_ms)[0]
        if type(decision) is AppendBatch:
            try:
                appended = self._append_decided(records, header, decision, None, now_ms)
            except LogStorageError:
                self.core.step(AppendFailed(header), now_ms)
                raise
            self.traffic.produced(header.record_count, len(records))
            return appended
        if type(decision) is AnswerDuplicate:
            return Appended(decision.base_offset, decision.last_offset + 1, NO_TIMESTAMP)
        assert type(decision) is Refuse
        raise KafkaError(decision.error, decision.message)

    def _append_decided(
        self,
        records: memoryview,
        header: BatchHeader,
        decision: AppendBatch,
        marker: EndTransactionMarker | None,
        now_ms: int,
    ) -> Appended:
        base_offset = decision.base_offset
        assign_offset_and_epoch(records, 0, base_offset, decision.leader_epoch)
        header = tuple.__new__(BatchHeader, (base_offset, header[1], decision.leader_epoch, *header[3:]))
        log_append_time_ms = NO_TIMESTAMP
        if self.append_rules.is_log_append_time:
            header = set_log_append_time(records, header, 0, now_ms)
            log_append_time_ms = now_ms
        self.log.append(records, header, now_ms)
        self._carry_out(self.core.step(BatchAppended(header, marker), now_ms), now_ms)
        if len(self.core.replicas) > 1:
            self._environment.log_end_advanced(self.topic_partition)
        return Appended(base_offset, self.core.log_end_offset, log_append_time_ms)

    # -- coordinators

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        transaction_version: int,
        now_ms: int,
    ) -> Appended:
        """End a producer's transaction here: its coordinator says so. It counts once the high watermark has
        reached `required_offset`. May be repeated.
        """
        self._refuse_while_settling()
        received = TransactionMarker(producer_id, producer_epoch, marker, transaction_version)
        decision = self.core.step(MarkerReceived(received), now_ms)[0]
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
        self, batches: memoryview, leader_epoch: int, expected_offset: int, now_ms: int
    ) -> int:
        """Append what the owner of this shard's partition decided, whole batches; the log end after them.
        Refused unless the log ends at `expected_offset` in `leader_epoch`, and as acks=all would be.
        """
        self._refuse_while_settling()
        records = memoryview(bytearray(batches))
        headers = numbered_headers(records, expected_offset, leader_epoch)
        markers = control_markers(records, headers)
        event = ShardAppendReceived(headers, markers, leader_epoch, expected_offset)
        decision = self.core.step(event, now_ms)[0]
        if type(decision) is not AppendBatch:
            raise _refusal(decision)
        while headers:  # more than once only if a segment is full in between
            count = self.log.append_received(records, headers, now_ms)
            written = sum(header.size_bytes for header in headers[:count])
            records = records[written:]
            self._carry_out(self.core.step(BatchesAppended(headers[:count], markers), now_ms), now_ms)
            headers = headers[count:]
        if len(self.core.replicas) > 1:
            self._environment.log_end_advanced(self.topic_partition)
        return self.core.log_end_offset

    def _refuse_while_settling(self) -> None:
        if self.is_settling:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker's role for the partition is changing"
            )

    # -- fetch

    def read(
        self, fetch_offset: int, max_bytes: int, isolation_level: int, *, at_least_one_batch: bool
    ) -> FileRange | None:
        """Where the batches from `fetch_offset` on lie, as far as a client may see them."""
        core = self.core
        if not core.log_start_offset <= fetch_offset <= core.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"it holds {core.log_start_offset} to {core.log_end_offset}, not {fetch_offset}",
            )
        limit = core.read_limit(isolation_level)
        if fetch_offset >= limit:
            return None
        return self.log.read(fetch_offset, max_bytes, limit, at_least_one_batch=at_least_one_batch)

    def read_for_follower(
        self, fetch_offset: int, max_bytes: int, *, at_least_one_batch: bool
    ) -> FileRange | None:
        """As `read`, up to the log's end: inside the cluster there is no high watermark (SPEC A7)."""
        return self.log.read(
            fetch_offset, max_bytes, self.core.log_end_offset, at_least_one_batch=at_least_one_batch
        )

    # -- replication

    def follower_fetched(self, event: FollowerFetched, now_ms: int) -> None:
        """On the leader: a follower has everything below the offset it fetches from."""
        effects = self.core.step(event, now_ms)
        if effects:
            self._carry_out(effects, now_ms)

    def append_received(
        self,
        records: memoryview,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
        now_ms: int,
    ) -> bool:
        """On a follower: what the leader answered to a fetch, `records` being the whole batches of `headers`
        (checked before). False if a leader epoch begins with them: then `flush_leader_epochs` comes first,
        and the same again.
        """
        core = self.core
        effects = core.step(RecordsReceived(leader_epoch, headers, high_watermark, log_start_offset), now_ms)
        if not effects:
            return True  # another leader by now
        first = effects[0]
        if type(first) is PersistLeaderEpochs:
            return False
        if type(first) is Refuse:
            raise KafkaError(first.error, first.message)
        if type(first) is RestartLogAt:
            self._carry_out(effects, now_ms)
            return True
        if headers:
            # Fewer only if the disk refused in between: what is missing is fetched again.
            count = self.log.append_received(records, headers, now_ms)
            headers = headers[:count]
        markers = control_markers(records, headers)
        effects = core.step(ReceivedAppended(headers, high_watermark, log_start_offset, markers), now_ms)
        if effects:
            self._carry_out(effects, now_ms)
        return True

    async def flush_leader_epochs(self) -> None:
        """The checkpoint is on disk before a batch of a new epoch counts (SPEC C8).

        Raises LogStorageError.
        """
        async with self._one_role_at_a_time:
            await asyncio.to_thread(self.log.persist_leader_epochs, syncs=True)

    async def cut_log(self, cut: TruncateTo | RestartLogAt, leader_epoch: int, now_ms: int) -> None:
        """Carry out a truncation that the core asked for in `leader_epoch`. Raises LogStorageError."""
        async with self._one_role_at_a_time:
            core, log = self.core, self.log
            if core.leader_epoch != leader_epoch or core.fetch_state is not FetchState.TRUNCATING:
                return
            if type(cut) is TruncateTo:
                await asyncio.to_thread(log.truncate_to, cut.offset, now_ms)
            else:
                await asyncio.to_thread(log.truncate_fully_and_start_at, cut.offset, now_ms)
            self.step(Truncated(log.log_start_offset, log.log_end_offset), now_ms)

    async def swap_in(self, swap: SegmentSwap, cut_count: int, now_ms: int) -> bool:
        """Put a cleaned segment in the place of its sources; False if the log was cut or lost them since.
        Raises LogStorageError, OSError.
        """
        async with self._one_role_at_a_time:  # nothing is truncated meanwhile
            log = self.log
            if log.cut_count != cut_count:
                return False
            await asyncio.to_thread(swap.announce)
            if not swap.install():
                await asyncio.to_thread(swap.call_off)
                return False
            await asyncio.to_thread(swap.finish)
            swap.finished(now_ms)
            return True

    def step(self, event: Event, now_ms: int) -> None:
        """Any other event; what follows from it is carried out."""
        self._carry_out(self.core.step(event, now_ms), now_ms)

    # -- what the controller says

    async def lead_or_follow(self, state: PartitionState, now_ms: int) -> None:
        """Take the role the controller gives. Raises LogStorageError.

        A new leader's epoch is on disk when this returns; until then nobody may be let at the replica.
        """
        async with self._one_role_at_a_time:  # a truncation of the role before comes to its end
            event = LeaderAndIsrReceived(
                state.leader,
                state.leader_epoch,
                state.partition_epoch,
                state.isr,
                state.replicas,
                self.core.log_end_offset,
                state.elr,
            )
            effects = self.core.step(event, now_ms)
            if any(type(effect) is PersistLeaderEpochs for effect in effects):
                await asyncio.to_thread(self.log.persist_leader_epochs)
            self._carry_out(effects, now_ms)

    def resign(self, now_ms: int) -> None:
        """Lead no longer: it is about to be closed."""
        core = self.core
        event = LeaderAndIsrReceived(
            NO_LEADER,
            core.leader_epoch,
            core.partition_epoch,
            core.in_sync_replicas,
            core.replicas,
            core.log_end_offset,
        )
        self._carry_out(core.step(event, now_ms), now_ms)

    def apply_settings(self, settings: TopicSettings, now_ms: int) -> None:
        self.settings = settings
        self.append_rules = append_rules(settings)
        self._may_need_records = self.append_rules.may_need_records
        self.log.config = log_config(settings)
        self._carry_out(
            self.core.step(MinInSyncReplicasChanged(settings.min_insync_replicas), now_ms), now_ms
        )

    # -- what is removed

    def delete_records(self, offset: int, now_ms: int) -> int:
        """Move the log start offset to `offset` (-1: the high watermark); returns the low watermark."""
        self._carry_out(self.core.step(DeleteRecordsReceived(offset), now_ms), now_ms)
        return self.core.log_start_offset

    def delete_old_segments(self, now_ms: int) -> int:
        """Retention by time and size (SPEC B7); returns how many segments went. None while another thread
        may be cutting the log.
        """
        if self.core.fetch_state is FetchState.TRUNCATING:
            return 0
        deleted = self.log.delete_old_segments(now_ms, self.core.high_watermark)
        self._carry_out(self.core.step(LogStartOffsetMoved(self.log.log_start_offset), now_ms), now_ms)
        return deleted

    def _carry_out(self, effects: list[Effect], now_ms: int) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is AdvanceHighWatermark:
                self._environment.high_watermark_advanced(self.topic_partition)
            elif kind is not PersistLeaderEpochs:
                self._carry_out_rare(effect, now_ms)

    def _carry_out_rare(self, effect: Effect, now_ms: int) -> None:
        environment, topic_partition = self._environment, self.topic_partition
        match effect:
            case IndexAborted():
                self.log.index_aborted(effect.transaction)
            case AdvanceLogStartOffset():
                self.log.increment_log_start_offset(effect.log_start_offset)
                self.core.step(LogStartOffsetMoved(effect.log_start_offset), now_ms)
            case AdvanceLowWatermark():
                environment.low_watermark_advanced(topic_partition)
            case ProposeIsr():
                environment.propose_isr(self, effect)
            case ReportIsrChange():
                environment.isr_changed(topic_partition, is_expansion=effect.is_expansion)
            case StepDown():
                environment.stepped_down(topic_partition)
            case AskEpochEnd():
                environment.ask_epoch_end(self, effect)
            case TruncateTo() | RestartLogAt():
                environment.cut_log(self, effect, self.core.leader_epoch)
            case Refuse():
                raise KafkaError(effect.error, effect.message)
            case _:
                raise AssertionError(f"{effect} is nobody's to carry out here")


def _refusal(effect: Effect) -> KafkaError:
    assert type(effect) is Refuse
    return KafkaError(effect.error, effect.message)
