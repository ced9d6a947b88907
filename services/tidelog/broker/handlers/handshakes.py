"""ApiVersions v0 to v5, SaslHandshake v0 and v1, and SaslAuthenticate v0 to v2: the beginning of a
connection.

ApiVersions answers the table of the served APIs, and the features with their finalized levels. A request in a
version that is not served gets UNSUPPORTED_VERSION and the same table in v0 (KIP-511). A client that says
which cluster and node it wanted to reach, and has reached another one, gets REBOOTSTRAP_REQUIRED (KIP-1242).

After a SaslHandshake v0, the tokens arrive without request headers; the dispatcher passes them to
`sasl_authenticate`, too. A failure is answered after `connection.failed.authentication.delay.ms`, and then
the connection is closed. The response does not tell why the authentication failed. On a listener without
SASL, both APIs fail with ILLEGAL_SASL_STATE, as in Kafka (KIP-43, KIP-152, KIP-368).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.broker.requests.request import PARKED, Unanswered
from tidelog.model.errors import ErrorCode
from tidelog.model.features import SUPPORTED_FEATURES, FinalizedFeatures
from tidelog.model.topics import MAX_REMEMBERED_NAME_CHARS
from tidelog.sasl import AuthenticationError
from tidelog.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from tidelog.broker.cluster.view import MetadataView
    from tidelog.broker.requests.request import Authentication, RequestContext

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")
_FIRST_VERSION_WITH_SOFTWARE = 3
_FIRST_VERSION_WITH_ZERO_MIN_FEATURE = 4
_ANY_NODE = -1
_NO_SASL: Final = "This listener does not authenticate connections with SASL"
_NOT_NOW: Final = "SaslHandshake must come before SaslAuthenticate"
_CLOSING: Final = frozenset({ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.SASL_AUTHENTICATION_FAILED})


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


def sasl_handshake(
    request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse | Coroutine[object, None, Unanswered]:
    authentication = context.connection.authentication
    if authentication is None:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
    code = authentication.choose(request.mechanism, is_raw=context.api_version == 0)
    response = SaslHandshakeResponse(code, list(authentication.mechanisms))
    return _refuse(context, response, authentication.failure_delay_s) if code in _CLOSING else response


def sasl_authenticate(
    request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse | Coroutine[object, None, SaslAuthenticateResponse | Unanswered]:
    authentication = context.connection.authentication
    if authentication is None:
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, _NO_SASL)
    if not authentication.is_expecting_token:
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, _NOT_NOW)
    token = bytes(request.auth_bytes)
    try:
        preparation = authentication.preparation(token)
        if preparation is None:
            return _accepted(authentication.take(token))
    except AuthenticationError:
        return _refuse(context, _refusal(authentication), authentication.failure_delay_s)
    return _authenticate_prepared(context, authentication, token, preparation)


async def _authenticate_prepared(
    context: RequestContext, authentication: Authentication, token: bytes, preparation: Awaitable[None]
) -> SaslAuthenticateResponse | Unanswered:
    await preparation
    try:
        return _accepted(authentication.take(token))
    except AuthenticationError:
        return await _refuse(context, _refusal(authentication), authentication.failure_delay_s)


def _accepted(step: tuple[bytes, int]) -> SaslAuthenticateResponse:
    token, lifetime_ms = step
    return SaslAuthenticateResponse(error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms)


def _refusal(authentication: Authentication) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        f"The authentication with {authentication.mechanism} failed: the credentials are not valid",
    )


async def _refuse(
    context: RequestContext, response: SaslHandshakeResponse | SaslAuthenticateResponse, delay_s: float
) -> Unanswered:
    """Sends the response after the delay, and closes the connection."""
    await asyncio.sleep(delay_s)
    context.reply(response)
    context.connection.finish()
    return PARKED  # the caller must not answer again
