"""Combines listeners, advertised.listeners, inter.broker.listener.name and the protocol map as in Kafka."""

from __future__ import annotations

import pytest

from tidelog.model.brokers import Endpoint
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError

MAP = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT,SECURE:SASL_SSL"}


def test_defaults() -> None:
    plan = BrokerSettings.parse({}).listener_plan()
    assert plan.bind == plan.advertised == (Endpoint("PLAINTEXT", "", 9092),)
    assert plan.inter_broker_listener_name == "PLAINTEXT"


def test_two_listeners_one_of_which_is_advertised_differently() -> None:
    plan = BrokerSettings.parse(
        MAP
        | {
            "listeners": "PLAINTEXT://0.0.0.0:9092, external://[::1]:9094",
            "advertised.listeners": "PLAINTEXT://broker-0.internal:9092,EXTERNAL://kafka.example.com:443",
            "inter.broker.listener.name": "external",
        }
    ).listener_plan()
    assert plan.bind == (Endpoint("PLAINTEXT", "0.0.0.0", 9092), Endpoint("EXTERNAL", "::1", 9094))
    assert plan.advertised == (
        Endpoint("PLAINTEXT", "broker-0.internal", 9092),
        Endpoint("EXTERNAL", "kafka.example.com", 443),
    )
    assert plan.inter_broker_listener_name == "EXTERNAL"


def test_brokers_replicate_over_further_listeners_while_a_cluster_moves() -> None:
    given = MAP | {
        "listeners": "PLAINTEXT://h:1,EXTERNAL://h:2",
        "inter.broker.listener.name": "EXTERNAL",
        "tidelog.inter.broker.other.listener.names": "plaintext",
    }
    plan = BrokerSettings.parse(given).listener_plan()
    assert plan.replication_listener_names == ("EXTERNAL", "PLAINTEXT")
    with pytest.raises(SettingError, match="SECURE is not an advertised listener"):
        BrokerSettings.parse(given | {"tidelog.inter.broker.other.listener.names": "SECURE"})


def test_one_port_may_be_shared_by_an_ipv4_and_an_ipv6_address() -> None:
    given = MAP | {"listeners": "PLAINTEXT://127.0.0.1:9092,EXTERNAL://[::1]:9092"}
    assert len(BrokerSettings.parse(given).listener_plan().bind) == 2


def test_port_0_may_occur_more_than_once() -> None:
    given = MAP | {"listeners": "PLAINTEXT://127.0.0.1:0,EXTERNAL://127.0.0.1:0"}
    assert [endpoint.port for endpoint in BrokerSettings.parse(given).listener_plan().bind] == [0, 0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"listeners": "FOO://:9092"}, "listeners: listener FOO has no security protocol"),
        (
            {"listeners": "PLAINTEXT://:9092,EXTERNAL://:9092"},
            "listeners: PLAINTEXT, EXTERNAL have the same port",
        ),
        (
            {"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"},
            "listeners: there are two listeners named PLAINTEXT",
        ),
        ({"listeners": "PLAINTEXT//x"}, "listeners: PLAINTEXT//x does not have the form NAME://host:port"),
        ({"listeners": "PLAINTEXT://h"}, "listeners: PLAINTEXT://h does not have the form"),
        ({"listeners": "PLAINTEXT://h:99999"}, "listeners: PLAINTEXT://h:99999 has a port above 65535"),
        ({"listeners": ""}, "Invalid value  for configuration listeners: Value must not be empty"),
        (
            {"listeners": "PLAINTEXT://0.0.0.0:9092"},
            "advertised.listeners: clients cannot connect to 0.0.0.0",
        ),
        (
            {"advertised.listeners": "PLAINTEXT://[::]:9092"},
            "advertised.listeners: clients cannot connect to ::",
        ),
        ({"advertised.listeners": "EXTERNAL://a:9"}, "advertised.listeners: EXTERNAL is not among listeners"),
        (
            {"listeners": "PLAINTEXT://:1,EXTERNAL://:2", "advertised.listeners": "EXTERNAL://h:1"},
            "security.inter.broker.protocol: PLAINTEXT is not an advertised listener (there are EXTERNAL)",
        ),
        (
            {"inter.broker.listener.name": "NOPE"},
            "inter.broker.listener.name: NOPE is not in listener.security",
        ),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "SSL"},
            "inter.broker.listener.name: cannot be set together with security.inter.broker.protocol",
        ),
        (
            {"listener.security.protocol.map": "PLAINTEXT"},
            "listener.security.protocol.map: PLAINTEXT does not have the form NAME:",
        ),
        (
            {"listener.security.protocol.map": "A:B"},
            "listener.security.protocol.map: A:B does not have the form NAME:",
        ),
        (
            {"listener.security.protocol.map": "A:SSL,a:SSL"},
            "listener.security.protocol.map: A occurs twice",
        ),
    ],
)
def test_contradictions_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        BrokerSettings.parse(MAP | given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
