"""The partitions that this broker hosts, each with its state, its replica and its role."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from tidelog.broker.cluster.view import MetadataView
from tidelog.broker.hosting.hosting_state import SETTLING, STATES, HostingMachine, HostingState
from tidelog.broker.hosting.replica import Replica
from tidelog.kernel.machine import Machine, Transition
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import PartitionState


class Role(NamedTuple):
    """The last command of the controller about a partition, with the topic's settings that differ from the
    defaults.
    """

    state: PartitionState
    overrides: Mapping[str, str]


class ReplicaStory(NamedTuple):
    """The state of a replica, and the transitions that led to it, the oldest first."""

    topic_partition: TopicPartition
    state: HostingState
    transitions: tuple[Transition[HostingState], ...]


class _Hosted:
    """One partition. `replica` is None unless it settles, leads or follows; `failed_role` is the role of a
    replica that failed.
    """

    __slots__ = ("failed_at_offset", "failed_role", "machine", "replica")

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.machine: HostingMachine = Machine(STATES, HostingState.OPENING, wall_ms)
        self.replica: Replica | None = None
        self.failed_role: Role | None = None
        self.failed_at_offset = 0
        """The log end offset when the replica failed, 0 if it has a role again."""


class HostedPartitions:
    """Maps each hosted partition to its state machine. `Hosting` alone calls the methods that change a state;
    each raises IllegalTransitionError if the state does not allow the change.
    """

    def __init__(self, metadata: MetadataView, broker_id: int, wall_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._broker_id = broker_id
        self._wall_ms = wall_ms
        self._hosted: dict[TopicPartition, _Hosted] = {}
        self.replicas: dict[TopicPartition, Replica] = {}
        """The replicas that lead or follow: an index of the state machines, for one lookup per request."""
        self._to_lead: frozenset[TopicPartition] = frozenset()

    # -- queries

    def state(self, topic_partition: TopicPartition) -> HostingState:
        """Returns the state, CLOSED if this broker does not host the partition."""
        hosted = self._hosted.get(topic_partition)
        return HostingState.CLOSED if hosted is None else hosted.machine.state

    def find(self, topic_partition: TopicPartition) -> Replica | None:
        """Returns the replica that leads, follows or settles; None if there is none."""
        replica = self.replicas.get(topic_partition)
        if replica is not None:
            return replica
        hosted = self._hosted.get(topic_partition)
        return None if hosted is None else hosted.replica

    def awaits_role(self, topic_partition: TopicPartition) -> bool:
        """Returns whether the current command makes this broker the leader, or a new role is being written to
        disk; the broker knows in a moment what it is to the partition.
        """
        hosted = self._hosted.get(topic_partition)
        return topic_partition in self._to_lead or (hosted is not None and hosted.machine.state is SETTLING)

    def replica(self, topic: str, partition: int) -> Replica:
        """Returns the replica that leads or follows. Raises KafkaError if there is none."""
        replica = self.replicas.get(TopicPartition(topic, partition))
        if replica is None:
            raise self.no_replica_error(topic, partition)
        return replica

    def leader_replica(self, topic: str, partition: int) -> Replica:
        """Returns the replica that leads. Raises KafkaError if this broker does not lead the partition."""
        replica = self.replica(topic, partition)
        if not replica.core.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def no_replica_error(self, topic: str, partition: int) -> KafkaError:
        """Returns the error for a partition that this broker does not host: another broker hosts it, or it
        does not exist.
        """
        if self._metadata.partition(topic, partition) is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def leader_of(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Returns the leader and the leader epoch, or None if neither the metadata nor a replica knows them.
        The replica may know a newer leader than the metadata.
        """
        state = self._metadata.partition(topic, partition)
        known = None if state is None else (state.leader, state.leader_epoch)
        replica = self.find(TopicPartition(topic, partition))
        if replica is not None and (known is None or replica.core.leader_epoch > known[1]):
            known = (replica.core.leader, replica.core.leader_epoch)
        return known

    @property
    def offline_count(self) -> int:
        """The number of replicas that the metadata assigns to this broker and that it does not host, because
        their logs failed. Any thread may read it.
        """
        return sum(
            self._broker_id in state.replicas
            and self.find(TopicPartition(topic.name, state.partition)) is None
            for topic in tuple(self._metadata.topics.values())
            for state in topic.partitions
        )

    def stories(self, topic: str | None = None) -> list[ReplicaStory]:
        """Returns the stories of the replicas of a topic, or of all that neither lead nor follow. Any thread
        may call this.
        """
        return [
            ReplicaStory(known, hosted.machine.state, tuple(hosted.machine.story))
            for known, hosted in tuple(self._hosted.items())
            if (known not in self.replicas if topic is None else known.topic == topic)
        ]

    def failed_roles(self) -> list[Role]:
        """Returns the roles of the partitions that failed."""
        return [hosted.failed_role for hosted in self._hosted.values() if hosted.failed_role is not None]

    def failed_at_offset(self, topic_partition: TopicPartition) -> int:
        """Returns the log end offset of a replica when it failed, or 0 if the partition has not failed. A log
        that is opened again and ends before this offset has lost records.
        """
        hosted = self._hosted.get(topic_partition)
        return 0 if hosted is None else hosted.failed_at_offset

    def failed_topic_id(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        """Returns the topic id of a partition that failed, or None if the partition has not failed."""
        hosted = self._hosted.get(topic_partition)
        role = None if hosted is None else hosted.failed_role
        return None if role is None else role.state.topic_id

    # -- transitions

    def is_to_lead(self, partitions: Iterable[TopicPartition]) -> None:
        """Notes the partitions that the current command gives to this broker to lead, in place of those of
        the last command. A command for many partitions takes some time until it reaches the last one.
        """
        self._to_lead = frozenset(partitions)

    def open(self, topic_partition: TopicPartition) -> HostingMachine:
        """OPENING: the log is being created or recovered, for the first time or after a failure."""
        hosted = self._hosted.get(topic_partition)
        if hosted is None:
            hosted = self._hosted[topic_partition] = _Hosted(self._wall_ms)
        else:
            hosted.machine.enter(HostingState.OPENING, "it is tried again")
            hosted.failed_role = None
        return hosted.machine

    def settle(self, topic_partition: TopicPartition, replica: Replica, role: Role) -> None:
        """SETTLING: the replica takes a role. It is not served until `settled`."""
        hosted = self._hosted[topic_partition]
        state = role.state
        hosted.machine.enter(SETTLING, f"leader {state.leader} in epoch {state.leader_epoch}")
        self.replicas.pop(topic_partition, None)
        hosted.replica = replica

    def settled(self, topic_partition: TopicPartition) -> None:
        """LEADING or FOLLOWING: the replica's role is on disk."""
        hosted = self._hosted[topic_partition]
        replica = hosted.replica
        assert replica is not None, "only a replica settles"
        state = HostingState.LEADING if replica.core.is_leader else HostingState.FOLLOWING
        hosted.machine.enter(state, "the role is on disk")
        hosted.failed_at_offset = 0
        self.replicas[topic_partition] = replica

    def fail(self, role: Role, reason: str) -> None:
        """FAILED: the log could not be opened, or this role could not be taken."""
        topic_partition = TopicPartition(role.state.topic, role.state.partition)
        if topic_partition not in self._hosted:  # its predecessor, of a deleted topic, could not be deleted
            self.open(topic_partition)
        hosted = self._hosted[topic_partition]
        hosted.machine.enter(HostingState.FAILED, reason)
        if hosted.replica is not None:
            hosted.failed_at_offset = hosted.replica.core.log_end_offset
        hosted.replica = None
        hosted.failed_role = role

    def close(self, topic_partition: TopicPartition) -> Replica | None:
        """CLOSED: this broker no longer hosts the partition. Returns the replica that led or followed."""
        hosted = self._hosted.get(topic_partition)
        if hosted is None:
            return None
        hosted.machine.enter(HostingState.CLOSED, "it is closed")
        del self._hosted[topic_partition]
        return self.replicas.pop(topic_partition, None)

    def close_failed(self, *, except_for: Collection[TopicPartition] = ()) -> None:
        """CLOSED for the failed partitions that are not in `except_for`. They are not tried again."""
        for topic_partition in list(self._failed()):
            if topic_partition not in except_for:
                self.close(topic_partition)

    def _failed(self) -> Iterator[TopicPartition]:
        for topic_partition, hosted in self._hosted.items():
            if hosted.failed_role is not None:
                yield topic_partition
