"""Which commands a change calls for, broker by broker."""

from __future__ import annotations

from tidelog.controller.core.changes import ChangeSet
from tidelog.controller.core.state import ClusterState
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import (
    DeletedTopic,
    LeaderAndIsr,
    PartitionState,
    StopReplica,
    UpdateMetadata,
)

Command = StopReplica | LeaderAndIsr | UpdateMetadata


def commands_for(
    state: ClusterState, changes: ChangeSet, controller_id: int, controller_epoch: int
) -> dict[int, list[Command]]:
    """Broker id -> its commands in the order to send them; only brokers that are alive.

    A broker that was just born is told everything: its own partitions (so that it finds its strays), then all
    metadata.
    """
    commands: dict[int, list[Command]] = {broker_id: [] for broker_id in state.brokers}
    born = changes.born & state.brokers.keys()
    for broker_id in born:
        commands[broker_id].append(_all_partitions_of(state, broker_id, controller_id, controller_epoch))
    others = state.brokers.keys() - born
    if others:
        for broker_id, stop in _stops(changes, controller_id, controller_epoch).items():
            if broker_id in others:
                commands[broker_id].append(stop)
        for broker_id, lead in _changed_partitions(state, changes, controller_id, controller_epoch).items():
            if broker_id in others:
                commands[broker_id].append(lead)
    if born:
        full = _full_metadata(state, controller_id, controller_epoch)
        for broker_id in born:
            commands[broker_id].append(full)
    if others and not changes.is_empty:
        update = _metadata(state, changes, controller_id, controller_epoch)
        for broker_id in others:
            commands[broker_id].append(update)
    return {broker_id: orders for broker_id, orders in commands.items() if orders}


def _all_partitions_of(
    state: ClusterState, broker_id: int, controller_id: int, controller_epoch: int
) -> LeaderAndIsr:
    partitions: list[PartitionState] = []
    configs = {}
    for name, topic in state.topics.items():
        if not any(broker_id in replicas for replicas in topic.assignments):
            continue
        partitions += [p for p in state.topic_state(name).partitions if broker_id in p.replicas]
        configs[name] = state.configs_of(name)
    return LeaderAndIsr(controller_id, controller_epoch, tuple(partitions), configs, is_full=True)


def _changed_partitions(
    state: ClusterState, changes: ChangeSet, controller_id: int, controller_epoch: int
) -> dict[int, LeaderAndIsr]:
    of_broker: dict[int, list[PartitionState]] = {}
    for topic_name, index in sorted(changes.partitions):
        topic = state.topics.get(topic_name)
        if topic is None or index >= len(topic.assignments):
            continue
        partition = state.partition_state(topic, index)
        if partition is None:
            continue
        if (topic_name, index) in changes.new_partitions:
            partition = partition._replace(is_new=True)
        for broker_id in partition.replicas:
            of_broker.setdefault(broker_id, []).append(partition)
    return {
        broker_id: LeaderAndIsr(
            controller_id,
            controller_epoch,
            tuple(partitions),
            {name: state.configs_of(name) for name in {partition.topic for partition in partitions}},
        )
        for broker_id, partitions in of_broker.items()
    }


def _stops(changes: ChangeSet, controller_id: int, controller_epoch: int) -> dict[int, StopReplica]:
    of_broker: dict[int, list[TopicPartition]] = {}
    topic_ids = {topic.name: topic.topic_id for topic in changes.deleted_topics}
    for topic in changes.deleted_topics:
        for index, replicas in enumerate(topic.assignments):
            for broker_id in replicas:
                of_broker.setdefault(broker_id, []).append(TopicPartition(topic.name, index))
    return {
        broker_id: StopReplica(
            controller_id,
            controller_epoch,
            tuple(partitions),
            {name: topic_ids[name] for name in {partition.topic for partition in partitions}},
            delete=True,
        )
        for broker_id, partitions in of_broker.items()
    }


def _full_metadata(state: ClusterState, controller_id: int, controller_epoch: int) -> UpdateMetadata:
    return UpdateMetadata(
        controller_id,
        controller_epoch,
        brokers=tuple(state.brokers[broker_id] for broker_id in sorted(state.brokers)),
        topics=tuple(state.topic_state(name) for name in state.topics),
        broker_configs=dict(state.broker_configs),
        feature_levels=state.feature_levels,
        is_full=True,
    )


def _metadata(
    state: ClusterState, changes: ChangeSet, controller_id: int, controller_epoch: int
) -> UpdateMetadata:
    return UpdateMetadata(
        controller_id,
        controller_epoch,
        brokers=tuple(state.brokers[broker_id] for broker_id in sorted(state.brokers)),
        topics=tuple(state.topic_state(name) for name in sorted(changes.topics & state.topics.keys())),
        deleted_topics=tuple(DeletedTopic(topic.name, topic.topic_id) for topic in changes.deleted_topics),
        broker_configs=dict(state.broker_configs) if changes.broker_configs else None,
        feature_levels=state.feature_levels if changes.features else None,
    )
