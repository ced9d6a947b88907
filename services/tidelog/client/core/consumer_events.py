"""The events and effects of a consumer's core: what it is told, and what it asks its shell to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.client.core.classic_membership import (
    ClassicRequest,
    GroupHeartbeatAnswered,
    JoinAnswered,
    LeaveGroupRequest,
    SyncAnswered,
)
from tidelog.client.core.cluster_view import MetadataReceived, PartitionLeader
from tidelog.client.core.consumed_partition import OffsetToCommit
from tidelog.client.core.fetch_session import SessionRequest
from tidelog.client.core.membership import Heartbeat, HeartbeatAnswered, LeaveHeartbeat
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import NO_SESSION
from tidelog.model.topics import TopicPartition


class FetchedPartition(NamedTuple):
    """The answer about one partition of a fetch. `aborted` has the earliest transaction last."""

    error_code: int
    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    preferred_replica: int
    leader: PartitionLeader | None


class FetchAnswered(NamedTuple):
    request_id: int
    error_code: int
    partitions: Mapping[TopicPartition, FetchedPartition]
    """In a session, only the partitions with news."""
    session_id: int = NO_SESSION


class FetchFailed(NamedTuple):
    request_id: int


class CommittedFound(NamedTuple):
    """The committed offsets and their epochs; an offset of -1 means that there is none."""

    request: LookUpCommitted
    offsets: Mapping[TopicPartition, tuple[int, int]]


class OffsetsFound(NamedTuple):
    """The offsets of the times to which positions are reset."""

    request: LookUpOffsets
    offsets: Mapping[TopicPartition, int]


class PositionCheck(NamedTuple):
    """The question whether the log of a leader contains a position (KIP-320)."""

    leader_epoch: int
    epoch: int
    """The epoch of the record before the position."""
    generation: int


class EpochEnd(NamedTuple):
    """The newest epoch up to the requested one in the leader's log, and its end. Both are -1 without one."""

    error_code: int
    epoch: int
    end_offset: int


class PositionsChecked(NamedTuple):
    """The answers of a leader. A partition without one is checked again later."""

    asked: Mapping[TopicPartition, PositionCheck]
    ends: Mapping[TopicPartition, EpochEnd]


class LookupFailed(NamedTuple):
    """Positions could not be looked up. A permanent error is raised by the next poll."""

    request: LookUpCommitted | LookUpOffsets
    error: KafkaError


class MetadataFailed(NamedTuple):
    """No broker answered a Metadata request."""


class GroupRequestFailed(NamedTuple):
    """No response to a request of the membership arrived."""

    request: Heartbeat | ClassicRequest


class AssignmentDone(NamedTuple):
    """The application knows that it has these partitions. Their records may be fetched."""

    partitions: tuple[TopicPartition, ...]


class RevocationDone(NamedTuple):
    """The application has given up the partitions of this step, or knows that it has lost them."""

    step: int


Event = (
    FetchAnswered
    | FetchFailed
    | CommittedFound
    | OffsetsFound
    | PositionsChecked
    | LookupFailed
    | MetadataReceived
    | MetadataFailed
    | HeartbeatAnswered
    | JoinAnswered
    | SyncAnswered
    | GroupHeartbeatAnswered
    | GroupRequestFailed
    | AssignmentDone
    | RevocationDone
)


class SendFetch(NamedTuple):
    """Fetch from these offsets. The values are the offset and the leader's epoch.

    The last record's epoch is not sent, as in Kafka's consumer: a leader would answer a position of a longer
    log with a diverging epoch and no error, and the position would never be reset.
    """

    request_id: int
    node_id: int
    offsets: Mapping[TopicPartition, tuple[int, int]]
    session: SessionRequest


class LookUpCommitted(NamedTuple):
    """Look up the committed offsets. The values are the generations of the partitions."""

    generations: Mapping[TopicPartition, int]


class LookUpOffsets(NamedTuple):
    """Look up the offsets of times."""

    generations: Mapping[TopicPartition, int]
    timestamps: Mapping[TopicPartition, int]


class CheckPositions(NamedTuple):
    """Ask a leader for the ends of epochs, because an earlier leader gave the records."""

    node_id: int
    checks: Mapping[TopicPartition, PositionCheck]


class TruncationFound(NamedTuple):
    """The application got records up to `position` that the log has lost from `end_offset` on. The consumer
    goes on there, or at the reset position if `end_offset` is None.
    """

    place: TopicPartition
    position: int
    end_offset: int | None


class TopicsMissing(NamedTuple):
    """Warn of topics and partitions without records, by their names, for these reasons."""

    reasons: Mapping[str, str]


class RequestMetadata(NamedTuple):
    """Ask any broker for these topics; None means all topics of the cluster."""

    topics: tuple[str, ...] | None
    has_unknown_ids: bool


class SendGroupRequest(NamedTuple):
    request: Heartbeat | ClassicRequest
    finds_coordinator: bool


class CommitConsumed(NamedTuple):
    """Commit these offsets. The commit is an automatic one."""

    offsets: Mapping[TopicPartition, OffsetToCommit]


class TopicReplaced(NamedTuple):
    """The topic was deleted, and another one has its name. The positions in it are looked up again."""

    topic: str


class RevokePartitions(NamedTuple):
    """Commit if commits are automatic, tell the application, then send RevocationDone.

    `step` tells the end of this revocation from that of an earlier one, whose callback may end later.
    """

    partitions: tuple[TopicPartition, ...]
    is_lost: bool
    step: int


class PartitionsAssigned(NamedTuple):
    """Tell the application, then send AssignmentDone."""

    partitions: tuple[TopicPartition, ...]


class LeaveGroup(NamedTuple):
    """Tell the coordinator, because the application polls too rarely. None: it finds out by itself."""

    request: LeaveHeartbeat | LeaveGroupRequest | None


class RecordsReady(NamedTuple):
    """Wake the application if it waits for records, or for an error."""


Effect = (
    SendFetch
    | LookUpCommitted
    | LookUpOffsets
    | CheckPositions
    | TruncationFound
    | TopicReplaced
    | TopicsMissing
    | RequestMetadata
    | SendGroupRequest
    | CommitConsumed
    | RevokePartitions
    | PartitionsAssigned
    | LeaveGroup
    | RecordsReady
)
