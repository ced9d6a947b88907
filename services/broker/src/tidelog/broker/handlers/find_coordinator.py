"""FindCoordinator v0 to v6: COORDINATOR_NOT_AVAILABLE (retriable) for every key until groups and
transactions come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

_FIRST_VERSION_WITH_KEYS = 4
_NO_NODE = -1
_MESSAGE = "This broker has no group or transaction coordinator yet."


def handle(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if context.api_version < _FIRST_VERSION_WITH_KEYS:
        return FindCoordinatorResponse(
            error_code=code, error_message=_MESSAGE, node_id=_NO_NODE, host="", port=-1
        )
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=_NO_NODE, host="", port=-1, error_code=code, error_message=_MESSAGE)
            for key in request.coordinator_keys
        ]
    )
