"""The APIs of Kafka 4.3 that a broker serves, with their version ranges.

What tidelog serves of them is decided by the broker's handlers. Ranges are those of Kafka's own message
definitions for listeners of brokers, without versions that Kafka calls unstable.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.wire.malformed import UnsupportedVersionError
from tidelog.wire.messages.apis import API_ROWS, ApiKey

__all__ = ["API_SPECS", "ApiKey", "ApiSpec", "UnsupportedVersionError", "api_spec", "find_api_spec"]

PRODUCE_LISTED_MIN_VERSION = 0
"""librdkafka takes a broker whose list starts later for one that can't produce (KAFKA-18659)."""


class ApiSpec(NamedTuple):
    """One API: `name` is Kafka's, versions from `flexible_from` on have compact lengths, tagged fields and
    the longer headers.
    """

    name: str
    api_key: ApiKey
    min_version: int
    max_version: int
    flexible_from: int
    module: str
    """Below tidelog.wire.messages."""
    listed_min_version: int
    """What ApiVersions says; below `min_version` only for Produce, whose versions 0-2 get
    UNSUPPORTED_VERSION.
    """

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible_from else 1

    def response_header_version(self, version: int) -> int:
        """ApiVersions has the short header in all versions, so that a client that knows less than we can read
        the answer (KIP-511).
        """
        return 1 if version >= self.flexible_from and self.api_key != ApiKey.API_VERSIONS else 0


def _spec(api_key: int) -> ApiSpec:
    name, first, last, flexible_from, module = API_ROWS[api_key]
    listed = PRODUCE_LISTED_MIN_VERSION if api_key == ApiKey.PRODUCE else first
    return ApiSpec(name, ApiKey(api_key), first, last, flexible_from, module, listed)


API_SPECS: dict[int, ApiSpec] = {api_key: _spec(api_key) for api_key in API_ROWS}


def find_api_spec(api_key: int) -> ApiSpec | None:
    return API_SPECS.get(api_key)


def api_spec(api_key: int) -> ApiSpec:
    """Raises UnsupportedVersionError for a key that no broker serves."""
    spec = API_SPECS.get(api_key)
    if spec is None:
        raise UnsupportedVersionError(f"API key {api_key}", 0)
    return spec
