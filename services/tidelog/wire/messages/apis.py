"""The table of APIs. Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand."""

from __future__ import annotations

from enum import IntEnum


class ApiKey(IntEnum):
    """APIs that a broker serves to clients and other brokers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92

    @property
    def name_in_kafka(self) -> str:
        """`Produce`, `ApiVersions`, ...: the name in metrics."""
        return API_ROWS[self][0]


API_ROWS: dict[int, tuple[str, int, int, int, str]] = {
    # api key: name, first version, last version, flexible from, module
    0: ("Produce", 3, 13, 9, "produce"),
    1: ("Fetch", 4, 18, 12, "fetch"),
    2: ("ListOffsets", 1, 11, 6, "list_offsets"),
    3: ("Metadata", 0, 13, 9, "metadata"),
    8: ("OffsetCommit", 2, 10, 8, "offset_commit"),
    9: ("OffsetFetch", 1, 10, 6, "offset_fetch"),
    10: ("FindCoordinator", 0, 6, 3, "find_coordinator"),
    11: ("JoinGroup", 0, 9, 6, "join_group"),
    12: ("Heartbeat", 0, 4, 4, "heartbeat"),
    13: ("LeaveGroup", 0, 5, 4, "leave_group"),
    14: ("SyncGroup", 0, 5, 4, "sync_group"),
    15: ("DescribeGroups", 0, 6, 5, "describe_groups"),
    16: ("ListGroups", 0, 5, 3, "list_groups"),
    17: ("SaslHandshake", 0, 1, 32768, "sasl_handshake"),
    18: ("ApiVersions", 0, 4, 3, "api_versions"),
    19: ("CreateTopics", 2, 7, 5, "create_topics"),
    20: ("DeleteTopics", 1, 6, 4, "delete_topics"),
    21: ("DeleteRecords", 0, 2, 2, "delete_records"),
    22: ("InitProducerId", 0, 5, 2, "init_producer_id"),
    23: ("OffsetForLeaderEpoch", 2, 4, 4, "offset_for_leader_epoch"),
    24: ("AddPartitionsToTxn", 0, 5, 3, "add_partitions_to_txn"),
    25: ("AddOffsetsToTxn", 0, 4, 3, "add_offsets_to_txn"),
    26: ("EndTxn", 0, 5, 3, "end_txn"),
    27: ("WriteTxnMarkers", 1, 2, 1, "write_txn_markers"),
    28: ("TxnOffsetCommit", 0, 5, 3, "txn_offset_commit"),
    29: ("DescribeAcls", 1, 3, 2, "describe_acls"),
    30: ("CreateAcls", 1, 3, 2, "create_acls"),
    31: ("DeleteAcls", 1, 3, 2, "delete_acls"),
    32: ("DescribeConfigs", 1, 4, 4, "describe_configs"),
    33: ("AlterConfigs", 0, 2, 2, "alter_configs"),
    34: ("AlterReplicaLogDirs", 1, 2, 2, "alter_replica_log_dirs"),
    35: ("DescribeLogDirs", 1, 5, 2, "describe_log_dirs"),
    36: ("SaslAuthenticate", 0, 2, 2, "sasl_authenticate"),
    37: ("CreatePartitions", 0, 3, 2, "create_partitions"),
    38: ("CreateDelegationToken", 1, 3, 2, "create_delegation_token"),
    39: ("RenewDelegationToken", 1, 2, 2, "renew_delegation_token"),
    40: ("ExpireDelegationToken", 1, 2, 2, "expire_delegation_token"),
    41: ("DescribeDelegationToken", 1, 3, 2, "describe_delegation_token"),
    42: ("DeleteGroups", 0, 2, 2, "delete_groups"),
    43: ("ElectLeaders", 0, 2, 2, "elect_leaders"),
    44: ("IncrementalAlterConfigs", 0, 1, 1, "incremental_alter_configs"),
    45: ("AlterPartitionReassignments", 0, 1, 0, "alter_partition_reassignments"),
    46: ("ListPartitionReassignments", 0, 0, 0, "list_partition_reassignments"),
    47: ("OffsetDelete", 0, 0, 32768, "offset_delete"),
    48: ("DescribeClientQuotas", 0, 1, 1, "describe_client_quotas"),
    49: ("AlterClientQuotas", 0, 1, 1, "alter_client_quotas"),
    50: ("DescribeUserScramCredentials", 0, 0, 0, "describe_user_scram_credentials"),
    51: ("AlterUserScramCredentials", 0, 0, 0, "alter_user_scram_credentials"),
    55: ("DescribeQuorum", 0, 2, 0, "describe_quorum"),
    57: ("UpdateFeatures", 0, 2, 0, "update_features"),
    60: ("DescribeCluster", 0, 2, 0, "describe_cluster"),
    61: ("DescribeProducers", 0, 0, 0, "describe_producers"),
    64: ("UnregisterBroker", 0, 0, 0, "unregister_broker"),
    65: ("DescribeTransactions", 0, 0, 0, "describe_transactions"),
    66: ("ListTransactions", 0, 2, 0, "list_transactions"),
    68: ("ConsumerGroupHeartbeat", 0, 1, 0, "consumer_group_heartbeat"),
    69: ("ConsumerGroupDescribe", 0, 1, 0, "consumer_group_describe"),
    71: ("GetTelemetrySubscriptions", 0, 0, 0, "get_telemetry_subscriptions"),
    72: ("PushTelemetry", 0, 0, 0, "push_telemetry"),
    74: ("ListConfigResources", 0, 1, 0, "list_config_resources"),
    75: ("DescribeTopicPartitions", 0, 0, 0, "describe_topic_partitions"),
    76: ("ShareGroupHeartbeat", 1, 1, 0, "share_group_heartbeat"),
    77: ("ShareGroupDescribe", 1, 1, 0, "share_group_describe"),
    78: ("ShareFetch", 1, 2, 0, "share_fetch"),
    79: ("ShareAcknowledge", 1, 2, 0, "share_acknowledge"),
    80: ("AddRaftVoter", 0, 1, 0, "add_raft_voter"),
    81: ("RemoveRaftVoter", 0, 0, 0, "remove_raft_voter"),
    83: ("InitializeShareGroupState", 0, 0, 0, "initialize_share_group_state"),
    84: ("ReadShareGroupState", 0, 0, 0, "read_share_group_state"),
    85: ("WriteShareGroupState", 0, 1, 0, "write_share_group_state"),
    86: ("DeleteShareGroupState", 0, 0, 0, "delete_share_group_state"),
    87: ("ReadShareGroupStateSummary", 0, 1, 0, "read_share_group_state_summary"),
    88: ("StreamsGroupHeartbeat", 0, 0, 0, "streams_group_heartbeat"),
    89: ("StreamsGroupDescribe", 0, 0, 0, "streams_group_describe"),
    90: ("DescribeShareGroupOffsets", 0, 1, 0, "describe_share_group_offsets"),
    91: ("AlterShareGroupOffsets", 0, 0, 0, "alter_share_group_offsets"),
    92: ("DeleteShareGroupOffsets", 0, 0, 0, "delete_share_group_offsets"),
}
