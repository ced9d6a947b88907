"""ACLs open the delegation tokens of others (KIP-48, KIP-373)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.metadata.entries import AclEntry, DelegationTokenEntry
from tidelog.model.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
    user_principal,
)
from tidelog.model.errors import ErrorCode
from tidelog.rpc.broker_commands import SecurityUpdate
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire.messages import create_delegation_token as create
from tidelog.wire.messages import describe_delegation_token as describe

ALICE, BOB, CAROL, ROOT = map(user_principal, ("alice", "bob", "carol", "root"))
SECURED = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root"}
FOREVER_MS = 1 << 60


def token(token_id: str, owner: Principal, *renewers: Principal) -> DelegationTokenEntry:
    return DelegationTokenEntry(token_id, owner, ROOT, renewers, 0, FOREVER_MS, FOREVER_MS)


TOKENS = (token("of-alice", ALICE), token("of-bob", BOB), token("for-carol", BOB, CAROL))


@pytest.fixture(params=[SECURED, {}], ids=["authorizer", "no authorizer"])
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[InMemoryBroker]:
    broker = InMemoryBroker(tmp_path, {"delegation.token.secret.key": "secret", **request.param})
    broker.update_metadata(security=SecurityUpdate(1, TOKENS))
    yield broker
    broker.close()


secured = pytest.mark.parametrize("lab", [SECURED], indirect=True)


def allow(
    lab: InMemoryBroker, operation: AclOperation, kind: ResourceType, name: str, principal: Principal = ALICE
) -> None:
    binding = AclBinding(kind, PatternType.LITERAL, name, principal, "*", operation, PermissionType.ALLOW)
    lab.update_metadata(security=SecurityUpdate(2, (AclEntry(binding),)))


def seen(lab: InMemoryBroker, principal: Principal, owners: list[str] | None = None) -> set[str]:
    wanted = owners and [describe.DescribeDelegationTokenOwner("User", name) for name in owners]
    request = describe.DescribeDelegationTokenRequest([] if owners == [] else wanted)
    answer = lab.call(request, 3, principal=principal)
    assert answer.error_code == ErrorCode.NONE
    return {found.token_id for found in answer.tokens}


def creation_for(lab: InMemoryBroker, owner: str, principal: Principal) -> int:
    """Returns the error code of a creation. The controller accepts what reaches it."""
    lab.controller.answer = _accepted
    request = create.CreateDelegationTokenRequest("User", owner)
    code: int = lab.call(request, 3, principal=principal).error_code
    return code


def _accepted(request: Any) -> create.CreateDelegationTokenResponse:
    return create.CreateDelegationTokenResponse(ErrorCode.NONE)


def test_everyone_sees_their_own_tokens(lab: InMemoryBroker) -> None:
    assert seen(lab, ALICE) == {"of-alice"}
    assert seen(lab, CAROL) == {"for-carol"}
    assert seen(lab, CAROL, ["bob"]) == {"for-carol"}
    assert seen(lab, CAROL, ["alice"]) == set()
    assert seen(lab, BOB, ["carol"]) == {"for-carol"}, "a renewer counts as an owner that is asked for"
    assert seen(lab, BOB, []) == set(), "an empty list asks for nothing"
    assert seen(lab, ROOT) == {"of-alice", "of-bob", "for-carol"}, "a requester sees what it requested"


@secured
def test_describe_on_a_token_shows_it(lab: InMemoryBroker) -> None:
    allow(lab, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "of-bob")
    assert seen(lab, ALICE) == {"of-alice", "of-bob"}
    assert seen(lab, CAROL) == {"for-carol"}


@secured
def test_describe_tokens_on_a_user_shows_its_tokens(lab: InMemoryBroker) -> None:
    allow(lab, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob")
    assert seen(lab, ALICE) == {"of-alice", "of-bob", "for-carol"}
    assert seen(lab, ALICE, ["alice"]) == {"of-alice"}


def test_nobody_creates_tokens_for_others_without_an_acl(lab: InMemoryBroker) -> None:
    refused = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert creation_for(lab, "bob", ALICE) == refused
    assert creation_for(lab, "alice", ALICE) == ErrorCode.NONE


@secured
def test_create_tokens_on_a_user_creates_tokens_for_it(lab: InMemoryBroker) -> None:
    allow(lab, AclOperation.CREATE_TOKENS, ResourceType.USER, "User:bob")
    assert creation_for(lab, "bob", ALICE) == ErrorCode.NONE
    assert creation_for(lab, "carol", ALICE) == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert creation_for(lab, "carol", ROOT) == ErrorCode.NONE
