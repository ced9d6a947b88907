"""The load of a chaos run logs in with the same properties as tidelog's tools."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from confluent_kafka import Producer

from brokerlab.command_config import librdkafka_settings

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "sasl.oauthbearer.client.credentials."


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, {"security.protocol": "PLAINTEXT"}),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": f'{SCRAM} required username="alice" password="secret";',
            },
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": "secret",
            },
        ),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://idp.example/token",
                f"{OAUTH}client.id": "alice",
                f"{OAUTH}client.secret": "secret",
            },
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": "https://idp.example/token",
                "sasl.oauthbearer.client.id": "alice",
                "sasl.oauthbearer.client.secret": "secret",
            },
        ),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""},
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"},
        ),
    ],
)
def test_properties_of_kafka_become_settings_of_librdkafka(
    properties: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    found = librdkafka_settings(properties)
    assert found == expected
    Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **found})
