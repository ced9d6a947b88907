"""DescribeCluster v0 to v2: the live brokers, with their addresses on the client's listener.

There are never fenced brokers (v2), because a broker that has lost its lease is no longer known. As in all
responses to clients, the controller id is the id of a broker that accepts admin requests. Only endpoint type
1 (brokers) is served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.security.authorization.judging import CLUSTER_OPERATIONS, NOT_ASKED
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.metadata_view import MetadataView
    from tidelog.broker.requests.request import RequestContext

BROKERS: Final = 1
CONTROLLERS: Final = 2


class DescribeClusterHandler:
    """Answers DescribeCluster."""

    def __init__(self, metadata: MetadataView, controller: ControllerConnection) -> None:
        self._metadata = metadata
        self._controller = controller

    def handle(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        if request.endpoint_type == CONTROLLERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                error_message="This endpoint belongs to a broker, but the request is for a controller",
            )
        if request.endpoint_type != BROKERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"Unsupported endpoint type {request.endpoint_type}",
            )
        with_operations = request.include_cluster_authorized_operations
        return DescribeClusterResponse(
            cluster_id=self._metadata.cluster_id,
            controller_id=self._controller.id_for_clients,
            brokers=[
                DescribeClusterBroker(
                    broker_id=known.broker_id, host=endpoint.host, port=endpoint.port, rack=known.rack
                )
                for known, endpoint in self._metadata.endpoints(context.listener_name)
            ],
            cluster_authorized_operations=CLUSTER_OPERATIONS if with_operations else NOT_ASKED,
        )
