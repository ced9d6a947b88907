"""ApiVersions v0 to v5: the table of the served APIs, and the features with their finalized levels.

A request in a version that is not served gets UNSUPPORTED_VERSION and the same table in v0 (KIP-511). A
client that says which cluster and node it wanted to reach, and has reached another one, gets
REBOOTSTRAP_REQUIRED (KIP-1242).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.model.features import SUPPORTED_FEATURES, FinalizedFeatures
from tidelog.model.topics import MAX_REMEMBERED_NAME_CHARS
from tidelog.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.metadata_view import MetadataView
    from tidelog.broker.requests.request import RequestContext

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")
_FIRST_VERSION_WITH_SOFTWARE = 3
_FIRST_VERSION_WITH_ZERO_MIN_FEATURE = 4
_ANY_NODE = -1


class ApiVersionsHandler:
    """Answers ApiVersions."""

    def __init__(
        self, metadata: MetadataView, node_id: int, versions: Sequence[tuple[int, int, int]]
    ) -> None:
        """Takes the key, the first and the last version of each API that is listed."""
        self._versions = versions
        self._metadata = metadata
        self._node_id = node_id

    def handle(self, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        if not _is_valid(request, context.api_version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        if self._is_misrouted(request):
            return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        context.connection.client_software = (
            request.client_software_name[:MAX_REMEMBERED_NAME_CHARS],
            request.client_software_version[:MAX_REMEMBERED_NAME_CHARS],
        )
        return self._answer(context.api_version, self._metadata.features)

    def _answer(self, version: int, finalized: FinalizedFeatures) -> ApiVersionsResponse:
        response = ApiVersionsResponse(api_keys=[ApiVersion(*versions) for versions in self._versions])
        # Before v4, clients fail on a feature whose lowest version is 0 (KAFKA-17011), so Kafka leaves such
        # features out.
        response.supported_features = [
            SupportedFeatureKey(name=name, min_version=levels.min_level, max_version=levels.max_level)
            for name, levels in SUPPORTED_FEATURES.items()
            if levels.min_level > 0 or version >= _FIRST_VERSION_WITH_ZERO_MIN_FEATURE
        ]
        response.finalized_features_epoch = finalized.epoch
        response.finalized_features = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalized.levels.items()
            if level > 0
        ]
        return response

    def _is_misrouted(self, request: ApiVersionsRequest) -> bool:
        return request.cluster_id is not None and (
            request.cluster_id != self._metadata.cluster_id or request.node_id != self._node_id
        )


def _is_valid(request: ApiVersionsRequest, version: int) -> bool:
    """Returns whether the client names its software, and both the cluster and the node or neither."""
    if version >= _FIRST_VERSION_WITH_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return False
    return (request.cluster_id is None) == (request.node_id == _ANY_NODE)
