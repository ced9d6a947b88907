"""The streams groups of a shard: StreamsGroupHeartbeat v0 and v1 (KIP-1071), as Kafka 4.3 serves it.

A member's first heartbeat creates the group and brings the topology of the application. Every change of
members, topics or settings increases the group epoch, and the next heartbeat of any member computes the
target assignment of that epoch. As in Kafka 4.3, there are no static members, no warm-up tasks, no source
topics by regular expressions, and no changes of a group's topology.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from tidelog.group_coordinator.groups.classic.classic_group import ClassicGroup
from tidelog.group_coordinator.groups.classic.classic_groups import ClassicGroups
from tidelog.group_coordinator.groups.modern_group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    MemberState,
    metadata_hash,
)
from tidelog.group_coordinator.groups.modern_groups import (
    REBALANCE_TIMER,
    SESSION_TIMER,
    ModernGroups,
    check_epoch,
    check_member,
    check_not_empty,
    check_room,
    check_size,
    check_texts,
    find_group,
    find_member,
    invalid_request,
)
from tidelog.group_coordinator.groups.shared import GroupKind, Groups, TimerKey
from tidelog.group_coordinator.groups.streams.assignor import STICKY, TaskAssignment
from tidelog.group_coordinator.groups.streams.streams_group import (
    ASSIGNMENT_TIMER,
    FIRST_ASSIGNMENT_TIMER,
    AppliedTopology,
    StreamsChanges,
    StreamsGroup,
    described_member,
    described_topology,
)
from tidelog.group_coordinator.groups.streams.streams_member import (
    TOPOLOGY,
    StreamsMember,
    covers,
    from_message,
    to_message,
    unknown_state,
)
from tidelog.group_coordinator.groups.streams.topology import (
    ConfiguredTopology,
    InternalTopic,
    StreamsStatus,
    Topology,
    configure,
    endpoint_partitions,
    record_of,
    texts_of,
    topology_of_request,
)
from tidelog.group_coordinator.shard_core import Reply, ShardDecision, ShardRequest
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.api_keys import MAX_ELEMENTS, ApiKey
from tidelog.wire.messages import streams_group_describe as describing
from tidelog.wire.messages import streams_group_heartbeat as heartbeats
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tidelog.wire.messages.streams_group_heartbeat import (
    EndpointToPartitions,
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

MAX_TASKS: Final = 3_500
"""The most tasks that a topology may have, without standby tasks. One member may have them all. It names them
in a heartbeat, which contains at most 4,000 elements.
"""
MAX_TASK_TOPICS: Final = 100_000
"""The most topics that all tasks of a topology may read together. The endpoints in an answer name each topic
of each task.
"""
MAX_TOPOLOGY_BYTES: Final = 512 * 1024
"""The largest record of a topology. A broker appends larger records of coordinators, too: only segment.bytes
and MAX_UNSENT_BYTES of a session limit an append, and one that exceeds them would end the ownership.
"""
MAX_MEMBER_BYTES: Final = 64 * 1024
"""The largest record of a member's metadata."""
MAX_ENDPOINT_HOST_CHARS: Final = 255
"""The longest name of a host in a user endpoint, as in DNS. An answer names the endpoints of all members."""
MAX_ENDPOINTS_BYTES: Final = 1024 * 1024
"""The most bytes of endpoints and their partitions in one answer. Further endpoints are left out."""
MAX_SUBTOPOLOGY_ID_CHARS: Final = 100
"""Kafka Streams numbers the subtopologies. The record of a member's tasks has each id up to four times."""
MAX_CREATIONS: Final = 1_000
"""The missing internal topics that one answer asks the broker to create. Later answers ask for the others."""
CREATE_TIMEOUT_MS: Final = 30_000
"""The time that the controller may take to create internal topics."""


class StreamsGroups(ModernGroups[StreamsGroup]):
    """The handler of requests for streams groups."""

    GROUP = StreamsGroup
    HEARTBEAT_RESPONSE = StreamsGroupHeartbeatResponse
    DESCRIBED_GROUP = describing.DescribedGroup
    DESCRIBE_RESPONSE = describing.StreamsGroupDescribeResponse

    def __init__(self, groups: Groups, classic: ClassicGroups) -> None:
        super().__init__(groups)
        self._classic = classic

    def changes(self, group: StreamsGroup, decision: ShardDecision, now_ms: WallMs) -> StreamsChanges:
        return StreamsChanges(self._groups, group, decision, now_ms)

    def _new_group(self, group_id: str) -> StreamsGroup:
        return StreamsGroup(group_id, self._groups)

    def _beat(self, request: ShardRequest[StreamsGroupHeartbeatRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        if GroupKind.STREAMS not in self._groups.settings.group_coordinator_rebalance_protocols:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        _check_request(message)
        _check_texts(message)
        if message.member_epoch != LEAVE_EPOCH:
            return self._join_or_update(request, now_ms)
        group = find_group(self._groups, message.group_id, StreamsGroup)
        member = find_member(group, message.member_id)
        if message.shutdown_application and group.shutdown_requested_by is None:
            group.shutdown_requested_by = message.member_id
        decision = ShardDecision()
        self.changes(group, decision, now_ms).remove_member(member)
        return self._left(request, member, decision)

    def _join_or_update(
        self, request: ShardRequest[StreamsGroupHeartbeatRequest], now_ms: WallMs
    ) -> ShardDecision:
        groups, message = self._groups, request.message
        group, replaced = self._group_for(message)
        reported = _reported(message)
        before = self._member_for(group, message, reported)
        wanted = _with_request(before, request)
        if not wanted.has_subscription_of(before):
            check_member(group, wanted, MAX_MEMBER_BYTES)
        applied = self._apply_topology(group, message)
        if reported is not None:
            _check_tasks(applied.configured, reported)
        # All checks have passed. From here on the state changes.
        statuses: list[Status] = []
        if group.topology is not None and wanted.topology_epoch < group.topology.epoch:
            statuses.append(_stale(wanted.topology_epoch, group.topology.epoch))
        decision = ShardDecision()
        if replaced is not None:
            self._classic.abandon(replaced, now_ms, decision)
        is_new_group = group.group_id not in groups.by_id
        groups.by_id[group.group_id] = group
        changes = self.changes(group, decision, now_ms)
        member = changes.update_member(before, wanted, applied, reported, statuses)
        changes.extend_session(member)
        if message.shutdown_application and group.shutdown_requested_by is None:
            group.shutdown_requested_by = member.member_id
        # A member that lacks tasks has missed a response. Kafka 4.3 leaves it without them.
        lacks_tasks = reported is not None and not covers(reported, member.owned)
        has_tasks = message.member_epoch == JOIN_EPOCH or member.owned != before.owned or lacks_tasks
        # As in Kafka, the heartbeat that creates a group leaves its endpoint epoch at 0.
        if has_tasks and member.user_endpoint is not None and not is_new_group:
            group.endpoint_epoch += 1
        statuses += _statuses(group)
        response = self._response(message, group, member, statuses, has_tasks=has_tasks)
        missing = applied.configured.missing_internal_topics.values()
        decision.replies.append(
            Reply(request.reply_to, response, topics_to_create=_creation(missing) if missing else None)
        )
        return decision

    def _group_for(self, message: StreamsGroupHeartbeatRequest) -> tuple[StreamsGroup, ClassicGroup | None]:
        """Returns the group, and the classic group without members that it replaces. A new group is not in
        `by_id` yet.
        """
        known = self._groups.by_id.get(message.group_id)
        if message.member_epoch == JOIN_EPOCH and isinstance(known, ClassicGroup) and not known.has_members():
            return self._new_group(message.group_id), known
        return self._found_or_new(message), None

    def _member_for(
        self, group: StreamsGroup, message: StreamsGroupHeartbeatRequest, reported: TaskAssignment | None
    ) -> StreamsMember:
        """Returns the member before the heartbeat; it is empty if it is new."""
        epoch = message.member_epoch
        if epoch == JOIN_EPOCH and message.member_id not in group.members:
            check_room(group, self._groups.settings.group_streams_max_size)
            return StreamsMember(message.member_id)
        member = find_member(group, message.member_id)
        owns_reported = reported is not None and member.owned.holds_all(reported)
        check_epoch(GroupKind.STREAMS, member, epoch, owns_reported=owns_reported)
        if epoch != JOIN_EPOCH and member.state is MemberState.UNKNOWN and reported != TaskAssignment():
            raise unknown_state()
        return member

    def _apply_topology(self, group: StreamsGroup, message: StreamsGroupHeartbeatRequest) -> AppliedTopology:
        """Returns the topology of the group after this heartbeat. Raises KafkaError if the topology of the
        message is invalid, or differs from that of the group in the same epoch or in a later one.
        """
        topology, configured = group.topology, group.configured
        if message.topology is not None:
            sent = topology_of_request(message.topology)
            if topology is not None and sent.epoch >= topology.epoch and sent != topology:
                raise invalid_request("Topology updates are not supported yet.")
            if topology is None:
                _check_subtopology_ids(sent)
                record = TOPOLOGY.record(record_of(sent), group.group_id)
                check_size("topology", record, MAX_TOPOLOGY_BYTES)
                topology = sent
        if topology is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The streams group has no topology.")
        if configured is not None and not group.topics_changed:
            return AppliedTopology(topology, configured, group.metadata_hash)
        configured = configure(topology, self._partition_count)
        _check_task_count(configured)
        return AppliedTopology(
            topology,
            configured,
            metadata_hash(topology.required_topics(), self._groups.image),
        )

    def _partition_count(self, topic: str) -> int | None:
        known = self._groups.image.topics.get(topic)
        return None if known is None else known.partition_count

    def _response(
        self,
        message: StreamsGroupHeartbeatRequest,
        group: StreamsGroup,
        member: StreamsMember,
        statuses: list[Status],
        *,
        has_tasks: bool,
    ) -> StreamsGroupHeartbeatResponse:
        settings = self._groups.group_settings.for_group(group.group_id)
        response = StreamsGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=settings.streams_heartbeat_interval_ms,
            status=statuses,
            endpoint_information_epoch=group.endpoint_epoch,
        )
        if has_tasks:
            response.active_tasks = to_message(heartbeats.TaskIds, member.owned.active)
            response.standby_tasks = to_message(heartbeats.TaskIds, member.owned.standby)
            response.warmup_tasks = to_message(heartbeats.TaskIds, member.owned.warmup)
        if group.endpoint_epoch != message.endpoint_information_epoch:
            response.partitions_by_user_endpoint = self._endpoints(group, member)
        return response

    def _endpoints(self, group: StreamsGroup, member: StreamsMember) -> list[EndpointToPartitions]:
        """Returns the partitions behind the members' user endpoints, that of `member` last. Endpoints of
        others that exceed MAX_ENDPOINTS_BYTES are left out.
        """
        own = list(self._endpoint(group.configured, member))
        others: list[EndpointToPartitions] = []
        left_bytes = MAX_ENDPOINTS_BYTES - sum(map(_size_bytes, own))
        for known in group.members.values():
            if known.member_id != member.member_id:
                for endpoint in self._endpoint(group.configured, known):
                    left_bytes -= _size_bytes(endpoint)
                    if left_bytes < 0:
                        return others + own
                    others.append(endpoint)
        return others + own

    def _endpoint(
        self, configured: ConfiguredTopology | None, member: StreamsMember
    ) -> Iterable[EndpointToPartitions]:
        """Yields the partitions behind the member's user endpoint, if it has one."""
        subtopologies = None if configured is None else configured.subtopologies
        if member.user_endpoint is None or subtopologies is None:
            return
        active = endpoint_partitions(member.owned.active, subtopologies, self._partition_count)
        standby = endpoint_partitions(member.owned.standby, subtopologies, self._partition_count)
        yield EndpointToPartitions(
            heartbeats.Endpoint(*member.user_endpoint),
            [heartbeats.TopicPartition(topic, found) for topic, found in active.items()],
            [heartbeats.TopicPartition(topic, found) for topic, found in standby.items()],
        )

    def _describe_group(self, group: StreamsGroup, described: describing.DescribedGroup) -> None:
        described.assignor_name = STICKY
        described.topology = described_topology(group)

    def _described_member(self, member: StreamsMember, target: TaskAssignment) -> describing.Member:
        return described_member(member, target)

    def _resume(self, changes: StreamsChanges) -> None:
        """Starts the full timeout of every revocation."""
        for member in changes.group.members.values():
            if member.state is MemberState.UNREVOKED:
                changes.set_timer(REBALANCE_TIMER, member.member_id, member.rebalance_timeout_ms)

    def timer_fired(self, key: TimerKey, now_ms: WallMs) -> ShardDecision:
        """Removes a member whose session ended or which exceeded its rebalance timeout, makes the first
        assignment of a group, or continues a long computation of an assignment.
        """
        decision = ShardDecision()
        group = self._groups.by_id.get(key.group_id)
        if not isinstance(group, StreamsGroup):
            return decision
        changes = self.changes(group, decision, now_ms)
        if key.kind == FIRST_ASSIGNMENT_TIMER:
            group.is_first_assignment_delayed = False
            if group.members and group.configured is not None:
                changes.update_target([])
            return decision
        if key.kind == ASSIGNMENT_TIMER:
            changes.continue_assignment()
            return decision
        member = group.members.get(key.member_id)
        if member is not None and (key.kind == SESSION_TIMER or member.state is MemberState.UNREVOKED):
            changes.remove_member(member)
        return decision


def _check_request(message: StreamsGroupHeartbeatRequest) -> None:
    """Raises KafkaError if a StreamsGroupHeartbeat is invalid, whatever the group's state is."""
    for name, value in (
        ("Static membership is not yet supported.", message.instance_id),
        ("TaskOffsets are not supported yet.", message.task_offsets),
        ("TaskEndOffsets are not supported yet.", message.task_end_offsets),
        ("WarmupTasks are not supported yet.", message.warmup_tasks or None),
    ):
        if value is not None:
            raise invalid_request(name)
    check_not_empty(MemberId=message.member_id, GroupId=message.group_id, RackId=message.rack_id)
    if message.user_endpoint is not None and len(message.user_endpoint.host) > MAX_ENDPOINT_HOST_CHARS:
        raise invalid_request(f"UserEndpoint.Host has more than {MAX_ENDPOINT_HOST_CHARS} characters.")
    tasks = (message.active_tasks, message.standby_tasks, message.warmup_tasks)
    if message.member_epoch == JOIN_EPOCH:
        if message.rebalance_timeout_ms == -1:
            raise invalid_request("RebalanceTimeoutMs must be provided in first request.")
        for name, found in zip(("ActiveTasks", "StandbyTasks", "WarmupTasks"), tasks, strict=True):
            if found is None or found:
                raise invalid_request(f"{name} must be empty when (re-)joining.")
        if message.topology is None:
            raise invalid_request("Topology must be non-null when (re-)joining.")
    elif message.member_epoch == STATIC_LEAVE_EPOCH:
        raise invalid_request("InstanceId can't be null.")
    elif message.member_epoch < STATIC_LEAVE_EPOCH:
        raise invalid_request(
            f"MemberEpoch is {message.member_epoch}, but must be greater than or equal to -2."
        )
    if any(found is None for found in tasks) and any(found is not None for found in tasks):
        raise invalid_request("If one task-type is non-null, all must be non-null.")
    if message.member_epoch != JOIN_EPOCH and message.topology is not None:
        raise invalid_request("Topology can only be provided when (re-)joining.")


def _check_texts(message: StreamsGroupHeartbeatRequest) -> None:
    """Raises KafkaError (INVALID_REQUEST) if the texts of a StreamsGroupHeartbeat are too long. Everything
    that follows may hash and encode them.
    """
    tags = message.client_tags or ()
    check_texts(
        "metadata of a member",
        chain(
            (message.member_id, message.rack_id, message.process_id),
            (text for tag in tags for text in (tag.key, tag.value)),
        ),
        MAX_MEMBER_BYTES,
    )
    if message.topology is not None:
        check_texts("topology", texts_of(message.topology), MAX_TOPOLOGY_BYTES)
    for tasks in (message.active_tasks, message.standby_tasks):
        if any(len(found.subtopology_id) > MAX_SUBTOPOLOGY_ID_CHARS for found in tasks or ()):
            raise invalid_request(f"A SubtopologyId has more than {MAX_SUBTOPOLOGY_ID_CHARS} characters.")


def _check_subtopology_ids(topology: Topology) -> None:
    """Raises KafkaError (STREAMS_INVALID_TOPOLOGY) if the id of a subtopology is too long."""
    if any(len(name) > MAX_SUBTOPOLOGY_ID_CHARS for name in topology.subtopologies):
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"The id of a subtopology has more than {MAX_SUBTOPOLOGY_ID_CHARS} characters.",
        )


def _check_task_count(configured: ConfiguredTopology) -> None:
    """Raises KafkaError (STREAMS_INVALID_TOPOLOGY) if the topology has too many tasks, or if its tasks read
    too many topics.
    """
    subtopologies = (configured.subtopologies or {}).values()
    tasks = sum(found.task_count for found in subtopologies)
    # A heartbeat names a subtopology once with its active tasks and once with its standby tasks.
    elements = tasks + 2 * len(subtopologies)
    task_topics = sum(
        found.task_count * (len(found.source_topics) + len(found.repartition_source_topics))
        for found in subtopologies
    )
    max_elements = MAX_ELEMENTS[ApiKey.STREAMS_GROUP_HEARTBEAT]
    for what, count, limit in (
        ("tasks", tasks, MAX_TASKS),
        ("tasks and subtopologies", elements, max_elements),
        ("topics of tasks", task_topics, MAX_TASK_TOPICS),
    ):
        if count > limit:
            raise KafkaError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                f"The topology has {count} {what}, and a group may have {limit} {what}.",
            )


def _check_tasks(configured: ConfiguredTopology, reported: TaskAssignment) -> None:
    """Raises KafkaError (INVALID_REQUEST) if a member has a task that the topology does not have."""
    if not configured.is_ready or configured.subtopologies is None:
        return
    for tasks in reported:
        for name, partitions in tasks.items():
            subtopology = configured.subtopologies.get(name)
            if subtopology is None:
                raise invalid_request(f"Subtopology {name} does not exist in the topology.")
            for partition in sorted(partitions):
                if not 0 <= partition < subtopology.task_count:
                    raise invalid_request(
                        f"Task {partition} for subtopology {name} is invalid. "
                        f"Number of tasks for this subtopology: {subtopology.task_count}"
                    )


def _reported(message: StreamsGroupHeartbeatRequest) -> TaskAssignment | None:
    """Returns the tasks that the member says it has, or None if it does not say."""
    active, standby, warmup = message.active_tasks, message.standby_tasks, message.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return TaskAssignment(from_message(active), from_message(standby), from_message(warmup))


def _with_request(
    member: StreamsMember, request: ShardRequest[StreamsGroupHeartbeatRequest]
) -> StreamsMember:
    """Returns the member with the fields of a heartbeat. Fields that the request omits keep their values."""
    message = request.message
    timeout_ms, endpoint = message.rebalance_timeout_ms, message.user_endpoint
    return member.with_client_of(
        request,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topology_epoch=member.topology_epoch if message.topology is None else message.topology.epoch,
        process_id=member.process_id if message.process_id is None else message.process_id,
        user_endpoint=member.user_endpoint if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=member.client_tags
        if message.client_tags is None
        else tuple(sorted({tag.key: tag.value for tag in message.client_tags}.items())),
    )


def _stale(topology_epoch: int, of_group: int) -> Status:
    return Status(
        StreamsStatus.STALE_TOPOLOGY,
        f"The member's topology epoch {topology_epoch} is behind the group's topology epoch {of_group}.",
    )


def _statuses(group: StreamsGroup) -> Iterable[Status]:
    """Yields the statuses that every member of the group gets."""
    problem = None if group.configured is None else group.configured.problem
    if problem is not None:
        yield Status(problem.status, problem.detail)
    if group.shutdown_requested_by is not None:
        yield Status(
            StreamsStatus.SHUTDOWN_APPLICATION,
            f"Streams group member {group.shutdown_requested_by} encountered a fatal error and requested a "
            "shutdown for the entire application.",
        )


def _size_bytes(endpoint: EndpointToPartitions) -> int:
    """Returns about how many bytes an endpoint takes in an answer."""
    topics = (*endpoint.active_partitions, *endpoint.standby_partitions)
    return len(endpoint.user_endpoint.host.encode()) + sum(
        len(found.topic) + 4 * len(found.partitions) for found in topics
    )


def _creation(topics: Iterable[InternalTopic]) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=[CreatableTopicConfig(name, value) for name, value in topic.configs],
            )
            for topic in islice(topics, MAX_CREATIONS)
        ],
        timeout_ms=CREATE_TIMEOUT_MS,
    )
