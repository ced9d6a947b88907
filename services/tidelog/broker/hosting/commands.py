"""The controller's commands to this broker: host, lead, follow and stop replicas, and replace the metadata.
Commands of an older controller are rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from tidelog.broker.cluster.current_settings import CurrentSettings
from tidelog.broker.cluster.metadata_view import BrokerIdentity, MetadataView
from tidelog.broker.hosting.hosted_partitions import HostedPartitions, Role
from tidelog.broker.hosting.hosting import Hosting
from tidelog.broker.replication.replica_fetchers import ReplicaFetchers
from tidelog.broker.requests.waiting import WaitingRequests
from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.kernel.timer import Timer
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import (
    CommandResult,
    LeaderAndIsr,
    StopReplica,
    TopicState,
    UpdateMetadata,
)

PARTITIONS_AT_A_TIME: Final = 16
"""The number of replicas that are opened at the same time. Opening one mostly waits for the disk."""

FAILED_RETRY_MS: Final = 5_000
"""The time after which a partition that failed is tried again. The controller does not repeat the
command, because it sees a live broker, and a full disk may have space by then.
"""

_log = structlog.get_logger(__name__)


class CommandReceiver:
    """Carries out the controller's commands, one at a time (`tidelog.rpc.broker_commands.BrokerCommands`)."""

    def __init__(
        self,
        identity: BrokerIdentity,
        settings: CurrentSettings,
        metadata: MetadataView,
        hosted: HostedPartitions,
        hosting: Hosting,
        waiting: WaitingRequests,
        fetchers: ReplicaFetchers,
        timer: Timer,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._metadata = metadata
        self._hosted = hosted
        self._hosting = hosting
        self._waiting = waiting
        self._fetchers = fetchers
        self._timer = timer
        self._controller_epoch = -1
        self._one_at_a_time = asyncio.Lock()
        self._is_stopped = False
        self._retry: asyncio.Task[None] | None = None
        self._is_retry_due = False
        self.first_metadata = asyncio.Event()
        """Set once the broker knows the cluster and hosts the partitions that are assigned to it."""

    async def stop(self) -> None:
        """Completes the current command. Later commands raise ConnectionError."""
        async with self._one_at_a_time:
            self._is_stopped = True

    async def leader_and_isr(self, command: LeaderAndIsr) -> CommandResult:
        async with self._one_at_a_time:
            if self._is_stale(command.controller_epoch):
                return CommandResult(ErrorCode.STALE_CONTROLLER_EPOCH)
            errors: dict[TopicPartition, ErrorCode] = {}
            roles = [Role(s, command.topic_configs.get(s.topic, {})) for s in command.partitions]
            broker_id = self._identity.broker_id
            self._hosted.is_to_lead(
                TopicPartition(s.topic, s.partition) for s in command.partitions if s.leader == broker_id
            )
            try:
                await self._take_roles(roles, errors)
            finally:
                self._hosted.is_to_lead(())
            if command.is_full:
                await self._hosting.keep_only(
                    {TopicPartition(state.topic, state.partition) for state in command.partitions}
                )
            return CommandResult(partition_errors=errors)

    async def update_metadata(self, command: UpdateMetadata) -> CommandResult:
        async with self._one_at_a_time:
            if self._is_stale(command.controller_epoch):
                return CommandResult(ErrorCode.STALE_CONTROLLER_EPOCH)
            metadata = self._metadata
            # Only commands change the view, so it is still the same after these slices.
            security = await run_in_slices(metadata.security_after(command))
            metadata.apply(command, security)
            self._fetchers.brokers_changed()
            if command.feature_levels is not None:
                await run_in_slices(self._hosting.features_changed())
            changed = command.topics
            if command.broker_configs is not None:
                self._settings.apply(command.broker_configs)
                changed = tuple(metadata.topics.values())  # topics inherit the broker's settings
            await run_in_slices(self._apply_topic_settings(changed))
            await self._hosting.keep_settings(command)
            if self._identity.broker_id in metadata.brokers:
                self.first_metadata.set()
            return CommandResult()

    async def stop_replica(self, command: StopReplica) -> CommandResult:
        async with self._one_at_a_time:
            if self._is_stale(command.controller_epoch):
                return CommandResult(ErrorCode.STALE_CONTROLLER_EPOCH)
            errors: dict[TopicPartition, ErrorCode] = {}
            for topic_partition in command.partitions:
                topic_id = command.topic_ids.get(topic_partition.topic)
                try:
                    await self._hosting.stop_replica(topic_partition, topic_id, delete=command.delete)
                except KafkaError as error:
                    _log.error("replica can't be stopped", partition=str(topic_partition), reason=str(error))
                    errors[topic_partition] = error.code
            return CommandResult(partition_errors=errors)

    def _is_stale(self, controller_epoch: int) -> bool:
        if self._is_stopped:
            raise ConnectionError(f"broker {self._identity.broker_id} is stopping")
        if controller_epoch < self._controller_epoch:
            return True
        self._controller_epoch = controller_epoch
        return False

    async def _take_roles(self, roles: Sequence[Role], errors: dict[TopicPartition, ErrorCode]) -> None:
        for start in range(0, len(roles), PARTITIONS_AT_A_TIME):
            together = roles[start : start + PARTITIONS_AT_A_TIME]
            outcomes = await asyncio.gather(
                *(self._take_role(role, errors) for role in together),
                return_exceptions=True,  # so that all have ended when this command ends
            )
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome

    async def _take_role(self, role: Role, errors: dict[TopicPartition, ErrorCode]) -> None:
        topic_partition = TopicPartition(role.state.topic, role.state.partition)
        try:
            await self._hosting.take_role(role)
        except KafkaError as error:
            _log.error("replica failed", partition=str(topic_partition), reason=str(error))
            errors[topic_partition] = error.code
            self._retry_later()
        self._waiting.leadership_changed(topic_partition)

    def _retry_later(self) -> None:
        if not self._is_retry_due:
            self._is_retry_due = True
            self._timer.add_after(self._start_retry, FAILED_RETRY_MS)

    def _start_retry(self) -> None:
        self._retry = asyncio.get_running_loop().create_task(self._retry_failed(), name="failed-replicas")

    async def _retry_failed(self) -> None:
        """Repeats the last command for each partition that failed."""
        async with self._one_at_a_time:
            self._is_retry_due = False
            if self._is_stopped:
                return
            for role in self._hosted.failed_roles():
                await self._take_role(role, {})

    def _apply_topic_settings(self, topics: Iterable[TopicState]) -> Steps[None]:
        for topic in topics:
            settings = self._settings.topic(topic.configs)
            for state in topic.partitions:
                yield
                replica = self._hosted.replicas.get(TopicPartition(topic.name, state.partition))
                if replica is not None and replica.settings != settings:
                    replica.apply_settings(settings)
