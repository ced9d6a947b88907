"""SaslAuthenticate v0 to v2: ILLEGAL_SASL_STATE, as Kafka answers on a PLAINTEXT listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


def handle(request: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        ErrorCode.ILLEGAL_SASL_STATE, "This listener is PLAINTEXT, nothing is to be authenticated"
    )
