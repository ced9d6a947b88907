"""One module an API, imported at its first request. This table is what ApiVersions tells: exactly what is
served.

A module's `handle(broker, request, context)` returns the answer, or PARKED or NO_REPLY of
`tidelog.broker.request`. If it is a coroutine, later requests of the same connection wait for it. A module
whose requests aren't to be decoded as usual also has a `decoder(version)`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidelog.wire.api_keys import ApiKey


class ServedApi(NamedTuple):
    """`advertised_min` is what ApiVersions tells where that differs from what is served."""

    module: str
    min_version: int
    max_version: int
    advertised_min: int | None = None


SERVED_APIS: Final[dict[int, ServedApi]] = {
    # librdkafka compresses only for brokers that list Produce from 0 (KAFKA-18659); versions 0 to 2 are
    # refused all the same.
    ApiKey.PRODUCE: ServedApi("produce", 3, 13, advertised_min=0),
    ApiKey.FETCH: ServedApi("fetch", 4, 18),
    ApiKey.LIST_OFFSETS: ServedApi("list_offsets", 1, 11),
    ApiKey.METADATA: ServedApi("metadata", 0, 13),
    ApiKey.OFFSET_COMMIT: ServedApi("offset_commit", 2, 10),
    ApiKey.OFFSET_FETCH: ServedApi("offset_fetch", 1, 10),
    ApiKey.FIND_COORDINATOR: ServedApi("find_coordinator", 0, 6),
    ApiKey.JOIN_GROUP: ServedApi("join_group", 0, 9),
    ApiKey.HEARTBEAT: ServedApi("heartbeat", 0, 4),
    ApiKey.LEAVE_GROUP: ServedApi("leave_group", 0, 5),
    ApiKey.SYNC_GROUP: ServedApi("sync_group", 0, 5),
    ApiKey.DESCRIBE_GROUPS: ServedApi("describe_groups", 0, 6),
    ApiKey.LIST_GROUPS: ServedApi("list_groups", 0, 5),
    ApiKey.SASL_HANDSHAKE: ServedApi("sasl_handshake", 0, 1),
    ApiKey.API_VERSIONS: ServedApi("api_versions", 0, 4),
    ApiKey.CREATE_TOPICS: ServedApi("create_topics", 2, 7),
    ApiKey.DELETE_TOPICS: ServedApi("delete_topics", 1, 6),
    ApiKey.DELETE_RECORDS: ServedApi("delete_records", 0, 2),
    ApiKey.INIT_PRODUCER_ID: ServedApi("init_producer_id", 0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ServedApi("offset_for_leader_epoch", 2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: ServedApi("add_partitions_to_txn", 0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: ServedApi("add_offsets_to_txn", 0, 4),
    ApiKey.END_TXN: ServedApi("end_txn", 0, 5),
    ApiKey.WRITE_TXN_MARKERS: ServedApi("write_txn_markers", 1, 2),
    ApiKey.TXN_OFFSET_COMMIT: ServedApi("txn_offset_commit", 0, 5),
    ApiKey.DESCRIBE_ACLS: ServedApi("describe_acls", 1, 3),
    ApiKey.CREATE_ACLS: ServedApi("create_acls", 1, 3),
    ApiKey.DELETE_ACLS: ServedApi("delete_acls", 1, 3),
    ApiKey.DESCRIBE_CONFIGS: ServedApi("describe_configs", 1, 4),
    ApiKey.ALTER_CONFIGS: ServedApi("alter_configs", 0, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ServedApi("alter_replica_log_dirs", 1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: ServedApi("describe_log_dirs", 1, 5),
    ApiKey.SASL_AUTHENTICATE: ServedApi("sasl_authenticate", 0, 2),
    ApiKey.CREATE_PARTITIONS: ServedApi("create_partitions", 0, 3),
    ApiKey.CREATE_DELEGATION_TOKEN: ServedApi("create_delegation_token", 1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: ServedApi("renew_delegation_token", 1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ServedApi("expire_delegation_token", 1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ServedApi("describe_delegation_token", 1, 3),
    ApiKey.DELETE_GROUPS: ServedApi("delete_groups", 0, 2),
    ApiKey.ELECT_LEADERS: ServedApi("elect_leaders", 0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ServedApi("incremental_alter_configs", 0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ServedApi("alter_partition_reassignments", 0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ServedApi("list_partition_reassignments", 0, 0),
    ApiKey.OFFSET_DELETE: ServedApi("offset_delete", 0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ServedApi("describe_client_quotas", 0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: ServedApi("alter_client_quotas", 0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ServedApi("describe_user_scram_credentials", 0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ServedApi("alter_user_scram_credentials", 0, 0),
    ApiKey.DESCRIBE_QUORUM: ServedApi("describe_quorum", 0, 2),
    ApiKey.UPDATE_FEATURES: ServedApi("update_features", 0, 2),
    ApiKey.DESCRIBE_CLUSTER: ServedApi("describe_cluster", 0, 2),
    ApiKey.DESCRIBE_PRODUCERS: ServedApi("describe_producers", 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: ServedApi("describe_transactions", 0, 0),
    ApiKey.LIST_TRANSACTIONS: ServedApi("list_transactions", 0, 2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ServedApi("consumer_group_heartbeat", 0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ServedApi("consumer_group_describe", 0, 1),
    ApiKey.LIST_CONFIG_RESOURCES: ServedApi("list_config_resources", 0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ServedApi("describe_topic_partitions", 0, 0),
}
