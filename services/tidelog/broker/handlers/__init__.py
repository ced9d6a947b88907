"""The APIs that this broker serves. ApiVersions lists exactly the rows of SERVED_APIS.

A row states where the requests of an API are answered: by this broker, by the controller, or by the
coordinators of the groups or transactions that a request names. `wiring.py` constructs the handler of an API
at its first request.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from tidelog.wire.api_keys import ApiKey


class Place(Enum):
    """The place where an API is answered, unless coordinators answer it."""

    LOCAL = "local"
    """A handler in this package answers; `wiring.py` names its module."""
    CONTROLLER = "controller"
    """The controller answers; this broker only forwards the request."""


LOCAL: Final = Place.LOCAL
TO_CONTROLLER: Final = Place.CONTROLLER


class ToShard(NamedTuple):
    """The coordinator of a group or transaction answers. Before version `batched_from`, a request names one
    group or transaction at the start of its body; from this version on, it contains a list of them
    (`coordination/batched.py`).
    """

    kind: ShardKind
    batched_from: int | None = None


class ServedApi(NamedTuple):
    """An API that this broker serves. `advertised_min` is the first version that ApiVersions lists, if it
    differs from the first version that is served.
    """

    min_version: int
    max_version: int
    answered: Place | ToShard
    advertised_min: int | None = None


SERVED_APIS: Final[dict[int, ServedApi]] = {
    # librdkafka compresses only for brokers that list Produce from version 0 on (KAFKA-18659). Versions 0 to
    # 2 are refused nevertheless.
    ApiKey.PRODUCE: ServedApi(3, 13, LOCAL, advertised_min=0),
    ApiKey.FETCH: ServedApi(4, 18, LOCAL),
    ApiKey.LIST_OFFSETS: ServedApi(1, 11, LOCAL),
    ApiKey.METADATA: ServedApi(0, 13, LOCAL),
    ApiKey.OFFSET_COMMIT: ServedApi(2, 10, ToShard(ShardKind.GROUP)),
    ApiKey.OFFSET_FETCH: ServedApi(1, 10, ToShard(ShardKind.GROUP, batched_from=8)),
    ApiKey.FIND_COORDINATOR: ServedApi(0, 6, LOCAL),
    ApiKey.JOIN_GROUP: ServedApi(0, 9, ToShard(ShardKind.GROUP)),
    ApiKey.HEARTBEAT: ServedApi(0, 4, ToShard(ShardKind.GROUP)),
    ApiKey.LEAVE_GROUP: ServedApi(0, 5, ToShard(ShardKind.GROUP)),
    ApiKey.SYNC_GROUP: ServedApi(0, 5, ToShard(ShardKind.GROUP)),
    ApiKey.DESCRIBE_GROUPS: ServedApi(0, 6, ToShard(ShardKind.GROUP, batched_from=0)),
    ApiKey.LIST_GROUPS: ServedApi(0, 5, LOCAL),
    ApiKey.SASL_HANDSHAKE: ServedApi(0, 1, LOCAL),
    ApiKey.API_VERSIONS: ServedApi(0, 5, LOCAL),
    ApiKey.CREATE_TOPICS: ServedApi(2, 7, LOCAL),
    ApiKey.DELETE_TOPICS: ServedApi(1, 6, TO_CONTROLLER),
    ApiKey.DELETE_RECORDS: ServedApi(0, 2, LOCAL),
    ApiKey.INIT_PRODUCER_ID: ServedApi(0, 5, LOCAL),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ServedApi(2, 4, LOCAL),
    ApiKey.ADD_PARTITIONS_TO_TXN: ServedApi(0, 5, ToShard(ShardKind.TRANSACTION, batched_from=4)),
    ApiKey.ADD_OFFSETS_TO_TXN: ServedApi(0, 4, ToShard(ShardKind.TRANSACTION)),
    ApiKey.END_TXN: ServedApi(0, 5, ToShard(ShardKind.TRANSACTION)),
    ApiKey.WRITE_TXN_MARKERS: ServedApi(1, 2, LOCAL),
    ApiKey.TXN_OFFSET_COMMIT: ServedApi(0, 6, LOCAL),
    ApiKey.DESCRIBE_ACLS: ServedApi(1, 3, LOCAL),
    ApiKey.CREATE_ACLS: ServedApi(1, 3, LOCAL),
    ApiKey.DELETE_ACLS: ServedApi(1, 3, LOCAL),
    ApiKey.DESCRIBE_CONFIGS: ServedApi(1, 4, LOCAL),
    ApiKey.ALTER_CONFIGS: ServedApi(0, 2, LOCAL),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ServedApi(1, 2, LOCAL),
    ApiKey.DESCRIBE_LOG_DIRS: ServedApi(1, 5, LOCAL),
    ApiKey.SASL_AUTHENTICATE: ServedApi(0, 2, LOCAL),
    ApiKey.CREATE_PARTITIONS: ServedApi(0, 3, TO_CONTROLLER),
    ApiKey.CREATE_DELEGATION_TOKEN: ServedApi(1, 3, LOCAL),
    ApiKey.RENEW_DELEGATION_TOKEN: ServedApi(1, 2, LOCAL),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ServedApi(1, 2, LOCAL),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ServedApi(1, 3, LOCAL),
    ApiKey.DELETE_GROUPS: ServedApi(0, 3, ToShard(ShardKind.GROUP, batched_from=0)),
    ApiKey.ELECT_LEADERS: ServedApi(0, 2, TO_CONTROLLER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ServedApi(0, 1, LOCAL),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ServedApi(0, 1, TO_CONTROLLER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ServedApi(0, 0, TO_CONTROLLER),
    ApiKey.OFFSET_DELETE: ServedApi(0, 0, ToShard(ShardKind.GROUP)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ServedApi(0, 1, TO_CONTROLLER),
    # Deviation: quotas are stored and described, but they are not enforced.
    ApiKey.ALTER_CLIENT_QUOTAS: ServedApi(0, 1, TO_CONTROLLER),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ServedApi(0, 0, LOCAL),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ServedApi(0, 0, TO_CONTROLLER),
    ApiKey.DESCRIBE_QUORUM: ServedApi(0, 2, TO_CONTROLLER),
    ApiKey.UPDATE_FEATURES: ServedApi(0, 2, TO_CONTROLLER),
    ApiKey.DESCRIBE_CLUSTER: ServedApi(0, 2, LOCAL),
    ApiKey.DESCRIBE_PRODUCERS: ServedApi(0, 0, LOCAL),
    ApiKey.UNREGISTER_BROKER: ServedApi(0, 0, TO_CONTROLLER),
    ApiKey.DESCRIBE_TRANSACTIONS: ServedApi(0, 0, ToShard(ShardKind.TRANSACTION, batched_from=0)),
    ApiKey.LIST_TRANSACTIONS: ServedApi(0, 2, LOCAL),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ServedApi(0, 1, ToShard(ShardKind.GROUP)),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ServedApi(0, 1, ToShard(ShardKind.GROUP, batched_from=0)),
    ApiKey.SHARE_GROUP_HEARTBEAT: ServedApi(1, 1, ToShard(ShardKind.GROUP)),
    ApiKey.SHARE_GROUP_DESCRIBE: ServedApi(1, 1, ToShard(ShardKind.GROUP, batched_from=0)),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: ServedApi(0, 0, LOCAL),
    ApiKey.PUSH_TELEMETRY: ServedApi(0, 0, LOCAL),
    ApiKey.LIST_CONFIG_RESOURCES: ServedApi(0, 1, LOCAL),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ServedApi(0, 0, LOCAL),
    ApiKey.SHARE_FETCH: ServedApi(1, 2, LOCAL),
    ApiKey.SHARE_ACKNOWLEDGE: ServedApi(1, 2, LOCAL),
    ApiKey.STREAMS_GROUP_HEARTBEAT: ServedApi(0, 1, LOCAL),
    ApiKey.STREAMS_GROUP_DESCRIBE: ServedApi(0, 1, ToShard(ShardKind.GROUP, batched_from=0)),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: ServedApi(0, 0, LOCAL),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ServedApi(0, 1, ToShard(ShardKind.GROUP, batched_from=0)),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: ServedApi(0, 0, ToShard(ShardKind.GROUP)),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: ServedApi(0, 0, ToShard(ShardKind.GROUP)),
}

TELEMETRY_APIS: Final = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})
"""The APIs that are served only with `tidelog.client.metrics.enable`."""

FEATURE_OF: Final[Mapping[int, str]] = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: GROUP_VERSION,
    ApiKey.CONSUMER_GROUP_DESCRIBE: GROUP_VERSION,
    ApiKey.SHARE_GROUP_HEARTBEAT: SHARE_VERSION,
    ApiKey.SHARE_GROUP_DESCRIBE: SHARE_VERSION,
    ApiKey.SHARE_FETCH: SHARE_VERSION,
    ApiKey.SHARE_ACKNOWLEDGE: SHARE_VERSION,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: SHARE_VERSION,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: SHARE_VERSION,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: SHARE_VERSION,
    ApiKey.STREAMS_GROUP_HEARTBEAT: STREAMS_VERSION,
    ApiKey.STREAMS_GROUP_DESCRIBE: STREAMS_VERSION,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: STREAMS_VERSION,
}
"""The feature whose level must be at least 1 for an API."""
