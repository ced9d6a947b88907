"""Opens connections to the listeners of a secured broker: with and without TLS, before and after a login."""

from __future__ import annotations

import socket
import ssl
import struct
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from brokerlab.broker_process import free_port
from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority, CertificateFiles
from tidelog.kernel.clock import SystemClock
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER

USER: Final = "fuzz"
PASSWORD: Final = "fuzz-secret"
CONNECT_TIMEOUT_S: Final = 10.0
_PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Way(Enum):
    """The state in which a connection sends damaged requests."""

    OPEN = "open"
    """The client did not authenticate and is a super user."""
    BEFORE_LOGIN = "before login"
    LOGGED_IN = "logged in"
    """The client is USER, who may do only what ACLs allow."""
    LOGGED_IN_OVER_TLS = "logged in over TLS"
    IN_HANDSHAKE = "in the handshake of TLS"
    """The damaged requests arrive where the broker expects TLS."""


SHARES: Final = {
    Way.OPEN: 40,
    Way.BEFORE_LOGIN: 10,
    Way.LOGGED_IN: 40,
    Way.LOGGED_IN_OVER_TLS: 9,
    Way.IN_HANDSHAKE: 1,
}
"""The shares of connections, in percent."""


class Listeners(NamedTuple):
    """The listeners of the broker. `certificate` is that of the authority."""

    open_port: int
    login_port: int
    tls_port: int
    certificate: Path

    @classmethod
    def create(cls, directory: Path) -> tuple[Listeners, dict[str, str]]:
        """Returns listeners with new certificates, and the settings of their broker."""
        now_ms = SystemClock().wall_ms()
        authority = CertificateAuthority.open(directory / "authority", now_ms=now_ms)
        authority.renew(directory / "broker", ["127.0.0.1"], now_ms=now_ms)
        files = CertificateFiles.within(directory / "broker")
        keystore = directory / "keystore.pem"
        keystore.write_text(files.key.read_text() + files.certificate.read_text())
        made = cls(free_port(), free_port(), free_port(), files.ca)
        return made, {
            "listeners": f"PLAINTEXT://127.0.0.1:{made.open_port},LOGIN://127.0.0.1:{made.login_port},"
            f"TLS://127.0.0.1:{made.tls_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "sasl.jaas.config": f'{_PLAIN_MODULE} required user_{USER}="{PASSWORD}";',
            "ssl.keystore.location": str(keystore),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:ANONYMOUS",
            "delegation.token.secret.key": "fuzz",
        }

    def connect(self, way: Way, context: ssl.SSLContext) -> socket.socket:
        """Returns a connection in the state of `way`. Raises OSError."""
        match way:
            case Way.OPEN:
                return _connected(self.open_port)
            case Way.BEFORE_LOGIN:
                return _connected(self.login_port)
            case Way.IN_HANDSHAKE:
                return _connected(self.tls_port)
            case Way.LOGGED_IN:
                return _logged_in(_connected(self.login_port))
        plain = _connected(self.tls_port)
        try:
            return _logged_in(context.wrap_socket(plain, server_hostname="127.0.0.1"))
        except OSError:
            plain.close()
            raise


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _logged_in(connection: socket.socket) -> socket.socket:
    """Logs in with PLAIN. Closes the connection and raises ConnectionError if the broker refuses."""
    token = f"\0{USER}\0{PASSWORD}".encode()
    handshake = struct.pack(">hhihh5s", 17, 1, 1, -1, 5, b"PLAIN")
    authenticate = struct.pack(">hhihi", 36, 1, 2, -1, len(token)) + token
    try:
        for frame in (handshake, authenticate):
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            with connection.makefile("rb") as answers:
                (size,) = struct.unpack(">i", answers.read(4) or b"\xff\xff\xff\xff")
                answer = answers.read(max(size, 0))
            if answer[4:6] != b"\0\0":
                raise ConnectionError("the broker refused the login")
    except OSError:
        connection.close()
        raise
    return connection
