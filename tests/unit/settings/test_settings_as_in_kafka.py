"""Names, types, defaults, accepted values, importance and update modes are those of Apache Kafka 4.3.1.

tools/settings/KafkaSettingsTable.java prints `kafka_settings.json` from Kafka's own definitions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.settings import other_kafka_settings
from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.settings.network_settings import LEAST_CONNECTIONS
from tidelog.settings.setting import Setting, SettingError, SettingType
from tidelog.settings.topic_settings import BROKER_SYNONYMS, TOPIC_SETTINGS, TopicSettings, broker_default

KAFKA: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("kafka_settings.json").read_text())

# The settings that differ on purpose, with their values here.
OTHER_DEFAULTS = {
    "node.id": 1,
    "sasl.enabled.mechanisms": ("SCRAM-SHA-512",),  # tidelog has no GSSAPI
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "broker.session.timeout.ms": 6000,
    "replica.socket.receive.buffer.bytes": 262144,
    "socket.receive.buffer.bytes": -1,  # Linux sizes the buffer itself, for the path of each connection
    # Kafka sets no limits, so that any client can exhaust a broker.
    "max.connections": 10_000,
    "max.connections.per.ip": 2_000,
    "max.connection.creation.rate": 1_000,
    "queued.max.request.bytes": 268_435_456,
}
READ_ONLY_HERE = {
    # The broker does not open or close listeners while it runs, and it recovers logs only when it starts.
    "listeners",
    "listener.security.protocol.map",
    "num.recovery.threads.per.data.dir",
}
OWN_BROKER_SETTINGS = {
    "allow.everyone.if.no.acl.found",  # settings of Kafka's authorizer, which are not in Kafka's table
    "super.users",
    "errors.deadletterqueue.auto.create.topics.enable",  # in Kafka since 4.4
    "errors.deadletterqueue.topic.name.prefix",
    "tidelog.client.metrics.enable",
    "controlled.shutdown.max.retries",  # in Kafka before 4.0
    "controlled.shutdown.retry.backoff.ms",  # in Kafka before 4.0
    "follower.replication.throttled.rate",  # dynamic only in Kafka, so it is not in Kafka's table
    "leader.imbalance.per.broker.percentage",  # in Kafka before 4.0
    "leader.replication.throttled.rate",
    "replica.lag.max.messages",  # in Kafka before 0.9
    "tidelog.authentication.timeout.ms",
    "tidelog.connection.max.in.flight.requests",
    "tidelog.max.fetch.session.partitions",
    "tidelog.max.partitions",
    "tidelog.max.partitions.per.broker",
    "tidelog.etcd.allow.plaintext",
    "tidelog.etcd.endpoints",
    "tidelog.etcd.password",
    "tidelog.etcd.prefix",
    "tidelog.etcd.tls.ca.file",
    "tidelog.etcd.tls.cert.file",
    "tidelog.etcd.tls.key.file",
    "tidelog.etcd.username",
    "tidelog.inter.broker.other.listener.names",
    "tidelog.log.format",
    "tidelog.log.level",
    "tidelog.metrics.listener",
    "tidelog.node.name",
    "tidelog.probes.listener",
    "tidelog.rpc.advertised.address",
    "tidelog.rpc.allow.plaintext",
    "tidelog.rpc.listener",
    "tidelog.rpc.tls.ca.file",
    "tidelog.rpc.tls.cert.file",
    "tidelog.rpc.tls.check.roles",
    "tidelog.rpc.tls.key.file",
    "tidelog.rpc.tls.server.name",
    "tidelog.tracing.max.queued.spans",
    "tidelog.tracing.max.traces.per.second",
    "tidelog.tracing.otlp.ca.file",
    "tidelog.tracing.otlp.endpoint",
    "tidelog.tracing.sampling.ratio",
    "tidelog.shutdown.timeout.ms",
    "tidelog.validate.records",
}
HIGHER_LEAST = {"max.connections": LEAST_CONNECTIONS, "max.connection.creation.rate": 1}
"""The settings whose smallest value would keep every client out, also the one that could undo it."""
OWN_TOPIC_SETTINGS = {
    "errors.deadletterqueue.group.enable",  # in Kafka since 4.4
    "tidelog.settings.confirmed",
    "tidelog.validate.records",
}
ACCEPTS_RANGE = re.compile(r"\[(-?[0-9]+),\.\.\.(?:,([0-9.]+))?\](?: or (-1))?")


def shared_settings() -> Iterator[tuple[str, Setting, dict[str, Any]]]:
    absent = other_kafka_settings.DYNAMIC_WITHOUT_EFFECT
    for table, ours in (("broker", BROKER_SETTINGS), ("topic", TOPIC_SETTINGS), ("broker", absent)):
        for name, definition in ours.items():
            if name in KAFKA[table]:
                yield f"{table} {name}", definition, KAFKA[table][name]


SHARED = [pytest.param(definition, row, id=label) for label, definition, row in shared_settings()]


def accepts(definition: Setting, text: str) -> bool:
    try:
        definition.parse(text)
    except SettingError as error:
        assert definition.name in str(error)
        assert "\n" not in str(error)
        return False
    return True


@pytest.mark.parametrize(("definition", "row"), SHARED)
def test_definition_is_kafkas(definition: Setting, row: dict[str, Any]) -> None:
    assert definition.type.name == row["type"]
    assert definition.importance.value == row["importance"]
    assert definition.is_internal == row.get("internal", False)
    if definition.name in OTHER_DEFAULTS:
        assert definition.default == OTHER_DEFAULTS[definition.name]
    else:
        assert definition.format(definition.default) == row.get("default")
        assert not row.get("required")
    assert definition.doc.endswith(".") or definition.name in other_kafka_settings.DYNAMIC_WITHOUT_EFFECT


@pytest.mark.parametrize(
    ("definition", "row"), [case for case in SHARED if str(case.id).startswith("broker ")]
)
def test_update_mode_is_kafkas(definition: Setting, row: dict[str, Any]) -> None:
    kafkas = row.get("update_mode", "read-only")
    if definition.name in READ_ONLY_HERE:
        assert kafkas != "read-only"
        kafkas = "read-only"
    assert definition.update_mode.value == kafkas


@pytest.mark.parametrize(("definition", "row"), SHARED)
def test_accepted_range_is_kafkas(definition: Setting, row: dict[str, Any]) -> None:
    range_ = ACCEPTS_RANGE.fullmatch(row.get("accepts", ""))
    if range_ is None:
        numeric = definition.type in (SettingType.INT, SettingType.LONG, SettingType.SHORT)
        stricter_here = {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
        if numeric and "accepts" not in row and definition.name not in stricter_here:
            assert definition.rules == ()
        return
    least = HIGHER_LEAST.get(definition.name, int(range_[1]))
    assert accepts(definition, str(least))
    assert not accepts(definition, str(least - 1)) or range_[3] == str(least - 1)
    if range_[2] is not None:
        assert accepts(definition, range_[2])
        assert not accepts(definition, str(int(float(range_[2])) + 1))
    if range_[3] is not None:
        assert accepts(definition, range_[3])
        assert not accepts(definition, "0")


@pytest.mark.parametrize(
    ("definition", "row"), [case for case in SHARED if isinstance(case.values[0].default, str)]
)
def test_accepted_names_are_kafkas(definition: Setting, row: dict[str, Any]) -> None:
    names = re.fullmatch(r"(?:\(case insensitive\) )?\[([A-Za-z0-9_, ]+)\]", row.get("accepts", ""))
    if names is None:
        assert definition.rules == ()
        return
    assert all(accepts(definition, name) for name in names[1].split(", "))
    assert not accepts(definition, "something-else")


def test_every_broker_setting_of_kafka_is_accounted_for() -> None:
    for name in KAFKA["broker"]:
        ways = (
            name in BROKER_SETTINGS,
            other_kafka_settings.reason_without_effect(name) is not None,
            other_kafka_settings.reason_refused(name) is not None,
        )
        assert sum(ways) == 1, name


def test_kafkas_dynamic_settings_without_effect_can_be_changed() -> None:
    dynamic = {
        name
        for name, row in KAFKA["broker"].items()
        if row.get("update_mode") and other_kafka_settings.reason_without_effect(name) is not None
    }
    assert dynamic == other_kafka_settings.DYNAMIC_WITHOUT_EFFECT.keys()


def test_settings_that_kafka_does_not_have() -> None:
    assert set(BROKER_SETTINGS) - set(KAFKA["broker"]) == OWN_BROKER_SETTINGS
    assert set(TOPIC_SETTINGS) - set(KAFKA["topic"]) == OWN_TOPIC_SETTINGS


def test_every_topic_setting_of_kafka_is_there() -> None:
    assert set(KAFKA["topic"]) <= set(TOPIC_SETTINGS)


def test_broker_synonyms_of_topic_settings_are_kafkas() -> None:
    ours = {name: list(names) for name, names in BROKER_SYNONYMS.items() if name not in OWN_TOPIC_SETTINGS}
    assert ours == KAFKA["synonyms"]


def test_a_default_broker_gives_topics_kafkas_defaults() -> None:
    broker = BrokerSettings.parse({})
    for name, definition in TOPIC_SETTINGS.items():
        assert broker_default(broker, name) == definition.default, name
    assert TopicSettings.resolve(broker, {}) == TopicSettings()
