"""The contract between the coordinator's runtime and the cores of its shards.

A core makes decisions in memory, on its newest state. It does no I/O and reads no clock. The runtime loads a
core by replaying the shard's log and passes requests to it one at a time. The runtime appends the records of
each decision. It releases replies and effects only after everything that the shard has appended so far is
replicated. If an append fails, the runtime discards the core and loads a new one.

A core knows one clock, the wall clock, whose time goes into records. Timers are durations, which the runtime
measures on its monotonic clock.

An answer that describes many groups or transactions is made in steps, so that a large one does not hold up
other clients, and `described_within_bound` bounds it. It is also freed in steps: Python takes about 50 ms to
free 300,000 objects at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable
from uuid import UUID

from tidelog.kernel.instants import WallMs
from tidelog.kernel.steps import Steps
from tidelog.model.acl import ANONYMOUS
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import DescribableTopics, TopicPartition
from tidelog.wire.messages.create_topics import CreateTopicsRequest
from tidelog.wire.schema import Struct

M_co = TypeVar("M_co", covariant=True)


class CoordinatorRecord(NamedTuple):
    """One record of the shard's partition, in Kafka's format. A record whose value is None is a tombstone."""

    key: bytes
    value: bytes | None


class Producer(NamedTuple):
    """The producer id and epoch of a transaction."""

    producer_id: int
    producer_epoch: int


class ShardRequest(NamedTuple, Generic[M_co]):
    """A client's request, as its broker forwarded it.

    `reply_to` belongs to the runtime; a core keeps it until it has replied. `message` is the request's
    dataclass in tidelog.wire.messages. The reply is the response's dataclass of the same API.
    """

    reply_to: Hashable
    api_key: int
    api_version: int
    message: M_co
    principal: str = ANONYMOUS
    client_id: str | None = None
    host: str = ""
    describable: DescribableTopics | None = None
    """The topics that the client may describe. None if it may describe all topics."""


class TopicsNeeded(NamedTuple):
    """Takes the place of a response, and asks the broker for the topics that the client may describe. The
    broker sends the request again, with their names.
    """


class Refused(NamedTuple):
    """Takes the place of a response. The broker answers with this error, in the form of the request's API."""

    error: ErrorCode


class Reply(NamedTuple):
    """The response to one request."""

    reply_to: Hashable
    message: object
    """A response dataclass, TopicsNeeded, or Refused. The generated classes have no common base; the runtime
    only encodes them. In the place of a large response there are the steps that make it (`kernel/steps.py`).
    Events change the core between these steps. A core that ends takes no further steps.
    """
    topics_to_create: CreateTopicsRequest | None = None
    """Topics that the broker has the controller create in the client's name, without a delay of the response.
    Only answers to StreamsGroupHeartbeat may have them. The request follows the response in the bytes of the
    answer, in its newest version.
    """


class EndMarker(NamedTuple):
    """A control batch for the shard's own partition, which ends a transaction's pending offsets."""

    producer: Producer
    is_commit: bool
    coordinator_epoch: int


class SetTimer(NamedTuple):
    """Starts a timer: `timer_fired(key)` follows after `delay_ms`. It replaces the timer of the same key."""

    key: Hashable
    delay_ms: int


class CancelTimer(NamedTuple):
    """Stops the timer of this key, if one is running."""

    key: Hashable


class EndTransaction(NamedTuple):
    """An effect that writes a transaction's marker to each of its partitions.

    The runtime begins when the decision is committed, finds the leaders, and retries until every leader has
    written the marker. A partition of a deleted topic counts as written. Then it calls
    `effect_done(self, None)`.
    """

    transactional_id: str
    producer: Producer
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class AllocateProducerId(NamedTuple):
    """An effect that obtains a producer id and calls `effect_done(self, producer_id)`.

    The runtime begins at once. The outcome is None if no producer id is available; the core then replies with
    a retriable error.
    """

    token: Hashable


class AskShareStates(NamedTuple):
    """An effect that asks the owners of the states of share partitions, and calls
    `effect_done(self, response)`.

    The runtime begins when the decision is committed. `request` is a request dataclass of one of the APIs 83
    to 87. The outcome is its response, or None if there is no answer; the request may have taken effect then.
    """

    token: Hashable
    api_key: int
    request: object


class AskEndOffsets(NamedTuple):
    """An effect that asks the leaders of partitions for their high watermarks, and calls `effect_done(self,
    offsets)`. The runtime begins at once. The outcome is a mapping without the partitions whose leaders have
    not answered.
    """

    token: Hashable
    partitions: tuple[TopicPartition, ...]


class TrimLog(NamedTuple):
    """An effect that deletes the records of the shard's log below `offset`. It has no outcome.

    The runtime first appends its claim of the shard again, which takes one offset after the decision's
    records, and begins when the claim is committed. So the newest claim is always in the log.
    """

    offset: int


Effect: TypeAlias = EndTransaction | AllocateProducerId | AskShareStates | AskEndOffsets | TrimLog
EffectOutcome: TypeAlias = object
"""The result of an effect: a producer id, a response, offsets, or None."""


@dataclass(slots=True)
class ShardDecision:
    """Everything that follows from one event. The core has already applied `records` and `marker`."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    transaction: Producer | None = None
    """The producer whose transactional batch holds `records`; None if the batch is not transactional."""
    marker: EndMarker | None = None
    """The control batch to append after `records`."""
    replies: list[Reply] = field(default_factory=list)
    timers: list[SetTimer | CancelTimer] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


class ReplayedRecord(NamedTuple):
    """A record that the runtime read from the shard's log."""

    key: bytes
    value: bytes | None
    timestamp_ms: WallMs
    transaction: Producer | None
    """The producer of the record's batch; None if the batch is not transactional."""


class TopicImage(NamedTuple):
    """A topic in the coordinator's view of the cluster."""

    topic_id: UUID
    name: str
    partition_count: int
    racks: tuple[frozenset[str], ...] = ()
    """For each partition, the racks of its replicas."""


class ClusterImage(NamedTuple):
    """The coordinator's view of the cluster's topics. `version` grows with each change."""

    version: int
    topics: Mapping[str, TopicImage]
    topic_names: Mapping[UUID, str]

    def has_partition(self, topic: str, partition: int) -> bool:
        known = self.topics.get(topic)
        return known is not None and 0 <= partition < known.partition_count


class ShardCore(Protocol):
    """The core of one shard.

    A core answers a request that it can't serve with Kafka's error code. It raises nothing because of what
    clients send.
    """

    def replay(self, record: ReplayedRecord, offset: int) -> None:
        """Applies a record of the log while the shard loads.

        Raises UnknownRecordError for a record that the core can't read. The caller logs and skips it.
        """
        ...

    def replay_marker(self, producer: Producer, is_commit: bool) -> None:
        """Applies a marker of the shard's own partition while the shard loads."""
        ...

    def activate(self, image: ClusterImage, now_ms: WallMs) -> ShardDecision:
        """Starts timers and resumes unfinished work after the whole log is loaded."""
        ...

    def handle(self, request: ShardRequest[object], now_ms: WallMs) -> ShardDecision:
        """Decides on a client's request."""
        ...

    def timer_fired(self, key: Hashable, now_ms: WallMs) -> ShardDecision:
        """Decides what follows from the end of a timer."""
        ...

    def effect_done(self, effect: Effect, outcome: EffectOutcome, now_ms: WallMs) -> ShardDecision:
        """Decides what follows from the end of an effect."""
        ...

    def image_changed(self, image: ClusterImage, now_ms: WallMs) -> ShardDecision:
        """Decides what follows from a change of the cluster's topics."""
        ...

    def deactivate(self) -> list[Reply]:
        """Returns a reply to every open request: COORDINATOR_LOAD_IN_PROGRESS, because another coordinator
        loads the shard and clients reach it at the same broker.

        The core is not used afterwards. It gives up its cycles of references, so that Python frees it at
        once: the garbage collector visits frozen objects only rarely (ADR 0066).
        """
        ...


@runtime_checkable
class KnowsOffsets(Protocol):
    """A core that has to know the offsets of its records, for TrimLog."""

    def log_ends_at(self, offset: int) -> None:
        """Receives the offset of the next record, before `activate`. Each record takes one offset."""
        ...


class UnknownRecordError(ValueError):
    """A record's key or value has a type or version that this coordinator does not know."""


MAX_DESCRIBED_BYTES: Final = 16 * 1024 * 1024
"""About how many bytes of an answer are built before the remaining items are refused."""
FREED_AT_ONCE: Final = 100
"""The number of elements without arrays of their own that are freed in one step."""
NO_ROOM: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
_NUMBER_BYTES: Final = 4
_LENGTH_BYTES: Final = 2

ItemT = TypeVar("ItemT")
DescriptionT = TypeVar("DescriptionT")
ResponseT = TypeVar("ResponseT")


class AnswerRoom:
    """The room for the descriptions of one answer. A description that begins in it may exceed it."""

    def __init__(self) -> None:
        self._left_bytes = MAX_DESCRIBED_BYTES

    @property
    def is_full(self) -> bool:
        return self._left_bytes <= 0

    def take(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes


def described_within_bound(
    items: Sequence[ItemT],
    describe: Callable[[ItemT], Steps[DescriptionT]],
    refuse: Callable[[ItemT, ErrorCode], DescriptionT],
    response: Callable[[list[DescriptionT]], ResponseT],
) -> Steps[ResponseT]:
    """Describes the items until the descriptions take MAX_DESCRIBED_BYTES, and refuses the others. Returns
    the response that consists of the descriptions.
    """
    room = AnswerRoom()
    found = []
    for item in items:
        if room.is_full:
            found.append(refuse(item, NO_ROOM))
        else:
            description = yield from describe(item)
            if len(items) > 1:
                room.take((yield from about_bytes(description)))
            found.append(description)
        yield
    return response(found)


def about_bytes(value: Any) -> Steps[int]:  # Any: the fields of any message
    """Returns about how many bytes a message or one of its fields takes on the wire."""
    if isinstance(value, str | bytes | bytearray | memoryview):  # states are members of a StrEnum
        return _LENGTH_BYTES + len(value)
    if isinstance(value, Collection):
        if not value:
            return _LENGTH_BYTES
        if isinstance(next(iter(value)), int):
            return _LENGTH_BYTES + _NUMBER_BYTES * len(value)
        size_bytes = _LENGTH_BYTES
        for element in value:
            size_bytes += yield from about_bytes(element)
            yield
        return size_bytes
    if value is None:
        return _LENGTH_BYTES
    kind: Any = type(value)
    fixed_bytes, names = _measured_fields(kind)
    for name in names:
        fixed_bytes += yield from about_bytes(getattr(value, name))
    return fixed_bytes


@cache
def _measured_fields(kind: type[Struct]) -> tuple[int, tuple[str, ...]]:
    """Returns the bytes of the fields of fixed size, and the names of the others."""
    fixed_bytes, names = 0, []
    for part in kind.FIELDS:
        if part.kind == "uuid":
            fixed_bytes += 16
        elif isinstance(part.kind, str) and part.kind not in ("string", "bytes"):
            fixed_bytes += _NUMBER_BYTES
        else:
            names.append(part.name)
    return fixed_bytes, tuple(names)


def freed_in_steps(message: Any) -> Steps[None]:  # Any: a message or a struct of it
    """Empties the arrays of structs in a message that is not needed anymore."""
    kind: Any = type(message)
    for name in _nested_fields(kind):
        nested = getattr(message, name)
        if not isinstance(nested, list):
            if nested is not None:
                yield from freed_in_steps(nested)
            continue
        while nested:
            kind = type(nested[-1])
            if _nested_fields(kind):
                yield from freed_in_steps(nested[-1])
                nested.pop()
            else:
                del nested[-FREED_AT_ONCE:]
            yield


@cache
def _nested_fields(kind: type[Struct]) -> tuple[str, ...]:
    """Returns the names of the fields that are structs or arrays of structs."""
    return tuple(
        field.name
        for field in kind.FIELDS
        if not isinstance(field.kind[0] if isinstance(field.kind, tuple) else field.kind, str)
    )
