"""The sentences of pages if an ACL is missing."""

from __future__ import annotations

import pytest

from tidelog.client.cluster import group_error_of
from tidelog.client.errors import request_error
from tidelog.console.readings import denial_text, is_denial, unless_denied
from tidelog.model.errors import ErrorCode, KafkaError


def test_a_denial_names_what_was_refused_and_which_acls_allow_it() -> None:
    error = request_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic 'pay: all' partition 3")
    assert is_denial(error)
    group = group_error_of(ErrorCode.GROUP_AUTHORIZATION_FAILED, "audit")
    assert denial_text(group, "") == (
        "The cluster does not show group 'audit' to this user. ACLs with Describe for the group allow it"
    )
    cluster = request_error(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "broker '1'", "Cluster authorization failed."
    )
    assert denial_text(cluster, "alice") == (
        "The cluster does not show broker '1' to user alice. "
        "ACLs with Describe and DescribeConfigs for the cluster allow it"
    )


def test_only_denials_are_taken() -> None:
    denied: list[KafkaError] = []

    def fail(code: ErrorCode) -> int:
        raise request_error(code, "topic 'flights'")

    assert unless_denied(lambda: 7, denied) == 7
    assert unless_denied(lambda: fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED), denied) is None
    assert [error.code for error in denied] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaError, match="flights"):
        unless_denied(lambda: fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), denied)
    assert not is_denial(ValueError())
