"""What the controller tells brokers: LeaderAndIsr, UpdateMetadata, StopReplica.

Each command carries the controller's id and epoch. A broker keeps the highest epoch it was shown and
refuses an older one with STALE_CONTROLLER_EPOCH; that check is the receiver's, so a deposed controller can
do no harm however late its commands arrive. The shapes follow Kafka's requests of these names; between
processes they travel over gRPC, in one process they are passed as they are, so both sides must treat them
as immutable.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.model.errors import ErrorCode
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
    "StopReplica",
    "TopicState",
    "UpdateMetadata",
]

NO_LEADER = -1
# Name of the cluster-wide default among the broker configs, as in Kafka's own config resources.
DEFAULT_BROKER_ENTITY = ""


class PartitionState(NamedTuple):
    """Leader, ISR and replicas of one partition, as the partition's state key holds them."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    leader: int  # NO_LEADER (-1) while no replica may lead
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    controller_epoch: int
    # mod_revision of the state key: what an ISR change by the leader compares against. Kafka's partition
    # epoch.
    partition_epoch: int = 0
    # True only when the replica never existed before: a log may be made afresh without suspicion.
    is_new: bool = False
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


class TopicState(NamedTuple):
    """A whole topic: every partition in order of its index, and the overrides set on the topic (not the
    defaults).
    """

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]


class DeletedTopic(NamedTuple):
    name: str
    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """Become leader or follower of these partitions; make the logs that aren't there.

    `topic_configs` holds the overrides of every topic named in `partitions` (a topic without overrides may
    be missing). With `is_full`, `partitions` are all that the receiving broker hosts: any other log of its
    is a stray. A partition whose `leader_epoch` and `partition_epoch` aren't above what the broker holds is
    answered with NONE and changes nothing (a repeated command).
    """

    controller_id: int
    controller_epoch: int
    partitions: tuple[PartitionState, ...]
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class UpdateMetadata:
    """What clients are to be told: brokers alive, topics, settings.

    `brokers` are all that are alive, each time. `topics` are those that changed (each whole) and
    `deleted_topics` those that went; with `is_full` `topics` are all there are, and what isn't named no
    longer exists. A topic that was deleted and made again comes in both: deletions are applied first, by
    topic id. `broker_configs` maps a broker id in decimal, or DEFAULT_BROKER_ENTITY, to its dynamic
    settings, all of them each time; None where nothing changed. `feature_levels` are the finalized features
    (ApiVersions answers them), None where nothing changed; a full update has both.
    """

    controller_id: int
    controller_epoch: int
    brokers: tuple[BrokerRegistration, ...]
    topics: tuple[TopicState, ...] = ()
    deleted_topics: tuple[DeletedTopic, ...] = ()
    broker_configs: Mapping[str, Mapping[str, str]] | None = None
    feature_levels: Mapping[str, int] | None = None
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Stop serving these partitions; with `delete` their logs go too. `topic_ids` guard against a topic
    made anew.
    """

    controller_id: int
    controller_epoch: int
    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, uuid.UUID]
    delete: bool


@dataclass(frozen=True, slots=True)
class CommandResult:
    """`error` is of the whole command (STALE_CONTROLLER_EPOCH, ...); those missing went well."""

    error: ErrorCode = ErrorCode.NONE
    partition_errors: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


class BrokerCommands(Protocol):
    """A broker as the controller sees it. Answers once the command has taken effect (logs exist, metadata
    is served).

    Raises ConnectionError if it is unknown whether the command arrived; it may then be sent again.
    """

    async def leader_and_isr(self, command: LeaderAndIsr) -> CommandResult: ...

    async def update_metadata(self, command: UpdateMetadata) -> CommandResult: ...

    async def stop_replica(self, command: StopReplica) -> CommandResult: ...


class BrokerChannels(Protocol):
    """How the controller reaches brokers: in one process a table, between processes gRPC channels."""

    def channel(self, broker: BrokerRegistration) -> BrokerCommands:
        """The channel to this life of the broker; raises ConnectionError if there can be none."""
        ...
