"""SaslHandshake v0 and v1 and SaslAuthenticate v0 to v2. They fail with ILLEGAL_SASL_STATE, as on a PLAINTEXT
listener of Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext

_PLAINTEXT: Final = "This listener is PLAINTEXT and does not authenticate connections"


def sasl_handshake(request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(request: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, _PLAINTEXT)
