"""Offsets by time, and the offsets to which the reset of a group leads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidelog.client import calls
from tidelog.client.admin.reassignments import PartitionKey
from tidelog.client.admin.topics import OffsetAt
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.connection import answer_of
from tidelog.client.core.cluster_view import in_parts
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER, READ_UNCOMMITTED
from tidelog.model.topics import TopicPartition


class ResetMethod(Enum):
    """The methods of kafka-consumer-groups, by the names of its options."""

    TO_EARLIEST = "to-earliest"
    TO_LATEST = "to-latest"
    TO_OFFSET = "to-offset"
    SHIFT_BY = "shift-by"
    TO_DATETIME = "to-datetime"
    BY_DURATION = "by-duration"
    TO_CURRENT = "to-current"
    FROM_FILE = "from-file"


NEEDS_TIME = frozenset({ResetMethod.TO_DATETIME, ResetMethod.BY_DURATION})
"""The methods that need the offset of a time."""


class ResetError(Exception):
    """The method has no result for a partition. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Reset:
    """A method with its parameter.

    `number` is the offset of TO_OFFSET or the difference of SHIFT_BY, `timestamp_ms` the time of TO_DATETIME
    and BY_DURATION in milliseconds since 1970, and `offsets` the content of FROM_FILE.
    """

    method: ResetMethod
    number: int = 0
    timestamp_ms: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """The offsets of a partition.

    `latest` is the high watermark, `committed` is None if the group has committed nothing, and `at_time` is
    None if no record is as late as the time.
    """

    earliest: int
    latest: int
    committed: int | None = None
    at_time: int | None = None


@dataclass(frozen=True, slots=True)
class NewOffset:
    """The planned offset. `warning` is one sentence if the offset is not the requested one."""

    offset: int
    warning: str | None = None


def plan_reset(
    reset: Reset, partitions: Mapping[TopicPartition, KnownOffsets]
) -> dict[TopicPartition, NewOffset]:
    """Returns the new offset of each partition.

    Raises ResetError if SHIFT_BY finds no committed offset, or FROM_FILE contains no offset of a partition.
    """
    return {place: _new_offset(reset, place, known) for place, known in partitions.items()}


def _new_offset(reset: Reset, place: TopicPartition, known: KnownOffsets) -> NewOffset:
    match reset.method:
        case ResetMethod.TO_EARLIEST:
            return NewOffset(known.earliest)
        case ResetMethod.TO_LATEST:
            return NewOffset(known.latest)
        case ResetMethod.TO_OFFSET:
            return _in_range(place, reset.number, known)
        case ResetMethod.SHIFT_BY:
            if known.committed is None:
                raise ResetError(f"{place} has no committed offset that could be shifted")
            return _in_range(place, known.committed + reset.number, known)
        case ResetMethod.TO_DATETIME | ResetMethod.BY_DURATION:
            if known.at_time is None:
                return NewOffset(
                    known.latest, f"{place} has no record at or after this time, so it gets the latest offset"
                )
            return NewOffset(known.at_time)
        case ResetMethod.TO_CURRENT:
            return NewOffset(known.latest if known.committed is None else known.committed)
        case ResetMethod.FROM_FILE:
            if place not in reset.offsets:
                raise ResetError(f"the file contains no offset of {place}")
            return _in_range(place, reset.offsets[place], known)


def _in_range(place: TopicPartition, offset: int, known: KnownOffsets) -> NewOffset:
    if offset > known.latest:
        return NewOffset(
            known.latest,
            f"offset {offset} of {place} is higher than the latest one, so it gets offset {known.latest}",
        )
    if offset < known.earliest:
        return NewOffset(
            known.earliest,
            f"offset {offset} of {place} is lower than the earliest one, so it gets offset {known.earliest}",
        )
    return NewOffset(offset)


def offsets_at(
    cluster: Cluster,
    timestamps: Mapping[PartitionKey, int],
    leaders: Mapping[PartitionKey, int],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    silent: set[int] | None = None,
) -> dict[PartitionKey, OffsetAt]:
    """Returns the first offset at or after a timestamp, which may be a special one, for each partition.

    Raises, without `silent`, ClientError if a leader does not answer and KafkaError if it is not registered.
    """
    of_leader: dict[int, list[PartitionKey]] = {}
    for key in sorted(timestamps):
        leader = leaders.get(key, NO_LEADER)
        if leader != NO_LEADER:
            of_leader.setdefault(leader, []).append(key)
    timeout_ms = int(cluster.timeout_s * 1000)
    found: dict[PartitionKey, OffsetAt] = {}
    for leader, keys in sorted(of_leader.items()):
        for part in in_parts(keys):
            if silent is not None and leader in silent:
                break
            call = calls.list_offsets(
                {TopicPartition(*key): timestamps[key] for key in part},
                isolation_level=isolation_level,
                timeout_ms=timeout_ms,
            )
            try:
                rows = answer_of(cluster.broker(leader), call)
            except (ClientError, KafkaError):
                if silent is None:
                    raise
                silent.add(leader)
                break
            for place, row in rows.items():
                if row.error_code == ErrorCode.NONE:
                    found[place] = OffsetAt(row.offset, row.timestamp, row.leader_epoch)
    return found


def offsets_of_topics(
    cluster: Cluster,
    topics: Iterable[Topic],
    timestamp: int,
    *,
    isolation_level: int = READ_UNCOMMITTED,
    silent: set[int] | None = None,
) -> dict[TopicPartition, int]:
    """Returns the first offset at or after a timestamp for all partitions of `topics`, as `offsets_at` does.
    An offset is -1 if no record is that late.
    """
    leaders: dict[PartitionKey, int] = {
        TopicPartition(topic.name, partition.index): partition.leader
        for topic in topics
        for partition in topic.partitions
    }
    found = offsets_at(
        cluster, dict.fromkeys(leaders, timestamp), leaders, isolation_level=isolation_level, silent=silent
    )
    return {TopicPartition(*key): at.offset for key, at in found.items()}
