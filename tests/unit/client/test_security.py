"""Properties of clients, and connections that use them."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerlab.secured_broker import Authority, new_authority, put_identity
from tidelog.client.address import Address
from tidelog.client.cluster import BrokerConnection
from tidelog.client.errors import NotTrustedError
from tidelog.client.security import (
    NO_SECURITY,
    SecurityConfigError,
    UsersSecurity,
    parse_security,
    parse_users_security,
    read_security,
    read_users_security,
)
from tidelog.sasl.login import SaslLogin
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import decode_request_header
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse

SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="alice" password="secret";',
}


def test_no_properties_mean_no_security() -> None:
    assert parse_security({}) == NO_SECURITY == parse_security({"acks": "1", "ssl.provider": "x"})
    assert NO_SECURITY.protocol == "PLAINTEXT"


def test_a_login(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# a client\nacks=all\n" + "".join(f"{name}={text}\n" for name, text in SCRAM.items()))
    security = read_security(path)
    assert security.login == SaslLogin("SCRAM-SHA-512", "alice", "secret")
    assert security.protocol == "SASL_PLAINTEXT"
    assert "secret" not in repr(security)


def test_users_who_log_in_later() -> None:
    properties = {name: text for name, text in SCRAM.items() if name != "sasl.jaas.config"}
    security = parse_users_security(properties)
    login = SaslLogin("SCRAM-SHA-512", "alice", "secret")
    alice = security.of(login)
    assert alice.login is login
    assert (alice.tls, alice.protocol) == (None, "SASL_PLAINTEXT")
    assert parse_users_security({**properties, "security.protocol": "SASL_SSL"}).of(login).tls is not None


def test_users_with_bearer_tokens_log_in_later() -> None:
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    assert parse_users_security(properties) == UsersSecurity(None, "OAUTHBEARER", "sub")
    named = {**properties, "sasl.oauthbearer.sub.claim.name": "preferred_username"}
    assert parse_users_security(named).user_claim == "preferred_username"


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "security.protocol: PLAINTEXT has no login; name a listener with SASL_SSL"),
        ({"security.protocol": "SSL"}, "where such users log in with a delegation token"),
        (SCRAM, "sasl.jaas.config: each user logs in with a login of their own"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "GSSAPI is not one of PLAIN, "),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.client.credentials.client.id": "secret",
            },
            "client.id: each user logs in with a login of their own",
        ),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.x": "1"}, "sasl.x is not supp"),
    ],
)
def test_properties_with_which_users_cannot_log_in(
    tmp_path: Path, properties: dict[str, str], message: str
) -> None:
    path = tmp_path / "console.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
    with pytest.raises(SecurityConfigError, match=message) as caught:
        read_users_security(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol: TLS is not one of"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism: GSSAPI is not one of"),
        ({"sasl.jaas.config": "x"}, "sasl.jaas.config: the JAAS configuration does not end"),
        (
            {"sasl.jaas.config": 'X required username="a";'},
            "sasl.jaas.config: the login module has no option password",
        ),
        ({"sasl.login.class": "x"}, "sasl.login.class is not supported"),
        (
            {"security.protocol": "SASL_SSL", "ssl.truststore.location": "ca.jks"},
            "ssl.truststore.type: only PEM is supported, not JKS",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/nowhere",
            },
            "ssl.truststore.location: the certificates can't be read: No such file",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": "x",
            },
            "ssl.truststore.certificates: the certificates can't be read",
        ),
        (
            {"security.protocol": "SASL_SSL", "ssl.enabled.protocols": "TLSv1.1"},
            "ssl.enabled.protocols: only TLSv1.2 and TLSv1.3",
        ),
    ],
)
def test_properties_that_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SecurityConfigError) as caught:
        parse_security(SCRAM | changes)
    assert str(caught.value).startswith(message)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SecurityConfigError, match="can't be read: No such file"):
        read_security(tmp_path / "client.properties")


# -- TLS against a server of Python's ssl


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    directory = tmp_path_factory.mktemp("authority")
    authority = new_authority(directory, "ca")
    put_identity(directory, authority, name="localhost")
    return authority


class TlsServer:
    """Answers ApiVersions on every connection over TLS."""

    def __init__(self, directory: Path, *, requires_client: bool) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "ca.crt"))
        context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        context.verify_mode = ssl.CERT_REQUIRED if requires_client else ssl.CERT_NONE
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = Address("localhost", self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            try:
                with self._context.wrap_socket(accepted, server_side=True) as connection:
                    self._answer(connection)
            except OSError:
                continue

    def _answer(self, connection: ssl.SSLSocket) -> None:
        stream = connection.makefile("rb")
        frame = stream.read(int.from_bytes(stream.read(4), "big"))
        _, version, correlation_id, *_ = decode_request_header(memoryview(frame), 0)
        body = b"".join(
            bytes(chunk)
            for chunk in codec.response_encoder(ApiKey.API_VERSIONS, version)(
                ApiVersionsResponse(api_keys=[ApiVersion(ApiKey.API_VERSIONS, 0, 4)])
            )
        )
        answer = correlation_id.to_bytes(4, "big") + body
        connection.sendall(len(answer).to_bytes(4, "big") + answer)
        stream.read(1)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@pytest.fixture(params=[False, True], ids=["one-way", "mutual"])
def server(request: pytest.FixtureRequest, authority: Authority) -> Iterator[TlsServer]:
    server = TlsServer(authority.certificate.parent, requires_client=request.param)
    try:
        yield server
    finally:
        server.close()


def _connect(server: TlsServer, **properties: str) -> BrokerConnection:
    named = {name.replace("_", "."): text for name, text in properties.items()}
    security = parse_security({"security.protocol": "SSL", "ssl.truststore.type": "PEM", **named})
    assert security.protocol == "SSL"
    return BrokerConnection.open(server.address, timeout_s=10, security=security)


@pytest.mark.parametrize("is_inline", [False, True])
def test_a_connection_over_tls(server: TlsServer, authority: Authority, is_inline: bool) -> None:
    directory = authority.certificate.parent
    texts = {name: (directory / name).read_text() for name in ("ca.crt", "tls.crt", "tls.key")}
    both = directory / "both.pem"
    both.write_text(texts["tls.key"] + texts["tls.crt"])
    properties = (
        {
            "ssl.truststore.certificates": texts["ca.crt"],
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": texts["tls.key"],
            "ssl.keystore.certificate.chain": texts["tls.crt"],
        }
        if is_inline
        else {
            "ssl.truststore.location": str(directory / "ca.crt"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(both),
        }
    )
    with _connect(server, **properties) as connection:
        assert set(connection.served) == {ApiKey.API_VERSIONS}


def test_a_certificate_of_another_authority_is_not_trusted(server: TlsServer, tmp_path: Path) -> None:
    other = new_authority(tmp_path, "other")
    with pytest.raises(NotTrustedError, match=r"the certificate of localhost:.* is not trusted"):
        _connect(server, **{"ssl.truststore.location": str(other.certificate)})


def test_a_certificate_for_another_host_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    put_identity(tmp_path, authority, name="elsewhere")
    server = TlsServer(tmp_path, requires_client=False)
    trust = {"ssl.truststore.location": str(authority.certificate)}
    try:
        with pytest.raises(NotTrustedError, match=r"[Hh]ostname mismatch"):
            _connect(server, **trust)
        with _connect(server, **trust, **{"ssl.endpoint.identification.algorithm": ""}) as connection:
            assert connection.served
    finally:
        server.close()
