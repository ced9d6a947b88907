"""CreateDelegationToken: how many tokens one client may have."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tidelog.controller.core import security_changes
from tidelog.controller.core.decision import Context, ControllerRules, Erase, Write
from tidelog.controller.core.security_changes import create_delegation_token
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.controller.term import RandomChance, rules_from
from tidelog.kernel.instants import WallMs
from tidelog.model.acl import Principal, user_principal
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.messages.create_delegation_token import CreateDelegationTokenRequest

ALICE, MALLORY = user_principal("alice"), user_principal("mallory")
LIFETIME_MS = 10_000


class Tokens:
    def __init__(self) -> None:
        rules: ControllerRules = rules_from(BrokerSettings.parse({"delegation.token.secret.key": "key"}), {})
        self.context = Context(1, RandomChance(random.Random(1)), rules, WallMs(1_000))
        self.state = ClusterState()

    def create(self, requester: Principal, owner: str | None = None) -> int:
        """Decides and applies a request. Returns the error code."""
        request = CreateDelegationTokenRequest(
            "User" if owner else None, owner, renewers=[], max_lifetime_ms=LIFETIME_MS
        )
        decision = create_delegation_token(self.state, self.context, request, 3, requester)
        for record in decision.records:
            if isinstance(record, Write):
                self.state.apply(record.entry, 1, 1, ChangeSet())
            else:
                assert isinstance(record, Erase)
                self.state.apply_removal(record.key, 2, ChangeSet())
        return int(decision.reply.error_code)


def test_one_client_does_not_take_all_tokens_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_changes, "MAX_TOKENS", 10)
    tokens = Tokens()
    made = [tokens.create(MALLORY, "bob" if number % 2 else None) for number in range(10)]
    assert made == [ErrorCode.NONE] * 5 + [ErrorCode.POLICY_VIOLATION] * 5
    assert [tokens.create(ALICE) for _ in range(6)] == [ErrorCode.NONE] * 5 + [ErrorCode.POLICY_VIOLATION]
    tokens.context = dataclasses.replace(tokens.context, now_ms=WallMs(1_000 + LIFETIME_MS))
    assert tokens.create(MALLORY) == ErrorCode.NONE, "expired tokens do not count"
    assert len(tokens.state.delegation_tokens) == 1
