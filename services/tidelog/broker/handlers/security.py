"""The APIs that say who may do what, and what proves who a user is.

- ACLs: DescribeAcls, CreateAcls, DeleteAcls.
- Tokens: CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken.
- Passwords: DescribeUserScramCredentials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.security.judging import NO_AUTHORIZER
from tidelog.kernel.slices import in_slices
from tidelog.model.acl import ANONYMOUS, AclFilter, AclOperation, Principal, ResourceType, acl_filter
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.sasl.delegation_tokens import token_hmac
from tidelog.sasl.scram import MECHANISM_BY_NAME
from tidelog.settings.setting import Password
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from tidelog.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tidelog.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from tidelog.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from tidelog.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tidelog.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from tidelog.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tidelog.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.view import CurrentSettings, MetadataView
    from tidelog.broker.requests.request import Answer, Reply, RequestContext
    from tidelog.broker.security.authorizer import Authorizer
    from tidelog.kernel.clock import Clock
    from tidelog.metadata.entries import DelegationTokenEntry

_NO_TIME: Final = -1


class AclHandlers:
    """DescribeAcls, CreateAcls and DeleteAcls, v1 to v3. The controller changes ACLs; this broker describes
    those of its snapshot. Without an authorizer, these requests fail with SECURITY_DISABLED, as in Kafka.
    """

    def __init__(
        self, metadata: MetadataView, controller: ControllerConnection, *, has_authorizer: bool
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._has_authorizer = has_authorizer

    def describe(
        self, request: DescribeAclsRequest, context: RequestContext
    ) -> DescribeAclsResponse | Coroutine[object, None, DescribeAclsResponse]:
        if not self._has_authorizer:
            return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        try:
            wanted = acl_filter(request)
        except KafkaError as error:
            return DescribeAclsResponse(error_code=error.code, error_message=error.message)
        return in_slices(self._described(wanted))

    def _described(self, wanted: AclFilter) -> Generator[None, None, DescribeAclsResponse]:
        resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
        for binding in (entry.binding for entry in self._metadata.security.acls.values()):
            yield
            if not wanted.matches(binding):
                continue
            key = (binding.resource_type, binding.resource_name, binding.pattern_type)
            resource = resources.get(key)
            if resource is None:
                resource = resources[key] = DescribeAclsResource(*key, acls=[])
            resource.acls.append(
                AclDescription(binding.principal, binding.host, binding.operation, binding.permission)
            )
        return DescribeAclsResponse(error_message=None, resources=list(resources.values()))

    def create(
        self, request: CreateAclsRequest, context: RequestContext
    ) -> CreateAclsResponse | Coroutine[object, None, CreateAclsResponse]:
        def refuse(code: ErrorCode, message: str | None) -> CreateAclsResponse:
            return CreateAclsResponse(results=[AclCreationResult(code, message) for _ in request.creations])

        if not self._has_authorizer:
            return refuse(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return self._controller.forward_or_refuse(ApiKey.CREATE_ACLS, request, context, refuse)

    def delete(
        self, request: DeleteAclsRequest, context: RequestContext
    ) -> DeleteAclsResponse | Coroutine[object, None, DeleteAclsResponse]:
        def refuse(code: ErrorCode, message: str | None) -> DeleteAclsResponse:
            results = [DeleteAclsFilterResult(code, message) for _ in request.filters]
            return DeleteAclsResponse(filter_results=results)

        if not self._has_authorizer:
            return refuse(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return self._controller.forward_or_refuse(ApiKey.DELETE_ACLS, request, context, refuse)


class DelegationTokenHandlers:
    """CreateDelegationToken and DescribeDelegationToken, v1 to v3; RenewDelegationToken and
    ExpireDelegationToken, v1 and v2 (KIP-48).

    Only a client that has proved its identity, and not by another token, may use them; others get
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Without `delegation.token.secret.key`, the error is
    DELEGATION_TOKEN_AUTH_DISABLED. The controller decides about changes. A client sees the tokens of which it
    is owner, requester or renewer.

    ACLs open the tokens of others (KIP-373): CREATE_TOKENS on the resource USER of an owner allows to create
    tokens for this owner. DESCRIBE_TOKENS on it, and DESCRIBE on the resource DELEGATION_TOKEN with the id of
    a token, show tokens. Deviation: without an authorizer, nobody reaches the tokens of others; Kafka shows
    them to everyone.
    """

    def __init__(
        self,
        settings: CurrentSettings,
        metadata: MetadataView,
        controller: ControllerConnection,
        clock: Clock,
        authorizer: Authorizer | None,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._controller = controller
        self._clock = clock
        self._authorizer = authorizer

    def create(self, request: CreateDelegationTokenRequest, context: RequestContext) -> Answer:
        requester = context.principal
        owner = requester
        if request.owner_principal_name:
            owner = Principal(f"{request.owner_principal_type}:{request.owner_principal_name}")

        def refuse(code: ErrorCode, message: str | None = None) -> CreateDelegationTokenResponse:
            return CreateDelegationTokenResponse(
                code, *_parts(owner), *_parts(requester), _NO_TIME, _NO_TIME, _NO_TIME
            )

        code = self._refusal(context)
        if code is None and owner != requester and not self._may_create_for(owner, context):
            code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        if code is not None:
            return refuse(code)
        return self._controller.forward_or_refuse(int(context.route.api_key), request, context, refuse)

    def _may_create_for(self, owner: Principal, context: RequestContext) -> bool:
        return self._authorizer is not None and self._authorizer.may(
            context, AclOperation.CREATE_TOKENS, ResourceType.USER, owner
        )

    def renew(self, request: RenewDelegationTokenRequest, context: RequestContext) -> Answer:
        def refuse(code: ErrorCode, message: str | None = None) -> RenewDelegationTokenResponse:
            return RenewDelegationTokenResponse(code, expiry_timestamp_ms=_NO_TIME)

        return self._forwarded(request, context, refuse)

    def expire(self, request: ExpireDelegationTokenRequest, context: RequestContext) -> Answer:
        def refuse(code: ErrorCode, message: str | None = None) -> ExpireDelegationTokenResponse:
            return ExpireDelegationTokenResponse(code, expiry_timestamp_ms=_NO_TIME)

        return self._forwarded(request, context, refuse)

    def describe(
        self, request: DescribeDelegationTokenRequest, context: RequestContext
    ) -> DescribeDelegationTokenResponse | Coroutine[object, None, DescribeDelegationTokenResponse]:
        code = self._refusal(context)
        secret_key = self._settings.broker.delegation_token_secret_key
        if code is not None or not isinstance(secret_key, Password):
            return DescribeDelegationTokenResponse(code or ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        return in_slices(self._described_tokens(request, context, secret_key.reveal().encode()))

    def _described_tokens(
        self, request: DescribeDelegationTokenRequest, context: RequestContext, key: bytes
    ) -> Generator[None, None, DescribeDelegationTokenResponse]:
        now_ms = self._clock.wall_ms()
        owners = (
            None
            if request.owners is None
            else {f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
        )
        tokens = []
        for token in self._metadata.security.delegation_tokens.values():
            yield
            if (
                token.expiry_ms > now_ms
                and (owners is None or not owners.isdisjoint(token.viewers))
                and (context.principal in token.viewers or self._may_see(token, context))
            ):
                tokens.append(_described(token, token_hmac(key, token.token_id)))
        return DescribeDelegationTokenResponse(tokens=tokens)

    def _may_see(self, token: DelegationTokenEntry, context: RequestContext) -> bool:
        authorizer = self._authorizer
        return authorizer is not None and (
            authorizer.may(
                context,
                AclOperation.DESCRIBE,
                ResourceType.DELEGATION_TOKEN,
                token.token_id,
                is_asked_for=False,
            )
            or authorizer.may(
                context, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner, is_asked_for=False
            )
        )

    # `Any`: the request, the refusal and the response belong to one API.
    def _forwarded(self, request: Any, context: RequestContext, refuse: Any) -> Answer:
        code = self._refusal(context)
        if code is not None:
            refusal: Reply = refuse(code)
            return refusal
        api_key = int(context.route.api_key)
        return self._controller.forward_or_refuse(api_key, request, context, refuse)

    def _refusal(self, context: RequestContext) -> ErrorCode | None:
        authentication = context.connection.authentication
        if context.principal == ANONYMOUS or (authentication is not None and authentication.is_token_login):
            return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        if self._settings.broker.delegation_token_secret_key is None:
            return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        return None


def _described(token: DelegationTokenEntry, secret: bytes) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        *_parts(token.owner),
        *_parts(token.requester),
        token.issue_ms,
        token.expiry_ms,
        token.max_ms,
        token.token_id,
        secret,
        [DescribedDelegationTokenRenewer(*_parts(renewer)) for renewer in token.renewers],
    )


def _parts(principal: Principal) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


class DescribeUserScramCredentialsHandler:
    """DescribeUserScramCredentials v0: the mechanisms and iterations of users, from the broker's snapshot."""

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
            results.append(_scram_described(user, known.get(user), times))
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _scram_described(
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
