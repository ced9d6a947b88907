"""The APIs of Kafka 4.4 that a broker serves, with their version ranges.

The broker's handlers decide which of them tidelog serves. The ranges are those of Kafka's message definitions
for the listeners of brokers, without the versions that Kafka calls unstable.
"""

from __future__ import annotations

from typing import NamedTuple

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
