"""The controller's commands to this broker (`CommandReceiver`), and what they do to its replicas (`Hosting`):
they are opened, lead or follow, and are closed, deleted or set aside. Disk work runs in a thread.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import structlog

from tidelog.broker.cluster.view import BrokerIdentity, CurrentSettings, MetadataView, log_config
from tidelog.broker.hosting.hosted_partitions import HostedPartitions, Role
from tidelog.broker.hosting.hosting_state import HostingState
from tidelog.broker.hosting.log_cleaner import LogCleaner
from tidelog.broker.hosting.replica import IsrChanges, Replica
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import EligibleLeadersSwitched
from tidelog.broker.replication.replica_fetchers import ReplicaFetchers
from tidelog.broker.requests.waiting import WaitingRequests
from tidelog.kernel.clock import Clock
from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.kernel.timer import Timer
from tidelog.log_format.directory import CorruptFileError
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import (
    DEFAULT_BROKER_ENTITY,
    CommandResult,
    LeaderAndIsr,
    StopReplica,
    TopicState,
    UpdateMetadata,
)
from tidelog.settings.broker_settings import BrokerSettings

PARTITIONS_AT_A_TIME: Final = 16
"""The number of replicas that are opened at the same time. Opening one mostly waits for the disk."""

FAILED_RETRY_MS: Final = 5_000
"""The time after which a partition that failed is tried again. The controller does not repeat the
command, because it sees a live broker, and a full disk may have space by then.
"""

_log = structlog.get_logger(__name__)


class CommandReceiver:
    """Carries out the controller's commands, one at a time (`tidelog.rpc.broker_commands.BrokerCommands`).
    Those of an older controller are rejected.
    """

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


class Hosting:
    """Moves each hosted partition through its states. Two calls for one partition must not overlap;
    `CommandReceiver` makes one at a time.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        settings: CurrentSettings,
        metadata: MetadataView,
        hosted: HostedPartitions,
        waiting: WaitingRequests,
        isr: IsrChanges,
        fetchers: ReplicaFetchers,
        log_cleaner: LogCleaner,
        log_directory: LogDirectory,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._metadata = metadata
        self._hosted = hosted
        self._waiting = waiting
        self._isr = isr
        self._fetchers = fetchers
        self._log_cleaner = log_cleaner
        self._log_directory = log_directory
        self._telemetry = telemetry
        self._clock = clock
        settings.observe(self._broker_settings_changed)

    def _broker_settings_changed(self, settings: BrokerSettings) -> None:
        for replica in self._hosted.replicas.values():
            replica.core.producers.expiration_ms = settings.producer_id_expiration_ms

    async def take_role(self, role: Role) -> None:
        """Makes a replica lead or follow, and opens it first if it is not open. Raises KafkaError if the log
        cannot be opened or the role cannot be written to disk. The partition is FAILED then.
        """
        state, topic_partition = role.state, TopicPartition(role.state.topic, role.state.partition)
        try:
            replica = await self._settled_replica(topic_partition, role)
        except BaseException as error:
            self._hosted.fail(role, str(error) or type(error).__name__)
            if isinstance(error, KafkaError):
                await self._fetchers.forget(topic_partition)
                await self._close_log(topic_partition)
            raise
        self._metadata.learn_id(state.topic_id, state.topic)
        self._fetchers.role_changed(replica)

    async def _settled_replica(self, topic_partition: TopicPartition, role: Role) -> Replica:
        state, hosted = role.state, self._hosted
        replica = hosted.replicas.get(topic_partition)
        if replica is not None and replica.topic_id != state.topic_id:
            # The topic was deleted and created again.
            self._metadata.forget_id(replica.topic_id)
            await self.close(topic_partition, delete=True)
            replica = None
        if replica is None:
            if hosted.failed_topic_id(topic_partition) not in (None, state.topic_id):
                hosted.close(topic_partition)  # the topic was deleted and created again
            replica = await self._open(topic_partition, role)
            if state.leader == self._identity.broker_id:
                self._expect_whole(topic_partition, replica.core.log_end_offset)
        hosted.settle(topic_partition, replica, role)
        await replica.lead_or_follow(state, self._clock.monotonic_ms())
        hosted.settled(topic_partition)
        return replica

    def _expect_whole(self, topic_partition: TopicPartition, log_end_offset: int) -> None:
        """Raises LogStorageError if the log lost records while its disk failed.

        Followers of a leader with such a log would truncate committed records. The partition stays FAILED
        instead, until another replica leads or this broker starts again.
        """
        failed_at_offset = self._hosted.failed_at_offset(topic_partition)
        if log_end_offset < failed_at_offset:
            raise LogStorageError(
                f"{topic_partition} cannot lead: its log ended at offset {failed_at_offset} before the disk "
                f"failed and ends at {log_end_offset} now"
            )

    async def _open(self, topic_partition: TopicPartition, role: Role) -> Replica:
        """Creates or recovers the log. Raises LogStorageError."""
        topic_id = role.state.topic_id
        machine = self._hosted.open(topic_partition)
        settings = self._settings.topic(role.overrides)
        directory = self._log_directory
        storage, producers, leader_epochs = await asyncio.to_thread(
            directory.open_partition,
            topic_partition,
            topic_id,
            log_config(settings),
            now_ms=self._clock.wall_ms(),
            is_only_replica=len(role.state.replicas) == 1,
            topic_settings=role.overrides,
        )
        broker_settings = self._settings.broker
        producers.expiration_ms = broker_settings.producer_id_expiration_ms
        max_lag = broker_settings.replica_lag_max_messages
        core = PartitionCore(
            self._identity.broker_id,
            producers,
            leader_epochs,
            log_start_offset=storage.log.log_start_offset,
            log_end_offset=storage.log.log_end_offset,
            high_watermark=directory.high_watermarks.get(topic_partition, 0),
            recovery_point=storage.recovery_point,
            min_in_sync_replicas=settings.min_insync_replicas,
            replica_lag_time_max_ms=broker_settings.replica_lag_time_max_ms,
            replica_lag_max_messages=max_lag if max_lag >= 0 else None,
        )
        storage.flush_times = self._telemetry.log_flushes
        traffic = self._telemetry.topic(topic_partition.topic)
        replica = Replica(
            topic_partition,
            topic_id,
            core,
            storage,
            settings,
            traffic,
            machine,
            self._waiting,
            self._isr,
            self._fetchers,
        )
        replica.step(EligibleLeadersSwitched(self._metadata.uses_elr))
        return replica

    async def keep_settings(self, update: UpdateMetadata) -> None:
        """Copies the settings of brokers and of hosted topics that an update has changed to the disk."""
        changed: list[tuple[PartitionLog, Mapping[str, str]]] = []
        await run_in_slices(self._find_changed(update.topics, changed))
        broker_configs, own = update.broker_configs, str(self._identity.broker_id)

        def keep() -> None:
            for storage, overrides in changed:
                storage.keep_topic_settings(overrides)
            if broker_configs is not None:
                self._log_directory.keep_broker_settings(
                    broker_configs.get(DEFAULT_BROKER_ENTITY, {}), broker_configs.get(own, {})
                )

        if changed or broker_configs is not None:
            await asyncio.to_thread(keep)

    def _find_changed(
        self, topics: Sequence[TopicState], changed: list[tuple[PartitionLog, Mapping[str, str]]]
    ) -> Steps[None]:
        for topic in topics:
            for state in topic.partitions:
                replica = self._hosted.replicas.get(TopicPartition(topic.name, state.partition))
                if replica is not None and replica.storage.topic_settings != topic.configs:
                    changed.append((replica.storage, topic.configs))
                yield

    def features_changed(self) -> Steps[None]:
        """Tells the replicas which features are on."""
        for replica in list(self._hosted.replicas.values()):
            replica.step(EligibleLeadersSwitched(self._metadata.uses_elr))
            yield

    async def close(self, topic_partition: TopicPartition, *, delete: bool) -> None:
        """Stops hosting the partition. With `delete`, its files are deleted after `file.delete.delay.ms`.
        Raises LogStorageError.
        """
        replica = self._hosted.close(topic_partition)
        if replica is None:
            return
        # Nothing is acknowledged from here on. A flush that is under way would still move the high watermark.
        replica.resign(self._clock.monotonic_ms())
        self._waiting.leadership_changed(topic_partition)
        await self._fetchers.forget(topic_partition)
        await self._log_cleaner.forget(topic_partition)
        if not any(hosted.topic == topic_partition.topic for hosted in self._hosted.replicas):
            self._telemetry.forget_topic(topic_partition.topic)
        directory = self._log_directory
        if delete:
            await asyncio.to_thread(directory.delete_partition, topic_partition, self._clock.wall_ms())
        else:
            snapshot = replica.core.producers.snapshot()
            await asyncio.to_thread(directory.close_partition, topic_partition, snapshot)
            directory.high_watermarks[topic_partition] = replica.core.high_watermark

    async def stop_replica(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID | None, *, delete: bool
    ) -> None:
        """Stops hosting the partition if it has this topic id, or any if `topic_id` is None. With `delete`,
        the files of a failed replica are deleted, too. Raises LogStorageError.
        """
        if self._hosted.state(topic_partition) is HostingState.FAILED:
            self._hosted.close(topic_partition)
        replica = self._hosted.replicas.get(topic_partition)
        if replica is None:
            if delete and topic_id is not None:
                await self._delete_unhosted(topic_partition, topic_id)
        elif topic_id in (None, replica.topic_id):
            await self.close(topic_partition, delete=delete)

    async def _delete_unhosted(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> None:
        """Deletes the files of a replica that failed before its topic was deleted. Raises LogStorageError."""
        directory = self._log_directory
        try:
            found_id = await asyncio.to_thread(directory.topic_id_on_disk, topic_partition)
        except (OSError, CorruptFileError) as error:
            raise LogStorageError(f"{topic_partition} can't be deleted: {error}") from error
        if found_id == topic_id:
            await asyncio.to_thread(directory.delete_partition, topic_partition, self._clock.wall_ms())

    async def _close_log(self, topic_partition: TopicPartition) -> None:
        """Closes the files of a replica that failed, so that they can be opened again."""
        try:
            await asyncio.to_thread(self._log_directory.close_partition, topic_partition)
        except KafkaError as error:
            _log.error("failed replica can't be closed", partition=str(topic_partition), reason=str(error))

    async def keep_only(self, expected: Collection[TopicPartition]) -> None:
        """Closes the replicas that the controller does not know and renames their directories. No data is
        deleted, because the controller may be wrong.
        """
        self._hosted.close_failed(except_for=expected)
        for topic_partition in [known for known in self._hosted.replicas if known not in expected]:
            await self.close(topic_partition, delete=False)
        strays = await asyncio.to_thread(self._log_directory.remove_strays, expected)
        for stray in strays:
            _log.warning("partition unknown to the controller is set aside", partition=str(stray))

    async def close_all(self) -> None:
        """Closes all logs: flushes and checkpoints them, writes the clean-shutdown marker and unlocks the
        directory. Raises LogStorageError.
        """
        await self._fetchers.stop()
        await self._log_cleaner.stop()
        self._hosted.close_failed()
        snapshots = await run_in_slices(self._close_replicas())
        await asyncio.to_thread(
            self._log_directory.close,
            broker_epoch=self._identity.broker_epoch,
            producer_snapshots=snapshots,
        )

    def _close_replicas(self) -> Steps[dict[TopicPartition, bytes]]:
        """Stops hosting all partitions. Returns their snapshots of producers."""
        snapshots: dict[TopicPartition, bytes] = {}
        for topic_partition, replica in list(self._hosted.replicas.items()):
            self._log_directory.high_watermarks[topic_partition] = replica.core.high_watermark
            snapshots[topic_partition] = replica.core.producers.snapshot()
            self._hosted.close(topic_partition)
            yield
        return snapshots
