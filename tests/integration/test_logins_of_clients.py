"""Each client with each way to log in and each security protocol: produce, consume, and wrong credentials.

docs/guides/authentication.md has the table. franz-go's part runs in `make conformance`.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer as KafkaPythonConsumer
from kafka import KafkaProducer as KafkaPythonProducer
from kafka import TopicPartition as KafkaPythonTopicPartition
from kafka.errors import KafkaError as KafkaPythonError
from kafka.net.sasl.oauth import AbstractTokenProvider

import brokerlab
from brokerlab.kafka_jars import JAVA_OPTIONS
from brokerlab.secured_broker import CASES, GROUP, TOPIC, WAIT_S, Case, Mechanism, SecuredBroker

pytestmark = [pytest.mark.integration, pytest.mark.slow]
WITHOUT_TOKENS = [case for case in CASES if case.mechanism is not Mechanism.TOKEN]
"""Delegation tokens need an extension of SCRAM, which only Kafka's own clients and franz-go can send."""
REFUSAL_S = 3.0
LOGINS = Path(brokerlab.__path__[0]) / "KafkaLogins.java"
JAVA_TIMEOUT_S = 240


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"))
    yield broker
    broker.close()


def _librdkafka(secured: SecuredBroker, case: Case) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap.servers": secured.bootstrap(case.protocol),
        "security.protocol": case.protocol,
        "ssl.ca.location": str(secured.ca),
        "log_level": 0,
    }
    if case.mechanism is Mechanism.CERTIFICATE:
        files = secured.client_files(case)
        return found | {
            "ssl.key.location": str(files.key),
            "ssl.certificate.location": str(files.certificate),
        }
    found["sasl.mechanism"] = case.mechanism.sasl_name
    if case.mechanism is Mechanism.OAUTHBEARER:
        token = secured.provider.token(secured.oauth_user(case))
        return found | {"oauth_cb": lambda _: (token, time.time() + 3600)}
    user, password = secured.user_and_password(case)
    return found | {"sasl.username": user, "sasl.password": password}


def _by_librdkafka(settings: dict[str, Any], value: bytes) -> bytes:
    """Returns what a consumer reads at the offset of the produced record. Raises KafkaException."""
    errors: list[Any] = []
    delivered: list[Any] = []
    producer = Producer({**settings, "error_cb": errors.append, "message.timeout.ms": WAIT_S * 1000})
    producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, message: delivered.append(message))
    deadline = time.monotonic() + WAIT_S
    while not delivered and not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    if errors:
        producer.purge()
        raise KafkaException(errors[0])
    consumer = Consumer({**settings, "group.id": GROUP})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, delivered[0].offset())])
        message = consumer.poll(WAIT_S)
        assert message is not None and message.error() is None, message and message.error()
        consumed: bytes = message.value()
        return consumed
    finally:
        consumer.close()


@pytest.mark.parametrize("case", WITHOUT_TOKENS, ids=str)
def test_librdkafka(secured: SecuredBroker, case: Case) -> None:
    value = uuid.uuid4().bytes
    if case.is_right:
        assert _by_librdkafka(_librdkafka(secured, case), value) == value
    else:
        with pytest.raises(KafkaException, match=r"_AUTHENTICATION|_SSL|_TRANSPORT|_ALL_BROKERS_DOWN"):
            _by_librdkafka(_librdkafka(secured, case), value)


def _kafka_python(secured: SecuredBroker, case: Case) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap_servers": secured.bootstrap(case.protocol),
        "security_protocol": case.protocol,
    }
    if case.mechanism is Mechanism.CERTIFICATE:
        return found
    found["sasl_mechanism"] = case.mechanism.sasl_name
    if case.mechanism is Mechanism.OAUTHBEARER:
        return found
    user, password = secured.user_and_password(case)
    return found | {"sasl_plain_username": user, "sasl_plain_password": password}


@pytest.mark.parametrize("case", WITHOUT_TOKENS, ids=str)
def test_kafka_python(secured: SecuredBroker, case: Case) -> None:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return secured.provider.token(secured.oauth_user(case))

    settings = _kafka_python(secured, case)
    if case.protocol.endswith("SSL"):
        settings["ssl_cafile"] = str(secured.ca)
    if case.mechanism is Mechanism.CERTIFICATE:
        files = secured.client_files(case)
        settings |= {"ssl_certfile": str(files.certificate), "ssl_keyfile": str(files.key)}
    if case.mechanism is Mechanism.OAUTHBEARER:
        settings["sasl_oauth_token_provider"] = Tokens()
    value = uuid.uuid4().bytes

    def exchange(timeout_s: float) -> bytes:
        with KafkaPythonProducer(**settings, max_block_ms=timeout_s * 1000) as producer:
            offset = producer.send(TOPIC, value, partition=0).get(timeout_s).offset
        consumer = KafkaPythonConsumer(**settings, consumer_timeout_ms=timeout_s * 1000)
        try:
            partition = KafkaPythonTopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            consumed: bytes = next(iter(consumer)).value
            return consumed
        finally:
            consumer.close()

    if case.is_right:
        assert exchange(WAIT_S) == value
    else:
        with pytest.raises(KafkaPythonError):
            exchange(REFUSAL_S)


@pytest.mark.parametrize("case", WITHOUT_TOKENS, ids=str)
def test_aiokafka(secured: SecuredBroker, case: Case) -> None:
    class Tokens(AioTokenProvider):  # type: ignore[misc]  # aiokafka has no types
        async def token(self) -> str:
            return secured.provider.token(secured.oauth_user(case))

    settings = _kafka_python(secured, case)
    if case.protocol.endswith("SSL"):
        context = ssl.create_default_context(cafile=str(secured.ca))
        if case.mechanism is Mechanism.CERTIFICATE:
            files = secured.client_files(case)
            context.load_cert_chain(files.certificate, files.key)
        settings["ssl_context"] = context
    value = uuid.uuid4().bytes

    async def exchange() -> bytes:
        if case.mechanism is Mechanism.OAUTHBEARER:
            settings["sasl_oauth_token_provider"] = Tokens()
        async with AIOKafkaProducer(**settings) as producer:
            sent = await producer.send_and_wait(TOPIC, value, partition=0)
        consumer = AIOKafkaConsumer(**settings)
        await consumer.start()
        try:
            partition = AioTopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, sent.offset)
            consumed: bytes = (await consumer.getone()).value
            return consumed
        finally:
            await consumer.stop()

    if case.is_right:
        assert asyncio.run(asyncio.wait_for(exchange(), WAIT_S)) == value
    else:
        with pytest.raises(AioKafkaError):
            asyncio.run(asyncio.wait_for(exchange(), WAIT_S))


@pytest.mark.java
@pytest.mark.timeout(JAVA_TIMEOUT_S + 30)
def test_kafkas_own_clients(secured: SecuredBroker, kafka_jars: Path, tmp_path: Path) -> None:
    lines = []
    for number, case in enumerate(CASES):
        file = tmp_path / f"{number}.properties"
        properties = secured.java_properties(case)
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        lines.append(f"{case}\t{file}\t{TOPIC}\n")
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={secured.provider.issuer}/token"
    done = subprocess.run(
        ["java", *JAVA_OPTIONS, allowed, "-cp", f"{kafka_jars}/*", str(LOGINS)],
        input="".join(lines),
        capture_output=True,
        text=True,
        timeout=JAVA_TIMEOUT_S,
        check=False,
    )
    outcomes = dict(line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    assert set(outcomes) == set(map(str, CASES)), done.stderr[-3000:]
    right = {str(case): outcomes[str(case)] for case in CASES if case.is_right}
    assert set(right.values()) == {"ok"}, right
    for case in CASES:
        if not case.is_right:
            said = outcomes[str(case)]
            is_tls = case.mechanism is Mechanism.CERTIFICATE
            expected = "SSLHandshakeException" if is_tls else "SaslAuthenticationException"
            assert expected in said, f"{case}: {said}"
