"""SaslHandshake v0 and v1: ILLEGAL_SASL_STATE, as Kafka answers on a PLAINTEXT listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


def handle(request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
