"""Broker settings: parsing, layers, rules between settings, and one clear line for each error."""

from __future__ import annotations

import dataclasses

import pytest

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.settings.setting import Importance, Password, Setting, SettingError, SettingType
from tidelog.settings.setting_description import ConfigSource, describe_broker
from tidelog.settings.setting_sources import validate_broker_overrides

HOUR_MS = 3_600_000


def test_hot_settings_are_plain_attributes_of_a_frozen_slotted_object() -> None:
    settings = BrokerSettings.parse({"socket.request.max.bytes": "1000000"})
    assert settings.socket_request_max_bytes == 1_000_000
    assert not hasattr(settings, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.num_partitions = 3  # type: ignore[misc]


def test_defaults_are_readable_without_parsing_anything() -> None:
    settings = BrokerSettings()
    for name, definition in BROKER_SETTINGS.items():
        if name != "broker.id":
            assert settings.value_of(name) == definition.default
    assert settings.broker_id == settings.node_id


def test_the_node_id_is_derived_from_the_nodes_name() -> None:
    names = [f"t-controller-7d4b9c-{suffix}" for suffix in ("2xk8p", "9fzqw")]
    ids = {BrokerSettings.parse({"tidelog.node.name": name}).node_id for name in names}
    assert len(ids) == len(names)
    assert min(ids) >= 0
    assert BrokerSettings.parse({"tidelog.node.name": "x", "node.id": "3"}).node_id == 3
    assert BrokerSettings.parse({"tidelog.node.name": "x", "broker.id": "4"}).node_id == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"num.partitions": "many"},
            "Invalid value many for configuration num.partitions: Not a number of type INT",
        ),
        (
            {"num.partitions": "0"},
            "Invalid value 0 for configuration num.partitions: Value must be at least 1",
        ),
        ({"num.partition": "3"}, "Unknown setting num.partition; did you mean num.partitions?"),
        ({"zzz": "3"}, "Unknown setting zzz"),
        (
            {"ssl.engine.factory.class": "x.Y"},
            "ssl.engine.factory.class: OpenSSL has no such setting",
        ),
        ({"authorizer.class.name": "x.Y"}, "authorizer.class.name: only Kafka's own authorizer can be used"),
        ({"super.users": "User:a;alice"}, "super.users: alice is not a principal such as User:alice"),
        ({"log.retention.ms": "0"}, "log.retention.ms: must be -1 (forever) or at least 1"),
        ({"log.retention.hours": "0"}, "log.retention.ms: must be -1 (forever) or at least 1"),
        ({"log.roll.ms": "0"}, "log.roll.ms: must be at least 1"),
        ({"node.id": "1", "broker.id": "2"}, "node.id: must be the same as broker.id (2)"),
        ({"node.id": "-1"}, "Invalid value -1 for configuration node.id: Value must be at least 0"),
        ({"max.connections.per.ip": "0"}, "max.connections.per.ip: can be 0 only if"),
        (
            {"max.connections.per.ip.overrides": "h"},
            "max.connections.per.ip.overrides: h does not have the form host:number",
        ),
        (
            {"max.connections.per.ip.overrides": "h:x"},
            "max.connections.per.ip.overrides: h:x does not have the form host:number",
        ),
        (
            {"queued.max.request.bytes": "5"},
            "queued.max.request.bytes: must be at least socket.request.max.bytes",
        ),
        ({"replica.lag.time.max.ms": "100"}, "replica.fetch.wait.max.ms: must not be greater than"),
        (
            {"replica.fetch.wait.max.ms": "30000", "replica.socket.timeout.ms": "1"},
            "replica.socket.timeout.ms:",
        ),
        (
            {"replica.selector.class": "com.example.Nearest"},
            "replica.selector.class: only Kafka's own classes can be used",
        ),
        (
            {"group.coordinator.rebalance.protocols": "consumer"},
            "group.coordinator.rebalance.protocols: must",
        ),
        ({"log.dirs": "/a,/b"}, "log.dirs: a broker uses one data directory"),
        ({"log.dir": "/a,/b"}, "log.dir: a broker uses one data directory"),
        ({"log.preallocate": "true"}, "log.preallocate: only false is accepted"),
        ({"log.local.retention.ms": "5"}, "log.local.retention.ms: only -2 is accepted"),
        ({"transaction.two.phase.commit.enable": "true"}, "transaction.two.phase.commit.enable: there is no"),
        (
            {"group.consumer.session.timeout.ms": "44000"},
            "group.consumer.session.timeout.ms: must be between group.consumer.min.* (45000) and",
        ),
        (
            {"group.consumer.max.heartbeat.interval.ms": "4000"},
            "group.consumer.heartbeat.interval.ms: must be between group.consumer.min.* (5000)",
        ),
        (
            {
                "group.consumer.min.session.timeout.ms": "5000",
                "group.consumer.session.timeout.ms": "5000",
            },
            "group.consumer.heartbeat.interval.ms: must be less than group.consumer.session.timeout.ms",
        ),
        ({"group.min.session.timeout.ms": "9000000"}, "group.min.session.timeout.ms: must not be greater"),
        ({"broker.session.timeout.ms": "100"}, "broker.heartbeat.interval.ms: must be at most half of"),
        (
            {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"},
            "log.cleaner.min",
        ),
        ({"log.dirs": ""}, "Invalid value  for configuration log.dirs: Value must not be empty"),
    ],
)
def test_an_error_is_one_line_that_names_the_setting(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        BrokerSettings.parse(given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.name in str(caught.value)


def test_a_file_for_kafka_is_accepted_and_ignored_settings_are_named() -> None:
    settings = BrokerSettings.parse(
        {
            "process.roles": "broker,controller",
            "node.id": "7",
            "controller.quorum.voters": "7@localhost:9093",
            "num.network.threads": "3",
            "group.coordinator.append.linger.ms": "10",
        }
    )
    assert settings.node_id == 7
    assert set(settings.without_effect) == {
        "process.roles",
        "controller.quorum.voters",
        "num.network.threads",
        "group.coordinator.append.linger.ms",
    }


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 168 * HOUR_MS),
        ({"log.retention.hours": "2"}, 2 * HOUR_MS),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1"}, -1),
        ({"log.retention.ms": "-5"}, -1),
    ],
)
def test_retention_by_ms_over_minutes_over_hours(given: dict[str, str], retention_ms: int) -> None:
    assert BrokerSettings.parse(given).retention_ms == retention_ms


def test_other_pairs_of_settings() -> None:
    assert BrokerSettings.parse({"log.roll.hours": "2"}).roll_ms == 2 * HOUR_MS
    assert BrokerSettings.parse({"log.roll.hours": "2", "log.roll.ms": "5"}).roll_ms == 5
    assert BrokerSettings.parse({"log.roll.jitter.hours": "1"}).roll_jitter_ms == HOUR_MS
    assert BrokerSettings.parse({"log.flush.scheduler.interval.ms": "9"}).flush_ms == 9
    assert BrokerSettings.parse({"log.dir": "/a,/b", "log.dirs": "/c"}).data_dirs == ("/c",)
    assert BrokerSettings.parse({"log.dir": "/a", "log.dirs": "/c, /c"}).data_dirs == ("/c",)
    assert BrokerSettings.parse({"broker.id": "4"}).node_id == 4
    overrides = {"max.connections.per.ip.overrides": "10.0.0.1:5, h:7,[::1]:2"}
    assert BrokerSettings.parse(overrides).connection_limits_per_ip() == {"10.0.0.1": 5, "h": 7, "::1": 2}


def test_dynamic_layers_override_static_ones_and_can_be_removed() -> None:
    static = {"log.retention.ms": "1000", "message.max.bytes": "10"}
    settings = BrokerSettings.parse(
        static, dynamic_default={"message.max.bytes": "20"}, dynamic={"message.max.bytes": "30"}
    )
    assert (settings.message_max_bytes, settings.retention_ms) == (30, 1000)
    settings = settings.with_dynamic(dynamic_default={"message.max.bytes": "20"}, dynamic={})
    assert settings.message_max_bytes == 20
    settings = settings.with_dynamic(dynamic_default={}, dynamic={})
    assert settings == BrokerSettings.parse(static)


@pytest.mark.parametrize(
    ("overrides", "per_broker", "message"),
    [
        ({"num.partitions": "3"}, True, "Cannot update these configs dynamically: num.partitions"),
        ({"ssl.protocol": "TLSv1.2"}, False, "Cannot update these configs at default cluster level"),
        ({"listeners": "PLAINTEXT://:9092"}, True, "Cannot update these configs dynamically: listeners"),
        ({"num.io.threads": "0"}, False, "Invalid value 0 for configuration num.io.threads"),
        ({"sasl.kerberos.kinit.cmd": "x"}, False, "Cannot update these configs at default cluster level"),
        ({"process.roles": "broker"}, True, "Cannot update these configs dynamically: process.roles"),
        ({"sasl.kerberos.principal.to.local.rules": "RULE:[1:$1]"}, True, "sasl.kerberos.principal.to.local"),
        ({"sasl.login.class": "a.B"}, True, "sasl.login.class: it names a Java class"),
        ({"message.max.bytes": "x"}, True, "Invalid value x for configuration message.max.bytes"),
        ({"message.max.bytes": None}, True, "Null value not supported"),
        ({"what.is.this": "1"}, False, "Unknown setting what.is.this"),
        ({"log.retention.ms": "0"}, False, "log.retention.ms: must be -1"),
    ],
)
def test_dynamic_changes_are_refused_as_invalid_requests(
    overrides: dict[str, str | None], per_broker: bool, message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_broker_overrides(overrides, per_broker=per_broker, broker=BrokerSettings())
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert str(caught.value).startswith(message)


def test_dynamic_changes_that_kafka_accepts_are_accepted() -> None:
    validate_broker_overrides({"message.max.bytes": "5"}, per_broker=False)
    validate_broker_overrides({"ssl.protocol": "TLSv1.2"}, per_broker=True, broker=BrokerSettings())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sasl.kerberos.min.time.before.relogin", "58000"),
        ("num.io.threads", "9"),
        ("metric.reporters", "a.B"),
    ],
)
def test_a_setting_that_endangers_nothing_is_stored(name: str, text: str) -> None:
    """librdkafka's own test of AlterConfigs changes the first one, and people's tools change the others."""
    changed = validate_broker_overrides({name: text}, per_broker=True, broker=BrokerSettings())
    assert changed is not None
    assert changed.without_effect == (name,)
    (described,) = describe_broker(changed, [name])
    assert (described.value, described.source) == (text, ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert not described.is_read_only
    assert described.doc.startswith("This setting has no effect in tidelog: ")
    assert name in {each.name for each in describe_broker(changed)}
    assert describe_broker(BrokerSettings(), [name]) == []


def test_a_static_setting_without_effect_is_described() -> None:
    settings = BrokerSettings.parse({"process.roles": "broker"})
    (described,) = describe_broker(settings, ["process.roles"])
    assert (described.value, described.source) == ("broker", ConfigSource.STATIC_BROKER_CONFIG)
    assert described.is_read_only


def test_a_secret_is_never_shown() -> None:
    setting = Setting(
        SettingType.PASSWORD, None, Importance.HIGH, "A secret.", (lambda _: "bad",), name="a.key"
    )
    with pytest.raises(SettingError) as caught:
        setting.parse("hunter2")
    assert "hunter2" not in str(caught.value)
    secret = Password("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {secret!s} {[secret]}"
    assert secret.reveal() == "hunter2"
