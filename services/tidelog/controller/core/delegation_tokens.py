"""CreateDelegationToken, RenewDelegationToken and ExpireDelegationToken (KIP-48), with the rules of Kafka's
`DelegationTokenControlManager`. Brokers have checked that the client may request tokens, and that it may
request them for the owner (KIP-373).
"""

from __future__ import annotations

from typing import Final

from tidelog.controller.core.decision import (
    Context,
    ControllerDecision,
    Erase,
    Record,
    Write,
)
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import DELEGATION_TOKEN_PREFIX, DelegationTokenEntry, encode_uuid
from tidelog.model.errors import ErrorCode
from tidelog.model.name_limits import is_too_long
from tidelog.model.principal import Principal
from tidelog.sasl.delegation_tokens import token_hmac
from tidelog.wire.messages import create_delegation_token as create
from tidelog.wire.messages import expire_delegation_token as expire
from tidelog.wire.messages import renew_delegation_token as renew

MAX_TOKENS: Final = 10_000
"""The limit of the tokens of a cluster. One client may have requested half of them."""
MAX_RENEWERS: Final = 100
MAX_REMOVED: Final = 100
"""The expired tokens that one creation removes."""
USER_TYPE: Final = "User"
_NO_TIME: Final = -1


def create_delegation_token(
    state: ClusterState,
    context: Context,
    request: create.CreateDelegationTokenRequest,
    api_version: int,
    principal: Principal,
) -> ControllerDecision[create.CreateDelegationTokenResponse]:
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
        encode_uuid(context.chance.topic_id()),
        owner,
        principal,
        tuple(Principal(f"{USER_TYPE}:{renewer.principal_name}") for renewer in request.renewers),
        now_ms,
        min(max_ms, now_ms + rules.expiry_time_ms),
        max_ms,
    )
    reply = create.CreateDelegationTokenResponse(
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
    request: renew.RenewDelegationTokenRequest,
    api_version: int,
    principal: Principal,
) -> ControllerDecision[renew.RenewDelegationTokenResponse]:
    found = _token_for(state, context, bytes(request.hmac), principal)
    rules = context.rules.delegation_tokens
    if isinstance(found, ErrorCode) or rules is None:
        code = found if isinstance(found, ErrorCode) else ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        return ControllerDecision((), renew.RenewDelegationTokenResponse(code, _NO_TIME))
    period_ms = request.renew_period_ms if request.renew_period_ms >= 0 else rules.expiry_time_ms
    renewed = found._replace(expiry_ms=min(found.max_ms, context.now_ms + period_ms))
    reply = renew.RenewDelegationTokenResponse(ErrorCode.NONE, renewed.expiry_ms)
    return ControllerDecision((Write(renewed),), reply)


def expire_delegation_token(
    state: ClusterState,
    context: Context,
    request: expire.ExpireDelegationTokenRequest,
    api_version: int,
    principal: Principal,
) -> ControllerDecision[expire.ExpireDelegationTokenResponse]:
    """Sets the end of a token's validity. A negative period removes the token at once."""
    found = _token_for(state, context, bytes(request.hmac), principal)
    if isinstance(found, ErrorCode):
        return ControllerDecision((), expire.ExpireDelegationTokenResponse(found, _NO_TIME))
    now_ms = context.now_ms
    if request.expiry_time_period_ms < 0:
        reply = expire.ExpireDelegationTokenResponse(ErrorCode.NONE, now_ms)
        return ControllerDecision((Erase(found.key),), reply)
    ended = found._replace(expiry_ms=min(found.max_ms, now_ms + request.expiry_time_period_ms))
    return ControllerDecision(
        (Write(ended),), expire.ExpireDelegationTokenResponse(ErrorCode.NONE, ended.expiry_ms)
    )


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
) -> ControllerDecision[create.CreateDelegationTokenResponse]:
    reply = create.CreateDelegationTokenResponse(
        code, *_parts(owner), *_parts(requester), _NO_TIME, _NO_TIME, _NO_TIME
    )
    return ControllerDecision((), reply)


def _parts(principal: Principal) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name
