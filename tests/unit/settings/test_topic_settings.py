"""Topic settings: overrides, values of the broker, and refusals."""

from __future__ import annotations

import pytest

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import NOT_CONFIRMED, SETTINGS_CONFIRMED
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting_description import (
    ConfigSource,
    SettingSynonym,
    describe_broker,
    describe_cluster_default,
    describe_topic,
)
from tidelog.settings.topic_settings import TOPIC_SETTINGS, TopicSettings, are_confirmed, validate_overrides


def test_an_override_wins_over_the_broker() -> None:
    broker = BrokerSettings.parse(
        {"log.retention.minutes": "5", "log.segment.bytes": "2000000", "log.roll.hours": "1"}
    )
    settings = TopicSettings.resolve(broker, {"segment.bytes": "3000000", "cleanup.policy": "compact,delete"})
    assert (settings.retention_ms, settings.segment_bytes, settings.segment_ms) == (
        300_000,
        3_000_000,
        3_600_000,
    )
    assert settings.is_compacted
    assert settings.is_deleted
    assert not hasattr(settings, "__dict__")


def test_internal_segment_bytes_may_be_below_the_minimum() -> None:
    assert TopicSettings.resolve(BrokerSettings(), {"internal.segment.bytes": "100"}).segment_bytes == 100


def test_unconfirmed_settings_delete_nothing() -> None:
    """Settings that were lost may have kept all records."""
    overrides = {"cleanup.policy": "compact,delete", "retention.ms": "1"}
    assert not are_confirmed({**overrides, **NOT_CONFIRMED})
    for lost in ({}, overrides):
        settings = TopicSettings.resolve(BrokerSettings(), {**lost, **NOT_CONFIRMED})
        assert not settings.is_deleted
        assert not settings.is_compacted
    assert TopicSettings.resolve(BrokerSettings(), {SETTINGS_CONFIRMED: "true"}).is_deleted


def test_only_topics_that_lack_a_confirmation_show_it() -> None:
    described = {d.name: d.value for d in describe_topic(BrokerSettings(), NOT_CONFIRMED)}
    assert described[SETTINGS_CONFIRMED] == "false"
    assert SETTINGS_CONFIRMED not in {d.name for d in describe_topic(BrokerSettings(), {})}


def test_unlimited_broker_retention_reaches_topics_as_minus_one() -> None:
    broker = BrokerSettings.parse({"log.retention.hours": "-1"})
    assert TopicSettings.resolve(broker, {}).retention_ms == -1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"retention.mss": "3"}, "Unknown topic config name: retention.mss; did you mean retention.ms?"),
        ({"num.partitions": "3"}, "Unknown topic config name: num.partitions"),
        ({"retention.ms": "x"}, "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        (
            {"retention.ms": "-2"},
            "Invalid value -2 for configuration retention.ms: Value must be at least -1",
        ),
        (
            {"cleanup.policy": "x"},
            "Invalid value x for configuration cleanup.policy: String must be one of: compact,",
        ),
        ({"compression.type": "GZIP"}, "Invalid value GZIP for configuration compression.type"),
        ({"compression.gzip.level": "0"}, "Invalid value 0 for configuration compression.gzip.level"),
        (
            {"segment.bytes": "5"},
            "Invalid value 5 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            {"preallocate": "yes"},
            "Invalid value yes for configuration preallocate: Expected value to be either",
        ),
        ({"a": None, "retention.ms": "1"}, "Null value not supported for topic configs: a"),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            "min.compaction.lag.ms (10) is greater",
        ),
        ({"remote.storage.enable": "true"}, "remote.storage.enable: only false is accepted"),
        ({"remote.log.copy.disable": "true"}, "remote.log.copy.disable: only false is accepted"),
        ({"local.retention.ms": "5"}, "local.retention.ms: only -2 is accepted"),
        ({"preallocate": "true"}, "preallocate: only false is accepted, because the space of segments is"),
        (
            {"leader.replication.throttled.replicas": "x"},
            "Invalid value x for configuration leader.replication",
        ),
    ],
)
def test_invalid_overrides_are_refused(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_overrides(overrides)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert str(caught.value).startswith(message)


def test_valid_overrides_are_accepted() -> None:
    validate_overrides(
        {name: d.format(d.default) for name, d in TOPIC_SETTINGS.items() if d.default is not None}
    )
    validate_overrides({"cleanup.policy": "", "leader.replication.throttled.replicas": "0:1,1:2"})


def test_rules_between_settings_use_the_brokers_values_as_defaults() -> None:
    broker = BrokerSettings.parse({"log.cleaner.min.compaction.lag.ms": "100"})
    with pytest.raises(KafkaError, match=r"min\.compaction\.lag\.ms \(100\)"):
        validate_overrides({"max.compaction.lag.ms": "5"}, broker)


def test_the_description_of_a_topic_contains_all_synonyms() -> None:
    broker = BrokerSettings.parse(
        {"log.retention.minutes": "5"},
        dynamic_default={"log.retention.ms": "9"},
        dynamic={"log.retention.ms": "8"},
    )
    (description,) = describe_topic(broker, {"retention.ms": " 7 "}, ["retention.ms"])
    assert (description.value, description.source) == ("7", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert description.synonyms == (
        SettingSynonym("retention.ms", " 7 ", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        SettingSynonym("log.retention.ms", "8", ConfigSource.DYNAMIC_BROKER_CONFIG),
        SettingSynonym("log.retention.ms", "9", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        SettingSynonym("log.retention.minutes", "5", ConfigSource.STATIC_BROKER_CONFIG),
        SettingSynonym("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    )


def test_describing_a_default_topic() -> None:
    descriptions = {description.name: description for description in describe_topic(BrokerSettings(), {})}
    assert set(descriptions) == set(TOPIC_SETTINGS) - {"internal.segment.bytes", SETTINGS_CONFIRMED}
    assert {description.source for description in descriptions.values()} == {ConfigSource.DEFAULT_CONFIG}
    assert not any(description.is_read_only for description in descriptions.values())
    assert descriptions["retention.ms"].value == "604800000"
    assert descriptions["cleanup.policy"].value == "delete"
    assert descriptions["remote.storage.enable"].synonyms == ()


def test_a_value_from_the_brokers_hours_is_described_as_a_default() -> None:
    """Kafka 4.3.1 describes it so, too, although the value is the broker's."""
    broker = BrokerSettings.parse({"log.retention.hours": "1", "log.roll.hours": "2"})
    retention, roll = describe_topic(broker, {}, ["retention.ms", "segment.ms"])
    assert (retention.value, retention.source, retention.synonyms) == (
        "3600000",
        ConfigSource.DEFAULT_CONFIG,
        (),
    )
    assert (roll.value, roll.source, roll.synonyms) == ("7200000", ConfigSource.DEFAULT_CONFIG, ())


def test_describing_a_broker() -> None:
    broker = BrokerSettings.parse({"log.retention.minutes": "5"}, dynamic={"message.max.bytes": "77"})
    descriptions = {description.name: description for description in describe_broker(broker)}
    assert descriptions["message.max.bytes"].value == "77"
    assert descriptions["message.max.bytes"].source is ConfigSource.DYNAMIC_BROKER_CONFIG
    assert not descriptions["message.max.bytes"].is_read_only
    assert descriptions["num.partitions"].is_read_only
    # log.retention.ms is unset, so it has no value although another setting provides one.
    assert descriptions["log.retention.ms"].value is None
    assert descriptions["log.retention.ms"].synonyms == ()
    assert descriptions["log.retention.minutes"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert "log.initial.task.delay.ms" not in descriptions  # internal, and not set
    assert [d.name for d in describe_broker(broker, ["num.partitions", "nope"])] == ["num.partitions"]


def test_the_description_of_all_brokers_contains_only_settings_that_are_set() -> None:
    broker = BrokerSettings.parse(
        {"message.max.bytes": "5"}, dynamic_default={"log.segment.bytes": "2000000"}
    )
    (description,) = describe_cluster_default(broker)
    assert (description.name, description.value) == ("log.segment.bytes", "2000000")
    assert description.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
