"""ListConfigResources v0 and v1: the resources that have settings, which are topics, brokers and their
loggers, the groups with settings of their own, and subscriptions to clients' metrics (KIP-1142).

Version 0 was ListClientMetricsResources and lists only those subscriptions.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.broker.cluster.config_changes import ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.timing.slices import in_slices
from tidelog.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.metadata_view import MetadataView
    from tidelog.broker.requests.request import RequestContext

_FIRST_VERSION_WITH_TYPES = 1


class ListConfigResourcesHandler:
    """Answers ListConfigResources."""

    def __init__(self, metadata: MetadataView) -> None:
        self._metadata = metadata

    def handle(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse | Coroutine[object, None, ListConfigResourcesResponse]:
        subscriptions = [entry.name for entry in self._metadata.security.client_metrics.values()]
        if context.api_version < _FIRST_VERSION_WITH_TYPES:
            return ListConfigResourcesResponse(
                config_resources=[ConfigResource(name) for name in subscriptions]
            )
        known = [int(kind) for kind in ResourceType]
        wanted = set(request.resource_types) or set(known)
        if not wanted.issubset(known):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        brokers = [str(known.broker_id) for known, _ in self._metadata.endpoints(context.listener_name)]
        names = {
            ResourceType.TOPIC: list(self._metadata.topics),
            ResourceType.BROKER: brokers,
            ResourceType.BROKER_LOGGER: brokers,
            ResourceType.GROUP: self._metadata.groups_with_settings(),
            ResourceType.CLIENT_METRICS: subscriptions,
        }
        return in_slices(_listed({kind: names[kind] for kind in names if kind in wanted}))


def _listed(
    names: Mapping[ResourceType, Sequence[str]],
) -> Generator[None, None, ListConfigResourcesResponse]:
    resources = []
    for kind, of_kind in names.items():
        for name in of_kind:
            yield
            resources.append(ConfigResource(name, kind))
    return ListConfigResourcesResponse(config_resources=resources)
