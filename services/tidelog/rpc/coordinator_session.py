"""The items that a coordinator and a broker send each other over their session.

A coordinator holds one session with each live broker. Over it, the broker that leads a shard's partition lets
the shard's owner read and append to that partition, and forwards clients' requests for the shard; the owner
has transaction markers written to partitions that the broker leads. Between processes a session is one gRPC
stream (`grpc_sessions`), in one process it is two queues (`in_process`). Both keep the order of the items of
each side, and lose items only if the session ends.

An *attachment* is the hold of one owner on the partition of one shard at one broker. The coordinator numbers
its attachments. An attachment ends with `ShardLost`, with `DetachShard` or with the session; nothing is
appended through it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from tidelog.model.brokers import BrokerRegistration
from tidelog.model.coordinator_shards import ShardId
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""What waits to be sent over one session; a session whose other side takes nothing for so long is closed."""


# -- from the coordinator


class Hello(NamedTuple):
    """First of all."""

    coordinator_id: int


class AttachShard(NamedTuple):
    """Answered by ShardAttached or ShardLost. A broker refuses a shard epoch below the highest that was
    attached (COORDINATOR_NOT_AVAILABLE); one that is higher ends the attachment of the one before.
    """

    attachment: int
    shard: ShardId
    shard_epoch: int


class ReadShard(NamedTuple):
    """Answered by ShardRecords: whole batches from `from_offset` on, up to the log's end (no high watermark
    limits an owner).
    """

    attachment: int
    from_offset: int
    max_bytes: int


class AppendToShard(NamedTuple):
    """Whole record batches (base offsets not yet assigned), to be appended at `expected_offset` in
    `leader_epoch`, acks=all. There is no answer but that `ShardCommitted` passes them; anything else than
    that log end and epoch, or any refusal, is `ShardLost`, and none of them, nor any later one, is in the log
    by this attachment. So an owner may append again before it has heard of the last.
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
    """All that this coordinator has loaded and decides for now; told to every broker at each change. The
    higher shard epoch wins where two coordinators name the same shard.
    """

    shards: tuple[ServedShard, ...]


class Hold(NamedTuple):
    """An answer waits at the broker until the high watermark has reached `offset`."""

    attachment: int
    offset: int


class AnswerRequest(NamedTuple):
    """To a ForwardedToShard. `body` is the response in the request's API and version, without header; None
    if `error` says why there is none. If the attachment of `hold` ends first, the broker makes a retriable
    refusal of it.
    """

    request_id: int
    body: bytes | None
    error: ErrorCode = ErrorCode.NONE
    hold: Hold | None = None


class Marker(NamedTuple):
    """The end of one transaction, for the partitions of it that the asked broker leads."""

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
    """Answered by ProducerIdsTold: a block that is the coordinator's own."""

    call_id: int


class AskOffsets(NamedTuple):
    """Answered by OffsetsTold, for the partitions that the broker leads: (partition, committed offset)."""

    call_id: int
    positions: tuple[tuple[TopicPartition, int], ...]


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
)


# -- from the broker


class Welcome(NamedTuple):
    """Answer to Hello."""

    broker_id: int
    broker_epoch: int


class ShardAttached(NamedTuple):
    attachment: int
    leader_epoch: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int


class ShardRecords(NamedTuple):
    """`records` are whole batches, the first holding `from_offset` or a later one; empty at the log's end.
    `next_offset` is where to go on.
    """

    attachment: int
    from_offset: int
    next_offset: int
    log_end_offset: int
    records: bytes


class ShardCommitted(NamedTuple):
    """The high watermark has come so far."""

    attachment: int
    high_watermark: int


class ShardLost(NamedTuple):
    """The attachment has ended, and why: this broker no longer leads, or leads in another epoch, the log end
    was another, too few replicas are in sync, the disk refused, another owner came.
    """

    attachment: int
    error: ErrorCode
    message: str = ""


class ForwardedToShard(NamedTuple):
    """A request for the shard, as a client sent it (`body` without header), authorised by the broker; or the
    broker's own: WriteTxnMarkers for a partition of `__consumer_offsets`, AddPartitionsToTxn (v4 on) to
    verify a transactional produce. `traceparent` names the trace that it belongs to, if it is traced.
    """

    request_id: int
    shard: ShardId
    api_key: int
    api_version: int
    body: bytes
    principal: str
    client_id: str | None
    host: str
    traceparent: str = ""


class MarkersWritten(NamedTuple):
    """An error code for each partition of each marker, in the order of the call; NONE once replicated."""

    call_id: int
    errors: tuple[tuple[ErrorCode, ...], ...]


class ProducerIdsTold(NamedTuple):
    """Ids `first` to `first + count - 1`; count 0: none can be had now."""

    call_id: int
    first: int
    count: int  # type: ignore[assignment]  # hides the tuple's, as in the .proto


class PartitionOffsets(NamedTuple):
    """`first_unread_timestamp_ms` is of the first record at or after the committed offset, by the time index;
    -1 if there is none or it is not known. All offsets -1: not led here. `retention_ms` is how old records
    get before they are deleted, -1 if time doesn't delete them.
    """

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    first_unread_timestamp_ms: int
    retention_ms: int = -1


class OffsetsTold(NamedTuple):
    """In the order of the call."""

    call_id: int
    partitions: tuple[PartitionOffsets, ...]


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
)

Item: TypeAlias = FromCoordinator | FromBroker


class SessionLine(Protocol):
    """The sending side of one end of a session."""

    def send(self, item: Item) -> None:
        """Never waits: items leave at the end of the loop's turn, many in one message. Nothing happens on a
        line that has ended. More than MAX_UNSENT_BYTES unsent end it.
        """
        ...

    def close(self) -> None:
        """End the session; the own end is not told."""
        ...


class SessionEnd(Protocol):
    """The receiving side, given by whoever holds that end."""

    def received(self, items: Sequence[Item]) -> None:
        """In the order in which they were sent. Must not raise."""
        ...

    def closed(self) -> None:
        """Once, when the session has ended by the other side or the line between."""
        ...


class SessionConnector(Protocol):
    """How a coordinator reaches brokers."""

    def connect(self, broker: BrokerRegistration, end: SessionEnd) -> SessionLine:
        """At once; what is sent waits for the connection. `end.closed()` if that can't be had."""
        ...


class SessionAcceptor(Protocol):
    """How a broker takes sessions."""

    def accept(self, line: SessionLine) -> SessionEnd:
        """Called with each new session."""
        ...
