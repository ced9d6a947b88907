"""The knowledge of a client about its cluster: brokers, and the leaders of the topics that it uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from tidelog.kernel.instants import Backoff
from tidelog.model.errors import ErrorCode, meaning_of
from tidelog.model.protocol_values import NO_LEADER, UNKNOWN_EPOCH
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition


class Node(NamedTuple):
    """A broker, at the address that it advertises."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionLeader(NamedTuple):
    """The leader of a partition, -1 if there is none."""

    leader: int
    leader_epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. `leader` is -1 if the partition has none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_offline(self) -> bool:
        """Whether the partition has no leader, so that it can neither be read nor written."""
        return self.leader == NO_LEADER


class TopicView(NamedTuple):
    """A topic. The index of `partitions` is the partition."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionLeader, ...]
    error_code: int = ErrorCode.NONE
    replicas: tuple[tuple[int, ...], ...] = ()
    """The brokers with replicas of each partition."""


class MetadataReceived(NamedTuple):
    """A Metadata response arrived."""

    nodes: tuple[Node, ...]
    topics: tuple[TopicView, ...]
    is_complete: bool = False
    """Whether all topics of the cluster were requested, so that others do not exist."""


class ClusterView:
    """The newest metadata. A leader of an older epoch never replaces one of a newer epoch (KIP-320)."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicView] = {}
        self.errors: dict[str, int] = {}
        """The error codes of topics for which the last response had no partitions."""
        self.names_by_id: dict[UUID, str] = {}
        self.ended_topics: int = 0
        """The number of topics that the view has forgotten. It forgets those that were deleted or replaced by
        others of their names, and those for which a leader answered ListOffsets with an error.
        """
        self.found_topics: int = 0
        """The number of topics that the view has learned, also as successors of topics of their names."""

    def update(self, received: MetadataReceived) -> None:
        self.nodes = {node.node_id: node for node in received.nodes}
        if received.is_complete:
            for name in self.topics.keys() - {topic.name for topic in received.topics}:
                self.forget(name)
        for topic in received.topics:
            if topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE and not topic.partitions:
                self.errors.pop(topic.name, None)
                continue  # the broker does not know the partitions yet
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                self.errors[topic.name] = topic.error_code
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self.forget(topic.name)
                continue
            self.errors.pop(topic.name, None)
            known = self.topics.get(topic.name)
            if known is not None and known.topic_id == topic.topic_id:
                topic = topic._replace(partitions=_newer_leaders(known.partitions, topic.partitions))
            elif known is not None:
                self.forget(topic.name)
            if topic.name not in self.topics:
                self.found_topics += 1
            self.topics[topic.name] = topic
            self.names_by_id[topic.topic_id] = topic.name

    def forget(self, name: str) -> None:
        known = self.topics.pop(name, None)
        if known is not None:
            self.names_by_id.pop(known.topic_id, None)
            self.ended_topics += 1

    def topic_id(self, name: str) -> UUID | None:
        """Returns the id of a topic, None if the topic is unknown or an old broker named no id."""
        topic = self.topics.get(name)
        return None if topic is None or topic.topic_id == ZERO_TOPIC_ID else topic.topic_id

    def racks(self, name: str) -> dict[TopicPartition, frozenset[str]]:
        """Returns the racks of the replicas of each partition of a topic."""
        return {
            TopicPartition(name, index): frozenset(
                rack
                for each in replicas
                if each in self.nodes and (rack := self.nodes[each].rack) is not None
            )
            for index, replicas in enumerate(self.topics[name].replicas)
        }

    def leader(self, place: TopicPartition) -> PartitionLeader:
        topic = self.topics.get(place.topic)
        if topic is None or place.partition >= len(topic.partitions):
            return PartitionLeader(NO_LEADER)
        return topic.partitions[place.partition]

    def learn_leader(self, place: TopicPartition, found: PartitionLeader, ended_topics: int) -> None:
        """Takes the leader that a broker names in an error (KIP-951). `ended_topics` was that of the view at
        the time of the request. If a topic has ended since, the leader may be one of an earlier topic of the
        name, whose epoch is higher than those of the next topic.
        """
        if ended_topics != self.ended_topics:
            return
        topic = self.topics.get(place.topic)
        if topic is None or place.partition >= len(topic.partitions) or found.leader not in self.nodes:
            return
        if found.leader_epoch > topic.partitions[place.partition].leader_epoch:
            leaders = list(topic.partitions)
            leaders[place.partition] = found
            self.topics[place.topic] = topic._replace(partitions=tuple(leaders))


class EpochEnd(NamedTuple):
    """The newest epoch up to the requested one in the leader's log, and its end. Both are -1 without one."""

    error_code: int
    epoch: int
    end_offset: int


def partitions_by_topic(places: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """Groups partitions by topic, as most of Kafka's requests do."""
    grouped: dict[str, list[int]] = {}
    for place in places:
        grouped.setdefault(place.topic, []).append(place.partition)
    return grouped


def _newer_leaders(
    known: tuple[PartitionLeader, ...], received: tuple[PartitionLeader, ...]
) -> tuple[PartitionLeader, ...]:
    return tuple(
        old if old is not None and new.leader_epoch < old.leader_epoch else new
        for new, old in zip(received, known + (None,) * max(0, len(received) - len(known)), strict=False)
    )


class MetadataSchedule:
    """One request is under way at a time. Times are milliseconds of a monotonic clock."""

    def __init__(self, backoff: Backoff, max_age_ms: int) -> None:
        self.is_needed: bool = False
        self._backoff = backoff
        self._max_age_ms = max_age_ms
        self._is_requested = False
        self._attempts = 0
        self._not_before_ms = 0
        self._expires_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Returns whether to send a request now, which then counts as sent."""
        if self._expires_ms is not None and now_ms >= self._expires_ms:
            self._expires_ms = None
            self.is_needed = True
        if not self.is_needed or self._is_requested or now_ms < self._not_before_ms:
            return False
        self._is_requested = True
        return True

    def next_wake_ms(self) -> int | None:
        """Returns the next time at which `is_due` may return True, if no event comes before."""
        times = [] if self._expires_ms is None else [self._expires_ms]
        if self.is_needed and not self._is_requested:
            times.append(self._not_before_ms)
        return min(times, default=None)

    def received(self, is_incomplete: bool, now_ms: int, *, is_refused: bool = False) -> None:
        """A response arrived. If it lacks something, another request follows. `is_refused` says whether
        somebody may ask again for what it refuses, which then takes a longer pause each time.
        """
        self._is_requested = False
        self._expires_ms = now_ms + self._max_age_ms
        if is_incomplete or is_refused:
            self._retry(now_ms)
            self.is_needed = is_incomplete
        else:
            self.is_needed = False
            self._attempts = 0
            self._not_before_ms = now_ms + self._backoff.delay_ms(1)

    def failed(self, now_ms: int) -> None:
        """No broker answered."""
        self._is_requested = False
        self._retry(now_ms)

    def _retry(self, now_ms: int) -> None:
        self.is_needed = True
        self._attempts += 1
        self._not_before_ms = now_ms + self._backoff.delay_ms(self._attempts)


T = TypeVar("T")

PARTITIONS_A_REQUEST: Final = 500
"""The partitions, or other things, of one request. Each may have a topic of its own, and name replicas."""
FETCHED_PARTITIONS: Final = 4_000
"""The partitions that one request adds to a session of fetches or takes out of it. Each request also waits
for records, so there must be few of them.
"""


def in_parts(items: Iterable[T], size: int = PARTITIONS_A_REQUEST) -> Iterator[list[T]]:
    """Yields the items in lists of at most `size`, and no list if there are none."""
    part: list[T] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


WARNING_AFTER_MS: Final = 10_000
"""A topic that was just created may be unknown to some brokers, and commands report a missing one earlier."""
WARNING_EACH_MS: Final = 300_000


class TopicProblems:
    """The problems that metadata show. Times are milliseconds of a monotonic clock."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        """The reason of each problem, by the topic or partition that has it."""
        self._warn_at_ms: dict[str, int] = {}

    def look(
        self, view: ClusterView, topics: Iterable[str], places: Iterable[TopicPartition], now_ms: int
    ) -> dict[str, str]:
        """Takes new metadata. Returns the problems of which the log should warn now."""
        self.reasons = {
            f"topic '{name}'": meaning_of(view.errors[name])
            for name in dict.fromkeys(topics)
            if name in view.errors
        }
        for place in places:
            topic = view.topics.get(place.topic)
            if topic is not None and place.partition >= len(topic.partitions):
                self.reasons[f"partition {place}"] = f"the topic has {len(topic.partitions)} partitions"
        self._warn_at_ms = {
            subject: self._warn_at_ms.get(subject, now_ms + WARNING_AFTER_MS) for subject in self.reasons
        }
        due = {subject: why for subject, why in self.reasons.items() if self._warn_at_ms[subject] <= now_ms}
        self._warn_at_ms |= dict.fromkeys(due, now_ms + WARNING_EACH_MS)
        return due
