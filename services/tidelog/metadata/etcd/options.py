"""Options for the connection to etcd."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tidelog.model.brokers import host_and_port

DEFAULT_PORT: Final = 2379
# After this time without a connection, the client tries the next endpoint.
DEFAULT_CONNECT_TIMEOUT_MS: Final = 1000
# Timeout of one attempt of a read or of a renewal. The client considers a slower member dead.
DEFAULT_ATTEMPT_TIMEOUT_MS: Final = 2000
# Timeout of an operation with all its attempts, and of the single attempt of a transaction. It is longer than
# an election in etcd (1 to 2 s with its defaults).
DEFAULT_OPERATION_TIMEOUT_MS: Final = 5000


class EtcdAddressError(ValueError):
    """An endpoint is not `http://host:port`, `https://host:port` or `host:port`."""


class EtcdEndpoint(NamedTuple):
    target: str
    is_tls: bool

    @staticmethod
    def parse(text: str, *, is_tls_default: bool = False) -> EtcdEndpoint:
        """Raises EtcdAddressError."""
        has_scheme = "://" in text
        try:
            parts = urlsplit(text if has_scheme else f"//{text}")
            port = parts.port or DEFAULT_PORT
        except ValueError as error:
            raise EtcdAddressError(f"{text!r} is not an etcd endpoint: {error}") from error
        extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
        if not parts.hostname or extra or (has_scheme and parts.scheme not in ("http", "https")):
            raise EtcdAddressError(
                f"{text!r} is not an etcd endpoint; write http://host:port or https://host:port"
            )
        return EtcdEndpoint(
            host_and_port(parts.hostname, port), parts.scheme == "https" if has_scheme else is_tls_default
        )


class EtcdOptions(NamedTuple):
    """Options for the connection to etcd.

    The client tries `endpoints` in their order. `prefix` precedes every key, so that several clusters can
    share an etcd. The files contain PEM. They are read again for each connection, so that they can be
    rotated. Without a CA file the client trusts the system's certificate authorities. An endpoint without a
    scheme uses TLS if there is a CA file.
    """

    endpoints: tuple[str, ...]
    username: str = ""
    password: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    prefix: str = ""
    connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS
    attempt_timeout_ms: int = DEFAULT_ATTEMPT_TIMEOUT_MS
    operation_timeout_ms: int = DEFAULT_OPERATION_TIMEOUT_MS

    def parsed_endpoints(self) -> tuple[EtcdEndpoint, ...]:
        """Raises EtcdAddressError if an endpoint is invalid, or if there is none."""
        if not self.endpoints:
            raise EtcdAddressError("no etcd endpoint is given")
        if bool(self.cert_file) != bool(self.key_file):
            raise EtcdAddressError("a client certificate needs both a certificate file and a key file")
        return tuple(
            EtcdEndpoint.parse(text.strip(), is_tls_default=bool(self.ca_file)) for text in self.endpoints
        )
