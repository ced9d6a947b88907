"""What the handlers of one broker share: settings, metadata, replicas, what waits, and the way to the
controller.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from tidelog.broker.closest_replica import is_rack_aware
from tidelog.broker.coordination.coordination import Coordination
from tidelog.broker.fetch_sessions import FetchSessions
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.log_cleaner import LogCleaner
from tidelog.broker.metadata_answers import MetadataAnswers
from tidelog.broker.metadata_view import MetadataView
from tidelog.broker.partition.events import AskEpochEnd, ProposeIsr, RestartLogAt, TruncateTo
from tidelog.broker.producer_ids import ProducerIds
from tidelog.broker.replica import Replica
from tidelog.broker.replication.follower_fetch_sessions import FollowerFetchSessions
from tidelog.broker.replication.isr_maintenance import IsrMaintenance
from tidelog.broker.replication.replica_fetchers import ReplicaFetchers
from tidelog.broker.replication.throttle import ReplicationThrottle, is_throttled
from tidelog.broker.request import DelayedRequest, RequestContext
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY
from tidelog.rpc.controller_api import ControllerApi, ForwardedRequest
from tidelog.runtime.broker_settings import BrokerSettings
from tidelog.runtime.clock import Clock
from tidelog.runtime.purgatory import DelayedOperation, Purgatory
from tidelog.runtime.setting import SettingError
from tidelog.runtime.telemetry import Telemetry
from tidelog.runtime.timer import Timer
from tidelog.runtime.topic_settings import TopicSettings

if TYPE_CHECKING:
    from tidelog.broker.dispatch import Route

_log = structlog.get_logger(__name__)


class Broker:
    """State without a life of its own; `server.py` starts and stops what keeps it going."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataView,
        log_directory: LogDirectory,
        controller: ControllerApi,
        telemetry: Telemetry,
        clock: Clock,
        timer: Timer,
        random_source: random.Random,
    ) -> None:
        self.settings = settings
        self.broker_id = settings.node_id
        self.broker_epoch = -1
        self.metadata = metadata
        self.log_directory = log_directory
        self.controller = controller
        self.telemetry = telemetry
        self.clock = clock
        self.timer = timer
        self.replicas: dict[TopicPartition, Replica] = {}
        """What this broker hosts; changed by `hosting.py` alone."""
        self.settling: dict[TopicPartition, Replica] = {}
        """What it is about to host in a new role; turned away is who comes for them."""
        self.produce_purgatory: Purgatory[TopicPartition] = Purgatory(
            "Produce", timer, self._operation_failed
        )
        self.fetch_purgatory: Purgatory[TopicPartition] = Purgatory("Fetch", timer, self._operation_failed)
        self.delete_records_purgatory: Purgatory[TopicPartition] = Purgatory(
            "DeleteRecords", timer, self._operation_failed
        )
        self.fetch_sessions = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots, lambda: random_source.randrange(1, 2**31)
        )
        self.follower_fetch_sessions = FollowerFetchSessions(
            lambda: random_source.randrange(1, 2**31), metadata.topic_names
        )
        self.leader_throttle = ReplicationThrottle(
            settings.leader_replication_throttled_rate, now_ms=timer.now_ms()
        )
        self.follower_fetch_routes: dict[int, Route] = {}
        """By version; made at the first such request."""
        self.isr_maintenance: IsrMaintenance | None = None
        """Set before a partition with more than one replica is hosted."""
        self.fetchers = ReplicaFetchers(self)
        """What this broker follows others in."""
        self.coordination = Coordination(self)
        """Coordinators' sessions, and requests on their way to them."""
        self.log_cleaner = LogCleaner(self)
        self.metadata_answers = MetadataAnswers()
        self.producer_ids = ProducerIds(
            lambda: controller.allocate_producer_ids(self.broker_id, self.broker_epoch)
        )

    def hosted_replica(self, topic: str, partition: int) -> Replica:
        """Raises KafkaError if this broker has none."""
        replica = self.replicas.get(TopicPartition(topic, partition))
        if replica is None:
            raise self.no_replica_error(topic, partition)
        return replica

    def leader_replica(self, topic: str, partition: int) -> Replica:
        """Raises KafkaError if this broker does not lead it."""
        replica = self.hosted_replica(topic, partition)
        if not replica.core.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def no_replica_error(self, topic: str, partition: int) -> KafkaError:
        """Why there is no replica here: it is elsewhere, or nowhere."""
        if self.metadata.partition(topic, partition) is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def leader_of(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Leader and leader epoch as far as this broker knows: its replica may know more than its metadata.
        None: nothing is known.
        """
        state = self.metadata.partition(topic, partition)
        known = None if state is None else (state.leader, state.leader_epoch)
        topic_partition = TopicPartition(topic, partition)
        replica = self.replicas.get(topic_partition) or self.settling.get(topic_partition)
        if replica is not None and (known is None or replica.core.leader_epoch > known[1]):
            known = (replica.core.leader, replica.core.leader_epoch)
        return known

    @property
    def offline_replica_count(self) -> int:
        """Replicas that this broker should have, but whose log failed. Any thread."""
        return sum(
            self.broker_id in state.replicas
            and TopicPartition(topic.name, state.partition) not in self.replicas
            and TopicPartition(topic.name, state.partition) not in self.settling
            for topic in tuple(self.metadata.topics.values())
            for state in topic.partitions
        )

    @property
    def parked_follower_fetch_count(self) -> int:
        """Any thread."""
        return self.follower_fetch_sessions.parked_count

    @property
    def evicted_fetch_sessions(self) -> int:
        """Any thread."""
        return self.fetch_sessions.evicted_total

    @property
    def data_path(self) -> Path:
        return self.log_directory.path

    @property
    def attachment_counts(self) -> Mapping[str, tuple[int, int]]:
        """Coordinators' shards whose owners are attached here, and replies that they hold, by kind. Any
        thread.
        """
        return self.coordination.attachment_counts()

    @property
    def fetch_session_counts(self) -> tuple[int, int]:
        """Sessions of clients and followers, and the partitions in them. Any thread."""
        followers = tuple(self.follower_fetch_sessions)
        partitions = sum(len(session.partitions) for session in followers)
        return len(self.fetch_sessions) + len(followers), self.fetch_sessions.partition_count + partitions

    # -- what replicas ask for (`ReplicaEnvironment`)

    def high_watermark_advanced(self, topic_partition: TopicPartition) -> None:
        """Readers that wait and producers with acks=all may go on."""
        self.fetch_purgatory.check_and_complete(topic_partition)
        self.produce_purgatory.check_and_complete(topic_partition)
        self.follower_fetch_sessions.high_watermark_advanced(
            topic_partition, is_urgent=is_rack_aware(self.settings.replica_selector_class)
        )
        self.coordination.high_watermark_advanced(topic_partition)

    def log_end_advanced(self, topic_partition: TopicPartition) -> None:
        """Followers that wait may fetch what was appended."""
        self.follower_fetch_sessions.log_end_advanced(topic_partition)

    def log_start_advanced(self, topic_partition: TopicPartition) -> None:
        """Followers that wait are told where the log begins now."""
        self.follower_fetch_sessions.log_end_advanced(topic_partition)

    def low_watermark_advanced(self, topic_partition: TopicPartition) -> None:
        """DeleteRecords that waits for all replicas may go on."""
        self.delete_records_purgatory.check_and_complete(topic_partition)

    def stepped_down(self, topic_partition: TopicPartition) -> None:
        """Whoever waits at this leader learns that it is none."""
        self.leadership_changed(topic_partition)

    def leadership_changed(self, topic_partition: TopicPartition) -> None:
        """Whoever waits for this partition looks again: it may have another leader or epoch, or be gone."""
        self.coordination.leadership_changed(topic_partition)
        self.high_watermark_advanced(topic_partition)
        self.delete_records_purgatory.check_and_complete(topic_partition)
        self.follower_fetch_sessions.log_end_advanced(topic_partition)

    def propose_isr(self, replica: Replica, proposal: ProposeIsr) -> None:
        self._isr_maintenance().propose(replica, proposal)

    def isr_changed(self, topic_partition: TopicPartition, *, is_expansion: bool) -> None:
        if is_expansion:
            self.telemetry.isr_expands += 1
        else:
            self.telemetry.isr_shrinks += 1
        self._isr_maintenance().isr_changed(topic_partition)

    def _isr_maintenance(self) -> IsrMaintenance:
        if self.isr_maintenance is None:
            raise AssertionError("a broker that has replicas elsewhere has a store to write the ISR to")
        return self.isr_maintenance

    def ask_epoch_end(self, replica: Replica, question: AskEpochEnd) -> None:
        """Until the leader answers."""
        self.fetchers.ask_epoch_end(replica, question)

    def cut_log(self, replica: Replica, cut: TruncateTo | RestartLogAt, leader_epoch: int) -> None:
        """In a thread."""
        self.fetchers.cut_log(replica, cut, leader_epoch)

    def answer_waiting(self) -> None:
        """All that is parked is answered with what there is, as at a shutdown."""
        for purgatory in (self.fetch_purgatory, self.produce_purgatory, self.delete_records_purgatory):
            purgatory.expire_all()
        self.follower_fetch_sessions.end_all()
        self.coordination.stop()

    # -- replication's throttle (KIP-73)

    def is_replication_throttled(self, replica: Replica, follower_id: int) -> bool:
        """Whether nothing of this partition may be sent to that follower now; one in sync never waits."""
        return (
            self.leader_throttle.is_limited
            and follower_id not in replica.core.in_sync_replicas
            and self._is_listed_as_throttled(replica)
            and self.leader_throttle.is_exceeded(self.timer.now_ms())
        )

    def replication_sent(self, replica: Replica, size_bytes: int) -> None:
        """So much of this partition goes to a follower."""
        self.telemetry.broker_traffic.replication_bytes_out += size_bytes
        if self.leader_throttle.is_limited and self._is_listed_as_throttled(replica):
            self.leader_throttle.spend(size_bytes, self.timer.now_ms())

    def _is_listed_as_throttled(self, replica: Replica) -> bool:
        listed = replica.settings.leader_replication_throttled_replicas
        return is_throttled(listed, replica.topic_partition.partition, self.broker_id)

    def controller_id_for_clients(self) -> int:
        """Clients send admin requests to the broker named here; any live one forwards them, so it is this
        one.
        """
        return self.broker_id

    def topic_settings(self, overrides: Mapping[str, str]) -> TopicSettings:
        return TopicSettings.resolve(self.settings, overrides)

    def apply_broker_configs(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Dynamic settings from AlterConfigs; those that open sockets or threads at the start keep their
        old values. What no longer goes together with the settings this broker was started with is left out.
        """
        try:
            self.settings = self.settings.with_dynamic(
                dynamic_default=configs.get(DEFAULT_BROKER_ENTITY, {}),
                dynamic=configs.get(str(self.broker_id), {}),
            )
        except SettingError as error:
            _log.error("dynamic settings are not applied", setting=error.name, reason=str(error))
        self.leader_throttle.set_rate(self.settings.leader_replication_throttled_rate, self.timer.now_ms())

    async def forward(self, api_key: int, request: Any, context: RequestContext) -> Any:
        """Have the controller answer an admin request."""
        forwarded = ForwardedRequest(
            context.api_version, request, client_id=context.client_id, host=context.host
        )
        return await self.controller.handle(api_key, forwarded)

    def _operation_failed(self, operation: DelayedOperation, error: Exception) -> None:
        """Its answer will never come, so nothing behind it may be answered either."""
        _log.error("a waiting request failed", operation=type(operation).__name__, exc_info=error)
        if isinstance(operation, DelayedRequest):
            operation.context.connection.close()
