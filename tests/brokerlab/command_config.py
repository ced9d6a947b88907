"""librdkafka's settings for the properties of Kafka's clients in TIDELOG_COMMAND_CONFIG.

The loads of tests and chaos runs thereby log in with the same file as tidelog's own tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerlab.clients import secure
from tidelog.client.security import environment_properties
from tidelog.sasl import OAUTHBEARER
from tidelog.sasl.jaas import parse_jaas

_OAUTH: Final = "sasl.oauthbearer.client.credentials."


def secure_from_environment(bootstrap: str) -> None:
    """Lets all clients of these brokers that this process starts use the file, if there is one. Raises
    SecurityConfigError.
    """
    if properties := environment_properties():
        secure(bootstrap, librdkafka_settings(properties))


def librdkafka_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings for these properties of TLS and SASL."""
    found: dict[str, Any] = {"security.protocol": properties.get("security.protocol", "PLAINTEXT")}
    if found["security.protocol"].startswith("SASL_"):
        found |= _login(properties)
    if found["security.protocol"].endswith("SSL"):
        for ours, theirs in (
            ("ssl.truststore.location", "ssl.ca.location"),
            ("ssl.truststore.certificates", "ssl.ca.pem"),
            ("ssl.keystore.location", "ssl.certificate.location"),
            ("ssl.keystore.location", "ssl.key.location"),
            ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
            ("ssl.keystore.key", "ssl.key.pem"),
            ("ssl.key.password", "ssl.key.password"),
        ):
            if value := properties.get(ours):
                found[theirs] = value
        if "ssl.endpoint.identification.algorithm" in properties:
            checks = properties["ssl.endpoint.identification.algorithm"] or "none"
            found["ssl.endpoint.identification.algorithm"] = checks
    return found


def _login(properties: Mapping[str, str]) -> dict[str, Any]:
    mechanism = properties["sasl.mechanism"]
    jaas = properties.get("sasl.jaas.config")
    options = parse_jaas(jaas).options if jaas else {}
    if mechanism != OAUTHBEARER:
        login = {"sasl.username": options["username"], "sasl.password": options["password"]}
        return {"sasl.mechanism": mechanism, **login}
    return {
        "sasl.mechanism": mechanism,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": properties["sasl.oauthbearer.token.endpoint.url"],
        "sasl.oauthbearer.client.id": properties.get(f"{_OAUTH}client.id") or options["clientId"],
        "sasl.oauthbearer.client.secret": properties.get(f"{_OAUTH}client.secret") or options["clientSecret"],
    }
