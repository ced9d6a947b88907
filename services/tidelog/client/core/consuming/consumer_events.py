"""The events and effects of a consumer's core: what it is told, and what it asks its shell to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from tidelog.client.core.cluster_view import FETCHED_PARTITIONS, EpochEnd, MetadataReceived, PartitionLeader
from tidelog.client.core.consuming.classic_membership import (
    ClassicRequest,
    GroupHeartbeatAnswered,
    JoinAnswered,
    LeaveGroupRequest,
    SyncAnswered,
)
from tidelog.client.core.consuming.consumed_partition import OffsetToCommit
from tidelog.client.core.consuming.membership import Heartbeat, HeartbeatAnswered, LeaveHeartbeat
from tidelog.client.core.consuming.records import ConsumerRecord
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import FIRST_INCREMENTAL_EPOCH, INITIAL_EPOCH, NO_SESSION, next_epoch
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition


class SessionRequest(NamedTuple):
    """The part of a fetch request that belongs to its session."""

    session_id: int
    epoch: int
    changed: tuple[TopicPartition, ...]
    """The partitions that the broker does not know, or knows with another offset or leader epoch."""
    forgotten: tuple[TopicPartition, ...]
    read: tuple[TopicPartition, ...]
    """The wanted partitions that the broker reads from the wanted offsets."""
    topic_ids: Mapping[str, UUID]
    """The ids of all topics of the request and the response."""

    @property
    def has_ids(self) -> bool:
        return ZERO_TOPIC_ID not in self.topic_ids.values()


class FetchSession:
    """The state of one session. One request is in flight at a time."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._known: dict[TopicPartition, tuple[int, int]] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._left: dict[TopicPartition, None] = {}
        """The partitions for which the last request had no room."""

    def request(
        self, wanted: Mapping[TopicPartition, tuple[int, int]], topic_ids: Mapping[str, UUID]
    ) -> SessionRequest:
        """Returns what to send so that the broker reads exactly these partitions, with their offsets and
        leader epochs. What exceeds FETCHED_PARTITIONS is left to the next requests, and comes first there.
        """
        ids = {place.topic: topic_ids.get(place.topic, ZERO_TOPIC_ID) for place in wanted}
        if any(ids.get(topic, known) != known for topic, known in self._topic_ids.items()):
            self.failed()  # a topic was deleted and created again
        if (ZERO_TOPIC_ID in ids.values()) != (ZERO_TOPIC_ID in self._topic_ids.values()):
            self.failed()  # another version of the request names topics otherwise
        if self._epoch == INITIAL_EPOCH:
            self._known = {}
            self._topic_ids = {}
        known = self._known
        changed = [place for place, position in wanted.items() if known.get(place) != position]
        unwanted = [place for place in known if place not in wanted]
        forgotten = unwanted[:FETCHED_PARTITIONS]
        if self._left:  # they come first, in their order
            turns = {place: turn for turn, place in enumerate(self._left)}
            changed.sort(key=lambda place: turns.get(place, len(turns)))
        room = FETCHED_PARTITIONS - len(forgotten)
        self._left = dict.fromkeys(changed[room:])
        read = tuple(place for place in wanted if place not in self._left) if self._left else tuple(wanted)
        for place in forgotten:
            del known[place]
        for place in changed[:room]:
            known[place] = wanted[place]
        all_ids = {**self._topic_ids, **ids}
        self._topic_ids = ids if len(forgotten) == len(unwanted) else all_ids
        return SessionRequest(
            self._session_id, self._epoch, tuple(changed[:room]), tuple(forgotten), read, all_ids
        )

    def answered(self, session_id: int) -> None:
        """The broker took the request."""
        if self._epoch == INITIAL_EPOCH:
            self._session_id = session_id
            self._epoch = INITIAL_EPOCH if session_id == NO_SESSION else FIRST_INCREMENTAL_EPOCH
        else:
            self._epoch = next_epoch(self._epoch)

    def refused(self, code: int) -> None:
        """The broker refused the request. The next one opens another session."""
        self.failed()
        if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._session_id = NO_SESSION

    def failed(self) -> None:
        """No response arrived. The next request opens another session and closes this one."""
        self._epoch = INITIAL_EPOCH


class FetchedPartition(NamedTuple):
    """The answer about one partition of a fetch. `aborted` has the first offset and the producer id of each
    aborted transaction.
    """

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


class AcknowledgeType(IntEnum):
    """The fate of a record."""

    GAP = 0
    """The offset has no record. The client says this by itself."""
    ACCEPT = 1
    """The record was processed."""
    RELEASE = 2
    """Another member shall get the record."""
    REJECT = 3
    """The record cannot be processed. Nobody gets it again."""


class AcknowledgedBatch(NamedTuple):
    """Adjacent offsets. There is one type for all of them, or one for each."""

    first_offset: int
    last_offset: int
    types: tuple[int, ...]


Acknowledged = dict[TopicPartition, dict[int, int]]
"""Types by offset, for each partition."""


class DeliveredRecord(NamedTuple):
    """A record that the broker gave to this member. The first delivery has the count 1."""

    place: TopicPartition
    record: ConsumerRecord[Any, Any]
    delivery_count: int


class ShareSession:
    """The state of one session."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.epoch: int = INITIAL_EPOCH
        self.generation: int = 0
        """It changes when the broker forgets the session, and with it what it gave."""
        self.partitions: set[TopicPartition] = set()
        self.topic_ids: dict[str, UUID] = {}
        """The ids of the topics of `partitions`."""
        self.is_in_flight: bool = False
        self.not_before_ms = 0
        self.acknowledgements: Acknowledged = {}
        """The acknowledgements to send."""
        self.in_flight: Acknowledged = {}

    @property
    def is_open(self) -> bool:
        return self.epoch != INITIAL_EPOCH

    def acknowledge(self, place: TopicPartition, types: dict[int, int]) -> None:
        self.acknowledgements.setdefault(place, {}).update(types)

    def change(
        self, places: frozenset[TopicPartition]
    ) -> tuple[tuple[TopicPartition, ...], tuple[TopicPartition, ...]]:
        """Returns the partitions that the next request adds and takes out, so that the broker reads `places`.
        What exceeds FETCHED_PARTITIONS is left to the requests after it.
        """
        forgotten = sorted(self.partitions - places)[:FETCHED_PARTITIONS]
        added = sorted(places - self.partitions)[: FETCHED_PARTITIONS - len(forgotten)]
        self.partitions.difference_update(forgotten)
        self.partitions.update(added)
        return tuple(added), tuple(forgotten)

    def take_acknowledgements(self) -> dict[TopicPartition, tuple[AcknowledgedBatch, ...]]:
        """Returns the acknowledgements to send, which are in flight from now on."""
        self.in_flight, self.acknowledgements = self.acknowledgements, {}
        return {place: tuple(batches_of(types)) for place, types in self.in_flight.items()}

    def answered(self) -> None:
        """The broker took a request of the session."""
        self.is_in_flight = False
        self.epoch = next_epoch(self.epoch)

    def end(self) -> Acknowledged:
        """The broker has forgotten the session. Returns the acknowledgements that it does not take."""
        failed = self.in_flight
        for place, types in self.acknowledgements.items():
            failed.setdefault(place, {}).update(types)
        self.in_flight, self.acknowledgements = {}, {}
        self.is_in_flight = False
        self.epoch = INITIAL_EPOCH
        self.generation += 1
        self.partitions.clear()
        return failed


def batches_of(types: dict[int, int]) -> Iterable[AcknowledgedBatch]:
    """Yields adjacent offsets together, in order."""
    run: list[int] = []
    start = 0
    for offset in sorted(types):
        if run and offset != start + len(run):
            yield _batch(start, run)
            run = []
        if not run:
            start = offset
        run.append(types[offset])
    if run:
        yield _batch(start, run)


def _batch(start: int, run: list[int]) -> AcknowledgedBatch:
    is_uniform = min(run) == max(run)
    return AcknowledgedBatch(start, start + len(run) - 1, (run[0],) if is_uniform else tuple(run))
