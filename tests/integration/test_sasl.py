"""Clients log in to a SASL_PLAINTEXT listener, and nothing else is served before."""

from __future__ import annotations

import asyncio
import base64
import struct
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer as KafkaPythonConsumer
from kafka import KafkaProducer as KafkaPythonProducer

from brokerlab.broker_process import BrokerProcess, free_port, tidelog_command
from brokerlab.clients import poll_messages
from brokerlab.kafka_jars import JavaTools
from brokerlab.raw_client import RawClient
from tidelog.client.address import Address
from tidelog.client.cluster import BrokerConnection
from tidelog.client.security import ClientSecurity
from tidelog.model.errors import ErrorCode
from tidelog.pipeline.commands.session import client_settings_of
from tidelog.sasl.login import SaslLogin
from tidelog.sasl.scram import MECHANISM_BY_NAME, ClientExchange
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER, PASSWORD = "alice", "alice's secret, with = and ü"
DELAY_MS = 300
TIMEOUT_MS = 3_000
WAIT_S = 20.0


class SecuredBroker:
    """A broker with an open listener for its administrator and a secured one for clients."""

    def __init__(self, process: BrokerProcess, port: int) -> None:
        self.process = process
        self.admin = AdminClient({"bootstrap.servers": process.bootstrap})
        self.bootstrap = f"127.0.0.1:{port}"

    def add_user(self, user: str, password: str) -> None:
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion(
                user, ScramCredentialInfo(mechanism, 4096), password.encode()
            )
            for future in self.admin.alter_user_scram_credentials([change]).values():
                future.result(WAIT_S)

    def delete_user(self, user: str) -> None:
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            deletion = UserScramCredentialDeletion(user, mechanism)
            for future in self.admin.alter_user_scram_credentials([deletion]).values():
                future.result(WAIT_S)

    def client(self) -> RawClient:
        return RawClient(self.bootstrap)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    port = free_port()
    open_port = free_port()
    users = f'user_{USER}="{PASSWORD}"'
    directory = tmp_path_factory.mktemp("secured")
    process = BrokerProcess(
        directory / "data",
        directory / "broker.log",
        port=open_port,
        settings={
            "listeners": f"PLAINTEXT://127.0.0.1:{open_port},CLIENTS://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "listener.name.clients.sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.clients.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
            "listener.name.clients.scram-sha-256.connections.max.reauth.ms": "1500",
            "connection.failed.authentication.delay.ms": str(DELAY_MS),
            "tidelog.authentication.timeout.ms": str(TIMEOUT_MS),
            "delegation.token.secret.key": "the cluster's secret",
        },
    )
    process.start()
    broker = SecuredBroker(process, port)
    broker.add_user(USER, PASSWORD)
    try:
        yield broker
    finally:
        process.stop()


def _librdkafka(broker: SecuredBroker, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
        "log_level": 0,
    }


def _kafka_python(broker: SecuredBroker, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_produces_and_consumes(secured: SecuredBroker, mechanism: str) -> None:
    topic = f"librdkafka-{mechanism}"
    producer = Producer(_librdkafka(secured, mechanism))
    producer.produce(topic, b"value")
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer(
        {**_librdkafka(secured, mechanism), "group.id": topic, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        (message,) = poll_messages(consumer, 1)
        assert message.value() == b"value"
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_produces_and_consumes(secured: SecuredBroker, mechanism: str) -> None:
    topic = f"kafka-python-{mechanism}"
    with KafkaPythonProducer(**_kafka_python(secured, mechanism)) as producer:
        producer.send(topic, b"value").get(WAIT_S)
    consumer = KafkaPythonConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **_kafka_python(secured, mechanism)
    )
    try:
        assert next(iter(consumer)).value == b"value"
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_produces_and_consumes(secured: SecuredBroker, mechanism: str) -> None:
    topic = f"aiokafka-{mechanism}"

    async def exchange() -> bytes:
        settings = _kafka_python(secured, mechanism)
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"value")
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            value = (await asyncio.wait_for(consumer.getone(), WAIT_S)).value
            assert isinstance(value, bytes)
            return value

    assert asyncio.run(exchange()) == b"value"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_learns_that_its_password_is_wrong(secured: SecuredBroker, mechanism: str) -> None:
    errors: list[KafkaError] = []
    producer = Producer({**_librdkafka(secured, mechanism, "wrong"), "error_cb": errors.append})
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and not errors:
        producer.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION


# -- over a raw socket


def _handshake(client: RawClient, mechanism: str, version: int = 1) -> int:
    answer = client.call("sasl_handshake", version, mechanism=mechanism)
    assert set(answer.mechanisms) == set(MECHANISMS)
    return int(answer.error_code)


def _authenticate(client: RawClient, token: bytes) -> Any:
    return client.call("sasl_authenticate", 2, auth_bytes=token)


def _log_in(client: RawClient, mechanism: str, user: str = USER, password: str = PASSWORD) -> Any:
    """Returns the last response of the exchange."""
    assert _handshake(client, mechanism) == 0
    if mechanism == "PLAIN":
        return _authenticate(client, f"\0{user}\0{password}".encode())
    exchange = ClientExchange(MECHANISM_BY_NAME[mechanism], user, password, "a-nonce-of-the-client")
    challenge = _authenticate(client, exchange.first)
    assert challenge.error_code == 0
    last = _authenticate(client, exchange.reply(bytes(challenge.auth_bytes)))
    if last.error_code == 0:
        exchange.check(bytes(last.auth_bytes))
    return last


def _metadata(client: RawClient) -> Any:
    return client.call("metadata", 12, topics=[], include_topic_authorized_operations=False)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", [USER, "nobody"])
def test_a_failure_is_answered_late_and_without_a_reason(
    secured: SecuredBroker, mechanism: str, user: str
) -> None:
    with secured.client() as client:
        began = time.monotonic()
        answer = _log_in(client, mechanism, user, "wrong")
        assert time.monotonic() - began >= DELAY_MS / 1000
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == (
            f"The authentication with {mechanism} failed: the credentials are not valid"
        )
        assert bytes(answer.auth_bytes) == b""
        assert client.is_closed_by_broker()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_audit_log_names_the_user_whose_login_failed(secured: SecuredBroker, mechanism: str) -> None:
    before = len(secured.process.log_text())
    with secured.client() as client:
        assert _log_in(client, mechanism, "mallory\nforged", "not the password").error_code != 0
    said = [line for line in secured.process.log_text()[before:].splitlines() if "mallory" in line]
    assert len(said) == 1
    assert "login" in said[0] and "forged" in said[0] and "not the password" not in said[0]


def test_the_salt_of_an_unknown_user_is_always_the_same(secured: SecuredBroker) -> None:
    def salt() -> bytes:
        with secured.client() as client:
            assert _handshake(client, "SCRAM-SHA-512") == 0
            challenge = bytes(_authenticate(client, b"n,,n=nobody,r=nonce").auth_bytes)
            return challenge.split(b",")[1]

    assert salt() == salt()


@pytest.mark.parametrize(
    ("api", "version", "values"),
    [
        ("metadata", 12, {"topics": [], "include_topic_authorized_operations": False}),
        ("sasl_authenticate", 2, {"auth_bytes": b"\0alice\0x"}),
        ("describe_user_scram_credentials", 0, {"users": None}),
    ],
)
def test_other_requests_before_the_handshake_close_the_connection(
    secured: SecuredBroker, api: str, version: int, values: dict[str, Any]
) -> None:
    with secured.client() as client:
        assert client.call("api_versions", 3, client_software_name="x", client_software_version="1")
        client.send(api, version, **values)
        assert client.is_closed_by_broker()


def test_only_tokens_may_follow_the_handshake(secured: SecuredBroker) -> None:
    with secured.client() as client:
        assert _handshake(client, "PLAIN") == 0
        client.send("metadata", 12, topics=[], include_topic_authorized_operations=False)
        assert client.is_closed_by_broker()


def test_a_mechanism_that_is_not_enabled_is_refused(secured: SecuredBroker) -> None:
    with secured.client() as client:
        assert _handshake(client, "GSSAPI") == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert client.is_closed_by_broker()


def test_a_request_before_the_login_is_small(secured: SecuredBroker) -> None:
    with secured.client() as client:
        client.send_bytes(struct.pack(">i", 524_289))
        assert client.is_closed_by_broker()
    with secured.client() as client:
        assert _log_in(client, "PLAIN").error_code == 0
        client.send_bytes(struct.pack(">i", 524_289))
        assert not client.is_closed_by_broker(0.2)


def test_a_silent_client_is_disconnected(secured: SecuredBroker) -> None:
    with secured.client() as silent, secured.client() as client:
        assert _log_in(client, "PLAIN").error_code == 0
        began = time.monotonic()
        assert silent.is_closed_by_broker(2 * TIMEOUT_MS / 1000)
        assert time.monotonic() - began > TIMEOUT_MS / 2000
        assert not client.is_closed_by_broker(0.2)
        assert _metadata(client).brokers


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_tokens_without_headers_follow_an_old_handshake(secured: SecuredBroker, mechanism: str) -> None:
    """Clients before KIP-152 send such tokens."""

    def exchange_raw(client: RawClient, token: bytes) -> bytes:
        client.send_bytes(struct.pack(">i", len(token)) + token)
        return client.read_frame()

    with secured.client() as client:
        assert _handshake(client, mechanism, version=0) == 0
        if mechanism == "PLAIN":
            assert exchange_raw(client, f"\0{USER}\0{PASSWORD}".encode()) == b""
        else:
            scram = ClientExchange(MECHANISM_BY_NAME[mechanism], USER, PASSWORD, "nonce")
            final = scram.reply(exchange_raw(client, scram.first))
            scram.check(exchange_raw(client, final))
        assert _metadata(client).brokers
    with secured.client() as client:
        assert _handshake(client, "PLAIN", version=0) == 0
        token = b"\0alice\0wrong"
        client.send_bytes(struct.pack(">i", len(token)) + token)
        assert client.is_closed_by_broker()


def test_a_session_ends_unless_the_client_authenticates_again(secured: SecuredBroker) -> None:
    """KIP-368, with 1.5 s for SCRAM-SHA-256."""
    with secured.client() as client:
        assert _log_in(client, "SCRAM-SHA-256").session_lifetime == timedelta(milliseconds=1500)
        time.sleep(1.1)
        assert _log_in(client, "SCRAM-SHA-256").session_lifetime == timedelta(milliseconds=1500)
        time.sleep(1.1)
        assert _metadata(client).brokers
        time.sleep(0.6)
        client.send("metadata", 12, topics=[], include_topic_authorized_operations=False)
        assert client.is_closed_by_broker()


def test_a_client_stays_the_same_user(secured: SecuredBroker) -> None:
    secured.add_user("mallory", "m")
    with secured.client() as client:
        assert _log_in(client, "SCRAM-SHA-256").error_code == 0
        time.sleep(1.1)
        answer = _log_in(client, "SCRAM-SHA-256", "mallory", "m")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed_by_broker()
    with secured.client() as client:
        assert _log_in(client, "SCRAM-SHA-256").error_code == 0
        time.sleep(1.1)
        assert _handshake(client, "PLAIN") == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed_by_broker()


def test_a_client_without_an_end_of_its_session_authenticates_once(secured: SecuredBroker) -> None:
    with secured.client() as client:
        assert _log_in(client, "PLAIN").session_lifetime == timedelta(0)
        assert _handshake(client, "PLAIN") == ErrorCode.ILLEGAL_SASL_STATE
        assert _metadata(client).brokers


def test_a_deleted_user_cannot_log_in(secured: SecuredBroker) -> None:
    secured.add_user("bob", "b")
    with secured.client() as client:
        assert _log_in(client, "SCRAM-SHA-512", "bob", "b").error_code == 0
    secured.delete_user("bob")
    with secured.client() as client:
        answer = _log_in(client, "SCRAM-SHA-512", "bob", "b")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


# -- tidelog's tools


def _tool(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*tidelog_command(), *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def _client_file(path: Path, mechanism: str, user: str, password: str, module: str = "LoginModule") -> Path:
    escaped = "".join(c if c.isascii() else f"\\u{ord(c):04x}" for c in password)  # Java reads ISO 8859-1
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} required username="{user}" password="{escaped}";\n'
    )
    return path


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_tidelogs_tools_log_in(secured: SecuredBroker, tmp_path: Path, mechanism: str) -> None:
    config = _client_file(tmp_path / "client.properties", mechanism, USER, PASSWORD)
    options = ("--bootstrap-server", secured.bootstrap, "--command-config", str(config))
    topic = f"tools-{mechanism}"
    assert _tool("topic", "create", topic, *options).returncode == 0
    assert _tool("produce", topic, *options, stdin="one\ntwo\n").returncode == 0
    consumed = _tool("consume", topic, "--from-beginning", "--max-messages", "2", *options)
    assert consumed.stdout.split() == ["one", "two"], consumed.stderr


def test_tidelogs_tools_report_a_refused_login(secured: SecuredBroker, tmp_path: Path) -> None:
    config = _client_file(tmp_path / "client.properties", "SCRAM-SHA-512", USER, "wrong")
    failed = _tool("topic", "list", "--bootstrap-server", secured.bootstrap, "--command-config", str(config))
    assert failed.returncode == 1
    assert "refuses the login of alice" in failed.stderr
    without = _tool("topic", "list", "--bootstrap-server", secured.bootstrap)
    assert without.returncode == 1
    assert without.stderr.startswith("tidelog: ") and without.stderr.count("\n") == 1


def test_users_are_added_listed_and_deleted_by_the_tool(secured: SecuredBroker, tmp_path: Path) -> None:
    config = _client_file(tmp_path / "client.properties", "PLAIN", USER, PASSWORD)
    options = ("--bootstrap-server", secured.bootstrap, "--command-config", str(config))
    added = _tool("user", "add", "dave", "--password-file", "-", *options, stdin="dave's\n")
    assert added.returncode == 0, added.stderr
    assert _tool("user", "list", "dave", *options).stdout == (
        "user\tmechanism\titerations\ndave\tSCRAM-SHA-512\t4096\n"
    )
    assert f"{USER}\tSCRAM-SHA-256\t4096\n" in _tool("user", "list", *options).stdout
    with secured.client() as client:
        assert _log_in(client, "SCRAM-SHA-512", "dave", "dave's").error_code == 0
    assert _tool("user", "delete", "dave", *options).returncode == 0
    with secured.client() as client:
        assert _log_in(client, "SCRAM-SHA-512", "dave", "dave's").error_code != 0
    gone = _tool("user", "delete", "dave", *options)
    assert gone.returncode == 1 and "has no SCRAM credentials" in gone.stderr
    odd = _tool("user", "add", "eve", "--password-file", "-", *options, stdin="\u00aa\n")
    assert odd.returncode == 1 and "SASLprep" in odd.stderr


def test_our_client_authenticates_again_before_its_session_ends(secured: SecuredBroker) -> None:
    host, port = secured.bootstrap.split(":")
    login = SaslLogin("SCRAM-SHA-256", USER, PASSWORD)
    security = ClientSecurity(login=login)
    with BrokerConnection.open(Address(host, int(port)), security=security) as connection:
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            assert connection.call(MetadataRequest(topics=[]), MetadataResponse).brokers
            time.sleep(0.2)


# -- Kafka's Java clients and tools


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_javas_clients_produce_and_consume(
    secured: SecuredBroker, java: JavaTools, tmp_path: Path, mechanism: str
) -> None:
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    config = _client_file(tmp_path / "client.properties", mechanism, USER, PASSWORD, module)
    options = ("--bootstrap-server", secured.bootstrap, "--topic", f"java-{mechanism}")
    java.check("ConsoleProducer", *options, "--command-config", str(config), stdin="one\ntwo\n")
    consumed = java.check(
        "consumer.ConsoleConsumer",
        *(*options, "--command-config", str(config), "--group", f"java-{mechanism}"),
        *("--from-beginning", "--max-messages", "2", "--timeout-ms", "30000"),
    )
    assert consumed.split() == ["one", "two"]


@pytest.mark.java
@pytest.mark.slow
def test_kafkas_config_command_changes_users(secured: SecuredBroker, java: JavaTools, tmp_path: Path) -> None:
    config = _client_file(tmp_path / "client.properties", "PLAIN", USER, PASSWORD, PLAIN_MODULE)
    options = ("--bootstrap-server", secured.bootstrap, "--command-config", str(config))
    user = ("--entity-type", "users", "--entity-name", "jane")

    def configs(*arguments: str) -> str:
        return java.check("kafka.admin.ConfigCommand", *options, *arguments)

    configs("--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=jane's]")
    assert "SCRAM-SHA-256=iterations=8192" in configs("--describe", *user)
    assert "'jane'" in configs("--describe", "--entity-type", "users")
    with secured.client() as client:
        assert _log_in(client, "SCRAM-SHA-256", "jane", "jane's").error_code == 0
    configs("--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-256" not in configs("--describe", *user)
    with secured.client() as client:
        assert _log_in(client, "SCRAM-SHA-256", "jane", "jane's").error_code != 0


def test_the_first_user_is_added_before_the_first_start(tmp_path: Path) -> None:
    """A cluster with no other listener than a SASL listener needs such a user."""
    process = BrokerProcess(
        tmp_path / "data",
        tmp_path / "broker.log",
        settings={
            "listeners": f"CLIENTS://127.0.0.1:{free_port()}",
            "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
            "inter.broker.listener.name": "CLIENTS",
        },
    )
    process.port = int(process.settings["listeners"].rpartition(":")[2])
    arguments = ("user", "bootstrap", "admin", "--password-file", "-", "--data-dir", str(tmp_path / "data"))
    first = _tool(*arguments, stdin="first\n")
    assert first.returncode == 0, first.stderr
    again = _tool(*arguments, stdin="second\n")
    assert again.returncode == 1 and "exists already" in again.stderr
    process.start()
    try:
        config = _client_file(tmp_path / "client.properties", "SCRAM-SHA-512", "admin", "first")
        options = ("--bootstrap-server", process.bootstrap, "--command-config", str(config))
        listed = _tool("user", "list", *options)
        assert "admin\tSCRAM-SHA-512\t4096\n" in listed.stdout, listed.stderr
    finally:
        process.stop()


def test_the_pipeline_asks_brokers_with_the_settings_of_its_clients(
    secured: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver and the executors use the settings that Spark's Kafka clients get."""
    producer = Producer(_librdkafka(secured, "PLAIN"))
    producer.produce("archived", b"value", partition=0)
    assert producer.flush(WAIT_S) == 0
    config = _client_file(tmp_path / "client.properties", "SCRAM-SHA-512", USER, PASSWORD)
    monkeypatch.setenv("TIDELOG_COMMAND_CONFIG", str(config))
    settings = client_settings_of(("acks=all",))
    assert settings["security.protocol"] == "SASL_PLAINTEXT"
    logs = pytest.importorskip(
        "tidelog.pipeline.verify.logs", reason="pyarrow is not installed: make pipeline-setup"
    )
    log = logs.BrokerLog(secured.bootstrap, settings)
    (extent,) = log.extents(["archived"]).values()
    assert (extent.start, extent.end) == (0, 1)
    assert len(list(log.opener().batches("archived", 0, 0, 1))) == 1


# -- delegation tokens (KIP-48)


CREATION: dict[str, Any] = {
    "owner_principal_type": None,
    "owner_principal_name": None,
    "renewers": [],
    "max_lifetime": -1,
}


def _create_token(client: RawClient, **values: Any) -> Any:
    return client.call("create_delegation_token", 3, **(CREATION | values))


def _refusal(client: RawClient, api: str, version: int, **values: Any) -> int:
    """Returns the error code of a flexible response. kio cannot decode the time -1 of a refusal."""
    client.send(api, version, **values)
    return int.from_bytes(client.read_frame()[5:7], "big")


def _log_in_by_token(client: RawClient, token_id: str, secret: bytes) -> int:
    assert _handshake(client, "SCRAM-SHA-512") == 0
    exchange = ClientExchange(
        MECHANISM_BY_NAME["SCRAM-SHA-512"],
        token_id,
        base64.b64encode(secret).decode(),
        "nonce",
        is_token=True,
    )
    challenge = _authenticate(client, exchange.first)
    last = _authenticate(client, exchange.reply(bytes(challenge.auth_bytes)))
    return int(last.error_code)


def test_a_token_logs_in_as_its_owner(secured: SecuredBroker) -> None:
    with secured.client() as owner, secured.client() as bearer:
        assert _log_in(owner, "PLAIN").error_code == 0
        created = _create_token(owner)
        assert (created.error_code, created.principal_name) == (0, USER)
        secret = bytes(created.hmac)
        assert _log_in_by_token(bearer, created.token_id, secret) == 0
        assert _metadata(bearer).brokers
        refusal = _refusal(bearer, "create_delegation_token", 3, **CREATION)
        assert refusal == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "a token makes no tokens"
        owner.call("expire_delegation_token", 2, hmac=secret, expiry_time_period=-1)
    with secured.client() as late:
        assert _log_in_by_token(late, created.token_id, secret) == ErrorCode.SASL_AUTHENTICATION_FAILED
    with secured.client() as guesser:
        assert _log_in_by_token(guesser, "unknown", b"x") == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_session_ends_with_its_token(secured: SecuredBroker) -> None:
    """Also if `connections.max.reauth.ms` is 0, as for SCRAM-SHA-512 here."""
    with secured.client() as owner, secured.client() as bearer:
        assert _log_in(owner, "PLAIN").error_code == 0
        created = _create_token(owner, max_lifetime=3_000)
        assert _log_in_by_token(bearer, created.token_id, bytes(created.hmac)) == 0
        assert _metadata(bearer).brokers
        time.sleep(3.2)
        bearer.send("metadata", 12, topics=[], include_topic_authorized_operations=False)
        assert bearer.is_closed_by_broker()


def test_a_clients_token_is_its_own(secured: SecuredBroker) -> None:
    secured.add_user("trent", "t")
    with secured.client() as owner, secured.client() as other:
        assert _log_in(owner, "PLAIN").error_code == 0
        assert _log_in(other, "SCRAM-SHA-512", "trent", "t").error_code == 0
        secret = bytes(_create_token(owner).hmac)
        renewal = {"hmac": secret, "renew_period": 10_000}
        mismatch = _refusal(other, "renew_delegation_token", 2, **renewal)
        assert mismatch == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert other.call("describe_delegation_token", 3, owners=None).tokens == ()
        assert secret in [
            bytes(t.hmac) for t in owner.call("describe_delegation_token", 3, owners=None).tokens
        ]
        unknown = _refusal(owner, "renew_delegation_token", 2, **(renewal | {"hmac": b"x"}))
        assert unknown == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        renewer = {"principal_type": "User", "principal_name": "trent"}
        shared = bytes(_create_token(owner, renewers=[renewer]).hmac)
        assert other.call("renew_delegation_token", 2, **(renewal | {"hmac": shared})).error_code == 0
        for_other = CREATION | {"owner_principal_type": "User", "owner_principal_name": "trent"}
        assert (
            _refusal(owner, "create_delegation_token", 3, **for_other)
            == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        )


@pytest.mark.java
@pytest.mark.slow
def test_kafkas_delegation_token_command(secured: SecuredBroker, java: JavaTools, tmp_path: Path) -> None:
    config = _client_file(tmp_path / "client.properties", "PLAIN", USER, PASSWORD, PLAIN_MODULE)
    options = ("--bootstrap-server", secured.bootstrap, "--command-config", str(config))
    created = java.check(
        "DelegationTokenCommand",
        *(*options, "--create", "--max-life-time-period", "60000", "--renewer-principal", "User:bob"),
    )
    token_id, secret = created.splitlines()[-1].split()[:2]
    by_secret = (*options, "--hmac", secret)
    # Without --owner-principal, the tool sends an empty list of owners, which selects no token, as in Kafka.
    of_alice = (*options, "--describe", "--owner-principal", f"User:{USER}")
    assert token_id in java.check("DelegationTokenCommand", *of_alice)
    java.check("DelegationTokenCommand", *by_secret, "--renew", "--renew-time-period", "30000")
    by_token = tmp_path / "token.properties"
    login = f'required username="{token_id}" password="{secret}" tokenauth="true"'
    by_token.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.jaas.config={SCRAM_MODULE} {login};\n"
    )
    with_token = ("--bootstrap-server", secured.bootstrap, "--command-config", str(by_token))
    java.check("ConsoleProducer", *with_token, "--topic", "by-token", stdin="one\n")
    ours = _tool("topic", "list", *with_token)
    assert "by-token" in ours.stdout, ours.stderr
    java.check("DelegationTokenCommand", *by_secret, "--expire", "--expiry-time-period", "-1")
    assert token_id not in java.check("DelegationTokenCommand", *of_alice)
