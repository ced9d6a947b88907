"""Converts commands to the messages of protos/tidelog/rpc/v1/broker_commands.proto and back.

The conversion loses nothing: it distinguishes None from an empty value. A full UpdateMetadata with thousands
of partitions is converted on an event loop, so it is converted in steps, and partitions directly, field by
field.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from tidelog.kernel.steps import Steps
from tidelog.metadata.entries import SecurityEntry, decode_entry
from tidelog.model.features import FinalizedFeatures
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import (
    CommandResult,
    DeletedTopic,
    LeaderAndIsr,
    PartitionState,
    SecurityUpdate,
    StopReplica,
    TopicState,
    UpdateMetadata,
)
from tidelog.rpc.cluster_messages import (
    broker_ids,
    error_code,
    known_or_none,
    not_negative,
    partition_message,
    peer_partition,
    registration,
    registration_message,
    topic_ids,
    topic_name,
    topic_partition,
)
from tidelog.rpc.generated import broker_commands_pb2 as pb

if TYPE_CHECKING:
    from tidelog.rpc.generated import cluster_pb2

BrokerCommand: TypeAlias = LeaderAndIsr | UpdateMetadata | StopReplica

_topic_of = attrgetter("topic", "topic_id")


def command_message(command: BrokerCommand) -> Steps[pb.Command]:
    """Returns a Command without its id and addressee, which the caller sets."""
    message = pb.Command()
    match command:
        case LeaderAndIsr():
            yield from _fill_leader_and_isr(message.leader_and_isr, command)
        case UpdateMetadata():
            yield from _fill_update_metadata(message.update_metadata, command)
        case StopReplica():
            yield from _fill_stop_replica(message.stop_replica, command)
    return message


def command(message: pb.Command) -> Steps[BrokerCommand | None]:
    """Returns the command, or None if its kind is unknown.

    Raises ValueError if a name or number is invalid (`cluster_messages`), or if an id does not have 16 bytes.
    """
    match message.WhichOneof("kind"):
        case "leader_and_isr":
            return (yield from _leader_and_isr(message.leader_and_isr))
        case "update_metadata":
            return (yield from _update_metadata(message.update_metadata))
        case "stop_replica":
            return (yield from _stop_replica(message.stop_replica))
        case _:
            return None


def result_message(result: CommandResult) -> pb.CommandResult:
    return pb.CommandResult(
        error_code=result.error,
        partition_errors=[
            pb.PartitionError(topic=partition.topic, partition=partition.partition, error_code=code)
            for partition, code in result.partition_errors.items()
        ],
    )


def command_result(message: pb.CommandResult) -> CommandResult:
    """Raises ValueError if the topic name or number of a partition is invalid."""
    return CommandResult(
        error_code(message.error_code),
        {
            peer_partition(error.topic, error.partition): error_code(error.error_code)
            for error in message.partition_errors
        },
    )


def _fill_leader_and_isr(message: pb.LeaderAndIsr, command: LeaderAndIsr) -> Steps[None]:
    message.SetInParent()
    message.controller_id = command.controller_id
    message.controller_epoch = command.controller_epoch
    message.is_full = command.is_full
    for (topic, topic_id), states in groupby(command.partitions, _topic_of):
        yield from _fill_states(message.topics.add(), topic, topic_id, states)
    for topic, configs in command.topic_configs.items():
        message.topic_configs[topic].values.update(configs)
        yield


def _leader_and_isr(message: pb.LeaderAndIsr) -> Steps[LeaderAndIsr]:
    partitions: list[PartitionState] = []
    for topic in message.topics:
        partitions += yield from _states(topic)
    topic_configs: dict[str, dict[str, str]] = {}
    for name, configs in message.topic_configs.items():
        topic_configs[topic_name(name)] = dict(configs.values)
        yield
    return LeaderAndIsr(
        not_negative("controller id", message.controller_id),
        not_negative("controller epoch", message.controller_epoch),
        tuple(partitions),
        topic_configs,
        message.is_full,
    )


def _fill_update_metadata(message: pb.UpdateMetadata, command: UpdateMetadata) -> Steps[None]:
    message.SetInParent()
    message.controller_id = command.controller_id
    message.controller_epoch = command.controller_epoch
    message.is_full = command.is_full
    message.brokers.extend(registration_message(broker) for broker in command.brokers)
    for topic in command.topics:
        state = message.topics.add()
        state.configs.update(topic.configs)
        yield from _fill_states(state.partitions, topic.name, topic.topic_id, topic.partitions)
    for deleted in command.deleted_topics:
        message.deleted_topics.add(name=deleted.name, topic_id=deleted.topic_id.bytes)
        yield
    if command.broker_configs is not None:
        message.broker_configs.SetInParent()
        for broker, configs in command.broker_configs.items():
            message.broker_configs.brokers[broker].values.update(configs)
    if command.feature_levels is not None:
        message.feature_levels.SetInParent()
        message.feature_levels.levels.update(command.feature_levels.levels)
        message.feature_levels.epoch = command.feature_levels.epoch
    if command.security is not None:
        yield from _fill_security(message.security, command.security)


def _update_metadata(message: pb.UpdateMetadata) -> Steps[UpdateMetadata]:
    has_configs, has_levels = message.HasField("broker_configs"), message.HasField("feature_levels")
    topics: list[TopicState] = []
    for topic in message.topics:
        state = yield from _topic_state(topic)
        topics.append(state)
    deleted_topics: list[DeletedTopic] = []
    for deleted in message.deleted_topics:
        deleted_topics.append(DeletedTopic(topic_name(deleted.name), uuid.UUID(bytes=deleted.topic_id)))
        yield
    return UpdateMetadata(
        not_negative("controller id", message.controller_id),
        not_negative("controller epoch", message.controller_epoch),
        tuple(registration(broker) for broker in message.brokers),
        tuple(topics),
        tuple(deleted_topics),
        _settings(message.broker_configs.brokers) if has_configs else None,
        _features(message.feature_levels) if has_levels else None,
        message.is_full,
        (yield from _security(message.security)) if message.HasField("security") else None,
    )


def _features(message: pb.FeatureLevels) -> FinalizedFeatures:
    return FinalizedFeatures(dict(message.levels), not_negative("epoch of features", message.epoch))


def _fill_security(message: pb.SecurityUpdate, update: SecurityUpdate) -> Steps[None]:
    message.SetInParent()
    message.revision = update.revision
    message.removed.extend(update.removed)
    for entry in update.entries:
        message.entries.add(key=entry.key, value=entry.encode())
        yield


def _security(message: pb.SecurityUpdate) -> Steps[SecurityUpdate]:
    """Skips the entries of kinds that only a newer controller knows. Raises InvalidEntryError."""
    known: list[SecurityEntry] = []
    for entry in message.entries:
        decoded = decode_entry(entry.key, entry.value)
        if isinstance(decoded, SecurityEntry):
            known.append(decoded)
        yield
    return SecurityUpdate(message.revision, tuple(known), tuple(message.removed))


def _fill_stop_replica(message: pb.StopReplica, command: StopReplica) -> Steps[None]:
    message.SetInParent()
    message.controller_id = command.controller_id
    message.controller_epoch = command.controller_epoch
    message.delete = command.delete
    for topic, topic_id in command.topic_ids.items():
        message.topic_ids[topic] = topic_id.bytes
        yield
    for partition in command.partitions:
        message.partitions.append(partition_message(partition))
        yield


def _stop_replica(message: pb.StopReplica) -> Steps[StopReplica]:
    partitions: list[TopicPartition] = []
    for partition in message.partitions:
        partitions.append(topic_partition(partition))
        yield
    return StopReplica(
        not_negative("controller id", message.controller_id),
        not_negative("controller epoch", message.controller_epoch),
        tuple(partitions),
        topic_ids(message.topic_ids),
        message.delete,
    )


def _topic_state(message: pb.TopicState) -> Steps[TopicState]:
    states = message.partitions
    return TopicState(
        topic_name(states.topic),
        uuid.UUID(bytes=states.topic_id),
        tuple((yield from _states(states))),
        dict(message.configs),
    )


def _fill_states(
    message: pb.TopicPartitionStates, topic: str, topic_id: uuid.UUID, states: Iterable[PartitionState]
) -> Steps[None]:
    message.topic = topic
    message.topic_id = topic_id.bytes
    add = message.partitions.add
    for state in states:
        if state.topic != topic or state.topic_id != topic_id:
            raise ValueError(f"partition {state.topic}-{state.partition} does not belong to topic {topic!r}")
        add(
            partition=state.partition,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            replicas=state.replicas,
            controller_epoch=state.controller_epoch,
            partition_epoch=state.partition_epoch,
            is_new=state.is_new,
            elr=state.elr,
            last_known_elr=state.last_known_elr,
            adding_replicas=state.adding_replicas,
            removing_replicas=state.removing_replicas,
        )
        yield


def _states(message: pb.TopicPartitionStates) -> Steps[list[PartitionState]]:
    topic, topic_id = topic_name(message.topic), uuid.UUID(bytes=message.topic_id)
    states: list[PartitionState] = []
    for state in message.partitions:
        states.append(
            PartitionState(
                topic,
                topic_id,
                not_negative("partition", state.partition),
                known_or_none("leader", state.leader),
                known_or_none("leader epoch", state.leader_epoch),
                broker_ids("ISR", state.isr),
                broker_ids("list of replicas", state.replicas),
                known_or_none("controller epoch", state.controller_epoch),
                known_or_none("partition epoch", state.partition_epoch),
                state.is_new,
                broker_ids("ELR", state.elr),
                broker_ids("last known ELR", state.last_known_elr),
                broker_ids("list of adding replicas", state.adding_replicas),
                broker_ids("list of removing replicas", state.removing_replicas),
            )
        )
        yield
    return states


def _settings(messages: Mapping[str, cluster_pb2.Settings]) -> dict[str, dict[str, str]]:
    return {name: dict(message.values) for name, message in messages.items()}
