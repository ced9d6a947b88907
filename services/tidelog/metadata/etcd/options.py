"""How to reach etcd."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

DEFAULT_PORT: Final = 2379
# A connection that isn't up by then is given up for the next endpoint.
DEFAULT_CONNECT_TIMEOUT_MS: Final = 1000
# One try of a read or of a lease's renewal. A member that is slower is taken for dead.
DEFAULT_ATTEMPT_TIMEOUT_MS: Final = 2000
# A whole operation over all its tries, and the one try of a transaction. An election of etcd's (1 to 2 s with
# its defaults) fits in.
DEFAULT_OPERATION_TIMEOUT_MS: Final = 5000


class EtcdAddressError(ValueError):
    """An endpoint that isn't `http://host:port`, `https://host:port` or `host:port`."""


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
            raise EtcdAddressError(f"{text!r} is no etcd endpoint: {error}") from error
        extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
        if not parts.hostname or extra or (has_scheme and parts.scheme not in ("http", "https")):
            raise EtcdAddressError(
                f"{text!r} is no etcd endpoint; write http://host:port or https://host:port"
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return EtcdEndpoint(f"{host}:{port}", parts.scheme == "https" if has_scheme else is_tls_default)


class EtcdOptions(NamedTuple):
    """`endpoints` in the order they are tried. `prefix` goes in front of every key, so that several clusters
    can share one etcd. Files hold PEM; they are read anew for each connection, so that they can be rotated.
    Without a CA file the system's authorities are trusted. An endpoint without a scheme means TLS if there
    is a CA file.
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
        """Raises EtcdAddressError, also if there is none."""
        if not self.endpoints:
            raise EtcdAddressError("no etcd endpoint is given")
        if bool(self.cert_file) != bool(self.key_file):
            raise EtcdAddressError("a client certificate needs both its file and its key's file")
        return tuple(
            EtcdEndpoint.parse(text.strip(), is_tls_default=bool(self.ca_file)) for text in self.endpoints
        )
