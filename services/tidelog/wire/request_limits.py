"""The largest number of elements that one request of each API may contain.

Each element of an array counts, at any depth, and so does each tagged field that the version does not know.
A few bytes of a request become objects of a hundred bytes and work of microseconds, so the size of a request
does not bound its cost. ADR 0025 states how the limits were chosen. The broker closes the connection of a
request above its limit, as it does for malformed requests.
"""

from __future__ import annotations

from typing import Final

from tidelog.wire.messages.apis import ApiKey

DEFAULT_MAX_ELEMENTS: Final = 1_000
"""The limit of APIs whose requests contain few elements."""

MAX_ELEMENTS: Final[dict[int, int]] = {
    # Requests about the partitions of a client. Kafka recommends up to 4,000 partitions for each broker.
    ApiKey.PRODUCE: 5_000,
    ApiKey.FETCH: 10_000,
    ApiKey.METADATA: 10_000,
    ApiKey.LIST_OFFSETS: 8_000,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 5_000,
    ApiKey.DESCRIBE_LOG_DIRS: 4_000,
    ApiKey.DELETE_RECORDS: 6_000,
    # A coordinator decides about one request in one piece.
    ApiKey.OFFSET_COMMIT: 4_000,
    ApiKey.OFFSET_FETCH: 4_000,
    ApiKey.TXN_OFFSET_COMMIT: 3_000,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 4_000,
    ApiKey.SYNC_GROUP: 8_000,
    ApiKey.OFFSET_DELETE: 5_000,
    ApiKey.LEAVE_GROUP: 2_000,
    ApiKey.SHARE_GROUP_HEARTBEAT: 4_000,
    ApiKey.STREAMS_GROUP_HEARTBEAT: 4_000,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 4_000,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: 4_000,
    # A member may say about each of its records something else.
    ApiKey.SHARE_FETCH: 12_000,
    ApiKey.SHARE_ACKNOWLEDGE: 12_000,
    # Requests of brokers. A write has a batch for each of at most 10,000 records in flight.
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: 8_000,
    ApiKey.READ_SHARE_GROUP_STATE: 8_000,
    ApiKey.WRITE_SHARE_GROUP_STATE: 12_000,
    ApiKey.DELETE_SHARE_GROUP_STATE: 8_000,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: 8_000,
    # An administrator's requests. Kafka's controller changes up to 10,000 records in one operation.
    ApiKey.CREATE_TOPICS: 5_000,
    ApiKey.CREATE_PARTITIONS: 4_000,
    ApiKey.DELETE_TOPICS: 4_000,
    ApiKey.ELECT_LEADERS: 5_000,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 4_000,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 5_000,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 3_000,
    ApiKey.DESCRIBE_CONFIGS: 5_000,
    ApiKey.ALTER_CONFIGS: 1_500,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 2_000,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 5_000,
    ApiKey.DESCRIBE_PRODUCERS: 3_000,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 500,
    ApiKey.UPDATE_FEATURES: 100,
}
"""The limits of the APIs that need another one."""


def max_elements(api_key: int) -> int:
    """Returns the largest number of elements in a request of an API."""
    return MAX_ELEMENTS.get(api_key, DEFAULT_MAX_ELEMENTS)
