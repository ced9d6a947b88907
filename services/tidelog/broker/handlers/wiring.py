"""The functions that construct the handlers from the objects that they need, at an API's first request.

Each handler's module is imported then, so a broker holds only the code of the APIs that its clients use.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from tidelog.broker.requests.request import DecoderOfVersion, Handler, Handling
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from tidelog.broker.client_telemetry.receiver import ClientTelemetry
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.current_settings import CurrentSettings
    from tidelog.broker.cluster.metadata_view import MetadataView
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.handlers.acls import AclHandlers
    from tidelog.broker.handlers.share_requests import ShareRequestParts
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.log.log_directory import LogDirectory
    from tidelog.broker.replication.leader.follower_fetch_sessions import FollowerFetchSessions
    from tidelog.broker.replication.throttle import LeaderThrottle
    from tidelog.broker.requests.client_fetch_sessions import ClientFetchSessions
    from tidelog.broker.requests.waiting_requests import WaitingRequests
    from tidelog.broker.security.authorization.authorizer import Authorizer
    from tidelog.broker.share.share_partitions import SharePartitions
    from tidelog.metrics.telemetry import Telemetry
    from tidelog.settings.group_settings import GroupSettingsView
    from tidelog.timing.clock import Clock
    from tidelog.timing.timer import Timer


class HandlerObjects(Protocol):
    """The objects of one broker that handlers use. Each handler gets only those that it needs."""

    @property
    def authorizer(self) -> Authorizer | None:
        """Decides about requests. Without one, every client may do everything."""
        ...

    @property
    def hosted(self) -> HostedPartitions: ...
    @property
    def metadata(self) -> MetadataView: ...
    @property
    def waiting(self) -> WaitingRequests: ...
    @property
    def coordination(self) -> Coordination: ...
    @property
    def current_settings(self) -> CurrentSettings: ...
    @property
    def share_partitions(self) -> SharePartitions: ...
    @property
    def group_settings(self) -> GroupSettingsView: ...
    @property
    def telemetry(self) -> Telemetry: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def steady_clock(self) -> Clock: ...
    @property
    def timer(self) -> Timer: ...
    @property
    def follower_fetch_sessions(self) -> FollowerFetchSessions: ...
    @property
    def fetch_sessions(self) -> ClientFetchSessions: ...
    @property
    def record_walks(self) -> Executor: ...
    @property
    def leader_throttle(self) -> LeaderThrottle: ...
    @property
    def controller_connection(self) -> ControllerConnection: ...
    @property
    def log_directory(self) -> LogDirectory: ...
    @property
    def client_telemetry(self) -> ClientTelemetry | None:
        """The receiver of clients' metrics, if there is one."""
        ...


def keeping_body(api_key: int, handle: Handler) -> Handling:
    """Returns the handling of an API whose handler may pass the request's body on to a coordinator."""
    from tidelog.broker.coordination.batched import whole_decoder

    return Handling(handle, partial(whole_decoder, api_key))


def api_versions(parts: HandlerObjects, versions: Sequence[tuple[int, int, int]]) -> Handling:
    """Takes the key, the first and the last version of each API."""
    from tidelog.broker.handlers.api_versions import ApiVersionsHandler

    settings = parts.current_settings.broker
    return Handling(ApiVersionsHandler(parts.metadata, settings.node_id, versions).handle)


def sasl_handshake(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.sasl import sasl_handshake

    return Handling(sasl_handshake)


def sasl_authenticate(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.sasl import sasl_authenticate

    return Handling(sasl_authenticate)


def streams_group_topology_description_update(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers import streams_group_topology_description_update as update

    return Handling(update.streams_group_topology_description_update)


def describe_acls(parts: HandlerObjects) -> Handling:
    return Handling(_acls(parts).describe)


def create_acls(parts: HandlerObjects) -> Handling:
    return Handling(_acls(parts).create)


def delete_acls(parts: HandlerObjects) -> Handling:
    return Handling(_acls(parts).delete)


def client_telemetry(method: str, parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.client_telemetry import ClientTelemetryHandlers

    handlers = ClientTelemetryHandlers(parts.client_telemetry, parts.clock, parts.record_walks)
    return Handling(getattr(handlers, method))


def produce(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers import produce

    handler = produce.ProduceHandler(
        parts.hosted,
        parts.metadata,
        parts.waiting,
        parts.coordination.verification,
        parts.current_settings,
        parts.telemetry,
        parts.clock,
        parts.steady_clock,
        parts.record_walks,
        parts.authorizer,
    )
    return Handling(handler.handle, cast(DecoderOfVersion, produce.decoder))


def fetch(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers import fetch
    from tidelog.broker.handlers.follower_fetch import FollowerFetches

    followers = FollowerFetches(
        parts.hosted,
        parts.metadata,
        parts.follower_fetch_sessions,
        parts.leader_throttle,
        parts.current_settings,
        parts.telemetry,
        parts.clock,
        parts.timer,
    )
    handler = fetch.FetchHandler(
        parts.hosted,
        parts.metadata,
        parts.fetch_sessions,
        parts.waiting,
        parts.current_settings,
        parts.telemetry,
        parts.clock,
        followers,
        parts.authorizer,
    )
    return Handling(handler.handle, fetch.decoder)


def list_offsets(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.list_offsets import ListOffsetsHandler

    return Handling(ListOffsetsHandler(parts.hosted, parts.record_walks).handle)


def metadata(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.metadata import MetadataHandler

    handler = MetadataHandler(parts.current_settings, parts.metadata, parts.controller_connection)
    return Handling(handler.handle)


def find_coordinator(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.find_coordinator import FindCoordinatorHandler

    return Handling(FindCoordinatorHandler(parts.metadata, parts.hosted, parts.coordination).handle)


def list_groups(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.list_groups import ListGroupsHandler

    return keeping_body(ApiKey.LIST_GROUPS, ListGroupsHandler(parts.coordination).handle)


def create_topics(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.create_topics import CreateTopicsHandler

    return Handling(CreateTopicsHandler(parts.current_settings, parts.controller_connection).handle)


def delete_records(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.delete_records import DeleteRecordsHandler

    handler = DeleteRecordsHandler(
        parts.metadata, parts.hosted, parts.waiting, parts.log_directory, parts.timer
    )
    return Handling(handler.handle)


def init_producer_id(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.init_producer_id import InitProducerIdHandler

    handler = InitProducerIdHandler(parts.controller_connection, parts.coordination)
    return keeping_body(ApiKey.INIT_PRODUCER_ID, handler.handle)


def offset_for_leader_epoch(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler

    return Handling(OffsetForLeaderEpochHandler(parts.hosted).handle)


def write_txn_markers(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.write_txn_markers import WriteTxnMarkersHandler

    handler = WriteTxnMarkersHandler(
        parts.coordination,
        parts.hosted,
        parts.current_settings.broker,
        has_authorizer=parts.authorizer is not None,
    )
    return Handling(handler.handle)


def txn_offset_commit(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.txn_offset_commit import TxnOffsetCommitHandler

    handler = TxnOffsetCommitHandler(parts.current_settings, parts.metadata, parts.hosted, parts.coordination)
    return keeping_body(ApiKey.TXN_OFFSET_COMMIT, handler.handle)


def streams_group_heartbeat(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.streams_group_heartbeat import StreamsGroupHeartbeatHandler

    handler = StreamsGroupHeartbeatHandler(
        parts.coordination, parts.controller_connection, parts.authorizer, parts.group_settings, parts.clock
    )
    return keeping_body(ApiKey.STREAMS_GROUP_HEARTBEAT, handler.handle)


def describe_configs(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_configs import DescribeConfigsHandler

    return Handling(DescribeConfigsHandler(parts.current_settings, parts.metadata).handle)


def alter_configs(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.alter_configs import AlterConfigsHandler

    return Handling(AlterConfigsHandler(parts.current_settings, parts.controller_connection).handle)


def incremental_alter_configs(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.incremental_alter_configs import IncrementalAlterConfigsHandler

    handler = IncrementalAlterConfigsHandler(parts.current_settings, parts.controller_connection)
    return Handling(handler.handle)


def alter_replica_log_dirs(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.alter_replica_log_dirs import AlterReplicaLogDirsHandler

    return Handling(AlterReplicaLogDirsHandler(parts.hosted, parts.log_directory).handle)


def describe_log_dirs(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_log_dirs import DescribeLogDirsHandler

    return Handling(DescribeLogDirsHandler(parts.hosted, parts.log_directory).handle)


def describe_cluster(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_cluster import DescribeClusterHandler

    return Handling(DescribeClusterHandler(parts.metadata, parts.controller_connection).handle)


def describe_producers(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_producers import DescribeProducersHandler

    return Handling(DescribeProducersHandler(parts.hosted).handle)


def list_transactions(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.list_transactions import ListTransactionsHandler

    return keeping_body(ApiKey.LIST_TRANSACTIONS, ListTransactionsHandler(parts.coordination).handle)


def list_config_resources(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.list_config_resources import ListConfigResourcesHandler

    return Handling(ListConfigResourcesHandler(parts.metadata).handle)


def describe_topic_partitions(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_topic_partitions import DescribeTopicPartitionsHandler

    return Handling(DescribeTopicPartitionsHandler(parts.current_settings, parts.metadata).handle)


def describe_user_scram_credentials(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_user_scram_credentials import DescribeUserScramCredentialsHandler

    return Handling(DescribeUserScramCredentialsHandler(parts.metadata).handle)


def _acls(parts: HandlerObjects) -> AclHandlers:
    from tidelog.broker.handlers.acls import AclHandlers

    has_authorizer = parts.authorizer is not None
    return AclHandlers(parts.metadata, parts.controller_connection, has_authorizer=has_authorizer)


def delegation_tokens(api: str, parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.delegation_tokens import DelegationTokenHandlers

    handlers = DelegationTokenHandlers(
        parts.current_settings, parts.metadata, parts.controller_connection, parts.clock, parts.authorizer
    )
    return Handling(getattr(handlers, api))


def _share_requests(parts: HandlerObjects) -> ShareRequestParts:
    from tidelog.broker.handlers.share_requests import ShareRequestParts

    return ShareRequestParts(
        parts.hosted,
        parts.metadata,
        parts.share_partitions,
        parts.waiting,
        parts.current_settings,
        parts.telemetry,
        parts.authorizer,
    )


def share_fetch(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.share_fetch import ShareFetchHandler

    return Handling(ShareFetchHandler(_share_requests(parts)).handle)


def share_acknowledge(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.share_acknowledge import ShareAcknowledgeHandler

    return Handling(ShareAcknowledgeHandler(_share_requests(parts)).handle)
