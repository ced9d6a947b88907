"""Finalized features at the broker: ApiVersions announces them, and a feature that is off serves no API."""

from __future__ import annotations

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.broker.requests.apis import APIS
from tidelog.model.errors import ErrorCode
from tidelog.model.features import DEFAULT_FEATURES, SUPPORTED_FEATURES, FinalizedFeatures
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey, api_spec
from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest

GATED = sorted(key for key, api in APIS.items() if api.feature)


def test_the_levels_of_a_new_cluster_are_announced(lab: InMemoryBroker) -> None:
    answer = lab.call(ApiVersionsRequest("probe", "1.0"), 4)
    assert {feature.name for feature in answer.supported_features} == SUPPORTED_FEATURES.keys()
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert (finalized, answer.finalized_features_epoch) == (dict(DEFAULT_FEATURES.levels), 0)


def test_features_follow_the_controller(lab: InMemoryBroker) -> None:
    lab.update_metadata(
        feature_levels=FinalizedFeatures({"metadata.version": 33, "transaction.version": 1}, 77)
    )
    answer = lab.call(ApiVersionsRequest("probe", "1.0"), 3)
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert (finalized, answer.finalized_features_epoch) == (
        {"metadata.version": 33, "transaction.version": 1},
        77,
    )
    assert [feature.name for feature in answer.supported_features] == ["kraft.version", "metadata.version"], (
        "clients before v4 fail on a lowest version of 0"
    )


@pytest.mark.parametrize("api_key", GATED, ids=lambda key: ApiKey(key).name)
def test_an_api_of_a_feature_that_is_off_is_refused(lab: InMemoryBroker, api_key: int) -> None:
    lab.update_metadata(feature_levels=FinalizedFeatures({"metadata.version": 33}, 1))
    request = codec.request_class(api_key)()
    answer = lab.call(request, api_spec(api_key).max_version)
    if hasattr(answer, "groups"):
        assert answer.groups == [], "no group was asked for"
    else:
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_description_names_each_group(lab: InMemoryBroker) -> None:
    lab.update_metadata(feature_levels=FinalizedFeatures({"metadata.version": 33}, 1))
    answer = lab.call(ConsumerGroupDescribeRequest(["a", "b"]), 1)
    assert [(group.group_id, group.error_code) for group in answer.groups] == [
        ("a", ErrorCode.UNSUPPORTED_VERSION),
        ("b", ErrorCode.UNSUPPORTED_VERSION),
    ]


def test_a_leader_proposes_no_eligible_replicas_while_the_feature_is_off(lab: InMemoryBroker) -> None:
    lab.add_topic("before")
    lab.update_metadata(feature_levels=FinalizedFeatures({"metadata.version": 33}, 1))
    lab.add_topic("after")
    cores = {replica.topic_partition.topic: replica.core for replica in lab.broker.hosted.replicas.values()}
    assert {topic: core.uses_elr for topic, core in cores.items()} == {"before": False, "after": False}
    lab.update_metadata(feature_levels=DEFAULT_FEATURES)
    assert all(core.uses_elr for core in cores.values())
