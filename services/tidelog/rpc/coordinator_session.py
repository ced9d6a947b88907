"""The items that a coordinator and a broker send each other over their session.

A coordinator holds one session with each live broker. Through it, the broker that leads a shard's partition
lets the shard's owner read and append to that partition, and forwards clients' requests for the shard. The
owner also sends transaction markers for partitions that the broker leads. Between processes a session is one
gRPC stream (`grpc_sessions`); in one process it is two queues (`in_process`). Both keep the order of the
items of each side, and lose items only if the session ends.

An *attachment* is the permission of a shard's owner to append to the shard's partition at one broker. The
coordinator numbers its attachments. An attachment ends with `ShardLost`, with `DetachShard` or with the
session. Nothing is appended through it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from tidelog.model.acl import ANONYMOUS
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.coordinator_shards import ShardId
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import DescribableTopics, TopicPartition

MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""Limit of the unsent bytes of one session. A session whose peer reads so slowly that it reaches the limit is
closed.
"""


class Hello(NamedTuple):
    """The first item of a session."""

    coordinator_id: int


class AttachShard(NamedTuple):
    """Requests an attachment. The broker answers ShardAttached or ShardLost.

    A broker rejects a shard epoch that is lower than the highest attached one (COORDINATOR_NOT_AVAILABLE). A
    higher shard epoch ends the earlier attachment.
    """

    attachment: int
    shard: ShardId
    shard_epoch: int


class ReadShard(NamedTuple):
    """Requests whole batches from `from_offset` up to the log end offset. The broker answers ShardRecords.

    The high watermark does not limit an owner.
    """

    attachment: int
    from_offset: int
    max_bytes: int


class AppendToShard(NamedTuple):
    """Appends whole record batches at `expected_offset` in `leader_epoch`, with acks=all. Base offsets are
    not yet assigned.

    There is no direct answer: `ShardCommitted` reports that the high watermark has passed the batches. If the
    log end offset or the leader epoch differs, or if the append fails, the broker answers `ShardLost`. Then
    neither these batches nor those of later items are appended through the attachment. An owner may therefore
    append again without waiting.
    """

    attachment: int
    leader_epoch: int
    expected_offset: int
    batches: bytes


class DetachShard(NamedTuple):
    attachment: int


class ServedShard(NamedTuple):
    shard: ShardId
    shard_epoch: int


class ServeShards(NamedTuple):
    """All shards that this coordinator has loaded and serves. It is sent to every broker at each change.

    If two coordinators name the same shard, the higher shard epoch wins.
    """

    shards: tuple[ServedShard, ...]


class Hold(NamedTuple):
    """A condition for an answer: the broker holds it back until the high watermark has reached `offset`."""

    attachment: int
    offset: int


class AnswerRequest(NamedTuple):
    """Answers a ForwardedToShard.

    `body` is the response in the API and version of the request, without header, or None if there is only an
    `error`. A CreateTopics request may follow a response to StreamsGroupHeartbeat in it. If the attachment of
    `hold` ends first, the broker replaces the answer by a retriable error.
    """

    request_id: int
    body: bytes | None
    error: ErrorCode = ErrorCode.NONE
    hold: Hold | None = None


class Marker(NamedTuple):
    """The end of a transaction, for those of its partitions that the receiving broker leads."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class WriteMarkers(NamedTuple):
    call_id: int
    markers: tuple[Marker, ...]


class AskProducerIds(NamedTuple):
    """Requests a producer id block. The broker answers ProducerIdsTold."""

    call_id: int


class AskOffsets(NamedTuple):
    """Requests offsets of partitions that the broker leads. The broker answers OffsetsTold.

    `positions` are pairs of a partition and its committed offset.
    """

    call_id: int
    positions: tuple[tuple[TopicPartition, int], ...]


class AskShareStates(NamedTuple):
    """Passes a request about the states of share partitions on to the owners of their shards, which may be
    other coordinators. The broker answers ShareStatesTold.

    `body` is a request of one of the APIs 83 to 87, without header.
    """

    call_id: int
    api_key: int
    api_version: int
    body: bytes


class TrimShard(NamedTuple):
    """Deletes the records below `offset`, which are replicated. There is no answer; an attachment ends if it
    fails.
    """

    attachment: int
    offset: int


FromCoordinator: TypeAlias = (
    Hello
    | AttachShard
    | ReadShard
    | AppendToShard
    | DetachShard
    | ServeShards
    | AnswerRequest
    | WriteMarkers
    | AskProducerIds
    | AskOffsets
    | AskShareStates
    | TrimShard
)


class Welcome(NamedTuple):
    """The answer to Hello."""

    broker_id: int
    broker_epoch: int


class ShardAttached(NamedTuple):
    attachment: int
    leader_epoch: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int


class ShardRecords(NamedTuple):
    """The answer to ReadShard. `records` are whole batches; it is empty at the log end offset.

    The first batch contains `from_offset` or a later offset. `next_offset` is the offset of the next read.
    """

    attachment: int
    from_offset: int
    next_offset: int
    log_end_offset: int
    records: bytes


class ShardCommitted(NamedTuple):
    """The high watermark has advanced to `high_watermark`."""

    attachment: int
    high_watermark: int


class ShardLost(NamedTuple):
    """The attachment has ended.

    The reason may be that the broker no longer leads the partition or leads it in another epoch, that the log
    end offset differed, that too few replicas are in sync, that the disk failed, or that another owner
    attached.
    """

    attachment: int
    error: ErrorCode
    message: str = ""


TOPICS_NEEDED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
"""The code of an AnswerRequest without a body that asks for the names of DescribableTopics. The broker then
sends the request again, with the names.
"""


class ForwardedToShard(NamedTuple):
    """A request for the shard that the broker has authorised: a client's request, or one of the broker
    itself.

    The broker itself sends WriteTxnMarkers for partitions of `__consumer_offsets`, and AddPartitionsToTxn
    (version 4 or later) to verify a transactional produce. `body` has no header. `traceparent` names the
    trace of the request, or is "".
    """

    request_id: int
    shard: ShardId
    api_key: int
    api_version: int
    body: bytes
    principal: str = ANONYMOUS
    client_id: str | None = None
    host: str = ""
    """The address of the client, or "" if the broker itself asks."""
    traceparent: str = ""
    describable: DescribableTopics | None = None
    """None if the client may describe all topics."""


class MarkersWritten(NamedTuple):
    """The error codes of the partitions of each marker, in the order of the call. NONE means that the marker
    is replicated.
    """

    call_id: int
    errors: tuple[tuple[ErrorCode, ...], ...]


class ProducerIdsTold(NamedTuple):
    """The producer ids from `first` to `first + count - 1`. If `count` is 0, no ids are available at the
    moment.
    """

    call_id: int
    first: int
    count: int  # type: ignore[assignment]  # hides the tuple's, as in the .proto


class PartitionOffsets(NamedTuple):
    """The offsets of a partition. All offsets are -1 if the broker does not lead the partition.

    - `first_unread_timestamp_ms` is the timestamp of the first record at or after the committed offset, from
      the time index, or -1 if there is none or it is unknown.
    - `retention_ms` is the age at which records are deleted, or -1 if they are not deleted by age.
    """

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    first_unread_timestamp_ms: int
    retention_ms: int = -1


class OffsetsTold(NamedTuple):
    """The answer to AskOffsets, in the order of its positions."""

    call_id: int
    partitions: tuple[PartitionOffsets, ...]


class ShareStatesTold(NamedTuple):
    """The answer to AskShareStates: the response in the API and version of the request, without header."""

    call_id: int
    body: bytes


FromBroker: TypeAlias = (
    Welcome
    | ShardAttached
    | ShardRecords
    | ShardCommitted
    | ShardLost
    | ForwardedToShard
    | MarkersWritten
    | ProducerIdsTold
    | OffsetsTold
    | ShareStatesTold
)

Item: TypeAlias = FromCoordinator | FromBroker


class SessionLine(Protocol):
    """The sending side of one end of a session."""

    def send(self, item: Item) -> None:
        """Queues an item and returns at once.

        The items of a turn leave together at its end. After the end of the session the call does nothing.
        More than MAX_UNSENT_BYTES of unsent items end the session.
        """
        ...

    @property
    def unsent_bytes(self) -> int:
        """The bytes of the items that have not left yet. 0 if items do not wait for a connection."""
        ...

    def close(self) -> None:
        """Ends the session. The caller's own SessionEnd is not notified."""
        ...


class SessionEnd(Protocol):
    """The receiving side of one end of a session. The owner of that end implements it."""

    def received(self, items: Sequence[Item]) -> None:
        """Receives items in the order in which they were sent. It must not raise."""
        ...

    def closed(self) -> None:
        """Called once, when the other side has ended the session or the connection is lost."""
        ...


class SessionConnector(Protocol):
    """Opens a coordinator's sessions with brokers."""

    def connect(self, broker: BrokerRegistration, end: SessionEnd) -> SessionLine:
        """Opens a session and returns at once. Items wait for the connection; if it fails, `end.closed()` is
        called.
        """
        ...


class SessionAcceptor(Protocol):
    """Accepts sessions on a broker."""

    def accept(self, line: SessionLine) -> SessionEnd:
        """Called with each new session."""
        ...
