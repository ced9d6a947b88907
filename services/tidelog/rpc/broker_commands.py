"""The controller's commands to brokers: LeaderAndIsr, UpdateMetadata and StopReplica.

Each command carries the controller's id and epoch. A broker remembers the highest controller epoch that it
has seen and rejects a command of a lower one with STALE_CONTROLLER_EPOCH. Because the receiver checks this,
commands of a deposed controller do no harm, however late they arrive. The commands have the fields of Kafka's
requests of these names. Between processes they travel over gRPC. In one process the objects themselves are
passed, so both sides must treat them as immutable.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tidelog.metadata.entries import SecurityEntry
from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.model.errors import ErrorCode
from tidelog.model.features import FinalizedFeatures
from tidelog.model.topics import TopicPartition

__all__ = [
    "BrokerChannels",
    "BrokerCommands",
    "BrokerRegistration",
    "CommandResult",
    "DeletedTopic",
    "Endpoint",
    "LeaderAndIsr",
    "PartitionState",
    "SecurityUpdate",
    "StopReplica",
    "TopicState",
    "UpdateMetadata",
]

# The name of the cluster-wide default among the broker configs, as in Kafka's config resources.
DEFAULT_BROKER_ENTITY = ""


class PartitionState(NamedTuple):
    """Leader, ISR and replicas of a partition, from its state key."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    leader: int  # NO_LEADER (-1) if no replica may lead
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    controller_epoch: int
    # The mod_revision of the state key, with which the leader's ISR changes compare: Kafka's partition epoch.
    partition_epoch: int = 0
    # True only if the replica has never existed, so that an empty log does not mean lost data.
    is_new: bool = False
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


class TopicState(NamedTuple):
    """A topic with all its partitions, in the order of their index, and the settings that it overrides."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]


class DeletedTopic(NamedTuple):
    name: str
    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """Makes the broker leader or follower of partitions. The broker creates the logs that do not exist.

    - `topic_configs` contains the overrides of the topics in `partitions`. A topic without overrides may be
      missing.
    - If `is_full` is true, `partitions` are all partitions that the broker hosts, and its other logs are
      stray partitions.

    A partition whose `leader_epoch` and `partition_epoch` the broker already has is a repetition. It changes
    nothing and results in NONE.
    """

    controller_id: int
    controller_epoch: int
    partitions: tuple[PartitionState, ...]
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    is_full: bool = False


class SecurityUpdate(NamedTuple):
    """The security entries that were written, and the keys of those that were removed.

    `revision` is the store's revision of the last change that the controller knows.
    """

    revision: int
    entries: tuple[SecurityEntry, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateMetadata:
    """Updates the metadata that the broker gives to clients.

    - `brokers` are always all live brokers.
    - `topics` are the topics that have changed, each with all partitions. If `is_full` is true, they are all
      topics, and other topics no longer exist.
    - `deleted_topics` are the topics that were deleted. They are applied first, by topic id, because a topic
      that was deleted and created again is in both.
    - `broker_configs` maps broker ids in decimal, and DEFAULT_BROKER_ENTITY, to all their dynamic settings.
    - `feature_levels` are the finalized features.
    - `security` contains the changes of ACLs and client quotas. In a full update, it contains all of them.

    `broker_configs`, `feature_levels` and `security` are None if they have not changed. A full update
    contains all of them.
    """

    controller_id: int
    controller_epoch: int
    brokers: tuple[BrokerRegistration, ...]
    topics: tuple[TopicState, ...] = ()
    deleted_topics: tuple[DeletedTopic, ...] = ()
    broker_configs: Mapping[str, Mapping[str, str]] | None = None
    feature_levels: FinalizedFeatures | None = None
    is_full: bool = False
    security: SecurityUpdate | None = None


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Stops the broker's replicas of partitions; with `delete`, the broker also deletes their logs.

    `topic_ids` protect a topic that was deleted and created again under the same name.
    """

    controller_id: int
    controller_epoch: int
    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, uuid.UUID]
    delete: bool


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command. `error` concerns the whole command, for example STALE_CONTROLLER_EPOCH.
    Partitions that are not in `partition_errors` succeeded.
    """

    error: ErrorCode = ErrorCode.NONE
    partition_errors: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


class BrokerCommands(Protocol):
    """A broker as the controller sees it. A call returns when its command has taken effect.

    Raises ConnectionError if it is unknown whether the command arrived. The caller may then send it again.
    """

    async def leader_and_isr(self, command: LeaderAndIsr) -> CommandResult: ...

    async def update_metadata(self, command: UpdateMetadata) -> CommandResult: ...

    async def stop_replica(self, command: StopReplica) -> CommandResult: ...


class BrokerChannels(Protocol):
    """The controller's channels to brokers."""

    def channel(self, broker: BrokerRegistration) -> BrokerCommands:
        """Returns the channel to a registration of a broker. Raises ConnectionError if the broker has no
        address.
        """
        ...
