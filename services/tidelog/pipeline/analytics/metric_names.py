"""The names of the analysed metrics, from docs/metrics.md (the JMX exporter's and kafka_exporter's names)."""

from __future__ import annotations

from typing import Final

IN_SYNC: Final = "kafka_topic_partition_in_sync_replica"
REPLICAS: Final = "kafka_topic_partition_replicas"
LEADER: Final = "kafka_topic_partition_leader"
IS_PREFERRED: Final = "kafka_topic_partition_leader_is_preferred"
UNDER_MIN_ISR: Final = "kafka_cluster_partition_underminisr"
END_OFFSET: Final = "kafka_topic_partition_current_offset"
START_OFFSET: Final = "kafka_topic_partition_oldest_offset"
LOG_SIZE: Final = "kafka_log_log_size"
FOLLOWER_LAG: Final = "kafka_server_fetcherlagmetrics_consumerlag"
LAG: Final = "kafka_consumergroup_lag"
COMMITTED: Final = "kafka_consumergroup_current_offset"
UNREAD_EXPIRES: Final = "tidelog_consumergroup_unread_expires_seconds"
HELD: Final = "kafka_server_replicamanager_partitioncount"
SHRINKS: Final = "kafka_server_replicamanager_isrshrinks_total"
EXPANDS: Final = "kafka_server_replicamanager_isrexpands_total"
DISK_SIZE: Final = "tidelog_log_directory_size_bytes"
DISK_FREE: Final = "tidelog_log_directory_free_bytes"
BROKER_INFO: Final = "kafka_broker_info"
BUILD_INFO: Final = "tidelog_build_info"

OF_PARTITIONS: Final = (
    IN_SYNC,
    REPLICAS,
    LEADER,
    IS_PREFERRED,
    UNDER_MIN_ISR,
    END_OFFSET,
    START_OFFSET,
    LOG_SIZE,
    FOLLOWER_LAG,
    LAG,
    COMMITTED,
    UNREAD_EXPIRES,
)
OF_BROKERS: Final = (HELD, SHRINKS, EXPANDS, DISK_SIZE, DISK_FREE, BROKER_INFO)
ALL: Final = (*OF_PARTITIONS, *OF_BROKERS, BUILD_INFO)
