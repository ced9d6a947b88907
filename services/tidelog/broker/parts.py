"""The composition root of the broker: the objects of one broker, and which of them each one uses."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.broker.cluster.controller_connection import ControllerConnection
from tidelog.broker.cluster.view import BrokerIdentity, CurrentSettings, MetadataView
from tidelog.broker.coordination.coordination import Coordination
from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.hosting.hosting import CommandReceiver, Hosting
from tidelog.broker.hosting.housekeeping import Housekeeping
from tidelog.broker.hosting.life import BrokerLife
from tidelog.broker.hosting.log_cleaner import LogCleaner
from tidelog.broker.hosting.readiness import BrokerReadiness
from tidelog.broker.hosting.replica import IsrChanges
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.replication.followed_partition import FollowerContext
from tidelog.broker.replication.follower_fetch_sessions import FollowerFetchSessions
from tidelog.broker.replication.isr import IsrMaintenance
from tidelog.broker.replication.replica_fetchers import RecoveryPointCheckpoint, ReplicaFetchers
from tidelog.broker.replication.throttle import LeaderThrottle
from tidelog.broker.requests.client_fetch_sessions import ClientFetchSessions, ClientPartitionKey
from tidelog.broker.requests.waiting import WaitingRequests
from tidelog.broker.security.audit import AUDIT
from tidelog.broker.security.authorizer import Authorizer
from tidelog.broker.security.charge import MutationQuotas, RequestQuotas
from tidelog.broker.security.client_quotas import ClientQuotas, Samples
from tidelog.kernel.clock import Clock, SteadyClock
from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.kernel.timer import Timer
from tidelog.metadata.store import MetadataStore
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.acl import parse_principals
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.topics import TopicPartition
from tidelog.rpc.controller_api import ControllerApi
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.group_settings import DEAD_LETTER_TOPIC, GroupSettingsView

if TYPE_CHECKING:
    from tidelog.broker.client_telemetry.receiver import ClientTelemetry
    from tidelog.broker.requests.request import RequestContext
    from tidelog.broker.share.share_partitions import SharePartitions
    from tidelog.model.acl import AclOperation, ResourceType

RECORD_WALK_THREADS: Final = 2
"""The threads that look up offsets by time and check the records of large batches."""


class BrokerSurroundings(NamedTuple):
    """The things outside a broker that it is wired to. A process passes its disk, store and clock, the
    simulator and labs pass their own. The log directory is open.
    """

    cluster_id: str
    log_directory: LogDirectory
    store: MetadataStore
    controller: ControllerApi
    telemetry: Telemetry
    clock: Clock
    timer: Timer
    random_source: random.Random


class BrokerParts:
    """The objects of one broker. The constructor passes to each the objects that it uses and starts none.

    Only `BrokerServer`, the simulator and test labs hold all of them. A handler of more than six takes these
    from here in its constructor.
    """

    def __init__(
        self, settings: BrokerSettings, around: BrokerSurroundings, isr_changes: IsrChanges | None = None
    ) -> None:
        """`isr_changes` replaces what writes ISRs to the store."""
        cluster_id, log_directory, store, controller, telemetry, clock, timer, random_source = around
        self.log_directory = log_directory
        self.telemetry = telemetry
        self.clock = clock
        self.timer = timer
        self.identity = BrokerIdentity(settings.node_id)
        self.current_settings = CurrentSettings(settings)
        self.metadata = MetadataView(cluster_id)
        self.hosted = HostedPartitions(self.metadata, settings.node_id, clock.wall_ms)
        self.isr = IsrMaintenance(self.hosted, self.current_settings, clock, telemetry, store)
        self.authorizer = _authorizer(settings, self.metadata, telemetry)
        self.quotas = RequestQuotas(
            ClientQuotas(Samples.of_clients(settings), Samples.of_mutations(settings))
        )
        self.group_settings = GroupSettingsView(
            lambda: self.current_settings.broker, self.metadata.group_overrides
        )
        self.metadata.observe_security(self.quotas.security_changed)
        self.client_telemetry = _client_telemetry(settings, self.metadata)
        # Walks over records have threads of their own, so that fsync, read-ahead and opening a log never wait
        # for them.
        self.record_walks = ThreadPoolExecutor(RECORD_WALK_THREADS, "record-walk")
        mutations = MutationQuotas(self.metadata, self.current_settings)
        self.controller_connection = ControllerConnection(controller, self.identity, mutations)
        self.fetch_sessions = ClientFetchSessions(
            settings.max_incremental_fetch_session_cache_slots,
            lambda: random_source.randrange(1, 2**31),
            settings.tidelog_max_fetch_session_partitions,
            self._is_hosted,
        )
        self.follower_fetch_sessions = FollowerFetchSessions(
            lambda: random_source.randrange(1, 2**31), self.metadata.topic_names
        )
        self.leader_throttle = LeaderThrottle(settings, timer)
        self.current_settings.observe(self.leader_throttle.settings_changed)
        self._share_partitions: SharePartitions | None = None
        self.waiting = WaitingRequests(self.current_settings, timer, self.follower_fetch_sessions)
        self.fetchers = ReplicaFetchers(
            FollowerContext(self.identity, self.current_settings, self.metadata, clock, timer),
            RecoveryPointCheckpoint(log_directory),
            telemetry.broker_traffic,
        )
        self.coordination = Coordination(
            self.identity,
            self.current_settings,
            self.metadata,
            self.hosted,
            self.controller_connection,
            self.waiting,
            clock,
            timer,
        )
        self.steady_clock = SteadyClock(clock)
        self.log_cleaner = LogCleaner(self.current_settings, self.hosted, log_directory, self.steady_clock)
        self.hosting = Hosting(
            self.identity,
            self.current_settings,
            self.metadata,
            self.hosted,
            self.waiting,
            isr_changes or self.isr,
            self.fetchers,
            self.log_cleaner,
            log_directory,
            telemetry,
            clock,
        )
        self.commands = CommandReceiver(
            self.identity,
            self.current_settings,
            self.metadata,
            self.hosted,
            self.hosting,
            self.waiting,
            self.fetchers,
            timer,
        )
        self.housekeeping = Housekeeping(
            self.current_settings,
            self.hosted,
            log_directory,
            self.log_cleaner,
            clock,
            self.steady_clock,
            self.continue_dead_letters,
        )
        self.readiness = BrokerReadiness(self.identity, self.metadata, store)
        self.life = BrokerLife(
            self.identity, self.current_settings, log_directory, self.controller_connection, store
        )

    def start_duties(self) -> None:
        """Starts the periodic work of a broker that begins to serve clients."""
        self.housekeeping.start()
        self.isr.start()
        self.coordination.started()

    async def stop_duties(self) -> None:
        """Stops the periodic work, answers the requests that wait, and ends the sessions of coordinators."""
        await self.housekeeping.stop()
        await self.isr.stop()
        if self._share_partitions is not None:
            await self._share_partitions.stop()
        self.waiting.answer_all()
        self.coordination.stop()

    @property
    def share_partitions_if_used(self) -> SharePartitions | None:
        """The share partitions, None before the first request of a share group."""
        return self._share_partitions

    @property
    def share_partitions(self) -> SharePartitions:
        """The share partitions that this broker leads. The first request of a share group makes them."""
        if self._share_partitions is None:
            from tidelog.broker.share.dead_letter_writer import DeadLetterTopics, DeadLetterWriter
            from tidelog.broker.share.share_partitions import SharePartitions

            self._share_partitions = SharePartitions(
                self.hosted,
                self.waiting,
                self.coordination.share_state,
                self.group_settings,
                self.clock,
                self.record_walks,
                lambda: self.current_settings.broker.group_share_max_share_sessions,
                DeadLetterTopics(self.current_settings, self.metadata, self.controller_connection.api),
                DeadLetterWriter(
                    self.identity.broker_id,
                    self.current_settings,
                    self.metadata,
                    self.hosted,
                    self.waiting.produce,
                    self.clock,
                    self.timer,
                    self.record_walks,
                    self.fetchers.endpoint_of,
                ),
            )
        return self._share_partitions

    async def continue_dead_letters(self) -> None:
        """Continues the copies of dead letters that earlier leaders began."""
        if not self.coordination.topics.exists(ShardKind.SHARE):
            return
        groups = await run_in_slices(self._groups_with_dead_letters())
        if groups:
            await self.share_partitions.dead_letter_takeover.scan(groups, self.hosted.replicas.values())

    def _groups_with_dead_letters(self) -> Steps[frozenset[str]]:
        """Returns the groups with a dead letter topic, which only a group's own settings can name."""
        groups: list[str] = []
        for entry in list(self.metadata.security.group_configs.values()):
            yield
            if (
                DEAD_LETTER_TOPIC in entry.configs
                and self.group_settings.for_group(entry.group_id).errors_deadletterqueue_topic_name
            ):
                groups.append(entry.group_id)
        return frozenset(groups)

    def _is_hosted(self, key: ClientPartitionKey) -> bool:
        topic = key.topic or self.metadata.topic_names.get(key.topic_id, "")
        return TopicPartition(topic, key.partition) in self.hosted.replicas


def _authorizer(settings: BrokerSettings, metadata: MetadataView, telemetry: Telemetry) -> Authorizer | None:
    if not settings.authorizer_class_name:
        return None

    def on_denied(
        context: RequestContext, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        telemetry.access_denied(operation.name, resource_type.name)
        AUDIT.denied(context, operation, resource_type, name)

    return Authorizer(
        metadata,
        parse_principals(settings.super_users),
        allow_if_no_acl=settings.allow_everyone_if_no_acl_found,
        on_denied=on_denied,
    )


def _client_telemetry(settings: BrokerSettings, metadata: MetadataView) -> ClientTelemetry | None:
    if not settings.tidelog_client_metrics_enable:
        return None
    from tidelog.broker.client_telemetry.receiver import ClientTelemetry

    telemetry = ClientTelemetry(settings.telemetry_max_bytes)
    metadata.observe_security(telemetry.security_changed)
    return telemetry
