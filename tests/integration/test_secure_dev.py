"""`tidelog dev --secure`: clients connect with TLS, SCRAM and the `client.properties` that it writes."""

from __future__ import annotations

import asyncio
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaProducer as KafkaPythonProducer

from brokerlab.broker_process import BrokerProcess, tidelog_command
from brokerlab.clients import librdkafka_settings, poll_messages
from brokerlab.kafka_jars import JavaTools
from brokerlab.raw_client import RawClient
from tidelog.settings.properties_file import parse_properties

WAIT_S = 20.0


class SecureProcess(BrokerProcess):
    """A `tidelog dev --secure`."""

    def command(self) -> list[str]:
        return [*super().command(), "--secure"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureProcess]:
    directory = tmp_path_factory.mktemp("secure")
    process = SecureProcess(directory / "data", directory / "broker.log")
    process.start()
    try:
        yield process
    finally:
        process.stop()


def _file(process: SecureProcess) -> Path:
    return process.data_dir / "client.properties"


def _properties(process: SecureProcess) -> dict[str, str]:
    return {found.name: found.value for found in parse_properties(_file(process).read_text())}


def _librdkafka(process: SecureProcess) -> dict[str, Any]:
    return librdkafka_settings(process.bootstrap, _properties(process))


def _tool(process: SecureProcess, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    options = ("--bootstrap-server", process.bootstrap, "--command-config", str(_file(process)))
    return subprocess.run(
        [*tidelog_command(), *arguments, *options],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_librdkafka(secure: SecureProcess) -> None:
    producer = Producer(_librdkafka(secure))
    producer.produce("librdkafka", b"value")
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**_librdkafka(secure), "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["librdkafka"])
        assert [message.value() for message in poll_messages(consumer, 1)] == [b"value"]
    finally:
        consumer.close()


def test_kafka_python_and_aiokafka(secure: SecureProcess) -> None:
    given = _librdkafka(secure)
    settings = {
        "bootstrap_servers": secure.bootstrap,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": given["sasl.mechanism"],
        "sasl_plain_username": given["sasl.username"],
        "sasl_plain_password": given["sasl.password"],
    }
    with KafkaPythonProducer(**settings, ssl_cafile=given["ssl.ca.location"]) as producer:
        assert producer.send("kafka-python", b"value").get(WAIT_S).offset == 0

    async def produce() -> int:
        context = ssl.create_default_context(cafile=given["ssl.ca.location"])
        async with AIOKafkaProducer(**settings, ssl_context=context) as producer:
            return int((await producer.send_and_wait("aiokafka", b"value")).offset)

    assert asyncio.run(produce()) == 0


def test_tidelogs_tools(secure: SecureProcess) -> None:
    assert _tool(secure, "produce", "tools", stdin="one\n").returncode == 0
    consumed = _tool(secure, "consume", "tools", "--from-beginning", "--max-messages", "1")
    assert consumed.stdout == "one\n", consumed.stderr
    assert "admin\tSCRAM-SHA-512\t4096\n" in _tool(secure, "user", "list").stdout


@pytest.mark.java
@pytest.mark.slow
def test_javas_clients(secure: SecureProcess, java: JavaTools) -> None:
    options = (
        *("--bootstrap-server", secure.bootstrap, "--topic", "java"),
        *("--command-config", str(_file(secure))),
    )
    java.check("ConsoleProducer", *options, stdin="one\n")
    consumed = java.check(
        "consumer.ConsoleConsumer",
        *(*options, "--from-beginning", "--max-messages", "1", "--timeout-ms", "30000"),
    )
    assert consumed.split() == ["one"]


def test_plain_connections_are_refused(secure: SecureProcess) -> None:
    with RawClient(secure.bootstrap) as client:
        client.send("api_versions", 3, client_software_name="x", client_software_version="1")
        with pytest.raises((ConnectionError, ValueError)):
            client.receive("api_versions", 3)


def test_the_secrets_are_private_and_survive_a_restart(secure: SecureProcess) -> None:
    for path in (_file(secure), *secure.data_dir.glob("security/*/*.key")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((secure.data_dir / "security" / "broker" / "keystore.pem").stat().st_mode) == 0o600
    before = _file(secure).read_text()
    secure.stop()
    secure.start()
    assert _file(secure).read_text() == before
    assert _tool(secure, "topic", "list").returncode == 0
