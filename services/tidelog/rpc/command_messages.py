"""Converts commands to the messages of protos/tidelog/rpc/v1/broker_commands.proto and back.

The conversion loses nothing: it distinguishes None from an empty value. A full UpdateMetadata with thousands
of partitions is converted on the broker's event loop, so partitions are converted directly, field by field.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

from tidelog.metadata.entries import SecurityEntry, decode_entry
from tidelog.model.features import FinalizedFeatures
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
    error_code,
    partition_message,
    registration,
    registration_message,
    topic_partition,
)
from tidelog.rpc.generated import broker_commands_pb2 as pb
from tidelog.rpc.generated import cluster_pb2
from tidelog.rpc.peer_values import (
    broker_ids,
    known_or_none,
    not_negative,
    peer_partition,
    topic_ids,
    topic_name,
)

BrokerCommand: TypeAlias = LeaderAndIsr | UpdateMetadata | StopReplica

_topic_of = attrgetter("topic", "topic_id")


def command_message(command: BrokerCommand) -> pb.Command:
    """Returns a Command without its id and addressee, which the caller sets."""
    match command:
        case LeaderAndIsr():
            return pb.Command(leader_and_isr=_leader_and_isr_message(command))
        case UpdateMetadata():
            return pb.Command(update_metadata=_update_metadata_message(command))
        case StopReplica():
            return pb.Command(stop_replica=_stop_replica_message(command))


def command(message: pb.Command) -> BrokerCommand | None:
    """Returns the command, or None if its kind is unknown.

    Raises ValueError if a name or number is invalid (`peer_values`), or if an id does not have 16 bytes.
    """
    match message.WhichOneof("kind"):
        case "leader_and_isr":
            return _leader_and_isr(message.leader_and_isr)
        case "update_metadata":
            return _update_metadata(message.update_metadata)
        case "stop_replica":
            return _stop_replica(message.stop_replica)
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


def _leader_and_isr_message(command: LeaderAndIsr) -> pb.LeaderAndIsr:
    return pb.LeaderAndIsr(
        controller_id=command.controller_id,
        controller_epoch=command.controller_epoch,
        topics=[
            _states_message(topic, topic_id, states)
            for (topic, topic_id), states in groupby(command.partitions, _topic_of)
        ],
        topic_configs=_settings_messages(command.topic_configs),
        is_full=command.is_full,
    )


def _leader_and_isr(message: pb.LeaderAndIsr) -> LeaderAndIsr:
    partitions: list[PartitionState] = []
    for topic in message.topics:
        partitions += _states(topic)
    return LeaderAndIsr(
        not_negative("controller id", message.controller_id),
        not_negative("controller epoch", message.controller_epoch),
        tuple(partitions),
        {topic_name(topic): dict(configs.values) for topic, configs in message.topic_configs.items()},
        message.is_full,
    )


def _update_metadata_message(command: UpdateMetadata) -> pb.UpdateMetadata:
    configs, features = command.broker_configs, command.feature_levels
    return pb.UpdateMetadata(
        controller_id=command.controller_id,
        controller_epoch=command.controller_epoch,
        brokers=[registration_message(broker) for broker in command.brokers],
        topics=[
            pb.TopicState(
                partitions=_states_message(topic.name, topic.topic_id, topic.partitions),
                configs=dict(topic.configs),
            )
            for topic in command.topics
        ],
        deleted_topics=[
            pb.DeletedTopic(name=topic.name, topic_id=topic.topic_id.bytes)
            for topic in command.deleted_topics
        ],
        broker_configs=None if configs is None else pb.BrokerConfigs(brokers=_settings_messages(configs)),
        feature_levels=None
        if features is None
        else pb.FeatureLevels(levels=dict(features.levels), epoch=features.epoch),
        is_full=command.is_full,
        security=None if command.security is None else _security_message(command.security),
    )


def _update_metadata(message: pb.UpdateMetadata) -> UpdateMetadata:
    has_configs, has_levels = message.HasField("broker_configs"), message.HasField("feature_levels")
    return UpdateMetadata(
        not_negative("controller id", message.controller_id),
        not_negative("controller epoch", message.controller_epoch),
        tuple(registration(broker) for broker in message.brokers),
        tuple(_topic_state(topic) for topic in message.topics),
        tuple(
            DeletedTopic(topic_name(topic.name), uuid.UUID(bytes=topic.topic_id))
            for topic in message.deleted_topics
        ),
        _settings(message.broker_configs.brokers) if has_configs else None,
        _features(message.feature_levels) if has_levels else None,
        message.is_full,
        _security(message.security) if message.HasField("security") else None,
    )


def _features(message: pb.FeatureLevels) -> FinalizedFeatures:
    return FinalizedFeatures(dict(message.levels), not_negative("epoch of features", message.epoch))


def _security_message(update: SecurityUpdate) -> pb.SecurityUpdate:
    return pb.SecurityUpdate(
        revision=update.revision,
        entries=[pb.SecurityEntry(key=entry.key, value=entry.encode()) for entry in update.entries],
        removed=update.removed,
    )


def _security(message: pb.SecurityUpdate) -> SecurityUpdate:
    """Skips the entries of kinds that only a newer controller knows. Raises InvalidEntryError."""
    decoded = (decode_entry(entry.key, entry.value) for entry in message.entries)
    known = tuple(entry for entry in decoded if isinstance(entry, SecurityEntry))
    return SecurityUpdate(message.revision, known, tuple(message.removed))


def _stop_replica_message(command: StopReplica) -> pb.StopReplica:
    return pb.StopReplica(
        controller_id=command.controller_id,
        controller_epoch=command.controller_epoch,
        partitions=[partition_message(partition) for partition in command.partitions],
        topic_ids={topic: topic_id.bytes for topic, topic_id in command.topic_ids.items()},
        delete=command.delete,
    )


def _stop_replica(message: pb.StopReplica) -> StopReplica:
    return StopReplica(
        not_negative("controller id", message.controller_id),
        not_negative("controller epoch", message.controller_epoch),
        tuple(topic_partition(partition) for partition in message.partitions),
        topic_ids(message.topic_ids),
        message.delete,
    )


def _topic_state(message: pb.TopicState) -> TopicState:
    states = message.partitions
    return TopicState(
        topic_name(states.topic),
        uuid.UUID(bytes=states.topic_id),
        tuple(_states(states)),
        dict(message.configs),
    )


def _states_message(
    topic: str, topic_id: uuid.UUID, states: Iterable[PartitionState]
) -> pb.TopicPartitionStates:
    message = pb.TopicPartitionStates(topic=topic, topic_id=topic_id.bytes)
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
    return message


def _states(message: pb.TopicPartitionStates) -> Sequence[PartitionState]:
    topic, topic_id = topic_name(message.topic), uuid.UUID(bytes=message.topic_id)
    return [
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
        for state in message.partitions
    ]


def _settings_messages(settings: Mapping[str, Mapping[str, str]]) -> dict[str, cluster_pb2.Settings]:
    return {name: cluster_pb2.Settings(values=dict(values)) for name, values in settings.items()}


def _settings(messages: Mapping[str, cluster_pb2.Settings]) -> dict[str, dict[str, str]]:
    return {name: dict(message.values) for name, message in messages.items()}
