"""AlterUserScramCredentials v0: refused, user by user.

What is deleted isn't there (RESOURCE_NOT_FOUND). Deviation: a credential to be stored is refused with
UNSUPPORTED_SASL_MECHANISM, as there is no SASL to use it yet; an unsecured Kafka keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext

_NO_SASL: Final = "SASL is not supported yet, so SCRAM credentials can't be stored"


def handle(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    refusals: dict[str, AlterUserScramCredentialsResult] = {}  # one answer a user, the first refusal stands
    for upsertion in request.upsertions:
        refusals.setdefault(
            upsertion.name,
            AlterUserScramCredentialsResult(upsertion.name, ErrorCode.UNSUPPORTED_SASL_MECHANISM, _NO_SASL),
        )
    for deletion in request.deletions:
        refusals.setdefault(
            deletion.name,
            AlterUserScramCredentialsResult(
                deletion.name,
                ErrorCode.RESOURCE_NOT_FOUND,
                f"The user {deletion.name} has no SCRAM credentials",
            ),
        )
    return AlterUserScramCredentialsResponse(results=list(refusals.values()))
