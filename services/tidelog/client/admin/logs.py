"""Reads the logs of leaders as they are: batches with markers and aborted records, and epochs of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.client import calls
from tidelog.client.cluster import Cluster, Topic, answer_of, until_answered
from tidelog.client.core.cluster_view import EpochEnd, Partition, in_parts
from tidelog.client.errors import (
    ConnectionLostError,
    UnknownTopicError,
    UnreachableError,
    raise_on_error,
    request_error,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import CONSUMER_REPLICA_ID, NO_LEADER, READ_COMMITTED, UNKNOWN_EPOCH
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_WAIT_MS: Final = 500
_FETCH_SINCE: Final = 4  # magic 2 and isolation levels
_LAST_BY_NAME: Final = 12
_SESSIONLESS_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class RawBatches:
    """Batches, of which the last may be incomplete. `aborted` holds sorted (first offset, producer id)."""

    data: memoryview
    aborted: tuple[tuple[int, int], ...]


def fetch_batches(
    cluster: Cluster,
    topic: Topic,
    partition: int,
    offset: int,
    *,
    isolation_level: int = READ_COMMITTED,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> RawBatches:
    """Returns the batches from that of `offset` to the end that consumers may read.

    The result is empty if no record arrives within half a second. Temporary failures are retried until the
    cluster's timeout. Raises KafkaError, ClientError.
    """

    def look_up() -> None:
        nonlocal topic
        topic = cluster.topic(topic.name)

    return until_answered(
        cluster,
        lambda: _fetch(cluster, topic, partition, offset, isolation_level, max_bytes),
        tolerates=(ConnectionLostError, UnreachableError),
        look_up=look_up,
    )


def _fetch(
    cluster: Cluster, topic: Topic, partition: int, offset: int, isolation_level: int, max_bytes: int
) -> RawBatches:
    leader = next((each.leader for each in topic.partitions if each.index == partition), -1)
    row = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        replica_id=CONSUMER_REPLICA_ID,
        max_wait_ms=_MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=_SESSIONLESS_EPOCH,
        topics=[FetchTopic(topic.name, topic.topic_id, [row])],
    )
    at_most = None if topic.topic_id != ZERO_TOPIC_ID else _LAST_BY_NAME
    answer = cluster.broker(leader).call(
        request, FetchResponse, at_least=_FETCH_SINCE, at_most=at_most, wait_ms=_MAX_WAIT_MS
    )
    raise_on_error(answer.error_code, f"topic '{topic.name}'")
    data = answer.responses[0].partitions[0]
    if data.error_code:
        raise request_error(data.error_code, f"topic '{topic.name}' partition {partition} at offset {offset}")
    raw = memoryview(data.records or b"")  # type: ignore[arg-type]  # decoded answers hold views
    return RawBatches(raw, _aborted(data))


def _aborted(data: PartitionData) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((row.first_offset, row.producer_id) for row in data.aborted_transactions or ()))


class OffsetRange(NamedTuple):
    """A range of offsets, without `end`."""

    start: int
    end: int


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


@dataclass(slots=True)
class EpochWalk:
    """The search for the epochs of one range. `asks` is the next epoch to request, None at the end."""

    wanted: OffsetRange
    asks: int | None
    _current: int = UNKNOWN_EPOCH
    _found: list[EpochStart] = field(default_factory=list)

    def answered(self, end: EpochEnd) -> None:
        """Takes a response: the end of the lower epochs is the start of the current one."""
        if self._current != UNKNOWN_EPOCH:
            start = self.wanted.start if end.epoch == UNKNOWN_EPOCH else end.end_offset
            if start < self.wanted.end:
                self._found.append(EpochStart(self._current, max(start, self.wanted.start)))
            if start <= self.wanted.start:
                self.asks = None
                return
        if end.epoch == UNKNOWN_EPOCH:
            self.asks = None
            return
        self._current = end.epoch
        self.asks = end.epoch - 1

    def epochs(self) -> tuple[EpochStart, ...]:
        """Returns the epochs in the order of offsets. The first one starts where the range starts."""
        return tuple(reversed(self._found))


def epochs_of_ranges(
    cluster: Cluster, ranges: Mapping[TopicPartition, OffsetRange]
) -> dict[TopicPartition, tuple[EpochStart, ...]]:
    """Returns the leader epochs of each range, and asks from the newest epoch downwards. Raises KafkaError,
    ClientError.
    """
    leaders = _leaders(cluster, {place.topic for place in ranges})
    walks: dict[TopicPartition, EpochWalk] = {}
    for place, wanted in ranges.items():
        partition = leaders.get(place)
        if partition is None:
            raise UnknownTopicError(f"{place} does not exist")
        walks[place] = EpochWalk(wanted, partition.leader_epoch if wanted.start < wanted.end else None)
    while True:
        asked = {place: walk.asks for place, walk in walks.items() if walk.asks is not None}
        if not asked:
            return {place: walk.epochs() for place, walk in walks.items()}
        for place, end in epoch_ends(cluster, asked).items():
            walks[place].answered(end)


def epoch_ends(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
    """Returns the end of the given epoch of each partition.

    If a leader moves, the request is retried until the cluster's timeout. Raises KafkaError, ClientError.
    """
    found: dict[TopicPartition, EpochEnd] = {}

    def ask() -> None:
        left = epochs.keys() - found.keys()
        leaders = _leaders(cluster, {place.topic for place in left})
        failed: tuple[TopicPartition, int] | None = None
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for place in left:
            leader = leaders[place].leader if place in leaders else NO_LEADER
            if leader == NO_LEADER:
                failed = (place, ErrorCode.LEADER_NOT_AVAILABLE)
                continue
            by_leader.setdefault(leader, {})[place] = epochs[place]
        parts = [(leader, part) for leader, asked in by_leader.items() for part in in_parts(asked.items())]
        for leader, part in parts:
            for place, end in answer_of(cluster.broker(leader), calls.epoch_ends(dict(part))).items():
                if end.error_code == ErrorCode.NONE:
                    found[place] = end
                else:
                    failed = (place, end.error_code)
        if failed is not None:
            raise request_error(failed[1], f"leader epochs of {failed[0]}")

    until_answered(cluster, ask)
    return found


def _leaders(cluster: Cluster, names: Iterable[str]) -> dict[TopicPartition, Partition]:
    return {
        TopicPartition(topic.name, partition.index): partition
        for topic in cluster.topics(sorted(names)).values()
        for partition in topic.partitions
    }
