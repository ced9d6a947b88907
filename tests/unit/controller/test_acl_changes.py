"""DeleteAcls: what filters match, and the limits of a request."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.controller.core import security_changes
from tidelog.controller.core.decision import Chance, Context, ControllerDecision, Erase, rules_from
from tidelog.controller.core.security_changes import delete_acls
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import AclEntry
from tidelog.model.acl import (
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    user_principal,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse

CONTEXT = Context(1, Chance(random.Random(1).getrandbits), rules_from(BrokerSettings.parse({}), {}))
NAMES = ("a", "ab", "*")
USERS = tuple(map(user_principal, ("alice", "bob")))
HOSTS = ("*", "10.0.0.1")
OPERATIONS = (AclOperation.READ, AclOperation.WRITE)
PATTERNS = (PatternType.LITERAL, PatternType.PREFIXED)

bindings = st.builds(
    AclBinding,
    st.just(ResourceType.TOPIC),
    st.sampled_from(PATTERNS),
    st.sampled_from(NAMES),
    st.sampled_from(USERS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.just(PermissionType.ALLOW),
)
filters = st.builds(
    AclFilter,
    st.sampled_from((ResourceType.TOPIC, ResourceType.ANY)),
    st.sampled_from((*PATTERNS, PatternType.ANY, PatternType.MATCH)),
    st.sampled_from((*NAMES, None)),
    st.sampled_from((*USERS, None)),
    st.sampled_from((*HOSTS, None)),
    st.sampled_from((*OPERATIONS, AclOperation.ANY)),
    st.sampled_from((PermissionType.ALLOW, PermissionType.ANY)),
)


def state_with(given_bindings: list[AclBinding]) -> ClusterState:
    state = ClusterState()
    for revision, binding in enumerate(given_bindings, 1):
        state.apply(AclEntry(binding), revision, revision, ChangeSet())
    return state


def deleted(state: ClusterState, *wanted: AclFilter) -> ControllerDecision[DeleteAclsResponse]:
    rows = [
        DeleteAclsFilter(
            each.resource_type,
            each.resource_name,
            each.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission,
        )
        for each in wanted
    ]
    return all_at_once(delete_acls(state, CONTEXT, DeleteAclsRequest(rows), 3))


@given(st.lists(bindings, unique=True), st.lists(filters, max_size=3))
def test_a_request_deletes_what_its_filters_match(known: list[AclBinding], wanted: list[AclFilter]) -> None:
    decision = deleted(state_with(known), *wanted)
    expected = [[binding for binding in known if each.matches(binding)] for each in wanted]
    results = decision.reply.filter_results
    assert [len(result.matching_acls) for result in results] == [len(found) for found in expected]
    erased = {record.key for record in decision.records if isinstance(record, Erase)}
    assert erased == {AclEntry(binding).key for found in expected for binding in found}


@given(bindings, bindings)
def test_a_filter_with_all_fields_can_match_one_binding(named: AclBinding, other: AclBinding) -> None:
    wanted = AclFilter(*named)
    assert wanted.only_match == named
    assert wanted.matches(other) == (other == named)


@pytest.mark.parametrize("limit", ["MAX_DELETED", "MAX_COMPARISONS"])
def test_a_request_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(security_changes, limit, 3)
    known = [
        AclBinding(
            ResourceType.TOPIC, PATTERNS[0], name, USERS[0], "*", AclOperation.READ, PermissionType.ALLOW
        )
        for name in ("a", "b")
    ]
    each = [AclFilter(*binding) for binding in known]
    everything = AclFilter(
        ResourceType.ANY, PatternType.ANY, None, None, None, AclOperation.ANY, PermissionType.ANY
    )
    assert len(deleted(state_with(known), everything, each[0]).records) == 2
    with pytest.raises(KafkaError, match=r"use (fewer|other) filters") as raised:
        deleted(state_with(known), everything, everything)
    assert raised.value.code is ErrorCode.INVALID_REQUEST
