"""Clients log in with tokens of a real OpenID Connect provider."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaProducer as KafkaPythonProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from brokerlab.broker_process import BrokerProcess, free_port, tidelog_command
from brokerlab.clients import poll_messages
from brokerlab.identity_provider import AUDIENCE, IdentityProvider
from brokerlab.kafka_jars import JavaTools
from brokerlab.raw_client import RawClient
from tidelog.model.errors import ErrorCode
from tidelog.sasl.oauthbearer import BearerMessage

USER, SECRET = "alice", "alice-secret"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
WAIT_S = 20.0


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    yield provider
    provider.close()


@pytest.fixture(scope="module")
def bootstrap_of_secured(
    provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("oauthbearer")
    open_port, port = free_port(), free_port()
    process = BrokerProcess(
        directory / "data",
        directory / "broker.log",
        port=open_port,
        settings={
            "listeners": f"PLAINTEXT://127.0.0.1:{open_port},CLIENTS://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "listener.name.clients.sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"{provider.issuer}/jwks",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": provider.issuer,
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "200",
            "connections.max.reauth.ms": "2000",
            "connection.failed.authentication.delay.ms": "0",
        },
    )
    process.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.stop()


def _librdkafka(bootstrap: str, provider: IdentityProvider, secret: str = SECRET) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": USER,
        "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.token.endpoint.url": f"{provider.issuer}/token",
        "sasl.oauthbearer.scope": "kafka",
        "log_level": 0,
    }


def test_librdkafka_logs_in_with_oidc_and_keeps_its_session(
    bootstrap_of_secured: str, provider: IdentityProvider
) -> None:
    settings = _librdkafka(bootstrap_of_secured, provider)
    errors: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": errors.append})
    ends_at = time.monotonic() + 5
    count = 0
    while time.monotonic() < ends_at:
        producer.produce("librdkafka", b"value")
        count += 1
        assert producer.flush(WAIT_S) == 0
        time.sleep(0.1)
    assert errors == []
    consumer = Consumer({**settings, "group.id": "librdkafka", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["librdkafka"])
        assert len(poll_messages(consumer, count)) == count
    finally:
        consumer.close()


def test_kafka_python_and_aiokafka_log_in(bootstrap_of_secured: str, provider: IdentityProvider) -> None:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return provider.token(USER)

    class AioTokens(AioTokenProvider):  # type: ignore[misc]  # aiokafka has no types
        async def token(self) -> str:
            return provider.token(USER)

    settings = {
        "bootstrap_servers": bootstrap_of_secured,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
    }
    with KafkaPythonProducer(**settings, sasl_oauth_token_provider=Tokens()) as producer:
        assert producer.send("kafka-python", b"value").get(WAIT_S).offset == 0

    async def produce() -> int:
        async with AIOKafkaProducer(**settings, sasl_oauth_token_provider=AioTokens()) as producer:
            return int((await producer.send_and_wait("aiokafka", b"value")).offset)

    assert asyncio.run(produce()) == 0


def _client_file(path: Path, provider: IdentityProvider, secret: str = SECRET) -> Path:
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        "sasl.login.callback.handler.class="
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.token.endpoint.url={provider.issuer}/token\n"
        f'sasl.jaas.config={MODULE} required clientId="{USER}" clientSecret="{secret}" scope="kafka";\n'
    )
    return path


def test_tidelogs_tools_log_in(bootstrap_of_secured: str, provider: IdentityProvider, tmp_path: Path) -> None:
    def topics(secret: str) -> subprocess.CompletedProcess[str]:
        config = _client_file(tmp_path / "client.properties", provider, secret)
        options = ("--bootstrap-server", bootstrap_of_secured, "--command-config", str(config))
        return subprocess.run(
            [*tidelog_command(), "topic", "list", *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    listed = topics(SECRET)
    assert listed.returncode == 0, listed.stderr
    refused = topics("wrong")
    assert refused.returncode == 1
    assert "gives no token to alice: HTTP status 401" in refused.stderr


@pytest.mark.java
@pytest.mark.slow
def test_javas_clients_log_in(
    bootstrap_of_secured: str,
    provider: IdentityProvider,
    java: JavaTools,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.issuer}/token"
    monkeypatch.setenv("JDK_JAVA_OPTIONS", allowed)
    config = _client_file(tmp_path / "client.properties", provider)
    options = (
        *("--bootstrap-server", bootstrap_of_secured, "--topic", "java"),
        *("--command-config", str(config)),
    )
    java.check("ConsoleProducer", *options, stdin="one\ntwo\n")
    consumed = java.check(
        "consumer.ConsoleConsumer",
        *(*options, "--from-beginning", "--max-messages", "2", "--timeout-ms", "30000"),
    )
    assert consumed.split() == ["one", "two"]


def test_a_false_token_is_refused(bootstrap_of_secured: str, provider: IdentityProvider) -> None:
    stranger = IdentityProvider()
    try:
        false = stranger.token(USER, iss=provider.issuer)
    finally:
        stranger.close()
    for token in (false, provider.token(USER, aud="other"), provider.token(USER, exp=1), "x"):
        with RawClient(bootstrap_of_secured) as client:
            assert client.call("sasl_handshake", 1, mechanism="OAUTHBEARER").error_code == 0
            answer = client.call("sasl_authenticate", 2, auth_bytes=BearerMessage("", token).encode())
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert client.is_closed_by_broker()


def test_a_session_ends_with_its_token(bootstrap_of_secured: str, provider: IdentityProvider) -> None:
    with RawClient(bootstrap_of_secured) as client:
        assert client.call("sasl_handshake", 1, mechanism="OAUTHBEARER").error_code == 0
        token = provider.token(USER, exp=int(time.time()) + 1)
        answer = client.call("sasl_authenticate", 2, auth_bytes=BearerMessage("", token).encode())
        assert answer.error_code == 0
        assert answer.session_lifetime.total_seconds() <= 1
        time.sleep(1.2)
        client.send("metadata", 12, topics=[], include_topic_authorized_operations=False)
        assert client.is_closed_by_broker()
