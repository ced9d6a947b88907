"""A controller core without a store, and a controller over a file-backed store with recording brokers."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from tidelog.controller.core.decision import (
    ABSENT,
    Chance,
    Context,
    ControllerDecision,
    ControllerRules,
    DecisionSteps,
    NoteShutdown,
    Write,
    rules_from,
)
from tidelog.controller.core.elections import eligible_after, min_isr_without_elr, settle_partitions
from tidelog.controller.core.state import ChangeSet, ClusterState, written
from tidelog.controller.core.topics import create_topics
from tidelog.controller.server import Controller
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import AclEntry, BrokerEntry, PartitionStateEntry, TopicConfigEntry, broker_key
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.session import LeaseKeeper
from tidelog.metadata.store import Compare, Put
from tidelog.model.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    user_principal,
)
from tidelog.model.brokers import Endpoint
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import (
    CommandResult,
    LeaderAndIsr,
    PartitionState,
    StopReplica,
    TopicState,
    UpdateMetadata,
)
from tidelog.rpc.controller_api import ForwardedRequest
from tidelog.rpc.in_process import InProcessBrokerChannels
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")

ENDPOINTS = (Endpoint("PLAINTEXT", "localhost", 9092),)


def whole(made: ControllerDecision[ReplyT] | DecisionSteps[ReplyT]) -> ControllerDecision[ReplyT]:
    """Returns a decision, whether or not it is made in steps."""
    return made if isinstance(made, ControllerDecision) else all_at_once(made)


class Core:
    """The state and a revision number in place of a store. Decisions are applied as if they were written at
    the next revision.
    """

    def __init__(self, brokers: Iterable[int] = (1,), **settings: str) -> None:
        self.state = ClusterState()
        self.revision = 1
        self.rules: ControllerRules = rules_from(
            BrokerSettings.parse({name.replace("_", "."): value for name, value in settings.items()}), {}
        )
        self.chance = Chance(random.Random(7).getrandbits)
        self.changes = ChangeSet()
        for broker_id in brokers:
            self.birth(broker_id)

    def context(self) -> Context:
        return Context(1, self.chance, self.rules)

    def birth(self, broker_id: int, **said: Any) -> None:  # Any: the fields of an entry have different types
        """Registers a broker and settles. `said` contains further fields of the registration."""
        self.register(broker_id, **said)
        self.settle()

    def death(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.revision += 1
            self.state.apply_removal(broker_key(broker_id), self.revision, self.changes)
        self.settle()

    def register(self, broker_id: int, **said: Any) -> int:
        """Registers a broker without settling. Returns the broker epoch."""
        self.revision += 1
        entry = BrokerEntry(broker_id, ENDPOINTS, **said)
        self.state.apply(entry, self.revision, self.revision, self.changes)
        return self.revision

    def settle(self) -> None:
        self.write(settle_partitions(self.state, self.context()))

    def configure(self, topic: str, **configs: str) -> None:
        self.revision += 1
        entry = TopicConfigEntry(topic, {n.replace("_", "."): value for n, value in configs.items()})
        self.state.apply(entry, self.revision, self.revision, self.changes)
        self.settle()

    def make(self, name: str, *replicas: list[int], **configs: str) -> None:
        """Creates a topic with these replicas."""
        topic = CreatableTopic(
            name,
            -1,
            -1,
            [CreatableReplicaAssignment(index, brokers) for index, brokers in enumerate(replicas)],
            [CreatableTopicConfig(n.replace("_", "."), value) for n, value in configs.items()],
        )
        reply = self.request(create_topics, CreateTopicsRequest([topic]))
        assert reply.topics[0].error_code == 0, reply

    def leader_writes(self, topic: str, isr: tuple[int, ...], partition: int = 0) -> None:
        """Applies the leader's own change of the ISR. The ELR follows from KIP-966's rule."""
        state = self.partition(topic, partition)
        replicas = self.state.topics[topic].assignments[partition]
        least = min_isr_without_elr(self.state, self.context(), topic, len(replicas))
        self.revision += 1
        after = state._replace(isr=isr, elr=eligible_after(state, isr, (), least))
        self.state.apply(after, self.revision, self.revision, self.changes)

    def write(self, made: ControllerDecision[object] | DecisionSteps[object]) -> None:
        self.revision += 1
        for record in whole(made).records:
            if isinstance(record, NoteShutdown):
                self.state.note_shutdown(record.broker_id, record.broker_epoch, self.changes)
            elif isinstance(record, Write):
                entry = record.entry
                if isinstance(entry, PartitionStateEntry) and record.expected_mod_revision is not None:
                    stored = self.state.partitions.get(entry.topic, {}).get(entry.partition)
                    assert record.expected_mod_revision == (stored.partition_epoch if stored else ABSENT)
                self.state.apply(entry, self.revision, self.revision, self.changes, is_own=True)
            else:
                self.state.apply_removal(record.key, self.revision, self.changes)

    def request(
        self,
        decide: Callable[
            [ClusterState, Context, RequestT, int], ControllerDecision[ReplyT] | DecisionSteps[ReplyT]
        ],
        message: RequestT,
        version: int = 99,
    ) -> ReplyT:
        decision = whole(decide(self.state, self.context(), message, version))
        self.write(decision)
        return decision.reply

    def partition(self, topic: str, partition: int = 0) -> PartitionStateEntry:
        """Returns the state as the store has it."""
        entry = written(self.state.partitions[topic][partition]).entry
        assert isinstance(entry, PartitionStateEntry)
        return entry


class RecordingBroker:
    """A broker that accepts every command and records the resulting state."""

    def __init__(self) -> None:
        self.commands: list[LeaderAndIsr | UpdateMetadata | StopReplica] = []
        self.replicas: dict[TopicPartition, PartitionState] = {}
        self.topics: dict[str, TopicState] = {}
        self.topic_ids: dict[uuid.UUID, str] = {}
        self.told = asyncio.Event()
        self.delay_s = 0.0

    async def leader_and_isr(self, command: LeaderAndIsr) -> CommandResult:
        await asyncio.sleep(self.delay_s)
        self.commands.append(command)
        if command.is_full:
            self.replicas.clear()
        for state in command.partitions:
            self.replicas[TopicPartition(state.topic, state.partition)] = state
        return CommandResult()

    async def update_metadata(self, command: UpdateMetadata) -> CommandResult:
        self.commands.append(command)
        if command.is_full:
            self.topics.clear()
        for deleted in command.deleted_topics:
            del self.topics[deleted.name]
        self.topics.update({topic.name: topic for topic in command.topics})
        self.told.set()
        return CommandResult()

    async def stop_replica(self, command: StopReplica) -> CommandResult:
        self.commands.append(command)
        for partition in command.partitions:
            del self.replicas[partition]
        return CommandResult()


class RemovableChannels(InProcessBrokerChannels):
    """Channels from which a test can remove a broker, which is then unreachable."""

    def detach(self, broker_id: int) -> None:
        self._brokers.pop(broker_id, None)


class Cluster:
    """A process with store, controller and brokers. After `stop`, `start` begins the next process."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.settings = BrokerSettings.parse({k.replace("_", "."): v for k, v in settings.items()})
        self.channels = RemovableChannels()
        self.brokers: dict[int, RecordingBroker] = {}
        self.epochs: dict[int, int] = {}
        self.leases: dict[int, LeaseKeeper] = {}

    async def start(self, brokers: Iterable[int] = (1,)) -> None:
        self.store = FileMetadataStore.open(self.directory, monotonic_ms=lambda: MonotonicMs(0))
        self.controller = await Controller.start(
            self.store, self.channels, self.settings, randomness=random.Random(3)
        )
        for broker_id in brokers:
            await self.birth(broker_id)

    async def birth(self, broker_id: int) -> RecordingBroker:
        broker = self.brokers[broker_id] = RecordingBroker()
        self.channels.attach(broker_id, broker)
        lease = self.leases[broker_id] = await LeaseKeeper.start(self.store)
        entry = BrokerEntry(broker_id, ENDPOINTS)
        registered = await self.store.txn(
            [Compare.absent(entry.key)], [Put(entry.key, entry.encode(), lease.lease)], []
        )
        assert registered.succeeded
        self.epochs[broker_id] = registered.revision
        await broker.told.wait()
        return broker

    async def death(self, broker_id: int) -> None:
        await self.leases.pop(broker_id).stop()
        self.channels.detach(broker_id)
        del self.brokers[broker_id]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Runs the loop until `holds()`. If that never happens, the test's timeout ends it."""
        while not holds():  # noqa: ASYNC110  what is waited for is another object's attribute
            await asyncio.sleep(0)

    async def call(self, api_key: int, message: object, version: int = 99) -> Any:
        """Sends a request to the controller. The type of the response depends on the API, hence Any."""
        return await asyncio.wait_for(self.controller.handle(api_key, ForwardedRequest(version, message)), 30)

    async def stop(self) -> None:
        """Stops as SIGKILL does: brokers write nothing at the end."""
        for lease in self.leases.values():
            await lease.stop(revoke=False)
        self.leases.clear()
        self.brokers.clear()
        await self.controller.stop()
        await self.store.close()


def acl_entry(user: str, topic: str = "t") -> AclEntry:
    """Returns an ACL that lets a user read a topic."""
    binding = AclBinding(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        topic,
        user_principal(user),
        "*",
        AclOperation.READ,
        PermissionType.ALLOW,
    )
    return AclEntry(binding)
