"""UpdateFeatures v0 to v2: other levels for the cluster's features (KIP-584). The controller decides,
this broker passes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.forwarding import forward
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


async def handle(
    broker: Broker, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    def refuse(code: ErrorCode, message: str | None) -> UpdateFeaturesResponse:
        return UpdateFeaturesResponse(error_code=code, error_message=message)

    return await forward(broker, ApiKey.UPDATE_FEATURES, request, context, refuse)
