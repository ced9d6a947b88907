"""Listeners with TLS, used by librdkafka and by Python's own TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from brokerlab.broker_process import BrokerProcess
from brokerlab.raw_client import request_header
from brokerlab.secured_broker import Authority, new_authority, put_identity
from clusterlab.metrics import METRICS_LISTENER, metrics_url, scrape
from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.client.errors import ClientError
from tidelog.client.security import NO_SECURITY, ClientSecurity
from tidelog.client.shell.connection import AsyncConnection

pytestmark = pytest.mark.integration
StartBroker = Callable[..., BrokerProcess]
VALUES = [b"%d" % n * 1000 for n in range(3_000)]


class Certificates:
    """An authority and the broker's keystore, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority: Authority = new_authority(directory, "authority")
        self.renew()

    def renew(self) -> None:
        put_identity(self.directory / "broker", self.authority, name="127.0.0.1")
        pem = b"".join((self.directory / "broker" / name).read_bytes() for name in ("tls.key", "tls.crt"))
        new = self.directory / "keystore.new"
        new.write_bytes(pem)
        new.replace(self.keystore)

    @property
    def keystore(self) -> Path:
        return self.directory / "keystore.pem"

    def settings(self, **further: str) -> dict[str, str]:
        return {
            "listener.security.protocol.map": "PLAINTEXT:SSL",
            "ssl.keystore.location": str(self.keystore),
            **{name.replace("_", "."): value for name, value in further.items()},
        }

    def client(self, bootstrap: str, **further: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "ssl.endpoint.identification.algorithm": "none",
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in further.items()},
        }

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.check_hostname = False
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def metadata(connection: socket.socket) -> int:
    """Sends a Metadata request and returns the length of the response."""
    request = request_header(3, 1, 7, False) + struct.pack(">i", 0)
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", connection.recv(4))
    left = size
    while left:
        left -= len(connection.recv(left))
    return int(size)


def delivery_error(producer: Producer) -> str:
    """Produces one record. Returns the name of its error, or an empty string."""
    errors: list[str] = []
    producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error.name() if error else ""))
    producer.flush(10)
    return errors[0]


def copy_through(client: dict[str, Any]) -> list[bytes]:
    """Produces VALUES and consumes as many records."""
    producer = Producer(client)
    for value in VALUES:
        producer.produce("t", value)
    assert producer.flush(30) == 0
    consumer = Consumer(client | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found: list[bytes] = []
    until = time.monotonic() + 30
    while len(found) < len(VALUES) and time.monotonic() < until:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None, message.error()
            found.append(message.value())
    consumer.close()
    return found


def test_librdkafka_produces_and_consumes_over_tls(
    start_broker: StartBroker, certificates: Certificates
) -> None:
    broker = start_broker(certificates.settings())
    assert copy_through(certificates.client(broker.bootstrap)) == VALUES


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls(
    start_broker: StartBroker, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    broker = start_broker(certificates.settings())
    context = certificates.context()
    context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection((broker.host, broker.port), 10) as plain,
        context.wrap_socket(plain) as connection,
    ):
        assert metadata(connection) == metadata(connection)


def test_a_client_without_tls_is_refused_and_harms_nobody(
    start_broker: StartBroker, certificates: Certificates
) -> None:
    broker = start_broker(certificates.settings())
    address = broker.host, broker.port
    with socket.create_connection(address, 10) as plain:
        request = request_header(3, 1, 7, False) + struct.pack(">i", 0)
        plain.sendall(struct.pack(">i", len(request)) + request)
        with pytest.raises((ConnectionError, AssertionError)):
            assert plain.recv(100).startswith(b"never")
    with socket.create_connection(address, 10) as plain, certificates.context().wrap_socket(plain) as good:
        assert metadata(good)


def test_unfinished_handshakes_keep_nobody_out(start_broker: StartBroker, certificates: Certificates) -> None:
    broker = start_broker(certificates.settings())
    address = broker.host, broker.port
    silent = [socket.create_connection(address, 10) for _ in range(400)]
    for connection in silent[::2]:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01")
    began = time.monotonic()
    with socket.create_connection(address, 10) as plain, certificates.context().wrap_socket(plain) as good:
        assert metadata(good)
    assert time.monotonic() - began < 5
    for connection in silent:
        connection.close()


def test_the_clients_certificate_names_the_principal(
    start_broker: StartBroker, certificates: Certificates, tmp_path: Path
) -> None:
    """With an authorizer, only the super user may create a topic."""
    for name in ("alice", "mallory"):
        put_identity(tmp_path / name, certificates.authority, name=name)
    broker = start_broker(
        certificates.settings(
            ssl_client_auth="required",
            ssl_truststore_location=str(certificates.authority.certificate),
            ssl_principal_mapping_rules=r"RULE:^CN=(\w+)$/$1-user/U,DEFAULT",
            authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            super_users="User:ALICE-USER",
            **METRICS_LISTENER,
        )
    )
    url = metrics_url(broker.pid)
    before = scrape(url)
    prefix, labels = "kafka_server_socketservermetrics", '{listener="PLAINTEXT",networkProcessor="0"}'
    errors = {}
    for name in ("alice", "mallory"):
        identity = {
            "ssl.certificate.location": str(tmp_path / name / "tls.crt"),
            "ssl.key.location": str(tmp_path / name / "tls.key"),
        }
        producer = Producer(certificates.client(broker.bootstrap) | identity)
        errors[name] = delivery_error(producer)
    assert errors == {"alice": "", "mallory": "TOPIC_AUTHORIZATION_FAILED"}
    with (
        socket.create_connection((broker.host, broker.port), 10) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
        certificates.context().wrap_socket(plain) as anonymous,
    ):
        metadata(anonymous)
    samples = before
    until = time.monotonic() + 10
    while samples == before and time.monotonic() < until:  # a scrape may return the body of the previous one
        samples = scrape(url)
    assert samples[f"{prefix}_successful_authentication_total{labels}"] >= 2
    failed = f"{prefix}_failed_authentication_total{labels}"
    assert samples[failed] - before.get(failed, 0) == 1
    assert samples['tidelog_denied_accesses_total{operation="DESCRIBE",resource_type="TOPIC"}'] >= 1


def test_renewed_certificates_are_used_without_a_restart(
    start_broker: StartBroker, certificates: Certificates
) -> None:
    broker = start_broker(certificates.settings())

    def shown() -> bytes | None:
        with (
            socket.create_connection((broker.host, broker.port), 10) as plain,
            certificates.context().wrap_socket(plain) as connection,
        ):
            assert metadata(connection)
            return connection.getpeercert(binary_form=True)

    first = shown()
    assert shown() == first
    certificates.renew()
    second = shown()
    assert second != first
    certificates.keystore.write_text("not a certificate")
    assert shown() == second


def test_a_keystore_in_pkcs12(start_broker: StartBroker, certificates: Certificates, tmp_path: Path) -> None:
    store = tmp_path / "keystore.p12"
    subprocess.run(
        [
            "openssl",
            "pkcs12",
            "-export",
            "-out",
            store,
            "-passout",
            "pass:secret",
            "-in",
            certificates.keystore,
        ],
        check=True,
        capture_output=True,
    )
    broker = start_broker(
        certificates.settings(ssl_keystore_location=str(store), ssl_keystore_password="secret")
    )
    with (
        socket.create_connection((broker.host, broker.port), 10) as plain,
        certificates.context().wrap_socket(plain) as connection,
    ):
        assert metadata(connection)


def test_sasl_over_tls(start_broker: StartBroker, certificates: Certificates) -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
    broker = start_broker(
        certificates.settings()
        | {
            "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": jaas,
        }
    )
    client = certificates.client(
        broker.bootstrap,
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="alice",
        sasl_password="secret",
    )
    assert copy_through(client) == VALUES


def test_a_broker_without_a_keystore_says_what_is_missing(tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path / "data", tmp_path / "log", {"listener.security.protocol.map": "PLAINTEXT:SSL"}
    )
    with pytest.raises(Exception, match=r"ssl\.keystore\.location: listener PLAINTEXT uses TLS"):
        broker.start()


def test_both_sides_must_use_tls(start_broker: StartBroker, certificates: Certificates) -> None:
    """Both clients say which side lacks TLS."""
    tls = start_broker(certificates.settings())
    plain = start_broker({})
    trusted = ClientSecurity(certificates.context())

    def errors_of(broker: BrokerProcess, security: ClientSecurity) -> set[str]:
        (address,) = parse_bootstrap(broker.bootstrap)

        async def open_one() -> None:
            await AsyncConnection.open(address, client_id="test", security=security, timeout_s=20)

        found = set()
        for attempt in (
            lambda: BrokerConnection.open(address, timeout_s=20, security=security),
            lambda: asyncio.run(open_one()),
        ):
            with pytest.raises(ClientError) as caught:
                attempt()
            found.add(f"{type(caught.value).__name__}: {caught.value}")
        return found

    assert errors_of(tls, NO_SECURITY) == {
        f"NotKafkaError: {tls.bootstrap} uses TLS, but the client does not: set security.protocol to SSL or "
        "SASL_SSL"
    }
    assert errors_of(plain, trusted) == {
        f"NotTrustedError: {plain.bootstrap} does not use TLS, but the client does: set security.protocol to "
        "PLAINTEXT or SASL_PLAINTEXT, or choose a port with TLS"
    }
