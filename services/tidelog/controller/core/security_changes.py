"""Changes of who may do what: ACLs, SCRAM credentials and delegation tokens. Brokers receive all of them and
answer the requests that describe them from their own snapshots.

- CreateAcls and DeleteAcls (KIP-140, KIP-290);
- AlterUserScramCredentials (KIP-554), with the rules of Kafka's `ScramControlManager`;
- CreateDelegationToken, RenewDelegationToken and ExpireDelegationToken (KIP-48), with the rules of Kafka's
  `DelegationTokenControlManager`. Brokers have checked that the client may request tokens, and that it may
  request them for the owner (KIP-373).
"""

from __future__ import annotations

from typing import Final

from tidelog.controller.core.decision import (
    Context,
    ControllerDecision,
    DecisionSteps,
    Erase,
    Record,
    Steps,
    Write,
)
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import (
    DELEGATION_TOKEN_PREFIX,
    AclEntry,
    DelegationTokenEntry,
    ScramCredentialEntry,
    scram_credential_key,
)
from tidelog.model.acl import AclFilter, Principal, acl_filter, new_binding
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import MAX_NAME_BYTES, is_too_long, topic_id_text
from tidelog.sasl.delegation_tokens import token_hmac
from tidelog.sasl.scram import (
    MAX_ITERATIONS,
    MECHANISM_BY_NUMBER,
    MIN_ITERATIONS,
    credential_of_salted,
)
from tidelog.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from tidelog.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tidelog.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tidelog.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tidelog.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

MAX_ACLS: Final = 100_000
"""The ACLs of a cluster. Every broker holds all of them in memory."""
MAX_DELETED: Final = 10_000
"""The most ACLs that one request may delete, as in Kafka (`AclControlManager`). Here, an ACL counts for each
filter that it matches, because the response names it for each of them.
"""
MAX_COMPARISONS: Final = 10_000_000
"""The most ACLs with which the filters of one request are compared. The controller serves no other request
during the ten seconds or so that this takes. A filter that can match only one ACL does not count.
"""
MAX_SALT_BYTES: Final = 1024
MAX_SALTED_PASSWORD_BYTES: Final = 1024
"""Longer fields are refused, because every broker keeps each credential in memory."""
MAX_CREDENTIALS: Final = 100_000
"""The limit of the credentials of a cluster, which every broker keeps."""
MAX_TOKENS: Final = 10_000
"""The limit of the tokens of a cluster. One client may have requested half of them."""
MAX_RENEWERS: Final = 100
MAX_REMOVED: Final = 100
"""The expired tokens that one creation removes."""
USER_TYPE: Final = "User"
_NO_TIME: Final = -1


def create_acls(
    state: ClusterState, context: Context, request: CreateAclsRequest, api_version: int
) -> ControllerDecision[CreateAclsResponse]:
    """Creates each ACL that is valid and does not exist. Existing ACLs count as created, as in Kafka."""
    records: dict[str, Record] = {}
    results = []
    for creation in request.creations:
        try:
            entry = AclEntry(new_binding(creation))
            key = entry.key
            if key not in state.acls and key not in records:
                if len(state.acls) + len(records) >= MAX_ACLS:
                    raise KafkaError(ErrorCode.POLICY_VIOLATION, f"The cluster has {MAX_ACLS} ACLs already.")
                records[key] = Write(entry)
        except KafkaError as error:
            results.append(AclCreationResult(error.code, error.message))
        else:
            results.append(AclCreationResult(ErrorCode.NONE, None))
    return ControllerDecision(tuple(records.values()), CreateAclsResponse(results=results))


def delete_acls(
    state: ClusterState, context: Context, request: DeleteAclsRequest, api_version: int
) -> DecisionSteps[DeleteAclsResponse]:
    """Deletes the ACLs that match at least one filter. An ACL is reported for each filter that it matches.

    Raises KafkaError(INVALID_REQUEST) if the request is too large.
    """
    erased: dict[str, Record] = {}
    results = []
    compared = matched = 0
    for given in request.filters:
        yield
        try:
            wanted = acl_filter(given)
        except KafkaError as error:
            results.append(DeleteAclsFilterResult(error.code, error.message))
            continue
        if wanted.only_match is None:
            compared += len(state.acls)
            if compared > MAX_COMPARISONS:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"The filters would need more than {MAX_COMPARISONS} comparisons; use fewer filters.",
                )
        found = yield from _matching(state, wanted)
        matched += len(found)
        if matched > MAX_DELETED:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A request deletes at most {MAX_DELETED} ACLs; use other filters.",
            )
        erased.update((entry.key, Erase(entry.key)) for entry in found)
        matching = [
            DeleteAclsMatchingAcl(
                ErrorCode.NONE,
                None,
                binding.resource_type,
                binding.resource_name,
                binding.pattern_type,
                binding.principal,
                binding.host,
                binding.operation,
                binding.permission,
            )
            for binding in (entry.binding for entry in found)
        ]
        results.append(DeleteAclsFilterResult(ErrorCode.NONE, None, matching))
    return ControllerDecision(tuple(erased.values()), DeleteAclsResponse(filter_results=results))


def _matching(state: ClusterState, wanted: AclFilter) -> Steps[list[AclEntry]]:
    only = wanted.only_match
    if only is not None:
        known = state.acls.get(AclEntry(only).key)
        return [] if known is None else [known]
    found = []
    for entry in state.acls.values():
        yield
        if wanted.matches(entry.binding):
            found.append(entry)
    return found


class _RefusedError(Exception):
    """The reason why the changes of one user are refused."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def alter_user_scram_credentials(
    state: ClusterState, context: Context, request: AlterUserScramCredentialsRequest, api_version: int
) -> ControllerDecision[AlterUserScramCredentialsResponse]:
    """Decides each user on its own: one refused change refuses all changes of the user, and no others."""
    refusals: dict[str, _RefusedError] = {}
    records: dict[str, dict[str, Record]] = {}  # by user and key
    count = len(state.scram_credentials)
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [
        *request.deletions,
        *request.upsertions,
    ]
    for change in changes:
        of_user = records.setdefault(change.name, {})
        try:
            key = _checked_key(change)
            if key in of_user:
                raise _RefusedError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "The request changes the same credential of a user more than once.",
                )
            if isinstance(change, ScramCredentialDeletion):
                if key not in state.scram_credentials:
                    raise _RefusedError(ErrorCode.RESOURCE_NOT_FOUND, "The user has no such credential.")
                of_user[key] = Erase(key)
            else:
                of_user[key] = Write(_entry(change))
                count += key not in state.scram_credentials
                if count > MAX_CREDENTIALS:
                    raise _RefusedError(
                        ErrorCode.POLICY_VIOLATION,
                        f"The cluster has {MAX_CREDENTIALS} credentials, which is the limit.",
                    )
        except _RefusedError as refusal:
            refusals.setdefault(change.name, refusal)
    results = []
    accepted: list[Record] = []
    for user, of_user in records.items():
        found = refusals.get(user)
        if found is None:
            accepted += of_user.values()
            results.append(AlterUserScramCredentialsResult(user, ErrorCode.NONE, None))
        else:
            results.append(AlterUserScramCredentialsResult(user, found.code, found.message))
    return ControllerDecision(tuple(accepted), AlterUserScramCredentialsResponse(results=results))


def _checked_key(change: ScramCredentialDeletion | ScramCredentialUpsertion) -> str:
    if not change.name:
        raise _RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The user name is empty.")
    if is_too_long(change.name):
        raise _RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"The user name is longer than {MAX_NAME_BYTES} bytes."
        )
    mechanism = MECHANISM_BY_NUMBER.get(change.mechanism)
    if mechanism is None:
        raise _RefusedError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"There is no SCRAM mechanism {change.mechanism}."
        )
    return scram_credential_key(mechanism.name, change.name)


def _entry(change: ScramCredentialUpsertion) -> ScramCredentialEntry:
    if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
        raise _RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"The number of iterations is not between {MIN_ITERATIONS} and {MAX_ITERATIONS}.",
        )
    salt, salted = bytes(change.salt), bytes(change.salted_password)
    if not 0 < len(salt) <= MAX_SALT_BYTES or not 0 < len(salted) <= MAX_SALTED_PASSWORD_BYTES:
        raise _RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt or the salted password is empty or too long."
        )
    mechanism = MECHANISM_BY_NUMBER[change.mechanism]
    credential = credential_of_salted(mechanism, salted, salt, change.iterations)
    return ScramCredentialEntry(change.name, mechanism.name, credential)


def create_delegation_token(
    state: ClusterState,
    context: Context,
    request: CreateDelegationTokenRequest,
    api_version: int,
    principal: Principal,
) -> ControllerDecision[CreateDelegationTokenResponse]:
    """Decides about a new token of the named owner or else of the client, and removes expired tokens."""
    rules, now_ms = context.rules.delegation_tokens, context.now_ms
    owner, types = principal, {renewer.principal_type for renewer in request.renewers}
    if request.owner_principal_name:
        owner = Principal(f"{USER_TYPE}:{request.owner_principal_name}")
        types.add(request.owner_principal_type or "")
    if rules is None:
        return _not_created(owner, principal, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    if types - {USER_TYPE}:
        return _not_created(owner, principal, ErrorCode.INVALID_PRINCIPAL_TYPE)
    expired = [key for key, token in state.delegation_tokens.items() if token.expiry_ms <= now_ms]
    removed: list[Record] = [Erase(key) for key in expired[:MAX_REMOVED]]
    # Nobody needs an ACL for a token, so one client must not take the tokens of all.
    tokens = state.delegation_tokens.values()
    requested = sum(token.requester == principal and token.expiry_ms > now_ms for token in tokens)
    if (
        len(state.delegation_tokens) - len(removed) >= MAX_TOKENS
        or requested >= MAX_TOKENS // 2
        or len(request.renewers) > MAX_RENEWERS
    ):
        return _not_created(owner, principal, ErrorCode.POLICY_VIOLATION)
    names = [_parts(owner)[1], _parts(principal)[1], *(each.principal_name for each in request.renewers)]
    if any(map(is_too_long, names)):
        return _not_created(owner, principal, ErrorCode.INVALID_REQUEST)
    lifetime_ms = rules.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    max_ms = now_ms + lifetime_ms
    token = DelegationTokenEntry(
        topic_id_text(context.chance.topic_id()),
        owner,
        principal,
        tuple(Principal(f"{USER_TYPE}:{renewer.principal_name}") for renewer in request.renewers),
        now_ms,
        min(max_ms, now_ms + rules.expiry_time_ms),
        max_ms,
    )
    reply = CreateDelegationTokenResponse(
        ErrorCode.NONE,
        *_parts(owner),
        *_parts(principal),
        token.issue_ms,
        token.expiry_ms,
        token.max_ms,
        token.token_id,
        token_hmac(rules.secret_key, token.token_id),
    )
    return ControllerDecision((*removed, Write(token)), reply)


def renew_delegation_token(
    state: ClusterState,
    context: Context,
    request: RenewDelegationTokenRequest,
    api_version: int,
    principal: Principal,
) -> ControllerDecision[RenewDelegationTokenResponse]:
    found = _token_for(state, context, bytes(request.hmac), principal)
    rules = context.rules.delegation_tokens
    if isinstance(found, ErrorCode) or rules is None:
        code = found if isinstance(found, ErrorCode) else ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        return ControllerDecision((), RenewDelegationTokenResponse(code, _NO_TIME))
    period_ms = request.renew_period_ms if request.renew_period_ms >= 0 else rules.expiry_time_ms
    renewed = found._replace(expiry_ms=min(found.max_ms, context.now_ms + period_ms))
    reply = RenewDelegationTokenResponse(ErrorCode.NONE, renewed.expiry_ms)
    return ControllerDecision((Write(renewed),), reply)


def expire_delegation_token(
    state: ClusterState,
    context: Context,
    request: ExpireDelegationTokenRequest,
    api_version: int,
    principal: Principal,
) -> ControllerDecision[ExpireDelegationTokenResponse]:
    """Sets the end of a token's validity. A negative period removes the token at once."""
    found = _token_for(state, context, bytes(request.hmac), principal)
    if isinstance(found, ErrorCode):
        return ControllerDecision((), ExpireDelegationTokenResponse(found, _NO_TIME))
    now_ms = context.now_ms
    if request.expiry_time_period_ms < 0:
        reply = ExpireDelegationTokenResponse(ErrorCode.NONE, now_ms)
        return ControllerDecision((Erase(found.key),), reply)
    ended = found._replace(expiry_ms=min(found.max_ms, now_ms + request.expiry_time_period_ms))
    return ControllerDecision((Write(ended),), ExpireDelegationTokenResponse(ErrorCode.NONE, ended.expiry_ms))


def _token_for(
    state: ClusterState, context: Context, secret: bytes, principal: Principal
) -> DelegationTokenEntry | ErrorCode:
    """Returns the token with this secret, or the error if the principal may not change it."""
    rules = context.rules.delegation_tokens
    if rules is None:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    token_id = state.token_secrets.find(rules.secret_key, secret)
    found = None if token_id is None else state.delegation_tokens.get(f"{DELEGATION_TOKEN_PREFIX}{token_id}")
    if found is None:
        return ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    if principal != found.owner and principal not in found.renewers:
        return ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    if found.max_ms < context.now_ms or found.expiry_ms < context.now_ms:
        return ErrorCode.DELEGATION_TOKEN_EXPIRED
    return found


def _not_created(
    owner: Principal, requester: Principal, code: ErrorCode
) -> ControllerDecision[CreateDelegationTokenResponse]:
    reply = CreateDelegationTokenResponse(
        code, *_parts(owner), *_parts(requester), _NO_TIME, _NO_TIME, _NO_TIME
    )
    return ControllerDecision((), reply)


def _parts(principal: Principal) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name
