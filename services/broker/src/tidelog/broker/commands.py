"""The controller's commands to this broker: make, lead, follow and stop replicas; take in metadata. Refuses
an older controller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog
from tidelog.broker import hosting
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import (
    CommandResult,
    LeaderAndIsr,
    PartitionState,
    StopReplica,
    UpdateMetadata,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

PARTITIONS_AT_A_TIME: Final = 16
"""Replicas opened side by side: their time is the disk's."""

FAILED_RETRY_MS: Final = 5_000
"""How long a replica that could not take its role is left alone. The controller, for which this broker is
alive, does not say it again, and a full disk may have space by then.
"""

_log = structlog.get_logger(__name__)


class CommandReceiver:
    """The broker as the controller sees it (`tidelog.rpc.broker_commands.BrokerCommands`)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._controller_epoch = -1
        self._one_at_a_time = asyncio.Lock()
        self._is_stopped = False
        self._failed: dict[TopicPartition, tuple[PartitionState, Mapping[str, str]]] = {}
        self._retry: asyncio.Task[None] | None = None
        self._is_retry_due = False
        self.first_metadata = asyncio.Event()
        """Set once the broker knows the cluster and hosts what it should."""

    async def stop(self) -> None:
        """See a command under way through; those that come later find nobody (ConnectionError)."""
        async with self._one_at_a_time:
            self._is_stopped = True
            self._failed.clear()

    async def leader_and_isr(self, command: LeaderAndIsr) -> CommandResult:
        async with self._one_at_a_time:
            if self._is_stale(command.controller_epoch):
                return CommandResult(ErrorCode.STALE_CONTROLLER_EPOCH)
            errors: dict[TopicPartition, ErrorCode] = {}
            for start in range(0, len(command.partitions), PARTITIONS_AT_A_TIME):
                together = command.partitions[start : start + PARTITIONS_AT_A_TIME]
                outcomes = await asyncio.gather(
                    *(
                        self._lead_or_follow(s, command.topic_configs.get(s.topic, {}), errors)
                        for s in together
                    ),
                    return_exceptions=True,  # none is left at work behind this command's back
                )
                for outcome in outcomes:
                    if outcome is not None:
                        raise outcome
            if command.is_full:
                named = {TopicPartition(state.topic, state.partition) for state in command.partitions}
                self._failed = {known: role for known, role in self._failed.items() if known in named}
                await hosting.set_strays_aside(self._broker, named)
            return CommandResult(partition_errors=errors)

    async def update_metadata(self, command: UpdateMetadata) -> CommandResult:
        async with self._one_at_a_time:
            if self._is_stale(command.controller_epoch):
                return CommandResult(ErrorCode.STALE_CONTROLLER_EPOCH)
            broker = self._broker
            broker.metadata.apply(command)
            broker.fetchers.brokers_changed()
            changed = command.topics
            if command.broker_configs is not None:
                broker.apply_broker_configs(command.broker_configs)
                changed = tuple(broker.metadata.topics.values())  # what they leave to the broker
            for topic in changed:
                self._apply_topic_settings(topic.name, topic.configs)
            if broker.broker_id in broker.metadata.brokers:
                self.first_metadata.set()
            return CommandResult()

    async def stop_replica(self, command: StopReplica) -> CommandResult:
        async with self._one_at_a_time:
            if self._is_stale(command.controller_epoch):
                return CommandResult(ErrorCode.STALE_CONTROLLER_EPOCH)
            errors: dict[TopicPartition, ErrorCode] = {}
            for topic_partition in command.partitions:
                self._failed.pop(topic_partition, None)
                replica = self._broker.replicas.get(topic_partition)
                topic_id = command.topic_ids.get(topic_partition.topic)
                try:
                    if replica is None:
                        if command.delete and topic_id is not None:
                            await hosting.delete_unhosted(self._broker, topic_partition, topic_id)
                    elif topic_id in (None, replica.topic_id):
                        await self._stop(topic_partition, delete=command.delete)
                except KafkaError as error:
                    _log.error("replica can't be stopped", partition=str(topic_partition), reason=str(error))
                    errors[topic_partition] = error.code
            return CommandResult(partition_errors=errors)

    def _is_stale(self, controller_epoch: int) -> bool:
        if self._is_stopped:
            raise ConnectionError(f"broker {self._broker.broker_id} stops")
        if controller_epoch < self._controller_epoch:
            return True
        self._controller_epoch = controller_epoch
        return False

    async def _lead_or_follow(
        self, state: PartitionState, overrides: Mapping[str, str], errors: dict[TopicPartition, ErrorCode]
    ) -> None:
        broker, topic_partition = self._broker, TopicPartition(state.topic, state.partition)
        try:
            replica = broker.replicas.get(topic_partition)
            if replica is not None and replica.topic_id != state.topic_id:
                # The topic was deleted and made again.
                broker.metadata.forget_id(replica.topic_id)
                await self._stop(topic_partition, delete=True)
                replica = None
            if replica is None:
                replica = await hosting.open_replica(broker, topic_partition, state.topic_id, overrides)
            # Not served while a new epoch is on its way to the disk.
            broker.replicas.pop(topic_partition, None)
            replica.is_settling = True
            broker.settling[topic_partition] = replica
            try:
                await replica.lead_or_follow(state, broker.clock.monotonic_ms())
            finally:
                replica.is_settling = False
                del broker.settling[topic_partition]
            broker.replicas[topic_partition] = replica
            self._failed.pop(topic_partition, None)
            broker.metadata.learn_id(state.topic_id, state.topic)
            broker.fetchers.role_changed(replica)
        except KafkaError as error:
            _log.error("replica failed", partition=str(topic_partition), reason=str(error))
            errors[topic_partition] = error.code
            broker.replicas.pop(topic_partition, None)
            await broker.fetchers.forget(topic_partition)
            await hosting.close_failed(broker, topic_partition)
            self._failed[topic_partition] = state, overrides
            self._retry_later()
        self._wake(topic_partition)

    def _retry_later(self) -> None:
        if not self._is_retry_due:
            self._is_retry_due = True
            timer = self._broker.timer
            timer.add(self._start_retry, timer.now_ms() + FAILED_RETRY_MS)

    def _start_retry(self) -> None:
        self._retry = asyncio.get_running_loop().create_task(self._retry_failed(), name="failed-replicas")

    async def _retry_failed(self) -> None:
        """Once more, the roles that were given last."""
        async with self._one_at_a_time:
            self._is_retry_due = False
            for state, overrides in list(self._failed.values()):
                await self._lead_or_follow(state, overrides, {})

    def _apply_topic_settings(self, topic: str, overrides: Mapping[str, str]) -> None:
        broker = self._broker
        settings = broker.topic_settings(overrides)
        for state in broker.metadata.topics[topic].partitions:
            replica = broker.replicas.get(TopicPartition(topic, state.partition))
            if replica is not None and replica.settings != settings:
                replica.apply_settings(settings, broker.clock.now_ms())

    async def _stop(self, topic_partition: TopicPartition, *, delete: bool) -> None:
        await hosting.close_replica(self._broker, topic_partition, delete=delete)
        self._wake(topic_partition)

    def _wake(self, topic_partition: TopicPartition) -> None:
        """Whoever waits for this partition looks again: its leader may have changed."""
        self._broker.leadership_changed(topic_partition)
