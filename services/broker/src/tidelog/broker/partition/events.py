"""What happens to a replica (events, in the past tense) and what it wants done about it (effects, in the
imperative).

Events come per batch, never per record. Offsets are logical offsets, epochs leader epochs, times
milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from tidelog.broker.partition.producer_state import CompletedTransaction, TransactionMarker
from tidelog.broker.partition.verifications import NO_GUARD
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import BatchHeader
from tidelog.records.control import EndTransactionMarker

Markers = Mapping[int, EndTransactionMarker | None]
"""Those of the control batches among some batches, by base offset."""
NO_MARKERS: Final[Markers] = MappingProxyType({})

# -- events


class LeaderAndIsrReceived(NamedTuple):
    """The controller assigned leader, epoch and ISR; `log_end_offset` is where the log stands now."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    log_end_offset: int
    elr: tuple[int, ...] = ()


class ProduceReceived(NamedTuple):
    """A validated batch that a client wants appended."""

    header: BatchHeader
    required_acks: int  # 0, 1 or -1 (all)
    guard: int = NO_GUARD  # that of the `VerifyTransaction` which came to a good end


class VerificationAsked(NamedTuple):
    """A client wants a transactional batch appended: must its coordinator be asked first? `bumps_epoch`: the
    client speaks transaction version 2.
    """

    header: BatchHeader
    bumps_epoch: bool


class VerificationRefused(NamedTuple):
    """The coordinator could not be asked, so that the batch has to come again."""

    header: BatchHeader
    error: ErrorCode


class MarkerReceived(NamedTuple):
    """A transaction coordinator ends a transaction in this partition."""

    marker: TransactionMarker


class ShardAppendReceived(NamedTuple):
    """The owner of the shard whose partition this is wants these batches appended at `expected_offset`,
    from which on they are numbered.
    """

    headers: Sequence[BatchHeader]
    markers: Markers
    leader_epoch: int
    expected_offset: int


class BatchesAppended(NamedTuple):
    """As BatchAppended, of several that stand one after the other."""

    headers: Sequence[BatchHeader]
    markers: Markers


class ProduceTurnedAway(NamedTuple):
    """A validated batch came while the role is changing: it has to come again."""

    header: BatchHeader


class AppendFailed(NamedTuple):
    """The disk refused a batch that was to be appended: nothing of it is in the log, it will come again."""

    header: BatchHeader


class BatchAppended(NamedTuple):
    """The batch stands in the log; `header` as it was appended, offset and epoch set. `marker` is that of a
    control batch.
    """

    header: BatchHeader
    marker: EndTransactionMarker | None = None


class DeleteRecordsReceived(NamedTuple):
    """A client wants everything below `offset` gone; -1 means up to the high watermark."""

    offset: int


class LogStartOffsetMoved(NamedTuple):
    """Retention or DeleteRecords removed what was below `log_start_offset`."""

    log_start_offset: int


class MinInSyncReplicasChanged(NamedTuple):
    """The topic's `min.insync.replicas`."""

    min_in_sync_replicas: int


class FollowerFetched(NamedTuple):
    """A follower asked for records from `fetch_offset` on, so it has everything below. The caller has
    compared the leader epochs and found that the logs agree up to there.
    """

    replica_id: int
    broker_epoch: int
    fetch_offset: int
    log_start_offset: int


class IsrCheckDue(NamedTuple):
    """The tick of the task `isr-expiration`."""


class IsrWritten(NamedTuple):
    """The metadata store took the proposal; `partition_epoch` is the state's new revision."""

    proposal: ProposeIsr
    partition_epoch: int


class IsrRefused(NamedTuple):
    """The proposal is surely not written. `state` is what stands there (at revision `partition_epoch`), None
    if nothing does.
    """

    proposal: ProposeIsr
    state: IsrState | None
    partition_epoch: int


class IsrState(NamedTuple):
    """What a leader has to know of its partition's state key."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()


class EpochEndReceived(NamedTuple):
    """The leader's answer to OffsetsForLeaderEpoch; epoch and offset -1 where it knows none.

    `leader_epoch` is that of the role in which it was asked, `asked_epoch` the one it was asked about.
    """

    leader_epoch: int
    asked_epoch: int
    epoch: int
    end_offset: int


class EpochDiverged(NamedTuple):
    """A Fetch was answered that the epoch fetched last ends earlier in the leader's log."""

    leader_epoch: int
    epoch: int
    end_offset: int


class Truncated(NamedTuple):
    """The log was cut, or begun anew, and holds these offsets now."""

    log_start_offset: int
    log_end_offset: int


class RecordsReceived(NamedTuple):
    """A Fetch's answer for this partition: its batches, maybe none, and the leader's own offsets."""

    leader_epoch: int
    headers: Sequence[BatchHeader]
    high_watermark: int
    log_start_offset: int


class ReceivedAppended(NamedTuple):
    """The batches stand in the log as they came."""

    headers: Sequence[BatchHeader]
    high_watermark: int
    log_start_offset: int
    markers: Markers = NO_MARKERS


class FetchedOutOfRange(NamedTuple):
    """The leader's log does not reach the place where this one ends."""

    leader_epoch: int
    leader_log_start_offset: int
    leader_log_end_offset: int


Event = (
    LeaderAndIsrReceived
    | ProduceReceived
    | ProduceTurnedAway
    | AppendFailed
    | VerificationAsked
    | VerificationRefused
    | MarkerReceived
    | ShardAppendReceived
    | BatchAppended
    | BatchesAppended
    | DeleteRecordsReceived
    | LogStartOffsetMoved
    | MinInSyncReplicasChanged
    | FollowerFetched
    | IsrCheckDue
    | IsrWritten
    | IsrRefused
    | EpochEndReceived
    | EpochDiverged
    | Truncated
    | RecordsReceived
    | ReceivedAppended
    | FetchedOutOfRange
)

# -- effects


class AppendBatch(NamedTuple):
    """Write the batch with this base offset and leader epoch."""

    base_offset: int
    leader_epoch: int


class VerifyTransaction(NamedTuple):
    """Ask the coordinator, then let the batch come back with this guard."""

    guard: int


class IndexAborted(NamedTuple):
    """Note the transaction, whose marker was just appended, in the `.txnindex` of the segment."""

    transaction: CompletedTransaction


class AnswerDuplicate(NamedTuple):
    """The batch is in the log already: answer as it was answered first."""

    base_offset: int
    last_offset: int
    timestamp: int


class Refuse(NamedTuple):
    """Answer with this error; nothing changed."""

    error: ErrorCode
    message: str


class AdvanceHighWatermark(NamedTuple):
    """Readers and waiting producers may see up to here now."""

    high_watermark: int


class PersistLeaderEpochs(NamedTuple):
    """Write the leader-epoch checkpoint and flush it, before anything else of the new epoch counts."""


class AdvanceLogStartOffset(NamedTuple):
    """Nothing below is readable from now on; segments wholly below may go."""

    log_start_offset: int


class ProposeIsr(NamedTuple):
    """Write this ISR to the partition's state key, if that is still at revision `partition_epoch` and each
    broker `added` still at its epoch (KIP-903).
    """

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    added: tuple[tuple[int, int], ...]  # (broker id, broker epoch)


class ReportIsrChange(NamedTuple):
    """An ISR change has taken effect: count it and tell the controller (SPEC C5)."""

    is_expansion: bool


class AdvanceLowWatermark(NamedTuple):
    """A follower's log start moved; whoever waits for the low watermark may look again."""


class StepDown(NamedTuple):
    """The store shows a later leader epoch: this broker leads no longer, though nobody has told it yet."""


class AskEpochEnd(NamedTuple):
    """Ask the leader where `epoch` ends in its log (OffsetsForLeaderEpoch), naming `leader_epoch` as the
    current one.
    """

    leader_epoch: int
    epoch: int


class TruncateTo(NamedTuple):
    """Cut the log here, then report Truncated."""

    offset: int


class RestartLogAt(NamedTuple):
    """Drop the whole log and let it begin here, then report Truncated."""

    offset: int


class AppendReceived(NamedTuple):
    """Write the batches just received as they are."""


Effect = (
    AppendBatch
    | VerifyTransaction
    | IndexAborted
    | AnswerDuplicate
    | Refuse
    | AdvanceHighWatermark
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
