"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455, KIP-860).

While a partition is reassigned, its replicas are the target's, followed by those to remove. `adding` are the
replicas of the target that the partition did not have when the reassignment began; `removing` are its
replicas that are not in the target. The leader epoch grows whenever the set of replicas changes. A leader
that knows only the old set can then no longer write the ISR, and fetches of removed replicas no longer count.
`advance_reassignments` completes a reassignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.controller.core.decision import Context, ControllerDecision, DecisionSteps, Record, Write
from tidelog.controller.core.elections import next_state
from tidelog.controller.core.state import ClusterState, written
from tidelog.controller.core.topics import Room, check_replicas
from tidelog.metadata.entries import TopicEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


class Placement(NamedTuple):
    """The replicas of one partition, with those that are being added or removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the reassignment, which a cancellation restores."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)


def placement_of(topic: TopicEntry, partition: int) -> Placement:
    return Placement(
        topic.assignments[partition], topic.adding.get(partition, ()), topic.removing.get(partition, ())
    )


def with_placement(topic: TopicEntry, partition: int, placement: Placement) -> TopicEntry:
    assignments = list(topic.assignments)
    assignments[partition] = placement.replicas
    return topic._replace(
        assignments=tuple(assignments),
        adding=_with(topic.adding, partition, placement.adding),
        removing=_with(topic.removing, partition, placement.removing),
    )


def alter_partition_reassignments(
    state: ClusterState, context: Context, request: AlterPartitionReassignmentsRequest, api_version: int
) -> DecisionSteps[AlterPartitionReassignmentsResponse]:
    """Starts, changes or cancels reassignments. Each partition has its own result."""
    states: dict[tuple[str, int], Record] = {}
    changed: dict[str, TopicEntry] = {}
    done: set[tuple[str, int]] = set()
    responses = []
    room = Room(state, context.rules)
    for wanted in request.topics:
        results = []
        for target in wanted.partitions:
            yield
            code, message = ErrorCode.NONE, None
            where = (wanted.name, target.partition_index)
            try:
                if where in done:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition is given more than once.")
                topic = changed.get(wanted.name) or state.topics.get(wanted.name)
                after = _placement_after(state, topic, target, request.allow_replication_factor_change)
                assert topic is not None, "checked"
                record = _state_after(state, context, topic, target.partition_index, after)
                before = topic.assignments[target.partition_index]
                room.take_replicas(replica for replica in after.replicas if replica not in before)
                changed[wanted.name] = with_placement(topic, target.partition_index, after)
                if record is not None:
                    states[where] = record
                done.add(where)
            except KafkaError as error:
                code, message = error.code, error.message
            results.append(ReassignablePartitionResponse(target.partition_index, code, message))
        responses.append(ReassignableTopicResponse(wanted.name, results))
    # The topics' keys come last. If the controller fails before them, a partition only has a new epoch.
    topics = [Write(topic) for name, topic in changed.items() if topic != state.topics[name]]
    return ControllerDecision(
        (*states.values(), *topics),
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=responses,
        ),
    )


def list_partition_reassignments(
    state: ClusterState, context: Context, request: ListPartitionReassignmentsRequest, api_version: int
) -> DecisionSteps[ListPartitionReassignmentsResponse]:
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for asked in request.topics:
            yield
            wanted[asked.name] = set(asked.partition_indexes)
    topics = []
    for name in sorted(state.reassigning):
        yield
        topic = state.topics[name]
        if wanted is not None and name not in wanted:
            continue
        ongoing = []
        for index in sorted({*topic.adding, *topic.removing}):
            if wanted is not None and index not in wanted[name]:
                continue
            yield
            ongoing.append(
                OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=list(topic.assignments[index]),
                    adding_replicas=list(topic.adding.get(index, ())),
                    removing_replicas=list(topic.removing.get(index, ())),
                )
            )
        if ongoing:
            topics.append(OngoingTopicReassignment(name, ongoing))
    return ControllerDecision((), ListPartitionReassignmentsResponse(error_message=None, topics=topics))


def advance_reassignments(state: ClusterState, context: Context) -> DecisionSteps[int]:
    """Completes the reassignments whose whole target is in sync. The reply is their number. The leader moves
    if it is not in the target.

    The states are written before the topic. If the controller fails in between, the reassignment continues
    and is completed later.
    """
    records: list[Record] = []
    count = 0
    for name in sorted(state.reassigning):
        topic = after = state.topics[name]
        for partition in sorted({*topic.adding, *topic.removing}):
            yield
            known = state.partition(name, partition)
            placement = placement_of(topic, partition)
            target = placement.target
            if known is None or not set(target) <= set(known.isr):
                continue
            if placement.removing:
                reduced = known._replace(replicas=target)
                left = next_state(state, context, reduced, unclean=False, is_new_epoch=True)
                if left is None or left.leader == NO_LEADER:
                    continue
                records.append(written(left))
            after = with_placement(after, partition, Placement(target))
            count += 1
        if after != topic:
            records.append(Write(after))
    return ControllerDecision(tuple(records), count)


def _placement_after(
    state: ClusterState, topic: TopicEntry | None, target: ReassignablePartition, allow_factor_change: bool
) -> Placement:
    index = target.partition_index
    if topic is None or not 0 <= index < len(topic.assignments):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic or partition does not exist.")
    current = placement_of(topic, index)
    if target.replicas is None:
        if not current.is_moving:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment is in progress.")
        return Placement(current.origin)
    wanted = check_replicas(state, target.replicas, len(target.replicas), already=current.replicas)
    if len(wanted) != len(current.target) and not allow_factor_change:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(current.target)} to {len(wanted)}",
        )
    origin = current.origin
    removing = tuple(replica for replica in origin if replica not in wanted)
    adding = tuple(replica for replica in wanted if replica not in origin)
    return Placement(wanted + removing, adding, removing)


def _state_after(
    state: ClusterState, context: Context, topic: TopicEntry, partition: int, after: Placement
) -> Record | None:
    """Returns the partition's state with other replicas, or None if the set is the same. Raises
    KafkaError(INVALID_REPLICA_ASSIGNMENT) if the remaining replicas would lack acknowledged records.
    """
    before = state.partition(topic.name, partition)
    if before is None or set(after.replicas) == set(topic.assignments[partition]):
        return None
    moved = before._replace(replicas=after.replicas)
    settled = next_state(state, context, moved, unclean=False, is_new_epoch=True)
    is_stranded = bool(before.isr) and not set(before.isr) & set(after.replicas)
    if settled is None or is_stranded or (settled.leader == NO_LEADER and before.leader != NO_LEADER):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment for {topic.name}-{partition} because it would require an "
            "unclean leader election.",
        )
    return written(settled)


def _with(
    replicas: Mapping[int, tuple[int, ...]], partition: int, of_partition: tuple[int, ...]
) -> Mapping[int, tuple[int, ...]]:
    others = {index: kept for index, kept in replicas.items() if index != partition}
    return {**others, partition: of_partition} if of_partition else others
