"""The settings of SASL listeners: what is accepted, and which value counts for a listener."""

from __future__ import annotations

import pytest

from tidelog.sasl import PLAIN
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.sasl_settings import login_module, plan_sasl
from tidelog.settings.setting import SettingError

LISTENER = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
}
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def test_a_sasl_listener_has_scram_by_default() -> None:
    settings = BrokerSettings.parse(LISTENER)
    plan = plan_sasl("CLIENTS", settings.listener_value)
    assert plan == (("SCRAM-SHA-512",), {}, {"SCRAM-SHA-512": 0}, None)


def test_the_most_specific_value_counts() -> None:
    settings = BrokerSettings.parse(
        LISTENER
        | {
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.clients.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.jaas.config": f'{MODULE} user_a="general";',
            "listener.name.clients.plain.sasl.jaas.config": f'{MODULE} username="b" user_b="special";',
            "connections.max.reauth.ms": "60000",
            "listener.name.clients.scram-sha-512.connections.max.reauth.ms": "5000",
        }
    )
    plan = plan_sasl("CLIENTS", settings.listener_value)
    assert plan.mechanisms == ("PLAIN", "SCRAM-SHA-512")
    assert plan.plain_passwords == {"b": "special"}
    assert plan.max_reauth_ms == {"PLAIN": 60_000, "SCRAM-SHA-512": 5_000}
    module = login_module("CLIENTS", PLAIN, settings.listener_value)
    assert module is not None and module.options["username"] == "b"
    assert "special" not in f"{settings} {plan} {module}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms: GSSAPI is not supported"),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms: CLIENTS has no mechanism"),
        (
            {"sasl.enabled.mechanisms": "PLAIN"},
            "listener.name.clients.plain.sasl.jaas.config: PLAIN is enabled, so this must name its users",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": 'x required user_a="secret"'},
            "listener.name.clients.plain.sasl.jaas.config: the JAAS configuration does not end with",
        ),
        (
            {"listener.name.other.sasl.jaas.config": "x"},
            "listener.name.other.sasl.jaas.config: there is no listener OTHER in listeners",
        ),
        (
            {"listener.name.clients.log.dirs": "x"},
            "listener.name.clients.log.dirs: log.dirs cannot be set for one listener",
        ),
    ],
)
def test_settings_that_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        BrokerSettings.parse(LISTENER | given)
    assert str(caught.value).startswith(message)
    assert "secret" not in str(caught.value)
