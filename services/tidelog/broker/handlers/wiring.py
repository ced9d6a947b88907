"""The functions that construct the handlers of a family of APIs, at the first request of each of its APIs.

The family's module is imported then, so a broker holds only the code of the APIs that its clients use.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from tidelog.broker.requests.request import DecoderOfVersion, Handler, Handling
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.parts import BrokerParts

Family: TypeAlias = Mapping[int, Handling]
"""The handlings of a family of APIs."""


def keeping_body(api_key: int, handle: Handler) -> Handling:
    """Returns the handling of an API whose handler may pass the request's body on to a coordinator."""
    from tidelog.broker.coordination.batched import whole_decoder

    return Handling(handle, partial(whole_decoder, api_key))


def produce(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers import produce
    from tidelog.broker.requests import one_batch

    return {
        ApiKey.PRODUCE: Handling(
            produce.ProduceHandler(parts).handle, cast(DecoderOfVersion, one_batch.decoder)
        )
    }


def fetch(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers import fetch
    from tidelog.broker.handlers.follower_fetch import FollowerFetches

    handler = fetch.FetchHandler(parts, FollowerFetches(parts))
    return {ApiKey.FETCH: Handling(handler.handle, fetch.decoder)}


def offsets(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers.offsets import ListOffsetsHandler, OffsetForLeaderEpochHandler

    return {
        ApiKey.LIST_OFFSETS: Handling(ListOffsetsHandler(parts.hosted, parts.record_walks).handle),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: Handling(OffsetForLeaderEpochHandler(parts.hosted).handle),
    }


def delete_records(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers.delete_records import DeleteRecordsHandler

    handler = DeleteRecordsHandler(
        parts.metadata, parts.hosted, parts.waiting, parts.log_directory, parts.timer
    )
    return {ApiKey.DELETE_RECORDS: Handling(handler.handle)}


def api_versions(parts: BrokerParts, versions: list[tuple[int, int, int]]) -> Family:
    """Takes the key, the first and the last version of each API."""
    from tidelog.broker.handlers.handshakes import ApiVersionsHandler

    handler = ApiVersionsHandler(parts.metadata, parts.current_settings.broker.node_id, versions)
    return {ApiKey.API_VERSIONS: Handling(handler.handle)}


def sasl(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers.handshakes import sasl_authenticate, sasl_handshake

    return {
        ApiKey.SASL_HANDSHAKE: Handling(sasl_handshake),
        ApiKey.SASL_AUTHENTICATE: Handling(sasl_authenticate),
    }


def metadata(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers import metadata

    settings, view, controller = parts.current_settings, parts.metadata, parts.controller_connection
    return {
        ApiKey.METADATA: Handling(metadata.MetadataHandler(settings, view, controller).handle),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: Handling(
            metadata.DescribeTopicPartitionsHandler(settings, view).handle
        ),
        ApiKey.DESCRIBE_CLUSTER: Handling(metadata.DescribeClusterHandler(view, controller).handle),
    }


def create_topics(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers.create_topics import CreateTopicsHandler

    handler = CreateTopicsHandler(parts.current_settings, parts.controller_connection)
    return {ApiKey.CREATE_TOPICS: Handling(handler.handle)}


def configs(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers import configs

    alter = configs.AlterConfigsHandlers(parts.current_settings, parts.controller_connection)
    return {
        ApiKey.DESCRIBE_CONFIGS: Handling(
            configs.DescribeConfigsHandler(parts.current_settings, parts.metadata).handle
        ),
        ApiKey.ALTER_CONFIGS: Handling(alter.replace),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: Handling(alter.alter),
        ApiKey.LIST_CONFIG_RESOURCES: Handling(configs.ListConfigResourcesHandler(parts.metadata).handle),
    }


def log_dirs(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers.log_dirs import AlterReplicaLogDirsHandler, DescribeLogDirsHandler

    hosted, directory = parts.hosted, parts.log_directory
    return {
        ApiKey.ALTER_REPLICA_LOG_DIRS: Handling(AlterReplicaLogDirsHandler(hosted, directory).handle),
        ApiKey.DESCRIBE_LOG_DIRS: Handling(DescribeLogDirsHandler(hosted, directory).handle),
    }


def security(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers import security

    has_authorizer = parts.authorizer is not None
    acls = security.AclHandlers(parts.metadata, parts.controller_connection, has_authorizer=has_authorizer)
    tokens = security.DelegationTokenHandlers(
        parts.current_settings, parts.metadata, parts.controller_connection, parts.clock, parts.authorizer
    )
    return {
        ApiKey.DESCRIBE_ACLS: Handling(acls.describe),
        ApiKey.CREATE_ACLS: Handling(acls.create),
        ApiKey.DELETE_ACLS: Handling(acls.delete),
        ApiKey.CREATE_DELEGATION_TOKEN: Handling(tokens.create),
        ApiKey.RENEW_DELEGATION_TOKEN: Handling(tokens.renew),
        ApiKey.EXPIRE_DELEGATION_TOKEN: Handling(tokens.expire),
        ApiKey.DESCRIBE_DELEGATION_TOKEN: Handling(tokens.describe),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Handling(
            security.DescribeUserScramCredentialsHandler(parts.metadata).handle
        ),
    }


def client_telemetry(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers.client_telemetry import ClientTelemetryHandlers

    handlers = ClientTelemetryHandlers(parts.client_telemetry, parts.clock, parts.record_walks)
    return {
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Handling(handlers.subscriptions),
        ApiKey.PUSH_TELEMETRY: Handling(handlers.push),
    }


def coordinators(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers import coordinators

    coordination = parts.coordination
    find = coordinators.FindCoordinatorHandler(parts.metadata, parts.hosted, coordination)
    return {
        ApiKey.FIND_COORDINATOR: Handling(find.handle),
        ApiKey.LIST_GROUPS: keeping_body(
            ApiKey.LIST_GROUPS, coordinators.ListGroupsHandler(coordination).handle
        ),
        ApiKey.LIST_TRANSACTIONS: keeping_body(
            ApiKey.LIST_TRANSACTIONS, coordinators.ListTransactionsHandler(coordination).handle
        ),
    }


def transactions(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers import transactions

    coordination, hosted = parts.coordination, parts.hosted
    init = transactions.InitProducerIdHandler(parts.controller_connection, coordination)
    commit = transactions.TxnOffsetCommitHandler(parts.current_settings, parts.metadata, hosted, coordination)
    markers = transactions.WriteTxnMarkersHandler(
        coordination, hosted, parts.current_settings.broker, has_authorizer=parts.authorizer is not None
    )
    return {
        ApiKey.INIT_PRODUCER_ID: keeping_body(ApiKey.INIT_PRODUCER_ID, init.handle),
        ApiKey.TXN_OFFSET_COMMIT: keeping_body(ApiKey.TXN_OFFSET_COMMIT, commit.handle),
        ApiKey.WRITE_TXN_MARKERS: Handling(markers.handle),
        ApiKey.DESCRIBE_PRODUCERS: Handling(transactions.DescribeProducersHandler(hosted).handle),
    }


def share(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers.share_fetch import ShareFetchHandler
    from tidelog.broker.handlers.share_requests import ShareAcknowledgeHandler, ShareRequestParts

    requests = ShareRequestParts(
        parts.hosted,
        parts.metadata,
        parts.share_partitions,
        parts.waiting,
        parts.current_settings,
        parts.telemetry,
        parts.authorizer,
    )
    return {
        ApiKey.SHARE_FETCH: Handling(ShareFetchHandler(requests).handle),
        ApiKey.SHARE_ACKNOWLEDGE: Handling(ShareAcknowledgeHandler(requests).handle),
    }


def streams_groups(parts: BrokerParts) -> Family:
    from tidelog.broker.handlers import streams_groups

    heartbeat = streams_groups.StreamsGroupHeartbeatHandler(
        parts.coordination, parts.controller_connection, parts.authorizer, parts.group_settings, parts.clock
    )
    return {
        ApiKey.STREAMS_GROUP_HEARTBEAT: keeping_body(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat.handle),
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: Handling(
            streams_groups.streams_group_topology_description_update
        ),
    }
