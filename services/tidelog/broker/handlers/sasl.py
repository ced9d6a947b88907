"""The APIs of SASL and of its SCRAM credentials, on a broker without SASL.

SaslHandshake v0 and v1 and SaslAuthenticate v0 to v2 fail with ILLEGAL_SASL_STATE, as on a PLAINTEXT
listener of Kafka. DescribeUserScramCredentials v0 finds no credentials, so each named user is
RESOURCE_NOT_FOUND, as in an unsecured Kafka. AlterUserScramCredentials v0 refuses each user: a deletion with
RESOURCE_NOT_FOUND and, as a deviation, an upsertion with UNSUPPORTED_SASL_MECHANISM. An unsecured Kafka
stores the credential.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from tidelog.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext

_PLAINTEXT: Final = "This listener is PLAINTEXT and does not authenticate connections"
_NO_SASL: Final = "This broker does not support SASL, so it cannot store SCRAM credentials"


def sasl_handshake(request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(request: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, _PLAINTEXT)


def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    times_named = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(
        error_message=None, results=[_described(user, times) for user, times in times_named.items()]
    )


def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    refusals: dict[str, AlterUserScramCredentialsResult] = {}  # one result per user: the first refusal
    for upsertion in request.upsertions:
        refusals.setdefault(
            upsertion.name,
            AlterUserScramCredentialsResult(upsertion.name, ErrorCode.UNSUPPORTED_SASL_MECHANISM, _NO_SASL),
        )
    for deletion in request.deletions:
        refusals.setdefault(
            deletion.name,
            AlterUserScramCredentialsResult(
                deletion.name, ErrorCode.RESOURCE_NOT_FOUND, _no_credentials(deletion.name)
            ),
        )
    return AlterUserScramCredentialsResponse(results=list(refusals.values()))


def _described(user: str, times_named: int) -> DescribeUserScramCredentialsResult:
    if times_named > 1:
        return DescribeUserScramCredentialsResult(
            user, ErrorCode.DUPLICATE_RESOURCE, f"The user {user} is named more than once"
        )
    return DescribeUserScramCredentialsResult(user, ErrorCode.RESOURCE_NOT_FOUND, _no_credentials(user))


def _no_credentials(user: str) -> str:
    return f"The user {user} has no SCRAM credentials"
