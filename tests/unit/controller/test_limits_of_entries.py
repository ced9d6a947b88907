"""Limits of entries: each broker holds all quotas, settings of groups and delegation tokens in memory, so a
cluster may have a limited number of them.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from tidelog.controller.core import client_quotas, config_changes, security_changes
from tidelog.controller.core.client_quotas import alter_client_quotas
from tidelog.controller.core.config_changes import incremental_alter_configs
from tidelog.controller.core.decision import (
    Chance,
    Context,
    ControllerRules,
    Erase,
    Record,
    Write,
    rules_from,
)
from tidelog.controller.core.security_changes import create_delegation_token
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.kernel.instants import WallMs
from tidelog.kernel.steps import all_at_once
from tidelog.model.acl import Principal, user_principal
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import ConfigOperation, ConfigResourceType
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.messages import alter_client_quotas as quotas
from tidelog.wire.messages import incremental_alter_configs as configs
from tidelog.wire.messages.create_delegation_token import CreateDelegationTokenRequest

CONTEXT = Context(1, Chance(random.Random(1).getrandbits), rules_from(BrokerSettings.parse({}), {}))
LIMIT = 3
ALICE, MALLORY = user_principal("alice"), user_principal("mallory")
LIFETIME_MS = 10_000


def apply(state: ClusterState, records: tuple[Record, ...]) -> None:
    for record in records:
        assert isinstance(record, Write)
        state.apply(record.entry, 1, 1, ChangeSet())


def test_a_cluster_has_quotas_for_a_limited_number_of_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MAX_QUOTAS", LIMIT)
    state = ClusterState()

    def limit(*users: str) -> list[int]:
        """Returns the error code for each user."""
        entries = [
            quotas.RequestEntryData(
                [quotas.EntityData("user", user)], [quotas.OpData("producer_byte_rate", 1e6, False)]
            )
            for user in users
        ]
        decision = alter_client_quotas(state, CONTEXT, quotas.AlterClientQuotasRequest(entries, False), 1)
        apply(state, decision.records)
        return [entry.error_code for entry in decision.reply.entries]

    assert limit("a", "b") == [ErrorCode.NONE] * 2
    assert limit("c", "d") == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    assert limit("a") == [ErrorCode.NONE], "an existing quota can be changed"


def test_a_limited_number_of_groups_has_settings_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "MAX_GROUPS", LIMIT)
    state = ClusterState()

    def configure(group: str, timeout_ms: int) -> int:
        setting = configs.AlterableConfig("consumer.session.timeout.ms", ConfigOperation.SET, str(timeout_ms))
        request = configs.IncrementalAlterConfigsRequest(
            [configs.AlterConfigsResource(ConfigResourceType.GROUP, group, [setting])]
        )
        decision = all_at_once(incremental_alter_configs(state, CONTEXT, request, 1))
        apply(state, decision.records)
        return decision.reply.responses[0].error_code

    assert [configure(group, 50_000) for group in "abc"] == [ErrorCode.NONE] * 3
    assert configure("d", 50_000) == ErrorCode.POLICY_VIOLATION
    assert configure("a", 51_000) == ErrorCode.NONE, "existing settings can be changed"


class Tokens:
    def __init__(self) -> None:
        rules: ControllerRules = rules_from(BrokerSettings.parse({"delegation.token.secret.key": "key"}), {})
        self.context = Context(1, Chance(random.Random(1).getrandbits), rules, WallMs(1_000))
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
