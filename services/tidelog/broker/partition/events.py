"""The events that a replica's core receives (in the past tense) and the effects that it requests
(imperative).

An event stands for a batch or for something rarer, never for a record. Offsets are logical offsets and
epochs are leader epochs. An event whose consequences depend on the time contains the time: `wall_ms` for
batches, from which the age of their producers is computed; `monotonic_ms` for roles, followers' fetches and
the ISR, which must not depend on a clock that can jump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from tidelog.broker.partition.guards import NO_GUARD
from tidelog.broker.partition.producer_state import CompletedTransaction, ProducerState, TransactionMarker
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import BatchHeader, EndTransactionMarker

Markers = Mapping[int, EndTransactionMarker | None]
"""The markers of the control batches in a sequence of batches, by base offset."""
NO_MARKERS: Final[Markers] = MappingProxyType({})


class LeaderAndIsrReceived(NamedTuple):
    """The controller assigned leader, epoch and ISR."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    monotonic_ms: MonotonicMs
    elr: tuple[int, ...] = ()


class MinInSyncReplicasChanged(NamedTuple):
    """The topic's `min.insync.replicas` is now this."""

    min_in_sync_replicas: int


class FlushMessagesChanged(NamedTuple):
    """The topic's `flush.messages` is now this."""

    flush_messages: int


class EligibleLeadersSwitched(NamedTuple):
    """The feature eligible.leader.replicas.version is now on or off."""

    is_on: bool


class ProduceReceived(NamedTuple):
    """A client wants a validated batch appended.

    `required_acks` is 0, 1 or -1 (all). `guard` is that of the `VerifyTransaction` that succeeded before.
    """

    header: BatchHeader
    required_acks: int
    wall_ms: WallMs
    guard: int = NO_GUARD


class ProduceDuringRoleChange(NamedTuple):
    """A validated batch arrived while the replica's role is changing. The client has to send it again."""

    header: BatchHeader
    wall_ms: WallMs


class VerificationAsked(NamedTuple):
    """A client wants a transactional batch appended: is a question to its coordinator necessary first?

    `bumps_epoch` means that the client uses transaction version 2.
    """

    header: BatchHeader
    bumps_epoch: bool
    wall_ms: WallMs


class VerificationRefused(NamedTuple):
    """The coordinator could not be asked. The client has to send the batch again."""

    header: BatchHeader
    error: ErrorCode
    wall_ms: WallMs


class MarkerReceived(NamedTuple):
    """A transaction coordinator ends a transaction in this partition."""

    marker: TransactionMarker


class ShardAppendReceived(NamedTuple):
    """The owner of this shard's partition wants these batches appended at `expected_offset`.

    The batches are already numbered from there.
    """

    headers: Sequence[BatchHeader]
    markers: Markers
    leader_epoch: int
    expected_offset: int


class BatchAppended(NamedTuple):
    """The log has the batch. `header` has its final offset and epoch. `marker` is that of a control batch."""

    header: BatchHeader
    wall_ms: WallMs
    marker: EndTransactionMarker | None = None


class BatchesAppended(NamedTuple):
    """The log has these consecutive batches of a shard's owner."""

    headers: Sequence[BatchHeader]
    markers: Markers
    wall_ms: WallMs


class AppendFailed(NamedTuple):
    """The disk failed, and the log has nothing of this batch. The client has to send it again."""

    header: BatchHeader
    wall_ms: WallMs


class DeleteRecordsReceived(NamedTuple):
    """A client wants everything below `offset` deleted; -1 means up to the high watermark."""

    offset: int


class FollowerFetched(NamedTuple):
    """A follower asked for records from `fetch_offset`, so it has everything below.

    The caller has compared the leader epochs: the logs agree up to there.
    """

    replica_id: int
    broker_epoch: int
    fetch_offset: int
    log_start_offset: int
    monotonic_ms: MonotonicMs


class IsrCheckDue(NamedTuple):
    """The task `isr-expiration` asks for followers that fell behind."""

    monotonic_ms: MonotonicMs


class IsrWritten(NamedTuple):
    """The metadata store accepted the proposal. `partition_epoch` is the new revision of the state."""

    proposal: ProposeIsr
    partition_epoch: int


class IsrRefused(NamedTuple):
    """The proposal is certainly not written.

    `state` is the stored state (at revision `partition_epoch`), None if there is none.
    """

    proposal: ProposeIsr
    state: IsrState | None
    partition_epoch: int
    monotonic_ms: MonotonicMs


class IsrState(NamedTuple):
    """The part of a partition's stored state that its leader needs."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()


class EpochEndReceived(NamedTuple):
    """The leader answered OffsetsForLeaderEpoch; epoch and offset are -1 if it knows no such epoch.

    `leader_epoch` is the epoch of the role in which the question was asked, `asked_epoch` its subject.
    """

    leader_epoch: int
    asked_epoch: int
    epoch: int
    end_offset: int


class EpochDiverged(NamedTuple):
    """The leader answered a Fetch: in its log, the epoch that was fetched last ends earlier."""

    leader_epoch: int
    epoch: int
    end_offset: int


class RecordsReceived(NamedTuple):
    """The leader answered a Fetch with these batches, possibly none, and with its own offsets."""

    leader_epoch: int
    headers: Sequence[BatchHeader]
    high_watermark: int
    log_start_offset: int


class ReceivedAppended(NamedTuple):
    """The log has the batches that the leader sent."""

    headers: Sequence[BatchHeader]
    high_watermark: int
    log_start_offset: int
    wall_ms: WallMs
    markers: Markers = NO_MARKERS


class FetchedOutOfRange(NamedTuple):
    """The leader's log does not contain the offset at which this log ends."""

    leader_epoch: int
    leader_log_start_offset: int
    leader_log_end_offset: int


class LogStartOffsetMoved(NamedTuple):
    """Retention or DeleteRecords removed everything below `log_start_offset`."""

    log_start_offset: int


class Flushed(NamedTuple):
    """Everything below `recovery_point` is on the disk. It is the log's present recovery point."""

    recovery_point: int


class Truncated(NamedTuple):
    """The log was cut and now has these offsets.

    `producers` is the state of the producers that the remaining batches show, None if no batch was cut.
    """

    log_start_offset: int
    log_end_offset: int
    producers: ProducerState | None = None


class LogRestarted(NamedTuple):
    """The log dropped all its batches. It is empty and begins at `log_start_offset`."""

    log_start_offset: int


Event = (
    LeaderAndIsrReceived
    | MinInSyncReplicasChanged
    | FlushMessagesChanged
    | EligibleLeadersSwitched
    | ProduceReceived
    | ProduceDuringRoleChange
    | VerificationAsked
    | VerificationRefused
    | MarkerReceived
    | ShardAppendReceived
    | BatchAppended
    | BatchesAppended
    | AppendFailed
    | DeleteRecordsReceived
    | FollowerFetched
    | IsrCheckDue
    | IsrWritten
    | IsrRefused
    | EpochEndReceived
    | EpochDiverged
    | RecordsReceived
    | ReceivedAppended
    | FetchedOutOfRange
    | LogStartOffsetMoved
    | Flushed
    | Truncated
    | LogRestarted
)


class AppendBatch(NamedTuple):
    """Write the batch with this base offset and leader epoch."""

    base_offset: int
    leader_epoch: int


class VerifyTransaction(NamedTuple):
    """Ask the coordinator. The batch must come back with this guard."""

    guard: int


class IndexAborted(NamedTuple):
    """Add the transaction, whose marker was just appended, to the `.txnindex` of the segment."""

    transaction: CompletedTransaction


class AnswerDuplicate(NamedTuple):
    """Answer as for the first time: the batch already is in the log."""

    base_offset: int
    last_offset: int
    timestamp: int


class Refuse(NamedTuple):
    """Answer with this error. Nothing has changed."""

    error: ErrorCode
    message: str


class AdvanceHighWatermark(NamedTuple):
    """Wake readers and waiting producers: everything up to here is visible."""

    high_watermark: int


class FlushLog(NamedTuple):
    """Flush the log in a thread, then report Flushed. The high watermark waits for it (`flush.messages`)."""


class PersistLeaderEpochs(NamedTuple):
    """Write the leader-epoch checkpoint before anything else of the new epoch counts."""


class AdvanceLogStartOffset(NamedTuple):
    """Let the log begin here: nothing below is readable, and segments wholly below can be deleted."""

    log_start_offset: int


class ProposeIsr(NamedTuple):
    """Write this ISR to the partition's state key.

    Do so only if the key is still at revision `partition_epoch` and each broker in `added`, given as
    (broker id, broker epoch), is still at its epoch (KIP-903).
    """

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    added: tuple[tuple[int, int], ...]


class ReportIsrChange(NamedTuple):
    """Count an ISR change that has taken effect, and notify the controller."""

    is_expansion: bool


class AdvanceLowWatermark(NamedTuple):
    """Wake requests that wait for the low watermark: the log of a follower begins elsewhere."""


class StepDown(NamedTuple):
    """Fail the requests that wait here: the store has a later leader epoch, so another broker leads."""


class AskEpochEnd(NamedTuple):
    """Ask the leader of `leader_epoch` where `epoch` ends in its log (OffsetsForLeaderEpoch)."""

    leader_epoch: int
    epoch: int


class TruncateTo(NamedTuple):
    """Cut the log here, then report Truncated."""

    offset: int


class RestartLogAt(NamedTuple):
    """Drop the whole log and let it begin here, then report LogRestarted."""

    offset: int


class AppendReceived(NamedTuple):
    """Write the received batches unchanged."""


Effect = (
    AppendBatch
    | VerifyTransaction
    | IndexAborted
    | AnswerDuplicate
    | Refuse
    | AdvanceHighWatermark
    | FlushLog
    | PersistLeaderEpochs
    | AdvanceLogStartOffset
    | ProposeIsr
    | ReportIsrChange
    | AdvanceLowWatermark
    | StepDown
    | AskEpochEnd
    | TruncateTo
    | RestartLogAt
    | AppendReceived
)
