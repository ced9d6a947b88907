"""ApiVersions v5: a client that reached another cluster or node than it wanted is told so (KIP-1242)."""

from __future__ import annotations

import pytest

from brokerlab.in_memory_broker import BROKER_ID, CLUSTER_ID, Asked, InMemoryBroker
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.api_versions import ApiVersionsRequest


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error"),
    [
        (None, -1, ErrorCode.NONE),
        (CLUSTER_ID, BROKER_ID, ErrorCode.NONE),
        (CLUSTER_ID, BROKER_ID + 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", BROKER_ID, ErrorCode.REBOOTSTRAP_REQUIRED),
        (CLUSTER_ID, -1, ErrorCode.INVALID_REQUEST),
        (None, BROKER_ID, ErrorCode.INVALID_REQUEST),
    ],
)
def test_only_the_wanted_node_answers_with_its_apis(
    lab: InMemoryBroker, cluster_id: str | None, node_id: int, error: ErrorCode
) -> None:
    answer = lab.call(ApiVersionsRequest("probe", "1.0", cluster_id, node_id), 5)
    assert answer.error_code == error
    assert bool(answer.api_keys) is (error is ErrorCode.NONE)


def test_older_versions_state_no_node(lab: InMemoryBroker) -> None:
    assert lab.call(ApiVersionsRequest("probe", "1.0", "another", 77), 4).error_code == ErrorCode.NONE


def test_a_connection_keeps_the_beginning_of_long_names(lab: InMemoryBroker) -> None:
    asked = Asked(lab.broker, ApiVersionsRequest("n" * 30_000, "1" * 30_000), 3)
    assert asked.answer.error_code == ErrorCode.NONE
    assert asked.client_software == ("n" * 249, "1" * 249)
