"""The changes that end the decisions that a connection remembers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tidelog.broker.cluster.view import MetadataView
from tidelog.broker.requests.request import RequestContext
from tidelog.broker.security.acl_index import AclIndex, Address
from tidelog.broker.security.authorizer import Authorizer
from tidelog.broker.security.security_snapshot import SecuritySnapshot
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import AclEntry, DelegationTokenEntry, ScramCredentialEntry, SecurityEntry
from tidelog.model.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
    user_principal,
)
from tidelog.rpc.broker_commands import SecurityUpdate
from tidelog.sasl.scram import ScramCredential

ALICE, BOB = user_principal("alice"), user_principal("bob")
READ_T = AclEntry(
    AclBinding(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        "t",
        ALICE,
        "*",
        AclOperation.READ,
        PermissionType.ALLOW,
    )
)
TOKEN = DelegationTokenEntry("token", BOB, BOB, (), 0, 1, 1)
PASSWORD = ScramCredentialEntry("bob", "SCRAM-SHA-256", ScramCredential(b"salt", b"key", b"key", 4096))


class Lab:
    """An authorizer, a connection of Alice, and the number of decisions that the index made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.metadata = SimpleNamespace(security=SecuritySnapshot())
        self.source = SimpleNamespace(principal=ALICE, peer_host="10.0.0.1", access=None)
        self.decided = 0
        self._authorizer = Authorizer(
            cast(MetadataView, self.metadata), frozenset(), allow_if_no_acl=False, on_denied=lambda *_: None
        )
        decide = AclIndex.decide

        def counted(
            index: AclIndex, principal: Principal, address: Address, operation: int, kind: int, name: str
        ) -> bool | None:
            self.decided += 1
            return decide(index, principal, address, operation, kind, name)

        monkeypatch.setattr(AclIndex, "decide", counted)

    def change(self, *entries: SecurityEntry) -> None:
        self.metadata.security = all_at_once(self.metadata.security.updated(SecurityUpdate(1, entries)))

    def may_read(self) -> bool:
        context = cast(RequestContext, SimpleNamespace(connection=self.source))
        return self._authorizer.may(context, AclOperation.READ, ResourceType.TOPIC, "t")


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


@pytest.mark.parametrize("other", [TOKEN, PASSWORD])
def test_decisions_outlive_changes_of_credentials(lab: Lab, other: SecurityEntry) -> None:
    """There may be many of them, and each would cost all connections what they remember."""
    lab.change(READ_T)
    assert lab.may_read()
    lab.change(other)
    assert lab.may_read()
    assert lab.decided == 1


def test_decisions_end_with_a_change_of_acls_or_of_the_principal(lab: Lab) -> None:
    assert not lab.may_read()
    lab.change(READ_T)
    assert lab.may_read()
    lab.source.principal = BOB
    assert not lab.may_read()
    assert lab.decided == 3
