"""The table of served APIs agrees with the handlers and with Kafka's version ranges, and ApiVersions v5 tells
a client that it reached another cluster or node than it wanted (KIP-1242).
"""

from __future__ import annotations

import inspect

import pytest

from brokerlab.in_memory_broker import BROKER_ID, CLUSTER_ID, Asked, InMemoryBroker
from tidelog.broker.requests.apis import APIS
from tidelog.broker.requests.chain import RequestChain
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey, api_spec
from tidelog.wire.messages.api_versions import ApiVersionsRequest


@pytest.mark.parametrize("key", APIS, ids=lambda key: ApiKey(key).name)
def test_every_api_has_a_handler_and_kafkas_range_of_versions(lab: InMemoryBroker, key: int) -> None:
    served, spec = APIS[key], api_spec(key)
    handling = RequestChain(lab.broker).handling(key)
    assert len(inspect.signature(handling.handle).parameters) == 2
    if callable(served.answered):
        assert spec.name in inspect.getmodule(served.answered(lab.broker)[key].handle).__doc__
    assert (served.min_version, served.max_version) == (spec.min_version, spec.max_version)


def test_only_produce_lists_versions_that_are_refused() -> None:
    advertised = {key: served.advertised_min for key, served in APIS.items()}
    assert {key: first for key, first in advertised.items() if first is not None} == {ApiKey.PRODUCE: 0}


def test_all_apis_of_groups_and_transactions_except_states() -> None:
    names = {ApiKey(key).name_in_kafka for key in ApiKey if key not in APIS}
    assert {name for name in names if "Group" in name or "Txn" in name or "Transaction" in name} == {
        *(f"{verb}ShareGroupState" for verb in ("Initialize", "Read", "Write", "Delete")),
        "ReadShareGroupStateSummary",
    }


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
