"""What happens to a replica (events, in the past tense) and what it wants done about it (effects, in the
imperative).

Events come per batch, never per record. Offsets are logical offsets, epochs leader epochs, times
milliseconds.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import BatchHeader

# -- events


class LeaderAndIsrReceived(NamedTuple):
    """The controller assigned leader, epoch and ISR; `log_end_offset` is where the log stands now."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    log_end_offset: int


class ProduceReceived(NamedTuple):
    """A validated batch that a client wants appended."""

    header: BatchHeader
    required_acks: int  # 0, 1 or -1 (all)


class BatchAppended(NamedTuple):
    """The batch stands in the log; `header` as it was appended, offset and epoch set."""

    header: BatchHeader


class DeleteRecordsReceived(NamedTuple):
    """A client wants everything below `offset` gone; -1 means up to the high watermark."""

    offset: int


class LogStartOffsetMoved(NamedTuple):
    """Retention or DeleteRecords removed what was below `log_start_offset`."""

    log_start_offset: int


class MinInSyncReplicasChanged(NamedTuple):
    """The topic's `min.insync.replicas`."""

    min_in_sync_replicas: int


Event = (
    LeaderAndIsrReceived
    | ProduceReceived
    | BatchAppended
    | DeleteRecordsReceived
    | LogStartOffsetMoved
    | MinInSyncReplicasChanged
)

# -- effects


class AppendBatch(NamedTuple):
    """Write the batch with this base offset and leader epoch."""

    base_offset: int
    leader_epoch: int


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


Effect = (
    AppendBatch
    | AnswerDuplicate
    | Refuse
    | AdvanceHighWatermark
    | PersistLeaderEpochs
    | AdvanceLogStartOffset
)
