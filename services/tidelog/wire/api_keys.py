"""The APIs of Kafka 4.4 that a broker serves, with their version ranges.

The broker's handlers decide which of them tidelog serves. The ranges are those of Kafka's message definitions
for the listeners of brokers, without the versions that Kafka calls unstable.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidelog.wire.malformed import UnsupportedVersionError
from tidelog.wire.messages.apis import API_ROWS, ApiKey

__all__ = ["API_SPECS", "ApiKey", "ApiSpec", "UnsupportedVersionError", "api_spec", "find_api_spec"]


class ApiSpec(NamedTuple):
    """An API under Kafka's name. Versions from `flexible_from` on have compact lengths, tagged fields and the
    longer headers.
    """

    name: str
    api_key: ApiKey
    min_version: int
    max_version: int
    flexible_from: int
    module: str
    """The module's name in tidelog.wire.messages."""

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible_from else 1

    def response_header_version(self, version: int) -> int:
        """Returns 0 or 1. ApiVersions has the short header in all versions, so that a client that does not
        know the version can read the response (KIP-511).
        """
        return 1 if version >= self.flexible_from and self.api_key != ApiKey.API_VERSIONS else 0


def _spec(api_key: int) -> ApiSpec:
    name, first, last, flexible_from, module = API_ROWS[api_key]
    return ApiSpec(name, ApiKey(api_key), first, last, flexible_from, module)


API_SPECS: dict[int, ApiSpec] = {api_key: _spec(api_key) for api_key in API_ROWS}


def find_api_spec(api_key: int) -> ApiSpec | None:
    return API_SPECS.get(api_key)


def api_spec(api_key: int) -> ApiSpec:
    """Raises UnsupportedVersionError for a key that no broker serves."""
    spec = API_SPECS.get(api_key)
    if spec is None:
        raise UnsupportedVersionError(f"API key {api_key}", 0)
    return spec


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
