"""Requests for configs, quotas, features and producer ids."""

from __future__ import annotations

import pytest

from clusterlab.controllers import Core
from tidelog.controller.core.broker_requests import allocate_producer_ids
from tidelog.controller.core.client_quotas import alter_client_quotas, describe_client_quotas
from tidelog.controller.core.config_changes import alter_configs, incremental_alter_configs
from tidelog.controller.core.features_and_quorum import update_features
from tidelog.controller.core.topics import create_topics
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.features import FinalizedFeatures
from tidelog.wire.messages import alter_client_quotas as quotas
from tidelog.wire.messages import alter_configs as full
from tidelog.wire.messages import describe_client_quotas as described
from tidelog.wire.messages import incremental_alter_configs as incremental
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

MakeCore = type[Core]
Quota = tuple[dict[str, str | None], dict[str, float]]  # entity, values
TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


def _with_topic(core: MakeCore) -> Core:
    cluster = core()
    cluster.request(create_topics, CreateTopicsRequest([CreatableTopic("t", 1, 1)]))
    return cluster


def _incremental(
    cluster: Core, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> incremental.AlterConfigsResourceResponse:
    configs = [incremental.AlterableConfig(key, operation, value) for key, operation, value in changes]
    request = incremental.IncrementalAlterConfigsRequest(
        [incremental.AlterConfigsResource(kind, name, configs)], validate_only
    )
    (response,) = cluster.request(incremental_alter_configs, request).responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    return response


def test_incremental_operations_of_a_topic(core: MakeCore) -> None:
    cluster = _with_topic(core)
    assert _incremental(cluster, TOPIC, "t", ("retention.ms", SET, "5")).error_code == 0
    assert _incremental(cluster, TOPIC, "t", ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert cluster.state.configs_of("t") == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    changes = [("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None)]
    assert _incremental(cluster, TOPIC, "t", *changes).error_code == 0
    assert cluster.state.configs_of("t") == {"cleanup.policy": "compact"}
    assert _incremental(cluster, TOPIC, "t", ("cleanup.policy", DELETE, None)).error_code == 0
    assert "t" not in cluster.state.topic_configs


def test_a_list_does_not_grow_step_by_step_beyond_the_limit_of_a_value(core: MakeCore) -> None:
    cluster, name = _with_topic(core), "follower.replication.throttled.replicas"
    halves = [",".join(f"{start + number}:1" for number in range(2_500)) for start in (10_000, 20_000)]
    assert _incremental(cluster, TOPIC, "t", (name, APPEND, halves[0])).error_code == 0
    assert _incremental(cluster, TOPIC, "t", (name, APPEND, halves[0])).error_code == 0, "nothing is added"
    grown = _incremental(cluster, TOPIC, "t", (name, APPEND, halves[1]))
    assert grown.error_code == ErrorCode.INVALID_CONFIG
    assert cluster.state.configs_of("t")[name] == halves[0]
    for change in ((name, SUBTRACT, halves[0][: -len(",12499:1")]), (name, APPEND, "20000:1")):
        assert _incremental(cluster, TOPIC, "t", change).error_code == 0
    assert cluster.state.configs_of("t")[name] == "12499:1,20000:1"


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (TOPIC, "none", ("retention.ms", SET, "5"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ("retention.ms", SET, "5"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "t", ("retention.ms", SET, "five"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("no.such.setting", SET, "5"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("retention.ms", APPEND, "5"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", 9, "5"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("retention.ms", SET, "5" * 40_000), ErrorCode.INVALID_CONFIG),
        (BROKER, "one", ("log.retention.ms", SET, "5"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("node.id", SET, "5"), ErrorCode.INVALID_REQUEST),
        (LOGGER, "1", ("root", SET, "INFO"), ErrorCode.INVALID_REQUEST),
        (99, "x", ("root", SET, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_refused_changes(
    core: MakeCore, kind: int, name: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    cluster = _with_topic(core)
    response = _incremental(cluster, kind, name, change)
    assert response.error_code == code
    assert response.error_message
    assert not cluster.state.topic_configs
    assert not cluster.state.broker_configs


def test_validate_only_and_duplicates(core: MakeCore) -> None:
    cluster = _with_topic(core)
    assert _incremental(cluster, TOPIC, "t", ("retention.ms", SET, "5"), validate_only=True).error_code == 0
    twice = _incremental(cluster, TOPIC, "t", ("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
    assert twice.error_code == ErrorCode.INVALID_REQUEST
    resource = incremental.AlterConfigsResource(TOPIC, "t", [])
    request = incremental.IncrementalAlterConfigsRequest([resource, resource])
    responses = cluster.request(incremental_alter_configs, request).responses
    assert {response.error_code for response in responses} == {ErrorCode.INVALID_REQUEST}
    assert not cluster.state.topic_configs


def test_full_replacement(core: MakeCore) -> None:
    cluster = _with_topic(core)
    _incremental(cluster, TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", SET, "6"))
    configs = [full.AlterableConfig("segment.ms", "7"), full.AlterableConfig("flush.ms", None)]
    request = full.AlterConfigsRequest([full.AlterConfigsResource(TOPIC, "t", configs)])
    (response,) = cluster.request(alter_configs, request).responses
    assert response.error_code == 0
    assert cluster.state.configs_of("t") == {"segment.ms": "7"}


def test_settings_of_one_broker_and_of_all_brokers(core: MakeCore) -> None:
    cluster = _with_topic(core)
    assert _incremental(cluster, BROKER, "", ("log.retention.ms", SET, "5")).error_code == 0
    assert _incremental(cluster, BROKER, "1", ("log.retention.ms", SET, "6")).error_code == 0
    assert cluster.state.broker_configs == {
        "": {"log.retention.ms": "5"},
        "1": {"log.retention.ms": "6"},
    }
    assert cluster.changes.broker_configs


def _alter_quota(
    cluster: Core, entity: dict[str, str | None], *operations: tuple[str, float | None]
) -> quotas.ResponseEntryData:
    entry = quotas.RequestEntryData(
        [quotas.EntityData(kind, name) for kind, name in entity.items()],
        [quotas.OpData(key, value or 0.0, value is None) for key, value in operations],
    )
    (response,) = cluster.request(alter_client_quotas, quotas.AlterClientQuotasRequest([entry])).entries
    return response


def test_quotas_are_stored_and_described(core: MakeCore) -> None:
    cluster = core()
    both: dict[str, str | None] = {"user": "a/ü", "client-id": None}
    assert _alter_quota(cluster, both, ("producer_byte_rate", 1000.0)).error_code == 0
    assert _alter_quota(cluster, {"ip": "10.0.0.1"}, ("connection_creation_rate", 5.0)).error_code == 0

    def find(strict: bool, *components: tuple[str, int, str | None]) -> list[Quota]:
        request = described.DescribeClientQuotasRequest(
            [described.ComponentData(*component) for component in components], strict
        )
        found = cluster.request(describe_client_quotas, request).entries
        assert found is not None
        return [
            ({p.entity_type: p.entity_name for p in entry.entity}, {v.key: v.value for v in entry.values})
            for entry in found
        ]

    user = (both, {"producer_byte_rate": 1000.0})
    assert len(find(False)) == 2
    assert find(False, ("user", 0, "a/ü")) == [user]
    assert find(True, ("user", 0, "a/ü")) == []
    assert find(True, ("user", 2, None), ("client-id", 1, None)) == [user]
    assert find(False, ("user", 1, None)) == []
    assert _alter_quota(cluster, both, ("producer_byte_rate", None)).error_code == 0
    assert len(cluster.state.quotas) == 1
    assert _alter_quota(cluster, both, ("producer_byte_rate", 2.0**63)).error_code == 0, "as in Kafka"


@pytest.mark.parametrize(
    ("entity", "operation"),
    [
        ({}, ("producer_byte_rate", 1.0)),
        ({"tribe": "x"}, ("producer_byte_rate", 1.0)),
        ({"ip": "x", "user": "y"}, ("producer_byte_rate", 1.0)),
        ({"ip": "no address"}, ("connection_creation_rate", 1.0)),
        ({"ip": "a.host.example"}, ("connection_creation_rate", 1.0)),
        ({"user": ""}, ("producer_byte_rate", 1.0)),
        ({"user": "x"}, ("connection_creation_rate", 1.0)),
        ({"user": "x"}, ("producer_byte_rate", 0.0)),
        ({"user": "x"}, ("producer_byte_rate", 1.5)),
        ({"user": "x"}, ("consumer_byte_rate", 1.7e308)),
        ({"user": "x"}, ("request_percentage", float("nan"))),
    ],
)
def test_refused_quotas(
    core: MakeCore, entity: dict[str, str | None], operation: tuple[str, float | None]
) -> None:
    cluster = core()
    assert _alter_quota(cluster, entity, operation).error_code == ErrorCode.INVALID_REQUEST
    assert not cluster.state.quotas


@pytest.mark.parametrize(
    ("feature", "level", "upgrade_type", "accepted"),
    [
        ("metadata.version", 33, 1, True),
        ("metadata.version", 34, 1, False),
        ("metadata.version", 32, 1, False),
        ("metadata.version", 32, 2, False),
        ("metadata.version", 32, 3, False),
        ("metadata.version", 0, 2, False),
        ("share.version", 1, 2, True),
        ("transaction.version", 0, 3, True),
        ("eligible.leader.replicas.version", 0, 2, True),
        ("kraft.version", 1, 1, True),
        ("kraft.version", 0, 2, False),
        ("group.version", 0, 2, True),
        ("group.version", -1, 2, False),
        ("group.version", 0, 7, False),
        ("no.such", 1, 1, False),
    ],
)
def test_feature_updates(core: MakeCore, feature: str, level: int, upgrade_type: int, accepted: bool) -> None:
    cluster = core()
    before = dict(cluster.state.features.levels)
    update = FeatureUpdateKey(feature, level, upgrade_type=upgrade_type)
    reply = cluster.request(update_features, UpdateFeaturesRequest(feature_updates=[update]), 2)
    if accepted:
        assert reply.error_code == 0
        assert cluster.state.features.level(feature) == level
    else:
        assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert reply.error_message
        assert cluster.state.features.levels == before


def test_features_have_the_epoch_of_their_last_change(core: MakeCore) -> None:
    cluster = core()
    assert cluster.state.features.epoch == 0
    epochs = []
    for level, kind in ((1, 2), (0, 2), (2, 1)):
        update = FeatureUpdateKey("transaction.version", level, upgrade_type=kind)
        cluster.request(update_features, UpdateFeaturesRequest(feature_updates=[update]), 2)
        epochs.append(cluster.state.features.epoch)
    assert 0 < epochs[0] < epochs[1] < epochs[2]
    unchanged = FeatureUpdateKey("transaction.version", 2, upgrade_type=1)
    cluster.request(update_features, UpdateFeaturesRequest(feature_updates=[unchanged]), 2)
    assert cluster.state.features.epoch == epochs[2]


def test_one_refused_feature_refuses_all_and_validation_changes_nothing(core: MakeCore) -> None:
    cluster = core()
    before = cluster.state.features
    off = FeatureUpdateKey("group.version", 0, upgrade_type=2)
    unknown = FeatureUpdateKey("no.such", 1, upgrade_type=1)
    reply = cluster.request(update_features, UpdateFeaturesRequest(feature_updates=[off, unknown]), 2)
    assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "no.such" in reply.error_message
    assert cluster.state.features == before
    trial = UpdateFeaturesRequest(feature_updates=[off], validate_only=True)
    assert cluster.request(update_features, trial, 1).results[0].error_code == ErrorCode.NONE
    assert cluster.state.features == before


def test_a_feature_needs_the_features_that_it_depends_on(core: MakeCore) -> None:
    cluster = core()
    cluster.state.features = FinalizedFeatures({"metadata.version": 22}, 1)
    update = FeatureUpdateKey("eligible.leader.replicas.version", 1, upgrade_type=1)
    reply = cluster.request(update_features, UpdateFeaturesRequest(feature_updates=[update]), 2)
    assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "depends on metadata.version level 23" in reply.error_message


def test_producer_id_blocks_never_overlap(core: MakeCore) -> None:
    cluster = core([1, 2])
    firsts = []
    for broker_id in (1, 2, 1):
        epoch = cluster.state.brokers[broker_id].broker_epoch
        decision = allocate_producer_ids(cluster.state, cluster.context(), broker_id, epoch)
        cluster.write(decision)
        firsts.append(decision.reply.first)
    assert firsts == [0, 1000, 2000]
    for broker_id, epoch, code in (
        (1, 0, ErrorCode.STALE_BROKER_EPOCH),
        (9, 0, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        with pytest.raises(KafkaError) as raised:
            allocate_producer_ids(cluster.state, cluster.context(), broker_id, epoch)
        assert raised.value.code is code


def test_subscriptions_to_clients_metrics_are_stored_and_removed(core: MakeCore) -> None:
    cluster = core()

    def alter(name: str, configs: dict[str, str | None], operation: int = 0) -> int:
        changes = [incremental.AlterableConfig(key, operation, value) for key, value in configs.items()]
        resource = incremental.AlterConfigsResource(16, name, changes)
        request = incremental.IncrementalAlterConfigsRequest([resource])
        code: int = cluster.request(incremental_alter_configs, request, 1).responses[0].error_code
        return code

    assert alter("s", {"metrics": "a.", "interval.ms": "500"}) == ErrorCode.NONE
    assert alter("s", {"metrics": "b."}, operation=2) == ErrorCode.NONE
    (entry,) = cluster.state.client_metrics.values()
    assert (entry.name, dict(entry.configs)) == ("s", {"metrics": "a.,b.", "interval.ms": "500"})
    assert alter("s", {"interval.ms": "1"}) == ErrorCode.INVALID_REQUEST
    assert alter("s", {"match": "client_id=("}) == ErrorCode.INVALID_CONFIG
    assert alter("", {"metrics": "a."}) == ErrorCode.INVALID_REQUEST
    assert alter("s", {"metrics": None, "interval.ms": None}, operation=1) == ErrorCode.NONE
    assert not cluster.state.client_metrics


def test_settings_of_a_brokers_own_listener_are_accepted(core: MakeCore) -> None:
    """The controller does not know the listeners of a broker, which has checked the change."""
    cluster = core()
    name = "listener.name.external.ssl.keystore.location"
    assert _incremental(cluster, BROKER, "1", (name, SET, "/certificates/new.pem")).error_code == 0
    assert cluster.state.broker_configs["1"] == {name: "/certificates/new.pem"}
    refused = _incremental(cluster, BROKER, "", (name, SET, "/certificates/new.pem"))
    assert refused.error_code == ErrorCode.INVALID_REQUEST
