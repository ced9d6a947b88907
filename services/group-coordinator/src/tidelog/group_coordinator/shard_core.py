"""The contract between the coordinator's runtime and the cores of its shards.

A core decides, in memory, on its newest state; it does no I/O and knows no clock. The runtime loads it by
replay, hands it requests one by one, appends what it decided, and lets replies and effects out only once
everything the shard has appended until then is replicated. If an append fails, the core is thrown away and
a new one is loaded.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from tidelog.model.topics import TopicPartition


class CoordinatorRecord(NamedTuple):
    """One record of the shard's partition, in Kafka's own format; value None is a tombstone."""

    key: bytes
    value: bytes | None


class Producer(NamedTuple):
    """Whose transaction a record belongs to."""

    producer_id: int
    producer_epoch: int


class ShardRequest(NamedTuple):
    """`reply_to` is the runtime's; a core keeps it for as long as an answer is owed. `message` is the request
    dataclass of tidelog.wire.messages.<api>; the reply is that API's response dataclass.
    """

    reply_to: Hashable
    api_key: int
    api_version: int
    message: Any
    principal: str = "User:ANONYMOUS"
    client_id: str | None = None
    host: str = ""


class Reply(NamedTuple):
    reply_to: Hashable
    message: Any


class EndMarker(NamedTuple):
    """A control batch to be appended to the shard's own partition (group shards: pending offsets)."""

    producer: Producer
    is_commit: bool
    coordinator_epoch: int


class SetTimer(NamedTuple):
    """`timer_fired(key)` at `deadline_ms` of the clock that `now_ms` is of; replaces one of the same key."""

    key: Hashable
    deadline_ms: int


class CancelTimer(NamedTuple):
    key: Hashable


class EndTransaction(NamedTuple):
    """Effect, once committed: have a marker written to each partition, again and again until every leader
    took it; then `effect_done(self, None)`. The runtime finds the leaders. A partition whose topic is gone
    counts as written.
    """

    transactional_id: str
    producer: Producer
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class AllocateProducerId(NamedTuple):
    """Effect, at once: `effect_done(self, producer_id)`, or None if none can be had (then a retriable
    refusal).
    """

    token: Hashable


Effect: TypeAlias = EndTransaction | AllocateProducerId


@dataclass(slots=True)
class Decision:
    """What follows from one event. `records` are already applied to the core that made them."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    transaction: Producer | None = None
    """`records` are one transactional batch of this producer."""
    marker: EndMarker | None = None
    """Appended after `records`; already applied, too."""
    replies: list[Reply] = field(default_factory=list)
    timers: list[SetTimer | CancelTimer] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


class ReplayedRecord(NamedTuple):
    key: bytes
    value: bytes | None
    timestamp_ms: int
    transaction: Producer | None
    """Of whose batch it is, if that is transactional."""


class TopicImage(NamedTuple):
    """A topic as the coordinator knows it. `racks` holds, for each partition, the racks of its replicas."""

    topic_id: UUID
    name: str
    partition_count: int
    racks: tuple[frozenset[str], ...] = ()


class ClusterImage(NamedTuple):
    """`version` grows with each change."""

    version: int
    topics: Mapping[str, TopicImage]
    topic_names: Mapping[UUID, str]


class ShardCore(Protocol):
    """One shard. Every method but `replay` and `replay_marker` answers with what follows from it.

    `now_ms` is the wall clock (records carry it). A request whose shard epoch or state is not what it needs
    is answered in Kafka's terms within the reply; methods don't raise for what clients send.
    """

    def replay(self, record: ReplayedRecord, offset: int) -> None:
        """A record of the log, while loading. What it can't read is skipped, and logged by the caller:
        raises UnknownRecordError.
        """
        ...

    def replay_marker(self, producer: Producer, is_commit: bool) -> None:
        """A marker in the shard's own partition, while loading."""
        ...

    def activate(self, image: ClusterImage, now_ms: int) -> Decision:
        """Everything is loaded: set timers, take up what was under way."""
        ...

    def handle(self, request: ShardRequest, now_ms: int) -> Decision: ...

    def timer_fired(self, key: Hashable, now_ms: int) -> Decision: ...

    def effect_done(self, effect: Effect, outcome: Any, now_ms: int) -> Decision: ...

    def image_changed(self, image: ClusterImage, now_ms: int) -> Decision: ...

    def deactivate(self) -> list[Reply]:
        """The shard is given up: refusals (NOT_COORDINATOR, in each API's own form) for all that is owed."""
        ...


class UnknownRecordError(ValueError):
    """A key or value of a type or version that this coordinator does not know."""
