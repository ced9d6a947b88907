"""Constructs the handler of each API from the objects that it needs, at the first request of the API.

Each handler's module is imported then, so a broker holds only the code of the APIs that its clients use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from tidelog.broker.error_responses import error_response
from tidelog.broker.handlers import FEATURE_OF, SERVED_APIS, TO_CONTROLLER, ToShard
from tidelog.broker.request import Answer, DecoderOfVersion, Handler, Handling, RequestContext
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tidelog.broker.authorization.authorizer import Authorizer
    from tidelog.broker.client_fetch_sessions import ClientFetchSessions
    from tidelog.broker.client_telemetry.receiver import ClientTelemetry
    from tidelog.broker.controller_connection import ControllerConnection
    from tidelog.broker.coordination.batched import WholeRequest
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.current_settings import CurrentSettings
    from tidelog.broker.handlers.acls import AclHandlers
    from tidelog.broker.handlers.share_requests import ShareRequestParts
    from tidelog.broker.hosted_partitions import HostedPartitions
    from tidelog.broker.log.log_directory import LogDirectory
    from tidelog.broker.metadata_view import MetadataView
    from tidelog.broker.replication.leader.follower_fetch_sessions import FollowerFetchSessions
    from tidelog.broker.replication.throttle import LeaderThrottle
    from tidelog.broker.share.share_partitions import SharePartitions
    from tidelog.broker.waiting_requests import WaitingRequests
    from tidelog.metrics.telemetry import Telemetry
    from tidelog.settings.group_settings import GroupSettingsView
    from tidelog.timing.clock import Clock
    from tidelog.timing.timer import Timer
    from tidelog.wire.schema import Message


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


class HandlerWiring:
    """The handlers of one broker, by API."""

    def __init__(self, parts: HandlerObjects) -> None:
        self._parts = parts
        self._handlings: dict[int, Handling] = {}
        self._guard: Callable[[int, Handling], Handling] | None = None
        authorizer, settings = parts.authorizer, parts.current_settings
        if authorizer is not None:
            # Imported at the start: its table has the messages of all APIs, and would hold the event loop for
            # 50 ms at the first request.
            from tidelog.broker.authorization.gate import guarded

            self._guard = partial(guarded, authorizer=authorizer, settings=settings)

    def handling(self, api_key: int) -> Handling:
        """Returns how an API of SERVED_APIS is handled."""
        handling = self._handlings.get(api_key)
        if handling is None:
            handling = self._wire(api_key)
            if self._guard is not None:
                handling = self._guard(api_key, handling)
            feature = FEATURE_OF.get(api_key)
            if feature is not None:
                from tidelog.broker.feature_gate import with_feature

                handling = with_feature(api_key, feature, handling, self._parts.metadata)
            self._handlings[api_key] = handling
        return handling

    def _wire(self, api_key: int) -> Handling:
        answered = SERVED_APIS[api_key].answered
        if answered is TO_CONTROLLER:
            return Handling(partial(_forward_to_controller, self._parts.controller_connection))
        if isinstance(answered, ToShard):
            return _to_shard(self._parts.coordination, api_key, answered)
        wire = _WITH_OBJECTS.get(api_key)
        if wire is not None:
            return wire(self._parts)
        module = importlib.import_module(f"tidelog.broker.handlers.{_WITHOUT_OBJECTS[api_key]}")
        return Handling(getattr(module, ApiKey(api_key).name.lower()))


async def _forward_to_controller(
    controller: ControllerConnection, request: Message, context: RequestContext
) -> Message:
    api_key, version = int(context.route.api_key), context.api_version

    def refuse(code: ErrorCode, message: str | None) -> Message:
        return error_response(api_key, version, request, code, message)

    return await controller.forward_or_refuse(api_key, request, context, refuse)


_DESCRIBED: Final = frozenset(
    {
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_DESCRIBE,
    }
)
"""The APIs whose answers the broker completes with the operations that the client may do."""


def _to_shard(coordination: Coordination, api_key: int, to: ToShard) -> Handling:
    from tidelog.broker.coordination.batched import (
        forward_batched,
        forward_described,
        forward_edited,
        whole_decoder,
    )
    from tidelog.broker.coordination.coordination import NamedRequest, forward_named, named_decoder

    kind, batched_from = to.kind, to.batched_from
    if batched_from is None:
        return Handling(partial(forward_named, coordination, kind), partial(named_decoder, api_key))
    forward_several = forward_described if api_key in _DESCRIBED else forward_batched

    def decoder(version: int) -> codec.Decoder:
        make = named_decoder if version < batched_from else whole_decoder
        return make(api_key, version)

    def handle(request: NamedRequest | WholeRequest, context: RequestContext) -> Answer:
        if isinstance(request, NamedRequest):
            if context.edit is not None:  # an answer may have the offsets of thousands of topics
                return forward_edited(coordination, kind, request, context)
            return forward_named(coordination, kind, request, context)
        return forward_several(coordination, request, context)

    return Handling(handle, decoder)


def _keeping_body(api_key: int, handle: Handler) -> Handling:
    """Returns the handling of an API whose handler may pass the request's body on to a coordinator."""
    from tidelog.broker.coordination.batched import whole_decoder

    return Handling(handle, partial(whole_decoder, api_key))


# -- the APIs that this broker answers itself, with the objects that their handlers need


def _api_versions(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.api_versions import ApiVersionsHandler

    settings = parts.current_settings.broker
    has_telemetry = parts.client_telemetry is not None
    return Handling(ApiVersionsHandler(parts.metadata, settings.node_id, has_telemetry=has_telemetry).handle)


def _client_telemetry(method: str, parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.client_telemetry import ClientTelemetryHandlers

    handlers = ClientTelemetryHandlers(parts.client_telemetry, parts.clock, parts.record_walks)
    return Handling(getattr(handlers, method))


def _produce(parts: HandlerObjects) -> Handling:
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


def _fetch(parts: HandlerObjects) -> Handling:
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


def _list_offsets(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.list_offsets import ListOffsetsHandler

    return Handling(ListOffsetsHandler(parts.hosted, parts.record_walks).handle)


def _metadata(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.metadata import MetadataHandler

    handler = MetadataHandler(parts.current_settings, parts.metadata, parts.controller_connection)
    return Handling(handler.handle)


def _find_coordinator(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.find_coordinator import FindCoordinatorHandler

    return Handling(FindCoordinatorHandler(parts.metadata, parts.hosted, parts.coordination).handle)


def _list_groups(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.list_groups import ListGroupsHandler

    return _keeping_body(ApiKey.LIST_GROUPS, ListGroupsHandler(parts.coordination).handle)


def _create_topics(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.create_topics import CreateTopicsHandler

    return Handling(CreateTopicsHandler(parts.current_settings, parts.controller_connection).handle)


def _delete_records(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.delete_records import DeleteRecordsHandler

    handler = DeleteRecordsHandler(
        parts.metadata, parts.hosted, parts.waiting, parts.log_directory, parts.timer
    )
    return Handling(handler.handle)


def _init_producer_id(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.init_producer_id import InitProducerIdHandler

    handler = InitProducerIdHandler(parts.controller_connection, parts.coordination)
    return _keeping_body(ApiKey.INIT_PRODUCER_ID, handler.handle)


def _offset_for_leader_epoch(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler

    return Handling(OffsetForLeaderEpochHandler(parts.hosted).handle)


def _write_txn_markers(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.write_txn_markers import WriteTxnMarkersHandler

    handler = WriteTxnMarkersHandler(
        parts.coordination,
        parts.hosted,
        parts.current_settings.broker,
        has_authorizer=parts.authorizer is not None,
    )
    return Handling(handler.handle)


def _txn_offset_commit(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.txn_offset_commit import TxnOffsetCommitHandler

    handler = TxnOffsetCommitHandler(parts.current_settings, parts.metadata, parts.hosted, parts.coordination)
    return _keeping_body(ApiKey.TXN_OFFSET_COMMIT, handler.handle)


def _streams_group_heartbeat(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.streams_group_heartbeat import StreamsGroupHeartbeatHandler

    handler = StreamsGroupHeartbeatHandler(
        parts.coordination, parts.controller_connection, parts.authorizer, parts.group_settings, parts.clock
    )
    return _keeping_body(ApiKey.STREAMS_GROUP_HEARTBEAT, handler.handle)


def _describe_configs(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_configs import DescribeConfigsHandler

    return Handling(DescribeConfigsHandler(parts.current_settings, parts.metadata).handle)


def _alter_configs(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.alter_configs import AlterConfigsHandler

    return Handling(AlterConfigsHandler(parts.current_settings, parts.controller_connection).handle)


def _incremental_alter_configs(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.incremental_alter_configs import IncrementalAlterConfigsHandler

    handler = IncrementalAlterConfigsHandler(parts.current_settings, parts.controller_connection)
    return Handling(handler.handle)


def _alter_replica_log_dirs(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.alter_replica_log_dirs import AlterReplicaLogDirsHandler

    return Handling(AlterReplicaLogDirsHandler(parts.hosted, parts.log_directory).handle)


def _describe_log_dirs(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_log_dirs import DescribeLogDirsHandler

    return Handling(DescribeLogDirsHandler(parts.hosted, parts.log_directory).handle)


def _describe_cluster(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_cluster import DescribeClusterHandler

    return Handling(DescribeClusterHandler(parts.metadata, parts.controller_connection).handle)


def _describe_producers(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_producers import DescribeProducersHandler

    return Handling(DescribeProducersHandler(parts.hosted).handle)


def _list_transactions(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.list_transactions import ListTransactionsHandler

    return _keeping_body(ApiKey.LIST_TRANSACTIONS, ListTransactionsHandler(parts.coordination).handle)


def _list_config_resources(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.list_config_resources import ListConfigResourcesHandler

    return Handling(ListConfigResourcesHandler(parts.metadata).handle)


def _describe_topic_partitions(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_topic_partitions import DescribeTopicPartitionsHandler

    return Handling(DescribeTopicPartitionsHandler(parts.current_settings, parts.metadata).handle)


def _describe_user_scram_credentials(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.describe_user_scram_credentials import DescribeUserScramCredentialsHandler

    return Handling(DescribeUserScramCredentialsHandler(parts.metadata).handle)


def _acls(parts: HandlerObjects) -> AclHandlers:
    from tidelog.broker.handlers.acls import AclHandlers

    has_authorizer = parts.authorizer is not None
    return AclHandlers(parts.metadata, parts.controller_connection, has_authorizer=has_authorizer)


def _delegation_tokens(api: str, parts: HandlerObjects) -> Handling:
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


def _share_fetch(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.share_fetch import ShareFetchHandler

    return Handling(ShareFetchHandler(_share_requests(parts)).handle)


def _share_acknowledge(parts: HandlerObjects) -> Handling:
    from tidelog.broker.handlers.share_acknowledge import ShareAcknowledgeHandler

    return Handling(ShareAcknowledgeHandler(_share_requests(parts)).handle)


_WITH_OBJECTS: Final[dict[int, Callable[[HandlerObjects], Handling]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.LIST_GROUPS: _list_groups,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch,
    ApiKey.WRITE_TXN_MARKERS: _write_txn_markers,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
    ApiKey.STREAMS_GROUP_HEARTBEAT: _streams_group_heartbeat,
    ApiKey.DESCRIBE_ACLS: lambda parts: Handling(_acls(parts).describe),
    ApiKey.CREATE_ACLS: lambda parts: Handling(_acls(parts).create),
    ApiKey.DELETE_ACLS: lambda parts: Handling(_acls(parts).delete),
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: _describe_log_dirs,
    ApiKey.DESCRIBE_CLUSTER: _describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
    ApiKey.LIST_TRANSACTIONS: _list_transactions,
    ApiKey.LIST_CONFIG_RESOURCES: _list_config_resources,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    ApiKey.SHARE_FETCH: _share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: _share_acknowledge,
    ApiKey.CREATE_DELEGATION_TOKEN: partial(_delegation_tokens, "create"),
    ApiKey.RENEW_DELEGATION_TOKEN: partial(_delegation_tokens, "renew"),
    ApiKey.EXPIRE_DELEGATION_TOKEN: partial(_delegation_tokens, "expire"),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: partial(_delegation_tokens, "describe"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_user_scram_credentials,
    ApiKey.API_VERSIONS: _api_versions,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: partial(_client_telemetry, "subscriptions"),
    ApiKey.PUSH_TELEMETRY: partial(_client_telemetry, "push"),
}

_WITHOUT_OBJECTS: Final[dict[int, str]] = {
    ApiKey.SASL_HANDSHAKE: "sasl",
    ApiKey.SASL_AUTHENTICATE: "sasl",
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: "streams_group_topology_description_update",
}
"""The modules of the handlers that need no object. Each handler is a function with the name of its API."""
