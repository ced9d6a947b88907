"""The state of one streams group (KIP-1071), its changes, and its description.

StreamsGroupDescribe v0 and v1 contain no descriptions of topologies (KIP-1331).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.modern_group import ModernGroup, RecordType
from tidelog.group_coordinator.groups.modern_groups import SESSION_TIMER, ModernChanges
from tidelog.group_coordinator.groups.shared import Groups, OffsetCommitter, may_assign
from tidelog.group_coordinator.groups.streams.assignor import (
    StreamsMemberSpec,
    TaskAssignment,
    assignment_steps,
)
from tidelog.group_coordinator.groups.streams.streams_member import (
    NO_ASSIGNMENT,
    STREAMS_FORMAT,
    TOPOLOGY,
    Holders,
    OwnedTasks,
    StreamsMember,
    reconcile,
    to_message,
)
from tidelog.group_coordinator.groups.streams.topology import (
    ConfiguredTopology,
    InternalTopic,
    StreamsStatus,
    TopicInfo,
    Topology,
    record_of,
    topology_of_record,
)
from tidelog.group_coordinator.shard_core import CoordinatorRecord
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages import streams_group_describe as describing
from tidelog.wire.messages.records.streams_group_metadata import LastAssignmentConfig
from tidelog.wire.messages.streams_group_heartbeat import Status

NOT_VALIDATED: Final = -1
"""The validated topology epoch of a group whose topology does not fit the topics, or lacks some of them."""
FIRST_ASSIGNMENT_TIMER: Final = "first assignment"
"""The timer of a group that waits for more members before its first assignment."""
ASSIGNMENT_TIMER: Final = "assignment"
"""The timer of the next slice of a long computation of an assignment."""
STEPS_AT_ONCE: Final = 1_000
"""The steps of an assignment in one event. They take up to 30 ms. Each task takes about two steps."""
NUM_STANDBY_REPLICAS: Final = "num.standby.replicas"
"""The setting in the record of a group on which its assignment depends."""

_Task = tuple[str, int]
"""The subtopology id and the partition of a task."""


class TaskCounts(NamedTuple):
    """The numbers of tasks that the members have, by role. `wanted` is the number of active tasks of the
    topology, or None if it is not known yet.
    """

    active: int = 0
    standby: int = 0
    warmup: int = 0
    wanted: int | None = None


class UnfinishedAssignment(NamedTuple):
    """The computation of the target assignment of a group epoch, which returns it by member id."""

    epoch: int
    steps: Generator[None, None, dict[str, TaskAssignment]]


class StreamsGroup(ModernGroup[StreamsMember, TaskAssignment]):
    """The state of a group, its topology, and which of its members hold which tasks."""

    FORMAT = STREAMS_FORMAT
    INITIAL_EPOCH = 1
    """The first epoch, as in Kafka since 4.3. A member that waits for its first assignment is in it."""

    def __init__(self, group_id: str, groups: Groups) -> None:
        super().__init__(group_id)
        self._groups = groups
        self.validated_topology_epoch = NOT_VALIDATED
        self.assignment_configs: Mapping[str, str] = {}
        """The settings that the assignment of the epoch depends on."""
        self.topology: Topology | None = None
        self.required_topics: frozenset[str] = frozenset()
        """The topics whose changes may change the assignment."""
        self._read_topics: frozenset[str] = frozenset()
        """The topics that the application reads, other than changelogs."""
        self._active_holders: dict[_Task, str] = {}
        """Maps each active task to the member that has not given it up."""
        self._standby_holders: dict[_Task, set[str]] = {}
        self._warmup_holders: dict[_Task, set[str]] = {}

        # No record holds the following state.
        self.configured: ConfiguredTopology | None = None
        """The topology applied to the topics; None if no member has sent a heartbeat since the load."""
        self.is_first_assignment_delayed = False
        """Whether the group waits for more members before it assigns tasks."""
        self.unfinished_assignment: UnfinishedAssignment | None = None
        """The assignment that is being computed."""
        self.shutdown_requested_by: str | None = None
        """The member that asked the whole application to shut down."""
        self.endpoint_epoch = 0
        """Grows with each change of the partitions of a member that has a user endpoint."""

    def is_ready(self) -> bool:
        """Returns whether the topology fits the topics, and all of them exist."""
        return self.topology is not None and self.topology.epoch == self.validated_topology_epoch

    def apply_other(self, record_type: RecordType, key: Any, value: Any) -> None:
        self.put_topology(None if value is None else topology_of_record(value))

    def put_group(self, value: Any) -> None:
        super().put_group(value)
        self.validated_topology_epoch = value.validated_topology_epoch
        self.assignment_configs = {config.key: config.value for config in value.last_assignment_configs or ()}

    def put_topology(self, topology: Topology | None) -> None:
        self.topology, self.topics_changed = topology, True
        self.required_topics = frozenset() if topology is None else frozenset(topology.required_topics())
        subtopologies = () if topology is None else topology.subtopologies.values()
        self._read_topics = frozenset(topic for found in subtopologies for topic in found.read_topics())

    def subscribed_names(self) -> frozenset[str]:
        return self.required_topics

    def _hold(self, member: StreamsMember) -> None:
        for owned in (member.owned, member.revoking):
            for task in _tasks(owned.active):
                self._active_holders[task] = member.member_id
            for tasks, holders in self._passive_holders(owned):
                for task in _tasks(tasks):
                    holders.setdefault(task, set()).add(member.member_id)

    def _release(self, member: StreamsMember) -> None:
        for owned in (member.owned, member.revoking):
            for task in _tasks(owned.active):
                if self._active_holders.get(task) == member.member_id:
                    del self._active_holders[task]
            for tasks, holders in self._passive_holders(owned):
                for task in _tasks(tasks):
                    of_task = holders.get(task, set())
                    of_task.discard(member.member_id)
                    if not of_task:
                        holders.pop(task, None)

    def _passive_holders(
        self, owned: OwnedTasks
    ) -> tuple[tuple[Mapping[str, frozenset[int]], dict[_Task, set[str]]], ...]:
        return (owned.standby, self._standby_holders), (owned.warmup, self._warmup_holders)

    def holders_for(self, process_id: str) -> Holders:
        """Returns which tasks a member of this process cannot receive yet.

        An active task must be free everywhere. Besides, a process has one copy of a task's state, so it must
        have given the task up in any other role.
        """

        def is_in_process(member_ids: set[str] | tuple[()]) -> bool:
            return any(
                member_id in self.members and self.members[member_id].process_id == process_id
                for member_id in member_ids
            )

        def is_passive_in_process(name: str, partition: int) -> bool:
            task = name, partition
            return is_in_process(self._standby_holders.get(task, ())) or is_in_process(
                self._warmup_holders.get(task, ())
            )

        def active(name: str, partition: int) -> bool:
            return (name, partition) in self._active_holders or is_passive_in_process(name, partition)

        def passive(name: str, partition: int) -> bool:
            holder = self._active_holders.get((name, partition))
            is_active_here = holder is not None and is_in_process({holder})
            return is_active_here or is_passive_in_process(name, partition)

        return Holders(active, passive, passive)

    def partition_commit_check(self, committer: OffsetCommitter) -> Callable[[UUID, int], ErrorCode] | None:
        """Returns a check for a member that commits with an older epoch than its current one (KIP-1251).

        The member has not received its new epoch yet. It may commit offsets of active tasks that it received
        in that epoch or before and has not given up since.
        """
        member = self.members.get(committer.member_id)
        epoch, topology = committer.generation_or_epoch, self.topology
        if member is None or topology is None or epoch == member.member_epoch:
            return None
        owner, topic_names = member, self._groups.image.topic_names
        subtopology_of = {
            topic: name
            for name, subtopology in topology.subtopologies.items()
            for topic in subtopology.read_topics()
        }

        def check(topic_id: UUID, partition: int) -> ErrorCode:
            name = subtopology_of.get(topic_names.get(topic_id, ""))
            if name is not None:
                for owned in (owner.owned, owner.revoking):
                    given_epoch = owned.active.get(name, {}).get(partition)
                    if given_epoch is not None and given_epoch <= epoch:
                        return ErrorCode.NONE
            return ErrorCode.STALE_MEMBER_EPOCH

        return check

    def is_subscribed_to(self, topic: str) -> bool:
        """Returns whether the application reads the topic, other than as a changelog. A group without members
        reads nothing.
        """
        return bool(self.members) and topic in self._read_topics

    def _other_tombstones(self) -> list[CoordinatorRecord]:
        return [TOPOLOGY.record(None, self.group_id)]

    def task_counts(self) -> TaskCounts:
        """Returns how many tasks the members have, and how many the topology has."""
        subtopologies = None if self.configured is None else self.configured.subtopologies
        wanted = None if subtopologies is None else sum(one.task_count for one in subtopologies.values())
        standby, warmup = self._standby_holders.values(), self._warmup_holders.values()
        return TaskCounts(len(self._active_holders), sum(map(len, standby)), sum(map(len, warmup)), wanted)


def _tasks(tasks: Mapping[str, frozenset[int] | Mapping[int, int]]) -> list[_Task]:
    return [(name, partition) for name, partitions in tasks.items() for partition in partitions]


class AppliedTopology(NamedTuple):
    """A topology, and what it means for the topics that exist."""

    topology: Topology
    configured: ConfiguredTopology
    metadata_hash: int
    """The hash of the topics that the result depends on."""


class StreamsChanges(ModernChanges[StreamsGroup, StreamsMember, TaskAssignment]):
    """The changes that one event makes to one group."""

    def put_topology(self, topology: Topology) -> None:
        self.group.put_topology(topology)
        self.write(TOPOLOGY, record_of(topology))

    def update_member(
        self,
        before: StreamsMember,
        wanted: StreamsMember,
        applied: AppliedTopology,
        reported: TaskAssignment | None,
        statuses: list[Status],
    ) -> StreamsMember:
        """Applies a member's heartbeat, and returns the member after one step of its reconciliation.

        `reported` are the tasks that the member says it has, None if it does not say. Statuses of the
        assignment are added to `statuses`.
        """
        group = self.group
        is_first = not group.members
        is_new = before.member_id not in group.members
        has_changed = is_new or not wanted.has_subscription_of(before)
        if has_changed:
            self.put_subscription(wanted)
        if group.topology is None:
            self.put_topology(applied.topology)
        group.configured, group.topics_changed = applied.configured, False
        self._update_epoch(applied, must_grow=has_changed)
        if is_first and self._settings.streams_initial_rebalance_delay_ms > 0:
            self._delay_first_assignment()
        self.update_target(statuses)
        target = NO_ASSIGNMENT if group.is_first_assignment_delayed else group.target_of(wanted.member_id)
        return self._reconcile(wanted.member_id, target, reported)

    def _update_epoch(self, applied: AppliedTopology, *, must_grow: bool) -> None:
        """Increases the group epoch if members, the topology, topics or settings changed, so that another
        target is computed.
        """
        group = self.group
        validated = applied.topology.epoch if applied.configured.is_ready else NOT_VALIDATED
        configs = {NUM_STANDBY_REPLICAS: str(self._settings.streams_num_standby_replicas)}
        depends_on = applied.metadata_hash, validated, configs
        known = group.metadata_hash, group.validated_topology_epoch, group.assignment_configs
        if must_grow or depends_on != known:
            self._grow(*depends_on)

    def _grow(self, metadata_hash: int, validated_topology_epoch: int, configs: Mapping[str, str]) -> None:
        written = [LastAssignmentConfig(name, value) for name, value in sorted(configs.items())]
        self.put_group(self.group.epoch + 1, metadata_hash, validated_topology_epoch, written)

    def _delay_first_assignment(self) -> None:
        if not self.group.is_first_assignment_delayed:
            self.group.is_first_assignment_delayed = True
            self.set_timer(FIRST_ASSIGNMENT_TIMER, "", self._settings.streams_initial_rebalance_delay_ms)

    def update_target(self, statuses: list[Status]) -> None:
        """Computes the target assignment of the group epoch if it does not exist yet and may be computed."""
        group = self.group
        if group.is_first_assignment_delayed:
            statuses.append(_delayed("the configured initial rebalance delay"))
            return
        if group.epoch <= group.assignment_epoch:
            return
        interval_ms = self._settings.streams_assignment_interval_ms
        if not may_assign(group.assignment_timestamp_ms, interval_ms, self.now_ms):
            statuses.append(_delayed("the configured assignment interval"))
            return
        if group.unfinished_assignment is None:
            group.unfinished_assignment = UnfinishedAssignment(group.epoch, self._assignment_steps())
            self.continue_assignment()
        if group.unfinished_assignment is not None:
            statuses.append(_delayed("the number of tasks"))

    def continue_assignment(self) -> None:
        """Computes a slice of an assignment and carries out a complete one. A timer continues the others."""
        group, unfinished = self.group, self.group.unfinished_assignment
        if unfinished is None:
            return
        try:
            for _ in range(STEPS_AT_ONCE):
                next(unfinished.steps)
        except StopIteration as ended:
            targets: dict[str, TaskAssignment] = ended.value
        else:
            self.set_timer(ASSIGNMENT_TIMER, "", 0)
            return
        group.unfinished_assignment = None
        # A member that has joined since gets its tasks in the epoch of its join.
        found = {member_id: targets.get(member_id, NO_ASSIGNMENT) for member_id in group.members}
        self.put_targets(found, unfinished.epoch)

    def _assignment_steps(self) -> Generator[None, None, dict[str, TaskAssignment]]:
        group, configured = self.group, self.group.configured
        if configured is None or not configured.is_ready or configured.subtopologies is None:
            return _no_tasks()
        specs = []
        for member in group.members.values():
            target = group.target_of(member.member_id)
            specs.append(
                StreamsMemberSpec(
                    member.member_id, member.process_id, target.active_tasks, target.standby_tasks
                )
            )
        return assignment_steps(specs, configured.subtopologies, self._settings.streams_num_standby_replicas)

    def _reconcile(
        self, member_id: str, target: TaskAssignment, reported: TaskAssignment | None
    ) -> StreamsMember:
        """Moves the member one step toward its target assignment and returns it."""
        group = self.group
        before = group.members[member_id]
        if before.is_reconciled_to(group.assignment_epoch):
            return before
        holders = group.holders_for(before.process_id)
        after = reconcile(before, group.assignment_epoch, target, holders, reported)
        if not after.has_assignment_of(before):
            self.put_current_assignment(after)
            self.time_revocation(after, after.rebalance_timeout_ms)
        return after

    def remove_member(self, member: StreamsMember) -> None:
        """Removes a member with its tasks and its timers. The other members get another target."""
        group = self.group
        super().remove_member(member)
        if not group.members:
            group.shutdown_requested_by = None
        self._grow(group.metadata_hash, group.validated_topology_epoch, group.assignment_configs)

    def extend_session(self, member: StreamsMember) -> None:
        self.set_timer(SESSION_TIMER, member.member_id, self._settings.streams_session_timeout_ms)


def _no_tasks() -> Generator[None, None, dict[str, TaskAssignment]]:
    """Assigns no tasks to anybody."""
    yield
    return {}


def _delayed(reason: str) -> Status:
    return Status(StreamsStatus.ASSIGNMENT_DELAYED, f"Assignment delayed due to {reason}.")


def described_topology(group: StreamsGroup) -> describing.Topology | None:
    """Returns the topology with the decided numbers of partitions, or as the client defined it if they are
    not known.
    """
    topology, configured = group.topology, group.configured
    if topology is None:
        return None
    found = topology.subtopologies
    decided = None if configured is None or not configured.is_ready else configured.subtopologies
    return describing.Topology(
        topology.epoch,
        [
            describing.Subtopology(
                name,
                sorted(found[name].source_topics),
                sorted(found[name].repartition_sink_topics),
                _topics(
                    found[name].state_changelog_topics
                    if decided is None
                    else decided[name].state_changelog_topics.values()
                ),
                _topics(
                    found[name].repartition_source_topics
                    if decided is None
                    else decided[name].repartition_source_topics.values()
                ),
            )
            for name in sorted(found)
        ],
    )


def _topics(topics: Iterable[TopicInfo | InternalTopic]) -> list[describing.TopicInfo]:
    return [
        describing.TopicInfo(
            topic.name,
            topic.partitions,
            max(topic.replication_factor, 0),
            [describing.KeyValue(name, value) for name, value in sorted(topic.configs)],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def described_member(member: StreamsMember, target: TaskAssignment) -> describing.Member:
    endpoint = member.user_endpoint
    return describing.Member(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else describing.Endpoint(*endpoint),
        client_tags=[describing.KeyValue(key, value) for key, value in member.client_tags],
        assignment=_assignment(member.owned.active, member.owned.standby, member.owned.warmup),
        target_assignment=_target(target),
    )


def _target(target: TaskAssignment) -> describing.Assignment:
    return _assignment(target.active_tasks, target.standby_tasks, target.warmup_tasks)


def _assignment(
    active: Mapping[str, Iterable[int]],
    standby: Mapping[str, Iterable[int]],
    warmup: Mapping[str, Iterable[int]],
) -> describing.Assignment:
    task_ids = describing.TaskIds
    return describing.Assignment(
        to_message(task_ids, active), to_message(task_ids, standby), to_message(task_ids, warmup)
    )
