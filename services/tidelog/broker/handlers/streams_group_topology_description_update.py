"""StreamsGroupTopologyDescriptionUpdate v0 (KIP-1331): refused, because nothing keeps descriptions.

Kafka 4.4 answers so without a plugin that keeps them. Clients send it only if the response to a heartbeat
asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.requests.request import RequestContext


def streams_group_topology_description_update(
    request: StreamsGroupTopologyDescriptionUpdateRequest, context: RequestContext
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    """Answers StreamsGroupTopologyDescriptionUpdate."""
    return StreamsGroupTopologyDescriptionUpdateResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="The broker has no streams group topology description plugin configured.",
    )
