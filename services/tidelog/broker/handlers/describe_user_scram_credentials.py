"""DescribeUserScramCredentials v0: nobody has credentials, as there is no SASL yet; a user named is
RESOURCE_NOT_FOUND, as in an unsecured Kafka.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    times_named = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(
        error_message=None, results=[_result(user, times) for user, times in times_named.items()]
    )


def _result(user: str, times_named: int) -> DescribeUserScramCredentialsResult:
    if times_named > 1:
        return DescribeUserScramCredentialsResult(
            user, ErrorCode.DUPLICATE_RESOURCE, f"The user {user} is named more than once"
        )
    return DescribeUserScramCredentialsResult(
        user, ErrorCode.RESOURCE_NOT_FOUND, f"The user {user} has no SCRAM credentials"
    )
