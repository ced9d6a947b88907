"""The parts of one broker that its handlers and services share."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from tidelog.broker.client_fetch_sessions import ClientFetchSessions
from tidelog.broker.commands import CommandReceiver
from tidelog.broker.controller_connection import ControllerConnection
from tidelog.broker.coordination.coordination import Coordination
from tidelog.broker.current_settings import CurrentSettings
from tidelog.broker.hosted_partitions import HostedPartitions
from tidelog.broker.hosting import Hosting
from tidelog.broker.housekeeping import Housekeeping
from tidelog.broker.identity import BrokerIdentity
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.log_cleaner import LogCleaner
from tidelog.broker.metadata_view import MetadataView
from tidelog.broker.metrics import BrokerView
from tidelog.broker.partition.events import ProposeIsr
from tidelog.broker.replica import IsrChanges, Replica
from tidelog.broker.replication.follower.followed_partition import FollowerContext
from tidelog.broker.replication.follower.replica_fetchers import ReplicaFetchers
from tidelog.broker.replication.leader.follower_fetch_sessions import FollowerFetchSessions
from tidelog.broker.replication.throttle import LeaderThrottle
from tidelog.broker.request import RequestContext
from tidelog.broker.waiting_requests import WaitingRequests
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.controller_api import ControllerApi
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.topic_settings import TopicSettings
from tidelog.timing.clock import Clock
from tidelog.timing.purgatory import Purgatory
from tidelog.timing.timer import Timer


class _NoIsrChanges:
    """Refuses ISR changes until the server gives the broker its `IsrMaintenance`."""

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        raise AssertionError("a broker whose partitions have other replicas needs a store to write ISRs to")

    def isr_changed(self, topic_partition: TopicPartition, *, is_expansion: bool) -> None:
        raise AssertionError("a broker whose partitions have other replicas needs a store to write ISRs to")


_NO_ISR_CHANGES: Final = _NoIsrChanges()


class Broker:
    """Holds the narrow objects until each of their users takes only the ones it needs.

    The properties at the end delegate to them and go away with their last users.
    """

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
        self.identity = BrokerIdentity(settings.node_id)
        self.current_settings = CurrentSettings(settings)
        self.metadata = metadata
        self.hosted = HostedPartitions(metadata, settings.node_id)
        self.controller_connection = ControllerConnection(controller, self.identity)
        self.follower_fetch_sessions = FollowerFetchSessions(
            lambda: random_source.randrange(1, 2**31), metadata.topic_names
        )
        self.waiting = WaitingRequests(self.current_settings, timer, self.follower_fetch_sessions)
        self.log_directory = log_directory
        self.telemetry = telemetry
        self.clock = clock
        self.timer = timer
        self.fetch_sessions = ClientFetchSessions(
            settings.max_incremental_fetch_session_cache_slots, lambda: random_source.randrange(1, 2**31)
        )
        self.leader_throttle = LeaderThrottle(settings, timer)
        self.current_settings.observe(self.leader_throttle.settings_changed)
        self.fetchers = ReplicaFetchers(
            FollowerContext(self.identity, self.current_settings, metadata, clock, timer),
            telemetry.broker_traffic,
        )
        """Copies the partitions that other brokers lead."""
        self.coordination = Coordination(
            self.identity,
            self.current_settings,
            metadata,
            self.hosted,
            self.controller_connection,
            self.waiting.produce,
            clock,
            timer,
        )
        """Coordinators' sessions, and requests on their way to them."""
        self.waiting.observe(self.coordination)
        self.log_cleaner = LogCleaner(self.current_settings, self.hosted, log_directory, clock)
        self.hosting = Hosting(
            self.identity,
            self.current_settings,
            metadata,
            self.hosted,
            self.waiting,
            _NO_ISR_CHANGES,
            self.fetchers,
            self.log_cleaner,
            log_directory,
            telemetry,
            clock,
        )
        self.commands = CommandReceiver(
            self.identity,
            self.current_settings,
            metadata,
            self.hosted,
            self.hosting,
            self.waiting,
            self.fetchers,
            timer,
        )

    def housekeeping(self) -> Housekeeping:
        """Returns the broker's periodic work, not started yet."""
        return Housekeeping(
            self.current_settings, self.hosted, self.log_directory, self.log_cleaner, self.clock
        )

    def view(self) -> BrokerView:
        """Returns the state that the broker's metrics show."""
        return BrokerView(
            self.identity.broker_id,
            self.log_directory.path,
            self.hosted,
            self.waiting,
            self.fetch_sessions,
            self.follower_fetch_sessions,
            self.fetchers,
            self.coordination,
            self.log_cleaner,
        )

    @property
    def isr_maintenance(self) -> IsrChanges:
        return self.hosting.isr

    @isr_maintenance.setter
    def isr_maintenance(self, isr: IsrChanges) -> None:
        self.hosting.isr = isr

    def leadership_changed(self, topic_partition: TopicPartition) -> None:
        self.waiting.leadership_changed(topic_partition)

    def log_start_advanced(self, topic_partition: TopicPartition) -> None:
        self.waiting.log_start_advanced(topic_partition)

    # -- delegation to the narrow objects

    @property
    def settings(self) -> BrokerSettings:
        return self.current_settings.broker

    @settings.setter
    def settings(self, settings: BrokerSettings) -> None:
        self.current_settings.replace(settings)

    def topic_settings(self, overrides: Mapping[str, str]) -> TopicSettings:
        return self.current_settings.topic(overrides)

    def apply_broker_configs(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        self.current_settings.apply(configs)

    @property
    def broker_id(self) -> int:
        return self.identity.broker_id

    @property
    def broker_epoch(self) -> int:
        return self.identity.broker_epoch

    @broker_epoch.setter
    def broker_epoch(self, epoch: int) -> None:
        self.identity.broker_epoch = epoch

    @property
    def controller(self) -> ControllerApi:
        return self.controller_connection.api

    def controller_id_for_clients(self) -> int:
        return self.controller_connection.id_for_clients

    async def forward(self, api_key: int, request: Any, context: RequestContext) -> Any:
        return await self.controller_connection.forward(api_key, request, context)

    @property
    def replicas(self) -> dict[TopicPartition, Replica]:
        return self.hosted.replicas

    def hosted_replica(self, topic: str, partition: int) -> Replica:
        return self.hosted.replica(topic, partition)

    def leader_replica(self, topic: str, partition: int) -> Replica:
        return self.hosted.leader_replica(topic, partition)

    def no_replica_error(self, topic: str, partition: int) -> KafkaError:
        return self.hosted.no_replica_error(topic, partition)

    def leader_of(self, topic: str, partition: int) -> tuple[int, int] | None:
        return self.hosted.leader_of(topic, partition)

    @property
    def offline_replica_count(self) -> int:
        return self.hosted.offline_count

    @property
    def produce_purgatory(self) -> Purgatory[TopicPartition]:
        return self.waiting.produce

    @property
    def fetch_purgatory(self) -> Purgatory[TopicPartition]:
        return self.waiting.fetch

    @property
    def delete_records_purgatory(self) -> Purgatory[TopicPartition]:
        return self.waiting.delete_records

    def answer_waiting(self) -> None:
        self.waiting.answer_all()
