"""Offsets of times, the offsets to which the reset of a group leads, and start offsets of share groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidelog.client import calls
from tidelog.client.admin.groups import coordinator_of
from tidelog.client.calls import GROUP
from tidelog.client.cluster import Cluster, Topic, answer_of, until_answered
from tidelog.client.core.cluster_view import in_parts
from tidelog.client.errors import ClientError, raise_on_error, raise_on_group_error, request_error
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER, READ_UNCOMMITTED
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from tidelog.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from tidelog.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from tidelog.wire.messages.list_offsets import ListOffsetsPartitionResponse


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """The offset of a time.

    `offset` is -1 if no record is that late. `timestamp` is in milliseconds since 1970, or -1 if the request
    named no real time.
    """

    offset: int
    timestamp: int
    leader_epoch: int


def list_offsets(
    cluster: Cluster,
    topic: Topic,
    timestamp: int,
    *,
    partitions: list[int] | None = None,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[int, OffsetAt]:
    """Returns for each partition the first offset at or after `timestamp`, which may be a special timestamp.

    If a leader moves, the call is retried until the cluster's timeout. Raises KafkaError, ClientError.
    """
    found: dict[int, OffsetAt] = {}

    def look_up() -> None:
        nonlocal topic
        topic = cluster.topic(topic.name)

    def ask() -> None:
        failed: tuple[TopicPartition, int] | None = None
        leaders = {
            TopicPartition(topic.name, each.index): each.leader
            for each in topic.partitions
            if each.index not in found and (partitions is None or each.index in partitions)
        }
        asked = dict.fromkeys(leaders, timestamp)
        for place, row in _answers(cluster, asked, leaders, isolation_level):
            if row.error_code == ErrorCode.NONE:
                found[place.partition] = _offset_at(row)
            else:
                failed = (place, row.error_code)
        if failed is not None:
            raise request_error(failed[1], f"topic '{topic.name}' partition {failed[0].partition}")

    until_answered(cluster, ask, look_up=look_up)
    return dict(sorted(found.items()))


def offsets_at(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    leaders: Mapping[TopicPartition, int],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    silent: set[int] | None = None,
) -> dict[TopicPartition, OffsetAt]:
    """Returns the first offset at or after a timestamp, which may be a special one, for each partition.

    Raises, without `silent`, ClientError if a leader does not answer and KafkaError if it is not registered.
    """
    led = {key: leaders[key] for key in sorted(timestamps) if leaders.get(key, NO_LEADER) != NO_LEADER}
    return {
        place: _offset_at(row)
        for place, row in _answers(cluster, timestamps, led, isolation_level, silent)
        if row.error_code == ErrorCode.NONE
    }


def _offset_at(row: ListOffsetsPartitionResponse) -> OffsetAt:
    return OffsetAt(row.offset, row.timestamp, row.leader_epoch)


def _answers(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    leaders: Mapping[TopicPartition, int],
    isolation_level: int,
    silent: set[int] | None = None,
) -> Iterator[tuple[TopicPartition, ListOffsetsPartitionResponse]]:
    """Yields what the leaders answer about the partitions in `leaders`. With a set `silent`, leaders that do
    not answer join it, and those in it are not asked.
    """
    of_leader: dict[int, list[TopicPartition]] = {}
    for place, leader in leaders.items():
        of_leader.setdefault(leader, []).append(place)
    for leader, places in sorted(of_leader.items()):
        for part in in_parts(places):
            if silent is not None and leader in silent:
                break
            call = calls.list_offsets(
                {place: timestamps[place] for place in part},
                isolation_level=isolation_level,
                timeout_ms=cluster.timeout_ms,
            )
            try:
                rows = answer_of(cluster.broker(leader), call)
            except (ClientError, KafkaError):
                if silent is None:
                    raise
                silent.add(leader)
                break
            yield from rows.items()


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
    leaders = {
        TopicPartition(topic.name, partition.index): partition.leader
        for topic in topics
        for partition in topic.partitions
    }
    found = offsets_at(
        cluster, dict.fromkeys(leaders, timestamp), leaders, isolation_level=isolation_level, silent=silent
    )
    return {place: at.offset for place, at in found.items()}


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


_ASK_AGAIN = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""The errors of a topic that pass. An unknown topic, which counts as retriable elsewhere, is an outcome."""


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """The progress of a share group in a partition.

    `start_offset` is that of the first record whose delivery is not complete, None if the group has not begun
    to read. `lag` is the number of records whose delivery is not complete, None if the broker does not know
    it: Kafka states it since 4.2 (KIP-1226).
    """

    start_offset: int | None
    lag: int | None


def describe_share_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, ShareOffset]:
    """Returns the progress of a share group in all partitions that it reads or has read.

    A group that does not exist has none. Raises KafkaError, ClientError.
    """
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group_id, topics=None)])

    def ask() -> dict[TopicPartition, ShareOffset]:
        coordinator = coordinator_of(cluster, GROUP, group_id)
        found = coordinator.call(request, DescribeShareGroupOffsetsResponse).groups[0]
        raise_on_group_error(found.error_code, group_id, found.error_message)
        offsets: dict[TopicPartition, ShareOffset] = {}
        for topic in found.topics:
            for row in topic.partitions:
                place = TopicPartition(topic.topic_name, row.partition_index)
                subject = f"group '{group_id}', topic '{place.topic}' partition {place.partition}"
                raise_on_error(row.error_code, subject, row.error_message)
                offsets[place] = ShareOffset(_unless_negative(row.start_offset), _unless_negative(row.lag))
        return offsets

    return until_answered(cluster, ask)


def start_offsets(offsets: Mapping[TopicPartition, ShareOffset]) -> dict[TopicPartition, int]:
    """Returns the start offsets of the partitions that the group has begun to read."""
    return {
        place: offset.start_offset for place, offset in offsets.items() if offset.start_offset is not None
    }


def alter_share_offsets(cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Sets start offsets of a share group without members. The group is created if it does not exist.

    Raises KafkaError (NON_EMPTY_GROUP if the group has members), ClientError.
    """
    for part in in_parts(sorted(offsets.items())):
        _alter_share_offsets(cluster, group_id, part)


def _alter_share_offsets(cluster: Cluster, group_id: str, offsets: list[tuple[TopicPartition, int]]) -> None:
    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for place, offset in offsets:
        topics.setdefault(place.topic, []).append(
            AlterShareGroupOffsetsRequestPartition(place.partition, offset)
        )
    request = AlterShareGroupOffsetsRequest(
        group_id, [AlterShareGroupOffsetsRequestTopic(name, rows) for name, rows in topics.items()]
    )

    def ask() -> None:
        coordinator = coordinator_of(cluster, GROUP, group_id)
        answer = coordinator.call(request, AlterShareGroupOffsetsResponse)
        raise_on_group_error(answer.error_code, group_id, answer.error_message)
        for topic in answer.responses:
            for row in topic.partitions:
                place = TopicPartition(topic.topic_name, row.partition_index)
                subject = f"group '{group_id}', topic '{place.topic}' partition {place.partition}"
                raise_on_error(row.error_code, subject, row.error_message)

    until_answered(cluster, ask)


def delete_share_offsets(cluster: Cluster, group_id: str, topics: Collection[str]) -> dict[str, ErrorCode]:
    """Deletes the start offsets of topics of a share group without members, and returns each topic's result.

    The result of a topic that the group does not read is UNKNOWN_TOPIC_OR_PARTITION. Raises KafkaError
    (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND), ClientError.
    """
    done: dict[str, ErrorCode] = {}

    def ask() -> None:
        for part in in_parts(sorted(set(topics) - done.keys())):
            ask_for(part)

    def ask_for(left: list[str]) -> None:
        request = DeleteShareGroupOffsetsRequest(
            group_id, [DeleteShareGroupOffsetsRequestTopic(name) for name in left]
        )
        coordinator = coordinator_of(cluster, GROUP, group_id)
        answer = coordinator.call(request, DeleteShareGroupOffsetsResponse)
        raise_on_group_error(answer.error_code, group_id, answer.error_message)
        for row in answer.responses:
            if row.error_code not in _ASK_AGAIN:
                done[row.topic_name] = ErrorCode(row.error_code)
        for row in answer.responses:
            if row.error_code in _ASK_AGAIN:
                subject = f"group '{group_id}', topic '{row.topic_name}'"
                raise_on_error(row.error_code, subject, row.error_message)

    until_answered(cluster, ask)
    return done


def _unless_negative(number: int) -> int | None:
    return number if number >= 0 else None
