"""The commands that each broker receives after a change."""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from tidelog.controller.core.decision import Steps
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import (
    DeletedTopic,
    LeaderAndIsr,
    PartitionState,
    SecurityUpdate,
    StopReplica,
    UpdateMetadata,
)

Command = StopReplica | LeaderAndIsr | UpdateMetadata

MAX_RESTARTS: Final = 10
"""The number of times that the full commands for one broker are begun again because the state changed."""


def commands_for(
    state: ClusterState, changes: ChangeSet, controller_id: int, controller_epoch: int
) -> Steps[dict[int, list[Command]]]:
    """Returns the commands for each registered broker, in the order to send them.

    A broker that has just registered receives the full state: first its own partitions, by which it finds
    stray partitions, then all metadata. Each kind of command is sent once, regardless of the number of
    partitions. The commands are made in steps; the state must not change between two steps.
    """
    term = _Term(controller_id, controller_epoch)
    commands: dict[int, list[Command]] = {broker_id: [] for broker_id in sorted(state.brokers)}
    registered = changes.registered & state.brokers.keys()
    if registered:
        metadata = yield from _full_metadata(state, term)
        for broker_id in sorted(registered):
            partitions = yield from _all_partitions_of(state, broker_id, term)
            commands[broker_id] += [partitions, metadata]
    others = state.brokers.keys() - registered
    if others and not changes.is_empty:
        stops = yield from _stops(state, changes, term)
        changed = yield from _changed_partitions(state, changes, term)
        orders: list[dict[int, Command]] = [*stops, changed]
        update = yield from _metadata(state, changes, term)
        for broker_id in sorted(others):
            commands[broker_id] += [order[broker_id] for order in orders if broker_id in order]
            commands[broker_id].append(update)
    return {broker_id: sent for broker_id, sent in commands.items() if sent}


def full_commands(
    state: ClusterState, broker_id: int, controller_id: int, controller_epoch: int
) -> Steps[list[Command]]:
    """Returns the commands with the full state for a broker."""
    term = _Term(controller_id, controller_epoch)
    partitions = yield from _all_partitions_of(state, broker_id, term)
    return [partitions, (yield from _full_metadata(state, term))]


def steady_full_commands(
    state: ClusterState, broker_id: int, controller_id: int, controller_epoch: int
) -> Steps[list[Command]]:
    """Returns the commands of `full_commands`. The state may change between two steps: the work then begins
    again, so that the commands never mix two states. It is faster then, because the state remembers the
    topics that have not changed. After MAX_RESTARTS, it is done in one step.
    """
    for restarts_left in range(MAX_RESTARTS, -1, -1):
        steps = full_commands(state, broker_id, controller_id, controller_epoch)
        revision = state.latest_revision
        while state.latest_revision == revision:
            try:
                next(steps)
            except StopIteration as ended:
                commands: list[Command] = ended.value
                return commands
            if restarts_left:
                yield
    raise AssertionError("the last attempt has no pause in which the state could change")


class _Term(NamedTuple):
    controller_id: int
    controller_epoch: int


def _all_partitions_of(state: ClusterState, broker_id: int, term: _Term) -> Steps[LeaderAndIsr]:
    partitions: list[PartitionState] = []
    configs = {}
    for name, topic in state.topics.items():
        yield
        if any(broker_id in replicas for replicas in topic.assignments):
            partitions += [p for p in state.topic_state(name).partitions if broker_id in p.replicas]
            configs[name] = state.configs_of(name)
    return LeaderAndIsr(*term, tuple(partitions), configs, is_full=True)


def _changed_partitions(state: ClusterState, changes: ChangeSet, term: _Term) -> Steps[dict[int, Command]]:
    of_broker: dict[int, list[PartitionState]] = {}
    for topic_name, index in sorted(changes.partitions):
        yield
        partition = state.partition(topic_name, index)
        if partition is None:
            continue
        if (topic_name, index) in changes.new_partitions:
            partition = partition._replace(is_new=True)
        for broker_id in partition.replicas:
            if broker_id not in state.stopping or broker_id in partition.isr:
                of_broker.setdefault(broker_id, []).append(partition)
    return {
        broker_id: LeaderAndIsr(
            *term,
            tuple(partitions),
            {name: state.configs_of(name) for name in dict.fromkeys(p.topic for p in partitions)},
        )
        for broker_id, partitions in of_broker.items()
    }


def _stops(state: ClusterState, changes: ChangeSet, term: _Term) -> Steps[list[dict[int, Command]]]:
    """Adds the replicas to delete, and the replicas that a broker in controlled shutdown only stops. That
    broker has left their ISRs and must not fetch, or it would join them again.
    """
    deleted = _Stops()
    for topic in changes.deleted_topics:
        yield
        for index, replicas in enumerate(topic.assignments):
            for broker_id in replicas:
                deleted.add(broker_id, topic.name, index, topic.topic_id)
    for removed in sorted(changes.removed_replicas):
        yield
        current = state.topics.get(removed.topic)
        if current is None or current.topic_id != removed.topic_id:
            continue
        if removed.broker_id not in current.assignments[removed.partition]:
            deleted.add(removed.broker_id, removed.topic, removed.partition, removed.topic_id)
    stopped = _Stops()
    for name, index in sorted(changes.partitions) if state.stopping else ():
        yield
        partition = state.partition(name, index)
        if partition is None:
            continue
        for broker_id in state.stopping.intersection(partition.replicas):
            if broker_id not in partition.isr:
                stopped.add(broker_id, name, index, partition.topic_id)
    return [deleted.commands(term, delete=True), stopped.commands(term, delete=False)]


class _Stops:
    def __init__(self) -> None:
        self._partitions: dict[int, list[TopicPartition]] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}

    def add(self, broker_id: int, topic: str, partition: int, topic_id: uuid.UUID) -> None:
        self._partitions.setdefault(broker_id, []).append(TopicPartition(topic, partition))
        self._topic_ids[topic] = topic_id

    def commands(self, term: _Term, *, delete: bool) -> dict[int, Command]:
        return {
            broker_id: StopReplica(
                *term,
                tuple(partitions),
                {name: self._topic_ids[name] for name in dict.fromkeys(p.topic for p in partitions)},
                delete=delete,
            )
            for broker_id, partitions in self._partitions.items()
        }


def _full_metadata(state: ClusterState, term: _Term) -> Steps[UpdateMetadata]:
    topics = []
    for name in state.topics:
        topics.append(state.topic_state(name))
        yield
    return UpdateMetadata(
        *term,
        brokers=tuple(state.brokers[broker_id] for broker_id in sorted(state.brokers)),
        topics=tuple(topics),
        broker_configs=dict(state.broker_configs),
        feature_levels=state.features,
        security=SecurityUpdate(state.security_revision, tuple(state.security_entries())),
        is_full=True,
    )


def _metadata(state: ClusterState, changes: ChangeSet, term: _Term) -> Steps[UpdateMetadata]:
    topics = []
    for name in sorted(changes.topics & state.topics.keys()):
        topics.append(state.topic_state(name))
        yield
    return UpdateMetadata(
        *term,
        brokers=tuple(state.brokers[broker_id] for broker_id in sorted(state.brokers)),
        topics=tuple(topics),
        deleted_topics=tuple(DeletedTopic(topic.name, topic.topic_id) for topic in changes.deleted_topics),
        broker_configs=dict(state.broker_configs) if changes.broker_configs else None,
        feature_levels=state.features if changes.features else None,
        security=_security(state, changes) if changes.security else None,
    )


def _security(state: ClusterState, changes: ChangeSet) -> SecurityUpdate:
    found = {key: state.security_entry(key) for key in sorted(changes.security)}
    return SecurityUpdate(
        state.security_revision,
        tuple(entry for entry in found.values() if entry is not None),
        tuple(key for key, entry in found.items() if entry is None),
    )
