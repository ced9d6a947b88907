"""The table of served APIs agrees with the handlers and with Kafka's version ranges."""

from __future__ import annotations

import inspect

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.broker.requests.apis import APIS
from tidelog.broker.requests.chain import RequestChain
from tidelog.wire.api_keys import ApiKey, api_spec


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
