"""Groups: their coordinators, descriptions, committed offsets, and the changes of both."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from tidelog.client import calls
from tidelog.client.calls import GROUP, TRANSACTION, Call
from tidelog.client.cluster import BrokerConnection, Cluster, answer_of, until_answered
from tidelog.client.core.cluster_view import in_parts, partitions_by_topic
from tidelog.client.errors import (
    ClientError,
    UnsupportedApiError,
    group_error_of,
    raise_on_error,
    raise_on_group_error,
)
from tidelog.client.shell.connection import api_key_of
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import UNKNOWN_OFFSET
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages import consumer_group_describe, share_group_describe, streams_group_describe
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tidelog.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from tidelog.wire.schema import Message

ONGOING: Final = "Ongoing"
OPEN_STATES: Final = (ONGOING, "PrepareCommit", "PrepareAbort")
"""The states of transactions that have begun and not ended."""
TRANSACTION_STATES: Final = (
    "Empty",
    *OPEN_STATES,
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""The names of all states (Kafka's TransactionState)."""
ANY_DURATION: Final = -1
"""The least duration of `list_transactions` that leaves no transaction out."""
CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of classic consumer groups, and the group type of KIP-848."""
SHARE: Final = "share"
STREAMS: Final = "streams"
GROUP_TYPES: Final = ("classic", "consumer", SHARE, STREAMS)
"""The types of groups (KIP-848, KIP-932, KIP-1071)."""
DEAD: Final = "Dead"

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group. `coordinator_id` is the broker that listed it."""

    group_id: str
    group_type: str
    protocol_type: str
    state: str
    coordinator_id: int | None = None


class StreamsTask(NamedTuple):
    """A task of a streams group: a subtopology that reads the partitions with this number."""

    subtopology: str
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"


@dataclass(frozen=True, slots=True)
class StreamsTasks:
    """The tasks of a member of a streams group. Standby and warm-up tasks keep copies of the state."""

    active: tuple[StreamsTask, ...]
    standby: tuple[StreamsTask, ...]
    warmup: tuple[StreamsTask, ...]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member. `tasks` is None outside of streams groups; there, `partitions` are those of the active tasks.
    In a share group, several members may have the same partition.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    tasks: StreamsTasks | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A group. `epoch` is None for a classic group, because its description has no generation."""

    group_id: str
    group_type: str
    state: str
    assignor: str
    epoch: int | None
    members: tuple[GroupMember, ...]
    coordinator_id: int | None = None


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class Transaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[TopicPartition, ...]


def list_groups(
    cluster: Cluster, states: list[str], types: list[str], *, silent: set[int] | None = None
) -> list[ListedGroup]:
    """Returns the groups of all brokers, filtered by states and types if any are given.

    With a set `silent`, brokers that do not answer, or whose coordinators are not ready in time, join it, and
    their groups are left out.
    """
    least = 5 if types else 4 if states else 0

    def of_broker(broker_id: int) -> ListGroupsResponse:
        request = ListGroupsRequest(states, types)
        answer = cluster.broker(broker_id).call(request, ListGroupsResponse, at_least=least)
        raise_on_error(answer.error_code, f"groups of broker {broker_id}")
        return answer

    found = {
        row.group_id: ListedGroup(row.group_id, row.group_type, row.protocol_type, row.group_state, broker_id)
        for broker_id, answer in _of_each_broker(cluster, of_broker, silent)
        for row in answer.groups
    }
    return [found[group_id] for group_id in sorted(found)]


def describe_group(cluster: Cluster, group_id: str) -> Group:
    """Returns a group. Raises KafkaError GROUP_ID_NOT_FOUND."""

    def attempt() -> Group:
        broker_id = coordinator_id_of(cluster, GROUP, group_id)
        coordinator = cluster.broker(broker_id)
        for request, answer, read in _MODERN_TYPES:
            row = _described(coordinator, request([group_id]), answer, group_id)
            if row is not None:
                return replace(read(group_id, row), coordinator_id=broker_id)
        return replace(_describe_classic(coordinator, group_id), coordinator_id=broker_id)

    return until_answered(cluster, attempt)


def _described(
    coordinator: BrokerConnection, request: Message, answer: type[Any], group_id: str
) -> Any | None:  # the row of its API
    """Returns what an API that describes groups of one type says of a group, None if it does not know it:
    the broker may not support it, the group may be of another type, or the feature of the type may be off.
    Raises KafkaError for all other errors.
    """
    try:
        coordinator.version_for(api_key_of(request))
    except UnsupportedApiError:
        return None
    row = coordinator.call(request, answer).groups[0]
    if row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    raise_on_group_error(row.error_code, group_id, row.error_message)
    return row


def _consumer_group(group_id: str, row: consumer_group_describe.DescribedGroup) -> Group:
    members = tuple(
        GroupMember(each.member_id, each.instance_id, each.client_id, each.client_host, _of(each.assignment))
        for each in row.members
    )
    return Group(group_id, "consumer", row.group_state, row.assignor_name, row.group_epoch, members)


def _share_group(group_id: str, row: share_group_describe.DescribedGroup) -> Group:
    members = tuple(
        GroupMember(each.member_id, None, each.client_id, each.client_host, _of(each.assignment))
        for each in row.members
    )
    return Group(group_id, SHARE, row.group_state, row.assignor_name, row.group_epoch, members)


def _of(
    assignment: consumer_group_describe.Assignment | share_group_describe.Assignment,
) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    )


def _streams_group(group_id: str, row: streams_group_describe.DescribedGroup) -> Group:
    """Returns a streams group with the partitions of its active tasks."""
    subtopologies = None if row.topology is None else row.topology.subtopologies
    topics = {
        found.subtopology_id: [
            *found.source_topics,
            *(topic.name for topic in found.repartition_source_topics),
        ]
        for found in subtopologies or ()
    }
    members = tuple(
        GroupMember(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            tuple(
                TopicPartition(topic, index)
                for tasks in each.assignment.active_tasks
                for topic in topics.get(tasks.subtopology_id, ())
                for index in tasks.partitions
            ),
            StreamsTasks(
                _tasks(each.assignment.active_tasks),
                _tasks(each.assignment.standby_tasks),
                _tasks(each.assignment.warmup_tasks),
            ),
        )
        for each in row.members
    )
    return Group(group_id, STREAMS, row.group_state, "", row.group_epoch, members)


def _tasks(found: Iterable[streams_group_describe.TaskIds]) -> tuple[StreamsTask, ...]:
    return tuple(sorted(StreamsTask(ids.subtopology_id, index) for ids in found for index in ids.partitions))


_MODERN_TYPES: Final[
    tuple[tuple[Callable[[list[str]], Message], type[Message], Callable[..., Group]], ...]
] = (
    (
        consumer_group_describe.ConsumerGroupDescribeRequest,
        consumer_group_describe.ConsumerGroupDescribeResponse,
        _consumer_group,
    ),
    (
        share_group_describe.ShareGroupDescribeRequest,
        share_group_describe.ShareGroupDescribeResponse,
        _share_group,
    ),
    (
        streams_group_describe.StreamsGroupDescribeRequest,
        streams_group_describe.StreamsGroupDescribeResponse,
        _streams_group,
    ),
)
"""The request that describes groups of each type, its response, and what a row of that means."""


def _describe_classic(coordinator: BrokerConnection, group_id: str) -> Group:
    row = coordinator.call(DescribeGroupsRequest([group_id]), DescribeGroupsResponse).groups[0]
    if row.group_state == DEAD or row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise group_error_of(ErrorCode.GROUP_ID_NOT_FOUND, group_id)
    raise_on_group_error(row.error_code, group_id, row.error_message)
    has_partitions = row.protocol_type == CONSUMER_PROTOCOL
    members = tuple(
        GroupMember(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            assigned_partitions(bytes(each.member_assignment)) if has_partitions else (),
        )
        for each in row.members
    )
    return Group(group_id, "classic", row.group_state, row.protocol_data, None, members)


def committed_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, int]:
    """Returns all offsets that the group has committed."""

    def attempt() -> dict[TopicPartition, int]:
        coordinator = coordinator_of(cluster, GROUP, group_id)
        (found,) = answer_of(coordinator, _all_offsets([group_id]))
        raise_on_group_error(found.error_code, group_id)
        return _offsets_of(found)

    return until_answered(cluster, attempt)


def committed_offsets_of_groups(
    cluster: Cluster, groups: Iterable[ListedGroup], *, silent: set[int]
) -> dict[str, dict[TopicPartition, int]]:
    """Returns all offsets that the groups have committed, with one request to each coordinator.

    A group is left out if its coordinator has moved, loads or refuses. Coordinators that do not answer join
    `silent`, and those in it are not asked.
    """
    of_coordinator: dict[int, list[str]] = {}
    for group in groups:
        if group.coordinator_id is not None:
            of_coordinator.setdefault(group.coordinator_id, []).append(group.group_id)
    found: dict[str, dict[TopicPartition, int]] = {}
    for broker_id, names in of_coordinator.items():
        if broker_id in silent:
            continue
        try:
            answers = answer_of(cluster.broker(broker_id), _all_offsets(names))
        except (ClientError, KafkaError):
            silent.add(broker_id)
            continue
        found |= {each.group_id: _offsets_of(each) for each in answers if not each.error_code}
    return found


def _all_offsets(group_ids: Iterable[str]) -> Call[list[OffsetFetchResponseGroup]]:
    return calls.fetch_offsets([OffsetFetchRequestGroup(name, topics=None) for name in group_ids])


def _offsets_of(found: OffsetFetchResponseGroup) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, partition.partition_index): partition.committed_offset
        for topic in found.topics
        for partition in topic.partitions
        if not partition.error_code and partition.committed_offset != UNKNOWN_OFFSET
    }


def delete_group(cluster: Cluster, group_id: str) -> None:
    """Deletes a group and its offsets. Raises KafkaError: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""

    def attempt() -> None:
        coordinator = coordinator_of(cluster, GROUP, group_id)
        answer = coordinator.call(DeleteGroupsRequest([group_id]), DeleteGroupsResponse)
        raise_on_group_error(answer.results[0].error_code, group_id)

    until_answered(cluster, attempt)


def delete_offsets(
    cluster: Cluster, group_id: str, places: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Deletes offsets and returns the result of each partition.

    A partition whose topic a member subscribes to keeps its offset (GROUP_SUBSCRIBED_TO_TOPIC). Raises
    KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """
    found: dict[TopicPartition, ErrorCode] = {}
    for part in in_parts(sorted(places)):
        found |= _delete_offsets(cluster, group_id, part)
    return found


def _delete_offsets(
    cluster: Cluster, group_id: str, places: list[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    topics = [
        OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(index) for index in indexes])
        for name, indexes in partitions_by_topic(places).items()
    ]
    request = OffsetDeleteRequest(group_id, topics)

    def attempt() -> dict[TopicPartition, ErrorCode]:
        answer = coordinator_of(cluster, GROUP, group_id).call(request, OffsetDeleteResponse)
        raise_on_group_error(answer.error_code, group_id)
        return {
            TopicPartition(topic.name, row.partition_index): ErrorCode(row.error_code)
            for topic in answer.topics
            for row in topic.partitions
        }

    return until_answered(cluster, attempt)


def list_transactions(
    cluster: Cluster, states: list[str], least_duration_ms: int, *, silent: set[int] | None = None
) -> list[ListedTransaction]:
    """Returns the transactions of all brokers that have been open for `least_duration_ms`.

    With a set `silent`, brokers that do not answer, or whose coordinators are not ready in time, join it, and
    their transactions are left out.
    """
    least = 1 if least_duration_ms >= 0 else 0

    def of_broker(broker_id: int) -> ListTransactionsResponse:
        request = ListTransactionsRequest(states, [], least_duration_ms)
        answer = cluster.broker(broker_id).call(request, ListTransactionsResponse, at_least=least)
        raise_on_error(answer.error_code, f"transactions of broker {broker_id}")
        return answer

    found = [
        ListedTransaction(row.transactional_id, row.producer_id, row.transaction_state, broker_id)
        for broker_id, answer in _of_each_broker(cluster, of_broker, silent)
        for row in answer.transaction_states
    ]
    return sorted(found, key=lambda row: row.transactional_id)


def describe_transaction(cluster: Cluster, transactional_id: str) -> Transaction:
    """Returns a transaction. Raises KafkaError TRANSACTIONAL_ID_NOT_FOUND."""

    def attempt() -> Transaction:
        coordinator = coordinator_of(cluster, TRANSACTION, transactional_id)
        request = DescribeTransactionsRequest([transactional_id])
        row = coordinator.call(request, DescribeTransactionsResponse).transaction_states[0]
        raise_on_error(row.error_code, f"transactional id '{transactional_id}'")
        return Transaction(
            transactional_id,
            row.producer_id,
            row.producer_epoch,
            row.transaction_state,
            row.transaction_timeout_ms,
            row.transaction_start_time_ms,
            tuple(TopicPartition(topic.topic, index) for topic in row.topics for index in topic.partitions),
        )

    return until_answered(cluster, attempt)


def fence_producer(cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
    """Aborts the open transaction of a transactional id, and fences its producer as a new one would.

    `timeout_ms` becomes the transactional id's timeout. A transactional id that does not exist is created.
    Raises KafkaError, ClientError.
    """

    def attempt() -> None:
        coordinator = coordinator_of(cluster, TRANSACTION, transactional_id)
        request = InitProducerIdRequest(transactional_id, timeout_ms)
        answer = coordinator.call(request, InitProducerIdResponse)
        raise_on_error(answer.error_code, f"transactional id '{transactional_id}'")

    until_answered(cluster, attempt)


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Decodes a classic member's ConsumerProtocolAssignment. Returns nothing if it is malformed."""
    found: list[TopicPartition] = []
    try:
        (topics,) = _INT32.unpack_from(assignment, _INT16.size)
        position = _INT16.size + _INT32.size
        for _ in range(topics):
            (length,) = _INT16.unpack_from(assignment, position)
            position += _INT16.size
            name = assignment[position : position + length].decode()
            position += length
            (count,) = _INT32.unpack_from(assignment, position)
            position += _INT32.size
            for _ in range(count):
                found.append(TopicPartition(name, *_INT32.unpack_from(assignment, position)))
                position += _INT32.size
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(found)


def coordinator_id_of(cluster: Cluster, kind: int, key: str) -> int:
    """Returns the broker that FindCoordinator names. Raises KafkaError, ClientError."""
    return answer_of(cluster.any_broker(), calls.find_coordinator(kind, key)).node_id


def coordinator_of(cluster: Cluster, kind: int, key: str) -> BrokerConnection:
    """Returns a connection to the broker that FindCoordinator names. Raises KafkaError, ClientError."""
    return cluster.broker(coordinator_id_of(cluster, kind, key))


def _of_each_broker(
    cluster: Cluster, ask: Callable[[int], R], silent: set[int] | None
) -> Iterator[tuple[int, R]]:
    """Yields each broker's id and answer. With a set `silent`, brokers that do not answer, or only that they
    are not ready, join it instead, and those in it are not asked.
    """
    for broker in cluster.describe().brokers:
        if silent is not None and broker.broker_id in silent:
            continue
        try:
            answer = until_answered(cluster, partial(ask, broker.broker_id))
        except (ClientError, KafkaError) as error:
            if silent is None or (isinstance(error, KafkaError) and not error.is_retriable):
                raise
            silent.add(broker.broker_id)
        else:
            yield broker.broker_id, answer


_OF_MEMBERS_ONLY: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
)


class CommittedOffset(NamedTuple):
    """A committed offset: the next one to read. `leader_epoch` is that of the previous record, or -1."""

    offset: int
    leader_epoch: int = -1


def commit_offsets(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], metadata: str = ""
) -> None:
    """Commits offsets. Raises KafkaError (NON_EMPTY_GROUP if the group has members), ClientError."""
    for part in in_parts(sorted(offsets.items())):
        _commit_offsets(cluster, group_id, part, metadata)


def _commit_offsets(
    cluster: Cluster, group_id: str, offsets: list[tuple[TopicPartition, CommittedOffset]], metadata: str
) -> None:
    call = calls.commit_offsets(
        group_id, {place: (*committed, None) for place, committed in offsets}, metadata=metadata
    )

    def attempt() -> None:
        for place, code in answer_of(coordinator_of(cluster, GROUP, group_id), call).items():
            if code in _OF_MEMBERS_ONLY:
                raise KafkaError(
                    ErrorCode.NON_EMPTY_GROUP,
                    f"group '{group_id}' has members that commit its offsets; choose another group",
                )
            raise_on_error(code, f"group '{group_id}', topic '{place.topic}' partition {place.partition}")

    until_answered(cluster, attempt)
