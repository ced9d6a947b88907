"""DescribeUserScramCredentials v0: the mechanisms and iterations of users, from the broker's snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.sasl.scram import MECHANISM_BY_NAME
from tidelog.timing.slices import in_slices
from tidelog.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.metadata_view import MetadataView
    from tidelog.broker.requests.request import RequestContext


class DescribeUserScramCredentialsHandler:
    def __init__(self, metadata: MetadataView) -> None:
        self._metadata = metadata

    def handle(
        self, request: DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> DescribeUserScramCredentialsResponse | Coroutine[object, None, DescribeUserScramCredentialsResponse]:
        """Describes the named users, or all users if the request names none."""
        return in_slices(self._answer(request))

    def _answer(
        self, request: DescribeUserScramCredentialsRequest
    ) -> Generator[None, None, DescribeUserScramCredentialsResponse]:
        known: dict[str, list[CredentialInfo]] = {}
        for entry in self._metadata.security.scram_credentials.values():
            yield
            number = MECHANISM_BY_NAME[entry.mechanism].number
            known.setdefault(entry.user, []).append(CredentialInfo(number, entry.credential.iterations))
        named = Counter(user.name for user in request.users or ())
        counts = named or dict.fromkeys(known, 1)
        results = []
        for user, times in counts.items():
            yield
            results.append(_described(user, known.get(user), times))
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _described(
    user: str, infos: list[CredentialInfo] | None, times_named: int
) -> DescribeUserScramCredentialsResult:
    if times_named > 1:
        return DescribeUserScramCredentialsResult(
            user, ErrorCode.DUPLICATE_RESOURCE, f"The user {user} is named more than once"
        )
    if infos is None:
        return DescribeUserScramCredentialsResult(
            user, ErrorCode.RESOURCE_NOT_FOUND, f"The user {user} has no SCRAM credentials"
        )
    infos.sort(key=lambda info: info.mechanism)
    return DescribeUserScramCredentialsResult(user, ErrorCode.NONE, None, infos)
