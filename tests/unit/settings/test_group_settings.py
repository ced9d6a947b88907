"""The settings of groups: Kafka's definitions, the broker's bounds, and the view that follows changes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.group_settings import (
    GROUP_SETTINGS,
    GroupSettingsView,
    duration_ms,
    group_settings,
    validate_group_overrides,
)
from tidelog.settings.setting import SettingError
from tidelog.settings.setting_description import ConfigSource, describe_group

# Kafka 4.3.1's `GroupConfig.CONFIG_DEF`: the type, the default and the smallest value of a number.
KAFKA = {
    "consumer.assignment.interval.ms": ("INT", "1000", 0),
    "consumer.heartbeat.interval.ms": ("INT", "5000", 1),
    "consumer.session.timeout.ms": ("INT", "45000", 1),
    "errors.deadletterqueue.copy.record.enable": ("BOOLEAN", "false", None),  # these two in Kafka 4.4.0
    "errors.deadletterqueue.topic.name": ("STRING", "", None),
    "share.assignment.interval.ms": ("INT", "1000", 0),
    "share.auto.offset.reset": ("STRING", "latest", None),
    "share.delivery.count.limit": ("INT", "5", 2),
    "share.heartbeat.interval.ms": ("INT", "5000", 1),
    "share.isolation.level": ("STRING", "read_uncommitted", None),
    "share.partition.max.record.locks": ("INT", "2000", 100),
    "share.record.lock.duration.ms": ("INT", "30000", 1000),
    "share.renew.acknowledge.enable": ("BOOLEAN", "true", None),
    "share.session.timeout.ms": ("INT", "45000", 1),
    "streams.assignment.interval.ms": ("INT", "1000", 0),
    "streams.heartbeat.interval.ms": ("INT", "5000", 1),
    "streams.initial.rebalance.delay.ms": ("INT", "3000", 0),
    "streams.num.standby.replicas": ("INT", "0", 0),
    "streams.session.timeout.ms": ("INT", "45000", 1),
}
BROKER = BrokerSettings.parse({})


def refusal(overrides: Mapping[str, str | None], broker: BrokerSettings | None = BROKER) -> str:
    with pytest.raises(KafkaError) as caught:
        validate_group_overrides(overrides, broker)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    return str(caught.value.message)


def test_definitions_are_kafkas() -> None:
    assert {name for name in GROUP_SETTINGS if not name.startswith("tidelog.")} == KAFKA.keys()
    for name, (type_name, default, least) in KAFKA.items():
        definition = GROUP_SETTINGS[name]
        assert (definition.type.name, definition.format(definition.default)) == (type_name, default), name
        if least is not None:
            assert definition.parse(str(least)) == least
            assert name in refusal({name: str(least - 1)}, None)


@pytest.mark.parametrize(
    "overrides",
    [
        {"share.auto.offset.reset": "by_duration:P1DT2H"},
        {"share.auto.offset.reset": "earliest"},
        {"share.session.timeout.ms": "60000", "share.heartbeat.interval.ms": "15000"},
        {"share.delivery.count.limit": "10"},
        {},
    ],
)
def test_valid_overrides(overrides: dict[str, str | None]) -> None:
    validate_group_overrides(overrides, BROKER)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"share.nothing": "1"}, "share.nothing"),
        ({"share.session.timeout.ms": None}, "share.session.timeout.ms"),
        ({"share.session.timeout.ms": "60001"}, "group.share.max.session.timeout.ms"),
        ({"consumer.session.timeout.ms": "44999"}, "group.consumer.min.session.timeout.ms"),
        ({"share.delivery.count.limit": "11"}, "group.share.max.delivery.count.limit"),
        ({"share.partition.max.record.locks": "4001"}, "group.share.max.partition.max.record.locks"),
        ({"streams.num.standby.replicas": "3"}, "group.streams.max.standby.replicas"),
        ({"streams.assignment.interval.ms": "15001"}, "group.streams.max.assignment.interval.ms"),
        ({"consumer.assignment.interval.ms": "15001"}, "group.consumer.max.assignment.interval.ms"),
        ({"share.assignment.interval.ms": "15001"}, "group.share.max.assignment.interval.ms"),
        ({"streams.session.timeout.ms": "44999"}, "group.streams.min.session.timeout.ms"),
        ({"share.record.lock.duration.ms": "14999"}, "group.share.min.record.lock.duration.ms"),
        ({"share.auto.offset.reset": "by_duration:-P1D"}, "share.auto.offset.reset"),
        ({"share.auto.offset.reset": "none"}, "share.auto.offset.reset"),
        ({"share.isolation.level": "serializable"}, "share.isolation.level"),
        ({"tidelog.share.retry.backoff.ms": "-1"}, "tidelog.share.retry.backoff.ms"),
        ({"tidelog.share.retry.backoff.multiplier": "0.5"}, "tidelog.share.retry.backoff.multiplier"),
        ({"tidelog.share.retry.backoff.multiplier": "NaN"}, "tidelog.share.retry.backoff.multiplier"),
    ],
)
def test_refused_overrides(overrides: dict[str, str | None], named: str) -> None:
    assert named in refusal(overrides)


def test_a_session_must_be_longer_than_the_heartbeats() -> None:
    broker = BrokerSettings.parse({"group.share.min.session.timeout.ms": "1"})
    overrides = {"share.session.timeout.ms": "5000", "share.heartbeat.interval.ms": "5000"}
    assert "share.session.timeout.ms" in refusal(overrides, broker)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("P2D", 172_800_000),
        ("PT1H2M3.5S", 3_723_500),
        ("PT0.001S", 1),
        ("p1dt1s", 86_401_000),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("1D", None),
        ("PT-1S", None),
        ("P" + "1" * 80 + "D", None),
        ("P" + "1" * 20 + "D", None),
    ],
)
def test_durations_are_those_of_java(text: str, milliseconds: int | None) -> None:
    assert duration_ms(text) == milliseconds


@given(st.integers(1, 10**6))
def test_an_override_beyond_changed_bounds_counts_as_the_bound(timeout_ms: int) -> None:
    found = group_settings(BROKER, {"share.session.timeout.ms": str(timeout_ms)})
    assert found.share_session_timeout_ms == min(max(timeout_ms, 45_000), 60_000)


def test_the_view_follows_the_broker_and_the_group() -> None:
    brokers = [BROKER]
    overrides: dict[str, dict[str, str]] = {}
    view = GroupSettingsView(lambda: brokers[0], lambda group_id: overrides.get(group_id, {}))
    assert view.for_group("g").share_delivery_count_limit == 5
    overrides["g"] = {"share.delivery.count.limit": "7"}
    assert view.for_group("g").share_delivery_count_limit == 7
    assert view.for_group("g") is view.for_group("g")
    assert view.for_group("other").share_delivery_count_limit == 5
    brokers[0] = BrokerSettings.parse({"group.share.delivery.count.limit": "4"})
    assert view.for_group("other").share_delivery_count_limit == 4
    assert view.for_group("g").share_delivery_count_limit == 7
    del overrides["g"]
    assert view.for_group("g").share_delivery_count_limit == 4


@pytest.mark.parametrize(
    ("given_settings", "named"),
    [
        ({"group.share.session.timeout.ms": "44999"}, "group.share.session.timeout.ms"),
        ({"group.share.heartbeat.interval.ms": "15001"}, "group.share.heartbeat.interval.ms"),
        ({"group.share.min.delivery.count.limit": "5", "group.share.delivery.count.limit": "4"}, "delivery"),
        ({"group.share.record.lock.duration.ms": "60001"}, "group.share.record.lock.duration.ms"),
        ({"group.share.partition.max.record.locks": "4001"}, "group.share.partition.max.record.locks"),
        ({"group.streams.session.timeout.ms": "44999"}, "group.streams.session.timeout.ms"),
        ({"group.streams.num.standby.replicas": "3"}, "group.streams.num.standby.replicas"),
        (
            {"group.share.min.session.timeout.ms": "1", "group.share.session.timeout.ms": "5000"},
            "group.share.session.timeout.ms",
        ),
    ],
)
def test_the_defaults_of_a_broker_are_within_its_bounds(given_settings: dict[str, str], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        BrokerSettings.parse(given_settings)


def test_a_description_names_the_source() -> None:
    broker = BrokerSettings.parse({"group.share.heartbeat.interval.ms": "6000"})
    overrides = {"share.session.timeout.ms": "50000"}
    described = {found.name: found for found in describe_group(broker, overrides)}
    assert described.keys() == GROUP_SETTINGS.keys()
    sources = {name: (found.value, found.source) for name, found in described.items()}
    assert sources["share.session.timeout.ms"] == ("50000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert sources["share.heartbeat.interval.ms"] == ("6000", ConfigSource.STATIC_BROKER_CONFIG)
    assert sources["share.isolation.level"] == ("read_uncommitted", ConfigSource.DEFAULT_CONFIG)
    names = [synonym.name for synonym in described["share.session.timeout.ms"].synonyms]
    assert names == ["share.session.timeout.ms", "group.share.session.timeout.ms"]
